"""The data of a trainer: as they were given, and as the engine reads them."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, NamedTuple

from ._data import is_stream, json_of, rows_of
from ._models import check_path
from ._rewards import Source


@dataclasses.dataclass
class RowSet:
    """Rows in memory, as they were given and as JSON; none where the engine reads a file."""

    rows: list[dict] = dataclasses.field(default_factory=list)
    texts: list[str] | None = None

    @functools.cached_property
    def source(self) -> Source:
        """For rewards; looks at every row, once."""
        return Source(self.rows, self.texts or [])


class EvalData(NamedTuple):
    """Held-out data: the engine's keys that name it, and what is in memory, by name where there are several sets."""

    values: dict = {}
    rows: RowSet = RowSet()
    sets: dict[str, RowSet] = {}


EVAL_KEYS = {"eval_dataset_name", "eval_datasets"}


class WithDatasets:
    """A trainer's part that has the data."""

    args: Any
    _values: dict
    # Columns of the data that the engine itself reads.
    columns: tuple[str, ...] = ("prompt",)

    @property
    def train_dataset(self) -> Any:
        """The training data, as they were given."""
        return self._given_train

    @train_dataset.setter
    def train_dataset(self, dataset: Any) -> None:
        self._given_train, self._train = dataset, RowSet()
        if dataset is None and "dataset_name" not in self._values:
            raise ValueError(
                "`train_dataset` is required: a datasets.Dataset, a list of dicts, or a file's path (it is missing)"
            )
        if dataset is not None:
            self._values["dataset_name"], self._train = self._rows(dataset, "train_dataset", "max_samples")

    @property
    def eval_dataset(self) -> Any:
        """The held-out data, as they were given."""
        return self._given_eval

    @eval_dataset.setter
    def eval_dataset(self, dataset: Any) -> None:
        self._given_eval, self._eval = dataset, self._eval_data(dataset)
        if dataset is not None:
            for key in EVAL_KEYS:
                self._values.pop(key, None)
        self._values.update(self._eval.values)

    def _eval_data(self, dataset: Any) -> EvalData:
        """Held-out rows, or several sets of them under names."""
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
        """What the engine calls a dataset, and its rows where it is in memory."""
        if isinstance(dataset, (str, os.PathLike)):
            return check_path(os.fspath(dataset), name), RowSet()
        if is_stream(dataset):
            self._not_dispatched()
        rows = self._rows_of(dataset, name, self._values.get(most))
        return "memory", RowSet(rows, json_of(rows, name, self.columns))

    def _not_dispatched(self) -> None:
        """Of a stream, what transformers' arguments say of their own accord."""
        config = self.args.accelerator_config
        if config.dispatch_batches:
            raise ValueError(
                "Iterable datasets require `dispatch_batches=False`: set accelerator_config={'dispatch_batches': False}"
            )
        config.dispatch_batches = False
        self.args.dataloader_num_workers = 0

    def _rows_of(self, dataset: Any, name: str, most: int | None) -> list[dict]:
        return rows_of(dataset, name, most)
