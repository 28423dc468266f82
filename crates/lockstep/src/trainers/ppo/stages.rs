//! The stages of a PPO step, in the order of its data. The formulas are in [`train::gae`] and [`train::loss::ppo`].

use super::{Ppo, PpoBatch};
use crate::rollouts::collector::record_ops;
use crate::rollouts::{Rollouts, ScoredCompletion};
use crate::run::learner::{Update, not_finite};
use crate::run::training::TrainingRun;
use crate::trainers::online::RolloutState;
use kernels::rng::Stream;
use model::columns::{RETURNS, VALUES};
use rollout::FinishReason;
use train::gae::{self, Estimates, KlTarget, TokenRewards};
use train::{Advantage, Advantages, Sample, ScaleRewards, StepRewards, UpdateMetrics, advantages};

/// Training on a generation ends early if the policy's KL divergence exceeds this multiple of `target_kl`, as in
/// OpenAI's Spinning Up.
const TOO_FAR: f64 = 1.5;
/// The random stream for shuffling mini-batches.
const SHUFFLES: u64 = 0x7070_6f00_0000_0000;

/// The scores of a generation's completions.
pub struct Scores {
    /// The weighted reward of each completion, minus the penalty for a missing end token; `None` without a score.
    scores: Vec<Option<f64>>,
    /// Rewards of single steps, for completions that have them, minus the same penalty.
    steps: Vec<Option<StepRewards>>,
    /// Rewards and advantages for the completions table.
    table: Advantages,
}

impl PpoBatch {
    /// The score of each completion: its weighted reward, minus `missing_eos_penalty` if it was truncated.
    pub(super) fn scores(&mut self, run: &TrainingRun, rollouts: &Rollouts) -> Scores {
        let table = advantages::compute(&rollouts.rewards(), ScaleRewards::None);
        for (name, value) in &table.metrics {
            // This metric compares groups, which PPO does not do.
            if let (Some(value), true) = (value, name != "frac_reward_zero_std") {
                self.online.run.add(name, *value);
            }
        }
        let penalty = run.config.missing_eos_penalty.unwrap_or(0.0);
        let score = |(reward, scored): (&Option<f64>, &ScoredCompletion)| {
            reward.map(|r| if scored.completion.finish_reason == FinishReason::Length { r - penalty } else { r })
        };
        let scores = table.rewards.iter().zip(rollouts.completions()).map(score).collect();
        let mut steps = rollouts.step_rewards();
        for (steps, scored) in steps.iter_mut().zip(rollouts.completions()) {
            if let Some(steps) = steps
                && penalty != 0.0
                && scored.completion.finish_reason == FinishReason::Length
            {
                *steps.at_end.get_or_insert(0.0) -= penalty;
            }
        }
        Scores { scores, steps, table }
    }

    /// Returns the reward of each token, and adapts the KL coefficient for the next generation.
    pub(super) fn token_rewards(&mut self, run: &TrainingRun, scores: &Scores, samples: &[Sample]) -> Vec<Vec<f64>> {
        let TokenRewards { rewards, kl, metrics } =
            gae::rewards_of_samples(run.config.kl_estimator, self.kl.kl_coef, samples, &scores.scores, &scores.steps);
        for (name, value) in metrics {
            self.online.run.add(name, value);
        }
        if let (Some(kl), true) = (kl, run.config.adap_kl_ctrl) {
            let target = KlTarget { target: run.config.kl_target, horizon: run.config.kl_horizon };
            self.kl.update(&target, kl, samples.len());
        }
        rewards
    }

    /// The advantage and the return of each token. Advantages are whitened over the generation batch.
    pub(super) fn estimates(
        &mut self,
        run: &TrainingRun,
        mut rewards: Vec<Vec<f64>>,
        values: &[Vec<f32>],
        samples: &[Sample],
    ) -> Vec<Estimates> {
        if run.config.whiten_rewards {
            gae::whiten_samples(&mut rewards, samples);
        }
        let (estimates, explained) = gae::estimate_samples(run.config.gamma, run.config.lam, &rewards, values, samples);
        if let Some(explained) = explained {
            self.online.run.add("val/explained_variance", explained);
        }
        estimates
    }
}

