//! The training run of one level: its steps, with the results and the seconds of each stage.

use super::ladder::{Generation, Level, Update};
use super::naive::Naive;
use super::settings::{Ppo, Settings};
use crate::workload::timed;
use crate::{Subject, Workload};
use kernels::Context;
use kernels::rng::Stream;
use model::columns::{RETURNS, VALUES};
use model::io::TensorSource;
use model::kept::RolloutActivations;
use model::{Prompt, Scorer, Weights, columns};
use rollout::{Engine, ModelVersion, Request, RolloutGroup, SamplingParams};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use train::gae::{self, KlEstimator};
use train::{Advantage, LossConfig, Objective, RewardMatrix, RewardRow, Sample, ScaleRewards, Trainer, advantages};

/// The random stream of the completion lengths.
const STREAM: u64 = 0x6c65_7665_6c73;

/// Timings and results of one step of a level.
#[derive(Default)]
pub(super) struct Step {
    pub(super) rollout_s: f64,
    /// Seconds of the value model's forward pass and of the computation of returns and advantages; 0 without a value
    /// model.
    pub(super) values_s: f64,
    pub(super) update_s: f64,
    /// Seconds of the value model's updates; 0 without a value model.
    pub(super) value_update_s: f64,
    pub(super) reward: f64,
    /// Loss and gradient norm of the policy in the first pass over the generation.
    pub(super) policy: Updated,
    /// Loss and gradient norm of the value model.
    pub(super) value: Option<Updated>,
    /// The token ids of every completion, and the bits of their log-probabilities.
    pub(super) drawn: Vec<(Vec<u32>, Vec<u32>)>,
    /// The bits of all values from the value model.
    pub(super) values: Vec<Vec<u32>>,
    /// A hash of all weights after the update, including those of the value model.
    pub(super) weights: u64,
}

/// Loss and gradient norm of an update.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Updated {
    pub(super) loss: f64,
    pub(super) grad_norm: f64,
}

impl Step {
    pub(super) fn seconds(&self) -> f64 {
        self.rollout_s + self.values_s + self.update_s + self.value_update_s
    }
}

/// Computes updates with the naive implementation or with the trainer.
enum Updater {
    Naive(Box<Naive>),
    Trainer(Box<Trainer>),
}

/// A model with its trainer.
struct Learner {
    weights: Weights,
    updater: Updater,
    scorer: Scorer,
}

impl Learner {
    fn new(
        level: &Level,
        workload: &Workload,
        ctx: &Context,
        weights: Weights,
        objective: Objective,
    ) -> anyhow::Result<Learner> {
        let config = weights.config.clone();
        let sharing = |is_shared| Workload { prefix_sharing: is_shared, ..workload.clone() };
        let naive = |width, objective| Updater::Naive(Box::new(Naive::new(ctx, &weights, objective, width)));
        let trainer = |is_shared, objective| {
            anyhow::Ok(Updater::Trainer(Box::new(sharing(is_shared).trainer_of(ctx, &config, objective)?)))
        };
        let updater = match level.update {
            Update::Padded => naive(Some(workload.new_tokens), objective),
            Update::Packed => naive(None, objective),
            Update::FusedHead => trainer(false, objective)?,
            Update::SharedPrompt => trainer(true, objective)?,
        };
        let scorer = Scorer::new(ctx.memory(), workload.micro_batch_tokens, false);
        Ok(Learner { weights, updater, scorer })
    }

    fn update(&mut self, ctx: &Context, samples: &[Sample], learning_rate: f64) -> anyhow::Result<Updated> {
        let (loss, grad_norm) = match &mut self.updater {
            Updater::Naive(naive) => naive.update(ctx, &mut self.weights, samples, learning_rate)?,
            Updater::Trainer(trainer) => {
                let metrics = trainer.update(ctx, &mut self.weights, samples, learning_rate)?;
                (metrics.loss, metrics.grad_norm)
            }
        };
        Ok(Updated { loss, grad_norm })
    }

    /// The value of the state in which each token was chosen.
    fn values(&mut self, ctx: &Context, samples: &[Sample]) -> anyhow::Result<Vec<Vec<f32>>> {
        match &self.updater {
            Updater::Naive(naive) => naive.values(ctx, &self.weights, samples),
            Updater::Trainer(_) => {
                let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
                Ok(self.scorer.values(ctx, &self.weights, &sequences)?)
            }
        }
    }
}

/// The training run of a level.
pub(super) struct Run {
    level: Level,
    settings: Settings,
    workload: Workload,
    ctx: Context,
    engine: Engine,
    /// Keeps the activations of a generation; `None` if the level keeps none.
    activations: Option<RolloutActivations>,
    policy: Learner,
    /// The value model of PPO.
    critic: Option<Learner>,
}

