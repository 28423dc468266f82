//! Reward models: learned from pairs of answers, and asked as a reward.
//!
//! Training stands here; [`evaluation`] says how good a model is on held-out pairs, [`reward`] makes it one of the rewards
//! of a run. A model is the trunk of a language model under a head of one score (transformers'
//! `…ForSequenceClassification` with one label); the score of a text is that of its last token that is no padding.

mod evaluation;

use crate::config::{Config, Purpose, Resolved, trainer_config};
use crate::data::pairs::strip_padding;
use crate::data::questions::{context, encoder};
use crate::data::{DatasetSpec, Pair, Pairs};
use crate::error::BadInput;
use crate::models::{Found, Policy, Words, trained_scorer};
use crate::run::course::{Beginning, Course, Ended, Own, Parts, book, sampler};
use crate::run::memory_plan::{self, MemoryPlan};
use crate::run::run_dir::RunDir;
use crate::run::signals::StopRequest;
use kernels::Context;
use model::{Head, Scorer};
use telemetry::Console;
use train::{Objective, RankingConfig, Sample, Trainer, TrainerConfig};

/// A pair as two samples, chosen first.
type Sides = [Sample; 2];

/// A run between two steps.
pub struct RewardRun {
    /// What it shares with every run.
    pub course: Course,
    pairs: Vec<Sides>,
    held_out: Option<(Vec<Sides>, Scorer)>,
}

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(
    resolved: Resolved,
    run: RunDir,
    beginning: Beginning,
    ctx: &Context,
    console: Console,
    stop: StopRequest,
) -> anyhow::Result<RewardRun> {
    let config = resolved.config.clone();
    let found = Found::of(&config, Head::Score(1))?;
    let words = Words::load_scorer(&found.dir)?.computing_in(config.dtype)?;
    let Some(spec) = DatasetSpec::train(&config) else { return Err(BadInput::new("no training data")) };
    let (pairs, data_hash) = samples(&config, &spec, &words, &console)?;
    let scorer = || Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
    let held_out = match DatasetSpec::eval(&config) {
        Some(spec) => Some((samples(&config, &spec, &words, &console)?.0, scorer())),
        None => None,
    };
    planned(&config, &words, &pairs, held_out.as_ref().map_or(&[], |(pairs, _)| pairs))?
        .check(memory_plan::available_bytes(), &config)?;
    let sampler = sampler(pairs.len(), config.completions_per_step(), &config)?;
    let chunks = sampler.chunks_per_epoch();
    let weights = trained_scorer(ctx, &found, beginning.checkpoint(), &config)?;
    let trainer = Trainer::new(ctx.memory(), &words.config, training(&config))?;
    let policy =
        Policy { dir: found.dir, weights, tokenizer: words.tokenizer, chat: words.chat, eos_ids: words.eos_ids };
    policy.describe(&console, ctx);
    let of_held_out = held_out.as_ref().map_or(String::new(), |(pairs, _)| format!(", {} held out", pairs.len()));
    console.info(&format!("{} pairs to learn from{of_held_out}", pairs.len()));
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
    })?;
    Ok(RewardRun { course, pairs, held_out })
}

/// The memory that the run of a configuration will take.
pub fn plan(config: &Config, words: &Words, console: &Console) -> anyhow::Result<MemoryPlan> {
    let load = |spec| samples(config, &spec, words, console).map(|(pairs, _)| pairs);
    let Some(spec) = DatasetSpec::train(config) else { return Err(BadInput::new("no training data")) };
    let held_out = DatasetSpec::eval(config).map(load).transpose()?.unwrap_or_default();
    planned(config, words, &load(spec)?, &held_out)
}

fn planned(config: &Config, words: &Words, pairs: &[Sides], held_out: &[Sides]) -> anyhow::Result<MemoryPlan> {
    let lengths = pairs.iter().chain(held_out).flatten().map(|s| (s.prompt.len(), s.completion.len()));
    let objective = Objective::Ranking(ranking(config));
    memory_plan::plan_pairs(config, &words.config, objective, memory_plan::longest_of(lengths), held_out.len())
}

/// The loss that the keys describe.
fn ranking(config: &Config) -> RankingConfig {
    RankingConfig { center_rewards_coefficient: config.center_rewards_coefficient }
}

fn training(config: &Config) -> TrainerConfig {
    // Scores have no temperature.
    TrainerConfig {
        adapter: config.adapter(),
        temperature: 1.0,
        ..trainer_config(config, Objective::Ranking(ranking(config)))
    }
}

/// The pairs of a data set with its hash.
fn samples(
    config: &Config,
    spec: &DatasetSpec,
    words: &Words,
    console: &Console,
) -> anyhow::Result<(Vec<Sides>, String)> {
    let most = config.max_length.unwrap_or(usize::MAX).min(context(config, words));
    let pairs = Pairs::load(spec, &encoder(config, words), most)?;
    if pairs.left_out > 0 {
        console.info(&format!("{}: {} pairs are longer than allowed and were left out", spec.name, pairs.left_out));
    }
    let pad = words.config.pad_token_id;
    let sides = pairs.all.into_iter().map(|pair| sides(pair, pad)).collect::<anyhow::Result<_>>()?;
    Ok((sides, pairs.hash))
}

fn sides(pair: Pair, pad: Option<u32>) -> anyhow::Result<Sides> {
    let answer = |mut ids: Vec<u32>| {
        strip_padding(&mut ids, pad);
        match ids.is_empty() {
            true => Err(BadInput::new("an answer has only padding tokens (pad_token_id in config.json)")),
            false => Ok(ids),
        }
    };
    let (chosen, rejected) = (answer(pair.chosen)?, answer(pair.rejected)?);
    Ok([
        Sample::ranked(pair.prompt.clone(), chosen, pair.margin.unwrap_or(0.0)),
        Sample::ranked(pair.prompt, rejected, 0.0),
    ])
}

/// Runs until the last step, an early stop, or a signal.
pub fn run(run: &mut RewardRun) -> anyhow::Result<Ended> {
    if run.course.step == 0 && run.course.config.eval_on_start {
        run.evaluate()?;
    }
    while !run.course.is_done() {
        run.update()?;
        run.course.log_step(&["loss", "accuracy", "margin"])?;
        let evaluates = run.course.evaluates_now() || run.course.is_done();
        let early = evaluates && run.evaluate()?;
        let ended = run.course.ends(early);
        if run.course.saves_now(ended) {
            run.course.save(Own::default(), |_| Ok(()))?;
        }
        if let Some(ended) = ended {
            return Ok(ended);
        }
    }
    Ok(Ended::Done)
}

impl RewardRun {
    fn update(&mut self) -> anyhow::Result<()> {
        let course = &mut self.course;
        let batch: Vec<Sample> = course.sampler.next_batch().into_iter().flat_map(|i| self.pairs[i].clone()).collect();
        // The token behind an answer is no part of it.
        let tokens: usize = batch.iter().map(|s| s.prompt.len() + s.completion.len() - 1).sum();
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

    /// How the model ranks held-out pairs; says whether to stop early.
    fn evaluate(&mut self) -> anyhow::Result<bool> {
        let Some((pairs, scorer)) = &mut self.held_out else { return Ok(false) };
        let course = &mut self.course;
        let span = course.stages.span("evaluation");
        let metrics =
            evaluation::evaluate(&course.ctx, &course.policy.weights, scorer, &ranking(&course.config), pairs)?;
        span.end();
        course.take_evaluation(&metrics)
    }
}
