//! The parts of an online run (GRPO, PPO) that use memory. The run and its memory plan build them with the same
//! function.

use super::activations;
use super::inputs::{LargestWork, PartInputs};
use super::reference::Reference;
use crate::algorithms;
use crate::bad_input;
use crate::config::{Config, SamplingPlan, Trust, WorkloadBounds, engine_config, engine_config_of_rank, eval_sampling};
use crate::data::DatasetSpec;
use crate::data::prompt_dataset::{PromptDataset, context};
use crate::error::OrBadInput;
use crate::models::{Builder, Longest, ModelSource, Work, reference_source, teacher, trained_weights};
use crate::rollouts::function::SharedScorer;
use crate::rollouts::replay::{Limits, Replay};
use crate::rollouts::reward_model::RewardModelFiles;
use crate::rollouts::rewards::named_models;
use crate::run::memory_plan::{MemoryPlan, Room, planned};
use crate::trainers::Planner;
use model::kept::RolloutActivations;
use model::{AdaptedWeights, ModelAssets};
use rewards::RewardModel;
use rollout::Engine;
use std::sync::{Arc, Mutex};
use train::Trainer;

/// The parts of an online run; `own` are the algorithm's, such as PPO's value model.
pub struct Parts<T> {
    pub(super) weights: AdaptedWeights,
    pub(super) trainer: Trainer,
    pub(super) own: T,
    pub(super) reference: Option<Reference>,
    /// Scores the completions of a replayed file.
    pub(super) replay_scorer: Option<SharedScorer>,
    /// Scores completions of a rollout function, completions sampled with older weights, and completions of an
    /// evaluation for its loss.
    pub(super) scorer: Option<SharedScorer>,
    pub(super) engine: Option<Engine>,
    /// The activations that the engine keeps for the trainer.
    pub(super) activations: Option<RolloutActivations>,
    pub(super) rewards: Vec<RewardModel>,
}

