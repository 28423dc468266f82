"""`compute_metrics`: metrics of a user's function, computed from the engine's evaluation outputs as in transformers."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ._loop import _numpy

# Value with which transformers pads sequences of different lengths in one array.
PADDING = -100


class EvalPrediction:
    """The argument of `compute_metrics` if transformers is not imported; otherwise transformers' own class is used. Its
    fields are `predictions`, `label_ids`, and, if `include_for_metrics` names them, `inputs` and `losses`. As a
    sequence, it contains the fields that are not None."""

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None):
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses

    def _elements(self) -> tuple:
        more = (self.inputs, self.losses)
        return (self.predictions, self.label_ids, *(one for one in more if one is not None))

    def __iter__(self) -> Any:
        return iter(self._elements())

    def __len__(self) -> int:
        return len(self._elements())

    def __getitem__(self, at: int) -> Any:
        return self._elements()[at]


def checked(compute_metrics: Any, preprocess: Any, args: Any) -> None:
    """Raises errors now for functions and settings that would otherwise fail at the first evaluation, hours later."""
    for name, function in (("compute_metrics", compute_metrics), ("preprocess_logits_for_metrics", preprocess)):
        if function is not None and not callable(function):
            raise TypeError(f"`{name}` must be a function, but is {function!r:.80}")
    if args.per_device_eval_batch_size < 1:
        raise ValueError(f"`per_device_eval_batch_size` = {args.per_device_eval_batch_size}: expected 1 or more")
    wanted = args.include_for_metrics
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if name not in ("inputs", "loss"):
            raise ValueError(f"`include_for_metrics` has {name!r}: expected inputs or loss")
    if compute_metrics is not None and args.batch_eval_metrics:
        parameters = inspect.signature(compute_metrics).parameters.values()
        if not any(one.name == "compute_result" or one.kind is one.VAR_KEYWORD for one in parameters):
            raise ValueError(
                "batch_eval_metrics: `compute_metrics` must take `compute_result`, which is True at the last batch"
            )


class EvalMetrics:
    """Collects the outputs of an evaluation, and calls `compute_metrics`. For each evaluation dataset the engine calls
    `begin`, then `batch` for every batch, then `end`. It also reads `batch_size`, `keeps_outputs` and `needs_loss`."""

    def __init__(self, trainer: Any, prefix: str = "eval", predicts: bool = False):
        args = trainer.args
        self.compute_metrics: Callable | None = trainer.compute_metrics
        self.preprocess: Callable | None = trainer.preprocess_logits_for_metrics
        self.labels_of: Callable = trainer._labels_of
        self.prefix = prefix
        self.by_batch = bool(args.batch_eval_metrics) and self.compute_metrics is not None
        self.predicts = predicts
        self.keeps = predicts or not self.by_batch
        self.batch_size: int = args.per_device_eval_batch_size
        self.joins: bool = args.eval_do_concat_batches
        self.wants_inputs = "inputs" in args.include_for_metrics
        self.needs_loss = "loss" in args.include_for_metrics
        # Whether the engine includes the outputs in its memory plan: the outputs of `preprocess` are small.
        self.keeps_outputs = self.keeps and self.preprocess is None
        self.results: dict[str, tuple] = {}
        self.others: dict[str, Any] = {}
        if trainer._has_logits:
            warnings.warn(
                "compute_metrics and predict are given whole logits, which TRL deprecates and removes in its version "
                "2: the engine computes them in a separate pass",
                FutureWarning,
                stacklevel=5,
            )

    def begin(self, name: str, rows: int, sequences: int, longest: int, vocab: int | None) -> None:
        self.name, self.left, self.sequences_of_row = name, rows, sequences // rows
        self.metrics: Any = {}
        in_place = self.keeps_outputs and self.joins
        self.predictions: Any = _Array(sequences, longest, vocab) if in_place else _Batches(self.joins)
        self.labels, self.inputs, self.losses = (_Batches(self.joins) for _ in range(3))

    def batch(self, ids: list, learned: list, outputs: Any, vocab: int | None, pad: int, loss: float | None) -> None:
        numpy = _numpy()
        width = max(map(len, ids))
        input_ids = numpy.full((len(ids), width), pad, dtype="int64")
        attention = numpy.zeros((len(ids), width), dtype="int64")
        for row, mask, own in zip(input_ids, attention, ids):
            row[: len(own)], mask[: len(own)] = own, 1
        labels = self.labels_of(input_ids, learned)
        outputs = outputs.reshape(len(ids), 1) if vocab is None else outputs.reshape(len(ids), width, vocab)
        rows = len(ids) // self.sequences_of_row
        self.left -= rows
        if self.preprocess is not None:
            outputs = self.preprocess(_tensors(outputs), _tensors(labels))
        losses = None if loss is None else numpy.full(rows, loss, dtype="float32")
        if self.keeps:
            self.predictions.add(_arrays(outputs))
            self.labels.add(labels)
            if self.wants_inputs:
                self.inputs.add(input_ids)
            if losses is not None:
                self.losses.add(losses)
        if self.by_batch:
            inputs = {"input_ids": input_ids, "attention_mask": attention}
            self.metrics = self._computed(
                _tensors(outputs), _tensors(labels), _tensors(inputs), _tensors(losses),
                compute_result=self.left == 0,
            )

    def end(self) -> dict[str, float]:
        predictions, labels = self.predictions.whole(), self.labels.whole()
        if self.predicts:
            self.results[self.name] = (predictions, labels)
        if self.compute_metrics is not None and not self.by_batch:
            self.metrics = self._computed(predictions, labels, self.inputs.whole(), self.losses.whole())
        if not isinstance(self.metrics, dict):
            raise TypeError(f"compute_metrics must return a dict, but returned {self.metrics!r:.80}")
        numbers = {}
        own, place = (f"{p}_{self.name}_" if self.name else f"{p}_" for p in (self.prefix, "eval"))
        for key, value in self.metrics.items():
            key, value = str(key).removeprefix(own), _scalar(value)
            if isinstance(value, (bool, int, float)):
                numbers[key] = float(value)
            else:  # lists and strings, which the engine does not accept
                self.others[place + key] = value
        # Logits are large, so they are freed now.
        del self.predictions, self.labels, predictions, labels
        return numbers

    def take_others(self) -> dict[str, Any]:
        """Returns the metrics that are not numbers, with the prefix of their dataset, and clears them."""
        others, self.others = self.others, {}
        return others

    def _computed(self, predictions: Any, labels: Any, inputs: Any, losses: Any, **more: Any) -> Any:
        kind = EvalPrediction
        if "transformers" in sys.modules:
            try:
                from transformers import EvalPrediction as kind
            except ImportError:
                pass
        inputs = inputs if self.wants_inputs else None
        given = kind(predictions=predictions, label_ids=labels, inputs=inputs, losses=losses)
        return self.compute_metrics(given, **more)


class _Array:
    """The outputs of all batches in one array, which is allocated once."""

    def __init__(self, sequences: int, longest: int, vocab: int | None):
        shape = (sequences, 1) if vocab is None else (sequences, longest, vocab)
        self.array = _numpy().empty(shape, dtype="float32")
        self.filled = 0

    def add(self, outputs: Any) -> None:
        rows = self.array[self.filled : self.filled + len(outputs)]
        rows[:, : outputs.shape[1]] = outputs
        rows[:, outputs.shape[1] :] = PADDING
        self.filled += len(outputs)

    def whole(self) -> Any:
        return self.array


class _Batches:
    """The outputs of each batch: arrays, or tuples, lists and dicts of arrays."""

    def __init__(self, joins: bool):
        self.all: list = []
        self.joins = joins

    def add(self, batch: Any) -> None:
        self.all.append(batch)

    def whole(self) -> Any:
        if not self.all:
            return None
        return _joined(self.all) if self.joins else self.all


def _joined(batches: list) -> Any:
    """Concatenates batches. The second dimension is padded to that of the widest batch."""
    first = batches[0]
    if isinstance(first, dict):
        return {key: _joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_joined(list(parts)) for parts in zip(*batches))
    numpy = _numpy()
    arrays = [numpy.atleast_1d(batch) for batch in batches]
    if arrays[0].ndim == 1:
        return numpy.concatenate(arrays)
    width = max(array.shape[1] for array in arrays)
    whole = numpy.full((sum(map(len, arrays)), width, *arrays[0].shape[2:]), PADDING, dtype=arrays[0].dtype)
    at = 0
    for array in arrays:
        whole[at : at + len(array), : array.shape[1]] = array
        at += len(array)
    return whole


def _each(value: Any, of_one: Callable) -> Any:
    if isinstance(value, dict):
        return {key: _each(one, of_one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_each(one, of_one) for one in value)
    return value if value is None else of_one(value)


def _tensors(value: Any) -> Any:
    """Converts arrays to PyTorch tensors over the same memory, as transformers does. Without PyTorch they stay
    arrays."""
    if find_spec("torch") is None:
        return value
    import torch

    return _each(value, lambda one: one if isinstance(one, torch.Tensor) else torch.from_numpy(one))


def _arrays(value: Any) -> Any:
    """Converts PyTorch tensors, or arrays of any package, to NumPy arrays."""

    def array(one: Any) -> Any:
        if hasattr(one, "detach"):
            one = one.detach().cpu()
            one = one.float() if str(one.dtype) == "torch.bfloat16" else one
            return one.numpy()
        return _numpy().asarray(one)

    return _each(value, array)


def _scalar(value: Any) -> Any:
    """Returns the number in an array or tensor with one element; a larger one becomes a list."""
    if not hasattr(value, "item"):
        return value
    count = value.numel() if hasattr(value, "numel") else value.size
    return value.item() if count == 1 else value.tolist()
