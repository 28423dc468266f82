//! Evaluation without a training run: a model completes held-out prompts, and the configured rewards score the
//! completions, as a run evaluates its own model.

use crate::config::{Config, EvalSampling, Purpose, WorkloadBounds, engine_config, eval_sampling, sampling};
use crate::data::DatasetSpec;
use crate::data::prompt_dataset::context;
use crate::error::OrBadInput;
use crate::models::{Builder, Longest, Policy, Work, load_generator, load_weights};
use crate::rollouts::collector::{Collector, Observer};
use crate::rollouts::evaluate::{EvalSet, Evaluation, Outcome, load_sets, with_sets};
use crate::rollouts::notices;
use crate::rollouts::rewards::{models, named_rewards, ready_rewards};
use crate::run::memory_advice::Replan;
use crate::run::memory_plan::{Available, planned};
use crate::stop::StopSignal;
use kernels::Context;
use model::ModelAssets;
use model::chat::PromptTime;
use rewards::{Content, RewardModel};
use rollout::{Engine, SamplingParams};
use std::path::Path;
use telemetry::{Sinks, Stages, Step};

/// Held-out prompts, and the rewards that score their completions. Works for all models with the same tokenizer and
/// shape.
pub struct Evaluator {
    config: Config,
    sets: Vec<EvalSet>,
    sampling: SamplingParams,
    collector: Collector,
    template: Option<String>,
}

impl Evaluator {
    /// Reads the rewards, and the datasets of `eval_dataset_name` and `eval_datasets`, encoded with the tokenizer in
    /// the directory `model`. Chat templates use `time` as the current time. Messages go to `sinks`. A stop request
    /// cancels an evaluation.
    pub fn new(
        ctx: &Context,
        config: Config,
        (model, time): (&Path, PromptTime),
        sinks: &Sinks,
        stop: StopSignal,
    ) -> anyhow::Result<Evaluator> {
        let assets = load_generator(model, &config, time)?;
        let rewards = named_rewards(&config, Vec::new(), time, &stop)?;
        let mut specs = DatasetSpec::eval_sets(&config);
        for (_, spec) in &mut specs {
            spec.stop = stop.clone();
        }
        let sets = load_sets(specs, &config, &assets, &rewards)?;
        notices::other_sampling(&config, &assets.files)?.iter().for_each(|line| sinks.info(line));
        for set in &sets {
            set.questions.notices.report(sinks);
        }
        let prompts = sets.iter().flat_map(|set| &set.questions.all);
        notices::unseen_tags(&config, &assets, prompts)?.iter().for_each(|sentence| sinks.warn(sentence));
        let bounds = with_sets(WorkloadBounds::for_prompts(0, 0), &sets, &config);
        let sampling = sampling(&config, &assets.eos_ids);
        let longest = Longest { prompt: bounds.longest_prompt, completion: config.max_completion_length };
        let drawn = eval_sampling(&config, &sampling);
        let build = |builder: &mut Builder<'_>, assets: &ModelAssets| -> anyhow::Result<(Engine, Vec<RewardModel>)> {
            let sizes = engine_config(builder.config, context(builder.config, assets), bounds);
            let engine = builder.engine(assets, sizes, &[&drawn])?;
            let longest = Longest { completion: builder.config.max_completion_length, ..longest };
            let work = Work { completions: bounds.sequences, group: builder.config.generations_eval(), longest };
            let models = models(&rewards).map(|files| files.build(builder, work)).collect::<anyhow::Result<_>>()?;
            Ok((engine, models))
        };
        let mut builder = Builder::new(ctx, &config, None, sinks, &stop);
        let again = |changed: &Config| {
            let assets = assets.clone().computing_in(changed.dtype.dtype()).or_bad_input()?;
            let plan = planned(&builder.with(changed), &assets.config, longest, |meta| {
                // Counts the policy, which the caller loads.
                let weights = load_weights(&meta.part(""), model, &assets.config)?;
                Ok((weights, build(meta, &assets)?))
            })?;
            Ok(plan.on(ctx.memory().device()))
        };
        let replan = Replan { purpose: Purpose::Eval, config: &config, resumes: false, plan: &again };
        replan.check(&again(&config)?, &Available::of(ctx))?;
        let (engine, models) = build(&mut builder, &assets)?;
        let rewards = ready_rewards(rewards, models, &stop);
        let template = assets.chat.map(|template| template.source().to_owned());
        let collector = Collector { engine, divided: None, function: None, rewards, tokenizer: assets.tokenizer, stop };
        Ok(Evaluator { config, sets, sampling, collector, template })
    }

    /// The prompts of all sets, in the order of the outcomes' groups.
    pub fn prompts(&self) -> impl Iterator<Item = &Content> {
        self.sets.iter().flat_map(|set| &set.questions.all).map(|question| &question.content)
    }

    /// The token ids of the first prompt; empty without prompts.
    pub fn first_prompt(&self) -> &[u32] {
        self.sets.first().and_then(|set| set.questions.all.first()).map_or(&[], |question| &question.tokens.ids)
    }

    /// The source of the model's chat template, if the model has one.
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Generates and scores completions of `policy`. Returns the outcome of each set.
    pub fn evaluate(&mut self, policy: &Policy, eval_sampling: EvalSampling) -> anyhow::Result<Vec<Outcome>> {
        self.config.eval_sampling = eval_sampling;
        let rewards = &self.collector.rewards;
        let evaluation = Evaluation::new(&self.config, self.sets.clone(), &self.sampling, rewards)?;
        let weights = self.config.weights_of_rewards();
        // Nothing observes the evaluation.
        let observer = Observer { stages: &Stages::default(), on_wait: &|_, _| {} };
        evaluation.run(&mut self.collector, policy, &weights, Step::START, &observer)
    }
}
