//! A GRPO step without data. Prompts are random token ids, completions have a fixed length (they never end early), and
//! rewards are random. Everything else runs the code of a training run.

use kernels::Context;
use kernels::rng::Stream;
use lockstep::evaluation::samples_of_groups;
use model::kept::RolloutActivations;
use model::{Capacity, GroupId, ModelConfig, Prompt, Weights};
use rollout::{Engine, EngineConfig, Request, RolloutGroup, SamplingParams};
use std::sync::Arc;
use train::{
    LossConfig, Objective, OptimizerConfig, RewardMatrix, RewardRow, Sample, ScaleRewards, Trainer, TrainerConfig,
    UpdateMetrics, advantages,
};

/// The maximum number of rows (tokens) in a step of the engine.
pub const MAX_BATCHED_TOKENS: usize = 1024;

/// The sizes and settings of a step.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Prompts in a step.
    pub prompts: usize,
    /// Tokens per prompt.
    pub prompt_tokens: usize,
    /// Completions per prompt.
    pub generations: usize,
    /// Tokens per completion.
    pub new_tokens: usize,
    /// Sampling temperature; 0 for greedy (generation only).
    pub temperature: f64,
    /// The maximum number of sequences generated at the same time.
    pub max_num_seqs: usize,
    /// Whether a group's prompt is computed only once, in rollout and in training.
    pub prefix_sharing: bool,
    /// The maximum number of rows (tokens) in a micro-batch.
    pub micro_batch_tokens: usize,
    /// Whether the trainer keeps only the inputs of layers and recomputes other activations.
    pub gradient_checkpointing: bool,
}

/// Approximate number of prompt tokens in the benchmark that compares with other engines.
pub const PROMPT_TOKENS: usize = 88;
/// The random stream of prompts and rewards.
const STREAM: u64 = 0x62_656e_6368;

impl Workload {
    /// A GRPO step with `completions` completions in groups of eight, or in one smaller group.
    pub fn grpo(completions: usize, new_tokens: usize) -> Workload {
        let generations = completions.min(8);
        Workload {
            prompts: completions / generations,
            prompt_tokens: PROMPT_TOKENS,
            generations,
            new_tokens,
            temperature: 1.0,
            max_num_seqs: completions.min(256),
            prefix_sharing: true,
            micro_batch_tokens: 4096,
            gradient_checkpointing: false,
        }
    }

    /// Number of completions in a step.
    pub fn completions(&self) -> usize {
        self.prompts * self.generations
    }

    /// Number of tokens generated in a step.
    pub fn generated_tokens(&self) -> usize {
        self.completions() * self.new_tokens
    }

    /// A buffer for the activations of all rows that `engine` generates in a step.
    pub fn activations(&self, ctx: &Context, model: &ModelConfig, engine: &Engine) -> RolloutActivations {
        let lengths = vec![self.new_tokens; self.generations];
        let rows = self.prompts * Capacity::for_group(self.prompt_tokens, &lengths, self.prefix_sharing).tokens;
        RolloutActivations::new(ctx.memory(), model, rows, engine.config().rows(), rows)
    }

    /// An engine with room for the whole step.
    pub fn engine(&self, ctx: &Context, model: &ModelConfig) -> anyhow::Result<Engine> {
        let max_model_len = self.prompt_tokens + self.new_tokens;
        Ok(Engine::new(
            ctx,
            model,
            EngineConfig {
                kv_blocks: EngineConfig::blocks_for(self.max_num_seqs + self.prompts, max_model_len),
                max_batched_tokens: MAX_BATCHED_TOKENS,
                prefix_sharing: self.prefix_sharing,
                ..EngineConfig::new(self.max_num_seqs, max_model_len)
            },
        )?)
    }

    /// A trainer for the step.
    pub fn trainer(&self, ctx: &Context, model: &Arc<ModelConfig>) -> anyhow::Result<Trainer> {
        let loss = LossConfig { max_completion_length: self.new_tokens, ..LossConfig::default() };
        self.trainer_of(ctx, model, Objective::Policy(loss))
    }

    /// Creates a trainer for the step with the given objective.
    pub fn trainer_of(&self, ctx: &Context, model: &Arc<ModelConfig>, objective: Objective) -> anyhow::Result<Trainer> {
        let config = TrainerConfig {
            objective,
            optimizer: OptimizerConfig::default(),
            temperature: self.temperature,
            max_tokens_per_micro_batch: self.micro_batch_tokens,
            prefix_sharing: self.prefix_sharing,
            gradient_checkpointing: self.gradient_checkpointing,
            skip_zero_gradients: true,
            adapter: None,
            gradient_shares: 1,
        };
        Ok(Trainer::new(ctx.memory(), model, config)?)
    }

    /// Random prompts, which depend only on `seed`.
    pub fn random_prompts(&self, model: &ModelConfig, seed: u64) -> Vec<Arc<Prompt>> {
        let mut stream = Stream::new(seed, STREAM);
        let mut id = |_| (stream.next_f64() * model.vocab_size as f64) as u32;
        (0..self.prompts).map(|_| Prompt::new((0..self.prompt_tokens).map(&mut id).collect::<Vec<_>>())).collect()
    }

