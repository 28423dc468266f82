"""Training on a separate thread, so that other cells of a notebook can run meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class BackgroundRun:
    """Training in the background, returned by `trainer.start()`."""

    def __init__(self, trainer: Any, train: Callable[[], Any]):
        self._trainer = trainer
        self._train = train
        self._output: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._go, name="lockstep-training", daemon=True)
        self._thread.start()

    def _go(self) -> None:
        try:
            self._output = self._train()
        except BaseException as error:  # an exception of a reward, or a stop: `result` raises it
            self._error = error

    @property
    def is_running(self) -> bool:
        """Whether training still runs."""
        return self._thread.is_alive()

    @property
    def step(self) -> int:
        """Number of optimizer steps done."""
        return self._trainer.state.global_step

    @property
    def metrics(self) -> dict:
        """Metrics that were logged last; empty before the first log."""
        history = self._trainer.state.log_history
        return dict(history[-1]) if history else {}

    def stop(self) -> None:
        """Asks training to stop, with a checkpoint."""
        self._trainer.stop()

    def result(self, timeout: float | None = None) -> Any:
        """Waits until training has ended. Returns the result of `train`, or raises its exception. Raises TimeoutError
        after `timeout` seconds."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"training has not ended: step {self.step} of {self._trainer.state.max_steps}")
        if self._error is not None:
            raise self._error
        return self._output

    def __repr__(self) -> str:
        state = "running" if self.is_running else "ended"
        return f"<{state}: step {self.step} of {self._trainer.state.max_steps}>"
