//! Builds a rollout pipeline from a configuration. Every input is read and checked before the first file is written.

use super::activations;
use super::after::AfterStep;
use super::inputs::{LargestWork, PartInputs};
use super::parts::Parts;
use super::{RolloutPipeline, RolloutState};
use crate::bad_input;
use crate::config::{Config, Purpose, SamplingPlan, WorkloadBounds};
use crate::data::prompt_dataset::{PromptDataset, context};
use crate::data::prompts::Prompt;
use crate::error::{BadInput, OrBadInput};
use crate::models::{Builder, ModelSource, Policy, load_generator};
use crate::rollouts::assembler::Assembler;
use crate::rollouts::collector::{Collect, Collector};
use crate::rollouts::divided::Division;
use crate::rollouts::evaluate::{self, EvalSet, Evaluation};
use crate::rollouts::function::{FunctionRollouts, SharedScorer};
use crate::rollouts::notices;
use crate::rollouts::replay::{Limits, Replay};
use crate::rollouts::rewards::{
    ConfiguredReward, asked_by_workers, check_columns, models, named_rewards, ready_rewards, rewards_of_record,
};
use crate::run::begin::RunParts;
use crate::run::data_position::{DataPosition, sampler};
use crate::run::evaluations::Evaluations;
use crate::run::inputs::RunInputs;
use crate::run::learner::Learner;
use crate::run::lineage;
use crate::run::memory_advice::Replan;
use crate::run::memory_plan::{Available, Room};
use crate::run::provenance;
use crate::run::training::TrainingRun;
use crate::sources::ahead::AheadSource;
use crate::sources::chunks::ChunkSource;
use crate::sources::local::LocalSource;
use crate::sources::replay::ReplaySource;
use crate::sources::workers::{WorkerSource, WorkerSourceParts, refuse_what_workers_cannot};
use crate::sources::{BatchSizes, BatchSource, BatchSpec, Start};
use anyhow::Context as _;
use model::kept::RolloutActivations;
use model::{Head, ModelAssets, Sharing};
use rewards::Reward;
use rollout::Engine;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use telemetry::counted;

/// A pipeline that is ready to begin: all inputs have been checked, and no file has been written.
pub struct Prepared {
    pipeline: RolloutPipeline,
    parts: RunParts,
    /// The message for the start of the run about the activations that it keeps.
    activations_line: String,
    /// The number of rows whose activations each rank keeps, and the largest number of rows of its part of a
    /// generation.
    kept_rows: [usize; 2],
}