    /// The engine's requests for `prompts`. The groups of different seeds are different, as in a training run.
    pub fn requests(&self, prompts: &[Arc<Prompt>], seed: u64) -> Vec<Request> {
        let sampling = Arc::new(SamplingParams {
            temperature: self.temperature,
            max_new_tokens: self.new_tokens,
            seed,
            ..SamplingParams::default()
        });
        let request = |(i, prompt): (usize, &Arc<Prompt>)| {
            Request::new(
                GroupId(seed * self.prompts as u64 + i as u64),
                prompt.clone(),
                self.generations,
                sampling.clone(),
            )
        };
        prompts.iter().enumerate().map(request).collect()
    }

    /// Seconds and FLOPs of each step in which every sequence samples a token. Steps that prefill prompts are excluded.
    pub fn decode_steps(&self, ctx: &Context, weights: &Weights) -> anyhow::Result<Vec<(f64, f64)>> {
        let mut engine = self.engine(ctx, &weights.config)?;
        for request in self.requests(&self.random_prompts(&weights.config, 3), 3) {
            engine.submit(request)?;
        }
        let mut steps = Vec::new();
        while !engine.is_idle() {
            let drawing = engine.live().filter(|(_, _, ids)| !ids.is_empty()).count();
            let (_, seconds, work) = timed(|| Ok(engine.step(weights)?))?;
            if drawing == self.completions() {
                steps.push((seconds, work.0));
            }
        }
        Ok(steps)
    }

    /// The samples of generated groups, with random rewards.
    pub fn samples(&self, groups: &[RolloutGroup], seed: u64) -> Vec<Sample> {
        let mut stream = Stream::new(seed, STREAM + 1);
        let mut samples = samples_of_groups(groups);
        let mut row = |s: &Sample| RewardRow { group: s.group, scores: vec![Some(stream.next_f64())] };
        let rows = samples.iter().map(&mut row).collect();
        let matrix = RewardMatrix { rows, names: vec!["random".into()], weights: vec![1.0] };
        let advantages = advantages::compute(&matrix, ScaleRewards::Group);
        samples.iter_mut().zip(advantages.advantages).for_each(|(s, a)| s.advantage = a);
        samples
    }
}

/// An engine, a trainer and weights, ready to run steps of one workload.
pub struct Bench {
    /// The sizes and settings of a step.
    pub workload: Workload,
    /// The device and threads that compute.
    pub ctx: Context,
    /// The model's weights.
    pub weights: Weights,
    /// The engine that generates completions.
    pub engine: Engine,
    /// The trainer that computes updates.
    pub trainer: Trainer,
    /// Keeps the activations of a whole generation.
    activations: RolloutActivations,
    steps: u64,
}

/// The times of one step, and the work done in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTimes {
    /// Seconds of generation.
    pub rollout_s: f64,
    /// Seconds of the update.
    pub update_s: f64,
    /// Seconds of the update's forward passes, with the copies of kept activations.
    pub forward_s: f64,
    /// FLOPs and bytes of generation, as reported by its operations.
    pub rollout_work: (f64, f64),
    /// FLOPs and bytes of the update, as reported by its operations.
    pub update_work: (f64, f64),
    /// The number of tokens whose log-probabilities differed between sampler and trainer, plus the number of kept
    /// activation rows that differed from a forward pass.
    pub mismatches: u64,
    /// The share of the update's rows whose activations were kept.
    pub kept: f64,
}

impl Bench {
    /// Builds engine and trainer for a workload and a model's weights.
    pub fn new(workload: Workload, ctx: &Context, weights: Weights) -> anyhow::Result<Bench> {
        let engine = workload.engine(ctx, &weights.config)?;
        let mut trainer = workload.trainer(ctx, &weights.config)?;
        let activations = workload.activations(ctx, &weights.config, &engine);
        trainer.use_activations(activations.clone());
        Ok(Bench { workload, ctx: ctx.clone(), weights, engine, trainer, activations, steps: 0 })
    }

    /// Runs one step: generates completions, then updates the weights on them. With `keeps`, the update reuses the
    /// activations kept from the generation.
    pub fn step(&mut self, keeps: bool) -> anyhow::Result<StepTimes> {
        let prompts = self.workload.random_prompts(&self.weights.config, self.steps);
        self.activations.lock().clear();
        self.engine.keep_activations(keeps.then(|| self.activations.clone()));
        let (groups, rollout_s, rollout_work) = timed(|| self.generate(&prompts))?;
        let samples = self.workload.samples(&groups, self.steps);
        let (metrics, update_s, update_work) = timed(|| self.update(&samples))?;
        self.steps += 1;
        let mismatches = metrics.logp_mismatch_tokens + metrics.activation_mismatch_rows;
        let kept = metrics.kept_rows.unwrap_or(0) as f64 / metrics.computed_tokens.max(1) as f64;
        let forward_s = metrics.forward_time_s;
        Ok(StepTimes { rollout_s, update_s, forward_s, rollout_work, update_work, mismatches, kept })
    }

