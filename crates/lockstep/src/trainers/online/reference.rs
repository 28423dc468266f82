//! The reference model of the KL term, which is frozen or follows the policy; or the teacher of distillation.
//!
//! With `sync_ref_model` (as in TRL, after Gorbatovski et al. 2024, arXiv:2404.09656), every `ref_model_sync_steps`
//! optimizer steps each parameter is updated as π_ref ← α π + (1 − α) π_ref. A reference model that follows the policy
//! is part of every checkpoint.

use crate::error::{BadInput, OrBadInput};
use crate::models::{Builder, Work, WriteFiles, load_weights};
use kernels::Context;
use kernels::ops::lerp::{Lerp, lerp};
use model::net::Scores;
use model::peft::load_adapter;
use model::{AdaptedWeights, Adapter, ModelConfig, ModelView, PromptCompletion, Scorer, WeightSlots, Weights};
use std::path::Path;
use std::sync::Arc;
use telemetry::Step;

/// The file of the reference model's weights in a checkpoint.
const FILE: &str = "reference.safetensors";

/// A reference model or teacher, with its scorer.
pub(super) struct Reference {
    /// The model's own weights; `None` if it uses the base weights of the policy's adapter.
    weights: Option<WeightSlots<Weights>>,
    /// The model's frozen adapter, if it has one.
    adapter: Option<Adapter>,
    scorer: Scorer,
    /// The mixing factor α and the number of optimizer steps between updates; `None` if the model is frozen.
    moves: Option<(f64, u64)>,
}

impl Reference {
    /// Loads a model of the shape `model` from `dir`, or uses the base weights of the policy's adapter if `dir` is
    /// `None`; then adds its own adapter, if any. A reference model that follows the policy is loaded from the run's
    /// checkpoint. `name` is its part in the memory plan.
    pub fn load(
        builder: &mut Builder<'_>,
        name: &str,
        (dir, adapter): (Option<&Path>, Option<&Path>),
        (policy, model): (&AdaptedWeights, &Arc<ModelConfig>),
        work: Work,
    ) -> anyhow::Result<Reference> {
        let (ctx, config) = (builder.part(name), builder.config);
        let synced = builder.checkpoint.filter(|_| config.sync_ref_model && ctx.memory().has_values());
        let weights = match (dir, synced) {
            (None, _) => None,
            (Some(dir), None) => Some(load_weights(&ctx, dir, model)?),
            (Some(_), Some(checkpoint)) => {
                let mut weights = Weights::zeros(ctx.memory(), model);
                model::io::load_tensors(&checkpoint.join(FILE), &mut weights)
                    .map_err(|e| BadInput::new(e.to_string()))?;
                Some(weights)
            }
        };
        let base = weights.as_ref().unwrap_or_else(|| policy.base.current());
        let adapter = adapter.map(|dir| load_adapter(ctx.memory(), dir, base)).transpose().or_bad_input()?;
        let scorer = builder.scorer(name, model, work);
        let weights = weights.map(|weights| WeightSlots::new(ctx.memory(), weights));
        let moves = config.sync_ref_model.then_some((config.ref_model_mixup_alpha, config.ref_model_sync_steps));
        Ok(Reference { weights, adapter, scorer, moves })
    }

    /// Log-probabilities of completions under this model.
    pub fn score(
        &mut self,
        ctx: &Context,
        policy: &AdaptedWeights,
        sequences: &[PromptCompletion<'_>],
        temperature: f64,
    ) -> anyhow::Result<Vec<Scores>> {
        // A model without its own weights uses the policy's base.
        let weights = self.weights.as_ref().unwrap_or(&policy.base).current();
        Ok(self.scorer.score(ctx, ModelView::new(weights, self.adapter.as_ref()), sequences, temperature)?)
    }

    /// Updates the model with `policy`, if an update is due after optimizer step `step`.
    pub fn sync(&mut self, ctx: &Context, policy: &AdaptedWeights, step: Step) -> anyhow::Result<()> {
        let (Some((alpha, every)), Some(weights)) = (self.moves, &mut self.weights) else { return Ok(()) };
        if !step.is_multiple_of(every) {
            return Ok(());
        }
        weights.update(|next| {
            for (own, policy) in next.copied().tensors_mut().into_iter().zip(policy.base.current().params.tensors()) {
                lerp(ctx, Lerp { y: own.view_mut(), x: policy.view(), alpha })?;
            }
            Ok(())
        })
    }

    /// A function that writes the weights to a checkpoint; `None` if the model is frozen.
    pub fn write(&self) -> Option<WriteFiles> {
        let weights = self.weights.as_ref().filter(|_| self.moves.is_some())?.hold();
        Some(Box::new(move |dir| Ok(model::io::save_tensors(&dir.join(FILE), &*weights, model::FileDType::F32)?)))
    }
}
