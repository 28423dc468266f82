//! The engine: schedule, run the model, sample, postprocess.

use crate::config::EngineConfig;
use crate::inputs::StepInputs;
use crate::request::{Detokenize, Request, RolloutGroup, SequenceId};
use crate::sampler::SamplerBuffers;
use crate::scheduler::{Chunk, Limits, Scheduler};
use crate::sequence::{Draw, Role, State};
use crate::stop::StopCheck;
use crate::{Error, Result};
use kernels::{Context, Memory};
use model::kv::{BLOCK, KvCache};
use model::net::{Rope, Workspace};
use model::weights::Version;
use model::{ModelConfig, ModelView};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Owns pages and sequences, never weights.
pub struct Engine {
    ctx: Context,
    config: EngineConfig,
    scheduler: Scheduler,
    rope: Rope,
    kv: KvCache,
    inputs: StepInputs,
    workspace: Workspace,
    sampler: SamplerBuffers,
    stop: StopCheck,
    /// Set from outside: no further step is wanted.
    stopped: Arc<AtomicBool>,
    /// Version of the weights that the pages were computed with.
    version: Option<Version>,
    /// Of the step: rows, pages to copy before it, tokens to draw after it.
    chunks: Vec<Chunk>,
    copies: Vec<(u32, u32)>,
    draws: Vec<Draw>,
}

impl Engine {
    /// An engine for models of this shape. Its pages are booked under "kv cache", its buffers under "workspace".
    pub fn new(ctx: &Context, model: &ModelConfig, config: EngineConfig) -> Result<Engine> {
        Engine::on(ctx, ctx.memory(), model, config)
    }

    /// [`new`](Self::new) with its buffers on `memory`: on `Device::Meta` it only counts them.
    pub fn on(ctx: &Context, memory: &Memory, model: &ModelConfig, config: EngineConfig) -> Result<Engine> {
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
            scheduler: scheduler(&config),
            rope: Rope::new(memory, model, config.max_model_len),
            kv: KvCache::new(memory, model, config.kv_blocks),
            inputs: StepInputs::new(memory, max_rows, &config),
            workspace: Workspace::new(memory, model, max_rows),
            sampler: SamplerBuffers::new(memory, model, config.max_num_seqs),
            stop: StopCheck::default(),
            stopped: Arc::default(),
            version: None,
            chunks: Vec::new(),
            copies: Vec::new(),
            draws: Vec::with_capacity(config.max_num_seqs),
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
        self.version = None;
    }

    /// What it was made with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Pages that nobody holds.
    pub fn free_blocks(&self) -> usize {
        self.scheduler.blocks.available()
    }

    /// Sequences preempted so far because pages ran out.
    pub fn preemptions(&self) -> u64 {
        self.scheduler.preemptions
    }

    /// Takes a request in.
    pub fn submit(&mut self, request: Request) -> Result<()> {
        let (prompt, max_model_len) = (request.prompt.ids.len(), self.config.max_model_len);
        if prompt == 0 {
            return Err(Error::EmptyPrompt);
        }
        if prompt >= max_model_len {
            return Err(Error::PromptTooLong { prompt, max_model_len });
        }
        self.scheduler.submit(Arc::new(request), self.config.prefix_sharing);
        Ok(())
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
        let groups = self.generate_all(model.into(), requests, on_end);
        if groups.is_err() {
            self.scheduler.clear();
        }
        groups
    }

    fn generate_all(
        &mut self,
        model: ModelView<'_>,
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
            self.compute(model)?;
            let ended = self.scheduler.take_finished();
            ended.iter().for_each(|(_, group)| on_end(group));
            groups.extend(ended);
        }
        groups.sort_unstable_by_key(|(place, _)| *place);
        Ok(groups.into_iter().map(|(_, group)| group).collect())
    }

    /// One step, with the same adapter, or none, for every sequence. Returns the groups that it ended.
    pub fn step<'a>(&mut self, model: impl Into<ModelView<'a>>) -> Result<Vec<RolloutGroup>> {
        self.compute(model.into())?;
        Ok(self.scheduler.take_finished().into_iter().map(|(_, group)| group).collect())
    }

    fn compute(&mut self, model: ModelView<'_>) -> Result<()> {
        let version = model.version();
        if self.version != Some(version) {
            self.scheduler.invalidate();
            self.version = Some(version);
        }
        self.scheduler.schedule(&mut self.chunks, &mut self.copies);
        for &(from, to) in &self.copies {
            self.kv.copy_block(&self.ctx, from, to)?;
        }
        if !self.chunks.is_empty() {
            self.inputs.prepare(&self.scheduler, &self.chunks, &mut self.draws);
            let (rope, rows, kv, workspace) = (&self.rope, &self.inputs.rows, &mut self.kv, &mut self.workspace);
            model::net::infer(&self.ctx, model, rope, rows, kv, workspace)?;
            self.scheduler.mark_computed(&self.chunks);
            for (i, draws) in self.draws.chunks(self.sampler.capacity).enumerate() {
                if i > 0 {
                    self.inputs.sample_from(&self.scheduler, draws);
                }
                let (hidden, rows) = (self.workspace.hidden(), &self.inputs.rows);
                let (ids, logps) = self.sampler.sample(&self.ctx, model, hidden, rows, &self.scheduler, draws)?;
                self.scheduler.postprocess(draws, ids, logps, version.trained(), &self.stop);
            }
            self.scheduler.share_prompts(&self.chunks);
        }
        Ok(())
    }

    /// The sampler's log-probabilities of the completions that have not ended.
    pub fn live_logps(&self) -> impl Iterator<Item = &[f32]> {
        self.scheduler.sequences.iter().map(|s| s.logps.as_slice())
    }

    /// The completions that have not ended: group, generation, and the tokens so far.
    pub fn live(&self) -> impl Iterator<Item = (u64, usize, &[u32])> {
        self.scheduler.sequences.iter().filter_map(|s| match (s.role, s.state) {
            (Role::Prompt, _) | (_, State::Finished(_)) => None,
            (Role::Completion(g), _) => Some((self.scheduler.groups[s.group].request.id, g as usize, s.completion())),
        })
    }

    /// The paused completions: id, group, generation, and the tokens so far.
    pub fn paused(&self) -> Vec<(SequenceId, u64, usize, &[u32])> {
        let all = self.scheduler.sequences.iter().enumerate().filter(|(_, s)| s.state == State::Paused);
        all.filter_map(|(id, s)| match s.role {
            Role::Completion(g) => {
                let group = self.scheduler.groups[s.group].request.id;
                Some((SequenceId(id), group, g as usize, s.completion()))
            }
            Role::Prompt => None,
        })
        .collect()
    }

    /// Goes on with a paused completion after `tokens` that the model did not sample (their mask is false). It ends at
    /// once if they fill it.
    pub fn extend(&mut self, id: SequenceId, tokens: &[u32]) {
        self.scheduler.extend(id.0, tokens, self.version.map_or(0, Version::trained));
    }

    /// Ends a paused completion; the next step returns its group, if it was the last.
    pub fn finish(&mut self, id: SequenceId) {
        self.scheduler.finish_paused(id.0);
    }
}

fn scheduler(config: &EngineConfig) -> Scheduler {
    let limits = Limits {
        max_num_seqs: config.max_num_seqs,
        max_rows: config.rows(),
        max_model_len: config.max_model_len,
        chunked_prefill: config.chunked_prefill,
    };
    Scheduler::new(config.kv_blocks, limits)
}
