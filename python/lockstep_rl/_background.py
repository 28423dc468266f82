"""Training on a thread of its own, so that another cell of a notebook can look at it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class BackgroundRun:
    """A training in the background: what `trainer.start()` gives."""

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
        except BaseException as error:  # a reward's exception, or a stop: given to whoever waits
            self._error = error

    @property
    def is_running(self) -> bool:
        """Whether it is running."""
        return self._thread.is_alive()

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self._trainer.state.global_step

    @property
    def metrics(self) -> dict:
        """What was logged last."""
        history = self._trainer.state.log_history
        return dict(history[-1]) if history else {}

    def stop(self) -> None:
        """Asks it to stop, with a checkpoint."""
        self._trainer.stop()

    def result(self, timeout: float | None = None) -> Any:
        """Waits for what `train` gives; raises what it raised."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the run is not over: step {self.step} of {self._trainer.state.max_steps}")
        if self._error is not None:
            raise self._error
        return self._output

    def __repr__(self) -> str:
        state = "running" if self.is_running else "ended"
        return f"<{state}: step {self.step} of {self._trainer.state.max_steps}>"
