//! Builds what a run computes with: on the run's device; or, for its memory plan, on [`Device::Meta`], where no weights
//! are read and buffers are reserved for the largest work. A plan calls the functions that build the run, so that it
//! has every part of it.
//!
//! [`Device::Meta`]: kernels::Device::Meta

use crate::config::{Config, trainer_config};
use crate::error::OrBadInput;
use crate::stop::StopSignal;
use kernels::ops::Passes;
use kernels::{Context, Memory};
use model::{Capacity, ModelAssets, ModelConfig, Scorer, Sharing};
use rollout::{Engine, EngineConfig, SamplingParams};
use std::path::Path;
use std::sync::Arc;
use telemetry::Sinks;
use train::{Objective, Trainer};

/// The longest prompt and the longest completion that meet in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the completion.
    pub completion: usize,
}

impl Longest {
    /// Tokens of both.
    pub fn positions(self) -> usize {
        self.prompt + self.completion
    }
}

/// The largest work that a part is given at once.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Sequences.
    pub completions: usize,
    /// Sequences that may share a prompt.
    pub group: usize,
    /// Their lengths.
    pub longest: Longest,
}

/// What the parts of a run are built with.
pub struct Builder<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The checkpoint that the run begins from.
    pub checkpoint: Option<&'a Path>,
    /// What is noticed.
    pub sinks: &'a Sinks,
    /// Ends scoring and gradients.
    pub stop: &'a StopSignal,
    /// How other processes read what is trained.
    pub sharing: Option<Sharing>,
    target: Target,
}

/// What no ledger of a plan has.
#[derive(Default)]
pub struct Counted {
    /// The largest passes through its models.
    pub passes: Passes,
    /// Bytes of the host that tokens are guessed from.
    pub drafts: usize,
}

enum Target {
    /// On the run's device.
    Run(Context),
    /// On `Device::Meta`, with a ledger for each name.
    Plan(Vec<(String, Context)>, Counted),
}

impl<'a> Builder<'a> {
    /// Builds on the device of `ctx`.
    pub fn new(
        ctx: &Context,
        config: &'a Config,
        checkpoint: Option<&'a Path>,
        sinks: &'a Sinks,
        stop: &'a StopSignal,
    ) -> Builder<'a> {
        Builder { config, checkpoint, sinks, stop, sharing: None, target: Target::Run(ctx.clone()) }
    }

    /// The same parts on `Device::Meta`.
    pub fn on_meta(&self) -> Builder<'a> {
        let Builder { config, checkpoint, sinks, stop, .. } = *self;
        let (sharing, target) = (self.sharing.clone(), Target::Plan(Vec::new(), Counted::default()));
        Builder { config, checkpoint, sinks, stop, sharing, target }
    }

    /// Whether this counts memory, and computes nothing.
    pub fn is_plan(&self) -> bool {
        matches!(self.target, Target::Plan(..))
    }

    /// What a part is built with that the plan calls `name`.
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

    /// Gradients, moments and buffers for optimizer steps on `work`.
    pub fn trainer(
        &mut self,
        name: &str,
        model: &Arc<ModelConfig>,
        objective: Objective,
        work: Work,
    ) -> anyhow::Result<Trainer> {
        let ctx = self.part(name);
        let mut trainer = Trainer::new(ctx.memory(), model, trainer_config(self.config, objective))?;
        trainer.stop_with(self.stop.of_passes());
        if let Some(capacity) = self.reserves(model, work) {
            let tokens = work.completions.div_ceil(work.group) * self.of_group(work, work.group).tokens;
            trainer.reserve(model, tokens, capacity, work.longest.positions());
        }
        Ok(trainer)
    }

    /// What scores `work` under a model of this shape.
    pub fn scorer(&mut self, name: &str, model: &ModelConfig, work: Work) -> Scorer {
        let ctx = self.part(name);
        let mut scorer = Scorer::new(ctx.memory(), self.config.micro_batch_tokens(), self.config.prefix_sharing);
        scorer.stop_with(self.stop.of_passes());
        self.reserve(&mut scorer, model, work);
        scorer
    }

    /// For a plan, takes the memory of a scorer's largest work.
    pub fn reserve(&mut self, scorer: &mut Scorer, model: &ModelConfig, work: Work) {
        if let Some(capacity) = self.reserves(model, work) {
            scorer.reserve(model, capacity, work.longest.positions());
        }
    }

    /// What generates, and draws tokens in these ways.
    pub fn engine(
        &mut self,
        assets: &ModelAssets,
        sizes: EngineConfig,
        drawn: &[&SamplingParams],
    ) -> anyhow::Result<Engine> {
        let ctx = self.part("generation");
        if let Target::Plan(_, Counted { passes, drafts }) = &mut self.target {
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

    /// The ledgers of a plan by name, and what is in none.
    pub fn counted(self) -> (Vec<(String, Memory)>, Counted) {
        match self.target {
            Target::Run(_) => Default::default(),
            Target::Plan(parts, counted) => {
                (parts.into_iter().map(|(name, ctx)| (name, ctx.memory().clone())).collect(), counted)
            }
        }
    }

    /// The largest micro-batch of `work`, where its memory is taken now: in a run it grows with the micro-batches.
    fn reserves(&mut self, model: &ModelConfig, work: Work) -> Option<Capacity> {
        let group = work.group.min(work.completions).max(1);
        let (of_group, most) = (self.of_group(work, group), self.config.micro_batch_tokens());
        let Target::Plan(_, Counted { passes, .. }) = &mut self.target else { return None };
        let groups = work.completions.div_ceil(group);
        let capacity = Capacity::of_micro_batch(of_group, groups, work.completions, most);
        note(passes, self.config, model, capacity, work.longest.positions());
        Some(capacity)
    }

    /// The largest group of `group` completions.
    fn of_group(&self, work: Work, group: usize) -> Capacity {
        Capacity::of_group(work.longest.prompt, &vec![work.longest.completion; group], self.config.prefix_sharing)
    }
}

/// Enters a pass through a model into the largest ones.
fn note(passes: &mut Passes, config: &Config, model: &ModelConfig, capacity: Capacity, positions: usize) {
    let mut most = |of: fn(&mut Passes) -> &mut usize, n: usize| *of(passes) = n.max(*of(passes));
    most(|p| &mut p.tokens, capacity.tokens);
    most(|p| &mut p.pages, capacity.blocks);
    most(|p| &mut p.positions, positions);
    most(|p| &mut p.vocab, model.vocab_size);
    most(|p| &mut p.heads, model.num_heads);
    if let Some(lora) = config.adapter() {
        // The adapters of queries, keys and values lie one below the other.
        most(|p| &mut p.rank, 3 * lora.r);
        let widest = model.intermediate_size.max(model.hidden_size);
        most(|p| &mut p.dropped, if lora.dropout > 0.0 { widest } else { 0 });
    }
}
