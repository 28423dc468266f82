//! Supervised fine-tuning: the mean negative log-likelihood of given completions.

use super::steps_over_rows;
use crate::config::{Config, Purpose, trainer_config};
use crate::data::prompt_dataset::{context, encoder};
use crate::data::{DatasetSpec, encode_all, encode_completion};
use crate::error::BadInput;
use crate::models::{ModelAssets, ModelSource, Policy, trained_weights};
use crate::run::inputs::RunInputs;
use crate::run::memory_plan::{self, MemoryPlan};
use crate::run::task::{NextBatch, TrainingTask};
use crate::run::training::{RunSetup, TrainingRun, sampler};
use model::{Head, PromptCompletion, Scorer};
use telemetry::Sinks;
use train::{Objective, Sample, Trainer};

/// A supervised run's own part.
pub struct Sft {
    samples: Vec<Sample>,
    held_out: Option<(Vec<Sample>, Scorer)>,
    batch: Vec<Sample>,
}

impl TrainingTask for Sft {
    fn next_batch(&mut self, run: &mut TrainingRun) -> anyhow::Result<NextBatch> {
        self.batch = run.sampler.next_batch().into_iter().map(|i| self.samples[i].clone()).collect();
        run.num_tokens += self.batch.iter().map(|s| s.prompt.ids.len() + s.completion.len()).sum::<usize>() as u64;
        Ok(NextBatch::Ready)
    }

    fn step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        run.update_policy(&self.batch)?;
        Ok(())
    }

    /// The loss on held-out completions.
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let Some((samples, scorer)) = &mut self.held_out else { return Ok(None) };
        let _span = run.stages.span("evaluation");
        let pairs: Vec<_> =
            samples.iter().map(|s| PromptCompletion { prompt: &s.prompt.ids, completion: &s.completion }).collect();
        let scores = scorer.score(&run.ctx, &run.policy.weights, &pairs, 1.0)?;
        let tokens: usize = scores.iter().map(|s| s.logps.len()).sum();
        let sum: f64 = scores.iter().flat_map(|s| &s.logps).map(|&l| f64::from(l)).sum();
        Ok(Some(vec![("eval_loss".into(), -sum / tokens.max(1) as f64)]))
    }

    fn shown_metrics(&self) -> &'static [&'static str] {
        &["loss", "grad_norm"]
    }
}

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(inputs: RunInputs) -> anyhow::Result<(Sft, TrainingRun)> {
    let (config, ctx) = (inputs.config().clone(), inputs.ctx.clone());
    let found = ModelSource::of(&config, Head::Lm)?;
    let assets = ModelAssets::load(&found.dir)?.computing_in(config.dtype)?;
    let Some(spec) = inputs.train_data() else { return Err(BadInput::new("no training data")) };
    let (samples, data_hash) = samples(&config, spec, &assets, &inputs.sinks)?;
    let scorer = || Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
    let held_out = match inputs.eval_data() {
        Some(spec) => Some((self::samples(&config, spec, &assets, &inputs.sinks)?.0, scorer())),
        None => None,
    };
    planned(&config, &assets, &samples, held_out.as_ref().map_or(&[], |(samples, _)| samples))?
        .check(MemoryPlan::available_bytes(), &config)?;
    let sampler = sampler(samples.len(), config.completions_per_step(), &config)?;
    let chunks = sampler.chunks_per_epoch();
    let weights = trained_weights(&ctx, &found, inputs.resume_from.checkpoint(), &config, &assets.config)?;
    let settings = trainer_config(&config, Objective::Supervised);
    let trainer = Trainer::new(ctx.memory(), &assets.config, settings)?;
    let policy = Policy::of(found.dir, assets, weights);
    inputs.sinks.info(&policy.describe(&ctx));
    let setup = RunSetup {
        policy,
        trainer,
        sampler,
        steps_per_epoch: chunks as u64,
        total_steps: steps_over_rows(&config, chunks),
        data_hash,
        purpose: Purpose::Sft,
        label: "sft",
        evaluation_metrics: ["eval_loss"].map(str::to_owned).to_vec(),
    };
    let (run, _) = TrainingRun::begin(inputs, setup)?;
    Ok((Sft { samples, held_out, batch: Vec::new() }, run))
}

/// The memory that the run of a configuration will take.
pub fn plan(config: &Config, assets: &ModelAssets, sinks: &Sinks) -> anyhow::Result<MemoryPlan> {
    let load = |spec| samples(config, spec, assets, sinks).map(|(samples, _)| samples);
    let Some(spec) = DatasetSpec::train(config) else { return Err(BadInput::new("no training data")) };
    let held_out = DatasetSpec::eval(config).map(load).transpose()?.unwrap_or_default();
    planned(config, assets, &load(spec)?, &held_out)
}

fn planned(
    config: &Config,
    assets: &ModelAssets,
    samples: &[Sample],
    held_out: &[Sample],
) -> anyhow::Result<MemoryPlan> {
    let lengths = samples.iter().chain(held_out).map(|s| (s.prompt.ids.len(), s.completion.len()));
    memory_plan::plan_supervised(config, assets, memory_plan::longest_of(lengths), held_out.len())
}

fn samples(
    config: &Config,
    mut spec: DatasetSpec,
    assets: &ModelAssets,
    sinks: &Sinks,
) -> anyhow::Result<(Vec<Sample>, String)> {
    spec.needs_completion = true;
    let data = spec.load()?;
    let encoder = encoder(config, assets);
    let encoded = encode_all(&encoder, &data, config.max_prompt_length, context(config, assets), 1)?;
    let most = config.max_length.unwrap_or(usize::MAX).min(context(config, assets));
    let mut samples = Vec::with_capacity(encoded.prompts.len());
    let mut left_out = encoded.left_out;
    for prompt in &encoded.prompts {
        let completion = encode_completion(&encoder, &data.examples[prompt.row])?;
        match prompt.tokens.ids.len() + completion.len() <= most {
            true => samples.push(Sample::supervised(prompt.tokens.clone(), completion)),
            false => left_out += 1,
        }
    }
    if left_out > 0 {
        sinks.info(&format!("{}: {left_out} rows are longer than allowed and were left out", data.name));
    }
    if samples.is_empty() {
        return Err(BadInput::new(format!("{}: every row is longer than max_length = {most}: raise it", data.name)));
    }
    Ok((samples, data.hash))
}
