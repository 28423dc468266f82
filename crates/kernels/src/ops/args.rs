//! Argument checks that all operations share. A wrong argument is an error that names the operation, the argument, and
//! the actual and expected shape or dtype.

use crate::device::Cuda;
use crate::device::cuda::Arg;
use crate::{DType, Error, Result, View};

/// Checks that `view` has this dtype and shape.
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

/// Checks that `view` has this shape and is f32 or bf16.
pub(crate) fn expect_floats(op: &'static str, what: &'static str, view: View<'_>, shape: &[usize]) -> Result<()> {
    let dtype = if view.dtype() == DType::Bf16 { DType::Bf16 } else { DType::F32 };
    expect(op, what, view, dtype, shape)
}

/// Checks that the shape `got` is `expected`.
pub(crate) fn expect_shape(op: &'static str, what: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
    if got != expected {
        return Err(Error::Shape { op, what, got: got.to_vec(), expected: expected.to_vec() });
    }
    Ok(())
}

/// Checks that every index is below `end`.
pub(crate) fn expect_below(op: &'static str, what: &'static str, indices: &[u32], end: usize) -> Result<()> {
    match indices.iter().position(|&i| i as usize >= end) {
        None => Ok(()),
        Some(at) => {
            let message = format!("{what}[{at}] is {}, expected below {end}", indices[at]);
            Err(Error::Value { op, message })
        }
    }
}

/// Checks that a u32 tensor `[S + 1]` is a list of offsets of `S` segments that cover `len` elements: ascending from 0
/// to `len`.
pub(crate) fn expect_offsets(op: &'static str, what: &'static str, view: View<'_>, len: usize) -> Result<()> {
    expect(op, what, view, DType::U32, &[view.shape().iter().product()])?;
    let offsets = view.indices();
    let ascending = offsets.is_sorted() && offsets.first() == Some(&0);
    match offsets.last() {
        Some(&end) if ascending && end as usize == len => Ok(()),
        _ => Err(Error::Value { op, message: format!("{what} must ascend from 0 to {len}") }),
    }
}

/// Returns the shape `[rows, columns]` of a tensor, or an error if it does not have two dimensions.
pub(crate) fn two_dims(op: &'static str, what: &'static str, view: View<'_>) -> Result<[usize; 2]> {
    match *view.shape() {
        [rows, columns] => Ok([rows, columns]),
        ref other => Err(Error::Value { op, message: format!("{what} has shape {other:?}, expected two dimensions") }),
    }
}

/// CUDA kernel arguments for segment offsets that have been checked: their address and the number of segments. Without
/// offsets: a null pointer and 1.
pub(crate) fn segments_at(cuda: &Cuda, segments: Option<View<'_>>) -> (Arg, Arg) {
    segments.map_or((Arg::NULL, 1usize.into()), |s| (s.u32_at(cuda), (s.shape()[0] - 1).into()))
}
