"""`lockstep_rl.ops` compared with NumPy."""

import pytest

from lockstep_rl import ops

np = pytest.importorskip("numpy")


def softmax(x, first, end, scale):
    y = np.zeros(x.shape, np.float64)
    for at in np.ndindex(x.shape[:-1]):
        seen = slice(first[at], end[at])
        z = x[at][seen].astype(np.float64) * scale
        if z.size:
            e = np.exp(z - z.max())
            y[at][seen] = e / e.sum()
    return y


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float16", 1e-3), ("float64", 1e-6)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 3, 129), (7,)])
def test_masked_softmax_matches_numpy(shape, dtype, tolerance):
    rng = np.random.default_rng(0)
    x = (4 * rng.standard_normal(shape)).astype(dtype)
    end = rng.integers(0, shape[-1] + 1, shape[:-1])
    first = rng.integers(0, end + 1)
    y = ops.masked_softmax(x, end, first=first, scale=0.5)
    assert y.dtype == x.dtype and y.shape == x.shape
    np.testing.assert_allclose(y, softmax(x, first, end, 0.5), atol=tolerance)
    np.testing.assert_allclose(ops.masked_softmax(x), softmax(x, np.zeros_like(end), end * 0 + shape[-1], 1.0),
                               atol=tolerance)


def test_masked_softmax_ignores_masked_values():
    x = np.array([[1.0, np.nan, np.inf], [np.nan, np.nan, np.nan]], np.float32)
    assert ops.masked_softmax(x, [1, 0]).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_masked_softmax_accepts_large_values_and_transposed_arrays():
    x = np.array([[1e4, 1e4], [-1e4, 1e4]], np.float32)
    assert ops.masked_softmax(x).tolist() == [[0.5, 0.5], [0.0, 1.0]]
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    np.testing.assert_allclose(ops.masked_softmax(turned).sum(-1), 1.0, rtol=1e-6)


HIDDEN = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
WEIGHT = np.random.default_rng(2).standard_normal((40, 8)).astype(np.float32)


def logits():
    return HIDDEN.astype(np.float64) @ WEIGHT.T.astype(np.float64)


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def test_fused_sample_returns_log_probabilities():
    ids, logps, drawn = ops.fused_sample(HIDDEN, WEIGHT, temperature=0.7, seed=3)
    expected = log_softmax(logits() / 0.7)[np.arange(5), ids]
    np.testing.assert_allclose(logps, expected, atol=1e-5)
    np.testing.assert_allclose(drawn, expected, atol=1e-5)


def test_fused_sample_at_temperature_0_returns_the_argmax():
    ids, logps, drawn = ops.fused_sample(HIDDEN, WEIGHT, temperature=0.0)
    assert ids.tolist() == logits().argmax(-1).tolist() and drawn.tolist() == [0.0] * 5
    np.testing.assert_allclose(logps, log_softmax(logits()).max(-1), atol=1e-5)


def test_fused_sample_draws_from_the_softmax_distribution():
    rows = np.repeat(HIDDEN[:1], 20000, axis=0)
    ids, _, _ = ops.fused_sample(rows, WEIGHT, seed=1)
    expected = np.exp(log_softmax(logits()))[0]
    seen = np.bincount(ids, minlength=40) / len(ids)
    assert np.abs(seen - expected).max() < 0.012


@pytest.mark.parametrize("fields, kept", [
    (dict(top_k=3), lambda z: z >= np.sort(z)[-3]),
    (dict(min_p=0.3), lambda z: np.exp(z - z.max()) >= 0.3),
    (dict(top_p=0.5), lambda z: np.exp(log_softmax(z)) >= np.sort(np.exp(log_softmax(z)))[::-1][
        (np.cumsum(np.sort(np.exp(log_softmax(z)))[::-1]) < 0.5).sum()]),
])
def test_fused_sample_draws_only_tokens_within_top_k_top_p_and_min_p(fields, kept):
    rows = np.repeat(HIDDEN[:1], 2000, axis=0)
    ids, logps, drawn = ops.fused_sample(rows, WEIGHT, **fields)
    allowed = kept(logits()[0])
    assert set(ids.tolist()) == set(np.flatnonzero(allowed).tolist())
    inside = np.where(allowed, logits()[0], -np.inf)
    np.testing.assert_allclose(drawn, log_softmax(inside)[ids], atol=1e-4)
    np.testing.assert_allclose(logps, log_softmax(logits()[0])[ids], atol=1e-5)


def test_samples_depend_on_seed_step_and_row_only():
    rows = np.repeat(HIDDEN[:1], 64, axis=0)
    whole, _, _ = ops.fused_sample(rows, WEIGHT, seed=7, step=2)
    parts = [ops.fused_sample(rows[at : at + 16], WEIGHT, seed=7, step=2, first_row=at)[0] for at in range(0, 64, 16)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(ops.fused_sample(rows, WEIGHT, seed=8, step=2)[0], whole)
    assert not np.array_equal(ops.fused_sample(rows, WEIGHT, seed=7, step=3)[0], whole)


def test_a_repetition_penalty_prevents_repeated_tokens():
    best = int(logits()[0].argmax())
    ids, _, _ = ops.fused_sample(HIDDEN[:1], WEIGHT, temperature=0.0, repetition_penalty=1e6, history=[[best]])
    assert ids[0] != best


def test_h2d_once_copies_many_arrays_at_once():
    arrays = {
        "ids": np.arange(7, dtype=np.int64), "mask": np.array([[True, False, True]]), "x": HIDDEN,
        "half": np.arange(3, dtype=np.float16), "none": np.zeros((0, 4), np.float32),
    }
    batch = ops.h2d_once(arrays)
    assert batch.copies == 1 and len(batch) == 5 and list(batch) == list(arrays)
    assert batch.copied_bytes == sum(-(-array.nbytes // 4) * 4 for array in arrays.values())
    for name, array in arrays.items():
        assert batch[name].dtype == array.dtype and np.array_equal(batch[name], array)


@pytest.mark.parametrize("call, error, words", [
    (lambda: ops.masked_softmax(np.zeros((2, 3)), [4, 0]), ValueError, "expected 0 to 3"),
    (lambda: ops.masked_softmax(np.zeros((2, 3)), [1, 1], first=[2, 0]), ValueError, "must not be after `end`"),
    (lambda: ops.masked_softmax(np.zeros((2, 3), np.int64)), TypeError, "floats"),
    (lambda: ops.fused_sample(HIDDEN, WEIGHT[:, :7]), ValueError, "got .40, 7."),
    (lambda: ops.fused_sample(HIDDEN[0], WEIGHT), ValueError, "hidden .R, H."),
    (lambda: ops.fused_sample(HIDDEN, WEIGHT, temperature=-1.0), ValueError, "temperature"),
    (lambda: ops.fused_sample(HIDDEN, WEIGHT, history=[[1]]), ValueError, "1 rows for 5"),
    (lambda: ops.fused_sample(HIDDEN, WEIGHT, top_p=0.0), ValueError, "top_p"),
    (lambda: ops.h2d_once({"words": np.array(["a"])}), TypeError, "`words`"),
])
def test_wrong_arguments_of_operations_raise_a_clear_error(call, error, words):
    with pytest.raises(error, match=words):
        call()
