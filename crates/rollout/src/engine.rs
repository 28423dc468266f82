//! The engine: one step computes some rows of some sequences and draws the next token of those that are whole.

use crate::request::{Completion, Detokenize, FinishReason, Request, SamplingParams, SequenceId};
use crate::scheduler::{Chunk, Scheduler};
use crate::sequence::{Role, State};
use crate::{Error, Result};
use kernels::ops::{rows, sample};
use kernels::{Context, DType, Memory, Tensor};
use model::kv::{BLOCK, KvCache};
use model::net::{InferRows, Rope, Workspace};
use model::{ModelConfig, Weights};
use std::sync::Arc;

/// Sizes and switches of an engine. None of them changes a bit of what it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Sequences of a step.
    pub max_num_seqs: usize,
    /// Pages of keys and values, of 64 tokens each.
    pub kv_blocks: usize,
    /// Tokens of the longest sequence, prompt included.
    pub max_model_len: usize,
    /// Rows of a step: prompts are computed in chunks that fit.
    pub max_batched_tokens: usize,
    /// Whether a prompt may be computed in several steps.
    pub chunked_prefill: bool,
    /// Whether a group's prompt is computed once and its pages shared.
    pub prefix_sharing: bool,
}

impl EngineConfig {
    /// Pages that hold `max_num_seqs` sequences of `max_model_len` tokens and their prompts, so that none is ever put back.
    pub fn blocks_for(max_num_seqs: usize, max_model_len: usize) -> usize {
        (max_num_seqs + 1) * max_model_len.div_ceil(BLOCK)
    }
    fn rows(&self) -> usize {
        match self.chunked_prefill {
            true => self.max_batched_tokens.max(self.max_num_seqs),
            false => self.max_batched_tokens.max(self.max_num_seqs).max(self.max_model_len),
        }
    }
}

/// Owns pages and sequences, never weights.
pub struct Engine {
    ctx: Context,
    config: EngineConfig,
    scheduler: Scheduler,
    rope: Rope,
    kv: KvCache,
    rows: InferRows,
    workspace: Workspace,
    drawing: Drawing,
    detokenizer: Option<Arc<dyn Detokenize>>,
    /// Version of the weights that the pages were computed with.
    version: Option<u64>,
    plan: Vec<Chunk>,
    copies: Vec<(u32, u32)>,
    ids: Vec<u32>,
    positions: Vec<u32>,
    tables_of_rows: Vec<u32>,
    write_rows: Vec<u32>,
    write_slots: Vec<u32>,
    finished: Vec<usize>,
}

/// Fixed buffers in which tokens are drawn.
struct Drawing {
    /// Rows drawn from at once.
    capacity: usize,
    rows: Tensor,
    hidden: Tensor,
    ids: Tensor,
    logps: Tensor,
    /// The row and the sequence of each draw of this step.
    draws: Vec<(u32, usize)>,
    /// Of one call: rows, how each is drawn (empty between calls), and what came out.
    picked: Vec<u32>,
    params: Vec<sample::RowParams<'static>>,
    drawn_ids: Vec<u32>,
    drawn_logps: Vec<f32>,
}

impl Drawing {
    fn new(memory: &Memory, model: &ModelConfig, capacity: usize) -> Drawing {
        let memory = memory.part("workspace");
        Drawing {
            capacity,
            rows: Tensor::zeros(&memory, &[capacity], DType::U32),
            hidden: Tensor::zeros(&memory, &[capacity, model.hidden_size], model.compute),
            ids: Tensor::zeros(&memory, &[capacity], DType::U32),
            logps: Tensor::zeros(&memory, &[capacity], DType::F32),
            draws: Vec::with_capacity(capacity),
            picked: Vec::with_capacity(capacity),
            params: Vec::with_capacity(capacity),
            drawn_ids: vec![0; capacity],
            drawn_logps: vec![0.0; capacity],
        }
    }
}

impl Engine {
    /// An engine for models of this shape. Its pages are booked under "kv cache", its buffers under "workspace".
    pub fn new(ctx: &Context, model: &ModelConfig, config: EngineConfig) -> Result<Engine> {
        Engine::on(ctx, ctx.memory(), model, config)
    }

