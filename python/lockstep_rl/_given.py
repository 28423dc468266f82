"""Files of models and tokenizers that a trainer receives as objects in memory, so that the engine can read them.

They are written into a new directory `given-…` in the run's directory, so existing files are never overwritten. They
stay there for resuming, and for loading the run's adapter with its base model.
"""

from __future__ import annotations

import fcntl
import filecmp
import fnmatch
import json
import os
import secrets
import shutil
from typing import Any

PREFIX = "given-"
# File in each directory `given-…`, locked while the process that created the directory is alive.
MARKER = "written_by_lockstep_rl.json"


class GivenFiles:
    """A new directory `given-…` in `root`, which is created if needed. No other process deletes the new directory
    before `close`."""

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
        """Creates a subdirectory, and returns its path."""
        path = os.path.join(self.path, name)
        os.makedirs(path)
        return path

    def close(self) -> None:
        """Releases the lock on the directory."""
        self._marker.close()

    def remove(self) -> None:
        """Deletes the directory, and also `root` if it was created for this directory and is empty."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        if self.made_root:
            try:
                os.rmdir(self.root)
            except OSError:
                pass  # `root` contains other files

    def or_earlier(self, trained: str | None = None) -> str:
        """Returns the directory of an earlier start of the run if it has the same files, and deletes this directory.
        Otherwise returns this directory. The weights in files `trained` may differ: the checkpoint of a resumed run has
        the weights, and the passed object has been trained since."""
        for name in sorted(os.listdir(self.root)):
            other = os.path.join(self.root, name)
            if other != self.path and is_ours(other) and _same(self.path, other, trained):
                self.remove()
                return other
        return self.path


def is_ours(path: str) -> bool:
    """Whether this package created the directory."""
    return os.path.basename(path).startswith(PREFIX) and os.path.isfile(os.path.join(path, MARKER))


def sweep(root: str) -> None:
    """Deletes directories `given-…` in `root` left by processes that were killed before their training began.
    Directories that are locked, or named in the run's configuration, are kept."""
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


def _same(one: str, other: str, trained: str | None) -> bool:
    """Whether two directories have the same files with the same bytes. The marker file, the paths of the directories
    and the files `trained` (a pattern) are ignored."""
    files = {}
    for root in (one, other):
        found = (os.path.join(place, name) for place, _, names in os.walk(root) for name in names)
        files[root] = sorted(os.path.relpath(path, root) for path in found)
    if files[one] != files[other]:
        return False
    ignored = [name for name in files[one] if name == MARKER or trained and fnmatch.fnmatch(name, trained)]
    return all(_same_file(one, other, name) for name in files[one] if name not in ignored)


def _same_file(one: str, other: str, name: str) -> bool:
    paths = [os.path.join(root, name) for root in (one, other)]
    if os.path.basename(name) != "adapter_config.json":
        return filecmp.cmp(*paths, shallow=False)
    texts = []
    for root, path in zip((one, other), paths):
        with open(path) as file:
            texts.append(file.read().replace(root, ""))
    return texts[0] == texts[1]
