"""Reward functions as TRL takes them, each behind the call that the engine makes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ._data import Encoder
from .rewards import Builtin

# Columns that are no keyword arguments, or are given as others.
_RESERVED = ("prompt", "completion", "completion_ids")

# A failed batch is asked about again, row by row, to name the one at fault, for as long as this.
_SEARCH_S = 5.0


def by_group(function: Callable) -> Callable:
    """Marks a reward function whose score of a completion depends on its group (the completions of one prompt) alone:
    it is called with one group at a time, on another thread, while the others are still generated."""
    function.by_group = True
    return function


def is_async(function: Any) -> bool:
    """Whether calling it gives something to await."""
    function = function.func if isinstance(function, functools.partial) else function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


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

    def columns_of(self, batch: dict) -> dict:
        """The columns with the dataset's own objects where JSON would change them."""
        for source in self.sources:
            own = source.columns_of(batch)
            if own is not None:
                return {**batch["columns"], **own}
        return batch["columns"]

    def result_of(self, function: _Function, arguments: dict) -> Any:
        """What an async function gives. The first of a batch starts all of them."""
        if self._loop is None:
            self._loop = _Loop()
        if function.name not in self._started:
            for other in self.functions:
                if other.is_async and (other is function or not (function.by_group or other.by_group)):
                    other.extra, other.metrics = {}, {}
                    own = {**arguments, **other.loggers()}
                    self._started[other.name] = self._loop.start(other.call(**own))
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


class _Function:
    """A reward function and what the engine calls in its place."""

    def __init__(self, name: str, call: Callable, rewards: RewardSet):
        self.name = name
        self.call = call
        self.rewards = rewards
        self.is_async = is_async(call)
        self.by_group = bool(getattr(call, "by_group", False))
        self.extra: dict[str, list] = {}
        self.metrics: dict[str, list[float]] = {}

    def loggers(self) -> dict:
        """TRL's `log_extra` and `log_metric`."""
        return {"log_extra": self._log_extra, "log_metric": self._log_metric}

    def _log_extra(self, column: str, values: list) -> None:
        self.extra.setdefault(column, []).extend(values)

    def _log_metric(self, name: str, value: float) -> None:
        self.metrics.setdefault(name, []).append(float(value))

    def __call__(self, batch: dict) -> tuple[list, str, list]:
        arguments = self._arguments(batch)
        count = len(batch["completions"])
        if not self.is_async:
            self.extra, self.metrics = {}, {}
        try:
            scores = self._scores(self._ask(arguments), count)
        except Exception as error:
            self._name_the_row(error, arguments, batch)
            raise
        for name in self.metrics:
            self.rewards.metrics_seen[f"rewards/{self.name}/{name}"] = name
        extra = [[column, values] for column, values in self.extra.items()]
        for column, values in extra:
            if len(values) != count:
                raise ValueError(f"log_extra({column!r}): {len(values)} values for {count} completions")
        metrics = [(name, sum(values) / len(values)) for name, values in self.metrics.items()]
        return scores, json.dumps(extra, cls=Encoder), metrics

    def _ask(self, arguments: dict) -> Any:
        if self.is_async:
            return self.rewards.result_of(self, arguments)
        return self.call(**arguments, **self.loggers())

    def _arguments(self, batch: dict) -> dict:
        """TRL's keyword arguments. Columns have the dataset's own objects, not what JSON made of them."""
        columns = {name: column for name, column in self.rewards.columns_of(batch).items() if name not in _RESERVED}
        return {
            "prompts": batch["prompts"],
            "completions": batch["completions"],
            "completion_ids": batch["completion_ids"],
            **columns,
            "trainer_state": self.rewards.state,
        }

    def _scores(self, given: Any, count: int) -> list:
        if hasattr(given, "tolist"):
            given = given.tolist()
        if isinstance(given, (str, bytes, dict)) or not hasattr(given, "__len__"):
            raise TypeError(f"reward `{self.name}` must give a list of numbers, but gave {given!r:.100}")
        if len(given) != count:
            raise ValueError(f"reward `{self.name}` gave {len(given)} scores for {count} completions")
        scores = []
        for i, score in enumerate(given):
            try:
                scores.append(None if score is None else float(score))
            except (TypeError, ValueError):
                raise TypeError(
                    f"reward `{self.name}` gave {score!r:.100} for completion {i}: expected a number or None"
                ) from None
        return scores

    def _name_the_row(self, error: Exception, arguments: dict, batch: dict) -> None:
        """Notes on `error` which completion it is about: the first alone of which the function fails in the same way.
        It is asked again for that, a few seconds at most."""
        words = f"in reward `{self.name}`, step {batch['step'] + 1}"
        begun = time.monotonic()
        if not self.is_async:
            for i, row in enumerate(batch["rows"]):
                if time.monotonic() - begun > _SEARCH_S:
                    break
                one = {
                    key: value[i : i + 1] if isinstance(value, list) and len(value) == len(batch["rows"]) else value
                    for key, value in arguments.items()
                }
                try:
                    self._scores(self.call(**one, **self.loggers()), 1)
                except Exception as again:
                    if type(again) is type(error):
                        words += f", at row {row} of the dataset: completion {batch['completions'][i]!r:.200}"
                        break
        note(error, words)


def note(error: BaseException, text: str) -> None:
    """Adds a line to what a traceback shows (where Python can, from 3.11 on)."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    elif not error.args:
        error.args = (text,)
    elif isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({text})", *error.args[1:])
