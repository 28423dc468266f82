"""Datasets of any kind as rows, and rows as JSON for the engine."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

# Rows that are read of a stream whose length nobody knows.
STREAM_ROWS = 1_000_000


def rows_of(dataset: Any, name: str, most: int | None = None) -> list[dict]:
    """The rows of a `datasets.Dataset`, an `IterableDataset` (as many as `max_samples` says), a list of dicts, or
    anything with `__len__` and `__getitem__`."""
    if isinstance(dataset, dict):
        raise TypeError(f"`{name}` is a dict of datasets: give one of them ({', '.join(map(str, dataset))})")
    if isinstance(dataset, (list, tuple)):
        rows = list(dataset)
    elif hasattr(dataset, "__len__") and hasattr(dataset, "column_names"):
        rows = _rows_of_columns(dataset)
    elif hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        rows = [dataset[i] for i in range(len(dataset))]
    elif hasattr(dataset, "__iter__"):
        rows = list(itertools.islice(iter(dataset), (most or STREAM_ROWS) + (most is None)))
        if most is None and len(rows) > STREAM_ROWS:
            raise ValueError(
                f"`{name}` is a stream of more than {STREAM_ROWS} rows: set max_samples to as many as are to be read"
            )
    else:
        raise TypeError(
            f"`{name}` must be a list of dicts, a datasets.Dataset or another sequence of rows, but is "
            f"{type(dataset).__name__}"
        )
    if not rows:
        raise ValueError(f"`{name}` is empty: it has no row")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise TypeError(f"`{name}`, row {i}: expected a dict such as {{'prompt': '…'}}, but it is {row!r:.80}")
    return rows


def is_stream(dataset: Any) -> bool:
    """Whether its rows are read one after another, and nobody knows how many there are."""
    return not isinstance(dataset, dict) and hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__")


# Rows of a datasets.Dataset that are asked for at once.
_AT_ONCE = 1000


def _rows_of_columns(dataset: Any) -> list[dict]:
    """The rows of a `datasets.Dataset`, with its format and transforms: by column, which is much faster than by row."""
    rows: list[dict] = []
    for first in range(0, len(dataset), _AT_ONCE):
        part = dataset[first : first + _AT_ONCE]
        names = list(part)
        rows.extend(dict(zip(names, values)) for values in zip(*part.values()))
    return rows


class Encoder(json.JSONEncoder):
    """What JSON cannot hold (dates, images, bytes) is null for the engine; rewards are given the object itself."""

    def default(self, value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        if hasattr(value, "item"):
            return value.item()
        return None


def json_of(rows: list[dict], name: str, needed: tuple[str, ...]) -> list[str]:
    """Each row as a JSON object; the columns that the engine reads must be whole."""
    texts = []
    for i, row in enumerate(rows):
        for column in needed:
            if column in row and row[column] is None:
                raise ValueError(f"`{name}`, row {i}: `{column}` is None")
        try:
            texts.append(json.dumps(row, cls=Encoder, allow_nan=False))
        except ValueError:
            texts.append(json.dumps(_finite(row), cls=Encoder))
        except TypeError as error:
            raise TypeError(f"`{name}`, row {i}: {error}") from None
    return texts


def _finite(value: Any) -> Any:
    """Numbers that JSON cannot hold are null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
