//! Direct preference optimization: a policy learns from pairs of answers, held to the model that it began as.
//!
//! The reference is the model of `model_name_or_path`; of an adapter that the run goes on with, the model below it. Its
//! log-probabilities are computed once, before training, and again when a run is resumed: the same bits on the same machine, so that no second model stays in memory.

use super::{count_tokens, sequences, steps_over_rows};
use crate::config::{Config, Purpose, trainer_config};
use crate::data::prompt_dataset::{context, encoder};
use crate::data::{DatasetSpec, Pair, Pairs};
use crate::error::BadInput;
use crate::models::{ModelAssets, ModelSource, Policy, load_weights, trained_weights};
use crate::run::inputs::RunInputs;
use crate::run::memory_plan::{self, MemoryPlan};
use crate::run::task::{NextBatch, TrainingTask};
use crate::run::training::{RunSetup, TrainingRun, sampler};
use model::columns::REF_LOGPS;
use model::{Head, Scorer};
use telemetry::Sinks;
use train::loss::dpo::{Answer, pair};
use train::{Means, Objective, PreferencePair, Trainer};

/// A run's own part.
pub struct Dpo {
    pairs: Vec<PreferencePair>,
    held_out: Option<(Vec<PreferencePair>, Scorer)>,
    batch: Vec<PreferencePair>,
}

impl TrainingTask for Dpo {
    fn next_batch(&mut self, run: &mut TrainingRun) -> anyhow::Result<NextBatch> {
        self.batch = run.sampler.next_batch().into_iter().map(|i| self.pairs[i].clone()).collect();
        run.num_tokens += count_tokens(&self.batch);
        Ok(NextBatch::Ready)
    }

    fn step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        run.update_policy(&self.batch)?;
        Ok(())
    }

    /// Loss and metrics of the held-out pairs.
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let Some((pairs, scorer)) = &mut self.held_out else { return Ok(None) };
        let _span = run.stages.span("evaluation");
        let mut scores = scorer.score(&run.ctx, &run.policy.weights, &sequences(pairs), 1.0)?.into_iter();
        let (config, mut means) = (run.config.dpo(), Means::default());
        for preference in pairs.iter() {
            let both = [&preference.chosen, &preference.rejected].map(|response| {
                let logps = scores.next().map_or(Vec::new(), |scores| scores.logps);
                (response, logps, vec![true; response.ids.len()])
            });
            let [chosen, rejected] = both.each_ref().map(|(response, logps, mask)| Answer {
                logps,
                ref_logps: response.columns.ref_logps().unwrap_or_default(),
                mask,
            });
            let loss = pair(&config, [&chosen, &rejected]);
            means.add("loss", loss.value, 1);
            loss.metrics().iter().for_each(|(name, value)| means.add(name, *value, 1));
        }
        Ok(Some(means.entries().map(|(name, value)| (format!("eval_{name}"), value)).collect()))
    }

    fn shown_metrics(&self) -> &'static [&'static str] {
        &["loss", "rewards/margins", "rewards/accuracies"]
    }
}

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(inputs: RunInputs) -> anyhow::Result<(Dpo, TrainingRun)> {
    let (config, ctx) = (inputs.config().clone(), inputs.ctx.clone());
    let found = ModelSource::of(&config, Head::Lm)?;
    let assets = ModelAssets::load(&found.dir)?.computing_in(config.dtype)?;
    let specs = [inputs.train_data(), inputs.eval_data()];
    let (mut pairs, mut held_out, data_hash) = data(&config, specs, &assets, &inputs.sinks)?;
    planned(&config, &assets, &pairs, &held_out)?.check(MemoryPlan::available_bytes(), &config)?;
    let sampler = sampler(pairs.len(), config.completions_per_step(), &config)?;
    let chunks = sampler.chunks_per_epoch();

    let mut scorer = Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
    let reference = load_weights(&ctx, &found.dir, &assets.config)?;
    let count = pairs.len() + held_out.len();
    inputs.sinks.info(&format!("log-probabilities of the reference for {count} pairs, once"));
    for pairs in [&mut pairs, &mut held_out] {
        let scores = scorer.score(&ctx, &reference, &sequences(pairs), 1.0)?;
        let responses = pairs.iter_mut().flat_map(|pair| [&mut pair.chosen, &mut pair.rejected]);
        responses.zip(scores).for_each(|(response, scores)| response.columns.set(REF_LOGPS, scores.logps));
    }
    drop(reference);

    let weights = trained_weights(&ctx, &found, inputs.resume_from.checkpoint(), &config, &assets.config)?;
    let objective = Objective::Preference(config.dpo());
    let trainer = Trainer::new(ctx.memory(), &assets.config, trainer_config(&config, objective))?;
    let policy = Policy::of(found.dir, assets, weights);
    inputs.sinks.info(&policy.describe(&ctx));
    let setup = RunSetup {
        policy,
        trainer,
        sampler,
        steps_per_epoch: chunks as u64,
        total_steps: steps_over_rows(&config, chunks),
        data_hash,
        purpose: Purpose::Dpo,
        label: "dpo",
        evaluation_metrics: [
            "eval_loss",
            "eval_rewards/chosen",
            "eval_rewards/rejected",
            "eval_rewards/accuracies",
            "eval_rewards/margins",
            "eval_logps/chosen",
            "eval_logps/rejected",
        ]
        .map(str::to_owned)
        .to_vec(),
    };
    let (run, _) = TrainingRun::begin(inputs, setup)?;
    let held_out = (!held_out.is_empty()).then_some((held_out, scorer));
    Ok((Dpo { pairs, held_out, batch: Vec::new() }, run))
}

/// The memory that the run of a configuration will take.
pub fn plan(config: &Config, assets: &ModelAssets, sinks: &Sinks) -> anyhow::Result<MemoryPlan> {
    let (pairs, held_out, _) = data(config, [DatasetSpec::train(config), DatasetSpec::eval(config)], assets, sinks)?;
    planned(config, assets, &pairs, &held_out)
}

fn planned(
    config: &Config,
    assets: &ModelAssets,
    pairs: &[PreferencePair],
    held_out: &[PreferencePair],
) -> anyhow::Result<MemoryPlan> {
    let both = |pair: &PreferencePair| {
        [&pair.chosen, &pair.rejected].map(|response| (pair.prompt.ids.len(), response.ids.len()))
    };
    let lengths = pairs.iter().chain(held_out).flat_map(both);
    // The reference is gone before the policy is loaded, and its scores come from the buffers that evaluation uses.
    let (objective, scored) = (Objective::Preference(config.dpo()), pairs.len().max(held_out.len()));
    memory_plan::plan_pairs(config, &assets.config, objective, memory_plan::longest_of(lengths), scored)
}

/// Pairs to train on, held-out ones, and the hash of the former.
fn data(
    config: &Config,
    [train, eval]: [Option<DatasetSpec>; 2],
    assets: &ModelAssets,
    sinks: &Sinks,
) -> anyhow::Result<(Vec<PreferencePair>, Vec<PreferencePair>, String)> {
    let Some(spec) = train else { return Err(BadInput::new("no training data")) };
    let (pairs, hash) = load(config, &spec, assets, sinks)?;
    let held_out = match eval {
        Some(spec) => load(config, &spec, assets, sinks)?.0,
        None => Vec::new(),
    };
    Ok((pairs, held_out, hash))
}

fn load(
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
    Ok((pairs.all.into_iter().map(Pair::into_preference_pair).collect(), pairs.hash))
}