    /// The same, with its buffers on `memory`: on `Device::Meta` it only counts them.
    pub fn on(ctx: &Context, memory: &Memory, model: &ModelConfig, config: EngineConfig) -> Result<Engine> {
        let needed = config.max_model_len.div_ceil(BLOCK) + 1;
        if config.kv_blocks < needed {
            return Err(Error::PoolTooSmall { blocks: config.kv_blocks, max_model_len: config.max_model_len, needed });
        }
        let max_rows = config.rows();
        Ok(Engine {
            ctx: ctx.clone(),
            scheduler: Scheduler::new(config.kv_blocks, config.max_num_seqs, max_rows, config.chunked_prefill),
            rope: Rope::new(memory, model, config.max_model_len),
            kv: KvCache::new(memory, model, config.kv_blocks),
            rows: InferRows::new(memory, max_rows, config.max_num_seqs, config.max_model_len.div_ceil(BLOCK)),
            workspace: Workspace::new(memory, model, max_rows),
            drawing: Drawing::new(memory, model, config.max_num_seqs),
            detokenizer: None,
            version: None,
            plan: Vec::new(),
            copies: Vec::new(),
            ids: Vec::with_capacity(max_rows),
            positions: Vec::with_capacity(max_rows),
            tables_of_rows: Vec::with_capacity(max_rows),
            write_rows: Vec::with_capacity(max_rows),
            write_slots: Vec::with_capacity(max_rows),
            finished: Vec::new(),
            config,
        })
    }

    /// Gives it a way to see text, which stop strings need.
    pub fn set_detokenizer(&mut self, detokenizer: Arc<dyn Detokenize>) {
        self.detokenizer = Some(detokenizer);
    }

    /// Overwrites every page with `x`: tests poison the pool with NaN to show that nothing unwritten is read.
    pub fn fill_pages(&mut self, x: f32) {
        self.kv.fill(x);
        self.version = None;
    }

    /// Its sizes and switches.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Pages that nobody holds.
    pub fn free_blocks(&self) -> usize {
        self.scheduler.blocks.available()
    }

    /// Sequences put back so far because pages ran out.
    pub fn preemptions(&self) -> u64 {
        self.scheduler.preemptions
    }

    /// Takes a request in; its completions carry the number returned.
    pub fn submit(&mut self, request: Request) -> Result<usize> {
        if request.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if request.prompt.len() >= self.config.max_model_len {
            let (prompt, max_model_len) = (request.prompt.len(), self.config.max_model_len);
            return Err(Error::PromptTooLong { prompt, max_model_len });
        }
        self.scheduler.submit(Arc::new(request), self.config.prefix_sharing);
        Ok(self.scheduler.groups.len() - 1)
    }

    /// Whether everything submitted has ended or is paused.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// All completions of `requests`, request by request.
    pub fn generate(&mut self, weights: &Weights, requests: Vec<Request>) -> Result<Vec<Completion>> {
        self.generate_with(weights, requests, |_| {})
    }

    /// The same, showing each completion as soon as it ends.
    pub fn generate_with(
        &mut self,
        weights: &Weights,
        requests: Vec<Request>,
        mut on_end: impl FnMut(&Completion),
    ) -> Result<Vec<Completion>> {
        debug_assert!(self.is_idle());
        self.scheduler.clear();
        for request in requests {
            self.submit(request)?;
        }
        let mut completions = Vec::new();
        while !self.is_idle() {
            let ended = self.step(weights)?;
            ended.iter().for_each(&mut on_end);
            completions.extend(ended);
        }
        completions.sort_by_key(|c| (c.request, c.generation));
        Ok(completions)
    }

    /// One step. Returns the completions that it ended.
    pub fn step(&mut self, weights: &Weights) -> Result<Vec<Completion>> {
        if self.version != Some(weights.version) {
            self.scheduler.invalidate();
            self.version = Some(weights.version);
        }
        self.scheduler.plan(&mut self.plan, &mut self.copies);
        for &(from, to) in &self.copies {
            self.kv.copy_block(&self.ctx, from, to)?;
        }
        if !self.plan.is_empty() {
            self.set_rows();
            model::net::infer(&self.ctx, weights, &self.rope, &self.rows, &mut self.kv, &mut self.workspace)?;
            self.draw(weights)?;
        }
        Ok(self.take_finished())
    }

