//! The sampler draws the next token of every sequence whose last row was computed.
//!
//! Random numbers are determined by the seed, the group, the index of the completion and the index of the token. So a
//! token does not depend on the other draws of the step.

use crate::Result;
use crate::request::SamplingParams;
use crate::reuse::reused;
use crate::scheduler::Scheduler;
use crate::sequence::{Draw, Sampled, TokenRecord};
use kernels::ops::{rows, sample};
use kernels::{Context, DType, Memory, Tensor, View};
use model::batch::InferRows;
use model::{GroupId, ModelConfig, ModelView};

/// Buffers of a fixed size for sampling. Each call uses the first rows of every buffer.
pub(crate) struct SamplerBuffers {
    /// The maximum number of rows in one call.
    pub(crate) capacity: usize,
    hidden: Tensor,
    /// The sampled ids, followed by the bits of their log-probabilities, log-sum-exps and entropies. They are in one
    /// tensor, so that a single copy transfers all of them to the host.
    sampled: Tensor,
    /// The parameters of each row. Empty between calls.
    params: Vec<sample::RowParams<'static>>,
    /// The contents of `sampled`, on the host.
    words: Vec<u32>,
    records: Vec<TokenRecord>,
}

/// The number of words in [`SamplerBuffers::sampled`] for each row.
const WORDS: usize = 4;

impl SamplerBuffers {
    pub(crate) fn new(memory: &Memory, model: &ModelConfig, capacity: usize) -> SamplerBuffers {
        let memory = memory.part("workspace");
        SamplerBuffers {
            capacity,
            hidden: Tensor::zeros(&memory, &[capacity, model.hidden_size], model.compute),
            sampled: Tensor::zeros(&memory, &[WORDS * capacity], DType::U32),
            params: Vec::with_capacity(capacity),
            words: vec![0; WORDS * capacity],
            records: vec![TokenRecord::default(); capacity],
        }
    }

    /// Samples a token for each draw. `hidden` (`[rows, hidden size]`) is the model's output for the rows of the step,
    /// and `step` has the indices of the rows to sample from.
    pub(crate) fn sample(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        hidden: View<'_>,
        step: &InferRows,
        scheduler: &Scheduler,
        draws: &[Draw],
    ) -> Result<Sampled<'_>> {
        let (n, rows) = (draws.len(), step.sampled());
        rows::gather(ctx, rows::Gather { x: hidden, rows, out: self.hidden.rows_mut(0..n) })?;
        let mut params: Vec<sample::RowParams<'_>> = std::mem::take(&mut self.params);
        params.extend(self::params(scheduler, draws));
        let (ids, columns) = self.sampled.rows_mut(0..WORDS * n).split_rows(n);
        let (logps, columns) = columns.reinterpret(DType::F32).split_rows(n);
        let (lse, entropies) = columns.split_rows(n);
        sample::forward(
            ctx,
            sample::Forward {
                hidden: self.hidden.rows(0..n),
                weight: model.head()?,
                rows: &params,
                packed: Some(step.draws()),
                ids,
                logps,
                truncated_logps: None,
                lse: Some(lse),
                entropies: Some(entropies),
            },
        )?;
        self.params = reused(params);
        self.sampled.rows(0..WORDS * n).copy_to_u32(&mut self.words[..WORDS * n]);
        let float = |column: usize, i: usize| f32::from_bits(self.words[column * n + i]);
        for (i, record) in self.records[..n].iter_mut().enumerate() {
            *record = TokenRecord { logp: float(1, i), lse: float(2, i), entropy: float(3, i) };
        }
        Ok(Sampled { ids: &self.words[..n], records: &self.records[..n], alternatives: &[] })
    }
}

impl SamplingParams {
    /// Whether sampling needs full rows of logits, because of truncation or a penalty. This needs more device memory.
    pub fn needs_logits(&self) -> bool {
        row_params(self, GroupId(0), 0, &[], 0).needs_logits()
    }
}

/// The sampling parameters for each draw.
pub(crate) fn params<'a>(
    scheduler: &'a Scheduler,
    draws: &'a [Draw],
) -> impl ExactSizeIterator<Item = sample::RowParams<'a>> {
    draws.iter().map(|draw| {
        let s = &scheduler.sequences[draw.sequence];
        let request = &scheduler.groups[s.group].request;
        // A rejected draft was removed from `tokens`. Tokens that are drawn after it will be dropped.
        let tokens = &s.tokens[..draw.at.min(s.tokens.len())];
        row_params(&request.sampling, request.group, s.generation() as u32, tokens, s.prompt_len)
    })
}

fn row_params<'a>(
    sampling: &SamplingParams,
    group: GroupId,
    generation: u32,
    tokens: &'a [u32],
    prompt_len: usize,
) -> sample::RowParams<'a> {
    sample::RowParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        history: tokens,
        key: sampling.seed,
        counter: [(tokens.len() - prompt_len) as u32, generation, group.0 as u32, (group.0 >> 32) as u32],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the numbering of random numbers changed, old training runs could not be reproduced.
    #[test]
    fn random_numbers_depend_on_seed_token_generation_and_group() {
        let sampling = SamplingParams { seed: 9, ..SamplingParams::default() };
        let tokens = [7; 13];
        let params = row_params(&sampling, GroupId((3 << 32) + 4), 2, &tokens, 10);
        assert_eq!((params.key, params.counter, params.history), (9, [3, 2, 4, 3], &tokens[..]));
    }

    #[test]
    fn rows_get_every_sampling_parameter_of_their_request() {
        let sampling = SamplingParams {
            temperature: 0.5,
            top_k: 3,
            top_p: 0.25,
            min_p: 0.125,
            repetition_penalty: 1.5,
            ..SamplingParams::default()
        };
        let of = row_params(&sampling, GroupId(1), 0, &[4, 5], 2);
        let found = (of.temperature, of.top_k, of.top_p, of.min_p, of.repetition_penalty);
        assert_eq!((found, of.counter), ((0.5, 3, 0.25, 0.125, 1.5), [0, 0, 1, 0]));
    }
}
