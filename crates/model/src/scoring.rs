//! Scores given completions without gradients: log-probabilities, entropies and values, for a reference model, a value
//! or reward model, or a held-out set.

use crate::net::{Rope, Scores, Tape, forward, most_likely, score, score_forward};
use crate::packing::{
    MicroBatch, PromptCompletion, PromptGroup, check_groups, followed, longest, micro_batches, sequences,
};
use crate::weights::ModelView;
use crate::{Batch, BatchTensors, Capacity, GroupSegment, ModelConfig, Result, StopCheck, Tokenizer};
use kernels::ops::linear;
use kernels::{Context, DType, Matrix, Memory, Tensor};

/// Maximum size of the logits that [`Scorer::logits`] keeps in memory at once (but at least one row).
const LOGITS_BYTES: usize = 16 << 20;

/// Number of rows of the head's matrix that are read at once.
const ROWS_AT_ONCE: usize = 1024;

/// Scores completions. Its buffers grow to the largest micro-batch seen.
pub struct Scorer {
    memory: Memory,
    rope: Option<(usize, Rope)>,
    tape: Option<Tape>,
    max_tokens: usize,
    prefix_sharing: bool,
    stop: StopCheck,
}

impl Scorer {
    /// A scorer that computes micro-batches of up to `max_tokens` rows; a larger group gets a separate micro-batch.
    pub fn new(memory: &Memory, max_tokens: usize, prefix_sharing: bool) -> Scorer {
        let stop = StopCheck::default();
        Scorer { memory: memory.clone(), rope: None, tape: None, max_tokens, prefix_sharing, stop }
    }

    /// Makes scoring check `stop` before each layer. After a stop request, scoring returns
    /// [`Error::Stopped`](crate::Error::Stopped).
    pub fn stop_with(&mut self, stop: impl Into<StopCheck>) {
        self.stop = stop.into();
        self.tape = self.tape.take().map(|tape| tape.stop_with(self.stop.clone()));
    }

    /// Allocates memory now for micro-batches up to `capacity` and sequences up to `positions` tokens.
    pub fn reserve(&mut self, config: &ModelConfig, capacity: Capacity, positions: usize) {
        let old = self.tape.as_ref().map_or(Capacity::default(), Tape::capacity);
        if self.tape.is_none() || !old.holds(capacity) {
            self.tape = None; // free before allocating
            let tape = Tape::forward_only(&self.memory, config, old.max(capacity));
            self.tape = Some(tape.stop_with(self.stop.clone()));
        }
        grow_rope(&mut self.rope, &self.memory, config, positions);
    }

    /// Values of the completion tokens of each sequence, computed by a model with a score head of one label. The value
    /// of a token is that of the state in which the token was chosen. Consecutive sequences with equal prompts are
    /// computed as one group.
    pub fn values<'a>(
        &mut self,
        ctx: &Context,
        model: impl Into<ModelView<'a>>,
        sequences: &[PromptCompletion<'_>],
    ) -> Result<Vec<Vec<f32>>> {
        self.values_of_groups(ctx, model, &PromptGroup::by_prompt(sequences))
    }

