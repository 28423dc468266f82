"""Ranks of a launch: processes in which torchrun, accelerate, mpirun or srun run the same script."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from . import _native


def rank() -> int:
    """Returns the rank of this process: 0 without a launcher."""
    return _native.launch_place()[0]


def world_size() -> int:
    """Returns the number of processes: 1 without a launcher. Raises ValueError if a launcher's variables are wrong."""
    return _native.launch_place()[1]


@contextlib.contextmanager
def launched() -> Any:
    """Context manager around the training of rank 0, for which the other processes of its launch work meanwhile. In
    those, it works for rank 0, and then ends the process with the exit code of rank 0."""
    if world_size() == 1:
        yield
        return
    # The process may end without returning to Python.
    sys.stdout.flush()
    sys.stderr.flush()
    _native.enter_launch()
    code = 1
    try:
        yield
        code = 0
    finally:
        _native.leave_launch(code)


def samples_per_step(args: Any) -> int:
    """Returns the number of samples of an optimizer step, over all processes, as in TRL."""
    return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size


def print_batch(args: Any) -> None:
    """Prints how the processes of a launch multiply the batch."""
    if args.world_size > 1 and not getattr(args, "disable_tqdm", False):
        print(
            f"per_device_train_batch_size {args.per_device_train_batch_size} × gradient_accumulation_steps "
            f"{args.gradient_accumulation_steps} × {args.world_size} processes = {samples_per_step(args)} samples per "
            "optimizer step",
            file=sys.stderr,
        )
