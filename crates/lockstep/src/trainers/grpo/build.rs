//! From a configuration to a run: every input is read and checked before the first file is written.

use super::reference::Reference;
use super::{BatchSizes, GenerationBatch, Grpo, Source, Spent};
use crate::config::{Config, Known, Purpose, Resolved, engine_config, sampling, trainer_config};
use crate::data::DatasetSpec;
use crate::data::questions::{Questions, context};
use crate::error::BadInput;
use crate::models::{Detokenizer, Found, Policy, Words, trained_weights};
use crate::rollouts::evaluate::Evaluation;
use crate::rollouts::replay::{Limits, Replay};
use crate::rollouts::rewards::{Named, check_columns, load_rewards, named_rewards};
use crate::run::checkpoint::state::CriticState;
use crate::run::course::{Beginning, Course, Parts, sampler};
use crate::run::memory_plan;
use crate::run::run_dir::RunDir;
use crate::run::signals::StopRequest;
use crate::source::{HubKind, locate};
use kernels::Context;
use model::{Head, ModelConfig, Scorer};
use rollout::Engine;
use std::path::Path;
use std::sync::Arc;
use telemetry::Console;
use train::{Trainer, TrainerConfig};

/// What a run is built of.
pub struct Inputs {
    /// What it was told, and by whom.
    pub resolved: Resolved,
    /// Where it writes.
    pub run: RunDir,
    /// Where it begins.
    pub beginning: Beginning,
    /// What it computes with.
    pub ctx: Context,
    /// Where it talks.
    pub console: Console,
    /// Whether to stop.
    pub stop: StopRequest,
}

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(inputs: Inputs) -> anyhow::Result<Grpo> {
    Ok(build_beside(inputs, |_, _, _| Ok(()))?.0)
}

/// [`build`], with what `beside` reads besides: it is given the model's directory and shape, and where the run begins, once
/// the run is known to fit in memory. What a checkpoint keeps for it comes with it.
pub fn build_beside<T>(
    inputs: Inputs,
    beside: impl FnOnce(&Path, &Arc<ModelConfig>, &Beginning) -> anyhow::Result<T>,
) -> anyhow::Result<(Grpo, T, Option<CriticState>)> {
    let Inputs { resolved, run, beginning, ctx, console, stop } = inputs;
    let ctx = &ctx;
    let config = resolved.config.clone();
    let found = Found::of(&config, Head::Lm)?;
    let words = Words::load(&found.dir)?.computing_in(config.dtype)?;
    let rewards = named_rewards(&config)?;
    let room = config.max_completion_length;
    let Data { source, rows, known, hash } = data(&config, &words, &rewards, ctx, &console)?;
    let held_out = DatasetSpec::eval(&config).map(|spec| Questions::load(&spec, &config, &words, room)).transpose()?;
    if let (Some(questions), Some(name)) = (&held_out, &config.eval_dataset_name) {
        check_columns(questions, name, &rewards)?;
    }
    let longest = known.longest_prompt.max(held_out.as_ref().map_or(0, Questions::longest));
    let asked = held_out.as_ref().map_or(0, |q| q.all.len() * config.generations_eval());
    let known = Known { longest_prompt: longest, sequences: known.sequences.max(asked), ..known };
    let sizes = BatchSizes {
        generation: config.generation_batch(),
        optimizer: config.completions_per_step(),
        group: config.num_generations,
        iterations: config.passes(),
    };
    let sampler = sampler(rows, config.prompts_per_generation(), &config)?;
    let chunks = sampler.chunks_per_epoch();
    let engine_config = engine_config(&config, context(&config, &words), known);
    // Before the weights are read: a run that cannot fit would be killed much later, and without a word.
    memory_plan::plan(&config, &words, known)?.check(memory_plan::available_bytes(), &config)?;

    let rewards = load_rewards(rewards, &config, ctx)?;
    let weights = trained_weights(ctx, &found, beginning.checkpoint(), &config, &words.config)?;
    let beside = beside(&found.dir, &words.config, &beginning)?;
    let reference = match config.has_reference() && !known.ref_logps {
        true => {
            let other = config.ref_model.as_ref().map(|name| locate(name, HubKind::Model)).transpose()?;
            // Without its adapter, the policy is the model below.
            let own = other.or_else(|| (!config.use_peft).then(|| found.dir.clone()));
            let synced = match &beginning {
                Beginning::Checkpoint(checkpoint) if config.sync_ref_model => Some(checkpoint.as_path()),
                _ => None,
            };
            Some(Reference::load(ctx, own.as_deref(), synced, &words.config, &config)?)
        }
        false => None,
    };
    let sampling = Arc::new(sampling(&config, &words.eos_ids));
    let evaluation = held_out.map(|questions| Evaluation::new(&config, &questions, &sampling));
    let how = TrainerConfig { adapter: config.adapter(), ..trainer_config(&config, config.objective()) };
    let trainer = Trainer::new(ctx.memory(), &words.config, how)?;
    let engine = match memory_plan::generates(&config) {
        true => {
            let mut engine =
                Engine::new(ctx, &words.config, engine_config).map_err(|e| BadInput::new(e.to_string()))?;
            engine.set_detokenizer(Arc::new(Detokenizer(words.tokenizer.clone())));
            Some(engine)
        }
        false => None,
    };
    let policy =
        Policy { dir: found.dir, weights, tokenizer: words.tokenizer, chat: words.chat, eos_ids: words.eos_ids };
    policy.describe(&console, ctx);
    console.info(&format!(
        "a generation is {} prompts × {} completions and serves {} optimizer steps of {} completions · prompts shared: {}",
        sizes.generation / sizes.group,
        sizes.group,
        sizes.steps(),
        sizes.optimizer,
        if config.prefix_sharing { "yes" } else { "no" }
    ));

    let total_steps = config.total_steps(chunks);
    let (course, own) = Course::begin(Parts {
        steps_per_epoch: chunks as u64 * sizes.steps(),
        run,
        ctx: ctx.clone(),
        policy,
        trainer,
        sampler,
        total_steps,
        data_hash: hash,
        beginning,
        console,
        stop,
        purpose: Purpose::Grpo,
        label: config.algorithm.label(),
        evaluation_metrics: crate::rollouts::evaluate::metric_names(&config, &rewards),
        resolved,
    })?;
    let batch =
        own.buffer.map_or(GenerationBatch::default(), |b| GenerationBatch { samples: b.samples(), used: b.used });
    let eval_weights = course.config.weights_of_rewards();
    let grpo = Grpo {
        reward_weights: match &source {
            Source::Prompts(_) => eval_weights.clone(),
            Source::File(replay, _) => weights_of_file(&course.config, replay)?,
        },
        eval_weights,
        course,
        reference,
        engine,
        rewards,
        sampling,
        sizes,
        source,
        evaluation,
        rollout_number: own.rollout_number,
        spent: Spent::default(),
        batch,
    };
    Ok((grpo, beside, own.critic))
}

