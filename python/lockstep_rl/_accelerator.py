"""`trainer.accelerator`: the functions of accelerate's `Accelerator` in a single process that has the model."""

from __future__ import annotations

import contextlib
import sys
from importlib.util import find_spec
from typing import Any

from ._launch import rank, world_size


class OneProcess:
    """Acts as accelerate's `Accelerator` of a single process. Members that are missing here are taken from a real
    Accelerator, if accelerate and torch are installed."""

    sync_gradients = True
    optimizer_step_was_skipped = False
    mixed_precision = "no"
    gradient_accumulation_steps = 1

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self._real: Any = None
        self.trackers: list = []

    @property
    def device(self) -> Any:
        """The device of the transformers model: `torch.device("cpu")` if torch is imported, else the string `cpu`."""
        torch = sys.modules.get("torch")
        return "cpu" if torch is None else torch.device("cpu")

    @property
    def num_processes(self) -> int:
        """Number of processes of the launch."""
        return world_size()

    @property
    def process_index(self) -> int:
        """The rank of this process in its launch."""
        return rank()

    @property
    def is_main_process(self) -> bool:
        """Whether this process is rank 0."""
        return rank() == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this process has the largest rank."""
        return rank() == world_size() - 1

    @property
    def use_distributed(self) -> bool:
        """Whether there are several processes."""
        return world_size() > 1

    # All processes of a launch are on one machine.
    local_process_index = process_index
    is_local_main_process = is_main_process

    # Before training each process runs the script; then rank 0 does all the work.

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints its arguments."""
        print(*args, **kwargs)

    def wait_for_everyone(self) -> None:
        """Does nothing: there is no other process."""

    def gather(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns its argument: there is no other process."""
        return tensor

    gather_for_metrics = reduce = pad_across_processes = gather

    @contextlib.contextmanager
    def _alone(self, *args: Any, **kwargs: Any) -> Any:
        yield

    main_process_first = local_main_process_first = _alone
    # The engine accumulates gradients; PyTorch code of the user runs unchanged.
    accumulate = no_sync = autocast = join_uneven_inputs = profile = _alone

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Any:
        """Passes all inputs to this process."""
        yield inputs

    def on_main_process(self, function: Any = None) -> Any:
        """Returns the function unchanged on rank 0; elsewhere, a function that does nothing."""
        return self._on(function, 0)

    on_local_main_process = on_main_process

    def on_last_process(self, function: Any = None) -> Any:
        """Returns the function unchanged on the largest rank; elsewhere, a function that does nothing."""
        return self._on(function, world_size() - 1)

    def on_process(self, function: Any = None, process_index: int | None = None) -> Any:
        """Returns the function unchanged on this rank; elsewhere, a function that does nothing."""
        return self._on(function, process_index)

    def on_local_process(self, function: Any = None, local_process_index: int | None = None) -> Any:
        """Returns the function unchanged on this rank; elsewhere, a function that does nothing."""
        return self._on(function, local_process_index)

    def _on(self, function: Any, index: int | None) -> Any:
        def chosen(own: Any) -> Any:
            return own if index in (None, rank()) else lambda *args, **kwargs: None

        return chosen if function is None else chosen(function)

    # The model is not wrapped.

    def prepare(self, *args: Any, **kwargs: Any) -> Any:
        """Returns its arguments: nothing is wrapped or moved, since the engine trains."""
        return args[0] if len(args) == 1 else args

    def prepare_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns its argument."""
        return model

    prepare_data_loader = prepare_optimizer = prepare_scheduler = prepare_model

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the model, which nothing wraps."""
        return model

    def get_state_dict(self, model: Any, unwrap: bool = True) -> Any:
        """Returns the model's tensors by name."""
        return model.state_dict()

    def save_model(self, model: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Writes a model into a directory."""
        model.save_pretrained(save_directory)

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Writes an object with torch."""
        import torch

        if safe_serialization:
            from safetensors.torch import save_file

            save_file(obj, f, metadata={"format": "pt"})
        else:
            torch.save(obj, f)

    # report_to and callbacks replace accelerate's trackers.

    def log(self, values: dict, step: int | None = None, log_kwargs: dict | None = None) -> None:
        """Does nothing: TRL's trainers start none of accelerate's trackers either. trainer.log adds to the log."""

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing; see `log`."""

    def end_training(self) -> None:
        """Does nothing: there are no trackers, and no other process."""

    def free_memory(self, *objects: Any) -> Any:
        """Returns None for each object, as accelerate does."""
        return [None] * len(objects)

    clear = free_memory

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("backward", "clip_grad_norm_", "clip_grad_value_", "save_state", "load_state"):
            raise AttributeError(f"accelerator has no `{name}`: the engine computes gradients and saves checkpoints")
        if find_spec("accelerate") is None or find_spec("torch") is None:
            raise AttributeError(
                f"accelerator has no `{name}` without the packages: pip install accelerate torch"
            )
        return getattr(self._accelerate(), name)

    def _accelerate(self) -> Any:
        if self._real is None:
            import accelerate

            self._real = accelerate.Accelerator(cpu=True)
        return self._real
