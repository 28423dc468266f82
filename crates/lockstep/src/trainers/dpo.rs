//! Direct preference optimization: a policy learns from pairs of answers, held to the model that it began as.
//!
//! The reference is the model of `model_name_or_path`; of an adapter that the run goes on with, the model below it. Its
//! log-probabilities are computed once, before training, and again when a run is resumed: the same bits on the same machine, so that no second model stays in memory.

use crate::config::{Config, Purpose, Resolved, trainer_config};
use crate::data::questions::{context, encoder};
use crate::data::{DatasetSpec, Pairs};
use crate::error::BadInput;
use crate::models::{Found, Policy, Words, load_weights, trained_weights};
use crate::run::course::{Beginning, Course, Ended, Own, Parts, book, sampler};
use crate::run::memory_plan::{self, MemoryPlan};
use crate::run::run_dir::RunDir;
use crate::run::signals::StopRequest;
use kernels::Context;
use model::{Head, PromptCompletion, Scorer};
use telemetry::Console;
use train::loss::dpo::{Answer, pair};
use train::{Means, Objective, Sample, Trainer, TrainerConfig};

/// A run between two steps. Samples stand in pairs: the chosen answer, then the rejected one.
pub struct Dpo {
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
) -> anyhow::Result<Dpo> {
    let config = resolved.config.clone();
    let found = Found::of(&config, Head::Lm)?;
    let words = Words::load(&found.dir)?.computing_in(config.dtype)?;
    let (mut samples, mut held_out, data_hash) = data(&config, &words, &console)?;
    planned(&config, &words, &samples, &held_out)?.check(memory_plan::available_bytes(), &config)?;
    let sampler = sampler(samples.len() / 2, config.completions_per_step(), &config)?;
    let chunks = sampler.chunks_per_epoch();

    let mut scorer = Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
    let reference = load_weights(ctx, &found.dir, &words.config)?;
    console
        .info(&format!("log-probabilities of the reference for {} pairs, once", (samples.len() + held_out.len()) / 2));
    for samples in [&mut samples, &mut held_out] {
        let scores = scorer.score(ctx, &reference, &sequences(samples), 1.0)?;
        samples.iter_mut().zip(scores).for_each(|(sample, scores)| sample.ref_logps = Some(scores.logps));
    }
    drop(reference);

    let weights = trained_weights(ctx, &found, beginning.checkpoint(), &config, &words.config)?;
    let objective = Objective::Preference(config.dpo());
    let how = TrainerConfig { adapter: config.adapter(), temperature: 1.0, ..trainer_config(&config, objective) };
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
    })?;
    let held_out = (!held_out.is_empty()).then_some((held_out, scorer));
    Ok(Dpo { course, samples, held_out })
}

/// The memory that the run of a configuration will take.
pub fn plan(resolved: &Resolved, words: &Words, console: &Console) -> anyhow::Result<MemoryPlan> {
    let (samples, held_out, _) = data(&resolved.config, words, console)?;
    planned(&resolved.config, words, &samples, &held_out)
}

fn planned(config: &Config, words: &Words, samples: &[Sample], held_out: &[Sample]) -> anyhow::Result<MemoryPlan> {
    let lengths = samples.iter().chain(held_out).map(|s| (s.prompt.len(), s.completion.len()));
    // The reference is gone before the policy is loaded, and its scores come from the buffers that evaluation uses.
    let (objective, scored) = (Objective::Preference(config.dpo()), samples.len().max(held_out.len()) / 2);
    memory_plan::plan_pairs(config, &words.config, objective, memory_plan::longest_of(lengths), scored)
}

/// Pairs to train on, held-out ones, and the hash of the former.
fn data(config: &Config, words: &Words, console: &Console) -> anyhow::Result<(Vec<Sample>, Vec<Sample>, String)> {
    let Some(spec) = DatasetSpec::train(config) else { return Err(BadInput::new("no training data")) };
    let (samples, hash) = load(config, &spec, words, console)?;
    let held_out = match DatasetSpec::eval(config) {
        Some(spec) => load(config, &spec, words, console)?.0,
        None => Vec::new(),
    };
    Ok((samples, held_out, hash))
}

fn load(
    config: &Config,
    spec: &DatasetSpec,
    words: &Words,
    console: &Console,
) -> anyhow::Result<(Vec<Sample>, String)> {
    let most = config.max_length.unwrap_or(usize::MAX).min(context(config, words));
    let pairs = Pairs::load(spec, &encoder(config, words), most)?;
    if pairs.left_out > 0 {
        console.info(&format!("{}: {} pairs are longer than allowed and were left out", spec.name, pairs.left_out));
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

/// Runs until the last step, an early stop, or a signal.
pub fn run(dpo: &mut Dpo) -> anyhow::Result<Ended> {
    while !dpo.course.is_done() {
        dpo.update()?;
        dpo.course.log_step(&["loss", "rewards/margins", "rewards/accuracies"])?;
        let early = dpo.course.evaluates_now() && dpo.evaluate()?;
        let ended = dpo.course.ends(early);
        if dpo.course.saves_now(ended) {
            dpo.course.save(Own::default(), |_| Ok(()))?;
        }
        if let Some(ended) = ended {
            return Ok(ended);
        }
    }
    Ok(Ended::Done)
}

impl Dpo {
    fn update(&mut self) -> anyhow::Result<()> {
        let course = &mut self.course;
        let drawn = course.sampler.next_batch();
        let batch: Vec<Sample> = drawn.into_iter().flat_map(|i| self.samples[2 * i..2 * i + 2].to_vec()).collect();
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

    /// Loss and metrics of the held-out pairs; says whether to stop early.
    fn evaluate(&mut self) -> anyhow::Result<bool> {
        let Some((samples, scorer)) = &mut self.held_out else { return Ok(false) };
        let course = &mut self.course;
        let _span = course.stages.span("evaluation");
        let scores = scorer.score(&course.ctx, &course.policy.weights, &sequences(samples), 1.0)?;
        let (config, mut means) = (course.config.dpo(), Means::default());
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
        let metrics: Vec<_> = means.entries().map(|(name, value)| (format!("eval_{name}"), value)).collect();
        course.take_evaluation(&metrics)
    }
}
