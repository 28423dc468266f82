"""The rewards of a trainer: reward functions as in TRL, built-in rewards, and reward models."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from ._calling import RewardFunction
from ._models import name_of as name_of_model, source_of, write_given
from .rewards import Builtin, check_package

logger = logging.getLogger("lockstep_rl")
# Prefix of the directories of in-memory reward models.
OF_MODEL = "reward_model_"


def by_group(function: Callable) -> Callable:
    """Marks a reward function that scores each group (the completions of one prompt) independently of the others. The
    function is then called with one group at a time, on another thread, while other groups are still being
    generated."""
    function.by_group = True
    return function


def name_of(function: Any) -> str:
    """Returns the name under which a reward's scores are logged, as in TRL: the function's name, or the class name of a
    callable object."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", None) or type(inner).__name__


class _Loop:
    """An event loop on a separate thread, which runs all async rewards of a batch concurrently."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="lockstep-async-rewards", daemon=True).start()

    def start(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


class RewardSet:
    """The rewards of a trainer: their specifications for the engine, and the Python functions among them."""

    def __init__(self, reward_funcs: Any, processing_classes: Any = None, required: bool = True):
        given = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        given = [] if reward_funcs is None else given
        if not given and required:
            raise ValueError(
                "No reward source provided: `reward_funcs` is missing (a function, the name of a built-in reward or a "
                "model)"
            )
        classes = list(processing_classes) if isinstance(processing_classes, (list, tuple)) else [processing_classes]
        self.processing_classes: list = [None] * len(given) if processing_classes is None else classes
        if len(self.processing_classes) != len(given):
            raise ValueError(
                f"`reward_processing_classes` has {len(self.processing_classes)} entries and `reward_funcs` has "
                f"{len(given)}: the numbers must match, with None for a reward that is not a model"
            )
        self.given = given
        self.names: list[str] = []
        # Functions that write the files of in-memory reward models, by index in `specs`.
        self.in_memory: dict[int, Callable[[str], None]] = {}
        self.specs: list[str | dict] = []
        self.functions: list[_Function] = []
        taken: set[str] = set()
        for function, tokenizer in zip(given, self.processing_classes):
            if isinstance(function, (str, os.PathLike)):
                spec = _spec_of(os.fspath(function))
                if spec.startswith("model:"):
                    self._take_model(os.fspath(function), spec.removeprefix("model:"), tokenizer, taken)
                else:
                    self.specs.append(spec)
                    self.names.append(os.path.basename(os.path.normpath(os.fspath(function))))
            elif _is_model(function):
                self._take_model(function, "", tokenizer, taken)
            elif isinstance(function, Builtin):
                self.specs.append(function.spec)
                self.names.append(getattr(function, "kind", "reward"))
            elif callable(function):
                check_package(function)
                name = _free_name(name_of(function), taken)
                self.functions.append(_Function(name, function, self))
                self.specs.append(f"function:{name}")
                self.names.append(name)
            else:
                raise TypeError(
                    f"`reward_funcs` has {function!r:.100}: expected a function, a callable object, the name of a "
                    "built-in reward, or a reward model (a directory, a Hub id or a loaded model)"
                )
        self.sources: list[Source] = []
        self.state: Any = None
        # True in a worker, where `state` takes the step from each batch, because the trainer is in another process.
        self.counts_steps = False
        self.metrics_seen: dict[str, str] = {}
        self._loop: _Loop | None = None
        self._started: dict[str, Any] = {}
        self._silent: dict[str, list[bool]] = {}

    def _take_model(self, model: Any, place: str, tokenizer: Any, taken: set[str]) -> None:
        """Adds a reward model. As in TRL, its reward has the last part of the model's name."""
        own = place if place else name_of_model(model) or "reward_model"
        self.names.append(_free_name(os.path.basename(os.path.normpath(own)), taken))
        self.specs.append({"kind": "model", "name": self.names[-1], "model": place})
        if source_of(model, tokenizer) is None:
            write = functools.partial(write_given, model, tokenizer, argument="reward_funcs")
            self.in_memory[len(self.specs) - 1] = write

    def objects(self) -> dict[str, Callable[[str], None]]:
        """Returns functions that write the files of in-memory reward models, by directory. The last part of a
        directory's name is the reward's name."""
        return {f"{OF_MODEL}{place}/{self.names[place]}": write for place, write in self.in_memory.items()}

    def specs_at(self, places: dict[str, str], run: str | None = None) -> list[str | dict]:
        """Returns the specifications, with the directories of in-memory reward models. Specifications of a `run` of an
        older version are unchanged."""
        specs = list(self.specs)
        for place, name in zip(self.in_memory, self.objects()):
            specs[place] = {**specs[place], "model": places[name]}
        if run is not None and _has_short_models(run):
            specs = [f"model:{spec['model']}" if _is_of_model(spec) else spec for spec in specs]
        return specs

    def judged(self, name: str, rewards: list, arguments: dict) -> None:
        """Warns, as TRL does, about a completion for which all reward functions returned None."""
        if len(self.functions) != len(self.specs) or any(function.by_group for function in self.functions):
            return
        self._silent[name] = [reward is None for reward in rewards]
        if len(self._silent) < len(self.functions):
            return
        silent, self._silent = list(zip(*self._silent.values())), {}
        row = next((i for i, of_row in enumerate(silent) if all(of_row)), None)
        if row is not None:
            own = {key: values[row] for key, values in arguments.items() if isinstance(values, list)}
            logger.warning(
                "All reward functions returned None for the following kwargs:\n%s\nThis completion has no reward: at "
                "least one function should return one.", own,
            )

    @property
    def loop(self) -> _Loop:
        if self._loop is None:
            self._loop = _Loop()
        return self._loop

    def columns_of(self, batch: dict) -> dict:
        """Returns the columns of a batch, with the dataset's original objects where JSON would change them."""
        for source in self.sources:
            own = source.columns_of(batch)
            if own is not None:
                return {**batch["columns"], **own}
        return batch["columns"]

    def result_of(self, function: _Function, arguments: dict) -> Any:
        """Returns the result of an async function. The first call for a batch starts all async functions for that
        batch."""
        if function.name not in self._started:
            for other in self.functions:
                if other.is_async and (other is function or not (function.by_group or other.by_group)):
                    self._started[other.name] = self.loop.start(other.call(**arguments, **other.loggers()))
        return self._started.pop(function.name).result()


