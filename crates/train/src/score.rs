//! Log-probabilities of given completions under given weights, without gradients: those of a reference model, or of a
//! held-out set.

use crate::packing::{MicroBatch, PromptCompletion, micro_batches};
use crate::{Error, Result};
use kernels::{Context, Memory};
use model::net::{Rope, Scores, Tape, forward, score, score_forward};
use model::{Batch, BatchTensors, Capacity, ModelConfig, Weights};
use std::ops::Range;

/// Buffers for scoring. They grow to the largest micro-batch seen.
pub struct Scorer {
    memory: Memory,
    rope: Option<(usize, Rope)>,
    tape: Option<Tape>,
    max_tokens: usize,
    prefix_sharing: bool,
}

impl Scorer {
    /// A scorer that computes up to `max_tokens` rows at once (more for a group larger than that).
    pub fn new(memory: &Memory, max_tokens: usize, prefix_sharing: bool) -> Scorer {
        Scorer { memory: memory.clone(), rope: None, tape: None, max_tokens, prefix_sharing }
    }

    /// Takes the memory for micro-batches up to `capacity` and sequences up to `positions` now.
    pub fn reserve(&mut self, config: &ModelConfig, capacity: Capacity, positions: usize) {
        let old = self.tape.as_ref().map_or(Capacity::default(), Tape::capacity);
        if self.tape.is_none() || !old.holds(capacity) {
            self.tape = None; // free before taking
            self.tape = Some(Tape::forward_only(&self.memory, config, old.max(capacity)));
        }
        grow_rope(&mut self.rope, &self.memory, config, positions);
    }

    /// The score of the row that predicts each completion token of each sequence: the values of the states in which the
    /// tokens were chosen, by a model with a head of one score.
    pub fn values(
        &mut self,
        ctx: &Context,
        weights: &Weights,
        sequences: &[PromptCompletion<'_>],
    ) -> Result<Vec<Vec<f32>>> {
        let mut out = vec![Vec::new(); sequences.len()];
        self.each(&weights.config, sequences, |rope, micro, batch, tape| {
            let tensors = BatchTensors::new(ctx.memory(), batch);
            forward(ctx, weights, rope, &tensors, tape)?;
            score_forward(ctx, weights, &tensors, tape)?;
            let scores = tape.scores().to_vec_f32();
            for (i, range) in parts(micro, sequences) {
                out[i] = scores[range].to_vec();
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Log-probabilities and entropies of every completion token of each sequence at `temperature`.
    pub fn score(
        &mut self,
        ctx: &Context,
        weights: &Weights,
        sequences: &[PromptCompletion<'_>],
        temperature: f64,
    ) -> Result<Vec<Scores>> {
        let mut out = vec![Scores::default(); sequences.len()];
        self.each(&weights.config, sequences, |rope, micro, batch, tape| {
            let scores = score(ctx, weights, rope, batch, tape, temperature)?;
            for (i, range) in parts(micro, sequences) {
                out[i] =
                    Scores { logps: scores.logps[range.clone()].to_vec(), entropies: scores.entropies[range].to_vec() };
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Does `compute` with each micro-batch, in order.
    fn each(
        &mut self,
        config: &ModelConfig,
        sequences: &[PromptCompletion<'_>],
        mut compute: impl FnMut(&Rope, &MicroBatch, &Batch, &mut Tape) -> Result<()>,
    ) -> Result<()> {
        check(config, sequences)?;
        let micro = micro_batches(sequences, self.max_tokens, self.prefix_sharing);
        let capacity = micro.iter().fold(Capacity::default(), |c, m| c.max(m.capacity));
        self.reserve(config, capacity, longest(sequences));
        let (Some(tape), Some((_, rope))) = (&mut self.tape, &self.rope) else { unreachable!("reserved") };
        micro.iter().try_for_each(|micro| compute(rope, micro, &micro.batch(sequences, self.prefix_sharing), tape))
    }
}

/// The sequences of a micro-batch, each with the place of its tokens in what was computed.
fn parts<'a>(
    micro: &'a MicroBatch,
    sequences: &'a [PromptCompletion<'_>],
) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
    let mut start = 0;
    micro.scored(sequences).map(move |i| {
        let range = start..start + sequences[i].completion.len();
        start = range.end;
        (i, range)
    })
}

/// Makes `rope` reach `positions`.
pub(crate) fn grow_rope(rope: &mut Option<(usize, Rope)>, memory: &Memory, config: &ModelConfig, positions: usize) {
    if rope.as_ref().is_none_or(|(have, _)| *have < positions) {
        *rope = None;
        *rope = Some((positions, Rope::new(memory, config, positions)));
    }
}

/// Positions of the longest sequence; at least 1.
pub(crate) fn longest(sequences: &[PromptCompletion<'_>]) -> usize {
    sequences.iter().map(|s| s.prompt.len() + s.completion.len()).max().unwrap_or(0).max(1)
}

/// Refuses what the model has no place for.
pub(crate) fn check(config: &ModelConfig, sequences: &[PromptCompletion<'_>]) -> Result<()> {
    for (index, sequence) in sequences.iter().enumerate() {
        if sequence.prompt.is_empty() {
            let message = "the prompt has no token; give it at least the one that starts a text".into();
            return Err(Error::Sample { index, message });
        }
        let ids = sequence.prompt.iter().chain(sequence.completion);
        if let Some(id) = ids.copied().find(|&id| id as usize >= config.vocab_size) {
            let message = format!("token {id} is not in the vocabulary of {}", config.vocab_size);
            return Err(Error::Sample { index, message });
        }
    }
    Ok(())
}
