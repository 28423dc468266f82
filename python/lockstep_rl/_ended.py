"""The end of training: the resulting model, the mean loss, and the state that a later evaluation needs."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from ._datasets import EVAL_KEYS


class Ended:
    """Mixin for the state of a trainer after training, even if training ended without a result."""

    args: Any
    state: Any
    _values: dict
    _objects: Any
    _source: str | None
    _live: Any
    _model: Any
    _result: dict | None
    # The directory into which the engine writes.
    _run_dir = ""
    # The model's directory, if training ended without a result.
    _stopped_in: Any = None
    _trains_now: bool
    _first_step: int
    # The logged steps of this training, with their losses.
    _losses: list[tuple[int, float]] = []

    def _mean_loss(self) -> float:
        """Returns the mean loss over all steps. Each logged loss is the mean since the previous logged step."""
        steps = [step for step, _ in self._losses]
        weights = [step - before for step, before in zip(steps, [self._first_step, *steps])]
        total = sum(weights)
        # As in TRL, a step without tokens has the loss 0.
        return sum(w * loss for w, (_, loss) in zip(weights, self._losses)) / total if total else 0.0

    def _current_model(self) -> str:
        """Returns the name or directory of the trained model, or of the initial model before training."""
        if self._trains_now and self._live is not None and self._live.version() is not None:
            # Inside a callback: the weights of the current step.
            self._written = tempfile.TemporaryDirectory(prefix="lockstep-live-")
            self._live.save(self._written.name)
            return self._written.name
        if self._result is not None:
            return self._result["model"]
        if self._stopped_in is not None:
            return getattr(self._stopped_in, "name", self._stopped_in)
        objects = self._objects()
        if "model_name_or_path" not in objects:
            return self._source
        # Temporary files of the in-memory model, kept until the next call.
        self._written = tempfile.TemporaryDirectory(prefix="lockstep-given-")
        objects["model_name_or_path"](self._written.name)
        return self._written.name

    def _left(self, step: int) -> None:
        """Called with the engine's weights when training ends after `step` without a result. As in TRL, the model then
        has the weights of that step."""
        self.state.global_step = step
        place = os.path.join(self._run_dir, "checkpoints", f"step-{step:06}")
        if os.path.isdir(place):
            self._stopped_in = place
        elif self._live is not None and step > 0:
            self._stopped_in = tempfile.TemporaryDirectory(prefix="lockstep-stopped-")
            self._live.save(self._stopped_in.name)
        self._model.settle()

    def _evaluation_values(self) -> dict:
        """Returns the engine's keys for an evaluation, except those of the evaluation data. The reference stays that of
        training."""
        values = {key: value for key, value in self._values.items() if key not in EVAL_KEYS}
        ended = self._result is not None or self._stopped_in is not None
        if ended and self.args.method in ("grpo", "rloo", "dpo") and getattr(self.args, "beta", None):
            began = values["model_name_or_path"]
            if not values.get("use_peft") or os.path.exists(os.path.join(began, "adapter_config.json")):
                if values.get("ref_adapter") != "none":
                    values.setdefault("ref_model", began)
            else:
                values["ref_adapter"] = "none"  # the adapter was new
        return values


def run_of(resume: str) -> str:
    """Returns the run's directory; `resume` is this directory or one of its checkpoints."""
    place = os.path.realpath(resume)
    for root in (place, os.path.dirname(place), os.path.dirname(os.path.dirname(place))):
        if os.path.exists(os.path.join(root, "config.toml")):
            return root
    raise ValueError(f"`resume_from_checkpoint` = {resume} is neither a run nor a checkpoint of a run")