def _free_name(name: str, taken: set[str]) -> str:
    """Returns a unique name, and reserves it."""
    free, number = name, 2
    while free in taken or free in ("step", "prompt", "completion", "advantage"):
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free


def _is_of_model(spec: str | dict) -> bool:
    return isinstance(spec, dict) and spec.get("kind") == "model"


def _has_short_models(run: str) -> bool:
    """Whether a run's configuration has reward models without explicit names."""
    try:
        with open(os.path.join(run, "config.toml")) as file:
            return '"model:' in file.read()
    except OSError:
        return False


def _is_model(function: Any) -> bool:
    return hasattr(function, "state_dict") and hasattr(function, "config")


def _spec_of(text: str) -> str:
    """Returns the engine's specification for a reward given as a string. A directory or a Hub id is a reward model;
    other names are built-in rewards."""
    if os.path.isdir(text):
        return f"model:{text}"
    kind = text.partition(":")[0]
    if "/" in text and ":" not in text:
        if os.path.isabs(text) or text.startswith("."):
            raise FileNotFoundError(f"`reward_funcs`: {text}: no such file or directory")
        return f"model:{text}"
    if not kind:
        raise ValueError("`reward_funcs` must not contain an empty name")
    return text


class Source:
    """Rows of a dataset, and the columns that JSON would change (dates, images, tuples)."""

    def __init__(self, rows: list[dict], texts: list[str]):
        self.rows = rows
        self.as_json = texts
        self.changed = {
            name
            for row, text in zip(rows, texts)
            for name, value in json.loads(text).items()
            if not _same(value, row[name])
        }

    def columns_of(self, batch: dict) -> dict | None:
        """Returns those columns for a batch, or None if the batch is from another dataset."""
        if not self.changed or any(row >= len(self.rows) for row in batch["rows"]):
            return None
        for at, row in enumerate(batch["rows"]):
            text = json.loads(self.as_json[row])
            if any(name in text and text[name] != column[at] for name, column in batch["columns"].items()):
                return None
        return {name: [self.rows[row].get(name) for row in batch["rows"]] for name in self.changed}


def _same(value: Any, own: Any) -> bool:
    try:
        return type(value) is type(own) and bool(value == own)
    except Exception:  # an array, whose comparison is not a single bool
        return False


class _Function(RewardFunction):
    """A Python reward function of a trainer."""

    def __init__(self, name: str, call: Callable, rewards: RewardSet):
        super().__init__(name, call)
        self.set = rewards

    def __call__(self, batch: dict) -> str:
        answer = super().__call__(batch)
        self.set.judged(self.name, self.given, self.asked)
        for name in self.metrics:
            self.set.metrics_seen[f"rewards/{self.name}/{name}"] = name
        return json.dumps(answer)

    def result(self, arguments: dict) -> Any:
        return self.set.result_of(self, arguments) if self.is_async else super().result(arguments)

    def rewards(self, given: Any, count: int) -> list:
        rewards = super().rewards(given, count)
        self.given = rewards
        return rewards

    def arguments(self, batch: dict) -> dict:
        self.asked = super().arguments(batch)
        return self.asked

    def awaited(self, coroutine: Any) -> Any:
        return self.set.loop.start(coroutine).result()

    def columns(self, batch: dict) -> dict:
        """Returns the dataset's columns with the original objects instead of their JSON."""
        return self.set.columns_of(batch)

    def state(self, batch: dict) -> Any:
        if self.set.counts_steps:
            self.set.state.global_step = batch["step"]
        return self.set.state
