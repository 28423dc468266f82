"""A saved adapter names the model passed to the trainer, so that it can be loaded without the run."""

import json
import os
import pathlib
import shutil

import pytest
from test_given import InMemory, Tokenizer

from lockstep_rl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer, _native

FEW = dict(per_device_train_batch_size=2, max_steps=1, threads=1, disable_tqdm=True, learning_rate=0.01)
LORA = {"r": 2, "target_modules": ["q_proj"]}
PAIRS = [{"prompt": "ab ", "chosen": "sun", "rejected": "moon"}] * 4
MADE = {
    "sft": lambda model, **more: SFTTrainer(model, SFTConfig("out", **FEW), [{"text": "ab sun"}] * 4, **more),
    "dpo": lambda model, **more: DPOTrainer(model, None, DPOConfig("out", **FEW), PAIRS, **more),
    "grpo": lambda model, **more: GRPOTrainer(
        model, "unique_chars", GRPOConfig("out", num_generations=2, max_completion_length=4, **FEW),
        [{"prompt": "ab "}] * 4, **more),
}


def base(directory):
    return json.loads(pathlib.Path(directory, "adapter_config.json").read_text())["base_model_name_or_path"]


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("given", ["loaded", "tokenizer", "both", "name"])
def test_a_saved_adapter_names_the_model_passed_to_the_trainer(model, kind, given):
    tokenizer = Tokenizer(model, "{% for m in messages %}{{ m['content'] }}{% endfor %}")
    more = {"processing_class": tokenizer} if given in ("tokenizer", "both") else {}
    trainer = MADE[kind](InMemory(model) if given in ("loaded", "both") else model, peft_config=LORA, **more)
    trainer.train()
    trainer.save_model("saved")
    assert base("saved") == model
    # The adapter in the run names the model that the run reads.
    assert (base("out/model") == model) == (given == "name")
    # The saved adapter can be moved and loaded without the run.
    shutil.move("saved", "elsewhere")
    shutil.rmtree("out")
    merge = ["lockstep", "merge", "--model", base("elsewhere"), "--adapter", "elsewhere", "--out", "one"]
    assert _native.main(merge) == 0
    assert os.path.exists("one/model.safetensors")


def test_the_adapter_of_an_unnamed_model_names_the_directory_in_the_run(model):
    class Nameless(InMemory):
        def __init__(self, directory):
            self.directory, self.name_or_path = directory, ""

        def save_pretrained(self, target):
            InMemory(self.directory).save_pretrained(target)

    trainer = MADE["sft"](Nameless(model), peft_config=LORA, processing_class=Tokenizer(model, "{{ 'a' }}"))
    trainer.train()
    trainer.save_model("saved")
    assert base("saved") == base("out/model") and os.path.isdir(base("saved"))


def test_a_continued_adapter_names_the_original_base_model(model):
    MADE["sft"](model, peft_config=LORA).train()
    shutil.move("out", "first")
    trainer = MADE["sft"]("first/model", processing_class=Tokenizer(model, "{{ 'a' }}"))
    trainer.train()
    trainer.model.save_pretrained("saved")
    assert base("saved") == model