impl Run {
    /// Builds a training run with the initial weights that all levels share.
    pub(super) fn new(
        level: &Level,
        shape: crate::Shape,
        settings: &Settings,
        threads: Option<usize>,
    ) -> anyhow::Result<Run> {
        let (level, ctx, workload) = (*level, level.context(threads)?, settings.workload());
        let weights = Subject { shape, dtype: level.dtype() }.weights(&ctx)?;
        let is_shared = level.generation == Generation::SharedPrompt;
        let engine = Workload { prefix_sharing: is_shared, ..workload.clone() }.engine(&ctx, &weights.config)?;
        let grpo = LossConfig { max_completion_length: workload.new_tokens, ..LossConfig::default() };
        let objective = settings.ppo.map_or(Objective::Policy(grpo), |ppo| Objective::Ppo(ppo.policy));
        let critic = match settings.ppo {
            None => None,
            // The value model starts with the same layer weights as the policy, since the random numbers of a tensor
            // depend only on the tensor's name. Its head is not 0, so that values differ from the first step on.
            Some(ppo) => {
                let config = Arc::new(weights.config.with_score_head(1));
                let scorer = Weights::random(ctx.memory(), &config, 1)?;
                Some(Learner::new(&level, &workload, &ctx, scorer, Objective::Value(ppo.value))?)
            }
        };
        let mut policy = Learner::new(&level, &workload, &ctx, weights, objective)?;
        let activations = level.keeps.then(|| workload.activations(&ctx, &policy.weights.config, &engine));
        if let (Some(activations), Updater::Trainer(trainer)) = (&activations, &mut policy.updater) {
            trainer.use_activations(activations.clone());
        }
        Ok(Run { level, settings: *settings, workload, ctx, engine, activations, policy, critic })
    }

    pub(super) fn step(&mut self, number: u64) -> anyhow::Result<Step> {
        let prompts = self.workload.random_prompts(&self.policy.weights.config, number);
        let lengths = lengths(&self.workload, number);
        let (mut groups, rollout_s, _) = timed(|| self.generate(&prompts, &lengths, number))?;
        // A static batch generates tokens after the end of a completion; these are dropped.
        for (group, &length) in groups.iter_mut().zip(&lengths) {
            group.completions.iter_mut().for_each(|c| cut(c, length));
        }
        let mut samples = lockstep::evaluation::samples_of_groups(&groups);
        let scores = self.scores(&samples);
        let completions = groups.iter().flat_map(|group| &group.completions);
        let mut step = Step {
            rollout_s,
            reward: scores.iter().sum::<f64>() / scores.len() as f64,
            drawn: completions.map(|c| (c.ids.clone(), bits(c.logps()))).collect(),
            ..Step::default()
        };
        match self.settings.ppo {
            None => {
                relative_advantages(&mut samples, &scores);
                let (policy, update_s, _) = timed(|| self.update_policy(&samples))?;
                (step.policy, step.update_s) = (policy, update_s);
            }
            Some(ppo) => self.ppo(&ppo, &mut samples, &scores, &mut step)?,
        }
        let mut hasher = DefaultHasher::new();
        hash(&self.policy.weights, &mut hasher)?;
        if let Some(critic) = &self.critic {
            hash(&critic.weights, &mut hasher)?;
        }
        step.weights = hasher.finish();
        Ok(step)
    }

    /// Computes values and advantages of tokens, then updates both models in several passes over the generation.
    fn ppo(&mut self, ppo: &Ppo, samples: &mut [Sample], scores: &[f64], step: &mut Step) -> anyhow::Result<()> {
        let Some(mut critic) = self.critic.take() else { anyhow::bail!("PPO needs a value model") };
        let (values, values_s, _) = timed(|| {
            let values = critic.values(&self.ctx, samples)?;
            estimate(ppo, samples, scores, &values);
            Ok(values)
        })?;
        (step.values, step.values_s) = (values.iter().map(|row| bits(row)).collect(), values_s);
        for pass in 0..ppo.epochs {
            let (policy, update_s, _) = timed(|| self.update_policy(samples))?;
            let (value, value_update_s, _) = timed(|| critic.update(&self.ctx, samples, self.settings.learning_rate))?;
            (step.update_s, step.value_update_s) = (step.update_s + update_s, step.value_update_s + value_update_s);
            if pass == 0 {
                (step.policy, step.value) = (policy, Some(value));
            }
        }
        self.critic = Some(critic);
        Ok(())
    }

    fn update_policy(&mut self, samples: &[Sample]) -> anyhow::Result<Updated> {
        self.policy.update(&self.ctx, samples, self.settings.learning_rate)
    }

