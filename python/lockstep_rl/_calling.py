"""How TRL calls a reward function: its keyword arguments, and its possible results.

The package calls reward functions through this module. For `reward_funcs = ["python:FILE:FUNCTION"]`, the engine does
so without the package: it runs the text of this file in a separate interpreter (crates/rewards/src/python/mod.rs).
Therefore this file imports only the standard library.
"""

import asyncio
import collections.abc
import functools
import importlib.machinery
import inspect
import json
import math
import os
import sys
import time
import traceback
import types

# Dataset columns that are not passed as keyword arguments under their names.
_LEFT_OUT = ("prompt", "completion", "completion_ids")
# Other keyword arguments of reward functions; no dataset column may have one of these names.
_TAKEN = ("prompts", "completions", "trainer_state", "log_extra", "log_metric")

# Time limit in seconds for finding the row that failed, by calling the function with each row separately.
_SEARCH_S = 5.0


def is_async(function):
    """Whether `function` is an async function, or an object with an async `__call__`."""
    function = function.func if isinstance(function, functools.partial) else function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


class RewardFunction:
    """Wraps a reward function for the engine, which calls the wrapper with a batch (a dict). The result is a dict of
    values that JSON can hold: `rewards`, `extra` columns and `metrics`."""

    def __init__(self, name, call):
        self.name = name
        self.call = call
        self.is_async = is_async(call)
        self.by_group = bool(getattr(call, "by_group", False))
        self.extra = {}
        self.metrics = {}

    def __call__(self, batch):
        arguments = self.arguments(batch)
        count = len(batch["completions"])
        try:
            rewards = self.rewards(self.result(arguments), count)
        except Exception as error:
            try:
                self._name_the_row(error, arguments, batch)
            except Exception:
                pass  # The original exception is raised below, even if the search for its row fails.
            raise
        for column, values in self.extra.items():
            if len(values) != count:
                raise ValueError(f"log_extra({column!r}): {len(values)} values for {count} completions")
        metrics = {name: _number(sum(values) / len(values)) for name, values in self.metrics.items()}
        return {"rewards": rewards, "extra": plain(self.extra), "metrics": metrics}

    def loggers(self):
        """Returns TRL's arguments `log_extra` and `log_metric`, and discards the values that they logged for the
        previous batch."""
        self.extra, self.metrics = {}, {}
        return {"log_extra": self._log_extra, "log_metric": self._log_metric}

    def _log_extra(self, column, values):
        self.extra.setdefault(column, []).extend(values)

    def _log_metric(self, name, value):
        if value is not None:  # None: nothing was measured
            self.metrics.setdefault(name, []).append(float(value))

    def result(self, arguments):
        """Calls the function with these arguments and returns its result, awaited if the function is async."""
        result = self.call(**arguments, **self.loggers())
        return self.awaited(_wait_for(result)) if inspect.isawaitable(result) else result

    def awaited(self, coroutine):
        """Runs a coroutine and returns its result."""
        raise NotImplementedError

    def columns(self, batch):
        """Returns the dataset's columns for a batch."""
        return batch["columns"]

    def state(self, batch):
        """Returns TRL's argument `trainer_state`."""
        raise NotImplementedError

    def arguments(self, batch):
        """Returns TRL's keyword arguments of a reward function, without `log_extra` and `log_metric`."""
        columns = {name: column for name, column in self.columns(batch).items() if name not in _LEFT_OUT}
        for name in _TAKEN:
            if name in columns:
                raise TypeError(f"the dataset's column `{name}` has the name of another argument of reward functions")
        return {
            "prompts": batch["prompts"],
            "completions": batch["completions"],
            "completion_ids": batch["completion_ids"],
            **columns,
            "trainer_state": self.state(batch),
        }

    def rewards(self, given, count):
        """Checks the result of a reward function. Returns a number, None or a list of step scores for each
        completion."""
        if hasattr(given, "tolist"):
            given = given.tolist()
        if isinstance(given, collections.abc.Iterator):  # a generator, map, zip
            given = list(given)
        if isinstance(given, (str, bytes, collections.abc.Mapping)) or not hasattr(given, "__len__"):
            raise TypeError(f"reward `{self.name}` must give a list of numbers, but gave {given!r:.100}")
        if isinstance(given, collections.abc.Set):
            raise TypeError(
                f"reward `{self.name}` must give a list of numbers, one for each completion in their order, but gave a "
                f"set, which has no order: {given!r:.100}"
            )
        if len(given) != count:
            raise ValueError(f"reward `{self.name}` gave {len(given)} scores for {count} completions")
        return [self._reward(reward, i) for i, reward in enumerate(given)]

    def _reward(self, reward, i):
        try:
            if hasattr(reward, "tolist"):
                reward = reward.tolist()
            if isinstance(reward, (list, tuple)):
                return [_step(step) for step in reward]
            return None if reward is None else _number(reward)
        except (KeyError, TypeError, ValueError):
            raise TypeError(
                f"reward `{self.name}` gave {reward!r:.100} for completion {i}: expected a number, None, or a list of "
                "the scores of its tokens or steps"
            ) from None

    def _name_the_row(self, error, arguments, batch):
        """Adds a note to `error` with the first completion for which the function fails in the same way when it is
        called with that completion alone. This search ends after a few seconds."""
        words = f"in reward `{self.name}`, step {batch['step'] + 1}"
        count, begun = len(batch["completions"]), time.monotonic()
        for i in range(count):
            if time.monotonic() - begun > _SEARCH_S:
                break
            one = {
                key: value[i : i + 1] if isinstance(value, list) and len(value) == count else value
                for key, value in arguments.items()
            }
            try:
                self.rewards(RewardFunction.result(self, one), 1)
            except Exception as again:
                if type(again) is type(error):
                    rows = batch.get("rows") or ()
                    place = f"row {rows[i]} of the dataset" if i < len(rows) else f"completion {i} of the batch"
                    words += f", at {place}: completion {batch['completions'][i]!r:.200}"
                    break
        note(error, words)


