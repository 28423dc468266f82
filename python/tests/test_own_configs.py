"""Subclasses of configurations, as in open-r1 and the alignment handbook, parsed with TrlParser and with transformers'
HfArgumentParser."""

import copy
import enum
import os
import pickle
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, Union

import pytest
from conftest import SMALL, vowels

import lockstep_rl
from lockstep_rl import (
    DPOConfig,
    GRPOConfig,
    GRPOTrainer,
    ModelConfig,
    PPOConfig,
    RewardConfig,
    RLOOConfig,
    ScriptArguments,
    SFTConfig,
    TrlParser,
)


class Shape(enum.Enum):
    ROUND = "round"
    SQUARE = "square"


@dataclass
class OpenR1(GRPOConfig):
    """The fields of open-r1's GRPOConfig."""

    benchmarks: list[str] = field(default_factory=lambda: [], metadata={"help": "The benchmarks to run."})
    callbacks: list[str] = field(default_factory=lambda: [])
    chat_template: Optional[str] = None
    hub_model_revision: Optional[str] = "main"
    num_completions_to_print: int = 0
    overwrite_hub_revision: bool = False
    push_to_hub_revision: bool = False
    system_prompt: Optional[str] = None
    wandb_log_unique_prompts: bool = True
    wandb_entity: Optional[str] = None


@dataclass
class Other(OpenR1):
    """A subclass of a subclass, with other defaults for known fields."""

    learning_rate: float = 5e-5
    num_generations: int = 4
    kind: Literal["a", "b"] = "a"
    size: Literal[1, 2, "all"] = 1
    shape: Shape = "round"
    fractions: list[float] = field(default_factory=lambda: [0.5])
    limit: Union[int, None] = None
    options: dict[str, Any] = field(default_factory=dict, metadata={"aliases": ["-o"]})


ROWS = [
    ([], {"benchmarks": [], "num_completions_to_print": 0, "wandb_log_unique_prompts": True, "learning_rate": 5e-5,
          "num_generations": 4, "kind": "a", "size": 1, "shape": "round", "fractions": [0.5], "limit": None,
          "options": {}}),
    (["--benchmarks", "math", "gsm8k"], {"benchmarks": ["math", "gsm8k"]}),
    (["--callbacks", "push"], {"callbacks": ["push"]}),
    (["--chat-template", "x"], {"chat_template": "x"}),
    (["--hub_model_revision", "v1"], {"hub_model_revision": "v1"}),
    (["--num_completions_to_print", "3"], {"num_completions_to_print": 3}),
    (["--overwrite_hub_revision"], {"overwrite_hub_revision": True}),
    (["--overwrite_hub_revision", "true"], {"overwrite_hub_revision": True}),
    (["--no_wandb_log_unique_prompts"], {"wandb_log_unique_prompts": False}),
    (["--wandb_log_unique_prompts", "false"], {"wandb_log_unique_prompts": False}),
    (["--system_prompt", "Be brief."], {"system_prompt": "Be brief."}),
    (["--wandb_entity", "me"], {"wandb_entity": "me"}),
    (["--learning_rate", "1e-6", "--beta", "0.1"], {"learning_rate": 1e-6, "beta": 0.1}),
    (["--kind", "b"], {"kind": "b"}),
    (["--size", "2"], {"size": 2}),
    (["--size", "all"], {"size": "all"}),
    (["--shape", "square"], {"shape": "square"}),
    (["--fractions", "1", "0.25"], {"fractions": [1.0, 0.25]}),
    (["--limit", "7"], {"limit": 7}),
    (["--num_generations", "2", "--max_steps", "3"], {"num_generations": 2, "max_steps": 3}),
    (["--use_vllm", "--push_to_hub", "--use_cpu"], {"use_vllm": True, "push_to_hub": True, "use_cpu": True}),
]


@pytest.mark.parametrize("words, expected", ROWS, ids=[" ".join(words) or "defaults" for words, _ in ROWS])
def test_parsers_accept_the_fields_of_a_subclass(words, expected):
    parsers = [TrlParser((ScriptArguments, Other, ModelConfig), prog="script")]
    try:
        from transformers import HfArgumentParser
    except ImportError:
        pass
    else:
        parsers.append(HfArgumentParser(Other, prog="script"))
    for parser in parsers:
        parsed = parser.parse_args_into_dataclasses([*words, "--output_dir", "out"])
        (args,) = [one for one in parsed if type(one) is Other]
        found = {name: getattr(args, name) for name in expected}
        assert found == expected, type(parser)
        assert args.output_dir == "out"


def test_a_dict_field_is_parsed_from_json_under_its_alias():
    (args,) = TrlParser(Other).parse_args_and_config(["-o", '{"a": 1}'])
    assert args.options == {"a": 1}


