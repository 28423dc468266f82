//! Direct preference optimization: a policy learns from pairs of answers, held to the model that it began as.
//!
//! The reference is the model of `model_name_or_path`; of an adapter that the run goes on with, the model below it. Its
//! log-probabilities are computed once, before training, and again when a run is resumed: the same bits on the same machine, so that no second model stays in memory.

use super::steps_over_rows;
use crate::config::{Config, Purpose, trainer_config};
use crate::data::questions::{context, encoder};
use crate::data::{DatasetSpec, Pairs};
use crate::error::BadInput;
use crate::models::{Found, Policy, Words, load_weights, trained_weights};
use crate::run::inputs::RunInputs;
use crate::run::memory_plan::{self, MemoryPlan};
use crate::run::task::{NextBatch, TrainingTask};
use crate::run::training::{RunSetup, TrainingRun, sampler};
use model::{Head, PromptCompletion, Scorer};
use telemetry::Sinks;
use train::loss::dpo::{Answer, pair};
use train::{Means, Objective, Sample, Trainer, TrainerConfig};

/// A run's own part. Samples stand in pairs: the chosen answer, then the rejected one.
pub struct Dpo {
    samples: Vec<Sample>,
    held_out: Option<(Vec<Sample>, Scorer)>,
    batch: Vec<Sample>,
}

impl TrainingTask for Dpo {
    fn next_batch(&mut self, run: &mut TrainingRun) -> anyhow::Result<NextBatch> {
        let drawn = run.sampler.next_batch();
        self.batch = drawn.into_iter().flat_map(|i| self.samples[2 * i..2 * i + 2].to_vec()).collect();
        run.num_tokens += self.batch.iter().map(|s| s.prompt.len() + s.completion.len()).sum::<usize>() as u64;
        Ok(NextBatch::Ready)
    }

    fn step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        run.update_policy(&self.batch)?;
        Ok(())
    }

    /// Loss and metrics of the held-out pairs.
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let Some((samples, scorer)) = &mut self.held_out else { return Ok(None) };
        let _span = run.stages.span("evaluation");
        let scores = scorer.score(&run.ctx, &run.policy.weights, &sequences(samples), 1.0)?;
        let (config, mut means) = (run.config.dpo(), Means::default());
        for (samples, scores) in samples.chunks_exact(2).zip(scores.chunks_exact(2)) {
            let [chosen, rejected] = [0, 1].map(|k| Answer {
                logps: &scores[k].logps,
                ref_logps: samples[k].ref_logps.as_deref().unwrap_or_default(),
                mask: &samples[k].mask,
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
    let found = Found::of(&config, Head::Lm)?;
    let words = Words::load(&found.dir)?.computing_in(config.dtype)?;
    let specs = [inputs.train_data(), inputs.eval_data()];
    let (mut samples, mut held_out, data_hash) = data(&config, specs, &words, &inputs.sinks)?;
    planned(&config, &words, &samples, &held_out)?.check(memory_plan::available_bytes(), &config)?;
    let sampler = sampler(samples.len() / 2, config.completions_per_step(), &config)?;
    let chunks = sampler.chunks_per_epoch();

    let mut scorer = Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
    let reference = load_weights(&ctx, &found.dir, &words.config)?;
    let pairs = (samples.len() + held_out.len()) / 2;
    inputs.sinks.info(&format!("log-probabilities of the reference for {pairs} pairs, once"));
    for samples in [&mut samples, &mut held_out] {
        let scores = scorer.score(&ctx, &reference, &sequences(samples), 1.0)?;
        samples.iter_mut().zip(scores).for_each(|(sample, scores)| sample.ref_logps = Some(scores.logps));
    }
    drop(reference);

    let weights = trained_weights(&ctx, &found, inputs.resume_from.checkpoint(), &config, &words.config)?;
    let objective = Objective::Preference(config.dpo());
    let settings = TrainerConfig { adapter: config.adapter(), temperature: 1.0, ..trainer_config(&config, objective) };
    let trainer = Trainer::new(ctx.memory(), &words.config, settings)?;
    let policy = Policy::of(found.dir, words, weights);
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
    Ok((Dpo { samples, held_out, batch: Vec::new() }, run))
}

/// The memory that the run of a configuration will take.
pub fn plan(config: &Config, words: &Words, sinks: &Sinks) -> anyhow::Result<MemoryPlan> {
    let (samples, held_out, _) = data(config, [DatasetSpec::train(config), DatasetSpec::eval(config)], words, sinks)?;
    planned(config, words, &samples, &held_out)
}

fn planned(config: &Config, words: &Words, samples: &[Sample], held_out: &[Sample]) -> anyhow::Result<MemoryPlan> {
    let lengths = samples.iter().chain(held_out).map(|s| (s.prompt.len(), s.completion.len()));
    // The reference is gone before the policy is loaded, and its scores come from the buffers that evaluation uses.
    let (objective, scored) = (Objective::Preference(config.dpo()), samples.len().max(held_out.len()) / 2);
    memory_plan::plan_pairs(config, &words.config, objective, memory_plan::longest_of(lengths), scored)
}

/// Pairs to train on, held-out ones, and the hash of the former.
fn data(
    config: &Config,
    [train, eval]: [Option<DatasetSpec>; 2],
    words: &Words,
    sinks: &Sinks,
) -> anyhow::Result<(Vec<Sample>, Vec<Sample>, String)> {
    let Some(spec) = train else { return Err(BadInput::new("no training data")) };
    let (samples, hash) = load(config, &spec, words, sinks)?;
    let held_out = match eval {
        Some(spec) => load(config, &spec, words, sinks)?.0,
        None => Vec::new(),
    };
    Ok((samples, held_out, hash))
}

fn load(config: &Config, spec: &DatasetSpec, words: &Words, sinks: &Sinks) -> anyhow::Result<(Vec<Sample>, String)> {
    let most = config.max_length.unwrap_or(usize::MAX).min(context(config, words));
    let pairs = Pairs::load(spec, &encoder(config, words), most)?;
    if pairs.left_out > 0 {
        sinks.info(&format!("{}: {} pairs are longer than allowed and were left out", spec.name, pairs.left_out));
    }
    let answers = pairs.all.into_iter().flat_map(|pair| {
        let prompt = pair.prompt;
        [pair.chosen, pair.rejected].map(|answer| Sample::supervised(prompt.clone(), answer))
    });
    Ok((answers.collect(), pairs.hash))
}

fn sequences(samples: &[Sample]) -> Vec<PromptCompletion<'_>> {
    samples.iter().map(|s| PromptCompletion { prompt: &s.prompt, completion: &s.completion }).collect()
}