    /// The rows of the plan: tokens, positions, pages; and which of them a token is drawn from.
    fn set_rows(&mut self) {
        for list in
            [&mut self.ids, &mut self.positions, &mut self.tables_of_rows, &mut self.write_rows, &mut self.write_slots]
        {
            list.clear();
        }
        self.drawing.draws.clear();
        for (table, chunk) in self.plan.iter().enumerate() {
            let s = &mut self.scheduler.sequences[chunk.sequence];
            for position in chunk.from..chunk.to {
                self.write_rows.push(self.ids.len() as u32);
                self.write_slots.push(s.blocks[position / BLOCK] * BLOCK as u32 + (position % BLOCK) as u32);
                self.ids.push(s.tokens[position]);
                self.positions.push(position as u32);
                self.tables_of_rows.push(table as u32);
            }
            self.rows.set_table(table, &s.blocks);
            s.computed = chunk.to;
            let (role, group) = (s.role, s.group);
            if s.uncomputed() > 0 {
                continue;
            }
            let last = self.ids.len() as u32 - 1;
            match role {
                Role::Completion(_) => self.drawing.draws.push((last, chunk.sequence)),
                // The row that ends the prompt gives every completion of the group its first token; a prompt that is computed
                // a second time gives nothing to completions that have begun.
                Role::Prompt => {
                    let sequences = &self.scheduler.sequences;
                    let waits =
                        |id: usize| sequences[id].state == State::Waiting && sequences[id].completion().is_empty();
                    let members = self.scheduler.groups[group].members.iter().filter(|&&member| waits(member));
                    self.drawing.draws.extend(members.map(|&member| (last, member)));
                }
            }
        }
        self.rows.set(&self.ids, &self.positions, &self.tables_of_rows, &self.write_rows, &self.write_slots);
    }

    /// Draws the tokens of this step, then lets prompts that are computed hold their pages.
    fn draw(&mut self, weights: &Weights) -> Result<()> {
        let draws = std::mem::take(&mut self.drawing.draws);
        for draws in draws.chunks(self.drawing.capacity) {
            self.draw_some(weights, draws)?;
        }
        self.drawing.draws = draws;
        for i in 0..self.plan.len() {
            let id = self.plan[i].sequence;
            let s = &self.scheduler.sequences[id];
            if s.role == Role::Prompt && s.uncomputed() == 0 {
                self.scheduler.hold(id);
            }
        }
        Ok(())
    }

    fn draw_some(&mut self, weights: &Weights, draws: &[(u32, usize)]) -> Result<()> {
        let n = draws.len();
        let d = &mut self.drawing;
        d.picked.clear();
        d.picked.extend(draws.iter().map(|d| d.0));
        d.rows.rows_mut(0..n).copy_from_u32(&d.picked);
        let gather = rows::Gather { x: self.workspace.hidden(), rows: d.rows.rows(0..n), out: d.hidden.rows_mut(0..n) };
        rows::gather(&self.ctx, gather)?;
        let scheduler = &self.scheduler;
        let mut params: Vec<sample::RowParams<'_>> = std::mem::take(&mut d.params);
        params.extend(draws.iter().map(|&(_, id)| {
            let s = &scheduler.sequences[id];
            let request = &scheduler.groups[s.group].request;
            let Role::Completion(generation) = s.role else { unreachable!("prompts are not drawn for") };
            row_params(&request.sampling, request.rollout_number, generation, &s.tokens, s.prompt_len)
        }));
        sample::forward(
            &self.ctx,
            sample::Forward {
                hidden: d.hidden.rows(0..n),
                weight: weights.head(),
                rows: &params,
                ids: d.ids.rows_mut(0..n),
                logps: d.logps.rows_mut(0..n),
                truncated_logps: None,
            },
        )?;
        d.params = emptied(params);
        d.ids.rows(0..n).copy_to_u32(&mut d.drawn_ids[..n]);
        d.logps.rows(0..n).copy_to_f32(&mut d.drawn_logps[..n]);
        for (i, &(_, id)) in draws.iter().enumerate() {
            let (token, logp) = (self.drawing.drawn_ids[i], self.drawing.drawn_logps[i]);
            self.scheduler.sequences[id].push(token, logp, true, weights.version);
            self.end_if_done(id);
        }
        Ok(())
    }

    /// Ends or pauses a completion that just got a token, if it is done.
    fn end_if_done(&mut self, id: usize) {
        let s = &self.scheduler.sequences[id];
        let request = &self.scheduler.groups[s.group].request;
        let sampling = &request.sampling;
        let last = *s.tokens.last().expect("just pushed");
        if sampling.stop_ids.contains(&last) || self.reached_stop_string(sampling, s.completion()) {
            match request.pause_on_stop {
                true => self.scheduler.pause(id),
                false => self.end(id, FinishReason::Stop),
            }
        } else if s.completion().len() >= sampling.max_new_tokens || s.tokens.len() >= self.config.max_model_len {
            self.end(id, FinishReason::Length);
        }
    }

