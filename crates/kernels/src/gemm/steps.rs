//! Splits the depth of a matmul on AMX tiles (the terms of each sum) into steps of at most 32 terms.

use crate::simd::tiles::{DEPTH, SIDE};
use std::ops::Range;

/// The rows of two tiles, 32. A matmul with at most this many rows is treated as one with few rows.
pub(super) const FEW: usize = 2 * SIDE;

/// The terms of a sum in steps of at most 32. No step crosses the end of a segment.
pub(super) enum Steps {
    /// One segment with this number of terms.
    One(usize),
    /// Several segments: the range of terms of each step.
    Segments(Vec<Range<usize>>),
}

impl Steps {
    /// Splits `depth` terms into steps. `segments` contains the first term of each segment, followed by the number of
    /// terms.
    pub(super) fn new(depth: usize, segments: Option<&[u32]>) -> Steps {
        match segments {
            Some(offsets) if offsets.len() > 2 => Steps::Segments(steps(offsets).collect()),
            _ => Steps::One(depth),
        }
    }
    pub(super) fn len(&self) -> usize {
        match self {
            Steps::One(depth) => depth.div_ceil(DEPTH),
            Steps::Segments(steps) => steps.len(),
        }
    }
    /// Range of the terms of step `step`.
    pub(super) fn terms(&self, step: usize) -> Range<usize> {
        match self {
            Steps::One(depth) => step * DEPTH..(*depth).min((step + 1) * DEPTH),
            Steps::Segments(steps) => steps[step].clone(),
        }
    }
}

/// Iterates over the ranges of terms of the steps, for segments with these offsets.
pub(crate) fn steps(offsets: &[u32]) -> impl Iterator<Item = Range<usize>> + use<'_> {
    offsets.windows(2).flat_map(|ends| {
        let (start, end) = (ends[0] as usize, ends[1] as usize);
        (start..end).step_by(DEPTH).map(move |at| at..end.min(at + DEPTH))
    })
}
