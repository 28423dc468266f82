//! Log-probabilities of given completions under given weights, without gradients: those of a reference model, or of a
//! held-out set.

use crate::packing::{PromptCompletion, micro_batches};
use crate::{Error, Result};
use kernels::{Context, Memory};
use model::net::{Rope, Scores, Tape, score};
use model::{Capacity, ModelConfig, Weights};

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

    /// Log-probabilities and entropies of every completion token of each sequence at `temperature`.
    pub fn score(
        &mut self,
        ctx: &Context,
        weights: &Weights,
        sequences: &[PromptCompletion<'_>],
        temperature: f64,
    ) -> Result<Vec<Scores>> {
        check(&weights.config, sequences)?;
        let micro = micro_batches(sequences, self.max_tokens, self.prefix_sharing);
        let capacity = micro.iter().fold(Capacity::default(), |c, m| c.max(m.capacity));
        self.reserve(&weights.config, capacity, longest(sequences));
        let (Some(tape), Some((_, rope))) = (&mut self.tape, &self.rope) else { unreachable!("reserved") };
        let mut out = vec![Scores::default(); sequences.len()];
        for micro in micro {
            let batch = micro.batch(sequences, self.prefix_sharing);
            let scores = score(ctx, weights, rope, &batch, tape, temperature)?;
            let mut start = 0;
            for i in micro.scored(sequences) {
                let range = start..start + sequences[i].completion.len();
                out[i] = Scores {
                    logps: scores.logps[range.clone()].to_vec(),
                    entropies: scores.entropies[range.clone()].to_vec(),
                };
                start = range.end;
            }
        }
        Ok(out)
    }
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
