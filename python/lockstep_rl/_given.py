"""Models and tokenizers that are given in memory, as files that the engine reads.

They lie in a fresh directory `given-…` inside the run's own: what was there before is never touched, and whoever
resumes the run, or puts its adapter on the model again, finds them.
"""

from __future__ import annotations

import fcntl
import filecmp
import json
import os
import secrets
import shutil
from typing import Any

PREFIX = "given-"
# In a directory of ours, and locked while its process lives.
MARKER = "written_by_lockstep_rl.json"


class GivenFiles:
    """A new directory in `root`, which is made if need be. Another process does not sweep it until `close`."""

    def __init__(self, root: str):
        self.made_root = not os.path.isdir(root)
        os.makedirs(root, exist_ok=True)
        sweep(root)
        self.root = root
        self.path = os.path.join(root, PREFIX + secrets.token_hex(4))
        os.mkdir(self.path)
        self._marker = open(os.path.join(self.path, MARKER), "w")
        _lock(self._marker)
        json.dump({"pid": os.getpid(), "what": "models and tokenizers that were given in memory"}, self._marker)
        self._marker.flush()

    def place(self, name: str) -> str:
        """A new directory below."""
        path = os.path.join(self.path, name)
        os.makedirs(path)
        return path

    def close(self) -> None:
        """Ends the lock."""
        self._marker.close()

    def remove(self) -> None:
        """Deletes the directory, and the run's where it was made for it and is empty."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        if self.made_root:
            try:
                os.rmdir(self.root)
            except OSError:
                pass  # it has become a run

    def or_earlier(self) -> str:
        """The directory of an earlier start of the run with the same files, in the place of this one; else this."""
        for name in sorted(os.listdir(self.root)):
            other = os.path.join(self.root, name)
            if other != self.path and is_ours(other) and _same(self.path, other):
                self.remove()
                return other
        return self.path


def is_ours(path: str) -> bool:
    """Whether this package made the directory."""
    return os.path.basename(path).startswith(PREFIX) and os.path.isfile(os.path.join(path, MARKER))


def sweep(root: str) -> None:
    """Deletes what processes left that were killed before their run began: directories of ours in `root` that no
    configuration names and nobody has locked."""
    try:
        with open(os.path.join(root, "config.toml")) as file:
            named = file.read()
    except OSError:
        named = ""
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if not is_ours(path) or name in named or os.path.exists(os.path.join(root, "checkpoints")):
            continue
        with open(os.path.join(path, MARKER), "r+") as marker:
            if _lock(marker):
                shutil.rmtree(path, ignore_errors=True)


def _lock(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _same(one: str, other: str) -> bool:
    """Whether two directories have the same files with the same bytes, but for the marker and their own names."""
    files = {}
    for root in (one, other):
        found = (os.path.join(place, name) for place, _, names in os.walk(root) for name in names)
        files[root] = sorted(os.path.relpath(path, root) for path in found)
    if files[one] != files[other]:
        return False
    return all(_same_file(one, other, name) for name in files[one] if name != MARKER)


def _same_file(one: str, other: str, name: str) -> bool:
    paths = [os.path.join(root, name) for root in (one, other)]
    if os.path.basename(name) != "adapter_config.json":
        return filecmp.cmp(*paths, shallow=False)
    texts = []
    for root, path in zip((one, other), paths):
        with open(path) as file:
            texts.append(file.read().replace(root, ""))
    return texts[0] == texts[1]
