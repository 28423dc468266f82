//! PPO's value model: a separate network whose head has one output, and its trainer.
//!
//! The value of the state in which a token is chosen is the head's output at the position before, which predicts the
//! token. The value model knows nothing of rewards.

use crate::error::OrBadInput;
use crate::models::{Builder, WriteFiles, load_weights, locate, value_model_shape};
use crate::ranks;
use crate::rollouts::collector::record_ops;
use crate::run::learner::{Learner, Update, record_parts};
use crate::run::moments::{restore_moments, write_moments};
use crate::trainers::online::{LargestWork, PartInputs};
use kernels::Context;
use model::hub::HubKind;
use model::io::ModelFiles;
use model::{AdaptedWeights, ModelConfig, Scorer, Trainable, Weights};
use std::path::Path;
use std::sync::Arc;
use telemetry::Stages;
use train::{Objective, Sample, StepParams, Trainer};

/// The value model's directory in a checkpoint.
const DIRECTORY: &str = "value_model";
/// The prefix of the files with the value model's optimizer moments.
const MOMENTS: &str = "value_";

/// A value model that is being trained.
pub struct Critic {
    weights: AdaptedWeights,
    /// Gradients, optimizer moments and buffers of the value model.
    pub trainer: Trainer,
    scorer: Scorer,
    /// Seconds spent on the gradient of the next step.
    gradient_time_s: f64,
}

impl Critic {
    /// Loads the value model from the run's checkpoint, if there is one. Otherwise `value_model` decides: the layers of
    /// the policy with a new head of zeros, or a reward model's directory.
    pub fn load(
        builder: &mut Builder<'_>,
        PartInputs { source, assets, .. }: PartInputs<'_>,
        largest: LargestWork,
    ) -> anyhow::Result<Critic> {
        let policy = &assets.config;
        let (ctx, config, checkpoint) = (builder.part("value model"), builder.config, builder.checkpoint);
        let weights = match (checkpoint, config.value_model.as_str()) {
            (Some(checkpoint), _) => scorer_of(&ctx, &checkpoint.join(DIRECTORY), policy)?,
            (None, "policy") => Weights::load_scorer(ctx.memory(), &source.dir, policy).or_bad_input()?,
            (None, name) => scorer_of(&ctx, &locate(name, HubKind::Model)?, policy)?,
        };
        let objective = Objective::Value(config.value_loss());
        let mut trainer = builder.trainer("value training", &weights.config, objective, largest.step, false)?;
        if let Some(checkpoint) = checkpoint.filter(|_| ctx.memory().has_values()) {
            restore_moments(checkpoint, MOMENTS, trainer.optimizer_mut())?;
        }
        let scorer = builder.scorer("values", &weights.config, largest.generation);
        let weights = match builder.ranks.as_ref().filter(|_| !builder.is_plan()) {
            Some((_, sharing)) => AdaptedWeights::shared(ctx.memory(), weights, None, sharing, None).or_bad_input()?,
            None => AdaptedWeights::new(ctx.memory(), weights, None),
        };
        Ok(Critic { weights, trainer, scorer, gradient_time_s: 0.0 })
    }

    /// Divides the value model's steps among the ranks that divide those of the policy, if there are any.
    pub fn use_ranks_of(&mut self, policy: &Learner) -> anyhow::Result<()> {
        if let Some(world) = policy.trainer.world_of_second_model() {
            self.trainer.use_ranks(&policy.ctx, self.weights.config(), world)?;
        }
        ranks::publish(&self.trainer, &mut self.weights)
    }

    /// The value of each token's state, for each sample.
    pub fn values(&mut self, ctx: &Context, samples: &[Sample]) -> anyhow::Result<Vec<Vec<f32>>> {
        let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
        Ok(self.scorer.values(ctx, &self.weights, &sequences)?)
    }

    /// Computes the gradient of the value loss on `samples`, which the next [`step`](Self::step) applies.
    pub fn gradient(&mut self, ctx: &Context, stages: &Stages, samples: &[Sample]) -> anyhow::Result<()> {
        let (span, before) = (stages.span("value update"), kernels::context::counted());
        ranks::share(&self.trainer, &self.weights)?;
        self.trainer.gradient(ctx, self.weights.view(), samples)?;
        record_ops(&span, before);
        self.gradient_time_s = span.end();
        Ok(())
    }

    /// Takes the optimizer step with the computed gradient.
    pub fn step(&mut self, ctx: &Context, stages: &Stages, learning_rate: f64) -> anyhow::Result<Update> {
        let (span, before) = (stages.span("value update"), kernels::context::counted());
        let metrics = self.trainer.step(ctx, &mut self.weights, StepParams { learning_rate })?;
        record_ops(&span, before);
        record_parts(&span, &metrics);
        ranks::publish(&self.trainer, &mut self.weights)?;
        Ok(Update { metrics, seconds: self.gradient_time_s + span.end() })
    }

    /// Functions that write the value model to a checkpoint, as a loadable directory with the policy's tokenizer, and
    /// its moments.
    pub fn write(&self, copied: &Arc<ModelFiles>) -> [WriteFiles; 2] {
        let (weights, copied) = (self.weights.base.hold(), copied.clone());
        let write_model: WriteFiles = Box::new(move |dir| {
            let options = model::io::SaveOptions::exact(&weights.config);
            Ok(model::io::save_model(&dir.join(DIRECTORY), &weights.config, &*weights, Some(&copied), options)?)
        });
        [write_model, write_moments(MOMENTS, self.trainer.optimizer())]
    }
}

fn scorer_of(ctx: &Context, dir: &Path, policy: &ModelConfig) -> anyhow::Result<Weights> {
    load_weights(ctx, dir, &value_model_shape(dir, policy)?)
}
