//! The rollout engine. One step schedules rows, runs the model, samples tokens, and appends them to their sequences.

use crate::blocks::BlockPool;
use crate::config::{EngineConfig, Speculative};
use crate::earlier::Earlier;
use crate::inputs::StepInputs;
use crate::keep::Keeper;
use crate::logprobs::LogitRows;
use crate::models::{ModelVersion, Models};
use crate::request::{Detokenize, Drawn, Request, RequestId, RolloutGroup, SamplingParams, SequenceId};
use crate::reuse::reused;
use crate::sampler::SamplerBuffers;
use crate::scheduler::{Chunk, Counters, Finished, Limits, Scheduler};
use crate::sequence::{Draw, Role, Sampled, State};
use crate::stop::StopCheck;
use crate::{Error, Result};
use kernels::Context;
use model::kept::RolloutActivations;
use model::kv::{BLOCK, KvCache};
use model::net::{Rope, Workspace};
use model::weights::Version;
use model::{Adapter, GroupId, ModelConfig, ModelView};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The rollout engine, which generates completions. It owns the KV-cache pages and the sequences, but no weights: each
/// step gets the weights as an argument.
pub struct Engine {
    ctx: Context,
    config: EngineConfig,
    vocab: usize,
    scheduler: Scheduler,
    rope: Rope,
    kv: KvCache,
    inputs: StepInputs,
    workspace: Workspace,
    /// Keeps the activations of rows for an update; `None` if none are kept.
    keeper: Option<Keeper>,
    sampler: SamplerBuffers,
    stop: StopCheck,
    /// A flag that the caller sets to stop before the next step.
    stopped: Arc<AtomicBool>,
    /// Whether any request so far needed more than the log-probabilities of its sampled tokens. `logits` has the
    /// buffers for that.
    wants_logits: bool,
    logits: Option<LogitRows>,
    /// The adapter of each sequence in the step. Empty between steps.
    adapters: Vec<Option<&'static Adapter>>,
    /// The rows of the current step, the KV-cache pages to copy before it, and the tokens to draw after it.
    chunks: Vec<Chunk>,
    copies: Vec<(u32, u32)>,
    draws: Vec<Draw>,
}

impl Engine {
    /// An engine for models of this configuration. The memory ledger counts its pages as "kv cache" and its buffers as
    /// "workspace".
    pub fn new(ctx: &Context, model: &ModelConfig, config: EngineConfig) -> Result<Engine> {
        let memory = ctx.memory();
        let needed = EngineConfig::least_blocks(config.max_model_len);
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
            keeper: None,
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

    /// Sets the detokenizer, which stop strings need.
    pub fn set_detokenizer(&mut self, detokenizer: Arc<dyn Detokenize>) {
        self.stop.detokenizer = Some(detokenizer);
    }

    /// Computes with the threads of `ctx` from now on. Its device must be that of the engine.
    pub fn compute_on(&mut self, ctx: Context) {
        self.ctx = ctx;
    }

    /// Sets a flag that stops a generation before its next step. The call then returns [`Error::Stopped`].
    pub fn stop_with(&mut self, stopped: Arc<AtomicBool>) {
        self.stopped = stopped;
    }

    /// From now on, stores the activations of rows that the current weights compute in `activations`, for the first
    /// update on their tokens. `None` stops storing them. The completions have the same bits either way.
    pub fn keep_activations(&mut self, activations: Option<RolloutActivations>) {
        self.keeper = activations.map(Keeper::new);
    }

    /// Fills every KV-cache page with `x`. Tests fill the pool with NaN to check that no unwritten memory is read.
    pub fn fill_pages(&mut self, x: f32) {
        self.kv.fill(x);
        self.scheduler.invalidate();
        self.scheduler.blocks.forget();
    }

    /// The configuration of the engine.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The number of KV-cache pages that no sequence uses, including pages in the prefix cache.
    pub fn free_blocks(&self) -> usize {
        self.scheduler.blocks.available()
    }

    /// Counts and times of the engine's work so far.
    pub fn counters(&self) -> Counters {
        self.scheduler.counters
    }

    /// The earlier completions from which draft tokens are guessed, serialised for a later process. Empty if
    /// speculative decoding is off.
    pub fn drafts(&self) -> Vec<u8> {
        self.scheduler.earlier.to_bytes()
    }

    /// Restores the output of [`drafts`](Self::drafts). Corrupt parts are skipped, since drafts do not affect the bits
    /// of completions.
    pub fn restore_drafts(&mut self, bytes: &[u8]) {
        if self.config.speculative != Speculative::Off {
            self.scheduler.earlier = Earlier::from_bytes(bytes, self.vocab);
        }
    }

    /// Remembers completions of another engine, from which draft tokens are guessed like from those of this one.
    pub fn remember<'a>(&mut self, prompt: &[u32], completions: impl Iterator<Item = &'a [u32]>) {
        if self.config.speculative != Speculative::Off {
            self.scheduler.earlier.remember(prompt, completions);
        }
    }