@pytest.mark.parametrize("words, complaint", [
    (["--kind", "c"], "invalid choice: 'c'"), (["--size", "3"], "invalid choice"),
    (["--shape", "flat"], "invalid choice: 'flat'"), (["--limit", "many"], "expected integer, got 'many'"),
    (["--benchmarkz", "x"], "--benchmarkz"),
])
def test_wrong_values_for_fields_of_a_subclass_are_refused(words, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        TrlParser(Other, prog="script").parse_args_and_config(words)
    assert ended.value.code == 2 and complaint in capsys.readouterr().err


def test_fields_without_a_default_are_required(place, capsys):
    @dataclass
    class Needs:
        name: str
        count: int = 1

    with pytest.raises(SystemExit) as ended:
        TrlParser((Needs, Other), prog="script").parse_args_and_config(["--count", "2"])
    assert ended.value.code == 2 and "the following arguments are required: --name" in capsys.readouterr().err
    pytest.importorskip("yaml")
    (place / "run.yaml").write_text("name: me\nbenchmarks: [math]\nlearning_rate: 1.0e-4\n")
    needs, args = TrlParser((Needs, Other)).parse_args_and_config(["--config", "run.yaml"])
    assert (needs.name, args.benchmarks, args.learning_rate) == ("me", ["math"], 1e-4)


@pytest.mark.parametrize("base", [GRPOConfig, RLOOConfig, PPOConfig, SFTConfig, DPOConfig, RewardConfig,
                                  lockstep_rl.AsyncGRPOConfig])
def test_every_configuration_can_be_subclassed(base):
    @dataclass
    class Mine(base):
        tags: list[str] = field(default_factory=list)
        depth: Optional[int] = None
        learning_rate: float = 0.5

    (args,) = TrlParser(Mine).parse_args_and_config(["--tags", "a", "b", "--depth", "3", "--max_steps", "2"])
    assert (args.tags, args.depth, args.max_steps, args.learning_rate) == (["a", "b"], 3, 2, 0.5)
    assert {"tags", "depth"} <= args.to_dict().keys() and "tags" not in args.values()
    assert args.values()["learning_rate"] == 0.5


def test_a_trainer_accepts_a_subclass_of_its_configuration(model, rows):
    args = OpenR1("out", **SMALL, benchmarks=["math"], system_prompt="not the engine's")
    trainer = GRPOTrainer(model, vowels, args, rows)
    assert "system_prompt" not in trainer._values, "system_prompt belongs to the script, as in open-r1"
    trainer.args.max_steps = 1
    trainer.train()
    assert trainer.args.benchmarks == ["math"] and trainer.state.global_step == 1
    assert GRPOConfig("out", system_prompt="Be brief.").values()["system_prompt"] == "Be brief."


def test_computed_arguments_have_the_values_of_trl():
    """These are the values of TRL 1.16, with its defaults for batch sizes."""
    for args, expected in [
        (GRPOConfig("o"), {"generation_batch_size": 8, "steps_per_generation": 1, "eval_batch_size": 8}),
        (GRPOConfig("o", gradient_accumulation_steps=4), {"generation_batch_size": 32, "steps_per_generation": 4}),
        (GRPOConfig("o", steps_per_generation=2), {"generation_batch_size": 16, "steps_per_generation": 2}),
        (GRPOConfig("o", generation_batch_size=16), {"generation_batch_size": 16, "steps_per_generation": 2}),
        (RLOOConfig("o", num_generations=4, per_device_train_batch_size=4), {"generation_batch_size": 4}),
        (SFTConfig("o"), {"optim": "adamw_torch_fused", "eval_batch_size": 8, "train_batch_size": 8}),
        (SFTConfig("o", eval_strategy="steps"), {"eval_steps": 10}),
        (SFTConfig("o", eval_strategy="steps", logging_steps=3), {"eval_steps": 3}),
        (SFTConfig("o", eval_strategy="steps", eval_steps=7), {"eval_steps": 7}),
        (SFTConfig("o", eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True),
         {"metric_for_best_model": "loss", "greater_is_better": False}),
        (SFTConfig("o", metric_for_best_model="eval_mean_token_accuracy", eval_strategy="epoch"),
         {"greater_is_better": True}),
        (DPOConfig("o"), {"dataloader_pin_memory": True, "use_cpu": False, "fp16": False, "do_train": False,
                          "log_level": "passive", "place_model_on_device": True}),
    ]:
        found = {name: getattr(args, name) for name in expected}
        assert found == expected
        # Computed values must not count as values that the script set.
        again = pickle.loads(pickle.dumps(copy.deepcopy(args)))
        assert again.values() == args.values() and {name: getattr(again, name) for name in expected} == expected
    assert "generation_batch_size" not in GRPOConfig("o").values()
    assert SFTConfig("o").get_process_log_level() == 30
    assert SFTConfig("o", log_level="debug").get_process_log_level() == 10


def test_arguments_print_as_in_transformers():
    text = str(GRPOConfig("out", learning_rate=0.5, hub_token="secret"))
    assert text == repr(GRPOConfig("out", learning_rate=0.5, hub_token="secret"))
    assert text.startswith("GRPOConfig(\n") and text.endswith(")") and "learning_rate=0.5,\n" in text
    assert "hub_token='<HUB_TOKEN>',\n" in text and "secret" not in text
    assert str(OpenR1("out", benchmarks=["math"])).startswith("OpenR1(\n")


def test_the_best_model_is_chosen_by_the_loss_by_default(model):
    rows = [{"text": word} for word in ["ab", "sun", "moon", "tree"]]
    for fields in [dict(eval_strategy="epoch", save_strategy="epoch", num_train_epochs=2),
                   dict(eval_strategy="steps", save_strategy="steps", eval_steps=0.5, save_steps=0.5, max_steps=4)]:
        args = SFTConfig(f"out-{fields['eval_strategy']}", per_device_train_batch_size=2, learning_rate=0.01, threads=1,
                         disable_tqdm=True, load_best_model_at_end=True, **fields)
        trainer = lockstep_rl.SFTTrainer(model, args, rows, rows)
        trainer.train()
        losses = {e["step"]: e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e}
        assert list(losses) == [2, 4]
        best = min(losses, key=losses.get)
        assert (trainer.state.best_global_step, trainer.state.best_metric) == (best, losses[best])


def test_save_strategy_best_needs_a_metric():
    with pytest.raises(ValueError, match="set metric_for_best_model"):
        SFTConfig("out", save_strategy="best", eval_strategy="epoch")
    for kind in ("epoch", "steps"):
        SFTConfig("out", save_strategy="best", eval_strategy=kind, metric_for_best_model="loss")
        SFTConfig("out", save_strategy="best", eval_strategy=kind, metric_for_best_model="loss", eval_steps=3,
                  load_best_model_at_end=True)


def test_boolean_flags_need_no_value(model):
    """Covers every flag that TRL's parser accepts without a value."""
    transformers = pytest.importorskip("transformers")
    flags = [
        "bf16_full_eval", "dataloader_drop_last", "disable_dropout", "do_eval", "do_train", "eval_on_start", "fp16",
        "full_determinism", "hub_always_push", "ignore_data_skip", "load_best_model_at_end", "log_completions",
        "logging_first_step", "mask_truncated_completions", "push_to_hub", "remove_unused_columns", "save_only_model",
        "sync_ref_model", "torch_compile", "trust_remote_code", "use_cpu", "use_liger_kernel", "use_vllm",
        "vllm_enable_sleep_mode", "dataloader_pin_memory", "gradient_checkpointing", "auto_find_batch_size",
    ]
    parser = transformers.HfArgumentParser(GRPOConfig, prog="script")
    for name in flags:
        for words in ([f"--{name}"], [f"--{name}", "True"], [f"--{name.replace('_', '-')}"]):
            try:
                found = getattr(parser.parse_args(words), name)
            except SystemExit:
                found = "refused"
            assert found is True, words
        assert getattr(parser.parse_args([f"--{name}", "false"]), name) is False
    for name in ("dataloader_pin_memory", "remove_unused_columns"):
        assert getattr(parser.parse_args([f"--no_{name}"]), name) is False
    (args,) = parser.parse_args_into_dataclasses(["--use_cpu", "--push_to_hub", "--use_vllm", "--output_dir", "out"])
    assert args.use_cpu is args.push_to_hub is args.use_vllm is True and os.fspath(args.output_dir) == "out"


def test_numbers_of_steps_may_be_fractions():
    for name in ("logging_steps", "eval_steps", "save_steps"):
        for value, kept in [(0.25, 0.25), (3, 3), (3.0, 3.0), ("0.5", 0.5), ("7", 7)]:
            if isinstance(value, str):
                (args,) = TrlParser(SFTConfig).parse_args_and_config([f"--{name}", value])
            else:
                args = SFTConfig("out", **{name: value})
            assert getattr(args, name) == kept
            assert args.values().get(name) == (None if kept < 1 else int(kept))
    for wrong in ("often", [1]):
        with pytest.raises(TypeError, match="`logging_steps` must be"):
            SFTConfig("out", logging_steps=wrong)

