"""What the engine tells while a run goes on: the trainer's state, log and callbacks follow."""

from __future__ import annotations

from typing import Any

from ._rewards import RewardSet

STOP, SAVE, EVALUATE = 1, 2, 4


class Observer:
    """Told by the engine how the run goes on; tells the trainer's state and callbacks."""

    def __init__(self, trainer: Any, rewards: RewardSet | None, only_evaluate: dict | None, eval_metrics: Any):
        self.trainer = trainer
        self.rewards = rewards
        self.only_evaluate = only_evaluate
        self.eval_metrics = eval_metrics
        self.steps_per_epoch = 1

    def begin(self, step: int, total_steps: int, steps_per_epoch: int, dir: Any) -> int:
        state = self.trainer.state
        self.steps_per_epoch = steps_per_epoch
        if self.only_evaluate is None:
            state.global_step, state.max_steps = step, total_steps
            state.epoch = step / steps_per_epoch
        return 0

    def step_begin(self, step: int) -> int:
        if self.only_evaluate is not None or step >= self.trainer.state.max_steps:
            return 0
        if step % self.steps_per_epoch == 0:
            self.trainer._callbacks.call("on_epoch_begin")
        return self._tell("on_step_begin")

    def step_end(self, step: int) -> int:
        state = self.trainer.state
        state.global_step, state.epoch = step, step / self.steps_per_epoch
        wishes = self._tell("on_step_end")
        return wishes | (self._tell("on_epoch_end") if step % self.steps_per_epoch == 0 else 0)

    def log(self, step: int, metrics: dict) -> int:
        is_evaluation = any(key.startswith("eval_") for key in metrics)
        if is_evaluation and self.eval_metrics is not None:
            metrics.update(self.eval_metrics.take_others())
        if self.only_evaluate is not None:
            self.only_evaluate.update(metrics)
            return 0
        if self.rewards is not None:
            # TRL logs what a reward logs under the name that it gives; the engine keeps rewards apart.
            for long, name in self.rewards.metrics_seen.items():
                if long in metrics and name not in metrics:
                    metrics[name] = metrics.pop(long)
        trainer = self.trainer
        trainer.state.num_input_tokens_seen = int(metrics.get("num_tokens", trainer.state.num_input_tokens_seen))
        trainer._log({**metrics, "epoch": trainer.state.epoch})
        return self._tell("on_evaluate", metrics=metrics) if is_evaluation else self._wishes()

    def save(self, step: int, path: Any) -> int:
        return self._tell("on_save")

    def _tell(self, event: str, **kwargs: Any) -> int:
        self.trainer._callbacks.call(event, **kwargs)
        return self._wishes()

    def _wishes(self) -> int:
        control = self.trainer.control
        wishes = STOP * control.should_training_stop + SAVE * control.should_save + EVALUATE * control.should_evaluate
        control.should_save = control.should_evaluate = control.should_log = False
        return wishes
