"""The reference of a run that continues a trained adapter is that adapter, as in TRL 1.16, or the base model with
`ref_adapter="none"`."""

import json
import math
import os
import pathlib
import types

import pytest
from conftest import vowels
from test_given import InMemory

import lockstep_rl
from lockstep_rl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

FEW = dict(
    per_device_train_batch_size=2, max_steps=2, threads=1, disable_tqdm=True, learning_rate=0.02, logging_steps=1,
)
ONLINE = dict(num_generations=2, max_completion_length=6, **FEW)
PAIRS = [
    {"prompt": "ab ", "chosen": "sun", "rejected": "moon"}, {"prompt": "x ", "chosen": "tree", "rejected": "a"},
] * 2
PROMPTS = [{"prompt": f"{word} "} for word in ("ab", "sun", "moon", "x")]


@pytest.fixture(scope="module")
def adapters(model, tmp_path_factory):
    """Returns the directories of two trained adapters."""
    root = tmp_path_factory.mktemp("adapters")
    for seed, name in ((1, "first"), (2, "second")):
        args = SFTConfig(str(root / name), seed=seed, **{**FEW, "max_steps": 8, "learning_rate": 0.1})
        lora = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
        SFTTrainer(model, args, [{"text": "ab sun moon"}] * 4, peft_config=lora).train()
    return [str(root / name / "model") for name in ("first", "second")]


class Below(InMemory):
    def state_dict(self):
        return {}

    def save_pretrained(self, target, state_dict=None):
        os.makedirs(target, exist_ok=True)
        super().save_pretrained(target)


class Adapted(InMemory):
    """A stand-in for a PeftModel with a trained adapter."""

    def __init__(self, adapter, base):
        super().__init__(adapter)
        config = json.loads(pathlib.Path(adapter, "adapter_config.json").read_text())
        names = ("r", "lora_alpha", "target_modules", "lora_dropout", "use_rslora")
        self.peft_config = {"default": types.SimpleNamespace(**{name: config[name] for name in names})}
        self.below = Below(base)

    def get_base_model(self):
        return self.below


def dpo(model, out="out", **fields):
    return DPOTrainer(model, None, DPOConfig(out, **FEW, **fields), PAIRS)


def online(kind, config):
    def made(model, out="out", **fields):
        return kind(model, vowels, config(out, **ONLINE, **fields), PROMPTS)
    return made


MADE = {
    "dpo": dpo, "grpo": lambda *args, **more: online(GRPOTrainer, GRPOConfig)(*args, beta=0.1, **more),
    "rloo": online(RLOOTrainer, RLOOConfig),
}


def first(trainer):
    trainer.train()
    return trainer.state.log_history[0]


def begins_as_its_reference(kind, logged):
    if kind == "dpo":
        return logged["loss"] == pytest.approx(math.log(2), abs=1e-7) and logged["rewards/margins"] == 0.0
    return logged["kl"] == 0.0


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("given", ["directory", "object"])
@pytest.mark.parametrize("fields, is_reference", [
    ({}, True), ({"ref_adapter": "initial"}, True), ({"ref_adapter": "none"}, False),
])
def test_the_reference_of_a_continued_adapter_is_that_adapter(model, adapters, kind, given, fields, is_reference):
    policy = adapters[0] if given == "directory" else Adapted(adapters[0], model)
    trainer = MADE[kind](policy, **fields)
    assert begins_as_its_reference(kind, first(trainer)) == is_reference
    assert trainer.ref_model is None, "as in TRL"


@pytest.mark.parametrize("kind", MADE)
def test_a_new_adapter_starts_equal_to_the_base_model(model, kind):
    for fields in ({}, {"ref_adapter": "initial"}, {"ref_adapter": "none"}):
        logged = first(MADE[kind](model, str(fields), use_peft=True, lora_r=4, **fields))
        assert begins_as_its_reference(kind, logged), fields


@pytest.mark.parametrize("fields", [{}, {"ref_adapter": "none"}])
def test_an_explicit_reference_takes_precedence(model, adapters, fields):
    """The reference is the base model, the adapter itself, or another adapter."""
    results = []
    for i, reference in enumerate([model, adapters[0], adapters[1]]):
        trainer = DPOTrainer(adapters[0], reference, DPOConfig(f"out-{i}", **FEW, **fields), PAIRS)
        results.append(begins_as_its_reference("dpo", first(trainer)))
    assert results == [False, True, False]


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
@pytest.mark.parametrize("policy", ["continued", "continued from none", "new", "whole"])
def test_evaluating_after_training_uses_the_reference_of_training(model, adapters, kind, policy):
    """`evaluate` returns the metrics of the last evaluation during training."""
    fields = {"continued from none": {"ref_adapter": "none"}, "new": {"use_peft": True, "lora_r": 4}}.get(policy, {})
    more = {} if kind == "dpo" else {"num_generations_eval": 2}
    trainer = MADE[kind](adapters[0] if policy.startswith("continued") else model, eval_strategy="steps", eval_steps=2,
                         **fields, **more)
    trainer.eval_dataset = PAIRS if kind == "dpo" else PROMPTS
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "eval_loss" in entry][-1]
    again = trainer.evaluate()
    names = ["eval_loss", *(("eval_rewards/margins", "eval_rewards/chosen") if kind == "dpo" else ())]
    assert [again[name] for name in names] == [logged[name] for name in names]


@pytest.mark.parametrize("kind", MADE)
def test_a_resumed_run_keeps_its_reference(model, adapters, kind):
    saved = dict(save_strategy="steps", save_steps=1)
    MADE[kind](adapters[0], "whole", **saved).train()
    trainer = MADE[kind](adapters[0], "whole", **saved)
    adapter = pathlib.Path("whole/model/adapter_model.safetensors")
    whole = adapter.read_bytes()
    trainer.train(resume_from_checkpoint="whole/checkpoint-1")
    assert adapter.read_bytes() == whole
    # As a run of an older version, whose reference is the base model.
    MADE[kind](adapters[0], "none", ref_adapter="none", **saved).train()
    none = pathlib.Path("none/model/adapter_model.safetensors").read_bytes()
    config = pathlib.Path("none/config.toml")
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("ref_adapter")))
    MADE[kind](adapters[0], "none", **saved).train(resume_from_checkpoint="none/checkpoint-1")
    assert pathlib.Path("none/model/adapter_model.safetensors").read_bytes() == none != whole


def test_ref_adapter_is_documented_and_validated():
    (row,) = [row for row in lockstep_rl.field_table("dpo") if row["name"] == "ref_adapter"]
    assert row["default"] is None and "initial" in row["doc"]
    with pytest.raises(ValueError, match="ref_adapter"):
        DPOConfig("out", ref_adapter="second")
    assert not [row for row in lockstep_rl.field_table("sft") if row["name"] == "ref_adapter"]
