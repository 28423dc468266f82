"""The engine's graders as functions, with TRL's keyword arguments. Given to a trainer, they run inside the engine.

    from lockstep_rl import rewards

    rewards.gsm8k(completions=["so 4 + 4 is 8"], answer=["#### 8"])        # [1.0]
    GRPOTrainer(model, [rewards.math, rewards.builtin("length", max=512, margin=128)], ...)

docs/rewards.md says what each grader scores, and which options it has. Rewards that TRL has, too, have TRL's names.
"""

from __future__ import annotations

import json
import re
import warnings
from typing import Any

from . import _native
from ._data import exact_json

# Keyword arguments that a trainer passes to every reward and that are not columns of the dataset.
_NOT_COLUMNS = ("trainer_state", "log_extra", "log_metric", "environments")


class Builtin:
    """A built-in grader. `spec` is its entry in `reward_funcs`."""

    def __init__(self, spec: str | dict):
        self.spec = spec
        self._grader = _native.Grader(json.dumps(spec))
        self.__name__ = self._grader.name

    @property
    def kind(self) -> str:
        """The name of the grader."""
        return self.spec["kind"] if isinstance(self.spec, dict) else self.spec.partition(":")[0]

    def __call__(
        self, completions: list, prompts: list | None = None, completion_ids: list | None = None, **columns: Any
    ) -> list[float | None]:
        """Returns a score for each completion. If the grader cannot score a completion, returns None for it and
        warns."""
        count = len(completions)
        columns = {name: values for name, values in columns.items() if name not in _NOT_COLUMNS}
        for name, values in {"prompts": prompts, "completion_ids": completion_ids, **columns}.items():
            if values is not None and len(values) != count:
                raise ValueError(f"{self.__name__}: `{name}` has {len(values)} values for {count} completions")
        missing = [name for name in self._grader.required_columns() if name not in columns]
        if missing:
            raise TypeError(f"{self.__name__} needs the column `{missing[0]}`: give it as a keyword argument")
        scores, problems = self._grader.score(
            json.dumps(prompts or [""] * count),
            json.dumps(completions),
            [list(ids) for ids in completion_ids or [[]] * count],
            exact_json({name: list(values) for name, values in columns.items()}),
        )
        for problem in problems:
            warnings.warn(f"{self.__name__}: {problem}", stacklevel=2)
        return scores

    def __repr__(self) -> str:
        return f"rewards.builtin({self.spec!r})"


def builtin(kind: str, **options: Any) -> Builtin:
    """Returns the grader of this name (or `"name:option"`), with its options."""
    if not isinstance(kind, str):
        raise TypeError(f"`kind` must be the name of a grader, but is {kind!r}")
    return Builtin({"kind": kind, **options} if options else kind)


gsm8k = builtin("gsm8k")
gsm8k_staged = builtin("gsm8k_staged")
math = builtin("math")
multiple_choice = builtin("multiple_choice")
countdown = builtin("countdown")
think_answer = builtin("think_answer")
exact_match = builtin("exact_match")
repetition = builtin("repetition")
unique_chars = builtin("unique_chars")

# Rewards that TRL has, too.

accuracy_reward = builtin("math", column="solution", name="accuracy_reward")


def reasoning_accuracy_reward(completions: list, solution: list, **kwargs: Any) -> list[float | None]:
    """Scores the text after `</think>` as `accuracy_reward` does; a completion without `</think>` scores 0."""
    answers = [text.rpartition("</think>") for text in map(_text, completions)]
    judged = accuracy_reward(completions=[answer for _, _, answer in answers], solution=solution)
    return [score if found else 0.0 for score, (_, found, _) in zip(judged, answers)]


def think_format_reward(completions: list, **kwargs: Any) -> list[float]:
    """Scores 1 if the completion begins with `<think>`, has it only there, and contains `</think>`; else 0."""
    form = re.compile(r"<think>(?!.*<think>)(.*?)</think>.*", re.DOTALL)
    return [float(form.fullmatch(_text(completion)) is not None) for completion in completions]


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> Builtin:
    """Returns DAPO's reward for length: 0 up to `max_completion_len - soft_punish_cache` tokens, falling to −1 at
    `max_completion_len`."""
    name = "soft_overlong_punishment_reward"
    return builtin("length", max=max_completion_len, margin=soft_punish_cache, name=name)


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


__all__ = [
    "Builtin",
    "accuracy_reward",
    "builtin",
    "countdown",
    "exact_match",
    "get_soft_overlong_punishment",
    "gsm8k",
    "gsm8k_staged",
    "math",
    "multiple_choice",
    "reasoning_accuracy_reward",
    "repetition",
    "think_answer",
    "think_format_reward",
    "unique_chars",
]
