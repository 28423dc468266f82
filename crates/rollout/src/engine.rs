//! The engine: schedule, run the model, sample, postprocess.

use crate::blocks::BlockPool;
use crate::config::{EngineConfig, Speculative};
use crate::earlier::Earlier;
use crate::inputs::StepInputs;
use crate::logprobs::LogitRows;
use crate::models::{ModelVersion, Models};
use crate::request::{Detokenize, Drawn, Request, RequestId, RolloutGroup, SamplingParams, SequenceId};
use crate::reuse::reused;
use crate::sampler::SamplerBuffers;
use crate::scheduler::{Chunk, Counters, Limits, Scheduler};
use crate::sequence::{Draw, Role, Sampled, State};
use crate::stop::StopCheck;
use crate::{Error, Result};
use kernels::Context;
use model::kv::{BLOCK, KvCache};
use model::net::{Rope, Workspace};
use model::{Adapter, ModelConfig, ModelView};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Owns pages and sequences, never weights.
pub struct Engine {
    ctx: Context,
    config: EngineConfig,
    vocab: usize,
    scheduler: Scheduler,
    rope: Rope,
    kv: KvCache,
    inputs: StepInputs,
    workspace: Workspace,
    sampler: SamplerBuffers,
    stop: StopCheck,
    /// Set from outside: no further step is wanted.
    stopped: Arc<AtomicBool>,
    /// Whether any request has wanted more than the sampled tokens' log-probabilities; and what gives them.
    wants_logits: bool,
    logits: Option<LogitRows>,
    /// Empty between steps.
    adapters: Vec<Option<&'static Adapter>>,
    /// Of the step: rows, pages to copy before it, tokens to draw after it.
    chunks: Vec<Chunk>,
    copies: Vec<(u32, u32)>,
    draws: Vec<Draw>,
}

impl Engine {
    /// An engine for models of this shape. Its pages are booked under "kv cache", its buffers under "workspace".
    pub fn new(ctx: &Context, model: &ModelConfig, config: EngineConfig) -> Result<Engine> {
        let memory = ctx.memory();
        let needed = config.max_model_len.div_ceil(BLOCK) + 1;
        if config.kv_blocks < needed {
            return Err(Error::PoolTooSmall { blocks: config.kv_blocks, max_model_len: config.max_model_len, needed });
        }
        let most = u32::MAX as usize / BLOCK;
        if config.kv_blocks > most {
            return Err(Error::PoolTooLarge { blocks: config.kv_blocks, most });
        }
        let max_rows = config.rows();
        let engine = Engine {
            ctx: ctx.clone(),
            vocab: model.vocab_size,
            scheduler: scheduler(&config),
            rope: Rope::new(memory, model, config.max_model_len),
            kv: KvCache::new(memory, model, config.kv_blocks),
            inputs: StepInputs::new(memory, max_rows, &config),
            workspace: Workspace::new(memory, model, max_rows),
            sampler: SamplerBuffers::new(memory, model, config.draws()),
            stop: StopCheck::default(),
            stopped: Arc::default(),
            wants_logits: false,
            logits: None,
            adapters: Vec::with_capacity(config.max_num_seqs),
            chunks: Vec::new(),
            copies: Vec::new(),
            draws: Vec::with_capacity(config.draws()),
            config,
        };
        memory.check()?;
        Ok(engine)
    }

    /// Gives it a way to see text, which stop strings need.
    pub fn set_detokenizer(&mut self, detokenizer: Arc<dyn Detokenize>) {
        self.stop.detokenizer = Some(detokenizer);
    }

    /// Shares a flag that, once set, ends a generation before its next step, with [`Error::Stopped`].
    pub fn stop_with(&mut self, stopped: Arc<AtomicBool>) {
        self.stopped = stopped;
    }

    /// Overwrites every page with `x`: tests poison the pool with NaN to show that nothing unwritten is read.
    pub fn fill_pages(&mut self, x: f32) {
        self.kv.fill(x);
        self.scheduler.invalidate();
        self.scheduler.blocks.forget();
    }

    /// What it was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Pages that nobody holds, those of the prefix cache included.
    pub fn free_blocks(&self) -> usize {
        self.scheduler.blocks.available()
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        self.scheduler.counters
    }

    /// What it can guess the completions of known prompts from, for a later process. Nothing if it guesses nothing.
    pub fn drafts(&self) -> Vec<u8> {
        self.scheduler.earlier.to_bytes()
    }

    /// Takes up what [`drafts`](Self::drafts) gave. What cannot be read of it is left out: no bit depends on it.
    pub fn restore_drafts(&mut self, bytes: &[u8]) {
        if self.config.speculative != Speculative::Off {
            self.scheduler.earlier = Earlier::of_bytes(bytes, self.vocab);
        }
    }

    /// Sequences preempted so far because pages ran out.
    pub fn preemptions(&self) -> u64 {
        self.scheduler.counters.preemptions
    }