    fn end(&mut self, id: usize, reason: FinishReason) {
        self.scheduler.finish(id, reason);
        self.finished.push(id);
    }

    fn reached_stop_string(&self, sampling: &SamplingParams, completion: &[u32]) -> bool {
        let Some(longest) = sampling.stop_strings.iter().map(String::len).max() else { return false };
        let Some(detokenizer) = &self.detokenizer else { return false };
        // A token is a byte at least, but for a few special ones: the string's end lies in this many last tokens.
        let tail = &completion[completion.len().saturating_sub(longest + 8)..];
        let (before, text) = (detokenizer.decode(&tail[..tail.len() - 1]), detokenizer.decode(tail));
        // Only a string that the last token completes: one that an extended sequence stopped at before is past.
        let common = before.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        sampling.stop_strings.iter().any(|stop| {
            let from = text.floor_char_boundary((common + 1).saturating_sub(stop.len()));
            text[from..].contains(stop.as_str())
        })
    }

    fn take_finished(&mut self) -> Vec<Completion> {
        let take = |id: usize| {
            let s = &mut self.scheduler.sequences[id];
            let (State::Finished(finish_reason), Role::Completion(generation)) = (s.state, s.role) else {
                unreachable!("only ended completions are listed")
            };
            Completion {
                request: s.group,
                generation: generation as usize,
                ids: s.tokens.split_off(s.prompt_len),
                logps: std::mem::take(&mut s.logps),
                mask: std::mem::take(&mut s.mask),
                versions: std::mem::take(&mut s.versions),
                finish_reason,
            }
        };
        self.finished.drain(..).map(take).collect()
    }

    /// The completions that have not ended: request, generation, and the tokens so far.
    pub fn live(&self) -> impl Iterator<Item = (usize, usize, &[u32])> {
        self.scheduler.sequences.iter().filter_map(|s| match (s.role, s.state) {
            (Role::Prompt, _) | (_, State::Finished(_)) => None,
            (Role::Completion(g), _) => Some((s.group, g as usize, s.completion())),
        })
    }

    /// The paused completions: id, request, generation, and the tokens so far.
    pub fn paused(&self) -> Vec<(SequenceId, usize, usize, &[u32])> {
        let all = self.scheduler.sequences.iter().enumerate().filter(|(_, s)| s.state == State::Paused);
        all.filter_map(|(id, s)| match s.role {
            Role::Completion(g) => Some((SequenceId(id), s.group, g as usize, s.completion())),
            Role::Prompt => None,
        })
        .collect()
    }

    /// Goes on with a paused completion after `tokens` that the model did not sample (their mask is false). It ends at
    /// once if they fill it.
    pub fn extend(&mut self, id: SequenceId, tokens: &[u32]) {
        let version = self.version.unwrap_or(0);
        let s = &mut self.scheduler.sequences[id.0];
        assert_eq!(s.state, State::Paused, "only a paused completion can be extended");
        let sampling = self.scheduler.groups[s.group].request.sampling.clone();
        for &token in tokens {
            s.push(token, 0.0, false, version);
        }
        if s.completion().len() >= sampling.max_new_tokens || s.tokens.len() >= self.config.max_model_len {
            self.end(id.0, FinishReason::Length);
        } else {
            self.scheduler.wake(id.0);
        }
    }

    /// Ends a paused completion; the next step returns it.
    pub fn finish(&mut self, id: SequenceId) {
        assert_eq!(self.scheduler.sequences[id.0].state, State::Paused, "only a paused completion waits to be ended");
        self.end(id.0, FinishReason::Stop);
    }
}

/// The memory of a list, for the next list of what is borrowed from elsewhere. (Collecting a list's own iterator keeps its
/// memory; `tests/allocation.rs` would see if it did not.)
fn emptied(mut list: Vec<sample::RowParams<'_>>) -> Vec<sample::RowParams<'static>> {
    list.clear();
    list.into_iter().map(|_| unreachable!("it is empty")).collect()
}

/// How one token is drawn: its noise is named by rollout, generation and token index.
fn row_params<'a>(
    sampling: &SamplingParams,
    rollout_number: u64,
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
        counter: [(tokens.len() - prompt_len) as u32, generation, rollout_number as u32, (rollout_number >> 32) as u32],
    }
}
