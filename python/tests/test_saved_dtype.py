"""The dtype of saved weights: as TRL loads and keeps them."""

import json
import os
import shutil

import numpy
import pytest
from conftest import WORDS, grpo
from test_given_objects import PAIRS

from lockstep_rl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer


def tensors(directory, name="model"):
    """Returns the header of a file with weights."""
    with open(os.path.join(directory, f"{name}.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {key: value for key, value in header.items() if key != "__metadata__"}


def dtypes(directory, name="model"):
    return {tensor["dtype"] for tensor in tensors(directory, name).values()}


@pytest.fixture(scope="session")
def bf16_model(model, tmp_path_factory):
    """Returns the directory of the model with weights in bf16."""
    target = tmp_path_factory.mktemp("bf16") / "model"
    shutil.copytree(model, target)
    path = target / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8 : 8 + length]), data[8 + length :]
    bits = numpy.frombuffer(values, dtype="<u4")
    halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    for key, tensor in header.items():
        if key != "__metadata__":
            assert tensor["dtype"] == "F32"
            tensor["dtype"] = "BF16"
            tensor["data_offsets"] = [at // 2 for at in tensor["data_offsets"]]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + halves)
    (target / "files.json").unlink(missing_ok=True)
    return str(target)


# Fields, and the dtype of the saved model.
ROWS = [
    ({}, "F32"),
    ({"save_dtype": "auto"}, "BF16"),
    ({"save_dtype": "bf16"}, "BF16"),
    ({"save_dtype": "f16"}, "F16"),
    ({"model_init_kwargs": {"dtype": "auto"}}, "BF16"),
    ({"model_init_kwargs": {"torch_dtype": "bfloat16"}}, "BF16"),
    ({"bf16": True}, "BF16"),
]


@pytest.mark.parametrize("fields, expected", ROWS, ids=[str(row[0]) for row in ROWS])
@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_a_model_passed_by_name_is_saved_in_the_dtype_it_was_loaded_in(bf16_model, kind, fields, expected):
    few = dict(max_steps=1, per_device_train_batch_size=2, threads=1, disable_tqdm=True, **fields)
    if kind == "grpo":
        trainer = grpo(bf16_model, [{"prompt": f"{word} "} for word in WORDS], **few)
    elif kind == "sft":
        trainer = SFTTrainer(bf16_model, SFTConfig("out", **few), [{"text": word} for word in WORDS])
    else:
        trainer = DPOTrainer(bf16_model, None, DPOConfig("out", **few), PAIRS)
    trainer.train()
    assert dtypes("out/model") == {expected}
    trainer.save_model("saved")
    assert dtypes("saved") == {expected}


def test_small_updates_are_not_lost_when_the_model_is_saved(bf16_model):
    """They would be rounded away in bf16: TRL's tests check that each parameter has changed."""
    args = SFTConfig("out", max_steps=1, learning_rate=1e-5, per_device_train_batch_size=4, threads=1,
                     lr_scheduler_type="constant", disable_tqdm=True)
    SFTTrainer(bf16_model, args, [{"text": word} for word in WORDS]).train()
    with open("out/model/model.safetensors", "rb") as file:
        data = file.read()
    own = numpy.frombuffer(data[8 + int.from_bytes(data[:8], "little") :], dtype="<f4")
    assert (own.view("<u4") & 0xFFFF).any()


def test_a_resumed_run_keeps_its_dtype(bf16_model):
    def train(resume=None, **more):
        args = SFTConfig("out", max_steps=2, per_device_train_batch_size=2, save_strategy="steps", save_steps=1,
                         threads=1, disable_tqdm=True, **more)
        SFTTrainer(bf16_model, args, [{"text": word} for word in WORDS]).train(resume_from_checkpoint=resume)

    train(save_dtype="auto")
    assert dtypes("out/model") == {"BF16"}
    train(resume="out/checkpoint-1")
    assert dtypes("out/model") == {"BF16"}


def test_the_loss_is_0_if_every_token_is_masked(model, rows):
    """As in TRL, if every completion is truncated and masked."""
    trainer = grpo(model, rows, max_completion_length=1, mask_truncated_completions=True, max_steps=1,
                   generation_kwargs={"temperature": 0.01})
    output = trainer.train()
    if trainer.state.log_history[0]["completions/clipped_ratio"] == 1:
        assert output.training_loss == 0.0
