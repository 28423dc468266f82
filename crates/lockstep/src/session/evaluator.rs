//! Evaluation outside a run: completions of held-out prompts by a given model, judged by the rewards of a
//! configuration, as a run evaluates its own model.

use crate::config::{Config, EvalSampling, WorkloadBounds, engine_config, sampling};
use crate::data::DatasetSpec;
use crate::data::prompt_dataset::context;
use crate::error::OrBadInput;
use crate::models::{Policy, load_assets};
use crate::rollouts::collector::{Collector, Observer};
use crate::rollouts::evaluate::{EvalSet, Evaluation, Outcome, load_sets, with_sets};
use crate::rollouts::rewards::{load_rewards, named_rewards};
use crate::run::memory_plan::{Available, plan_evaluation};
use crate::stop::StopSignal;
use kernels::Context;
use model::Head;
use rewards::Content;
use rollout::{Engine, SamplingParams};
use std::path::Path;
use telemetry::Stages;

/// Held-out prompts and the rewards that score their completions, for models that share a tokenizer and a shape.
pub struct Evaluator {
    config: Config,
    sets: Vec<EvalSet>,
    sampling: SamplingParams,
    collector: Collector,
    template: Option<String>,
}

impl Evaluator {
    /// Reads the data that `eval_dataset_name` and `eval_datasets` name, as the tokenizer in the directory `model`
    /// encodes it, and the rewards. Once `stop` is given, an evaluation is given up.
    pub fn new(ctx: &Context, config: Config, model: &Path, stop: StopSignal) -> anyhow::Result<Evaluator> {
        let assets = load_assets(model, Head::Lm, config.dtype)?;
        let rewards = named_rewards(&config, Vec::new(), &stop)?;
        let mut specs = DatasetSpec::eval_sets(&config);
        specs.iter_mut().for_each(|(_, spec)| spec.stop = stop.clone());
        let sets = load_sets(specs, &config, &assets, &rewards)?;
        let bounds = with_sets(WorkloadBounds::of_prompts(0, 0), &sets, &config);
        let plan = plan_evaluation(&config, &assets, bounds)?.on(ctx.memory().device());
        plan.check(Available::of(ctx), &config)?;
        let rewards = load_rewards(rewards, &config, ctx, &stop)?;
        let sizes = engine_config(&config, context(&config, &assets), bounds);
        let mut engine = Engine::new(ctx, &assets.config, sizes).or_bad_input()?;
        engine.set_detokenizer(assets.tokenizer.clone());
        engine.stop_with(stop.flag());
        let sampling = sampling(&config, &assets.eos_ids);
        let template = assets.chat.map(|template| template.source().to_owned());
        let collector = Collector { engine, function: None, rewards, tokenizer: assets.tokenizer, stop };
        Ok(Evaluator { config, sets, sampling, collector, template })
    }

    /// The prompts of all sets, in the order of the outcomes' groups.
    pub fn prompts(&self) -> impl Iterator<Item = &Content> {
        self.sets.iter().flat_map(|set| &set.questions.all).map(|question| &question.content)
    }

    /// The tokens of the first prompt.
    pub fn first_prompt(&self) -> &[u32] {
        self.sets.first().and_then(|set| set.questions.all.first()).map_or(&[], |question| &question.tokens.ids)
    }

    /// The chat template that renders prompts which are conversations, where the model has one.
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// The completions of `policy`, and what they are worth, by set.
    pub fn evaluate(&mut self, policy: &Policy, eval_sampling: EvalSampling) -> anyhow::Result<Vec<Outcome>> {
        self.config.eval_sampling = eval_sampling;
        let rewards = &self.collector.rewards;
        let evaluation = Evaluation::new(&self.config, self.sets.clone(), &self.sampling, rewards)?;
        let weights = self.config.weights_of_rewards();
        // Nobody looks on.
        let observer = Observer { stages: &Stages::default(), on_wait: &|_, _| {} };
        evaluation.run(&mut self.collector, policy, &weights, 0, &observer)
    }
}
