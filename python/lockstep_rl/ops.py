"""Single operations of the engine as functions, on NumPy arrays or arrays that `numpy.from_dlpack` takes. They use the
engine's threads and its arithmetic."""

from __future__ import annotations

from typing import Any

from . import _native
from ._loop import _numpy


def masked_softmax(x: Any, lengths: Any = None, *, first: Any = None, scale: float = 1.0) -> Any:
    """Scales, masks and applies softmax in one pass. Row r of `x` [..., columns] uses its columns from `first[r]`
    (default 0) up to, but without, `lengths[r]` (default: all). All other columns of the result are 0; so is a row that
    uses no column. Sums are computed in f32, whatever the dtype of `x`; the used values must be finite. The result has
    the dtype and shape of `x`."""
    numpy = _numpy()
    x = _of_any(x)
    if x.ndim == 0 or x.dtype.kind != "f":
        raise TypeError(f"masked_softmax: expected an array of floats, got {x.dtype} with {x.ndim} dimensions")
    columns = x.shape[-1]
    rows = x.size // columns if columns else 0
    end = _bounds("lengths", columns if lengths is None else lengths, x.shape[:-1], columns)
    begin = _bounds("first", 0 if first is None else first, x.shape[:-1], columns)
    flat = numpy.ascontiguousarray(x.reshape(rows, columns), dtype="float32")
    return _native.masked_softmax(flat, scale, begin, end).reshape(x.shape).astype(x.dtype, copy=False)


def _of_any(values: Any) -> Any:
    numpy = _numpy()
    if not isinstance(values, numpy.ndarray) and hasattr(values, "__dlpack__"):
        return numpy.from_dlpack(values)
    return numpy.asarray(values)


def _bounds(name: str, values: Any, shape: tuple, columns: int) -> Any:
    numpy = _numpy()
    values = numpy.broadcast_to(_of_any(values), shape).ravel()
    if values.size and (values.min() < 0 or values.max() > columns):
        raise ValueError(f"masked_softmax: `{name}` has {values.min()} to {values.max()}, expected 0 to {columns}")
    return numpy.ascontiguousarray(values, dtype="uint32")


def fused_sample(
    hidden: Any,
    weight: Any,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    history: list[list[int]] | None = None,
    seed: int = 0,
    step: int = 0,
    first_row: int = 0,
) -> tuple[Any, Any, Any]:
    """Samples the next token of each row of `hidden` [rows, hidden size], with the lm head `weight` [vocabulary, hidden
    size]. Logits, repetition penalty, temperature, top-k, top-p, min-p and the draw are one pass; if nothing truncates,
    the logits are never stored. Returns three arrays: token ids, their log-probabilities before penalty and truncation,
    and their log-probabilities in the distribution from which they were drawn.

    The random numbers depend only on `seed`, `step` and the row's index, which is counted from `first_row`. `history`
    has the token ids so far of each row, for the repetition penalty.
    """
    numpy = _numpy()
    hidden, weight = (numpy.ascontiguousarray(_of_any(array), dtype="float32") for array in (hidden, weight))
    if hidden.ndim != 2 or weight.ndim != 2:
        raise ValueError("fused_sample: expected hidden [R, H] and weight [V, H]")
    if history is not None and len(history) != len(hidden):
        raise ValueError(f"fused_sample: `history` has {len(history)} rows for {len(hidden)}")
    return _native.fused_sample(
        hidden, weight, temperature, top_k, top_p, min_p, repetition_penalty,
        [list(map(int, ids)) for ids in history or []], seed, first_row, step,
    )


class DeviceBatch:
    """Several arrays, contiguous in the memory of a device."""

    def __init__(self, arrays: dict[str, Any]):
        numpy = _numpy()
        self._places: dict[str, tuple] = {}
        parts, at = [], 0
        for name, array in arrays.items():
            array = numpy.ascontiguousarray(_of_any(array))
            if array.dtype.kind not in "biuf":
                raise TypeError(f"h2d_once: `{name}` is of {array.dtype}: expected numbers")
            words = -(-array.nbytes // 4)
            padded = numpy.zeros(words * 4, dtype="uint8")
            padded[: array.nbytes] = array.reshape(-1).view("uint8")
            self._places[name] = (at, words, array.nbytes, array.dtype, array.shape)
            parts.append(padded.view("uint32"))
            at += words
        staged = numpy.concatenate(parts) if parts else numpy.zeros(0, dtype="uint32")
        self._words = _native.DeviceWords(staged)

    @property
    def copies(self) -> int:
        """Number of copies from the host to the device."""
        return self._words.copies

    @property
    def copied_bytes(self) -> int:
        """Number of bytes in these copies from the host to the device."""
        return self._words.copied_bytes

    def __getitem__(self, name: str) -> Any:
        """Returns an array, copied back to the host."""
        at, words, nbytes, dtype, shape = self._places[name]
        return self._words.words(at, at + words).view("uint8")[:nbytes].view(dtype).reshape(shape)

    def __iter__(self):
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def h2d_once(arrays: dict[str, Any]) -> DeviceBatch:
    """Copies several arrays from the host to a device in a single copy, instead of one copy for each. In this build the
    device is the CPU, which shares the host's memory; copies are counted on a second CPU device that has its own
    memory."""
    return DeviceBatch(arrays)


__all__ = ["DeviceBatch", "fused_sample", "h2d_once", "masked_softmax"]