impl<T> Parts<T> {
    /// Builds all parts.
    pub fn build(
        builder: &mut Builder<'_>,
        inputs: PartInputs<'_>,
        rewards: &[&RewardModelFiles],
        own: impl FnOnce(&mut Builder<'_>, PartInputs<'_>, LargestWork) -> anyhow::Result<T>,
    ) -> anyhow::Result<Parts<T>> {
        let (PartInputs { source, assets, bounds, .. }, config) = (inputs, builder.config);
        let model = &assets.config;
        let (completions, group) = (config.generation_batch(), config.num_generations);
        let generation = Work { completions, group, longest: longest(config, bounds) };
        let step = Work { completions: config.completions_per_step(), ..generation };
        let weights = trained_weights(builder, source, model)?;
        let whole = activations::whole(builder, inputs);
        let kept_rows = if activations::refusal(builder, inputs).is_some() { 0 } else { inputs.kept_rows.min(whole) };
        // Only the first step on a generation can use kept activations. Later steps need forward passes, and so do
        // groups that another rank generated, as it may be in later rounds of dynamic sampling.
        let moves = config.dynamic_sampling && builder.world_size() > 1;
        let keeps = kept_rows == whole && completions == step.completions && config.passes() == 1 && !moves;
        let mut trainer = builder.trainer("training", model, config.objective(), step, keeps)?;
        let own = own(builder, inputs, LargestWork { step, generation })?;
        // An evaluation computes the loss of its own completions.
        let evaluated = if config.has_eval_data() && config.has_eval_loss() {
            Work {
                completions: completions.max(bounds.sequences),
                group: group.max(config.generations_eval()),
                ..generation
            }
        } else {
            generation
        };
        let reference = match config.reference().filter(|_| config.loads_reference(bounds.ref_logps)) {
            Some(algorithms::Reference::Policy) => {
                let ModelSource { dir, adapter } = reference_source(config, source)?;
                // The base weights of a trained adapter are frozen, so they are loaded only once.
                let own = Some(&*dir).filter(|_| !config.use_peft || dir != source.dir);
                let place = (own, adapter.as_deref());
                Some(Reference::load(builder, "reference", place, (&weights, model), evaluated)?)
            }
            Some(algorithms::Reference::Teacher { key, name }) => {
                let (dir, shape) = teacher(config, key, name, inputs.assets)?;
                Some(Reference::load(builder, "teacher", (Some(&dir), None), (&weights, &shape), evaluated)?)
            }
            None => None,
        };
        // Recorded completions may lack log-probabilities.
        let replays = config.replay.is_some();
        let replay_scorer = replays.then(|| Arc::new(Mutex::new(builder.scorer("given rollouts", model, generation))));
        let for_evaluation = config.has_eval_data() && config.has_eval_loss();
        let for_stale = scores_stale(config) || builder.sharing.is_some() && config.audit_stale > 0.0;
        let for_updates = config.records_updates();
        let scorer = (bounds.given || for_evaluation || for_stale || for_updates).then(|| {
            let (name, work) = match (bounds.given, for_stale, for_evaluation) {
                (true, _, for_evaluation) => ("given rollouts", if for_evaluation { evaluated } else { generation }),
                (_, true, for_evaluation) => ("stale rollouts", if for_evaluation { evaluated } else { generation }),
                (_, _, true) => ("evaluation", evaluated),
                _ => ("recorded updates", Work { completions: group, ..generation }),
            };
            Arc::new(Mutex::new(builder.scorer(name, model, work)))
        });
        // Workers generate completions, but a learner that audits them also generates.
        let generates = !replays && (builder.sharing.is_none() || config.trust == Trust::Audit);
        let mut activations = None;
        let engine = if generates || config.has_eval_data() {
            let training = SamplingPlan::new(config, &[])?;
            let evaluation = eval_sampling(config, training.common());
            let mut drawn = if generates { training.ways() } else { Vec::new() };
            drawn.extend(config.has_eval_data().then_some(&evaluation));
            let whole_sizes = engine_config(config, context(config, assets), bounds);
            let ranks = inputs.generating_ranks(builder);
            let sizes = engine_config_of_rank(config, whole_sizes, bounds, ranks);
            if ranks > 1 {
                builder.count_rank_engines(model, &sizes, (kept_rows, whole))?;
            }
            if kept_rows > 0 {
                let memory = builder.part("generation").memory().clone();
                activations = Some(RolloutActivations::new(&memory, model, kept_rows, sizes.rows(), whole));
            }
            Some(builder.engine(assets, sizes, &drawn)?)
        } else {
            None
        };
        if let Some(activations) = &activations {
            trainer.use_activations(activations.clone());
        }
        let rewards = rewards.iter().map(|files| files.build(builder, generation)).collect::<anyhow::Result<_>>()?;
        Ok(Parts { weights, trainer, own, reference, replay_scorer, scorer, engine, activations, rewards })
    }

    /// Plans the memory of the parts.
    pub fn plan(
        builder: &Builder<'_>,
        inputs: PartInputs<'_>,
        rewards: &[&RewardModelFiles],
        own: impl FnOnce(&mut Builder<'_>, PartInputs<'_>, LargestWork) -> anyhow::Result<T>,
    ) -> anyhow::Result<MemoryPlan> {
        let longest = longest(builder.config, inputs.bounds);
        planned(builder, &inputs.assets.config, longest, |meta| Parts::build(meta, inputs, rewards, own))
    }