    /// Like [`values`](Self::values), for groups that the caller has formed. The results are in the order of the
    /// sequences over all groups.
    pub fn values_of_groups<'a>(
        &mut self,
        ctx: &Context,
        model: impl Into<ModelView<'a>>,
        groups: &[PromptGroup<'_>],
    ) -> Result<Vec<Vec<f32>>> {
        let model = model.into();
        let mut out = vec![Vec::new(); sequences(groups).count()];
        self.each(model.config(), groups, |rope, micro, batch, tape| {
            let tensors = BatchTensors::new(ctx.memory(), batch);
            forward(ctx, model, rope, &tensors, tape)?;
            score_forward(ctx, model, &tensors, tape)?;
            let scores = tape.scores().to_vec_f32();
            for (i, range) in micro.scored().zip(&batch.scores_of_branches) {
                out[i] = scores[range.clone()].to_vec();
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// The score of each sequence, read at its last token, computed by a model with a score head of one label.
    /// Consecutive sequences with equal prompts are computed as one group.
    pub fn sequence_scores<'a>(
        &mut self,
        ctx: &Context,
        model: impl Into<ModelView<'a>>,
        sequences: &[PromptCompletion<'_>],
    ) -> Result<Vec<f32>> {
        let followed: Vec<Vec<u32>> = sequences.iter().map(|s| followed(s.prompt, s.completion)).collect();
        let both = sequences.iter().zip(&followed);
        let sequences: Vec<_> = both.map(|(s, completion)| PromptCompletion { prompt: s.prompt, completion }).collect();
        let values = self.values(ctx, model, &sequences)?;
        Ok(values.iter().map(|values| values.last().copied().unwrap_or(f32::NAN)).collect())
    }

    /// Log-probabilities and entropies of every completion token of each sequence, at `temperature`. Consecutive
    /// sequences with equal prompts are computed as one group.
    pub fn score<'a>(
        &mut self,
        ctx: &Context,
        model: impl Into<ModelView<'a>>,
        sequences: &[PromptCompletion<'_>],
        temperature: f64,
    ) -> Result<Vec<Scores>> {
        self.score_groups(ctx, model, &PromptGroup::by_prompt(sequences), temperature)
    }

    /// Like [`score`](Self::score), for groups that the caller has formed. The results are in the order of the
    /// sequences over all groups.
    pub fn score_groups<'a>(
        &mut self,
        ctx: &Context,
        model: impl Into<ModelView<'a>>,
        groups: &[PromptGroup<'_>],
        temperature: f64,
    ) -> Result<Vec<Scores>> {
        let model = model.into();
        let mut out = vec![Scores::default(); sequences(groups).count()];
        self.each(model.config(), groups, |rope, micro, batch, tape| {
            let Scores { logps, entropies } = score(ctx, model, rope, batch, tape, temperature)?;
            for (i, range) in micro.scored().zip(&batch.scores_of_branches) {
                let part = |all: &[f32]| all[range.clone()].to_vec();
                out[i] = Scores { logps: part(&logps), entropies: part(&entropies) };
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Log-probabilities and entropies of every completion token of each sequence. For each token the result also has
    /// the mean logit and whether the token is the most likely one. The logits are computed twice. Consecutive
    /// sequences with equal prompts are computed as one group.
    pub fn compare<'a>(
        &mut self,
        ctx: &Context,
        model: impl Into<ModelView<'a>>,
        sequences: &[PromptCompletion<'_>],
    ) -> Result<Vec<Compared>> {
        let (model, groups) = (model.into(), PromptGroup::by_prompt(sequences));
        let (mean, memory) = (mean_row(model.head()?), self.memory.clone());
        let mut out = vec![Compared::default(); sequences.len()];
        self.each(model.config(), &groups, |rope, micro, batch, tape| {
            let Scores { logps, entropies } = score(ctx, model, rope, batch, tape, 1.0)?;
            let likeliest = most_likely(ctx, model, &memory, tape)?;
            let hidden = tape.scored_hidden().to_vec_f32();
            for (i, range) in micro.scored().zip(&batch.scores_of_branches) {
                let part = |all: &[f32]| all[range.clone()].to_vec();
                let rows = hidden[range.start * mean.len()..range.end * mean.len()].chunks_exact(mean.len());
                out[i] = Compared {
                    scores: Scores { logps: part(&logps), entropies: part(&entropies) },
                    is_likeliest: range.clone().map(|at| likeliest[at] == batch.targets[at]).collect(),
                    mean_logits: rows.map(|row| row.iter().zip(&mean).map(|(&x, w)| f64::from(x) * w).sum()).collect(),
                };
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Computes the logits `[T, V]` of all T tokens of each sequence over the vocabulary of V tokens. `take` is called
    /// with the index of the sequence and its next rows; only a few rows are in memory at once.
    pub fn logits<'a>(
        &mut self,
        ctx: &Context,
        model: impl Into<ModelView<'a>>,
        sequences: &[&[u32]],
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let model = model.into();
        let (config, head) = (model.config(), model.head()?);
        let groups: Vec<_> = sequences.iter().map(|&prompt| PromptGroup { prompt, completions: vec![&[]] }).collect();
        check_groups(config, &groups)?;
        let rows_at_once = (LOGITS_BYTES / (4 * head.rows())).max(1);
        let workspace = self.memory.part("workspace");
        let capacities = sequences.iter().map(|ids| Capacity::for_group(ids.len(), &[], true));
        self.reserve(config, capacities.fold(Capacity::default(), Capacity::max), longest(&groups));
        self.memory.check()?;
        let (Some(tape), Some((_, rope))) = (&mut self.tape, &self.rope) else { unreachable!("reserved") };
        for (i, &prefix) in sequences.iter().enumerate() {
            let batch = Batch::new(&[GroupSegment { prefix, branches: &[] }], true);
            forward(ctx, model, rope, &BatchTensors::new(ctx.memory(), &batch), tape)?;
            for first in (0..prefix.len()).step_by(rows_at_once) {
                let rows = first..prefix.len().min(first + rows_at_once);
                let mut logits = Tensor::zeros(&workspace, &[rows.len(), head.rows()], DType::F32);
                let (x, y) = (tape.hidden().rows(rows), logits.view_mut());
                linear::forward(ctx, linear::Forward { x, w: head, bias: None, y, accumulate: false })?;
                take(i, &logits.to_vec_f32());
            }
        }
        Ok(())
    }

    /// Calls `compute` for each micro-batch, in order.
    fn each(
        &mut self,
        config: &ModelConfig,
        groups: &[PromptGroup<'_>],
        mut compute: impl FnMut(&Rope, &MicroBatch<'_>, &Batch, &mut Tape) -> Result<()>,
    ) -> Result<()> {
        check_groups(config, groups)?;
        let micro = micro_batches(groups, self.max_tokens, self.prefix_sharing);
        let capacity = micro.iter().fold(Capacity::default(), |c, m| c.max(m.capacity()));
        self.reserve(config, capacity, longest(groups));
        self.memory.check()?;
        let (Some(tape), Some((_, rope))) = (&mut self.tape, &self.rope) else { unreachable!("reserved") };
        micro.iter().try_for_each(|micro| compute(rope, micro, &micro.batch(self.prefix_sharing), tape))
    }
}

/// A comparison of a sequence's completion tokens with the other tokens of the vocabulary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Log-probabilities and entropies of the completion tokens.
    pub scores: Scores,
    /// Whether each completion token is the most likely token. Ties go to the lowest id.
    pub is_likeliest: Vec<bool>,
    /// The mean logit over the vocabulary at each completion token.
    pub mean_logits: Vec<f64>,
}

/// The mean of the rows of a head's matrix `[V, H]`. Its dot product with a hidden state is the mean logit.
fn mean_row(head: &Matrix) -> Vec<f64> {
    let mut sums = vec![0.0; head.cols()];
    for first in (0..head.rows()).step_by(ROWS_AT_ONCE) {
        let rows = head.unpack_rows(first..head.rows().min(first + ROWS_AT_ONCE));
        for row in rows.chunks_exact(head.cols()) {
            sums.iter_mut().zip(row).for_each(|(sum, &w)| *sum += f64::from(w));
        }
    }
    sums.into_iter().map(|sum| sum / head.rows() as f64).collect()
}

/// Replaces the rope tables with larger ones if they have fewer than `positions` positions.
pub fn grow_rope(rope: &mut Option<(usize, Rope)>, memory: &Memory, config: &ModelConfig, positions: usize) {
    if rope.as_ref().is_none_or(|(have, _)| *have < positions) {
        *rope = None;
        *rope = Some((positions, Rope::new(memory, config, positions)));
    }
}

/// The padding token that TRL gives to a reward model: the tokenizer's padding token, or else its end token.
/// `config.json` is only the fallback.
pub fn padding_token(tokenizer: &Tokenizer, config: &ModelConfig) -> Option<u32> {
    tokenizer.pad_id().or_else(|| tokenizer.eos_id()).or(config.pad_token_id)
}

/// Removes padding tokens from the end. transformers scores the last token that is not padding, and the end token may
/// be the padding token.
pub fn strip_padding(ids: &mut Vec<u32>, pad: Option<u32>) {
    while ids.last().copied().is_some_and(|id| Some(id) == pad) {
        ids.pop();
    }
}

#[cfg(test)]
mod tests;