impl Prepared {
    /// Reads and builds everything, including the policy and the reference model. `own` builds the algorithm's own
    /// parts, such as PPO's value model. `own` is called twice: on `Device::Meta` for the memory plan, and on the run's
    /// device.
    pub fn new<T>(
        inputs: &mut RunInputs,
        own: impl Fn(&mut Builder<'_>, PartInputs<'_>, LargestWork) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Prepared, T)> {
        let (config, ctx) = (inputs.config().clone(), inputs.ctx.clone());
        if inputs.injected.rollout_function.is_some() && config.replay.is_some() {
            bad_input!("`replay` names recorded rollouts, but there is also a rollout function: remove one");
        }
        if inputs.injected.rollout_function.is_some() && !config.sampling_profiles.is_empty() {
            bad_input!(
                "`sampling_profiles` sets how groups are sampled, but a rollout function (rollout_func) decides this \
                 itself: remove one"
            );
        }
        if inputs.injected.rollout_function.is_some() && config.max_staleness > 0 {
            bad_input!(
                "`max_staleness` = {} generates batches ahead, with group numbers known in advance, but a rollout \
                 function (rollout_func) decides how many numbers a batch uses: set max_staleness = 0",
                config.max_staleness
            );
        }
        if inputs.injected.sharing.is_some() {
            refuse_what_workers_cannot(&config, inputs.injected.rollout_function.is_some())?;
        }
        let model = ModelSource::of(&config, Head::Lm)?;
        let assets = load_generator(&model.dir, &config, inputs.prompt_time)?;
        if inputs.resume_from.checkpoint().is_some() {
            provenance::check_files(&inputs.dir, &model.dir, &assets.files)?;
        }
        let vocabulary = assets.config.vocab_size;
        if let Some(id) = config.stop_token_ids.iter().find(|&&id| id >= vocabulary as u64) {
            bad_input!("`stop_token_ids` has {id}, but token ids must be below {vocabulary}, the vocabulary size");
        }
        let rewards = if inputs.injected.recorded_scores {
            rewards_of_record(&config, &inputs.stop)?
        } else {
            let functions = std::mem::take(&mut inputs.injected.rewards);
            named_rewards(&config, functions, inputs.prompt_time, &inputs.stop)?
        };
        let Data { rollouts, rows, bounds, hash } = data(inputs, &assets, &rewards)?;
        let held_out = evaluate::load_sets(inputs.eval_sets(), &config, &assets, &rewards)?;
        notices::other_sampling(&config, &assets.files)?.iter().for_each(|line| inputs.sinks.info(line));
        report(inputs, &assets, &rollouts, &held_out)?;
        let mut bounds = evaluate::with_sets(bounds, &held_out, &config);
        if inputs.injected.rollout_function.is_some() {
            bounds.widen_to_given(&config, context(&config, &assets));
        }
        let sizes = BatchSizes {
            generation: config.generation_batch(),
            optimizer: config.completions_per_step(),
            group: config.num_generations,
            iterations: config.passes(),
        };
        let sampler = if inputs.injected.only_evaluates {
            sampler(1, 1, &config)?
        } else {
            sampler(rows, config.prompts_per_generation(), &config)?
        };
        let chunks = sampler.chunks_per_epoch();
        let mut builder = inputs.builder();
        let only_evaluates = inputs.injected.only_evaluates;
        let part_inputs = PartInputs { source: &model, assets: &assets, bounds, only_evaluates, kept_rows: 0 };
        let reward_models: Vec<_> = models(&rewards).collect();
        // Memory is planned before weights are read; otherwise a run that does not fit would be killed much later,
        // without a message.
        let (device, available) = (ctx.memory().device(), Available::of(&ctx));
        let room = Room { device, available: &available };
        let (part_inputs, plan) = Parts::plan_activations(&builder, part_inputs, &reward_models, &own, room)?;
        let again = |changed: &Config| {
            let assets = assets.clone().computing_in(changed.dtype.dtype()).or_bad_input()?;
            let inputs = PartInputs { assets: &assets, bounds: bounds.under(changed, &config), ..part_inputs };
            let plan = Parts::plan(&builder.with(changed), inputs, &reward_models, &own)?;
            Ok(plan.on(device))
        };
        let resumes = builder.checkpoint.is_some();
        let replan = Replan { purpose: Purpose::Grpo, config: &config, resumes, plan: &again };
        replan.check(&plan.on(device), &available)?;
        let activations_line = activations::line(&builder, part_inputs);
        let kept_rows = [part_inputs.kept_rows, activations::whole(&builder, part_inputs)];
        telemetry::system::reset_peak_rss();
        let Parts {
            weights,
            trainer,
            own,
            reference,
            replay_scorer,
            scorer,
            engine,
            activations,
            rewards: reward_models,
        } = Parts::build(&mut builder, part_inputs, &reward_models, &own)?;
        let worker_rewards = asked_by_workers(&rewards, inputs.injected.functions_of_workers);
        let rewards = ready_rewards(rewards, reward_models, &inputs.stop);
        let sampling = SamplingPlan::new(&config, &assets.eos_ids)?;
        let evaluation = if held_out.is_empty() {
            None
        } else {
            Some(Evaluation::new(&config, held_out, sampling.common(), &rewards)?)
        };
        let evaluation_metrics = evaluate::metric_names(&config, &rewards);
        let has_function = inputs.injected.rollout_function.is_some();
        // The caller's function may use different weights, and batches generated ahead are sampled with older weights.
        let stale = scorer.clone().filter(|_| has_function || config.max_staleness > 0);
        let stale_scorer = replay_scorer.clone().or(stale);
        let eval_weights = config.weights_of_rewards();
        let spec = BatchSpec {
            config: config.clone(),
            prompts: Vec::new(),
            sizes,
            sampling: sampling.clone(),
            reward_weights: eval_weights.clone(),
        };
        let longest_prompt = bounds.longest_prompt;
        let parts = SourceParts {
            engine,
            activations,
            rewards,
            worker_rewards,
            scorer: scorer.clone(),
            replay_scorer,
            longest_prompt,
        };
        let source = source(inputs, &assets, rollouts, spec, parts)?;
        let policy = Policy::of(model.dir.clone(), assets, weights).exporting(&config, &model)?;
        let settings = lineage::settings(&config, &ctx);
        let parts = RunParts {
            learner: Learner::new(ctx, policy, trainer, config.schedule(config.total_steps(chunks))),
            data: DataPosition::new(hash, sampler, chunks as u64 * sizes.steps()),
            evaluations: Evaluations::new(&config, &evaluation_metrics, false)?,
            purpose: Purpose::Grpo,
            label: config.algorithm.label(),
        };
        let pipeline = RolloutPipeline {
            eval_weights,
            reference,
            source,
            has_function,
            sampling,
            settings,
            sizes,
            scorer,
            stale_scorer,
            evaluation,
            after: config.records_updates().then(AfterStep::new),
            state: RolloutState::default(),
        };
        Ok((Prepared { pipeline, parts, activations_line, kept_rows }, own))
    }