    /// Accepts a request. After each step, [`drawn`](Self::drawn) contains the tokens that were drawn for it.
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
            let SamplingParams { prompt_logprobs, top_logprobs, .. } = *request.sampling;
            prompt_logprobs || top_logprobs > 0
        };
        Ok(self.scheduler.submit(Arc::new(request), self.config.prefix_sharing))
    }

    /// Removes a request in any state, and frees its KV-cache pages and batch slots at once. Returns false if it has
    /// already ended.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let cancelled = self.scheduler.cancel(request);
        if cancelled && let Some(keeper) = &mut self.keeper {
            keeper.cancelled(request.serial);
        }
        cancelled
    }

    /// Whether all submitted requests have ended or are paused.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Runs one step with one base model, and for each sequence the adapter that its request names. Returns the groups
    /// that ended in the step. If it fails, no token was drawn; a request that names missing weights can then be
    /// cancelled.
    pub fn step<'a>(&mut self, models: impl Into<Models<'a>>) -> Result<Vec<RolloutGroup>> {
        Ok(self.advance(models.into(), |_| true)?.into_iter().map(|finished| finished.group).collect())
    }

    /// As [`step`](Self::step), but returns only the groups of requests that `takes` accepts. Other groups stay in the
    /// engine.
    pub(crate) fn advance(&mut self, models: Models<'_>, takes: impl Fn(RequestId) -> bool) -> Result<Vec<Finished>> {
        self.compute(models)?;
        if let Some(keeper) = &mut self.keeper {
            keeper.ended(&self.scheduler);
        }
        Ok(self.scheduler.take_finished(takes))
    }

    /// Fails if the flag of [`stop_with`](Self::stop_with) is set.
    pub(crate) fn check_stopped(&self) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) { Err(Error::Stopped) } else { Ok(()) }
    }

    /// The tokens that the last step drew, in the order of the sequences.
    pub fn drawn(&self) -> &[Drawn] {
        &self.scheduler.drawn
    }

    /// The most likely tokens at a token that the last step drew, and their log-probabilities. Empty unless the request
    /// wants them, and for a group that the step has returned.
    pub fn top_logprobs(&self, drawn: &Drawn) -> (&[u32], &[f32]) {
        let index = self.scheduler.find(drawn.sequence);
        index.map_or((&[], &[]), |index| self.scheduler.sequences[index].top.at(drawn.index))
    }

    fn compute(&mut self, models: Models<'_>) -> Result<()> {
        self.scheduler.drawn.clear();
        let current = models.current_version();
        // If this step has no current weights, the previous ones stay current, so their keys and values are not stale.
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
        let version = models.current.map(|view| view.version());
        let computed = self.compute_chunks(Models::view(models.base(base)?, &adapters), version, began);
        self.adapters = reused(adapters);
        computed
    }

    fn compute_chunks(&mut self, model: ModelView<'_>, version: Option<Version>, began: Instant) -> Result<()> {
        let is_prompt = |chunk: &Chunk| chunk.from < self.scheduler.sequences[chunk.sequence].prompt_len;
        let is_prefill = self.chunks.iter().any(is_prompt);
        self.inputs.prepare(&self.scheduler, &self.chunks, &mut self.draws);
        let guesses = self.scheduler.count_drafts(&self.draws);
        let (rope, rows, kv, workspace) = (&self.rope, &self.inputs.rows, &mut self.kv, &mut self.workspace);
        let kept = self.keeper.as_ref().map(Keeper::activations);
        let mut kept = kept.as_ref().map(RolloutActivations::lock);
        let keeps = match (&mut self.keeper, &mut kept, version) {
            (Some(keeper), Some(kept), Some(version)) => {
                keeper.begin_step(kept, &self.scheduler, &self.chunks, version)
            }
            _ => false,
        };
        let hidden = match &mut kept {
            Some(kept) if keeps => {
                let first = kept.used;
                model::net::infer_keeping(&self.ctx, model, rope, rows, kv, workspace, (&mut kept.store, first))?;
                self.keeper.iter_mut().for_each(|keeper| keeper.computed(kept, &self.scheduler, &self.chunks));
                kept.store.hidden()
            }
            _ => {
                model::net::infer(&self.ctx, model, rope, rows, kv, workspace)?;
                workspace.hidden()
            }
        };
        self.scheduler.mark_computed(&self.chunks);
        // (On an asynchronous device, this includes the wait for the forward pass.)
        let drawing = Instant::now();
        self.scheduler.counters.ran(is_prefill, drawing - began);
        if self.wants_logits {
            let logits = self.logits.take().map_or_else(|| LogitRows::new(&self.ctx, model), Ok)?;
            let logits = self.logits.insert(logits);
            logits.record_prompts(&self.ctx, model, hidden, &mut self.scheduler, &self.chunks)?;
        }
        for (i, draws) in self.draws.chunks(self.sampler.capacity).enumerate() {
            if i > 0 {
                self.inputs.sample_from(&self.scheduler, draws);
            }
            let rows = &self.inputs.rows;
            let alternatives = match &mut self.logits {
                Some(logits) => logits.top_tokens(&self.ctx, model, hidden, &self.scheduler, draws)?,
                None => Vec::new(),
            };
            let sampled = self.sampler.sample(&self.ctx, model, hidden, rows, &self.scheduler, draws)?;
            let sampled = Sampled { alternatives: &alternatives, ..sampled };
            self.scheduler.postprocess(draws, sampled, &self.stop);
        }
        self.scheduler.share_prompts(&self.chunks);
        let (sequences, tokens) = (self.chunks.len(), self.scheduler.drawn.len());
        let counters = &mut self.scheduler.counters;
        counters.sampling_time += drawing.elapsed();
        if !is_prefill {
            counters.decode_passes += sequences as u64;
            counters.decoded_tokens += tokens as u64;
            let rows = self.chunks.iter().map(Chunk::rows).sum();
            let drawn_with_guesses = (guesses > 0).then_some(tokens);
            self.scheduler.measure(sequences, rows, drawn_with_guesses, began.elapsed());
        }
        Ok(())
    }

    /// The completions that have not ended: group id, index in the group, and tokens so far.
    pub fn live(&self) -> impl Iterator<Item = (GroupId, usize, &[u32])> {
        self.scheduler.sequences.iter().filter_map(|(_, s)| match (s.role, s.state) {
            (Role::Prompt, _) | (_, State::Finished(_)) => None,
            (Role::Completion(g), _) => {
                Some((self.scheduler.groups[s.group].request.group, g as usize, s.completion()))
            }
        })
    }

    /// The paused completions, in the order in which they were paused: sequence id, group id, index in the group, and
    /// tokens so far.
    pub fn paused(&self) -> Vec<(SequenceId, GroupId, usize, &[u32])> {
        let of = |&index: &usize| {
            let s = &self.scheduler.sequences[index];
            let id = SequenceId { index, serial: s.serial };
            (id, self.scheduler.groups[s.group].request.group, s.generation(), s.completion())
        };
        self.scheduler.paused().iter().map(of).collect()
    }

    /// The paused completions with their requests, in the order in which they were paused.
    pub(crate) fn paused_requests(&self) -> Vec<(SequenceId, RequestId)> {
        let of = |&index: &usize| {
            let s = &self.scheduler.sequences[index];
            let request = RequestId { index: s.group, serial: self.scheduler.groups[s.group].serial };
            (SequenceId { index, serial: s.serial }, request)
        };
        self.scheduler.paused().iter().map(of).collect()
    }

    /// Appends `tokens`, which the model did not sample (their mask is false), to a paused completion, and resumes it.
    /// Only these tokens are computed. If they fill the completion, it ends at once. Returns false if the completion is
    /// not paused or no longer exists.
    pub fn extend(&mut self, id: SequenceId, tokens: &[u32]) -> bool {
        let found = self.find_paused(id);
        found.inspect(|&index| self.scheduler.extend(index, tokens)).is_some()
    }

    /// Ends a paused completion. If it was the last of its group, the next step returns the group. Returns false if the
    /// completion is not paused.
    pub fn finish(&mut self, id: SequenceId) -> bool {
        let found = self.find_paused(id);
        found.inspect(|&index| self.scheduler.finish_paused(index)).is_some()
    }

    fn find_paused(&self, id: SequenceId) -> Option<usize> {
        self.scheduler.find(id).filter(|&index| self.scheduler.sequences[index].state == State::Paused)
    }

    /// Switches a completion to other weights from its next token on. The keys and values of its tokens so far are
    /// recomputed with the new weights. Returns false if the completion has ended.
    pub fn set_model(&mut self, id: SequenceId, model: ModelVersion) -> bool {
        let found = self.scheduler.find(id);
        found.inspect(|&index| self.scheduler.set_model(index, model)).is_some()
    }

    /// Sets draft tokens for a completion. The next step computes all of them and draws a token after each. The drawn
    /// tokens are the same as without draft tokens; a wrong draft only costs its rows. Ignored for a completion that
    /// has no token yet, is paused or has ended.
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

#[cfg(test)]
mod tests;