async def _wait_for(awaitable):
    return await awaitable


def _number(value):
    """Converts a score to a float that JSON can hold; NaN and infinities become texts."""
    if isinstance(value, (str, bytes)):
        raise TypeError
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _step(step):
    """Converts the score of a token, or of a step: `{"end": characters, "score": number}` or `{"token": index, "score":
    number}`."""
    if isinstance(step, dict):
        place = {key: int(value) for key, value in step.items() if key != "score"}
        score = step["score"]
        return {**place, "score": None if score is None else _number(score)}
    return None if step is None else _number(step)


def plain(value):
    """Converts a value to a JSON value. NaN, infinities and objects of unknown types become None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    elif hasattr(value, "item"):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int)) else None


def note(error, text):
    """Adds a line to the traceback of an exception; before Python 3.11, to the exception's message."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    elif not error.args:
        error.args = (text,)
    elif isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({text})", *error.args[1:])


# The rest of this file calls a reward function that is defined in a file, in an interpreter without the package.

# The maximum number of traceback lines in a message.
_MOST_LINES = 30


class _State(types.SimpleNamespace):
    def __getattr__(self, name):
        raise AttributeError(f"`trainer_state` of a function that is named python:FILE:FUNCTION has no `{name}`: "
                             "there is `global_step`")


class _NoFunction(LookupError):
    pass


class _FileFunction(RewardFunction):
    loop = None

    def awaited(self, coroutine):
        # One event loop for all batches: a client session that the function keeps open is bound to its event loop.
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(coroutine)

    def state(self, batch):
        return _State(global_step=batch["step"])


def _channels():
    """Returns the files from which batches are read and to which answers are written. Standard output of the function
    goes to standard error, which is shown if something fails; its standard input is empty."""
    batches, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    return batches, answers


def _function_of(path, name):
    """Imports a file like a script, and returns one of its functions. The file may import files beside it."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    stem = os.path.splitext(os.path.basename(path))[0]
    module = types.ModuleType(stem if stem not in sys.modules else f"reward_{stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    loader = importlib.machinery.SourceFileLoader(module.__name__, path)
    # Compiled from its source each time, so that an edited file is never taken from a bytecode cache.
    exec(loader.source_to_code(loader.get_data(path), path), module.__dict__)
    function = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if callable(function):
        return function
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    there = ", ".join(key for key in own if callable(vars(module)[key])) or "none"
    raise _NoFunction(f"{path} has no function `{name}`; its functions are: {there}")


def _words(error):
    """Returns the message for an exception: its text, and its traceback from the reward function on."""
    if isinstance(error, _NoFunction):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == _words.__code__.co_filename:
        trace = trace.tb_next
    lines = "".join(traceback.format_exception(type(error), error, trace, limit=-12)).splitlines()
    first = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return "\n  | ".join([f"it raised {first:.300}", *lines[-_MOST_LINES:]])


def _serve(path, name):
    """Answers batches until the input ends. Each batch and each answer is a line of JSON. The first answer
    reports whether the file could be imported, with the reason if not."""
    batches, answers = _channels()

    def answer(value):
        answers.write(json.dumps(value, allow_nan=False).encode() + b"\n")
        answers.flush()

    try:
        function = _FileFunction(name, _function_of(path, name))
    except BaseException as error:
        answer({"error": _words(error)})
        return
    answer({"by_group": function.by_group})
    for line in batches:
        try:
            answer(function(json.loads(line)))
        except (Exception, SystemExit) as error:
            answer({"error": _words(error)})


if __name__ == "__main__":
    _serve(*sys.argv[1:])
