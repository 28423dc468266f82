//! Helpers for CPU kernels: loads and stores of rows in vectors of 16 lanes, dot products, and splitting rows into
//! tasks.

use crate::simd::{Element, LANES, Simd};
use std::ops::Range;

/// Loads 16 elements of `from`, beginning at index `at`. If fewer are left, the other lanes are 0.
#[inline(always)]
pub(crate) fn load<V: Simd>(from: &[impl Element], at: usize) -> V {
    let n = from.len() - at;
    if n >= LANES { Element::load(&from[at..]) } else { Element::load_partial(&from[at..], n) }
}

/// Stores 16 lanes into `to`, beginning at index `at`, or as many as fit.
#[inline(always)]
pub(crate) fn store<V: Simd>(v: V, to: &mut [impl Element], at: usize) {
    let n = to.len() - at;
    if n >= LANES { Element::store(v, &mut to[at..]) } else { Element::store_partial(v, &mut to[at..], n) }
}

/// Like [`store`], but for lanes that [`Element::rounded`] has already rounded to `E`.
#[inline(always)]
pub(crate) fn store_rounded<V: Simd, E: Element>(v: V, to: &mut [E], at: usize) {
    if to.len() - at >= LANES { E::store_rounded(v, &mut to[at..]) } else { store(v, to, at) }
}

/// Dot product Σ a·b in a fixed order: lane i of 16 sums the elements i, i + 16, … ascending, then the lanes are added
/// in a fixed tree.
#[inline(always)]
pub(crate) fn dot<V: Simd>(a: &[impl Element], b: &[impl Element]) -> f32 {
    let mut sum = V::splat(0.0);
    for at in (0..a.len()).step_by(LANES) {
        sum = load::<V>(a, at).fma(load(b, at), sum);
    }
    sum.sum()
}

/// Like [`dot`], but with the elements of `a` rounded to the dtype of `b` first.
#[inline(always)]
pub(crate) fn dot_rounded<V: Simd, E: Element>(a: &[f32], b: &[E]) -> f32 {
    let mut sum = V::splat(0.0);
    for at in (0..a.len()).step_by(LANES) {
        let a: V = E::rounded(load(a, at));
        sum = a.fma(load(b, at), sum);
    }
    sum.sum()
}

/// Number of rows in a task of about 4096 elements, which takes a microsecond or two. Small inputs become one task,
/// which runs on the calling thread.
pub(crate) fn rows_of_task(width: usize) -> usize {
    (4096 / width.max(1)).max(1)
}

/// Range of the rows in task `index`, out of `all` rows.
#[inline(always)]
pub(crate) fn rows(index: usize, rows_of_task: usize, all: usize) -> Range<usize> {
    index * rows_of_task..((index + 1) * rows_of_task).min(all)
}

/// Number of tokens in each partial sum of the gradient of a vector (norm weights, biases).
pub(crate) const CHUNK: usize = 64;

/// Splits rows into chunks for the gradient of a vector. The terms of each chunk are summed from 0, then added to the
/// gradient, in ascending order. A chunk has at most [`CHUNK`] rows, counted from the first row of each segment.
/// Without `segments`, all rows are one segment.
pub(crate) fn chunks(segments: Option<&[u32]>, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let whole = [0, rows as u32];
    let ends = move |s: usize| segments.unwrap_or(&whole)[s] as usize;
    let count = segments.map_or(1, |segments| segments.len() - 1);
    (0..count).flat_map(move |s| {
        let end = ends(s + 1);
        (ends(s)..end).step_by(CHUNK).map(move |first| first..end.min(first + CHUNK))
    })
}

/// The segment offsets of a range of rows of a batch, for a test that splits the batch between two segments.
#[cfg(test)]
pub(crate) fn segments_of(segments: &[u32], rows: Range<usize>) -> Vec<u32> {
    let inside = segments.iter().filter(|&&s| (rows.start..=rows.end).contains(&(s as usize)));
    inside.map(|s| s - rows.start as u32).collect()
}
