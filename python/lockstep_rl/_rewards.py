"""Reward functions as TRL takes them, each behind the call that the engine makes."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
from collections.abc import Callable
from typing import Any

from ._calling import RewardFunction
from .rewards import Builtin


def by_group(function: Callable) -> Callable:
    """Marks a reward function whose score of a completion depends on its group (the completions of one prompt) alone:
    it is called with one group at a time, on another thread, while the others are still generated."""
    function.by_group = True
    return function


def name_of(function: Any) -> str:
    """The name that its scores are logged under, as in TRL: the function's, or the class's of a callable object."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", None) or type(inner).__name__


class _Loop:
    """An event loop on a thread of its own, on which all async rewards of a batch run at the same time."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="lockstep-async-rewards", daemon=True).start()

    def start(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


class RewardSet:
    """The rewards of a trainer: specifications for the engine, and the Python functions among them."""

    def __init__(self, reward_funcs: Any, processing_classes: Any = None):
        given = reward_funcs if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        if reward_funcs is None or not given:
            raise ValueError("`reward_funcs` is missing: give a function, the name of a built-in reward or a model")
        self.specs: list[str | dict] = []
        self.functions: list[_Function] = []
        taken: set[str] = set()
        for function in given:
            if isinstance(function, (str, os.PathLike)):
                self.specs.append(_spec_of(os.fspath(function)))
            elif isinstance(function, Builtin):
                self.specs.append(function.spec)
            elif callable(function) and not _is_model(function):
                name = name_of(function)
                number = 2
                while name in taken or name in ("step", "prompt", "completion", "advantage"):
                    name, number = f"{name_of(function)}_{number}", number + 1
                taken.add(name)
                self.functions.append(_Function(name, function, self))
                self.specs.append(f"function:{name}")
            else:
                raise TypeError(
                    f"`reward_funcs` has {function!r:.100}: expected a function, a callable object, the name of a "
                    "built-in reward, or the directory or Hub id of a reward model (a loaded model: save it first)"
                )
        self.sources: list[Source] = []
        self.state: Any = None
        self.metrics_seen: dict[str, str] = {}
        self._loop: _Loop | None = None
        self._started: dict[str, Any] = {}

    @property
    def loop(self) -> _Loop:
        if self._loop is None:
            self._loop = _Loop()
        return self._loop

    def columns_of(self, batch: dict) -> dict:
        """The columns with the dataset's own objects where JSON would change them."""
        for source in self.sources:
            own = source.columns_of(batch)
            if own is not None:
                return {**batch["columns"], **own}
        return batch["columns"]

    def result_of(self, function: _Function, arguments: dict) -> Any:
        """What an async function gives. The first of a batch starts all of them."""
        if function.name not in self._started:
            for other in self.functions:
                if other.is_async and (other is function or not (function.by_group or other.by_group)):
                    self._started[other.name] = self.loop.start(other.call(**arguments, **other.loggers()))
        return self._started.pop(function.name).result()


def _is_model(function: Any) -> bool:
    return hasattr(function, "state_dict") and hasattr(function, "config")


def _spec_of(text: str) -> str:
    """A directory is a reward model's; what the engine has under this name is that; the rest is a Hub id."""
    if os.path.isdir(text):
        return f"model:{text}"
    kind = text.partition(":")[0]
    if "/" in text and ":" not in text:
        if os.path.isabs(text) or text.startswith("."):
            raise FileNotFoundError(f"`reward_funcs`: {text}: no such file or directory")
        return f"model:{text}"
    if not kind:
        raise ValueError("`reward_funcs` has an empty name")
    return text


class Source:
    """A dataset whose rows have columns that JSON would change (dates, images, tuples)."""

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
        """Those columns of a batch; None where the batch is of another dataset."""
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
    except Exception:  # an array, whose comparison has no single answer
        return False


class _Function(RewardFunction):
    """A function of a trainer."""

    def __init__(self, name: str, call: Callable, rewards: RewardSet):
        super().__init__(name, call)
        self.set = rewards

    def __call__(self, batch: dict) -> str:
        answer = super().__call__(batch)
        for name in self.metrics:
            self.set.metrics_seen[f"rewards/{self.name}/{name}"] = name
        return json.dumps(answer)

    def result(self, arguments: dict) -> Any:
        return self.set.result_of(self, arguments) if self.is_async else super().result(arguments)

    def awaited(self, coroutine: Any) -> Any:
        return self.set.loop.start(coroutine).result()

    def columns(self, batch: dict) -> dict:
        """With the dataset's own objects, not what JSON made of them."""
        return self.set.columns_of(batch)

    def state(self, batch: dict) -> Any:
        return self.set.state
