"""The training and evaluation data of a trainer: datasets as passed by the user, and the rows that the engine reads."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from typing import Any, NamedTuple

from ._data import is_stream, json_of, rows_of
from ._models import check_path
from ._rewards import Source


@dataclasses.dataclass
class RowSet:
    """Rows of a dataset in memory, as passed and as JSON; empty if the engine reads a file instead."""

    rows: list[dict] = dataclasses.field(default_factory=list)
    texts: list[str] | None = None

    @functools.cached_property
    def source(self) -> Source:
        """The rows as reward functions receive them; computed once, by comparing every row with its JSON."""
        return Source(self.rows, self.texts or [])


class EvalData(NamedTuple):
    """Evaluation data: the engine's keys that name the datasets, and the rows in memory (`sets` by name, if there are
    several datasets)."""

    values: dict = {}
    rows: RowSet = RowSet()
    sets: dict[str, RowSet] = {}


EVAL_KEYS = {"eval_dataset_name", "eval_datasets"}


class WithDatasets:
    """Mixin for a trainer's training and evaluation data."""

    args: Any
    _values: dict
    _samples_per_step: Any
    # Number of rows read from a stream, if not all were read.
    _stream_rows: int | None = None
    # Columns of the datasets that the engine reads.
    columns: tuple[str, ...] = ("prompt",)

    @property
    def train_dataset(self) -> Any:
        """The training dataset, as passed."""
        return self._given_train

    @train_dataset.setter
    def train_dataset(self, dataset: Any) -> None:
        self._given_train, self._train = dataset, RowSet()
        if dataset is None and "dataset_name" not in self._values:
            raise ValueError(
                "`train_dataset` is required: pass a datasets.Dataset, a list of dicts, or a file's path"
            )
        if dataset is not None:
            self._values["dataset_name"], self._train = self._rows(dataset, "train_dataset", "max_samples")

    @property
    def eval_dataset(self) -> Any:
        """The evaluation dataset, or the dict of datasets, as passed."""
        return self._given_eval

    @eval_dataset.setter
    def eval_dataset(self, dataset: Any) -> None:
        self._given_eval, self._eval = dataset, self._eval_data(dataset)
        if dataset is not None:
            for key in EVAL_KEYS:
                self._values.pop(key, None)
        self._values.update(self._eval.values)

    def _eval_data(self, dataset: Any) -> EvalData:
        """Reads an evaluation dataset, or a dict of several by name."""
        if dataset is None:
            return EvalData()
        if not isinstance(dataset, dict):
            name, rows = self._rows(dataset, "eval_dataset", "eval_max_samples")
            return EvalData({"eval_dataset_name": name}, rows, {})
        if not dataset:
            raise ValueError("`eval_dataset` is an empty dict")
        names, sets = {}, {}
        for key, rows in dataset.items():
            names[key], rows = self._rows(rows, f"eval_dataset[{key!r}]", "eval_max_samples")
            if rows.texts is not None:
                sets[key] = rows
        return EvalData({"eval_datasets": names}, RowSet(), sets)

    def _rows(self, dataset: Any, name: str, most: str) -> tuple[str, RowSet]:
        """Returns the engine's name of a dataset (a path, or `memory`), and the rows if they are in memory."""
        if isinstance(dataset, (str, os.PathLike)):
            return check_path(os.fspath(dataset), name), RowSet()
        limit = self._values.get(most)
        if is_stream(dataset):
            self._not_dispatched()
            if name == "train_dataset" and limit is None:
                limit = self._stream_rows = self._rows_needed()
        rows = self._rows_of(dataset, name, limit)
        return "memory", RowSet(rows, json_of(rows, name, self.columns))

    def _not_dispatched(self) -> None:
        """Applies transformers' settings for a streamed dataset: `dispatch_batches` is False, and there are no data
        loader workers."""
        config = self.args.accelerator_config
        if config.dispatch_batches:
            raise ValueError(
                "Iterable datasets require `dispatch_batches=False`: set accelerator_config={'dispatch_batches': False}"
            )
        config.dispatch_batches = False
        self.args.dataloader_num_workers = 0

    def _read_as_in(self, root: str) -> None:
        """Reads as many rows of a stream as the resumed run in `root` has, so that its data stays the same. A run of an
        older version has the whole stream."""
        if self._values.get("max_samples") is not None:
            return
        with open(os.path.join(root, "config.toml")) as file:
            found = re.search(r"^max_samples = (\d+)", file.read(), re.MULTILINE)
        count = int(found[1]) if found else None
        if count != self._stream_rows:
            self._stream_rows = count
            rows = self._rows_of(self._given_train, "train_dataset", count)
            self._train = RowSet(rows, json_of(rows, "train_dataset", self.columns))

    def _rows_needed(self) -> int | None:
        """Returns how many rows of a stream training reads; None if unknown, that is, without `max_steps`."""
        steps = self._values.get("max_steps") or 0
        return steps * self._samples_per_step() if steps > 0 else None

    def _rows_of(self, dataset: Any, name: str, most: int | None) -> list[dict]:
        return rows_of(dataset, name, most)
