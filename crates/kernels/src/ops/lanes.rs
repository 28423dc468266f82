//! Walking a row in vectors of 16, and cutting rows into tasks.

use crate::simd::{Element, LANES, Simd};
use std::ops::Range;

/// 16 elements of `from` at `at`, or as many as there are, the rest 0.
#[inline(always)]
pub(crate) fn load<V: Simd>(from: &[impl Element], at: usize) -> V {
    let n = from.len() - at;
    if n >= LANES { Element::load(&from[at..]) } else { Element::load_partial(&from[at..], n) }
}

/// Writes them back.
#[inline(always)]
pub(crate) fn store<V: Simd>(v: V, to: &mut [impl Element], at: usize) {
    let n = to.len() - at;
    if n >= LANES { Element::store(v, &mut to[at..]) } else { Element::store_partial(v, &mut to[at..], n) }
}

/// [`store`] of lanes that [`Element::rounded`] gave.
#[inline(always)]
pub(crate) fn store_rounded<V: Simd, E: Element>(v: V, to: &mut [E], at: usize) {
    if to.len() - at >= LANES { E::store_rounded(v, &mut to[at..]) } else { store(v, to, at) }
}

/// Σ a·b: lane i sums the elements i, i + 16, … ascending, then the fixed tree.
#[inline(always)]
pub(crate) fn dot<V: Simd>(a: &[impl Element], b: &[impl Element]) -> f32 {
    let mut sum = V::splat(0.0);
    for at in (0..a.len()).step_by(LANES) {
        sum = load::<V>(a, at).fma(load(b, at), sum);
    }
    sum.sum()
}

/// [`dot`] of a rounded to what b is stored in.
#[inline(always)]
pub(crate) fn dot_rounded<V: Simd, E: Element>(a: &[f32], b: &[E]) -> f32 {
    let mut sum = V::splat(0.0);
    for at in (0..a.len()).step_by(LANES) {
        let a: V = E::rounded(load(a, at));
        sum = a.fma(load(b, at), sum);
    }
    sum.sum()
}

/// Rows of a task so that a task is some 4 thousand elements, a microsecond or two: tiny inputs make one task, which
/// runs on the caller's thread.
pub(crate) fn rows_of_task(width: usize) -> usize {
    (4096 / width.max(1)).max(1)
}

/// The rows of task `index`.
#[inline(always)]
pub(crate) fn rows(index: usize, rows_of_task: usize, all: usize) -> Range<usize> {
    index * rows_of_task..((index + 1) * rows_of_task).min(all)
}

/// Tokens of a partial sum of a vector's gradient (norm weights, biases).
pub(crate) const CHUNK: usize = 64;

/// The chunks of rows whose terms of a vector's gradient are summed from 0 before they are added to it, ascending: at
/// most [`CHUNK`] rows, from the first row of each segment. None: all `rows` are one segment.
pub(crate) fn chunks(segments: Option<&[u32]>, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let whole = [0, rows as u32];
    let ends = move |s: usize| segments.unwrap_or(&whole)[s] as usize;
    let count = segments.map_or(1, |segments| segments.len() - 1);
    (0..count).flat_map(move |s| {
        let end = ends(s + 1);
        (ends(s)..end).step_by(CHUNK).map(move |first| first..end.min(first + CHUNK))
    })
}

/// The segments of some rows of a batch, for a test that cuts it between two of them.
#[cfg(test)]
pub(crate) fn segments_of(segments: &[u32], rows: Range<usize>) -> Vec<u32> {
    let inside = segments.iter().filter(|&&s| (rows.start..=rows.end).contains(&(s as usize)));
    inside.map(|s| s - rows.start as u32).collect()
}
