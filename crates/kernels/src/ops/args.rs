//! Checks that the operations share: a wrong argument is an error that names the operation and both shapes.

use crate::device::Cuda;
use crate::device::cuda::Arg;
use crate::{DType, Error, Result, View};

/// That `view` is of this dtype and shape.
pub(crate) fn expect(
    op: &'static str,
    what: &'static str,
    view: View<'_>,
    dtype: DType,
    shape: &[usize],
) -> Result<()> {
    if view.dtype() != dtype {
        return Err(Error::DType { op, what, got: view.dtype(), expected: dtype });
    }
    expect_shape(op, what, view.shape(), shape)
}

/// That `view` is of this shape, and f32 or bf16.
pub(crate) fn expect_floats(op: &'static str, what: &'static str, view: View<'_>, shape: &[usize]) -> Result<()> {
    let dtype = if view.dtype() == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    expect(op, what, view, dtype, shape)
}

/// That a shape is what the other arguments ask for.
pub(crate) fn expect_shape(op: &'static str, what: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
    if got != expected {
        return Err(Error::Shape { op, what, got: got.to_vec(), expected: expected.to_vec() });
    }
    Ok(())
}

/// That every index lies below `end`.
pub(crate) fn expect_below(op: &'static str, what: &'static str, indices: &[u32], end: usize) -> Result<()> {
    match indices.iter().position(|&i| i as usize >= end) {
        None => Ok(()),
        Some(at) => {
            let message = format!("{what}[{at}] is {}, which is not below {end}", indices[at]);
            Err(Error::Value { op, message })
        }
    }
}

/// That u32 `[S + 1]` are offsets of `S` segments of `len` elements: ascending from 0 to `len`.
pub(crate) fn expect_offsets(op: &'static str, what: &'static str, view: View<'_>, len: usize) -> Result<()> {
    expect(op, what, view, DType::U32, &[view.shape().iter().product()])?;
    let offsets = view.indices();
    let ascending = offsets.is_sorted() && offsets.first() == Some(&0);
    match offsets.last() {
        Some(&end) if ascending && end as usize == len => Ok(()),
        _ => Err(Error::Value { op, message: format!("{what} do not ascend from 0 to {len}") }),
    }
}

/// The shape of a `[rows, columns]` tensor.
pub(crate) fn two_dims(op: &'static str, what: &'static str, view: View<'_>) -> Result<[usize; 2]> {
    match *view.shape() {
        [rows, columns] => Ok([rows, columns]),
        ref other => Err(Error::Value { op, message: format!("{what} has shape {other:?}, expected two dimensions") }),
    }
}

/// Where checked offsets of segments lie, and how many segments there are: without offsets, one.
pub(crate) fn segments_at(cuda: &Cuda, segments: Option<View<'_>>) -> (Arg, Arg) {
    segments.map_or((Arg::NULL, 1usize.into()), |s| (s.u32_at(cuda), (s.shape()[0] - 1).into()))
}
