"""Worker processes, which generate and score completions for a training run. A trainer or the user starts them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import _native
from ._callbacks import TrainerState
from ._rewards import RewardSet, logger

# Seconds for workers to exit by themselves after the learner has ended.
_GRACE = 20.0


def check_sendable(functions: list[Callable]) -> None:
    """Raises a TypeError for reward functions that cannot be sent to another process, because they cannot be
    pickled."""
    for function in functions:
        try:
            pickle.dumps(function)
        except Exception as error:  # whatever an object's own pickling raises
            name = getattr(function, "__name__", type(function).__name__)
            raise TypeError(
                f"the reward `{name}` cannot be sent to a worker process ({error}): define it at the top level of a "
                "module, or use GRPOTrainer, which calls it in this process"
            ) from None


def of_workers(rewards: RewardSet) -> list[tuple[str, Any, bool]]:
    """Returns the reward functions in the form that the engine needs in a worker, where each call has the completions
    of one group."""
    for function in rewards.functions:
        function.by_group = True
    return [(function.name, function, True) for function in rewards.functions]


def work(
    run: str, name: str, functions: list[Callable], threads: int | None = None, stop: Any = None,
    profiles: list[str] | None = None, allow_other_build: bool = False, waits: bool = False,
) -> None:
    """Generates and scores completions for a training run in this process, until the run ends. With `waits`, also waits
    for the learner of a run that has ended or had no workers."""
    rewards = RewardSet(functions, required=False)
    rewards.state, rewards.counts_steps = TrainerState(), True
    say = lambda text: print(text, flush=True)  # noqa: E731
    stop = _native.StopSignal() if stop is None else stop
    _native.work(
        run, name, rewards=of_workers(rewards), stop=stop, say=say, threads=threads, profiles=profiles or [],
        allow_other_build=allow_other_build, waits=waits,
    )


def _process(run: str, name: str, functions: list[Callable], threads: int | None, log: str) -> None:
    """Main function of a worker process. The process exits with its parent, and ignores Ctrl-C, which the parent
    handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    stop, parent = _native.StopSignal(), multiprocessing.parent_process()

    def watch() -> None:
        parent.join()
        stop.request()
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, name="lockstep-parent", daemon=True).start()
    try:
        # A resumed run may be marked as ended; its learner, the parent of this process, starts at the same time.
        work(run, name, functions, threads, stop, waits=True)
    except ValueError as refused:  # a restart would fail in the same way
        print(f"error: {refused}", file=sys.stderr, flush=True)
        os._exit(2)


class WorkerProcesses:
    """The worker processes of a training run. A worker that ends unexpectedly is started again."""

    def __init__(self, run: str, functions: list[Callable], count: int, threads: int | None, restarts: int):
        self.arguments = (run, functions, threads)
        self.restarts = restarts
        self.ends = threading.Event()
        context = multiprocessing.get_context("spawn")
        self.start = lambda name: self._start(context, name)
        self.processes = {name: self.start(name) for name in (f"dev{number}" for number in range(1, count + 1))}
        self.thread = threading.Thread(target=self._watch, name="lockstep-workers", daemon=True)
        self.thread.start()

    def _start(self, context: Any, name: str) -> Any:
        run, functions, threads = self.arguments
        log = os.path.join(run, "fleet", f"{name}.log")
        process = context.Process(target=_process, args=(run, name, functions, threads, log), name=name, daemon=True)
        process.start()
        return process

    def _watch(self) -> None:
        lately: list[float] = []
        while not self.ends.wait(0.2):
            for name, process in list(self.processes.items()):
                if process.is_alive() or process.exitcode in (0, None):
                    continue
                now = time.monotonic()
                lately = [when for when in lately if now - when < 60.0] + [now]
                log = os.path.join(self.arguments[0], "fleet", f"{name}.log")
                del self.processes[name]
                if process.exitcode == 2 or len(lately) > self.restarts:
                    logger.error("worker %s exited with code %s and is not restarted: see %s", name, process.exitcode,
                                 log)
                elif not self.ends.is_set():
                    logger.warning("worker %s exited with code %s and is restarted: see %s", name, process.exitcode,
                                   log)
                    self.processes[name] = self.start(name)

    def end(self) -> None:
        """Waits until the workers have exited, and kills those that take too long."""
        self.ends.set()
        self.thread.join()
        until = time.monotonic() + _GRACE
        for process in self.processes.values():
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