    /// Begins the run. `restore` restores the pipeline from the task's state in a checkpoint.
    pub fn begin(
        self,
        inputs: RunInputs,
        restore: impl FnOnce(&mut RolloutPipeline, Value, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<(RolloutPipeline, TrainingRun)> {
        let Prepared { mut pipeline, parts, activations_line, kept_rows } = self;
        let sizes = pipeline.sizes;
        inputs.sinks.info(&parts.learner.policy.describe(&inputs.ctx));
        inputs.sinks.info(&format!(
            "a generation has {} × {}, for {} of {} · prompts shared: {}",
            counted(sizes.generation / sizes.group, "prompt"),
            counted(sizes.group, "completion"),
            counted(sizes.steps() as usize, "optimizer step"),
            counted(sizes.optimizer, "completion"),
            if inputs.config().prefix_sharing { "yes" } else { "no" }
        ));
        inputs.sinks.info(&inputs.config().skipping());
        inputs.sinks.info(&activations_line);
        let from = inputs.resume_from.clone();
        let mut run = TrainingRun::begin(inputs, parts, |state, checkpoint| restore(&mut pipeline, state, checkpoint))?;
        if pipeline.state.lineage.is_none() {
            pipeline.state.lineage = Some(lineage::at_start(&run, &from, &pipeline.settings)?);
        }
        pipeline.restore_drafts(&run);
        pipeline.divide_generation(&run, kept_rows)?;
        pipeline.begin_source(&mut run)?;
        Ok((pipeline, run))
    }
}

impl RolloutPipeline {
    /// Divides generation among the ranks, if there are any. `rows` are the number of rows whose activations each rank
    /// keeps, and the largest number of rows of its part of a generation.
    fn divide_generation(&mut self, run: &TrainingRun, rows: [usize; 2]) -> anyhow::Result<()> {
        let Some(ranks) = run.learner.trainer.other_ranks() else { return Ok(()) };
        let Some(collector) = self.source.collector() else { return Ok(()) };
        if self.has_function {
            let why = "a function of the calling program (rollout_func) makes the completions";
            run.log.sinks().info(&format!("rank 0 generates alone: {why}"));
            return Ok(());
        }
        let (tokenizer, [kept_rows, most_rows]) = (run.learner.policy.dir.clone(), rows);
        let groups_per_step = self.sizes.optimizer / self.sizes.group;
        collector.divide(&ranks, &Division { tokenizer, groups_per_step, kept_rows, most_rows })?;
        run.log.sinks().info("generation is divided among all ranks");
        Ok(())
    }

    fn begin_source(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        let TrainingRun { learner, data, checkpoints, prompt_time, .. } = run;
        let start = Start {
            dir: checkpoints.dir.root(),
            policy: &mut learner.policy,
            ctx: &learner.ctx,
            step: learner.step,
            total_steps: learner.schedule.total_steps,
            data: &data.sampler,
            data_hash: &data.hash,
            in_use: &self.state.batch.samples,
            lineage: self.state.lineage,
            settings: self.settings,
            prompt_time: *prompt_time,
        };
        self.source.begin(&mut self.state.source, start)
    }
}

/// The parts of a source of batches.
struct SourceParts {
    engine: Option<Engine>,
    activations: Option<RolloutActivations>,
    rewards: Vec<Box<dyn Reward>>,
    /// The names of the rewards that workers have.
    worker_rewards: BTreeSet<String>,
    scorer: Option<SharedScorer>,
    /// Scores the completions of a replayed file.
    replay_scorer: Option<SharedScorer>,
    longest_prompt: usize,
}

/// The source of a run's batches. `spec` has no prompts yet.
fn source(
    inputs: &mut RunInputs,
    assets: &ModelAssets,
    rollouts: RolloutData,
    mut spec: BatchSpec,
    SourceParts { engine, activations, rewards, worker_rewards, scorer, replay_scorer, longest_prompt }: SourceParts,
) -> anyhow::Result<Box<dyn BatchSource>> {
    let (tokenizer, stop) = (assets.tokenizer.clone(), inputs.stop.clone());
    let injected = &mut inputs.injected;
    let replay = match rollouts {
        RolloutData::Prompts(prompts) => {
            spec.prompts = prompts;
            None
        }
        RolloutData::File(replay) => Some(replay),
    };
    if let Some(Sharing { run: slots, .. }) = injected.sharing {
        let assembler = Assembler { rewards, worker_rewards, tokenizer, stop };
        let network = injected.network.take();
        let parts = WorkerSourceParts { assembler, engine, scorer, slots, network, longest_prompt };
        return Ok(Box::new(WorkerSource::new(spec, parts)?));
    }
    let function = injected.rollout_function.take().zip(scorer).map(|(function, scorer)| FunctionRollouts {
        function,
        ctx: inputs.ctx.clone(),
        tokenizer: tokenizer.clone(),
        template: assets.chat.clone(),
        scorer,
        kwargs: spec.config.chat_template_kwargs.clone(),
        max_tokens: longest_prompt + spec.config.max_completion_length,
    });
    let place = injected.collect_with.take();
    let collector = engine.map(|engine| -> Box<dyn Collect> {
        let here = Collector { engine, divided: None, function, rewards, tokenizer, stop };
        match place {
            Some(place) => place(here),
            None => Box::new(here),
        }
    });
    let source: Box<dyn BatchSource> = match replay {
        Some(replay) => {
            let scorer = replay_scorer.context("a run that replays a file needs a scorer")?;
            spec.reward_weights = weights_of_file(&spec.config, &replay)?;
            Box::new(ReplaySource::new(spec, replay, scorer, collector))
        }
        None => {
            let (chunk, is_ahead) = (spec.config.partial_rollout_tokens, spec.config.max_staleness > 0);
            let collector = collector.context("a run that generates needs an engine")?;
            let local = LocalSource::new(spec, collector, activations);
            match chunk {
                Some(tokens) => Box::new(ChunkSource::new(local, tokens)),
                None if is_ahead => Box::new(AheadSource(local)),
                None => Box::new(local),
            }
        }
    };
    #[cfg(test)]
    if let Some(wrap) = injected.wrap_source.take() {
        return Ok(wrap(source));
    }
    Ok(source)
}

/// The source of groups as plain data: prompts, or recorded rollouts.
enum RolloutData {
    Prompts(Vec<Arc<Prompt>>),
    File(Replay),
}

/// The training data of a run.
struct Data {
    rollouts: RolloutData,
    /// Rows of the dataset, or groups of the replayed file.
    rows: usize,
    bounds: WorkloadBounds,
    /// SHA-256 of the data.
    hash: String,
}

fn data(inputs: &RunInputs, assets: &ModelAssets, rewards: &[ConfiguredReward]) -> anyhow::Result<Data> {
    let config = inputs.config();
    if inputs.injected.only_evaluates {
        let (rollouts, bounds) = (RolloutData::Prompts(Vec::new()), WorkloadBounds::for_prompts(0, 0));
        return Ok(Data { rollouts, rows: 0, bounds, hash: String::new() });
    }
    if let Some(path) = &config.replay {
        let replay = Replay::load(path, assets, &Limits::of(config, assets))?;
        weights_of_file(config, &replay)?;
        let (rows, bounds, hash) = (replay.len(), replay.bounds(), replay.hash.clone());
        return Ok(Data { rollouts: RolloutData::File(replay), rows, bounds, hash });
    }
    let Some(spec) = inputs.train_data() else { return Err(BadInput::new("no training data")) };
    let prompts = PromptDataset::load(&spec, config, assets, config.max_completion_length)?;
    prompts.notices.report(&inputs.sinks);
    check_columns(&prompts, &spec.name, rewards)?;
    if prompts.left_out > 0 {
        inputs.sinks.info(&format!("left out: {} longer than max_prompt_length", counted(prompts.left_out, "prompt")));
    }
    let bounds = WorkloadBounds::for_prompts(prompts.longest(), config.generation_batch());
    let (rows, hash) = (prompts.all.len(), prompts.hash);
    Ok(Data { rollouts: RolloutData::Prompts(prompts.all), rows, bounds, hash })
}

/// Logs notes about the prompts of evaluations, and about tags that rewards look for but cannot see. A replay has no
/// training prompts to search.
fn report(inputs: &RunInputs, assets: &ModelAssets, data: &RolloutData, held_out: &[EvalSet]) -> anyhow::Result<()> {
    let (config, sinks) = (inputs.config(), &inputs.sinks);
    for set in held_out {
        set.questions.notices.report(sinks);
    }
    let prompts: &[Arc<Prompt>] = match data {
        RolloutData::Prompts(prompts) => prompts,
        RolloutData::File(_) => &[],
    };
    let prompts = prompts.iter().chain(held_out.iter().flat_map(|set| &set.questions.all));
    notices::unseen_tags(config, assets, prompts)?.iter().for_each(|sentence| sinks.warn(sentence));
    Ok(())
}

/// The weights of the rewards in a replayed file, one per reward.
fn weights_of_file(config: &Config, replay: &Replay) -> anyhow::Result<Vec<f64>> {
    let functions = replay.reward_names.len();
    let weights = config.reward_weights.clone().unwrap_or_else(|| vec![1.0; functions]);
    if weights.len() != functions {
        return Err(BadInput::new(format!(
            "`reward_weights` must have one weight per reward: it has {}, and the replayed file has {functions} \
             rewards ({})",
            weights.len(),
            replay.reward_names.join(", ")
        )));
    }
    Ok(weights)
}
