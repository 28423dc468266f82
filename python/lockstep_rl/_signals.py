"""Ctrl-C while the engine works.

Python runs its signal handler only when the interpreter continues, which may be many steps later. But it writes to the
wakeup file descriptor at once. A thread reads from that descriptor, and asks the engine to stop.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from . import _native


def in_notebook() -> bool:
    """Whether the code runs in a Jupyter notebook."""
    return "ipykernel" in sys.modules


class Interrupts:
    """Context manager for the main thread. The first Ctrl-C requests a stop of training; a second one ends the process,
    except in a notebook."""

    def __init__(self, stop: Any):
        self.stop = stop
        self.reader = -1
        self.thread: threading.Thread | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.before = signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        self.thread = threading.Thread(target=self._watch, name="lockstep-signals", daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.thread is None:
            return
        signal.set_wakeup_fd(self.before)
        os.close(self.writer)
        self.thread.join()
        os.close(self.reader)
        self.thread = None

    def _watch(self) -> None:
        asked = False
        while numbers := os.read(self.reader, 64):
            for number in numbers:
                if number != signal.SIGINT:
                    continue
                if asked and not in_notebook():
                    _native.end_programs()
                    os._exit(128 + signal.SIGINT)
                self.stop.request()
                if not asked:
                    more = "" if in_notebook() else "; a second Ctrl-C ends the process at once"
                    print(f"Ctrl-C: the run writes a checkpoint and stops{more}", file=sys.stderr, flush=True)
                asked = True
