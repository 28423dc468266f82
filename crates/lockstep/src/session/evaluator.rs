//! Evaluation outside a run: completions of held-out prompts by a given model, scored by the rewards of a
//! configuration.

use crate::config::{ComputeDType, Config, EvalSampling, WorkloadBounds, engine_config, sampling};
use crate::data::DatasetSpec;
use crate::data::prompt_dataset::{PromptDataset, context};
use crate::error::{BadInput, OrBadInput};
use crate::models::{Policy, load_assets};
use crate::rollouts::evaluate::{Evaluation, Outcome};
use crate::rollouts::rewards::{check_columns, load_rewards, named_rewards};
use crate::run::stop::StopSignal;
use kernels::Context;
use model::Head;
use rewards::{Content, Reward};
use rollout::{Engine, SamplingParams};
use std::path::Path;

/// Held-out prompts and the rewards that score their completions, for models that share a tokenizer and a shape.
pub struct Evaluator {
    config: Config,
    prompts: PromptDataset,
    rewards: Vec<Box<dyn Reward>>,
    sampling: SamplingParams,
    engine: Engine,
    stop: StopSignal,
}

impl Evaluator {
    /// Reads the data that `eval_dataset_name` names, as the tokenizer in the directory `model` encodes it, and the
    /// rewards. Once `stop` is given, an evaluation is given up.
    pub fn new(ctx: &Context, config: Config, model: &Path, stop: StopSignal) -> anyhow::Result<Evaluator> {
        let assets = load_assets(model, Head::Lm, ComputeDType::F32)?;
        let rewards = named_rewards(&config, Vec::new())?;
        let Some(spec) = DatasetSpec::eval(&config) else { return Err(BadInput::new("no data: give --dataset FILE")) };
        let prompts = PromptDataset::load(&spec, &config, &assets, config.max_completion_length)?;
        check_columns(&prompts, &spec.name, &rewards)?;
        let rewards = load_rewards(rewards, &config, ctx, &stop.flag())?;
        let bounds = WorkloadBounds::of_prompts(prompts.longest(), prompts.all.len() * config.generations_eval());
        let sizes = engine_config(&config, context(&config, &assets), bounds);
        let mut engine = Engine::new(ctx, &assets.config, sizes).or_bad_input()?;
        engine.stop_with(stop.flag());
        let sampling = sampling(&config, &assets.eos_ids);
        Ok(Evaluator { config, prompts, rewards, sampling, engine, stop })
    }

    /// The prompts, in the order of the outcome's groups.
    pub fn prompts(&self) -> impl Iterator<Item = &Content> {
        self.prompts.all.iter().map(|prompt| &prompt.content)
    }

    /// The completions of `policy`, and what they are worth.
    pub fn evaluate(&mut self, policy: &Policy, eval_sampling: EvalSampling) -> anyhow::Result<Outcome> {
        self.config.eval_sampling = eval_sampling;
        let evaluation = Evaluation::new(&self.config, &self.prompts, &self.sampling);
        let weights = self.config.weights_of_rewards();
        let outcome = evaluation.run(&mut self.engine, policy, &mut self.rewards, &weights, 0)?;
        // Rewards that nobody waits for may have said anything.
        self.stop.check()?;
        Ok(outcome)
    }
}
