"""`python -m lockstep_rl train setup.py` trains with the trainer that a file creates. `worker --setup setup.py` starts
a worker of this training run, with the file's reward functions.

    # setup.py
    def get_trainer():
        return AsyncGRPOTrainer(model, reward_funcs, args, train_dataset)
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

from ._workers import work

_FUNCTION = "get_trainer"


def takes(arguments: list[str]) -> bool:
    """Whether these arguments name a file that creates a trainer."""
    if arguments[:1] == ["worker"]:
        return any(word == "--setup" or word.startswith("--setup=") for word in arguments)
    return arguments[:1] == ["train"] and any(word.endswith(".py") for word in arguments[1:2])


def main(arguments: list[str]) -> int:
    """Trains, or runs a worker; returns the exit code."""
    try:
        _train(arguments[1:]) if arguments[0] == "train" else _work(arguments[1:])
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(str(stopped), file=sys.stderr)
        return 3
    return 0


def trainer_of(file: str) -> Any:
    """Returns the trainer that `get_trainer` in a file creates. The file is imported as a module, so that other
    processes can import its functions."""
    if not os.path.isfile(file):
        raise FileNotFoundError(f"{file}: no such file")
    place, name = os.path.split(os.path.abspath(file))
    sys.path.insert(0, place)
    module = importlib.import_module(name.removesuffix(".py"))
    if os.path.realpath(getattr(module, "__file__", None) or "") != os.path.realpath(file):
        raise ValueError(f"{file}: a module named {name.removesuffix('.py')} is already imported; rename the file")
    make = getattr(module, _FUNCTION, None)
    if not callable(make):
        raise ValueError(f"{file} has no function {_FUNCTION}(): it must return the trainer")
    return make()


def _train(words: list[str]) -> None:
    description = f"Trains with the trainer that {_FUNCTION}() in a file returns."
    parser = argparse.ArgumentParser("lockstep_rl train", description=description)
    parser.add_argument("setup", help=f"a Python file with a function {_FUNCTION}()")
    parser.add_argument("--resume", action="store_true", help="continue after the newest checkpoint of its output_dir")
    given = parser.parse_args(words)
    trainer_of(given.setup).train(resume_from_checkpoint=given.resume or None)


def _work(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "lockstep_rl worker", description="Generates and scores for a run, with the reward functions of a file."
    )
    parser.add_argument("--join", required=True, metavar="DIR", help="the run's directory, its output_dir")
    parser.add_argument("--name", required=True, help="the worker's name, unique within the run")
    parser.add_argument("--threads", type=int, help="number of threads; by default the number of cores")
    parser.add_argument("--profiles", help="comma-separated sampling_profiles to generate groups for; by default all")
    parser.add_argument("--allow-other-build", action="store_true", help="also accept a learner from another build")
    parser.add_argument("--wait", action="store_true", help="also wait for the learner of a run that has ended")
    parser.add_argument("--setup", required=True, help=f"the file whose {_FUNCTION}() creates the run's trainer")
    given = parser.parse_args(words)
    profiles = given.profiles.split(",") if given.profiles else []
    rewards = trainer_of(given.setup)._rewards()
    functions = [] if rewards is None else [function.call for function in rewards.functions]
    work(os.path.abspath(given.join), given.name, functions, given.threads, profiles=profiles,
         allow_other_build=given.allow_other_build, waits=given.wait)
