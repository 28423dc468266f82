"""The engine's graders as functions, with TRL's keyword arguments. Given to a trainer, they run inside the engine.

    from lockstep_rl import rewards

    rewards.gsm8k(completions=["so 4 + 4 is 8"], answer=["#### 8"])        # [1.0]
    GRPOTrainer(model, [rewards.math, rewards.builtin("length", max=512, margin=128)], ...)

docs/rewards.md describes each grader and its options. A reward that TRL also has is named as in TRL.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import math as math_module
import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

from . import _native
from ._data import exact_json

# Keyword arguments that a trainer passes to every reward and that are not dataset columns.
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

# Rewards that TRL also has, with the values of TRL 1.16 (including None) and its arguments. Completions may also be
# strings.


def accuracy_reward(
    completions: list, solution: list, log_extra: Callable | None = None, **kwargs: Any
) -> list[float | None]:
    """Scores 1 if the answer in the completion, a box or LaTeX, equals the solution, else 0; None if the solution does
    not parse. As in TRL, the package math_verify decides. `rewards.math` is the engine's own grader, which needs no
    package and runs inside the engine."""
    return _accuracy([_text(completion) for completion in completions], solution, log_extra)


def reasoning_accuracy_reward(
    completions: list, solution: list, reasoning_delimiters: list[str] | None = None,
    log_extra: Callable | None = None, **kwargs: Any,
) -> list[float | None]:
    """Scores the text after the last delimiter (`</think>`) as `accuracy_reward` does; a completion without one scores
    0."""
    answers: list[str | None] = []
    for text in map(_text, completions):
        found = next((one for one in reasoning_delimiters or ["</think>"] if one in text), None)
        answers.append(None if found is None else text.split(found)[-1])
    return _accuracy(answers, solution, log_extra)


def get_cosine_scaled_reward(
    max_len: int, min_value_wrong: float = -1.0, max_value_wrong: float = -0.5, min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
) -> Callable:
    """Returns a reward that is `accuracy_reward` scaled by the completion's length, from the maximum down to the
    minimum at `max_len` tokens along a cosine; for wrong answers it rises."""
    return _CosineScaled(max_len, (max_value_wrong, min_value_wrong), (min_value_correct, max_value_correct))


def think_format_reward(completions: list, **kwargs: Any) -> list[float]:
    """Scores 1 if the completion begins with `<think>`, contains it only once, and contains `</think>`; else 0."""
    form = re.compile(r"<think>(?!.*<think>)(.*?)</think>.*", re.DOTALL)
    return [float(form.fullmatch(_text(completion)) is not None) for completion in completions]


def get_repetition_penalty_reward(ngram_size: int = 3, max_penalty: float = -1.0) -> Callable:
    """Returns a reward that is `max_penalty` times the share of repeated n-grams among a completion's tokens."""
    if max_penalty > 0:
        raise ValueError(f"max_penalty {max_penalty} should not be positive")
    return _RepetitionPenalty(ngram_size, max_penalty)


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> Callable:
    """Returns DAPO's reward for length: 0 up to `max_completion_len - soft_punish_cache` tokens, falling to −1 at
    `max_completion_len`."""
    return _SoftOverlong(max_completion_len, soft_punish_cache)


# Classes instead of nested functions, so that they can be sent to worker processes.


@dataclasses.dataclass
class _CosineScaled:
    max_len: int
    # The pair has the values at `max_len` tokens and at no tokens, in this order.
    wrong: tuple[float, float]
    correct: tuple[float, float]
    __name__ = "cosine_scaled_reward"
    requires = "math_verify"

    def __call__(
        self, completions: list, solution: list, completion_ids: list, **kwargs: Any
    ) -> list[float | None]:
        judged = accuracy_reward(completions, solution)
        return [
            None if score is None else self._scaled(bool(score), len(ids))
            for score, ids in zip(judged, completion_ids, strict=True)
        ]

    def _scaled(self, is_correct: bool, length: int) -> float:
        cosine = math_module.cos(min(length / self.max_len, 1.0) * math_module.pi)
        least, most = self.correct if is_correct else self.wrong
        return float(least + 0.5 * (most - least) * (1.0 + cosine))