/// What a run learns from.
struct Data {
    source: Source,
    /// Rows of the data set, or groups of the file.
    rows: usize,
    known: Known,
    /// SHA-256.
    hash: String,
}

fn data(config: &Config, words: &Words, rewards: &[Named], ctx: &Context, console: &Console) -> anyhow::Result<Data> {
    if let Some(path) = &config.replay {
        let replay = Replay::load(path, words, &Limits::of(config, words))?;
        weights_of_file(config, &replay)?;
        let (rows, known, hash) = (replay.len(), replay.known(), replay.hash.clone());
        let scorer = Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing);
        return Ok(Data { source: Source::File(replay, Box::new(scorer)), rows, known, hash });
    }
    let Some(spec) = DatasetSpec::train(config) else { return Err(BadInput::new("no training data")) };
    let questions = Questions::load(&spec, config, words, config.max_completion_length)?;
    check_columns(&questions, &spec.name, rewards)?;
    if questions.left_out > 0 {
        console.info(&format!("{} prompts longer than max_prompt_length were left out", questions.left_out));
    }
    let known = Known::of_prompts(questions.longest(), config.generation_batch());
    let (rows, hash) = (questions.all.len(), questions.hash);
    Ok(Data { source: Source::Prompts(questions.all), rows, known, hash })
}

/// One weight for each reward function of a file.
fn weights_of_file(config: &Config, replay: &Replay) -> anyhow::Result<Vec<f64>> {
    let functions = replay.reward_names.len();
    let weights = config.reward_weights.clone().unwrap_or_else(|| vec![1.0; functions]);
    if weights.len() != functions {
        return Err(BadInput::new(format!(
            "`reward_weights` has {} numbers, but the replayed file has {functions} rewards ({}): one weight for each",
            weights.len(),
            replay.reward_names.join(", ")
        )));
    }
    Ok(weights)
}
