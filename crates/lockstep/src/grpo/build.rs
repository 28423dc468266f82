//! From a configuration to a run: every input is read and checked before the first file is written.

use super::{BatchSizes, GenerationBatch, Grpo};
use crate::config::{Config, Resolved};
use crate::course::{Beginning, Course, Parts, sampler};
use crate::data::DatasetSpec;
use crate::data::locate::{HubKind, locate};
use crate::error::BadInput;
use crate::evaluate::Evaluation;
use crate::memory_plan;
use crate::policy::{Detokenizer, Policy, Words, load_weights};
use crate::questions::{Questions, build_rewards, context};
use crate::run_dir::RunDir;
use crate::signals::StopRequest;
use kernels::Context;
use rollout::{Engine, EngineConfig, SamplingParams};
use std::sync::Arc;
use telemetry::Console;
use train::{Objective, Scorer, Trainer, TrainerConfig};

/// Rows of a rollout step: prompts are computed in chunks of this many.
const PREFILL_ROWS: usize = 1024;

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(
    resolved: Resolved,
    run: RunDir,
    beginning: Beginning,
    ctx: &Context,
    console: Console,
    stop: StopRequest,
) -> anyhow::Result<Grpo> {
    let config = resolved.config.clone();
    let dir = locate(config.model_name_or_path.as_deref().unwrap_or_default(), HubKind::Model)?;
    let words = Words::load(&dir)?;
    let rewards = build_rewards(&config)?;
    let room = config.max_completion_length;
    let Some(spec) = DatasetSpec::train(&config) else { return Err(BadInput::new("no training data")) };
    let questions = Questions::load(&spec, &config, &words, room)?;
    questions.check_columns(&spec.name, &rewards)?;
    if questions.left_out > 0 {
        console.info(&format!("{} prompts longer than max_prompt_length were left out", questions.left_out));
    }
    let held_out = DatasetSpec::eval(&config).map(|spec| Questions::load(&spec, &config, &words, room)).transpose()?;
    let longest = questions.longest().max(held_out.as_ref().map_or(0, Questions::longest));
    let sizes = BatchSizes {
        generation: config.generation_batch(),
        optimizer: config.completions_per_step(),
        group: config.num_generations,
        iterations: config.num_iterations,
    };
    let sampler = sampler(questions.all.len(), config.prompts_per_generation(), &config)?;
    let chunks = sampler.chunks_per_epoch();
    let engine_config = engine_config(&config, context(&config, &words), longest);
    // Before the weights are read: a run that cannot fit would be killed much later, and without a word.
    memory_plan::plan(&config, &words, longest)?.check(memory_plan::available_bytes(), &config)?;

    let from = match &beginning {
        Beginning::Checkpoint(checkpoint) => checkpoint,
        _ => &dir,
    };
    let weights = load_weights(ctx, from, &words.config)?;
    let reference = match config.beta != 0.0 {
        true => {
            let dir = config.ref_model.as_ref().map_or(Ok(dir.clone()), |name| locate(name, HubKind::Model))?;
            let weights = load_weights(ctx, &dir, &words.config)?;
            Some((weights, Scorer::new(ctx.memory(), config.micro_batch_tokens(), config.prefix_sharing)))
        }
        false => None,
    };
    let sampling = Arc::new(sampling(&config, &words.eos_ids));
    let evaluation = held_out.map(|questions| Evaluation::new(&config, &questions, &sampling));
    let trainer = Trainer::new(ctx.memory(), &words.config, trainer_config(&config, Objective::Policy(config.loss())))?;
    let mut engine = Engine::new(ctx, &words.config, engine_config).map_err(|e| BadInput::new(e.to_string()))?;
    engine.set_detokenizer(Arc::new(Detokenizer(words.tokenizer.clone())));
    let policy = Policy { dir, weights, tokenizer: words.tokenizer, chat: words.chat, eos_ids: words.eos_ids };
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
        data_hash: questions.hash,
        beginning,
        console,
        stop,
        label: "grpo",
        resolved,
    })?;
    let batch =
        own.buffer.map_or(GenerationBatch::default(), |b| GenerationBatch { samples: b.samples(), used: b.used });
    Ok(Grpo {
        reward_weights: course.config.weights_of_rewards(),
        course,
        reference,
        engine,
        rewards,
        sampling,
        sizes,
        questions: questions.all,
        evaluation,
        rollout_number: own.rollout_number,
        batch,
    })
}

/// How tokens are drawn in training.
pub fn sampling(config: &Config, eos_ids: &[u32]) -> SamplingParams {
    let own = config.stop_token_ids.iter().map(|&id| id as u32);
    SamplingParams {
        temperature: config.temperature,
        top_k: config.top_k,
        top_p: config.top_p,
        min_p: config.min_p.unwrap_or(0.0),
        repetition_penalty: config.repetition_penalty,
        max_new_tokens: config.max_completion_length,
        stop_ids: eos_ids.iter().copied().chain(own).collect(),
        stop_strings: config.stop.clone(),
        seed: config.seed,
    }
}

/// The engine's sizes: room for the longest prompt and its completion.
pub fn engine_config(config: &Config, context: usize, longest_prompt: usize) -> EngineConfig {
    let max_model_len = context.min(longest_prompt + config.max_completion_length);
    let max_num_seqs = config.max_num_seqs;
    EngineConfig {
        max_num_seqs,
        kv_blocks: config.kv_cache_blocks.unwrap_or_else(|| EngineConfig::blocks_for(max_num_seqs, max_model_len)),
        max_model_len,
        max_batched_tokens: PREFILL_ROWS,
        chunked_prefill: true,
        prefix_sharing: config.prefix_sharing,
    }
}

/// How the trainer works.
pub fn trainer_config(config: &Config, objective: Objective) -> TrainerConfig {
    TrainerConfig {
        objective,
        optimizer: config.optimizer(),
        temperature: config.temperature,
        max_tokens_per_micro_batch: config.micro_batch_tokens(),
        prefix_sharing: config.prefix_sharing,
        gradient_checkpointing: config.gradient_checkpointing,
    }
}