impl Ppo {
    /// The completions as samples, scored by the reference model. The loss excludes completions without a score, and
    /// truncated ones if `mask_truncated_completions` is set.
    pub(super) fn samples(
        &mut self,
        run: &TrainingRun,
        next: &mut PpoBatch,
        rollouts: &Rollouts,
        scores: &Scores,
    ) -> anyhow::Result<Vec<Sample>> {
        let mut samples = self.pipeline.samples(run, &mut next.online, rollouts)?;
        let without_truncated = run.config.mask_truncated_completions;
        for (sample, score) in samples.iter_mut().zip(&scores.scores) {
            if score.is_none() || (without_truncated && sample.truncated()) {
                sample.loss_mask.fill(false);
            }
        }
        Ok(samples)
    }

    /// The value of each token's state, for each sample.
    pub(super) fn values(
        &mut self,
        run: &TrainingRun,
        next: &mut PpoBatch,
        samples: &[Sample],
    ) -> anyhow::Result<Vec<Vec<f32>>> {
        let span = run.log.stages.span("values");
        let before = kernels::context::counted();
        let values = self.critic.values(&run.learner.ctx, samples)?;
        record_ops(&span, before);
        next.online.run.add("values_time_s", span.end());
        Ok(values)
    }

    /// Adds advantages, values and returns to the samples, which become the batch of the next steps.
    #[expect(clippy::too_many_arguments, reason = "the values of all stages")]
    pub(super) fn fill_batch(
        &self,
        run: &TrainingRun,
        next: &mut PpoBatch,
        rollouts: Rollouts,
        scores: Scores,
        mut samples: Vec<Sample>,
        values: &[Vec<f32>],
        estimates: Vec<Estimates>,
    ) -> anyhow::Result<()> {
        let span = run.log.stages.span("batch");
        let narrow = |row: Vec<f64>| row.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
        let mut table = scores.table;
        for (i, (sample, estimates)) in samples.iter_mut().zip(estimates).enumerate() {
            let advantages = narrow(estimates.advantages);
            sample.advantage = Advantage::Tokens(advantages);
            table.advantages[i].clone_from(&sample.advantage);
            sample.columns.set(VALUES, values[i].clone());
            sample.columns.set(RETURNS, narrow(estimates.returns));
        }
        span.end();
        self.pipeline.take_batch(run, &mut next.online, &rollouts, samples, &table)
    }

    /// Ends training on the generation if the policy has moved too far from the weights that sampled it.
    pub(super) fn stop_generation_if_too_far(&mut self, run: &mut TrainingRun, metrics: &UpdateMetrics) {
        let Some(target) = run.config.target_kl else { return };
        let moved = metrics.means.entries().find(|(name, _)| *name == "policy/approxkl_avg").map_or(0.0, |(_, kl)| kl);
        let stops = moved > TOO_FAR * target;
        if stops {
            self.pipeline.drop_batch();
        }
        run.log.add("policy/early_stop", f64::from(u8::from(stops)));
    }

    /// Takes the optimizer step of the value model.
    pub(super) fn step_values(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        let mut schedule = run.learner.schedule;
        schedule.learning_rate = run.config.value_learning_rate.unwrap_or(schedule.learning_rate);
        run.finish_checkpoint()?;
        let learning_rate = schedule.at(run.learner.step.0);
        let Update { metrics, seconds } = self.critic.step(&run.learner.ctx, &run.log.stages, learning_rate)?;
        run.log.add("value_update_time_s", seconds);
        if metrics.skipped {
            run.log.alarms.not_finite("value model", not_finite(&metrics));
        }
        run.log.add("val/grad_norm", metrics.grad_norm);
        for (name, value) in metrics.means.entries() {
            run.log.add(name, value);
        }
        Ok(())
    }

    /// At the start of a pass over a generation with several mini-batches, draws the groups of each.
    pub(super) fn shuffle(&self, run: &TrainingRun, PpoBatch { online, .. }: &mut PpoBatch) {
        let (sizes, RolloutState { source, batch, .. }) = (self.pipeline.sizes, &mut online.state);
        if sizes.parts() == 1 || !batch.used.is_multiple_of(sizes.parts()) {
            return;
        }
        let pass = batch.used / sizes.parts();
        let number = source.next_group.0 * sizes.iterations as u64 + pass;
        let mut stream = Stream::new(run.config.seed, SHUFFLES ^ number);
        let mut groups: Vec<Vec<Sample>> =
            batch.samples.chunk_by(|a, b| a.group == b.group).map(<[Sample]>::to_vec).collect();
        stream.shuffle(&mut groups);
        batch.samples = groups.concat().into();
    }
}
