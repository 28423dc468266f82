//! The value model: a network of its own under a head of one score, and what trains it.
//!
//! The value of the state in which a token is chosen is the score of the row that predicts it. It does not know
//! rewards.

use crate::error::OrBadInput;
use crate::models::{Builder, WriteFiles, load_weights, locate, value_model_shape};
use crate::rollouts::collector::record_ops;
use crate::run::checkpoint::moments::{restore_moments, write_moments};
use crate::run::learner::{Update, record_parts};
use crate::trainers::online::{LargestWork, PartInputs};
use kernels::Context;
use model::hub::HubKind;
use model::io::CopiedFiles;
use model::{AdaptedWeights, ModelConfig, Scorer, Trainable, Weights};
use std::path::Path;
use std::sync::Arc;
use telemetry::Stages;
use train::{Objective, Sample, StepParams, Trainer};

/// Its directory in a checkpoint.
const DIRECTORY: &str = "value_model";
/// What its moments' files begin with.
const MOMENTS: &str = "value_";

/// A value model in training.
pub struct Critic {
    weights: AdaptedWeights,
    /// Gradients, moments, buffers.
    pub trainer: Trainer,
    scorer: Scorer,
    /// Seconds of the gradient that the next step takes.
    gradient_time_s: f64,
}

impl Critic {
    /// As the checkpoint has it; or as `value_model` says: the layers of the policy under a score that is 0,
    /// or a model of scores.
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
        let mut trainer = builder.trainer("value training", &weights.config, objective, largest.step)?;
        if let Some(checkpoint) = checkpoint.filter(|_| ctx.memory().has_values()) {
            restore_moments(checkpoint, MOMENTS, &mut trainer)?;
        }
        let scorer = builder.scorer("values", &weights.config, largest.generation);
        Ok(Critic { weights: AdaptedWeights::new(ctx.memory(), weights, None), trainer, scorer, gradient_time_s: 0.0 })
    }

    /// The value of the state in which each token of each sample was chosen.
    pub fn values(&mut self, ctx: &Context, samples: &[Sample]) -> anyhow::Result<Vec<Vec<f32>>> {
        let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
        Ok(self.scorer.values(ctx, &self.weights, &sequences)?)
    }

    /// The gradient on these samples, for the [`step`](Self::step) that follows.
    pub fn gradient(&mut self, ctx: &Context, stages: &Stages, samples: &[Sample]) -> anyhow::Result<()> {
        let (span, before) = (stages.span("value update"), kernels::context::counted());
        self.trainer.gradient(ctx, self.weights.view(), samples)?;
        record_ops(&span, before);
        self.gradient_time_s = span.end();
        Ok(())
    }

    /// The optimizer step of the gradient.
    pub fn step(&mut self, ctx: &Context, stages: &Stages, learning_rate: f64) -> anyhow::Result<Update> {
        let (span, before) = (stages.span("value update"), kernels::context::counted());
        let metrics = self.trainer.step(ctx, &mut self.weights, StepParams { learning_rate })?;
        record_ops(&span, before);
        record_parts(&span, &metrics);
        Ok(Update { metrics, seconds: self.gradient_time_s + span.end() })
    }

    /// Writes it into a checkpoint: a directory that loads again, with the tokenizer of the policy, and the moments.
    pub fn write(&self, copied: &Arc<CopiedFiles>) -> [WriteFiles; 2] {
        let (weights, copied) = (self.weights.base.hold(), copied.clone());
        let write_model: WriteFiles = Box::new(move |dir| {
            let options = model::io::SaveOptions::exact(&weights.config);
            Ok(model::io::save_model(&dir.join(DIRECTORY), &weights.config, &*weights, Some(&copied), options)?)
        });
        [write_model, write_moments(MOMENTS, &self.trainer)]
    }
}

fn scorer_of(ctx: &Context, dir: &Path, policy: &ModelConfig) -> anyhow::Result<Weights> {
    load_weights(ctx, dir, &value_model_shape(dir, policy)?)
}