    /// Generates the completions for `prompts`.
    pub fn generate(&mut self, prompts: &[Arc<Prompt>]) -> anyhow::Result<Vec<RolloutGroup>> {
        let requests = self.workload.requests(prompts, self.steps);
        Ok(self.engine.generate(&self.weights, requests)?)
    }

    /// Takes an optimizer step on `samples`.
    pub fn update(&mut self, samples: &[Sample]) -> anyhow::Result<UpdateMetrics> {
        Ok(self.trainer.update(&self.ctx, &mut self.weights, samples, 1e-6)?)
    }
}

/// Runs `work`. Returns its result, its seconds, and the FLOPs and bytes reported by its operations.
pub fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, f64, (f64, f64))> {
    let (before, start) = (kernels::context::counted(), std::time::Instant::now());
    let out = work()?;
    let (seconds, after) = (start.elapsed().as_secs_f64(), kernels::context::counted());
    Ok((out, seconds, ((after.0 - before.0) as f64, (after.1 - before.1) as f64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Subject};
    use kernels::Isa;
    use lockstep::config::ComputeDType;
    use model::kept::{KeptCompletion, KeptGroup};
    use model::net::HeadColumns;

    /// The updated weights and the metrics of a step, after `change` was applied to the kept rows.
    fn updated(change: impl Fn(&mut KeptGroup)) -> (Vec<Vec<f32>>, UpdateMetrics) {
        let ctx = Context::cpu(Isa::best(), 1);
        let workload = Workload { prompts: 3, prompt_tokens: 9, generations: 2, ..Workload::grpo(6, 12) };
        let weights = Subject { shape: Shape::Tiny, dtype: ComputeDType::F32 }.weights(&ctx).unwrap();
        let mut bench = Bench::new(workload, &ctx, weights).unwrap();
        bench.engine.keep_activations(Some(bench.activations.clone()));
        let prompts = bench.workload.random_prompts(&bench.weights.config, 0);
        let groups = bench.generate(&prompts).unwrap();
        let mut kept = bench.activations.lock();
        for group in &groups {
            let version = model::ModelView::from(&bench.weights).version();
            let ids: Vec<Vec<u32>> = group.completions.iter().map(|c| c.ids.clone()).collect();
            let found = |ids: &[u32]| kept.find((version, 1.0), group.group, &group.prompt.ids, ids).unwrap();
            let prompt = group.prompt.ids.len();
            let mut changed = KeptGroup::begun(&group.prompt, 1.0, ids.len());
            changed.prompt_rows = (0..prompt).map(|position| found(&ids[0]).row(position)).collect();
            let same = |ids: &Vec<u32>| {
                let mut head = HeadColumns::default();
                found(ids).append_to(&mut head);
                let positions = prompt..prompt + ids.len() - 1;
                KeptCompletion { ids: ids.clone(), rows: positions.map(|at| found(ids).row(at)).collect(), head }
            };
            changed.completions = ids.iter().map(same).collect();
            if group.group != GroupId(2) {
                change(&mut changed);
            }
            kept.insert(group.group, changed);
        }
        drop(kept);
        let samples = bench.workload.samples(&groups, 0);
        let metrics = bench.update(&samples).unwrap();
        (bench.weights.params.tensors().into_iter().map(|tensor| tensor.to_vec_f32()).collect(), metrics)
    }

    /// Group 0 is compared row by row. Group 1 is not compared.
    #[test]
    fn kept_rows_of_other_tokens_are_noticed() {
        let (right, metrics) = updated(|_| {});
        let rows = 9 + 2 * 11;
        assert_eq!((metrics.kept_rows, metrics.compared_rows), (Some(2 * rows), rows));
        assert_eq!((metrics.activation_mismatch_rows, metrics.logp_mismatch_tokens), (0, 0));
        let (wrong, metrics) = updated(|group| group.prompt_rows.swap(1, 2));
        assert_eq!((metrics.activation_mismatch_rows, metrics.logp_mismatch_tokens), (2, 0));
        assert!(wrong != right);
        type Change = fn(&mut [KeptCompletion]);
        let changes: [(&str, Change); 4] = [
            ("a row that was used twice", |of| of[0].rows[3] = of[0].rows[4]),
            ("the row of the other completion", |of| of[1].rows[5] = of[0].rows[5]),
            ("a log-sum-exp of the other completion", |of| of[1].head.lse[2] = of[0].head.lse[2]),
            ("the entropy of another token", |of| of[0].head.entropies[7] = of[0].head.entropies[6]),
        ];
        for (what, change) in changes {
            let (_, metrics) = updated(|group| change(&mut group.completions));
            assert_eq!((metrics.activation_mismatch_rows, metrics.logp_mismatch_tokens), (1, 0), "{what}");
        }
    }
}