    /// `inputs` with the number of rows whose activations the run keeps, and the plan of its memory.
    pub fn plan_activations<'a>(
        builder: &Builder<'_>,
        inputs: PartInputs<'a>,
        rewards: &[&RewardModelFiles],
        own: impl Fn(&mut Builder<'_>, PartInputs<'_>, LargestWork) -> anyhow::Result<T>,
        room: Room<'_>,
    ) -> anyhow::Result<(PartInputs<'a>, MemoryPlan)> {
        let none = PartInputs { kept_rows: 0, ..inputs };
        let plan = Parts::plan(builder, none, rewards, &own)?;
        let kept_rows = activations::rows(builder, inputs, &plan, room);
        if kept_rows == 0 {
            return Ok((none, plan));
        }
        let some = PartInputs { kept_rows, ..inputs };
        Ok((some, Parts::plan(builder, some, rewards, &own)?))
    }

    /// Plans the memory of the parts before there is a run.
    pub fn planner<'a>(
        builder: &'a Builder<'a>,
        source: &'a ModelSource,
        assets: &'a ModelAssets,
        room: Option<Room<'_>>,
        own: impl Fn(&mut Builder<'_>, PartInputs<'_>, LargestWork) -> anyhow::Result<T> + 'a,
    ) -> anyhow::Result<Planner<'a>> {
        let before = builder.config;
        let rewards = named_models(before)?;
        let data_bounds = bounds(before, assets)?;
        let has_data = before.dataset_name.is_some() || before.replay.is_some() || before.has_eval_data();
        let inputs = PartInputs { source, assets, bounds: data_bounds, only_evaluates: false, kept_rows: 0 };
        let named: Vec<_> = rewards.iter().collect();
        // Changed configurations are planned with the same rows: with `auto`, more rows would take the memory that a
        // change frees.
        let kept_rows = match room {
            Some(room) => Parts::plan_activations(builder, inputs, &named, &own, room)?.0.kept_rows,
            None => 0,
        };
        Ok(Box::new(move |config| {
            let assets = assets.clone().computing_in(config.dtype.dtype()).or_bad_input()?;
            let bounds = if has_data { data_bounds.under(config, before) } else { bounds(config, &assets)? };
            let inputs = PartInputs { assets: &assets, bounds, kept_rows, ..inputs };
            Parts::plan(&builder.with(config), inputs, &rewards.iter().collect::<Vec<_>>(), &own)
        }))
    }
}

fn longest(config: &Config, bounds: WorkloadBounds) -> Longest {
    Longest { prompt: bounds.longest_prompt, completion: config.max_completion_length }
}

/// Whether the policy rescores completions of older weights, for the importance sampling correction.
fn scores_stale(config: &Config) -> bool {
    config.max_staleness > 0 && config.vllm_importance_sampling_correction
}

/// The longest prompt and the number of sequences in the run's data. Without data, the context length and the
/// configuration limit the longest prompt.
fn bounds(config: &Config, assets: &ModelAssets) -> anyhow::Result<WorkloadBounds> {
    let replay = match &config.replay {
        Some(path) => Some(Replay::load(path, assets, &Limits::of(config, assets))?.bounds()),
        None => None,
    };
    let mut longest = replay.map(|bounds| bounds.longest_prompt);
    let mut sequences = if replay.is_some() { 0 } else { config.generation_batch() };
    let train = if config.replay.is_some() { None } else { DatasetSpec::train(config) };
    let load = |spec: &DatasetSpec| PromptDataset::load(spec, config, assets, config.max_completion_length);
    if let Some(spec) = &train {
        longest = longest.max(Some(load(spec)?.longest()));
    }
    for (_, spec) in &DatasetSpec::eval_sets(config) {
        let questions = load(spec)?;
        longest = longest.max(Some(questions.longest()));
        sequences = sequences.max(questions.all.len() * config.generations_eval());
    }
    let context = context(config, assets);
    let room = context.saturating_sub(config.max_completion_length);
    let longest_prompt = match longest {
        Some(longest) => longest,
        None if room == 0 => bad_input!(
            "max_completion_length = {} leaves no room for a prompt in the context of {context} tokens: lower \
             max_completion_length",
            config.max_completion_length
        ),
        None => config.max_prompt_length.map_or(room, |n| n.min(room)),
    };
    Ok(WorkloadBounds { longest_prompt, sequences, ref_logps: replay.is_some_and(|b| b.ref_logps), given: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_completions_are_scored_again_for_the_correction() {
        let config = |max_staleness: usize, vllm_importance_sampling_correction: bool| {
            scores_stale(&Config { max_staleness, vllm_importance_sampling_correction, ..Config::default() })
        };
        assert_eq!([config(0, true), config(1, false), config(1, true)], [false, false, true]);
        let bounds = WorkloadBounds::for_prompts(7, 3);
        let found = longest(&Config { max_completion_length: 5, ..Config::default() }, bounds);
        assert_eq!((found.prompt, found.completion), (7, 5));
    }
}
