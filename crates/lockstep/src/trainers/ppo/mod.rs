//! PPO: the pipeline of GRPO with a value model, and a reward for every token, in the place of groups.
//!
//! `prompts → rollout → scores → rewards of tokens → advantages → samples → update → (the same weights) → rollout`
//!
//! Each line of [`next_batch`](TrainingTask::next_batch) is one stage: of [`RolloutPipeline`] in `online/stages.rs`, or
//! of [`Ppo`] in `stages.rs`.

mod critic;
mod stages;

use super::online::{PipelineState, Prepared, RolloutPipeline};
use crate::models::WriteFiles;
use crate::run::checkpoint::state::bits64;
use crate::run::inputs::RunInputs;
use crate::run::learner::Learner;
use crate::run::task::{NextBatch, TrainingTask};
use crate::run::training::TrainingRun;
use critic::Critic;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use train::Sample;
use train::gae::KlController;

/// A PPO run's own part.
pub struct Ppo {
    pipeline: RolloutPipeline,
    /// The value model.
    critic: Critic,
    /// The weight of the divergence from the reference model.
    kl: KlController,
    /// What the step in the making was begun with, where that has changed.
    before: StepBefore,
}

/// What a step that is given up goes back to.
#[derive(Default)]
struct StepBefore {
    kl: Option<KlController>,
    /// The batch in use, before its groups were shuffled.
    samples: Option<Vec<Sample>>,
}

/// What PPO remembers between two steps; the value model's weights and moments are files of their own.
#[derive(Serialize, Deserialize)]
struct PpoState {
    pipeline: PipelineState,
    /// Counters of the value model's trainer.
    critic: train::TrainerState,
    #[serde(with = "bits64")]
    kl_coef: f64,
}

impl TrainingTask for Ppo {
    fn next_batch(&mut self, run: &mut TrainingRun) -> anyhow::Result<NextBatch> {
        if self.pipeline.batch_is_used_up() {
            let rollouts = self.pipeline.rollouts(run)?;
            let scores = self.scores(run, &rollouts);
            let samples = self.samples(run, &rollouts, &scores)?;
            let values = self.values(run, &samples)?;
            let rewards = self.token_rewards(run, &scores, &samples);
            let estimates = self.estimates(run, rewards, &values, &samples);
            self.fill_batch(run, rollouts, scores, samples, &values, estimates)?;
        }
        Ok(NextBatch::Ready)
    }

    fn step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        self.shuffle(run);
        // Both gradients come before both steps: until then nothing is changed, and a stop request can end the step.
        self.critic.gradient(&run.learner.ctx, &run.log.stages, self.pipeline.part())?;
        run.policy_gradient(self.pipeline.part())?;
        self.before = StepBefore::default();
        self.step_values(run)?;
        let metrics = self.pipeline.step(run)?;
        self.stop_generation_if_too_far(run, &metrics);
        self.pipeline.sync_reference(run)
    }

    fn give_up_step(&mut self) {
        let StepBefore { kl, samples } = std::mem::take(&mut self.before);
        kl.into_iter().for_each(|kl| self.kl = kl);
        samples.into_iter().for_each(|samples| self.pipeline.batch.samples = samples);
        self.pipeline.give_up_step();
    }

    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        self.pipeline.evaluate(run, |_, _, _| unreachable!("PPO has no loss of completions alone"))
    }

    fn state(&self) -> anyhow::Result<Value> {
        let (pipeline, critic) = (self.pipeline.state(), self.critic.trainer.state());
        Ok(serde_json::to_value(PpoState { pipeline, critic, kl_coef: self.kl.kl_coef })?)
    }

    fn write_tensors(&self, learner: &Learner) -> Vec<WriteFiles> {
        let mut writes = self.pipeline.write_tensors();
        writes.extend(self.critic.write(&learner.policy.copied));
        writes
    }

    fn shown_metrics(&self) -> &'static [&'static str] {
        &["reward", "objective/kl", "loss/value_avg", "val/explained_variance"]
    }
}

/// Builds a run; nothing is written until all of its input is known to be good.
pub fn build(mut inputs: RunInputs) -> anyhow::Result<(Ppo, TrainingRun)> {
    let prepared = Prepared::new(&mut inputs)?;
    let (config, policy) = (inputs.config(), prepared.policy());
    let mut kl = KlController { kl_coef: config.kl_coef };
    let mut critic = Critic::load(&inputs.ctx, config, &policy.dir, policy.config(), &inputs.resume_from)?;
    let (pipeline, run) = prepared.begin(inputs, |pipeline, state| {
        let PpoState { pipeline: saved, critic: counters, kl_coef } = serde_json::from_value(state)?;
        critic.trainer.set_state(counters);
        kl.kl_coef = kl_coef;
        pipeline.restore(saved)
    })?;
    critic.stop_with(&run.stop);
    Ok((Ppo { pipeline, critic, kl, before: StepBefore::default() }, run))
}
