//! Builds the parts of a run (trainers, scorers, engine), on the run's device, or on [`Device::Meta`] for the memory
//! plan. On `Device::Meta` no weights are read, and buffers are sized for the largest work. Runs and plans use the same
//! functions, so the plan counts every part of the run.
//!
//! [`Device::Meta`]: kernels::Device::Meta

use crate::config::{Config, trainer_config};
use crate::error::OrBadInput;
use crate::stop::StopSignal;
use kernels::ops::Passes;
use kernels::{Context, Memory};
use model::kept::RolloutActivations;
use model::{Capacity, ModelAssets, ModelConfig, Scorer, Sharing};
use rollout::{Engine, EngineConfig, SamplingParams};
use std::path::Path;
use std::sync::Arc;
use telemetry::Sinks;
use train::{Objective, RankMemory, Trainer, TrainerConfig};

/// The lengths of the longest prompt and the longest completion of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Tokens of the longest prompt.
    pub prompt: usize,
    /// Tokens of the longest completion.
    pub completion: usize,
}

impl Longest {
    /// The lengths, reduced so that prompt and completion together have at most `most` tokens.
    pub fn up_to(self, most: usize) -> Longest {
        let positions = self.positions().min(most);
        let completion = self.completion.min(positions);
        Longest { prompt: positions - completion, completion }
    }

    /// Tokens of prompt and completion together.
    pub fn positions(self) -> usize {
        self.prompt + self.completion
    }
}

/// The largest batch that a part of the run receives at once.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Sequences in the batch.
    pub completions: usize,
    /// The largest number of sequences that share one prompt.
    pub group: usize,
    /// Lengths of the longest prompt and completion.
    pub longest: Longest,
}

/// Builds the parts of a run (trainers, scorers, engine), or counts their memory for a plan.
pub struct Builder<'a> {
    /// The configuration of the run.
    pub config: &'a Config,
    /// The checkpoint from which the run resumes.
    pub checkpoint: Option<&'a Path>,
    /// Receives warnings and events.
    pub sinks: &'a Sinks,
    /// Cancels scoring and gradient computations.
    pub stop: &'a StopSignal,
    /// How workers read the trained weights, if there are any.
    pub sharing: Option<Sharing>,
    /// The number of ranks that divide the passes of a step, and how they read the trained weights; `None` for one
    /// process.
    pub ranks: Option<(usize, Sharing)>,
    target: Target,
}

/// Sizes in a memory plan that are not device allocations.
#[derive(Default)]
pub struct Counted {
    /// The largest sizes of a forward or backward pass.
    pub passes: Passes,
    /// Bytes of host memory for the text from which tokens are drafted.
    pub drafts: usize,
    /// The buffers and engines of other ranks, which are kept until they are counted.
    ranks: Vec<RankMemory>,
    engines: Vec<(Engine, Option<RolloutActivations>)>,
}

enum Target {
    /// Builds on the run's device.
    Run(Context),
    /// Counts on `Device::Meta`, with an allocation ledger for each named part.
    Plan(Vec<(String, Context)>, Counted),
}

