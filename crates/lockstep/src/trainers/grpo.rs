//! GRPO, and every other algorithm whose advantages are a function of the generation batch. The code shows one training
//! step in the order of its data:
//!
//! `prompts → rollout → rewards → samples → advantages → update → (the same weights) → rollout`
//!
//! Each line of [`next_batch`](TrainingTask::next_batch) and [`step`](TrainingTask::step) is one stage, implemented by
//! [`RolloutPipeline`] in `online/stages.rs` or below.

use super::online::{OnlineBatch, Parts, Prepared, RolloutPipeline};
use crate::algorithms::{FromBatch, Scored};
use crate::config::Config;
use crate::models::{Builder, ModelSource, WriteFiles};
use crate::rollouts::Rollouts;
use crate::run::inputs::RunInputs;
use crate::run::learner::Learner;
use crate::run::memory_plan::Room;
use crate::run::task::{Task, TrainingTask};
use crate::run::training::TrainingRun;
use crate::trainers::Planner;
use model::ModelAssets;
use serde_json::Value;
use std::path::Path;
use train::{Advantages, Sample};

/// The training task of GRPO and similar algorithms.
pub struct Grpo {
    pipeline: RolloutPipeline,
    /// The algorithm's function for advantages.
    advantages: FromBatch,
    shown_metrics: &'static [&'static str],
}

impl TrainingTask for Grpo {
    type Batch = OnlineBatch;

    fn next_batch(&mut self, run: &TrainingRun) -> anyhow::Result<OnlineBatch> {
        let pipeline = &mut self.pipeline;
        let mut next = pipeline.prepare(run);
        if pipeline.batch_is_used_up() {
            let rollouts = pipeline.rollouts(run, &mut next)?;
            let samples = pipeline.samples(run, &mut next, &rollouts)?;
            let span = run.log.stages.span("batch");
            let advantages = advantages_of(self.advantages, &run.config, &rollouts, &samples);
            span.end();
            pipeline.fill_batch(run, &mut next, rollouts, samples, advantages)?;
        }
        Ok(next)
    }

    fn step(&mut self, run: &mut TrainingRun, batch: OnlineBatch) -> anyhow::Result<()> {
        run.policy_gradient(self.pipeline.part(&batch))?;
        self.pipeline.commit(run, batch)?;
        run.step_policy()?;
        self.pipeline.end_step(run)
    }
}

impl Task for Grpo {
    fn evaluate(&mut self, run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let compute = self.advantages;
        self.pipeline.evaluate(run, |config, rollouts, samples| advantages_of(compute, config, rollouts, samples))
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
        Ok(serde_json::to_value(self.pipeline.state())?)
    }

    fn write_tensors(&self, _learner: &Learner) -> Vec<WriteFiles> {
        self.pipeline.write_tensors()
    }

    fn shown_metrics(&self) -> &'static [&'static str] {
        self.shown_metrics
    }
}

/// The advantage of each completion: how much better it is than its group or the batch, as the algorithm defines.
fn advantages_of(compute: FromBatch, config: &Config, rollouts: &Rollouts, samples: &[Sample]) -> Advantages {
    let (rewards, steps) = (rollouts.rewards(), rollouts.step_rewards());
    compute(config, &Scored { rewards: &rewards, steps: &steps, samples })
}

/// Builds the task and its run. All inputs are checked before anything is written.
pub fn build(mut inputs: RunInputs, advantages: FromBatch) -> anyhow::Result<(Grpo, TrainingRun)> {
    let shown_metrics = inputs.config().policy_gradient().shown_metrics();
    let restore =
        |pipeline: &mut RolloutPipeline, state, from: &Path| pipeline.restore(serde_json::from_value(state)?, from);
    let (prepared, ()) = Prepared::new(&mut inputs, |_, _, _| Ok(()))?;
    let (pipeline, run) = prepared.begin(inputs, restore)?;
    Ok((Grpo { pipeline, advantages, shown_metrics }, run))
}

/// Plans the memory of a run.
pub fn planner<'a>(
    builder: &'a Builder<'a>,
    source: &'a ModelSource,
    assets: &'a ModelAssets,
    room: Option<Room<'_>>,
) -> anyhow::Result<Planner<'a>> {
    Parts::planner(builder, source, assets, room, |_, _, _| Ok(()))
}
