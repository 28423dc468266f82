"""Trainers other than GRPOTrainer, configuration classes, and conversions of arguments."""

import dataclasses
import json
import math
import os
import warnings

import pytest
from conftest import SMALL, WORDS, vowels, weights

import lockstep_rl
from lockstep_rl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    PPOConfig,
    PPOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
    _native,
)

OFFLINE = dict(per_device_train_batch_size=2, max_steps=3, logging_steps=1, learning_rate=0.01, threads=1,
               disable_tqdm=True)
PAIRS = [{"prompt": f"{word} ", "chosen": word, "rejected": word[::-1] + "z"} for word in WORDS]
SOLVED = [{"prompt": f"{word} ", "completion": f"{word}."} for word in WORDS]


def program(command, model, rows, values, out, *more):
    """Trains on the same rows with the command line."""
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    values = {key: value for key, value in values.items() if key != "disable_tqdm"}
    flags = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    arguments = ["lockstep", command, "--model", model, "--dataset", "rows.jsonl", *flags, "--out", out, *more]
    assert _native.main(arguments) == 0


@pytest.mark.parametrize("trainer, config, command, rows", [
    (SFTTrainer, SFTConfig, "sft", SOLVED),
    (DPOTrainer, DPOConfig, "dpo", PAIRS),
    (RewardTrainer, RewardConfig, "reward", PAIRS),
])
def test_offline_trainers_and_the_program_train_the_same_weights(model, trainer, config, command, rows):
    made = trainer(model=model, args=config("out", **OFFLINE), train_dataset=rows, eval_dataset=rows[:2])
    assert made.train().global_step == 3
    assert "loss" in made.state.log_history[0] and "eval_loss" in made.evaluate()
    program(command, model, rows, OFFLINE, "program")
    assert weights("out/model") == weights("program/model") != weights(model)


@pytest.mark.parametrize("trainer, config, algorithm", [
    (RLOOTrainer, RLOOConfig, "rloo"), (PPOTrainer, PPOConfig, "ppo"),
])
def test_online_trainers_and_the_program_train_the_same_weights(model, rows, trainer, config, algorithm):
    values = {**SMALL, "num_generations": 2 if algorithm == "rloo" else 1}
    made = trainer(model, "unique_chars", args=config("out", **values), train_dataset=rows)
    assert made.train().global_step == 4
    program("train", model, rows, {**values, "algorithm": algorithm}, "program", "--reward", "unique_chars")
    assert weights("out/model") == weights("program/model") != weights(model)


@pytest.mark.parametrize("rewarded", [True, False])
def test_distillation_in_python_and_the_program_train_the_same_weights(model, rows, rewarded):
    SFTTrainer(model, SFTConfig("taught", **OFFLINE), SOLVED).train()
    own = {"algorithm": "distillation", "teacher_model_name_or_path": "taught/model", "distillation_coef": 0.5,
           "distillation_discount": 0.9}
    made = GRPOTrainer(model, "unique_chars" if rewarded else None, GRPOConfig("out", **SMALL, **own), rows)
    assert made.train().global_step == 4
    assert "distillation/reverse_kl" in made.state.log_history[0]
    reward = ["--reward", "unique_chars"] if rewarded else []
    program("train", model, rows, {**SMALL, **own}, "program", *reward)
    assert weights("out/model") == weights("program/model") != weights(model)
    with pytest.raises(ValueError, match="teacher_model_name_or_path"):
        GRPOConfig("other", algorithm="distillation")
    with pytest.raises(ValueError, match="`distillation_coef` is not read by"):
        GRPOConfig("other", distillation_coef=0.5)
    with pytest.raises(ValueError, match="No reward source provided"):
        GRPOTrainer(model, None, GRPOConfig("other", **SMALL), rows)


def test_a_trained_reward_model_can_be_a_reward(model, rows):
    RewardTrainer(model, RewardConfig("judge", **OFFLINE), PAIRS).train()
    trainer = GRPOTrainer(model, ["judge/model", vowels], GRPOConfig("out", **SMALL), rows)
    trainer.train()
    assert any(key.startswith("rewards/model") for key in trainer.state.log_history[0])
    with pytest.raises(ValueError, match="language model"):
        GRPOTrainer(model, model, GRPOConfig("other", **SMALL), rows).train()


def test_dpo_accepts_a_reference_model(model):
    trainer = DPOTrainer(model, model, DPOConfig("a", **OFFLINE), PAIRS, PAIRS[:3])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(math.log(2))
    trainer.train()
    held_out = trainer.evaluate()
    assert held_out["eval_loss"] < 0.69 and held_out["eval_rewards/margins"] > 0
    DPOTrainer(model, None, DPOConfig("b", **OFFLINE), PAIRS).train()
    assert weights("a/model") == weights("b/model")
    # With the trained model as the reference, the initial model has the opposite margins.
    other = DPOTrainer(model, "a/model", DPOConfig("c", **OFFLINE), PAIRS, PAIRS[:3])
    assert other.evaluate()["eval_rewards/margins"] == pytest.approx(-held_out["eval_rewards/margins"])
    other.train()
    assert weights("c/model") != weights("a/model")
    with pytest.raises(FileNotFoundError, match="`ref_model` = ./nowhere"):
        DPOTrainer(model, "./nowhere", DPOConfig("d", **OFFLINE), PAIRS)
    with pytest.raises(TypeError, match="`ref_model` must be a directory"):
        DPOTrainer(model, 3, DPOConfig("d", **OFFLINE), PAIRS)


