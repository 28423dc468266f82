"""`rollout_func`: a Python function that generates completions, with the engine, an environment or another model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from ._config import warn_once
from ._data import DIGITS, Encoder, exact

_NEEDED = ("prompt_ids", "completion_ids", "logprobs")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "stop")


class RolloutEngine:
    """The engine that `trainer.generate` uses while `rollout_func` is called."""

    def __init__(self, native: Any, trainer: Any):
        self.native = native
        self.trainer = trainer

    def generate(self, prompts: list, num_generations: int, sampling: dict) -> list[dict]:
        """Returns the completions of all prompts; completions of the same prompt are adjacent."""
        if not isinstance(prompts, (list, tuple)):
            raise TypeError(f"generate: `prompts` must be a list, but is {type(prompts).__name__}")
        if num_generations < 1:
            raise ValueError(f"generate: `num_generations` = {num_generations}: expected 1 or more")
        for name in sampling:
            if name not in _SAMPLING:
                raise TypeError(f"generate() has no argument `{name}`; available: {', '.join(_SAMPLING)}")
        given = json.dumps([_plain_ids(prompt) for prompt in prompts], cls=Encoder)
        written = self.native.generate(given, num_generations, {k: v for k, v in sampling.items() if v is not None})
        names = (*_NEEDED, "finish_reason")
        return [dict(zip(names, completion)) for completion in written]


def _plain_ids(prompt: Any) -> Any:
    return prompt.tolist() if hasattr(prompt, "tolist") else prompt


class RolloutFunction:
    """Wraps `rollout_func`. The engine calls the wrapper instead of generating."""

    def __init__(self, function: Callable, trainer: Any):
        if not callable(function):
            raise TypeError(f"`rollout_func` must be a function of prompts and trainer, but is {function!r:.80}")
        self.function = function
        self.trainer = trainer

    def __call__(self, batch: dict, engine: Any) -> list[tuple]:
        self.trainer._rollout_engine = RolloutEngine(engine, self.trainer)
        try:
            output = self.function(copy.deepcopy(batch["prompts"]), self.trainer)
        finally:
            self.trainer._rollout_engine = None
        return _completions(output, len(batch["prompts"]))


def _completions(output: Any, count: int) -> list[tuple]:
    """Returns a tuple per completion: the prompt's token ids, the completion's token ids, log-probabilities, mask, and
    further columns as JSON."""
    if not hasattr(output, "keys"):
        raise TypeError(f"rollout_func must return a dict, but returned {type(output).__name__}")
    missing = [name for name in _NEEDED if name not in output]
    if missing:
        raise ValueError(f"rollout_func must return keys {sorted(missing)} in its output dict.")
    fields = {name: output[name] for name in output if name not in (*_NEEDED, "env_mask", "logprob_token_ids")}
    prompt_ids, completion_ids = (_lists(output[name], name, count) for name in _NEEDED[:2])
    logps = _optional(output["logprobs"], "logprobs", count, _logps)
    masks = _optional(output.get("env_mask"), "env_mask", count, lambda mask, _: [bool(one) for one in mask])
    for i, (ids, mask) in enumerate(zip(completion_ids, masks)):
        if logps[i] is not None and len(logps[i]) == len(ids) and _are_placeholders(logps[i], mask):
            logps[i] = None
            warn_once(
                "rollout_func: log-probabilities of a completion are all 0.0, which are placeholders. They are not "
                "used, as in TRL without vLLM (None has the same effect)"
            )
    columns = [{} for _ in range(count)]
    for name, values in fields.items():
        if isinstance(values, list) and len(values) != count:
            raise ValueError(f"rollout_func: `{name}` has {len(values)} values for {count} completions")
        for i, own in enumerate(columns):
            own[name] = values[i] if isinstance(values, list) else values
    return [
        (_ids(prompt_ids[i], f"prompt_ids[{i}]"), _ids(completion_ids[i], f"completion_ids[{i}]"), logps[i], masks[i],
         _json(columns[i]))
        for i in range(count)
    ]


def _are_placeholders(logps: list[float], mask: list[bool] | None) -> bool:
    """Whether the policy would have been certain of every token."""
    own = [logp for logp, is_own in zip(logps, mask or [True] * len(logps)) if is_own]
    return len(own) > 0 and all(logp == 0.0 for logp in own)


def _lists(values: Any, name: str, count: int) -> list:
    values = _plain_ids(values)
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"rollout_func: `{name}` must be a list with one element per completion, but is {values!r:.80}")
    if len(values) != count:
        raise ValueError(
            f"rollout_func: `{name}` has {len(values)} elements for {count} prompts: expected one for each (every "
            "prompt occurs once for each completion of its group)"
        )
    return [_plain_ids(value) for value in values]


def _optional(values: Any, name: str, count: int, convert: Callable) -> list:
    if values is None:
        return [None] * count
    return [
        None if value is None else convert(value, f"{name}[{i}]") for i, value in enumerate(_lists(values, name, count))
    ]


def _logps(values: Any, name: str) -> list[float]:
    """Returns one log-probability per token; NaN if unknown. If a token has a list of log-probabilities, the first one
    is used."""
    firsts = [value[0] if isinstance(value, (list, tuple)) and value else value for value in values]
    try:
        return [float("nan") if value is None else float(value) for value in firsts]
    except (TypeError, ValueError):
        raise TypeError(f"rollout_func: `{name}` must be numbers, but is {values!r:.80}") from None


def _ids(values: Any, name: str) -> list[int]:
    try:
        ids = [int(value) for value in values]
    except (TypeError, ValueError):
        raise TypeError(f"rollout_func: `{name}` must be token ids, but is {values!r:.80}") from None
    if any(id < 0 or id >= 1 << 32 for id in ids):
        raise ValueError(f"rollout_func: `{name}` has ids from {min(ids)} to {max(ids)}, which are not all token ids")
    return ids


def _json(columns: dict) -> str:
    def plain(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError(
            f"rollout_func: a field has {value!r:.80} ({type(value).__name__}), which rewards cannot receive: return "
            "numbers, texts, lists or dicts"
        )

    text = json.dumps(columns, default=plain)
    return json.dumps(exact(columns), default=plain) if DIGITS.search(text) else text
