//! PPO: GRPO's pipeline with a value model and rewards for every token, instead of comparing groups. The code shows one
//! training step in the order of its data:
//!
//! `prompts → rollout → scores → rewards of tokens → advantages → samples → update → (the same weights) → rollout`
//!
//! Each line of [`next_batch`](TrainingTask::next_batch) is one stage, implemented by [`RolloutPipeline`] in
//! `online/stages.rs` or by [`Ppo`] in `stages.rs`.

mod critic;
mod stages;

use super::online::{OnlineBatch, Parts, PipelineState, Prepared, RolloutPipeline};
use crate::models::{Builder, ModelSource, WriteFiles};
use crate::run::bits64;
use crate::run::inputs::RunInputs;
use crate::run::learner::Learner;
use crate::run::memory_plan::Room;
use crate::run::task::{Task, TrainingTask};
use crate::run::training::TrainingRun;
use crate::trainers::Planner;
use critic::Critic;
use model::ModelAssets;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use train::gae::KlController;

/// The training task of PPO.
pub struct Ppo {
    pipeline: RolloutPipeline,
    /// The value model.
    critic: Critic,
    /// The coefficient of the KL divergence from the reference model.
    kl: KlController,
}

/// The data of one step of policy and value model, with the changes from making it.
pub struct PpoBatch {
    online: OnlineBatch,
    /// The KL coefficient after this batch.
    kl: KlController,
}

/// PPO's state between two steps, for checkpoints. The value model's weights and moments are separate files.
#[derive(Serialize, Deserialize)]
struct PpoState {
    pipeline: PipelineState,
    /// Counters of the value model's trainer.
    critic: train::TrainerState,
    #[serde(with = "bits64")]
    kl_coef: f64,
}

impl TrainingTask for Ppo {
    type Batch = PpoBatch;

    fn next_batch(&mut self, run: &TrainingRun) -> anyhow::Result<PpoBatch> {
        let mut next = PpoBatch { online: self.pipeline.prepare(run), kl: self.kl };
        if self.pipeline.batch_is_used_up() {
            let rollouts = self.pipeline.rollouts(run, &mut next.online)?;
            let scores = next.scores(run, &rollouts);
            let samples = self.samples(run, &mut next, &rollouts, &scores)?;
            let values = self.values(run, &mut next, &samples)?;
            let span = run.log.stages.span("batch");
            let rewards = next.token_rewards(run, &scores, &samples);
            let estimates = next.estimates(run, rewards, &values, &samples);
            span.end();
            self.fill_batch(run, &mut next, rollouts, scores, samples, &values, estimates)?;
        }
        self.shuffle(run, &mut next);
        Ok(next)
    }

    fn step(&mut self, run: &mut TrainingRun, PpoBatch { online, kl }: PpoBatch) -> anyhow::Result<()> {
        // Both gradients are computed before either optimizer step. Until then the models are unchanged, and a stop
        // request can still end the step.
        let samples = self.pipeline.part(&online);
        self.critic.gradient(&run.learner.ctx, &run.log.stages, samples)?;
        run.policy_gradient(samples)?;
        self.pipeline.commit(run, online)?;
        self.kl = kl;
        self.step_values(run)?;
        let metrics = run.step_policy()?;
        self.stop_generation_if_too_far(run, &metrics);
        self.pipeline.end_step(run)
    }
}

impl Task for Ppo {
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        self.pipeline.evaluate(run, |_, _, _| unreachable!("PPO has no loss for completions without values"))
    }

    fn complete_state(&mut self, run: &TrainingRun) -> anyhow::Result<()> {
        self.pipeline.keep_drafts(run);
        self.pipeline.complete_ahead(run)
    }

    fn check_ends_epochs(&self, run: &TrainingRun) -> anyhow::Result<()> {
        self.pipeline.check_ends_epochs(&run.config)
    }

    fn saves_on_failure(&self) -> bool {
        !self.pipeline.has_workers()
    }

    fn checkpoint_written(&mut self) -> anyhow::Result<()> {
        self.pipeline.checkpoint_written()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.pipeline.end()
    }

    fn state(&self) -> anyhow::Result<Value> {
        let (pipeline, critic) = (self.pipeline.state(), self.critic.trainer.state());
        Ok(serde_json::to_value(PpoState { pipeline, critic, kl_coef: self.kl.kl_coef })?)
    }

    fn write_tensors(&self, learner: &Learner) -> Vec<WriteFiles> {
        let mut writes = self.pipeline.write_tensors();
        writes.extend(self.critic.write(&learner.policy.files));
        writes
    }

    fn shown_metrics(&self) -> &'static [&'static str] {
        &["reward", "objective/kl", "loss/value_avg", "val/explained_variance"]
    }
}

/// Builds the task and its run. All inputs are checked before anything is written.
pub fn build(mut inputs: RunInputs) -> anyhow::Result<(Ppo, TrainingRun)> {
    let (prepared, mut critic) = Prepared::new(&mut inputs, Critic::load)?;
    let mut kl = KlController { kl_coef: inputs.config().kl_coef };
    let (pipeline, run) = prepared.begin(inputs, |pipeline, state, from| {
        let PpoState { pipeline: saved, critic: counters, kl_coef } = serde_json::from_value(state)?;
        critic.trainer.set_state(counters);
        kl.kl_coef = kl_coef;
        pipeline.restore(saved, from)
    })?;
    critic.use_ranks_of(&run.learner)?;
    Ok((Ppo { pipeline, critic, kl }, run))
}

/// Plans the memory of a run.
pub fn planner<'a>(
    builder: &'a Builder<'a>,
    source: &'a ModelSource,
    assets: &'a ModelAssets,
    room: Option<Room<'_>>,
) -> anyhow::Result<Planner<'a>> {
    Parts::planner(builder, source, assets, room, Critic::load)
}