    /// Accepts a request. What it will have drawn is in [`drawn`](Self::drawn) after each step.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        let (prompt, max_model_len) = (request.prompt.ids.len(), self.config.max_model_len);
        if prompt == 0 {
            return Err(Error::EmptyPrompt);
        }
        if prompt >= max_model_len {
            return Err(Error::PromptTooLong { prompt, max_model_len });
        }
        request.check_so_far(max_model_len)?;
        self.wants_logits |= {
            let SamplingParams { prompt_logprobs, top_logprobs, entropies, .. } = *request.sampling;
            prompt_logprobs || top_logprobs > 0 || entropies
        };
        Ok(self.scheduler.submit(Arc::new(request), self.config.prefix_sharing))
    }

    /// Removes a request, wherever it is; its pages and its slots are free at once. False if it has ended already.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        self.scheduler.cancel(request)
    }

    /// Whether everything submitted has ended or is paused.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// The group of each request, in their order.
    pub fn generate<'a>(
        &mut self,
        model: impl Into<ModelView<'a>>,
        requests: Vec<Request>,
    ) -> Result<Vec<RolloutGroup>> {
        self.generate_with(model, requests, |_| {})
    }

    /// [`generate`](Self::generate), showing each group as soon as its last completion has ended. Of a call that fails
    /// nothing stays, neither sequences nor their pages.
    pub fn generate_with<'a>(
        &mut self,
        model: impl Into<ModelView<'a>>,
        requests: Vec<Request>,
        on_end: impl FnMut(&RolloutGroup),
    ) -> Result<Vec<RolloutGroup>> {
        debug_assert!(self.is_idle());
        self.scheduler.clear();
        let groups = self.generate_all(model.into().into(), requests, on_end);
        if groups.is_err() {
            self.scheduler.clear();
        }
        groups
    }

    fn generate_all(
        &mut self,
        models: Models<'_>,
        requests: Vec<Request>,
        mut on_end: impl FnMut(&RolloutGroup),
    ) -> Result<Vec<RolloutGroup>> {
        for request in requests {
            self.submit(request)?;
        }
        let mut groups = Vec::new();
        while !self.is_idle() {
            if self.stopped.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            self.compute(models)?;
            let ended = self.scheduler.take_finished();
            ended.iter().for_each(|(_, group)| on_end(group));
            groups.extend(ended);
        }
        groups.sort_unstable_by_key(|(serial, _)| *serial);
        Ok(groups.into_iter().map(|(_, group)| group).collect())
    }

    /// One step with one base, and for each sequence the adapter that it names. Returns the groups that it ended. If it
    /// fails, no token was drawn, and a request that names weights which are not there can be cancelled.
    pub fn step<'a>(&mut self, models: impl Into<Models<'a>>) -> Result<Vec<RolloutGroup>> {
        self.compute(models.into())?;
        Ok(self.scheduler.take_finished().into_iter().map(|(_, group)| group).collect())
    }

    /// What the last step drew, in the order of the sequences.
    pub fn drawn(&self) -> &[Drawn] {
        &self.scheduler.drawn
    }

    fn compute(&mut self, models: Models<'_>) -> Result<()> {
        self.scheduler.drawn.clear();
        let current = models.current_version();
        // Without current weights those of before stay current: their keys and values are not stale.
        if current.is_some() && self.scheduler.current != current {
            self.scheduler.invalidate();
            self.scheduler.current = current;
        }
        if self.is_idle() {
            return Ok(());
        }
        self.scheduler.speculate();
        let base = self.scheduler.schedule(&mut self.chunks, &mut self.copies).ok_or(Error::NoCurrentWeights)?;
        for &(from, to) in &self.copies {
            self.kv.copy_block(&self.ctx, from, to)?;
        }
        let mut adapters: Vec<Option<&Adapter>> = reused(std::mem::take(&mut self.adapters));
        for chunk in &self.chunks {
            let adapter = self.scheduler.model_of(chunk.sequence).and_then(|model| model.adapter);
            adapters.push(adapter.map(|version| models.adapter(version)).transpose()?);
        }
        let began = Instant::now();
        let computed = self.compute_chunks(Models::view(models.base(base)?, &adapters), began);
        self.adapters = reused(adapters);
        computed
    }

    fn compute_chunks(&mut self, model: ModelView<'_>, began: Instant) -> Result<()> {
        let of_prompt = |chunk: &Chunk| chunk.from < self.scheduler.sequences[chunk.sequence].prompt_len;
        let is_prefill = self.chunks.iter().any(of_prompt);
        self.inputs.prepare(&self.scheduler, &self.chunks, &mut self.draws);
        let guesses = self.scheduler.count_drafts(&self.draws);
        let (rope, rows, kv, workspace) = (&self.rope, &self.inputs.rows, &mut self.kv, &mut self.workspace);
        model::net::infer(&self.ctx, model, rope, rows, kv, workspace)?;
        self.scheduler.mark_computed(&self.chunks);
        // (A device that computes beside the host is waited for where tokens are drawn.)
        let drawing = Instant::now();
        self.scheduler.counters.ran(is_prefill, drawing - began);
        if self.wants_logits {
            let logits = self.logits.take().map_or_else(|| LogitRows::new(&self.ctx, model), Ok)?;
            let logits = self.logits.insert(logits);
            let hidden = self.workspace.hidden();
            logits.of_prompts(&self.ctx, model, hidden, &mut self.scheduler, &self.chunks)?;
        }
        for (i, draws) in self.draws.chunks(self.sampler.capacity).enumerate() {
            if i > 0 {
                self.inputs.sample_from(&self.scheduler, draws);
            }
            let (hidden, rows) = (self.workspace.hidden(), &self.inputs.rows);
            let (alternatives, entropies) = match &mut self.logits {
                Some(logits) => (
                    logits.of_draws(&self.ctx, model, hidden, &self.scheduler, draws)?,
                    logits.entropies(&self.ctx, model, hidden, &self.scheduler, draws)?,
                ),
                None => (Vec::new(), Vec::new()),
            };
            let sampled = self.sampler.sample(&self.ctx, model, hidden, rows, &self.scheduler, draws)?;
            let sampled = Sampled { alternatives: &alternatives, entropies: &entropies, ..sampled };
            self.scheduler.postprocess(draws, sampled, &self.stop);
        }
        self.scheduler.share_prompts(&self.chunks);
        let (sequences, tokens) = (self.chunks.len(), self.scheduler.drawn.len());
        let counters = &mut self.scheduler.counters;
        counters.sampling_time += drawing.elapsed();
        if !is_prefill {
            counters.decode_passes += sequences as u64;
            counters.decoded_tokens += tokens as u64;
            let rows = self.chunks.iter().map(|chunk| chunk.to - chunk.from).sum();
            let drawn_with_guesses = (guesses > 0).then_some(tokens);
            self.scheduler.measure(sequences, rows, drawn_with_guesses, began.elapsed());
        }
        Ok(())
    }

    /// The completions that have not ended: group, generation, and the tokens so far.
    pub fn live(&self) -> impl Iterator<Item = (u64, usize, &[u32])> {
        self.scheduler.sequences.iter().filter_map(|(_, s)| match (s.role, s.state) {
            (Role::Prompt, _) | (_, State::Finished(_)) => None,
            (Role::Completion(g), _) => Some((self.scheduler.groups[s.group].request.id, g as usize, s.completion())),
        })
    }

    /// The paused completions, the one that waits longest first: id, group, generation, and the tokens so far.
    pub fn paused(&self) -> Vec<(SequenceId, u64, usize, &[u32])> {
        let of = |&index: &usize| {
            let s = &self.scheduler.sequences[index];
            let id = SequenceId { index, serial: s.serial };
            (id, self.scheduler.groups[s.group].request.id, s.generation(), s.completion())
        };
        self.scheduler.paused().iter().map(of).collect()
    }

    /// Resumes a paused completion after `tokens` that the model did not sample (their mask is false), computing those
    /// alone. It ends at once if they fill it. False if it is not paused, or not there any more.
    pub fn extend(&mut self, id: SequenceId, tokens: &[u32]) -> bool {
        let found = self.find_paused(id);
        found.inspect(|&index| self.scheduler.extend(index, tokens)).is_some()
    }

    /// Ends a paused completion; the next step returns its group, if it was the last. False if it is not paused.
    pub fn finish(&mut self, id: SequenceId) -> bool {
        let found = self.find_paused(id);
        found.inspect(|&index| self.scheduler.finish_paused(index)).is_some()
    }

    fn find_paused(&self, id: SequenceId) -> Option<usize> {
        self.scheduler.find(id).filter(|&index| self.scheduler.sequences[index].state == State::Paused)
    }

    /// From its next token on, computes a completion with other weights: what it has is computed again with them. False
    /// if it has ended.
    pub fn set_model(&mut self, id: SequenceId, model: ModelVersion) -> bool {
        let found = self.scheduler.find(id);
        found.inspect(|&index| self.scheduler.set_model(index, model)).is_some()
    }

    /// Guesses the next tokens of a completion. The next step computes them together and draws after each; what is
    /// drawn is what it would have been without, and a wrong guess costs its rows. Guesses for a completion that has no
    /// token yet, is paused or has ended are ignored.
    pub fn draft(&mut self, id: SequenceId, tokens: &[u32]) {
        if let Some(index) = self.scheduler.find(id) {
            self.scheduler.draft(index, tokens);
        }
    }
}

fn scheduler(config: &EngineConfig) -> Scheduler {
    let limits = Limits {
        max_num_seqs: config.max_num_seqs,
        max_rows: config.rows(),
        max_model_len: config.max_model_len,
        chunked_prefill: config.chunked_prefill,
    };
    Scheduler::new(BlockPool::new(config.kv_blocks, config.prefix_caching), limits, config.speculative)
}
