"""Datasets of any kind as lists of rows, and rows as JSON for the engine."""

from __future__ import annotations

import decimal
import itertools
import json
import math
import re
from typing import Any

# Maximum number of rows that are read from a stream without `max_samples`.
STREAM_ROWS = 1_000_000
# Matches integers that may exceed 64 bits.
DIGITS = re.compile("[0-9]{19}")


def rows_of(dataset: Any, name: str, most: int | None = None) -> list[dict]:
    """Returns the rows of a dataset as dicts. The dataset may be a `datasets.Dataset`, an `IterableDataset` (of which
    `most` rows are read, if given), a list of dicts, or any object with `__len__` and `__getitem__`."""
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
                f"`{name}` is a stream of more than {STREAM_ROWS} rows: set max_steps, or set max_samples to the "
                "number of rows to read"
            )
    else:
        raise TypeError(
            f"`{name}` must be a list of dicts, a datasets.Dataset or another sequence of rows, but is "
            f"{type(dataset).__name__}"
        )
    if not rows:
        raise ValueError(f"`{name}` must have at least one row")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise TypeError(f"`{name}`, row {i}: expected a dict such as {{'prompt': '…'}}, but it is {row!r:.80}")
    return rows


def is_stream(dataset: Any) -> bool:
    """Whether the dataset can only be iterated over, and has no length."""
    return not isinstance(dataset, dict) and hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__")


# Number of rows that are read from a `datasets.Dataset` at once.
_AT_ONCE = 1000


def _rows_of_columns(dataset: Any) -> list[dict]:
    """Returns the rows of a `datasets.Dataset`, with its format and transforms applied. The dataset is read by column,
    which is much faster than by row."""
    rows: list[dict] = []
    for first in range(0, len(dataset), _AT_ONCE):
        part = dataset[first : first + _AT_ONCE]
        names = list(part)
        rows.extend(dict(zip(names, values)) for values in zip(*part.values()))
    return rows


class Encoder(json.JSONEncoder):
    """JSON encoder for rows. Values that JSON cannot hold (dates, images, bytes) become null for the engine, and
    `Decimal`s become text; reward functions receive the original objects."""

    def default(self, value: Any) -> Any:
        if isinstance(value, decimal.Decimal):
            return str(value)
        if hasattr(value, "tolist"):
            return value.tolist()
        if hasattr(value, "item"):
            return value.item()
        return None


def json_of(rows: list[dict], name: str, needed: tuple[str, ...]) -> list[str]:
    """Returns each row as a JSON object. Columns in `needed` are read by the engine, and must not be None."""
    texts = []
    for i, row in enumerate(rows):
        for column in needed:
            if column in row and row[column] is None:
                raise ValueError(f"`{name}`, row {i}: `{column}` is None")
        try:
            texts.append(exact_json(row, allow_nan=False))
        except ValueError:
            texts.append(exact_json(_finite(row)))
        except TypeError as error:
            raise TypeError(f"`{name}`, row {i}: {error}") from None
    return texts


def exact_json(value: Any, **options: Any) -> str:
    """Returns a value as JSON for the engine, with integers beyond 64 bits as text."""
    text = json.dumps(value, cls=Encoder, **options)
    return json.dumps(exact(value), cls=Encoder, **options) if DIGITS.search(text) else text


def exact(value: Any) -> Any:
    """Replaces integers beyond 64 bits by text, which the engine's graders read exactly."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(item) for item in value]
    return value


def _finite(value: Any) -> Any:
    """Replaces NaN and infinities by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
