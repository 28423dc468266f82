//! Skips groups whose gradient is known in advance to be 0, because no token in the loss has a non-zero advantage.
//! Neither forward nor backward pass is computed for their completions and prompt.
//!
//! Only whole groups are skipped. Sums over tokens are cut into chunks that begin at the first row of a group, so the
//! contributions of other groups, and the total, keep their bits (docs/arithmetic.md, "Groups that are left out"). The
//! counts by which losses divide, and the indices that determine dropout noise, remain those of the whole batch.
//!
//! The log-probabilities of skipped groups are not compared with the sampler's. To detect differences nevertheless, the
//! forward pass of one skipped group in 64 (chosen by its index in the training run) is computed for the comparison
//! only.

use super::checked::is_checked;
use super::passes::{LossBatch, Measured};
use crate::loss::Normalizer;
use crate::optimizer_batch::Sequence;
use kernels::mean::over;
use model::columns::ENTROPIES;
use model::{PromptGroup, Updates};
use std::borrow::Cow;

/// The groups of an optimizer batch that are skipped.
#[derive(Default)]
pub(crate) struct Skipped {
    /// Indices of the skipped groups among all groups, ascending.
    pub(super) groups: Vec<usize>,
    /// Indices of the skipped groups whose forward pass is computed anyway, to compare log-probabilities.
    pub(super) checked: Vec<usize>,
    /// Indices of the sequences of skipped groups that have a completion, ascending.
    pub(crate) sequences: Vec<usize>,
}

impl Skipped {
    /// Finds the groups to skip. Each of `groups` consists of consecutive `sequences` that share a prompt.
    pub(crate) fn of(groups: &[PromptGroup<'_>], sequences: &[Sequence<'_>]) -> Skipped {
        let (mut skipped, mut first) = (Skipped::default(), 0);
        for (place, group) in groups.iter().enumerate() {
            let own = first..first + group.completions.len();
            first = own.end;
            let computed: Vec<usize> = own.clone().filter(|&i| !sequences[i].completion.is_empty()).collect();
            if computed.is_empty() || !own.clone().all(|i| has_no_gradient(&sequences[i])) {
                continue;
            }
            skipped.groups.push(place);
            skipped.sequences.extend(computed);
            let group = sequences[own.start].source.sample().map(|sample| sample.group);
            if group.is_some_and(is_checked) {
                skipped.checked.push(place);
            }
        }
        skipped
    }

    /// The groups to compute. At the index of each skipped group is a placeholder without completions.
    pub(crate) fn others<'g, 'a>(&self, groups: &'g [PromptGroup<'a>]) -> Cow<'g, [PromptGroup<'a>]> {
        if self.groups.is_empty() {
            Cow::Borrowed(groups)
        } else {
            Cow::Owned(only(groups, |place| self.groups.binary_search(&place).is_err()))
        }
    }
}

pub(super) fn only<'a>(groups: &[PromptGroup<'a>], keeps: impl Fn(usize) -> bool) -> Vec<PromptGroup<'a>> {
    let places = groups.iter().enumerate();
    places.map(|(place, group)| if keeps(place) { group.clone() } else { group.left_out() }).collect()
}

/// Whether no token of the sequence is in the loss with a non-zero advantage. A NaN advantage counts as non-zero, so
/// that it makes the loss non-finite.
fn has_no_gradient(Sequence { source, mask, .. }: &Sequence<'_>) -> bool {
    let Some(sample) = source.sample() else { return false };
    mask.iter().enumerate().all(|(t, &m)| !m || sample.advantage.at(t) == 0.0)
}

impl LossBatch<'_> {
    /// Adds skipped sequences with an index below `end` to the metrics, so that sums run in the order of all sequences.
    pub(crate) fn count_skipped(&self, end: usize, version: Updates, measured: &mut Measured) {
        let (before, after) = self.skipped.get().split_at(self.skipped.get().partition_point(|&i| i < end));
        self.skipped.set(after);
        for Sequence { source, mask, .. } in before.iter().map(|&i| &self.sequences[i]) {
            let Some(sample) = source.sample() else { continue };
            // With the same weights, the sampler recorded the values that this pass would compute.
            let on_policy = sample.is_of_version(version);
            match sample.columns.f32(ENTROPIES).filter(|_| on_policy) {
                Some(entropies) => {
                    let used = entropies.iter().zip(mask).filter(|(_, m)| **m);
                    measured.entropy += used.map(|(e, _)| f64::from(*e)).sum::<f64>();
                }
                None => measured.unknown_entropies += mask.iter().filter(|&&m| m).count(),
            }
            self.loss.evaluate_skipped(self.normalizer, sample, mask, on_policy, &mut measured.sums);
        }
    }
}

impl Measured {
    /// Mean entropy over the tokens in the loss whose entropy is known; `None` if there are none.
    pub(crate) fn mean_entropy(&self, normalizer: &Normalizer) -> Option<f64> {
        over(self.entropy, (normalizer.tokens - self.unknown_entropies) as u64)
    }
}
