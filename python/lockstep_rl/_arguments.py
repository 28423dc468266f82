"""Properties and methods of transformers' TrainingArguments that scripts use, for training in a single process."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from typing import Any

from ._launch import rank, world_size


@dataclasses.dataclass
class AcceleratorConfig:
    """accelerate's settings for distributing batches to processes, which scripts read and set. The engine loads its own
    rows, so only one setting has an effect: `dispatch_batches` must not be True for a streamed dataset."""

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    non_blocking: bool = False
    gradient_accumulation_kwargs: dict | None = None
    use_configured_state: bool = False

    @classmethod
    def of(cls, value: Any) -> AcceleratorConfig:
        """Creates an AcceleratorConfig from the field `accelerator_config`: None, a dict, or an object of transformers'
        class."""
        if value is None or isinstance(value, cls):
            return value or cls()
        fields = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        if fields is None:
            raise TypeError(f"`accelerator_config` must be a dict, but is {value!r:.80} ({type(value).__name__})")
        known = {field.name for field in dataclasses.fields(cls)}
        for name in fields.keys() - known:
            raise TypeError(f"`accelerator_config` has no field `{name}`; its fields are {', '.join(sorted(known))}")
        return cls(**fields)


def begin_accelerate(on_cpu: bool) -> None:
    """If accelerate is imported, creates the state that its loggers need, as transformers' arguments do."""
    state = getattr(sys.modules.get("accelerate"), "PartialState", None)
    if state is not None:
        state(cpu=True) if on_cpu else state()


_TRUE = (
    "average_tokens_across_devices dataloader_in_order dataloader_pin_memory ds3_gather_for_generation "
    "gradient_checkpointing log_multimodal log_on_each_node logging_nan_inf_filter remove_unused_columns "
    "skip_memory_metrics vllm_importance_sampling_correction"
)
_FALSE = (
    "activation_offloading auto_find_batch_size bf16_full_eval cast_lm_head_to_fp32 "
    "dataloader_persistent_workers disable_dropout do_eval do_predict do_train enable_jit_checkpoint "
    "eval_use_gather_object fp16 fp16_full_eval full_determinism hub_always_push ignore_data_skip log_completions "
    "log_unique_prompts normalize_advantages padding_free precompute_ref_log_probs push_to_hub "
    "restore_callback_states_from_checkpoint save_on_each_node save_only_model sync_ref_model torch_compile "
    "trust_remote_code use_cache use_cpu use_liger_kernel use_transformers_continuous_batching use_transformers_paged "
    "use_vllm use_weighting vllm_enable_sleep_mode"
)
# TRL's defaults for fields that the engine does not have, for scripts that read them. Parsers use them to recognise
# flags.
READ_BACK: dict[str, Any] = {
    **dict.fromkeys(_TRUE.split(), True),
    **dict.fromkeys(_FALSE.split(), False),
    "log_level": "passive",
    "log_level_replica": "warning",
    "dataloader_num_workers": 0,
    "per_device_eval_batch_size": 8,
}
_LOG_LEVELS = {"detail": 5, "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Computed(int):
    """A number that was computed from other arguments. `dataclasses.replace` copies it with this mark."""


class ComputedText(str):
    """A string that was computed from other arguments."""


def plain_of(value: Any) -> Any:
    """Returns a plain value, without the mark that it was computed."""
    if isinstance(value, Computed):
        return int(value)
    return str(value) if isinstance(value, ComputedText) else value


class ArgumentMethods:
    """Properties and methods of transformers' TrainingArguments. One process trains, and the engine has the devices.
    The other processes of a launch work for it."""

    place_model_on_device = True
    _derived: dict
    _fields: dict

    @property
    def world_size(self) -> int:
        """Number of processes that a launcher such as torchrun has started; 1 without a launcher."""
        return world_size()

    @property
    def process_index(self) -> int:
        """The rank of this process in its launch."""
        return rank()

    @property
    def local_process_index(self) -> int:
        """Equal to `process_index`, because all processes of a launch are on one machine."""
        return rank()

    @property
    def should_save(self) -> bool:
        """Whether this process writes files: only rank 0 does."""
        return rank() == 0

    @property
    def should_log(self) -> bool:
        """Whether this process logs metrics: only rank 0 does."""
        return rank() == 0

    def forget(self) -> None:
        """Resets computed fields to their defaults. They were computed here, or in the arguments from which these were
        copied."""
        before = vars(self).get("_derived", {})
        for name, value in list(vars(self).items()):
            if isinstance(value, (Computed, ComputedText)) or (name in before and value == before[name]):
                setattr(self, name, self._fields[name].default)

    def derive(self) -> dict:
        """Sets the fields that a script left out and that transformers and TRL compute from other fields. Returns their
        values."""
        self.forget()
        values: dict = {}
        if "generation_batch_size" in self._fields:
            batch = self.per_device_train_batch_size * self.world_size
            steps, whole = self.steps_per_generation, self.generation_batch_size
            if steps is None:
                steps = self.gradient_accumulation_steps if whole is None else whole // batch
                values["steps_per_generation"] = steps
            if whole is None:
                values["generation_batch_size"] = batch * steps
        if self.optim is None:
            values["optim"] = "adamw_torch_fused"
        if str(getattr(self.eval_strategy, "value", self.eval_strategy)) == "steps" and not self.eval_steps:
            values["eval_steps"] = self.logging_steps
        if self.load_best_model_at_end and self.metric_for_best_model is None:
            values["metric_for_best_model"] = "loss"
        metric = values.get("metric_for_best_model", self.metric_for_best_model)
        if metric is not None and self.greater_is_better is None:
            values["greater_is_better"] = not metric.endswith("loss")
        marks = {int: Computed, str: ComputedText}
        values = {name: marks.get(type(value), lambda same: same)(value) for name, value in values.items()}
        for name, value in values.items():
            setattr(self, name, value)
        return values

    def get_process_log_level(self) -> int:
        """Returns the level of Python's `logging` for this process."""
        level = self.log_level
        if level in (None, "passive"):
            return _LOG_LEVELS["warning"]
        return level if isinstance(level, int) else _LOG_LEVELS[level]

    @property
    def n_gpu(self) -> int:
        """Number of GPUs: 0 on the CPU, else 1."""
        return 0 if str(getattr(self, "device", None) or "cpu") == "cpu" else 1

    @property
    def train_batch_size(self) -> int:
        """Equal to `per_device_train_batch_size`, because each process has one device."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """Equal to `per_device_eval_batch_size`, because each process has one device."""
        return self.per_device_eval_batch_size

    @property
    def parallel_mode(self) -> Any:
        """transformers' `ParallelMode.NOT_PARALLEL` if transformers is imported, else the text `not_parallel`."""
        if "transformers" in sys.modules:
            from transformers.training_args import ParallelMode

            return ParallelMode.NOT_PARALLEL
        return "not_parallel"

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Returns the number of warm-up steps in training of `num_training_steps` steps."""
        steps = self.warmup_steps or 0
        if 0 < steps < 1:
            return math.ceil(num_training_steps * steps)
        ratio = getattr(self, "warmup_ratio", None) or 0
        return int(steps) if steps >= 1 else math.ceil(num_training_steps * ratio)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Any:
        """A context manager that does nothing: there is no other process to wait for."""
        yield

    def to_sanitized_dict(self) -> dict:
        """Returns the fields and the batch sizes as bools, numbers and texts; other values become texts."""
        values = {
            **self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size,
        }
        return {
            name: value if type(value) in (bool, int, float, str) else str(value) for name, value in values.items()
        }
