"""The actions after a step and after an epoch: transformers' DefaultFlowCallback, and the intervals that it reads."""

from __future__ import annotations

import math
from typing import Any


# transformers' default if the field is not set and evaluation is not by steps.
_EVAL_STEPS = 500


def interval(value: Any, total: int) -> Any:
    """Returns a number of steps. As in transformers, a number below 1 is a fraction of all steps."""
    return math.ceil(total * value) if value is not None and value < 1 else value


def set_intervals(state: Any, args: Any, total: int) -> None:
    """Sets the intervals of the state at the beginning of training, which has `total` steps."""
    state.logging_steps = interval(args.logging_steps, total)
    state.eval_steps = interval(args.eval_steps or _EVAL_STEPS, total)
    state.save_steps = interval(args.save_steps, total)


def after_step(args: Any, state: Any, control: Any) -> None:
    """Sets the requests that are due after a step."""
    step, ends = state.global_step, state.global_step >= state.max_steps
    begun = step >= _delay(args)
    if step == 1 and args.logging_first_step:
        control.should_log = True
    if strategy(args, "logging_strategy", "steps") == "steps" and _is_multiple(step, state.logging_steps):
        control.should_log = True
    # The last step is evaluated and saved, regardless of the interval.
    if strategy(args, "eval_strategy") == "steps" and begun and (ends or _is_multiple(step, state.eval_steps)):
        control.should_evaluate = True
    if strategy(args, "save_strategy") == "steps" and (ends or _is_multiple(step, state.save_steps)):
        control.should_save = True
    if ends:
        control.should_training_stop = True


def after_epoch(args: Any, state: Any, control: Any) -> None:
    """Sets the requests that are due after an epoch."""
    if strategy(args, "logging_strategy", "steps") == "epoch":
        control.should_log = True
    if strategy(args, "eval_strategy") == "epoch" and (state.epoch or 0) >= _delay(args):
        control.should_evaluate = True
    if strategy(args, "save_strategy") == "epoch":
        control.should_save = True


def strategy(args: Any, name: str, default: str = "no") -> str:
    """Returns the value of a field such as `save_strategy` as a string; transformers uses enums for it."""
    value = getattr(args, name, None)
    return default if value is None else str(getattr(value, "value", value))


def _delay(args: Any) -> float:
    return getattr(args, "eval_delay", None) or 0


def _is_multiple(step: int, every: Any) -> bool:
    return bool(every) and every > 0 and step % every == 0