    fn generate(&mut self, prompts: &[Arc<Prompt>], lengths: &[usize], seed: u64) -> anyhow::Result<Vec<RolloutGroup>> {
        let longest = vec![lengths.iter().copied().max().unwrap_or(1); lengths.len()];
        let is_static = matches!(self.level.generation, Generation::Static | Generation::WithoutCache);
        let requests = requests(&self.workload, prompts, if is_static { &longest } else { lengths }, seed);
        if let Some(activations) = &self.activations {
            activations.lock().clear();
            self.engine.keep_activations(Some(activations.clone()));
        }
        if !is_static {
            return Ok(self.engine.generate(&self.policy.weights, requests)?);
        }
        let mut groups = Vec::new();
        for batch in requests.chunks((self.workload.max_num_seqs / self.workload.generations).max(1)) {
            let batch = match self.level.generation {
                Generation::WithoutCache => self.without_cache(batch)?,
                _ => self.engine.generate(&self.policy.weights, batch.to_vec())?,
            };
            groups.extend(batch);
        }
        Ok(groups)
    }

    /// Generates without a KV cache. After every token the weights get a new version number, so that the engine
    /// discards all keys and values and recomputes them.
    fn without_cache(&mut self, batch: &[Request]) -> anyhow::Result<Vec<RolloutGroup>> {
        for request in batch {
            self.engine.submit(request.clone())?;
        }
        let (weights, mut groups) = (&mut self.policy.weights, Vec::new());
        while !self.engine.is_idle() {
            groups.extend(self.engine.step(&*weights)?);
            weights.publish();
            let model = ModelVersion { base: weights.version, adapter: None };
            let drawn: Vec<_> = self.engine.drawn().iter().map(|drawn| drawn.sequence).collect();
            for sequence in drawn {
                self.engine.set_model(sequence, model);
            }
        }
        groups.sort_by_key(|group| group.group);
        Ok(groups)
    }

    /// The reward of each sample: the share of its tokens whose id is in the lower half of the vocabulary.
    fn scores(&self, samples: &[Sample]) -> Vec<f64> {
        let half = (self.policy.weights.config.vocab_size / 2) as u32;
        let score =
            |s: &Sample| s.completion.iter().filter(|&&id| id < half).count() as f64 / s.completion.len() as f64;
        samples.iter().map(score).collect()
    }
}

/// Sets the advantages of GRPO.
fn relative_advantages(samples: &mut [Sample], scores: &[f64]) {
    let row = |(s, &score): (&Sample, &f64)| RewardRow { group: s.group, scores: vec![Some(score)] };
    let rows = samples.iter().zip(scores).map(row).collect();
    let matrix = RewardMatrix { rows, names: vec!["lower_half".into()], weights: vec![1.0] };
    let computed = advantages::compute(&matrix, ScaleRewards::Group);
    samples.iter_mut().zip(computed.advantages).for_each(|(s, advantage)| s.advantage = advantage);
}

/// Sets the advantages and returns of PPO.
fn estimate(ppo: &Ppo, samples: &mut [Sample], scores: &[f64], values: &[Vec<f32>]) {
    let scores: Vec<Option<f64>> = scores.iter().map(|&score| Some(score)).collect();
    let token_rewards = gae::rewards_of_samples(KlEstimator::K1, 0.0, samples, &scores, &[]);
    let (estimates, _) = gae::estimate_samples(ppo.gamma, ppo.lam, &token_rewards.rewards, values, samples);
    let narrow = |row: Vec<f64>| row.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    for ((sample, estimates), values) in samples.iter_mut().zip(estimates).zip(values) {
        sample.advantage = Advantage::Tokens(narrow(estimates.advantages));
        sample.columns.set(VALUES, values.clone());
        sample.columns.set(RETURNS, narrow(estimates.returns));
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Hashes the weights in the order of checkpoint files, since their layout in memory depends on the instruction set.
fn hash(weights: &Weights, hasher: &mut DefaultHasher) -> anyhow::Result<()> {
    for tensor in weights.tensors() {
        weights.read(&tensor.name, &mut |piece| {
            for x in piece {
                x.to_bits().hash(hasher);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The length of each prompt's completions in tokens: random, from a quarter of the limit up to the limit. The
/// completions of the first prompt have the full length.
fn lengths(workload: &Workload, seed: u64) -> Vec<usize> {
    let mut stream = Stream::new(seed, STREAM);
    let (most, least) = (workload.new_tokens, workload.new_tokens.div_ceil(4));
    let drawn = |_| least + (stream.next_f64() * (most - least + 1) as f64) as usize;
    let mut lengths: Vec<usize> = (0..workload.prompts).map(drawn).collect();
    lengths[0] = most;
    lengths
}

fn requests(workload: &Workload, prompts: &[Arc<Prompt>], lengths: &[usize], seed: u64) -> Vec<Request> {
    let mut requests = workload.requests(prompts, seed);
    for (request, &max_new_tokens) in requests.iter_mut().zip(lengths) {
        request.sampling = Arc::new(SamplingParams { max_new_tokens, ..(*request.sampling).clone() });
    }
    requests
}

fn cut(completion: &mut rollout::Completion, length: usize) {
    completion.ids.truncate(length);
    completion.sampled.truncate(length);
    completion.versions.truncate(length);
    let logps: Vec<f32> = completion.logps().iter().copied().take(length).collect();
    completion.columns.set(columns::SAMPLER_LOGPS, logps);
}
