//! The part of the trained parameters that a rank updates.
//!
//! The elements of all tensors, in order, are cut into units: the chunks whose squares the gradient norm sums, or whole
//! tensors whose update needs all of their elements. Each rank has consecutive units, of about as many elements as the
//! others.

use kernels::ops::grad_norm::CHUNK;
use kernels::{Tensor, View};
use model::weights::{ParamSpec, Params};
use std::ops::Range;

/// For each tensor of the trained parameters, the elements that a rank updates, in the order of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part(Vec<Range<usize>>);

impl Part {
    /// All elements of `trained`, in which frozen parameters have none.
    pub(crate) fn whole(trained: &Params) -> Part {
        Part(trained.tensors().into_iter().map(|tensor| 0..tensor.len()).collect())
    }

    /// The part of rank `rank` of `world_size`. `is_unit` selects the tensors that are not cut.
    pub(crate) fn of(trained: &Params, is_unit: impl Fn(&ParamSpec) -> bool, rank: usize, world_size: usize) -> Part {
        let tensors: Vec<(usize, bool)> =
            trained.tensors().iter().zip(trained.specs()).map(|(tensor, spec)| (tensor.len(), is_unit(spec))).collect();
        Part::from_lengths(&tensors, rank, world_size)
    }

    /// As [`of`](Self::of), for tensors with these numbers of elements, of which some are not cut.
    fn from_lengths(tensors: &[(usize, bool)], rank: usize, world_size: usize) -> Part {
        let all = tensors.iter().map(|(len, _)| len).sum::<usize>().max(1);
        let mut before = 0;
        let mut range_of = |&(len, is_unit): &(usize, bool)| {
            let step = if is_unit { len.max(1) } else { CHUNK };
            let unit_of = |start: usize| start..len.min(start + step);
            // A unit belongs to the rank in whose equal part its middle is.
            let owner = |unit: &Range<usize>| (2 * before + unit.start + unit.end) * world_size / (2 * all);
            let own = (0..len).step_by(step).map(unit_of).filter(|unit| owner(unit) == rank);
            let range = own.reduce(|first, next| first.start..next.end).unwrap_or(0..0);
            before += len;
            range
        };
        Part(tensors.iter().map(&mut range_of).collect())
    }

    /// The elements of each tensor.
    pub(crate) fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// Views of the part's elements of `trained`, tensor by tensor.
    pub(crate) fn views<'a>(&self, trained: &'a Params) -> Vec<View<'a>> {
        trained.tensors().into_iter().zip(&self.0).map(|(tensor, range)| tensor.elements(range.clone())).collect()
    }

    /// The number of the part's elements that `tensors`, whose order is that of the parameters, have.
    pub(crate) fn elements<'a>(&self, tensors: impl IntoIterator<Item = &'a Tensor>) -> usize {
        tensors.into_iter().zip(&self.0).filter(|(tensor, _)| !tensor.is_empty()).map(|(_, range)| range.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_consecutive_chunks_of_about_the_same_size_and_cut_no_unit() {
        let tensors = [(10 * CHUNK + 5, false), (64, false), (0, false), (4 * CHUNK + 100, true), (7 * CHUNK, false)];
        let all: usize = tensors.iter().map(|(len, _)| len).sum();
        for world_size in [1, 2, 4, 8, 64] {
            let parts: Vec<Part> = (0..world_size).map(|rank| Part::from_lengths(&tensors, rank, world_size)).collect();
            for (i, (len, is_unit)) in tensors.iter().enumerate() {
                let mut end = 0;
                for range in parts.iter().map(|part| &part.0[i]).filter(|range| !range.is_empty()) {
                    assert_eq!(range.start, end, "{world_size} {i}");
                    assert!(!is_unit || range.len() == *len);
                    assert!(range.end == *len || range.end.is_multiple_of(CHUNK));
                    end = range.end;
                }
                assert_eq!(end, *len, "every element belongs to one part");
            }
            // The chunks of later ranks come after those of earlier ones, so their sums need no sorting.
            let firsts = |part: &Part| part.0.iter().position(|range| !range.is_empty()).map(|i| (i, part.0[i].start));
            assert!(parts.iter().filter_map(firsts).is_sorted());
            let sizes = parts.iter().map(|part| part.0.iter().map(Range::len).sum::<usize>());
            let most = sizes.max().unwrap();
            assert!(most <= all / world_size + 5 * CHUNK, "{world_size}: {most} of {all}");
        }
    }
}