impl<'a> Builder<'a> {
    /// A builder on the device of `ctx`.
    pub fn new(
        ctx: &Context,
        config: &'a Config,
        checkpoint: Option<&'a Path>,
        sinks: &'a Sinks,
        stop: &'a StopSignal,
    ) -> Builder<'a> {
        Builder { config, checkpoint, sinks, stop, sharing: None, ranks: None, target: Target::Run(ctx.clone()) }
    }

    /// A builder of the same parts on `Device::Meta`.
    pub fn on_meta(&self) -> Builder<'a> {
        let Builder { config, checkpoint, sinks, stop, .. } = *self;
        let (sharing, ranks) = (self.sharing.clone(), self.ranks.clone());
        let target = Target::Plan(Vec::new(), Counted::default());
        Builder { config, checkpoint, sinks, stop, sharing, ranks, target }
    }

    /// A builder of the parts of another configuration on `Device::Meta`.
    pub fn with<'b>(&self, config: &'b Config) -> Builder<'b>
    where
        'a: 'b,
    {
        Builder { config, ..self.on_meta() }
    }

    /// The number of ranks; 1 for one process.
    pub fn world_size(&self) -> usize {
        self.ranks.as_ref().map_or(1, |(world_size, _)| *world_size)
    }

    /// Whether this builder counts memory for a plan instead of building a run.
    pub fn is_plan(&self) -> bool {
        matches!(self.target, Target::Plan(..))
    }

    /// How other processes read the trained weights, if any do.
    pub fn shared_weights(&self) -> Option<&Sharing> {
        self.sharing.as_ref().or(self.ranks.as_ref().map(|(_, sharing)| sharing))
    }

    /// The device context of the part that the memory plan lists as `name`.
    pub fn part(&mut self, name: &str) -> Context {
        match &mut self.target {
            Target::Run(ctx) => ctx.clone(),
            Target::Plan(parts, _) => match parts.iter().find(|(known, _)| known == name) {
                Some((_, ctx)) => ctx.clone(),
                None => {
                    let ctx = Context::meta();
                    parts.push((name.to_owned(), ctx.clone()));
                    ctx
                }
            },
        }
    }

    /// A trainer: gradients, optimizer moments and buffers for optimizer steps on at most `work`. If `keeps`,
    /// activations of the rollout are kept, and a forward pass has at most one group.
    pub fn trainer(
        &mut self,
        name: &str,
        model: &Arc<ModelConfig>,
        objective: Objective,
        work: Work,
        keeps: bool,
    ) -> anyhow::Result<Trainer> {
        let ctx = self.part(name);
        let config = trainer_config(self.config, objective);
        let mut trainer = Trainer::new(ctx.memory(), model, config.clone())?;
        trainer.stop_with(self.stop.stop_check());
        if let Some((world_size, sharing)) = &self.ranks {
            trainer.divide(model, *world_size, sharing)?;
        }
        // A micro-batch has groups of one share.
        let groups = work.completions.div_ceil(work.group).div_ceil(self.config.gradient_shares);
        let work = Work { completions: work.completions.min(groups * work.group), ..work };
        if let Some(capacity) = self.reserves(model, work) {
            let tokens = groups * self.group_capacity(work, work.group).tokens;
            let group = self.group_capacity(work, work.group.min(work.completions).max(1)).tokens;
            let forwarded = if keeps { group } else { capacity.tokens };
            trainer.reserve(model, tokens, capacity, forwarded, work.longest.positions());
            self.count_ranks(name, model, &config, capacity, (forwarded, work.longest.positions()))?;
        }
        Ok(trainer)
    }

    /// In a plan, counts the memory of the other ranks for the trainer `name`.
    fn count_ranks(
        &mut self,
        name: &str,
        model: &ModelConfig,
        config: &TrainerConfig,
        capacity: Capacity,
        (forwarded, positions): (usize, usize),
    ) -> anyhow::Result<()> {
        let Some((world_size, _)) = self.ranks else { return Ok(()) };
        for rank in 1..world_size {
            let ctx = self.part(&format!("rank {rank}: {name}"));
            let mut memory = RankMemory::new(ctx.memory(), model, config, [rank, world_size])?;
            memory.reserve(model, capacity, forwarded, positions);
            if let Target::Plan(_, counted) = &mut self.target {
                counted.ranks.push(memory);
            }
        }
        Ok(())
    }

    /// A scorer, which computes log-probabilities of at most `work` under a model of this shape.
    pub fn scorer(&mut self, name: &str, model: &ModelConfig, work: Work) -> Scorer {
        let ctx = self.part(name);
        let mut scorer = Scorer::new(ctx.memory(), self.config.micro_batch_tokens(), self.config.prefix_sharing);
        scorer.stop_with(self.stop.stop_check());
        self.reserve(&mut scorer, model, work);
        scorer
    }

    /// In a plan, counts the memory of a scorer's largest batch; otherwise does nothing.
    pub fn reserve(&mut self, scorer: &mut Scorer, model: &ModelConfig, work: Work) {
        if let Some(capacity) = self.reserves(model, work) {
            scorer.reserve(model, capacity, work.longest.positions());
        }
    }

    /// The generation engine. `drawn` lists all sampling parameters that it will use.
    pub fn engine(
        &mut self,
        assets: &ModelAssets,
        sizes: EngineConfig,
        drawn: &[&SamplingParams],
    ) -> anyhow::Result<Engine> {
        let ctx = self.part("generation");
        if let Target::Plan(_, Counted { passes, drafts, .. }) = &mut self.target {
            *drafts += sizes.draft_bytes();
            let rows = Capacity { tokens: sizes.rows(), blocks: sizes.kv_blocks, score_rows: 0 };
            note(passes, self.config, &assets.config, rows, sizes.max_model_len);
            passes.sequences = passes.sequences.max(sizes.draws());
            passes.whole |= drawn.iter().any(|sampling| sampling.needs_logits());
        }
        let mut engine = Engine::new(&ctx, &assets.config, sizes).or_bad_input()?;
        engine.set_detokenizer(assets.tokenizer.clone());
        engine.stop_with(self.stop.flag());
        Ok(engine)
    }

    /// In a plan, counts the engines of the other ranks, which have the same sizes as that of this process, and the
    /// activations that they keep (`kept_rows` of at most `whole` rows).
    pub fn count_rank_engines(
        &mut self,
        model: &ModelConfig,
        sizes: &EngineConfig,
        (kept_rows, whole): (usize, usize),
    ) -> anyhow::Result<()> {
        let ranks = if self.is_plan() { 1..self.world_size() } else { 0..0 };
        for rank in ranks {
            let ctx = self.part(&format!("rank {rank}: generation"));
            let engine = Engine::new(&ctx, model, sizes.clone()).or_bad_input()?;
            let kept = || RolloutActivations::new(ctx.memory(), model, kept_rows, sizes.rows(), whole);
            let kept = (kept_rows > 0).then(kept);
            if let Target::Plan(_, counted) = &mut self.target {
                counted.drafts += sizes.draft_bytes();
                counted.engines.push((engine, kept));
            }
        }
        Ok(())
    }

    /// The allocation ledger of each part of a plan, and the sizes that no ledger records.
    pub fn counted(self) -> (Vec<(String, Memory)>, Counted) {
        match self.target {
            Target::Run(_) => Default::default(),
            Target::Plan(parts, counted) => {
                (parts.into_iter().map(|(name, ctx)| (name, ctx.memory().clone())).collect(), counted)
            }
        }
    }

    /// In a plan, the size of the largest micro-batch of `work`, to be allocated now; `None` in a run, since the
    /// buffers of a run grow with its micro-batches.
    fn reserves(&mut self, model: &ModelConfig, work: Work) -> Option<Capacity> {
        let group = work.group.min(work.completions).max(1);
        let (group_capacity, most) = (self.group_capacity(work, group), self.config.micro_batch_tokens());
        let Target::Plan(_, Counted { passes, .. }) = &mut self.target else { return None };
        let groups = work.completions.div_ceil(group);
        let capacity = Capacity::for_micro_batch(group_capacity, groups, work.completions, most);
        note(passes, self.config, model, capacity, work.longest.positions());
        Some(capacity)
    }

    /// The size of a group of `group` completions with the greatest lengths.
    fn group_capacity(&self, work: Work, group: usize) -> Capacity {
        Capacity::for_group(work.longest.prompt, &vec![work.longest.completion; group], self.config.prefix_sharing)
    }
}

/// Raises the maxima in `passes` to the sizes of one pass through `model`.
fn note(passes: &mut Passes, config: &Config, model: &ModelConfig, capacity: Capacity, positions: usize) {
    let mut most = |of: fn(&mut Passes) -> &mut usize, n: usize| *of(passes) = n.max(*of(passes));
    most(|p| &mut p.tokens, capacity.tokens);
    most(|p| &mut p.pages, capacity.blocks);
    most(|p| &mut p.positions, positions);
    most(|p| &mut p.vocab, model.vocab_size);
    most(|p| &mut p.heads, model.num_heads);
    if let Some(lora) = config.adapter() {
        // The adapters of queries, keys and values are stacked in one matrix.
        most(|p| &mut p.rank, 3 * lora.r);
        let widest = model.intermediate_size.max(model.hidden_size);
        most(|p| &mut p.dropped, if lora.dropout > 0.0 { widest } else { 0 });
    }
}
