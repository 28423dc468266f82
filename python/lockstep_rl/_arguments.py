"""What scripts ask the arguments of a run for, as of transformers' TrainingArguments: one process trains."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any


class ArgumentMethods:
    """Properties and methods of TrainingArguments, where one process trains and the engine has the devices."""

    world_size = 1
    process_index = 0
    local_process_index = 0
    should_save = True
    should_log = True

    @property
    def n_gpu(self) -> int:
        """Devices that torch would spread a batch over: none does."""
        return 0 if str(getattr(self, "device", None) or "cpu") == "cpu" else 1

    @property
    def train_batch_size(self) -> int:
        """per_device_train_batch_size: there is one device."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """per_device_eval_batch_size: there is one device."""
        return self.per_device_eval_batch_size

    @property
    def parallel_mode(self) -> Any:
        """Not parallel; transformers' own word where it is imported."""
        if "transformers" in sys.modules:
            from transformers.training_args import ParallelMode

            return ParallelMode.NOT_PARALLEL
        return "not_parallel"

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """The steps of the warm-up of a run of so many."""
        steps = self.warmup_steps or 0
        if 0 < steps < 1:
            return math.ceil(num_training_steps * steps)
        ratio = getattr(self, "warmup_ratio", None) or 0
        return int(steps) if steps >= 1 else math.ceil(num_training_steps * ratio)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Any:
        """There is no other process to wait for."""
        yield

    def to_sanitized_dict(self) -> dict:
        """The fields as numbers and texts alone, with the batch sizes."""
        values = {
            **self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size,
        }
        return {
            name: value if type(value) in (bool, int, float, str) else str(value) for name, value in values.items()
        }
