"""`lockstep-rl grpo --model_name_or_path … --reward_funcs my_module.fn`: the arguments of TRL's command line.

Each field of a configuration class is a flag of the same name. A YAML file, given by `--config FILE.yaml`, has the same
names as keys.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

from . import _trainers, rewards
from ._flags import add_flag, read_file, value_of

_TRAINERS = {
    "grpo": _trainers.GRPOTrainer,
    "rloo": _trainers.RLOOTrainer,
    "sft": _trainers.SFTTrainer,
    "dpo": _trainers.DPOTrainer,
    "reward": _trainers.RewardTrainer,
}
_ONLINE = ("grpo", "rloo")
# Rewards that TRL's `--reward_funcs` knows by name.
_REWARDS = {
    "accuracy_reward": rewards.accuracy_reward,
    "reasoning_accuracy_reward": rewards.reasoning_accuracy_reward,
    "think_format_reward": rewards.think_format_reward,
    "get_soft_overlong_punishment": rewards.get_soft_overlong_punishment(1280, 256),
}


def takes(arguments: list[str]) -> bool:
    """Whether these are arguments of TRL's command line, and not of the program `lockstep`."""
    if not arguments or arguments[0] not in _TRAINERS:
        return False
    flags = [word.partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")]
    ours = {"__model", "__dataset", "__out", "__set", "__resume"} & set(flags)
    return arguments[0] in _ONLINE or ("__model_name_or_path" in flags or "__config" in flags) and not ours


def main(arguments: list[str]) -> int:
    """Trains as TRL's scripts do, and returns the exit code."""
    method = arguments[0]
    try:
        _run(method, _parsed(method, arguments[1:]))
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(str(stopped), file=sys.stderr)
        return 3
    return 0


def _run(method: str, values: dict) -> None:
    trainer_class = _TRAINERS[method]
    model = values.pop("model_name_or_path", None)
    if model is None:
        raise ValueError("--model_name_or_path is missing: a directory or a Hub id")
    _name_the_data(values)
    given: dict[str, Any] = {}
    if method in _ONLINE:
        given["reward_funcs"] = _reward_funcs(values)
    publishes = values.pop("push_to_hub", False)
    hub_id = values.get("hub_model_id")
    resume = values.pop("resume_from_checkpoint", None)
    args = trainer_class.config_class(**values)
    trainer = trainer_class(model=model, args=args, **given)
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    print(f"the model is in {trainer._values['output_dir']}")
    if publishes:
        trainer.push_to_hub(repo_id=hub_id)


def _name_the_data(values: dict) -> None:
    """Replaces TRL's dataset arguments by the engine's keys."""
    mixture = values.pop("datasets", None)
    for name in ("streaming", "test_split_size"):
        if values.pop(name, None):
            raise ValueError(f"--{name} is not supported: data is read before training; use separate files")
    if mixture:
        if len(mixture) > 1:
            raise ValueError("`datasets` must have one entry: mixtures are not supported here; join the datasets first")
        only = dict(mixture[0])
        values["dataset_name"] = only.pop("path", None)
        values["dataset_config"] = only.pop("name", None)
        values["dataset_train_split"] = only.pop("split", "train")
        unknown = [name for name, value in only.items() if value is not None]
        if unknown:
            raise ValueError(f"`datasets`: {unknown[0]} is not supported: use a separate directory or file")
    if values.get("dataset_name") is None:
        raise ValueError("--dataset_name is missing: a file, a directory or a Hub id")
    test = values.pop("dataset_test_split", None)
    if values.get("eval_strategy", "no") != "no":
        values.setdefault("eval_dataset_name", values["dataset_name"])
        if test is not None:
            values.setdefault("eval_dataset_split", test)


def _reward_funcs(values: dict) -> list:
    """Returns the rewards that `--reward_funcs` and `--reward_model_name_or_path` name: TRL's own, functions by their
    import path, or built-in rewards."""
    model = values.pop("reward_model_name_or_path", None)
    functions: list = [] if model is None else [model]
    for name in values.pop("reward_funcs", None) or []:
        functions.append(_REWARDS[name] if name in _REWARDS else _imported(name))
    if not functions:
        raise ValueError("--reward_funcs is missing: my_module.my_function, or a built-in reward")
    return functions


def _imported(name: str) -> Any:
    module, dot, function = name.rpartition(".")
    if not dot or not all(part.isidentifier() for part in name.split(".")):
        return name
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise ValueError(
            f"--reward_funcs {name}: module `{module}` not found in the working directory or on Python's path"
        ) from None
    if not hasattr(found, function):
        raise ValueError(f"--reward_funcs {name}: {module} has no `{function}`")
    return getattr(found, function)


# TRL's flags that are not fields of a configuration class, with their help texts.
_SCRIPT_FLAGS = {
    "model_name_or_path": "the model to train: a directory or a Hub id",
    "reward_funcs": "rewards: import paths (my_module.my_function), TRL's names, or the engine's",
    "reward_model_name_or_path": "a reward model: a directory or a Hub id",
    "streaming": "not supported",
    "test_split_size": "not supported",
}
_TEXT = {"type": "string"}
_SCRIPT_SCHEMAS = {
    "model_name_or_path": _TEXT, "reward_model_name_or_path": _TEXT, "reward_funcs": {"type": "array", "items": _TEXT},
}


def _parsed(method: str, arguments: list[str]) -> dict:
    """Returns the values of the flags, and of the file that `--config` names. A flag overrides the file."""
    fields = _TRAINERS[method].config_class._fields
    parser = argparse.ArgumentParser(
        prog=f"lockstep-rl {method}", allow_abbrev=False, argument_default=argparse.SUPPRESS,
        description="Trains with the arguments of TRL's command line; each is a field of the configuration class.",
    )
    parser.add_argument("--config", metavar="FILE.yaml", help="a YAML file of these arguments")
    helps = {name: field.doc for name, field in fields.items()} | _SCRIPT_FLAGS
    schemas = {name: field.schema for name, field in fields.items()} | _SCRIPT_SCHEMAS
    for name, text in sorted(helps.items()):
        add_flag(parser, name, text, schemas.get(name, {}))
    given = vars(parser.parse_args(arguments))
    values = read_file(given.pop("config")) if "config" in given else {}
    return {name: value_of(value, schemas.get(name, {})) for name, value in {**values, **given}.items()}