@dataclasses.dataclass
class _RepetitionPenalty:
    ngram_size: int
    max_penalty: float
    __name__ = "repetition_penalty_reward"

    def __call__(self, completion_ids: list, **kwargs: Any) -> list[float]:
        return [self._penalty(ids) for ids in completion_ids]

    def _penalty(self, ids: list[int]) -> float:
        ngrams = list(zip(*(ids[i:] for i in range(self.ngram_size))))
        repeated = 1 - len(set(ngrams)) / len(ngrams) if len(ids) >= self.ngram_size else 0
        return repeated * self.max_penalty if repeated else 0.0


@dataclasses.dataclass
class _SoftOverlong:
    max_completion_len: int
    soft_punish_cache: int
    __name__ = "soft_overlong_punishment_reward"

    def __call__(self, completion_ids: list, **kwargs: Any) -> list[float]:
        return [self._punishment(len(ids)) for ids in completion_ids]

    def _punishment(self, length: int) -> float:
        beyond = length - (self.max_completion_len - self.soft_punish_cache)
        if beyond <= 0:
            return 0.0
        return -1.0 if length > self.max_completion_len else -beyond / self.soft_punish_cache


accuracy_reward.requires = reasoning_accuracy_reward.requires = "math_verify"


def check_package(reward: Any) -> None:
    """Raises an ImportError if a reward needs a package that is not installed."""
    package = getattr(reward, "requires", None) if getattr(reward, "__module__", None) == __name__ else None
    if package is not None and importlib.util.find_spec(package) is None:
        raise ImportError(
            f"{reward.__name__} is TRL's reward and needs the package {package}, as in TRL: pip install "
            f"{package.replace('_', '-')}. rewards.builtin('math', column='solution') is the engine's own grader"
        )


def _accuracy(texts: list[str | None], solution: list, log_extra: Callable | None) -> list[float | None]:
    """Returns the score of each text; a missing text scores 0, whatever the solution is."""
    check_package(accuracy_reward)
    import math_verify
    from latex2sympy2_extended import NormalizationConfig

    # math_verify's time limits use signals, which only the main thread receives; in other threads it would warn.
    has_limits = threading.current_thread() is threading.main_thread()
    parses, verifies = (10, 5) if has_limits else (None, None)
    if not has_limits:
        for name in ("parser", "grader"):
            logging.getLogger(f"math_verify.{name}").setLevel(logging.ERROR)
    extraction = math_verify.LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True), boxed_match_priority=0, try_extract_without_anchor=False
    )
    scores: list[float | None] = []
    shown: list[tuple[str, str]] = []
    for text, right in zip(texts, solution, strict=True):
        if text is None:
            scores.append(0.0), shown.append(("[incomplete reasoning]",) * 2)
            continue
        gold = math_verify.parse(right, parsing_timeout=parses)
        if not gold:
            scores.append(None), shown.append(("[unparseable]", "[skipped]"))
            continue
        answer = math_verify.parse(
            text, extraction_config=[extraction], extraction_mode="first_match", parsing_timeout=parses
        )
        scores.append(float(math_verify.verify(gold, answer, timeout_seconds=verifies)))
        shown.append((str(gold), str(answer) if answer else "[unparseable]"))
    if log_extra is not None:
        log_extra("solution", list(solution))
        for column, values in zip(("gold_parsed", "answer_parsed"), zip(*shown)):
            log_extra(column, list(values))
    return scores


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


__all__ = [
    "Builtin",
    "accuracy_reward",
    "builtin",
    "countdown",
    "exact_match",
    "get_cosine_scaled_reward",
    "get_repetition_penalty_reward",
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