def test_configurations_are_dataclasses_and_can_be_subclassed():
    @dataclasses.dataclass
    class Mine(GRPOConfig):
        flavour: str = "plain"

    mine = Mine("out", num_generations=4, flavour="rich")
    assert (mine.num_generations, mine.flavour, mine.output_dir) == (4, "rich", "out")
    assert mine.to_dict()["flavour"] == "rich" and json.loads(mine.to_json_string())["num_generations"] == 4
    assert "flavour" not in mine.values()
    assert dataclasses.replace(mine, beta=0.1).beta == 0.1


def test_defaults_of_configurations_equal_those_of_trl():
    assert (GRPOConfig().learning_rate, GRPOConfig().num_generations, GRPOConfig().loss_type) == (1e-6, 8, "dapo")
    assert (RLOOConfig().num_generations, SFTConfig().learning_rate, DPOConfig().beta) == (2, 2e-5, 0.1)
    assert GRPOConfig().max_completion_length == 512 and GRPOConfig().values() == {}
    assert PPOConfig(num_ppo_epochs=2).values() == {"algorithm": "ppo", "num_ppo_epochs": 2}


def test_each_ignored_field_warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            GRPOConfig("out", use_vllm=True, vllm_mode="colocate", dataloader_num_workers=2, torch_compile=False)
    said = [str(warning.message) for warning in caught]
    assert len(said) == 3 and any(text.startswith("use_vllm has no meaning here: generation and") for text in said)


@pytest.mark.parametrize("fields, values", [
    (dict(bf16=True), {"dtype": "bf16"}),
    (dict(bf16=False), {}),
    (dict(scale_rewards=False), {"scale_rewards": "none"}),
    (dict(report_to="none"), {"tensorboard": False}),
    (dict(report_to=["tensorboard"]), {}),
    (dict(report_to="command:cat"), {"tensorboard": False, "report_to": ["command:cat"]}),
    (dict(report_to=["tensorboard", "https://h.example/x"]), {"report_to": ["https://h.example/x"]}),
    (dict(model_init_kwargs={"torch_dtype": "bfloat16", "device_map": None}), {"dtype": "bfloat16"}),
    (dict(vllm_max_model_length=64), {"max_model_len": 64}),
    (dict(learning_rate=5), {"learning_rate": 5}),
    (dict(num_generations=4.0, per_device_train_batch_size=4), {"num_generations": 4.0,
                                                                "per_device_train_batch_size": 4}),
    (dict(generation_kwargs={"top_p": 0.9}), {"generation_kwargs": {"top_p": 0.9}}),
])
def test_fields_are_converted_to_keys_of_the_engine(fields, values):
    assert GRPOConfig(**fields).values() == values


def test_loss_type_sets_the_key_of_the_method():
    assert DPOConfig(loss_type="ipo").values() == {"dpo_loss_type": "ipo"}
    assert GRPOConfig(loss_type="grpo").values() == {"loss_type": "grpo"}


def test_default_output_directories_are_named_as_in_trl(model, rows):
    for expected in ["model-GRPO", "model-GRPO"]:
        trainer = GRPOTrainer(model, vowels, train_dataset=rows)
        assert os.path.basename(trainer._values["output_dir"]) == expected
    args = GRPOConfig(**SMALL)
    for _ in range(2):
        GRPOTrainer(model, vowels, args, rows).train()
    assert os.path.exists("trainer_output/model") and os.path.exists("trainer_output-2/model")


def test_a_tokenizer_directory_is_written_into_the_run(model, rows, tmp_path):
    from conftest import write_tokenizer

    write_tokenizer(tmp_path / "other")
    trainer = GRPOTrainer(model, vowels, GRPOConfig("out", **SMALL), rows, processing_class=str(tmp_path / "other"))
    trainer.train()
    place = os.path.relpath(trainer._values["model_name_or_path"])
    assert place.startswith("out/given-") and weights("out/model")


def test_datasets_of_the_datasets_library_train_the_same_weights(model, rows):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(rows)
    GRPOTrainer(model, vowels, GRPOConfig("a", **SMALL), whole).train()
    GRPOTrainer(model, vowels, GRPOConfig("b", **SMALL), whole.to_iterable_dataset()).train()
    GRPOTrainer(model, vowels, GRPOConfig("c", **SMALL), rows).train()
    assert weights("a/model") == weights("b/model") == weights("c/model")


def test_lora_configurations_are_converted_to_keys(model):
    from lockstep_rl._peft import lora_values

    class LoraConfig:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    given = LoraConfig(peft_type="LORA", task_type="CAUSAL_LM", r=16, lora_alpha=64,
                       target_modules={"v_proj", "q_proj"}, lora_dropout=0.05, bias="none",
                       init_lora_weights=True, use_dora=False, rank_pattern={})
    assert lora_values(given) == {
        "use_peft": True, "lora_r": 16, "lora_alpha": 64, "lora_dropout": 0.05, "use_rslora": False,
        "lora_target_modules": ["q_proj", "v_proj"],
    }

    @dataclasses.dataclass
    class Own:
        r: int = 8
        peft_type: str = "LORA"
        use_dora: bool = False
        group_size: int = 16

    assert lora_values(Own(r=4))["lora_r"] == 4, "fields with PEFT's default values must be ignored"
    for field, value in [("use_dora", True), ("group_size", 8)]:
        with pytest.raises(ValueError, match=field):
            lora_values(Own(**{field: value}))
    assert lora_values({"target_modules": "all-linear"})["lora_target_modules"] == ["all-linear"]
    assert lora_values(None) == {}


def test_all_public_names_exist():
    assert all(hasattr(lockstep_rl, name) for name in lockstep_rl.__all__)
    assert lockstep_rl.__version__ == "0.1.0"
