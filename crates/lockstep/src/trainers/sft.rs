//! Supervised fine-tuning: the mean negative log-likelihood of given completions, on the machinery of every run.

use crate::config::{Config, Purpose, Resolved, trainer_config};
use crate::data::DatasetSpec;
use crate::data::questions::{context, encoder};
use crate::error::BadInput;
use crate::models::{Found, Policy, Words, trained_weights};
use crate::run::course::{Beginning, Course, Ended, Own, Parts, book, sampler};
use crate::run::memory_plan::{self, MemoryPlan};
use crate::run::run_dir::RunDir;
use crate::run::signals::StopRequest;
use kernels::Context;
use model::{Head, PromptCompletion, Scorer};
use telemetry::Console;
use train::{Objective, Sample, Trainer, TrainerConfig};

/// A supervised run between two steps.
pub struct Sft {
    /// What it shares with every run.
    pub course: Course,
    samples: Vec<Sample>,
    held_out: Option<(Vec<Sample>, Scorer)>,
}

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(
    resolved: Resolved,
    run: RunDir,
    beginning: Beginning,
    ctx: &Context,
    console: Console,
    stop: StopRequest,
) -> anyhow::Result<Sft> {
    let config = resolved.config.clone();
    let found = Found::of(&config, Head::Lm)?;
    let words = Words::load(&found.dir)?.computing_in(config.dtype)?;
    let Some(spec) = DatasetSpec::train(&config) else { return Err(BadInput::new("no training data")) };
    let (samples, data_hash) = samples(&resolved, spec, &words, &console)?;
    let scorer = || Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
    let held_out = match DatasetSpec::eval(&config) {
        Some(spec) => Some((self::samples(&resolved, spec, &words, &console)?.0, scorer())),
        None => None,
    };
    planned(&config, &words, &samples, held_out.as_ref().map_or(&[], |(samples, _)| samples))?
        .check(memory_plan::available_bytes(), &config)?;
    let sampler = sampler(samples.len(), config.completions_per_step(), &config)?;
    let chunks = sampler.chunks_per_epoch();
    let weights = trained_weights(ctx, &found, beginning.checkpoint(), &config, &words.config)?;
    let how = TrainerConfig { adapter: config.adapter(), ..trainer_config(&config, Objective::Supervised) };
    let trainer = Trainer::new(ctx.memory(), &words.config, how)?;
    let policy =
        Policy { dir: found.dir, weights, tokenizer: words.tokenizer, chat: words.chat, eos_ids: words.eos_ids };
    policy.describe(&console, ctx);
    let total_steps = match config.max_steps > 0 {
        true => config.max_steps as u64,
        false => (config.num_train_epochs * chunks as f64).ceil() as u64,
    };
    let (course, _) = Course::begin(Parts {
        resolved,
        run,
        ctx: ctx.clone(),
        policy,
        trainer,
        sampler,
        steps_per_epoch: chunks as u64,
        total_steps,
        data_hash,
        beginning,
        console,
        stop,
        purpose: Purpose::Sft,
        label: "sft",
        evaluation_metrics: ["eval_loss"].map(str::to_owned).to_vec(),
    })?;
    Ok(Sft { course, samples, held_out })
}

/// The memory that the run of a configuration will take.
pub fn plan(resolved: &Resolved, words: &Words, console: &Console) -> anyhow::Result<MemoryPlan> {
    let load = |spec| samples(resolved, spec, words, console).map(|(samples, _)| samples);
    let Some(spec) = DatasetSpec::train(&resolved.config) else { return Err(BadInput::new("no training data")) };
    let held_out = DatasetSpec::eval(&resolved.config).map(load).transpose()?.unwrap_or_default();
    planned(&resolved.config, words, &load(spec)?, &held_out)
}

fn planned(config: &Config, words: &Words, samples: &[Sample], held_out: &[Sample]) -> anyhow::Result<MemoryPlan> {
    let lengths = samples.iter().chain(held_out).map(|s| (s.prompt.len(), s.completion.len()));
    memory_plan::plan_supervised(config, words, memory_plan::longest_of(lengths), held_out.len())
}

fn samples(
    resolved: &Resolved,
    mut spec: DatasetSpec,
    words: &Words,
    console: &Console,
) -> anyhow::Result<(Vec<Sample>, String)> {
    let config = &resolved.config;
    spec.needs_completion = true;
    let data = spec.load()?;
    let encoder = encoder(config, words);
    let encoded = encoder.encode_all(&data, config.max_prompt_length, context(config, words), 1)?;
    let most = config.max_length.unwrap_or(usize::MAX).min(context(config, words));
    let mut samples = Vec::with_capacity(encoded.prompts.len());
    let mut left_out = encoded.left_out;
    for prompt in &encoded.prompts {
        let completion = encoder.encode_completion(&data.examples[prompt.row])?;
        match prompt.ids.len() + completion.len() <= most {
            true => samples.push(Sample::supervised(prompt.ids.clone(), completion)),
            false => left_out += 1,
        }
    }
    if left_out > 0 {
        console.info(&format!("{}: {left_out} rows are longer than allowed and were left out", data.name));
    }
    if samples.is_empty() {
        return Err(BadInput::new(format!("{}: every row is longer than max_length = {most}: raise it", data.name)));
    }
    Ok((samples, data.hash))
}

/// Runs until the last step, an early stop, or a signal.
pub fn run(sft: &mut Sft) -> anyhow::Result<Ended> {
    while !sft.course.is_done() {
        sft.update()?;
        sft.course.log_step(&["loss", "grad_norm"])?;
        let early = sft.course.evaluates_now() && sft.evaluate()?;
        let ended = sft.course.ends(early);
        if sft.course.saves_now(ended) {
            sft.course.save(Own::default(), |_| Ok(()))?;
        }
        if let Some(ended) = ended {
            return Ok(ended);
        }
    }
    Ok(Ended::Done)
}

impl Sft {
    fn update(&mut self) -> anyhow::Result<()> {
        let course = &mut self.course;
        let batch: Vec<Sample> = course.sampler.next_batch().into_iter().map(|i| self.samples[i].clone()).collect();
        let tokens: usize = batch.iter().map(|s| s.prompt.len() + s.completion.len()).sum();
        course.num_tokens += tokens as u64;
        let learning_rate = course.schedule.at(course.step);
        let span = course.stages.span("update");
        let before = kernels::context::counted();
        let metrics = course.trainer.update(&course.ctx, &mut course.policy.weights, &batch, learning_rate)?;
        book(&span, before);
        let seconds = span.end();
        course.count_update(&metrics, seconds);
        Ok(())
    }

    /// The loss on held-out completions; says whether to stop early.
    fn evaluate(&mut self) -> anyhow::Result<bool> {
        let Some((samples, scorer)) = &mut self.held_out else { return Ok(false) };
        let course = &mut self.course;
        let _span = course.stages.span("evaluation");
        let pairs: Vec<_> =
            samples.iter().map(|s| PromptCompletion { prompt: &s.prompt, completion: &s.completion }).collect();
        let scores = scorer.score(&course.ctx, &course.policy.weights, &pairs, 1.0)?;
        let tokens: usize = scores.iter().map(|s| s.logps.len()).sum();
        let sum: f64 = scores.iter().flat_map(|s| &s.logps).map(|&l| f64::from(l)).sum();
        course.take_evaluation(&[("eval_loss".into(), -sum / tokens.max(1) as f64)])
    }
}
