//! Draws the next token of every sequence whose last row was computed.
//!
//! Noise is named by seed, group, generation and token index, so a token does not depend on what is drawn beside it.

use crate::Result;
use crate::request::SamplingParams;
use crate::scheduler::Scheduler;
use crate::sequence::Role;
use kernels::ops::{rows, sample};
use kernels::{Context, DType, Memory, Tensor, View};
use model::{ModelConfig, ModelView};

/// A token to draw: the row of the step that it is drawn from, and the sequence that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draw {
    pub(crate) row: u32,
    pub(crate) sequence: usize,
}

/// Buffers of a fixed size, of which every call uses the first rows.
pub(crate) struct SamplerBuffers {
    /// Rows of one call.
    pub(crate) capacity: usize,
    rows: Tensor,
    hidden: Tensor,
    ids: Tensor,
    logps: Tensor,
    row_numbers: Vec<u32>,
    /// Empty between calls.
    params: Vec<sample::RowParams<'static>>,
    sampled_ids: Vec<u32>,
    sampled_logps: Vec<f32>,
}

impl SamplerBuffers {
    pub(crate) fn new(memory: &Memory, model: &ModelConfig, capacity: usize) -> SamplerBuffers {
        let memory = memory.part("workspace");
        SamplerBuffers {
            capacity,
            rows: Tensor::zeros(&memory, &[capacity], DType::U32),
            hidden: Tensor::zeros(&memory, &[capacity, model.hidden_size], model.compute),
            ids: Tensor::zeros(&memory, &[capacity], DType::U32),
            logps: Tensor::zeros(&memory, &[capacity], DType::F32),
            row_numbers: Vec::with_capacity(capacity),
            params: Vec::with_capacity(capacity),
            sampled_ids: vec![0; capacity],
            sampled_logps: vec![0.0; capacity],
        }
    }

    /// The token of each draw, and its log-probability. `hidden: [rows, C]` is what the model made of the step's rows.
    pub(crate) fn sample(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        hidden: View<'_>,
        scheduler: &Scheduler,
        draws: &[Draw],
    ) -> Result<(&[u32], &[f32])> {
        let n = draws.len();
        self.row_numbers.clear();
        self.row_numbers.extend(draws.iter().map(|d| d.row));
        self.rows.rows_mut(0..n).copy_from_u32(&self.row_numbers);
        let gather = rows::Gather { x: hidden, rows: self.rows.rows(0..n), out: self.hidden.rows_mut(0..n) };
        rows::gather(ctx, gather)?;
        let mut params: Vec<sample::RowParams<'_>> = std::mem::take(&mut self.params);
        params.extend(draws.iter().map(|draw| {
            let s = &scheduler.sequences[draw.sequence];
            let request = &scheduler.groups[s.group].request;
            let Role::Completion(generation) = s.role else { unreachable!("prompts are not sampled for") };
            row_params(&request.sampling, request.id, generation, &s.tokens, s.prompt_len)
        }));
        sample::forward(
            ctx,
            sample::Forward {
                hidden: self.hidden.rows(0..n),
                weight: model.head()?,
                rows: &params,
                ids: self.ids.rows_mut(0..n),
                logps: self.logps.rows_mut(0..n),
                truncated_logps: None,
            },
        )?;
        self.params = emptied(params);
        self.ids.rows(0..n).copy_to_u32(&mut self.sampled_ids[..n]);
        self.logps.rows(0..n).copy_to_f32(&mut self.sampled_logps[..n]);
        Ok((&self.sampled_ids[..n], &self.sampled_logps[..n]))
    }
}

/// The memory of a list, for the next list of what is borrowed from elsewhere. (Collecting a list's own iterator keeps its
/// memory; `tests/allocation.rs` would see if it did not.)
fn emptied(mut list: Vec<sample::RowParams<'_>>) -> Vec<sample::RowParams<'static>> {
    list.clear();
    list.into_iter().map(|_| unreachable!("it is empty")).collect()
}

fn row_params<'a>(
    sampling: &SamplingParams,
    id: u64,
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
        counter: [(tokens.len() - prompt_len) as u32, generation, id as u32, (id >> 32) as u32],
    }
}
