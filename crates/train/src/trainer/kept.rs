//! Micro-batches whose activations the engine kept while it generated their tokens. A copy replaces their forward pass.
//!
//! Kept activations have the same bits as a forward pass. To verify this in every run, one group in 64 is a separate
//! micro-batch: its forward pass is computed, and each kept row is compared with it.

use super::TrainerConfig;
use super::checked::is_checked;
use super::passes::{Compute, ForwardSums, Outputs};
use crate::Result;
use crate::optimizer_batch::Sequence;
use kernels::Tensor;
use model::kept::{KeptRollout, KeptSequence};
use model::net::{self, HeadColumns, KeptRows};
use model::packing::micro_batches_by;
use model::weights::Version;
use model::{Batch, BatchTensors, GroupId, MicroBatch, PromptGroup};

/// How the activations of a micro-batch get onto the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A forward pass computes them.
    Computed,
    /// They are copied from the rows that the engine kept.
    Kept,
    /// A forward pass computes them, and the kept rows of the group with this index are compared with them.
    Compared(usize),
}

/// A micro-batch, and the rows of its sequences that the engine kept.
pub(crate) struct Planned<'a> {
    pub(crate) micro: MicroBatch<'a>,
    /// The share of the gradient to which all groups of the micro-batch belong.
    pub(crate) share: usize,
    pub(crate) origin: Origin,
    /// The rows of each scored sequence; empty if the micro-batch is only computed.
    rows: Vec<KeptSequence<'a>>,
}

impl Compute<'_> {
    /// Splits `groups` into micro-batches. A micro-batch never mixes groups of different shares, or groups whose rows
    /// were `kept` with other groups. `share` maps a group's index to its share. For a share of another rank,
    /// `elsewhere` returns whether that rank has kept the rows of a group; otherwise it returns `None`.
    pub(crate) fn plan<'a>(
        &self,
        config: &TrainerConfig,
        sequences: &[Sequence<'_>],
        groups: &'a [PromptGroup<'a>],
        kept: Option<&'a KeptRollout>,
        share: impl Fn(usize) -> usize,
        elsewhere: impl Fn(usize, GroupId) -> Option<bool>,
    ) -> Vec<Planned<'a>> {
        let sampled_with = (self.model.version(), config.temperature);
        let find = |sequence: &Sequence<'_>| {
            let sample = sequence.source.sample()?;
            kept?.find(sampled_with, sample.group, &sequence.prompt.ids, &sequence.completion)
        };
        let found: Vec<Option<KeptSequence<'a>>> = sequences.iter().map(find).collect();
        let mut first = 0;
        let origins: Vec<Origin> = groups
            .iter()
            .enumerate()
            .map(|(place, group)| {
                let own = first..first + group.completions.len();
                first = own.end;
                let is_here = own.clone().all(|i| found[i].is_some() || sequences[i].completion.is_empty());
                let sample = |i: usize| sequences[i].source.sample();
                let is_there = |i: usize| elsewhere(share(place), sample(i)?.group);
                // Neighbouring groups with the same prompt are one group here.
                let is_kept = match is_there(own.start) {
                    None => is_here,
                    Some(_) => own.clone().all(|i| is_there(i) == Some(true)),
                };
                match sample(own.start).filter(|_| is_kept) {
                    Some(sample) if is_checked(sample.group) => Origin::Compared(place),
                    Some(_) => Origin::Kept,
                    None => Origin::Computed,
                }
            })
            .collect();
        let (max_tokens, sharing) = (config.max_tokens_per_micro_batch, config.prefix_sharing);
        let planned = |((share, origin), micro): ((usize, Origin), MicroBatch<'a>)| {
            let rows = micro.scored().filter_map(|i| found[i]).filter(|_| origin != Origin::Computed).collect();
            Planned { micro, share, origin, rows }
        };
        let kind = |place: usize| (share(place), origins[place]);
        micro_batches_by(groups, max_tokens, sharing, kind).into_iter().map(planned).collect()
    }
}

impl<'a> Planned<'a> {
    /// A micro-batch that a rank computes for rank 0, without empty completions, each of which belongs to one of these
    /// `groups`. If all rows of its sequences are `kept`, they are used; otherwise the micro-batch is computed.
    pub(super) fn kept_or_computed(
        micro: MicroBatch<'a>,
        share: usize,
        (groups, compares): (&[GroupId], bool),
        (kept, sampled_with): (Option<&'a KeptRollout>, (Version, f64)),
    ) -> Planned<'a> {
        let find = |kept: &'a KeptRollout| {
            let sequences =
                micro.groups().flat_map(|(group, _)| group.completions.iter().map(|own| (group.prompt, own)));
            sequences.zip(groups).map(|((prompt, own), &group)| kept.find(sampled_with, group, prompt, own)).collect()
        };
        let found: Option<Vec<_>> = kept.filter(|_| groups.len() == micro.scored().count()).and_then(find);
        let origin = match &found {
            None => Origin::Computed,
            Some(_) if compares => Origin::Compared(0),
            Some(_) => Origin::Kept,
        };
        Planned { micro, share, origin, rows: found.unwrap_or_default() }
    }

    /// The row of the store for each row of the packed micro-batch.
    fn slots(&self, packed: &Batch) -> Vec<u32> {
        let rows = packed.branches_of_rows.iter().zip(&packed.positions);
        rows.map(|(&branch, &position)| self.rows[branch as usize].row(position as usize)).collect()
    }

    /// Computes the micro-batch, or restores it from the rows that the engine kept; or does both and compares them, if
    /// the micro-batch is to be compared. The decoder's activations are then on the tape, unless the results name the
    /// rows of the store from which the backward pass restores each layer.
    pub(crate) fn forward(
        &self,
        compute: &mut Compute<'_>,
        packed: &Batch,
        tensors: &BatchTensors,
        kept: Option<&KeptRollout>,
        (temperature, is_of_scores): (f64, bool),
        sums: &mut ForwardSums,
    ) -> Result<Outputs> {
        let Some(store) = kept.filter(|_| self.origin != Origin::Computed).map(|kept| &kept.store) else {
            return compute.forward(tensors, temperature, is_of_scores);
        };
        let memory = compute.passes.memory().part("workspace");
        let slots = self.slots(packed);
        let rows = slots.len() as u64;
        let slots = Tensor::from_u32(&memory, &[slots.len()], &slots);
        let kept = KeptRows { store, slots: slots.view() };
        let mut head = HeadColumns::default();
        self.rows.iter().for_each(|sequence| sequence.append_to(&mut head));
        if self.origin == Origin::Kept {
            let (tape, _) = compute.passes.parts();
            net::restore(compute.ctx, kept, tensors, tape)?;
            net::head_restore(compute.ctx, &head, tensors, net::inv_temperature(temperature), tape)?;
            sums.kept_rows += rows;
            return Ok(Outputs { logps: head.logps, entropies: head.entropies, slots: Some(slots) });
        }
        let outputs = compute.forward(tensors, temperature, is_of_scores)?;
        let (tape, _) = compute.passes.parts();
        let mut differs = net::differing_rows(compute.ctx, &memory, kept, tape)?;
        let lse = tape.lse().to_vec_f32();
        for (i, &row) in packed.score_rows.iter().enumerate() {
            let (computed, kept) = ([lse[i], outputs.entropies[i]], [head.lse[i], head.entropies[i]]);
            differs[row as usize] |= computed.map(f32::to_bits) != kept.map(f32::to_bits);
        }
        sums.compared_rows += rows;
        sums.mismatched_rows += differs.into_iter().filter(|&differs| differs).count() as u64;
        Ok(outputs)
    }
}
