//! The depth of a matmul on tiles, walked in steps of at most 32 terms.

use crate::simd::tiles::{DEPTH, SIDE};
use std::ops::Range;

/// Rows of one or two tiles.
pub(super) const FEW: usize = 2 * SIDE;

/// Terms of a sum, in steps of at most 32 that no segment's end lies inside.
pub(super) enum Steps {
    /// One segment.
    One(usize),
    /// The terms of each step.
    Segments(Vec<Range<usize>>),
}

impl Steps {
    /// `segments` are the first term of each, and the number of terms at last.
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
    /// Terms of step `step`.
    pub(super) fn terms(&self, step: usize) -> Range<usize> {
        match self {
            Steps::One(depth) => step * DEPTH..(*depth).min((step + 1) * DEPTH),
            Steps::Segments(steps) => steps[step].clone(),
        }
    }
}

/// The terms of each step, for segments from these offsets.
pub(crate) fn steps(offsets: &[u32]) -> impl Iterator<Item = Range<usize>> + use<'_> {
    offsets.windows(2).flat_map(|ends| {
        let (start, end) = (ends[0] as usize, ends[1] as usize);
        (start..end).step_by(DEPTH).map(move |at| at..end.min(at + DEPTH))
    })
}
