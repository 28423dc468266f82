//! Reward models: learned from pairs of answers, the training.
//!
//! Training stands here; [`evaluation`] says how good a model is on held-out pairs, `rollouts/reward_model.rs` makes it one of
//! the rewards of a run. A model is the trunk of a language model under a head of one score (transformers'
//! `…ForSequenceClassification` with one label); the score of a text is that of its last token that is no padding.

mod evaluation;

use super::{count_tokens, steps_over_rows};
use crate::config::{Config, Purpose, trainer_config};
use crate::data::prompt_dataset::{context, encoder};
use crate::data::{DatasetSpec, Pair, Pairs};
use crate::error::BadInput;
use crate::models::{ModelAssets, ModelSource, Policy, trained_scorer};
use crate::run::inputs::RunInputs;
use crate::run::memory_plan::{self, MemoryPlan};
use crate::run::task::{NextBatch, TrainingTask};
use crate::run::training::{RunSetup, TrainingRun, sampler};
use model::{Head, Scorer};
use telemetry::Sinks;
use train::{Objective, PreferencePair, Trainer};

/// A run's own part.
pub struct RewardModel {
    pairs: Vec<PreferencePair>,
    held_out: Option<(Vec<PreferencePair>, Scorer)>,
    batch: Vec<PreferencePair>,
}

impl TrainingTask for RewardModel {
    fn next_batch(&mut self, run: &mut TrainingRun) -> anyhow::Result<NextBatch> {
        self.batch = run.sampler.next_batch().into_iter().map(|i| self.pairs[i].clone()).collect();
        run.num_tokens += count_tokens(&self.batch);
        Ok(NextBatch::Ready)
    }

    fn step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        run.update_policy(&self.batch)?;
        Ok(())
    }

    /// How the model ranks held-out pairs.
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let Some((pairs, scorer)) = &mut self.held_out else { return Ok(None) };
        let _span = run.stages.span("evaluation");
        evaluation::evaluate(&run.ctx, &run.policy.weights, scorer, &run.config.ranking(), pairs).map(Some)
    }

    fn evaluates_at_end(&self) -> bool {
        true
    }

    fn shown_metrics(&self) -> &'static [&'static str] {
        &["loss", "accuracy", "margin"]
    }
}

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(inputs: RunInputs) -> anyhow::Result<(RewardModel, TrainingRun)> {
    let (config, ctx) = (inputs.config().clone(), inputs.ctx.clone());
    let found = ModelSource::of(&config, Head::Score(1))?;
    let assets = ModelAssets::load_scorer(&found.dir)?.computing_in(config.dtype)?;
    let Some(spec) = inputs.train_data() else { return Err(BadInput::new("no training data")) };
    let (pairs, data_hash) = samples(&config, &spec, &assets, &inputs.sinks)?;
    let scorer = || Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
    let held_out = match inputs.eval_data() {
        Some(spec) => Some((samples(&config, &spec, &assets, &inputs.sinks)?.0, scorer())),
        None => None,
    };
    planned(&config, &assets, &pairs, held_out.as_ref().map_or(&[], |(pairs, _)| pairs))?
        .check(MemoryPlan::available_bytes(), &config)?;
    let sampler = sampler(pairs.len(), config.completions_per_step(), &config)?;
    let chunks = sampler.chunks_per_epoch();
    let weights = trained_scorer(&ctx, &found, inputs.resume_from.checkpoint(), &config)?;
    let trainer =
        Trainer::new(ctx.memory(), &assets.config, trainer_config(&config, Objective::Ranking(config.ranking())))?;
    let policy = Policy::of(found.dir, assets, weights);
    inputs.sinks.info(&policy.describe(&ctx));
    let of_held_out = held_out.as_ref().map_or(String::new(), |(pairs, _)| format!(", {} held out", pairs.len()));
    inputs.sinks.info(&format!("{} pairs to learn from{of_held_out}", pairs.len()));
    let setup = RunSetup {
        policy,
        trainer,
        sampler,
        steps_per_epoch: chunks as u64,
        total_steps: steps_over_rows(&config, chunks),
        data_hash,
        purpose: Purpose::Reward,
        label: "reward",
        evaluation_metrics: [
            "eval_loss",
            "eval_accuracy",
            "eval_margin",
            "eval_mean_reward",
            "eval_min_reward",
            "eval_max_reward",
            "eval_brier_score",
            "eval_calibration_error",
        ]
        .map(str::to_owned)
        .to_vec(),
    };
    let (run, _) = TrainingRun::begin(inputs, setup)?;
    Ok((RewardModel { pairs, held_out, batch: Vec::new() }, run))
}

/// The memory that the run of a configuration will take.
pub fn plan(config: &Config, assets: &ModelAssets, sinks: &Sinks) -> anyhow::Result<MemoryPlan> {
    let load = |spec| samples(config, &spec, assets, sinks).map(|(pairs, _)| pairs);
    let Some(spec) = DatasetSpec::train(config) else { return Err(BadInput::new("no training data")) };
    let held_out = DatasetSpec::eval(config).map(load).transpose()?.unwrap_or_default();
    planned(config, assets, &load(spec)?, &held_out)
}

fn planned(
    config: &Config,
    assets: &ModelAssets,
    pairs: &[PreferencePair],
    held_out: &[PreferencePair],
) -> anyhow::Result<MemoryPlan> {
    // A response and the token that its score is asked for at.
    let both = |pair: &PreferencePair| {
        [&pair.chosen, &pair.rejected].map(|response| (pair.prompt.ids.len(), response.ids.len() + 1))
    };
    let lengths = pairs.iter().chain(held_out).flat_map(both);
    let objective = Objective::Ranking(config.ranking());
    memory_plan::plan_pairs(config, &assets.config, objective, memory_plan::longest_of(lengths), held_out.len())
}

/// The pairs of a dataset with its hash.
fn samples(
    config: &Config,
    spec: &DatasetSpec,
    assets: &ModelAssets,
    sinks: &Sinks,
) -> anyhow::Result<(Vec<PreferencePair>, String)> {
    let most = config.max_length.unwrap_or(usize::MAX).min(context(config, assets));
    let pairs = Pairs::load(spec, &encoder(config, assets), most)?;
    if pairs.left_out > 0 {
        sinks.info(&format!("{}: {} pairs are longer than allowed and were left out", spec.name, pairs.left_out));
    }
    let pad = assets.config.pad_token_id;
    let without_padding = |mut pair: Pair| {
        for ids in [&mut pair.chosen, &mut pair.rejected] {
            model::scoring::strip_padding(ids, pad);
            if ids.is_empty() {
                return Err(BadInput::new("an answer has only padding tokens (pad_token_id in config.json)"));
            }
        }
        Ok(pair.into_preference_pair())
    };
    Ok((pairs.all.into_iter().map(without_padding).collect::<anyhow::Result<_>>()?, pairs.hash))
}
