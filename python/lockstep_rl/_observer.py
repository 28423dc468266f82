"""Receives the engine's events during training, and updates the trainer's state, log and callbacks."""

from __future__ import annotations

import math
import os
from typing import Any

from ._callbacks import STATE_FILE
from ._flow import after_epoch, after_step, strategy
from ._rewards import RewardSet, logger

STOP = 1
# Metrics that transformers logs, only at steps that are due; TRL logs all others.
_OF_TRANSFORMERS = ("loss", "grad_norm", "learning_rate", "epoch")


class Observer:
    """Receives the engine's events, updates the trainer's state and calls callbacks. While the engine calls one of
    these methods, the attribute `live` has the model."""

    def __init__(self, trainer: Any, rewards: RewardSet | None, only_evaluate: dict | None, eval_metrics: Any):
        self.trainer = trainer
        self.rewards = rewards
        self.only_evaluate = only_evaluate
        self.eval_metrics = eval_metrics
        self.steps_per_epoch = 1
        # Steps that were skipped because callbacks ended epochs early.
        self.steps_skipped = 0
        self.dir = ""
        # Whether a step was taken since the engine started, the last logged step, and whether an epoch has begun.
        self.has_stepped = False
        self.logged_at = -1
        self.in_epoch = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "live" and self.only_evaluate is None:
            self.trainer._live = value

    def begin(self, step: int, total_steps: int, steps_per_epoch: int, steps_skipped: int, dir: Any) -> int:
        state = self.trainer.state
        self.steps_per_epoch, self.steps_skipped = steps_per_epoch, steps_skipped
        self.dir = os.fspath(dir)
        if self.only_evaluate is not None:
            return 0
        state.epoch = (step + steps_skipped) / steps_per_epoch
        self.trainer._prepare_state(step, total_steps, steps_per_epoch)
        self.trainer._begun(self.dir)
        return self._tell("on_train_begin")

    def step_begin(self, step: int) -> int:
        if self.only_evaluate is not None:
            return 0
        if not self.in_epoch:
            self.in_epoch = True
            self.trainer._callbacks.call("on_epoch_begin")
        self.trainer._callbacks.call("on_step_begin")
        self.trainer._check_unchanged()
        return 0  # as in transformers, a stop request takes effect at the end of the step

    def step_end(self, step: int) -> int:
        trainer, state = self.trainer, self.trainer.state
        self.has_stepped = True
        wishes = self._tell("on_optimizer_step")
        state.global_step, state.epoch = step, (step + self.steps_skipped) / self.steps_per_epoch
        after_step(trainer.args, state, trainer.control)
        wishes |= self._tell("on_step_end")
        trainer._model.check(only_frozen=True)  # a callback may have changed it
        return wishes

    def epoch_end(self, step: int) -> int:
        if not self.in_epoch:  # the engine only repeated an evaluation of an earlier start
            return 0
        self.in_epoch = False
        after_epoch(self.trainer.args, self.trainer.state, self.trainer.control)
        return self._tell("on_epoch_end")

    def wants(self, what: str, is_due: bool) -> bool:
        """Whether logging, an evaluation, a checkpoint or the end of the epoch follows now, or whether the engine must
        wait for a checkpoint."""
        if self.only_evaluate is not None or not self.has_stepped:
            return is_due
        trainer, control = self.trainer, self.trainer.control
        if what == "log":
            return control.should_log and trainer.state.global_step > self.logged_at
        if what == "evaluate":
            return control.should_evaluate
        if what == "save":
            return control.should_save
        if what == "end_epoch":
            return self._ends_epoch()
        return trainer._callbacks.has_own("on_save")

    def log(self, step: int, metrics: dict) -> int:
        is_evaluation = any(key.startswith("eval_") for key in metrics)
        if is_evaluation and self.eval_metrics is not None:
            metrics.update(self.eval_metrics.take_others())
        if self.only_evaluate is not None:
            self.only_evaluate.update(metrics)
            return 0
        if self.rewards is not None:
            # TRL logs a reward's metric under the name chosen by the reward; the engine adds the reward's name.
            for long, name in self.rewards.metrics_seen.items():
                if long in metrics and name not in metrics:
                    metrics[name] = metrics.pop(long)
        trainer = self.trainer
        trainer.state.num_input_tokens_seen = int(metrics.get("num_tokens", trainer.state.num_input_tokens_seen))
        if is_evaluation:
            self._evaluated(metrics)
            return self._wishes()
        if "loss" in metrics:
            trainer._losses.append((step, metrics["loss"]))
        self.logged_at = step
        # The engine logs the last step even if it is not due. In TRL, only the last entry, which has the runtime, has
        # these metrics.
        is_due = trainer.control.should_log
        trainer._tail = {} if is_due else {key: metrics[key] for key in metrics if key not in _OF_TRANSFORMERS}
        if is_due:
            trainer.log(metrics)
        return self._wishes()

    def _evaluated(self, metrics: dict) -> None:
        """Calls the trainer's `evaluate`, and then updates the best metric. The order is that of transformers, so that
        callbacks compare with the best metric before this evaluation."""
        trainer, state = self.trainer, self.trainer.state
        trainer._pending = metrics
        try:
            given = trainer.evaluate()
        finally:
            trainer._pending = None
        metrics = given if isinstance(given, dict) else metrics
        name = best_metric(trainer.args)
        if name is None or state.global_step == 0:
            return
        value = metrics.get(name if name.startswith("eval_") else f"eval_{name}", metrics.get(name))
        if value is None or not math.isfinite(value):  # not measured: NaN would stay the best value forever
            return
        greater = getattr(trainer.args, "greater_is_better", None)
        greater = not name.endswith("loss") if greater is None else greater
        best = state.best_metric
        is_best = best is None or (value > best if greater else value < best)
        if is_best:
            state.best_metric, state.best_global_step = value, state.global_step
        if strategy(trainer.args, "save_strategy") == "best":
            trainer.control.should_save = is_best

    def save(self, step: int, path: Any) -> int:
        state, alias = self.trainer.state, link_checkpoint(self.dir, step, os.fspath(path))
        if step == state.best_global_step:
            state.best_model_checkpoint = alias
        state.save_to_json(os.path.join(os.fspath(path), STATE_FILE))
        self.trainer.save_model(os.fspath(path), _internal_call=True)
        return self._tell("on_save")

    def warn(self, text: str) -> None:
        """Receives warnings of the engine when its console is silent. Each is shown once."""
        if text not in self.trainer._warned:
            self.trainer._warned.add(text)
            logger.warning("%s", text)

    def leave(self, step: int) -> int:
        """Called when training ends after `step` without a result, because of an exception or a stop signal."""
        if self.only_evaluate is None:
            self.trainer._left(step)
        return 0

    def _tell(self, event: str, **kwargs: Any) -> int:
        self.trainer._callbacks.call(event, **kwargs)
        return self._wishes()

    def _wishes(self) -> int:
        return STOP * (self.trainer.control.should_training_stop or self._ends_early())

    def _ends_early(self) -> bool:
        """Whether all epochs end before the last step, because callbacks ended some of them early."""
        state, every = self.trainer.state, self.steps_per_epoch
        done = (state.global_step + self.steps_skipped) // every
        ends_now = self.trainer.control.should_epoch_stop and not self._is_epochs_end()
        # As transformers counts them.
        return done + ends_now >= math.ceil(state.max_steps / every) and (ends_now or self.steps_skipped > 0)

    def _ends_epoch(self) -> bool:
        """Whether a callback ends the epoch before its last step. Training continues with the first step of the next
        epoch."""
        step, every = self.trainer.state.global_step, self.steps_per_epoch
        if not self.trainer.control.should_epoch_stop or self._is_epochs_end() or self._wishes():
            return False
        self.steps_skipped += every - (step + self.steps_skipped) % every
        return True

    def _is_epochs_end(self) -> bool:
        return (self.trainer.state.global_step + self.steps_skipped) % self.steps_per_epoch == 0


def best_metric(args: Any) -> str | None:
    """Returns the name of the metric that decides which model is best. As in transformers, this is the loss if
    `load_best_model_at_end` is set and no metric is named."""
    name = getattr(args, "metric_for_best_model", None)
    if name is None and getattr(args, "load_best_model_at_end", False):
        return "loss"
    return name


def link_checkpoint(root: str, step: int, path: str) -> str:
    """Creates a link `checkpoint-N` to a checkpoint, because transformers' scripts look for that name. Removes such
    links to deleted checkpoints, and never replaces an existing file."""
    for name in os.listdir(root):
        other = os.path.join(root, name)
        if name.startswith("checkpoint-") and os.path.islink(other) and not os.path.exists(other):
            if os.readlink(other).startswith("checkpoints/"):
                os.unlink(other)
    alias = os.path.join(root, f"checkpoint-{step}")
    try:
        os.symlink(os.path.relpath(path, root), alias)
    except OSError:  # the link exists already, or the file system does not support links
        return alias if os.path.exists(alias) else path
    return alias
