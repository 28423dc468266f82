//! Training on datums: sequences of input tokens whose rows each predict targets of the caller's choice, with losses
//! that are sums over targets. It is the training of Tinker's API, in which a client computes advantages and weights.
//!
//! A [`DatumTrainer`] trains one LoRA adapter. Many of them can share the same [`Passes`] and the same frozen base.
//! Consecutive datums that begin with the same tokens form a group whose common prefix is computed once, as the prompt
//! of several completions. The gradient is a sum over groups, micro-batches and calls in their order.

mod loss;
#[cfg(test)]
mod tests;

pub use self::loss::{ClipRange, TokenLoss};

use crate::optimizer::GradNorm;
use crate::trainer::{Compute, OutputGrads, Passes};
use crate::{Error, Optimizer, OptimizerConfig, Result};
use kernels::{Context, Memory};
use model::batch::Targets;
use model::{Adapter, Batch, BatchTensors, Grads, GroupSegment, LoraConfig, ModelConfig, ModelView, WeightSlots};
use std::ops::Range;
use std::sync::Arc;

/// The largest number of rows of a group of several datums.
const MOST_GROUP_ROWS: usize = 2048;
/// The largest number of targets of a group of several datums.
const MOST_GROUP_TARGETS: usize = 4 * MOST_GROUP_ROWS;

/// A sequence to train on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Datum {
    /// Input tokens `[N]`. The row of a token sees all tokens up to it.
    pub ids: Vec<u32>,
    /// The targets of each row `[N, width]`. They need not be the next token.
    pub targets: Vec<u32>,
    /// The number of targets of a row; at least 1.
    pub width: usize,
    /// Further numbers for each target `[N, width]`, by name.
    pub inputs: Vec<(String, Vec<f32>)>,
}

impl Datum {
    /// The numbers with this name.
    pub fn input(&self, name: &str) -> Option<&[f32]> {
        self.inputs.iter().find(|(other, _)| other == name).map(|(_, values)| &values[..])
    }

    /// Checks the sizes, the token ids, and that all inputs of `loss` are present and finite.
    pub fn check(&self, index: usize, model: &ModelConfig, loss: Option<TokenLoss>) -> Result<()> {
        let wrong = |message: String| Err(Error::Sample { index, message });
        let (tokens, width) = (self.ids.len(), self.width);
        if tokens == 0 {
            return wrong("the model input has no tokens".into());
        }
        if width == 0 || tokens.checked_mul(width) != Some(self.targets.len()) {
            let targets = self.targets.len();
            return wrong(format!("expected the same number of targets for each of {tokens} tokens, got {targets}"));
        }
        let mut ids = self.ids.iter().chain(&self.targets);
        if let Some(id) = ids.find(|&&id| id as usize >= model.vocab_size) {
            return wrong(format!("token id {id} is outside the vocabulary of {} tokens", model.vocab_size));
        }
        for &name in loss.map_or(&[][..], TokenLoss::inputs) {
            let Some(values) = self.input(name) else { return wrong(format!("the loss needs `{name}`")) };
            if values.len() != self.targets.len() {
                let (got, expected) = (values.len(), self.targets.len());
                return wrong(format!("`{name}` must have one number for each target ({expected}), got {got}"));
            }
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                return wrong(format!("`{name}` contains {value}"));
            }
        }
        Ok(())
    }
}

/// Settings of one AdamW step; names are Tinker's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamParams {
    /// The learning rate.
    pub learning_rate: f64,
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Coefficient of decoupled weight decay.
    pub weight_decay: f64,
    /// The gradient norm to which larger gradients are scaled down; 0 for no clipping.
    pub grad_clip_norm: f64,
}

impl Default for AdamParams {
    fn default() -> AdamParams {
        AdamParams { learning_rate: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-12, weight_decay: 0.0, grad_clip_norm: 0.0 }
    }
}

/// Gradients and optimizer of one LoRA adapter. The weights belong to the caller.
pub struct DatumTrainer {
    memory: Memory,
    grads: Grads,
    optimizer: Optimizer,
    /// Whether there is a gradient since the last step.
    has_gradient: bool,
}

/// The outputs of a [`Part`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatumOutputs {
    /// For each datum, the log-probability of each target.
    pub logps: Vec<Vec<f32>>,
    /// The loss.
    pub loss: f64,
}

impl DatumTrainer {
    /// A trainer with zero moments for an adapter of the model.
    pub fn new(memory: &Memory, model: &Arc<ModelConfig>, adapter: &LoraConfig) -> Result<DatumTrainer> {
        let optimizer = Optimizer::new(memory, model, Some(adapter), OptimizerConfig::default());
        let grads = Grads::trained(memory, model, Some(adapter));
        memory.check()?;
        Ok(DatumTrainer { memory: memory.clone(), grads, optimizer, has_gradient: false })
    }

    /// Computes the log-probabilities of a part's targets and the loss, and adds the loss's gradient to that since the
    /// last step. `part` is one of those into which [`split`] divides `datums`, which must have been
    /// [checked](Datum::check).
    pub fn accumulate(
        &mut self,
        passes: &mut Passes,
        ctx: &Context,
        model: ModelView<'_>,
        datums: &[Datum],
        part: &Part,
        loss: TokenLoss,
    ) -> Result<DatumOutputs> {
        if !self.has_gradient {
            self.grads.zero(ctx);
        }
        self.has_gradient = true;
        let mut compute = Compute { passes, ctx, model };
        let (tensors, logps) = forward(&mut compute, datums, part)?;
        let mut d_logps = vec![0.0; logps.len()];
        let (mut outputs, mut first) = (DatumOutputs::default(), 0);
        for datum in &datums[part.datums()] {
            let own = first..first + datum.targets.len();
            first = own.end;
            outputs.loss += loss.evaluate(datum, &logps[own.clone()], &mut d_logps[own.clone()]);
            outputs.logps.push(logps[own].to_vec());
        }
        self.grads.reserve(tensors.capacity().tokens);
        self.memory.check()?;
        compute.backward(&tensors, &OutputGrads { d_logps, d_entropies: None }, false, None, &mut self.grads)?;
        Ok(outputs)
    }

    /// Whether there is a gradient since the last step.
    pub fn has_gradient(&self) -> bool {
        self.has_gradient
    }

    /// Discards the gradient since the last step.
    pub fn discard(&mut self) {
        self.has_gradient = false;
    }

    /// Takes an AdamW step with the gradient since the last step, which is discarded. If the gradient is not finite,
    /// nothing changes.
    pub fn step(&mut self, ctx: &Context, adapter: &mut WeightSlots<Adapter>, params: AdamParams) -> Result<GradNorm> {
        self.has_gradient = false;
        self.grads.finish(ctx)?;
        self.optimizer.set_adam(OptimizerConfig {
            adam_beta1: params.beta1,
            adam_beta2: params.beta2,
            adam_epsilon: params.eps,
            weight_decay: params.weight_decay,
            max_grad_norm: params.grad_clip_norm,
            ..OptimizerConfig::default()
        });
        let norm = self.optimizer.measure(ctx, &self.grads)?;
        if norm.finite {
            adapter.update(|next| self.optimizer.step(ctx, next, &self.grads.params, params.learning_rate))?;
        }
        Ok(norm)
    }

    /// The number of steps taken.
    pub fn steps(&self) -> u64 {
        self.optimizer.steps
    }

    /// The optimizer, to save its moments.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The optimizer, to overwrite its moments after `steps` steps.
    pub fn resume(&mut self, steps: u64) -> &mut Optimizer {
        self.optimizer.steps = steps;
        &mut self.optimizer
    }
}

/// The log-probabilities of a part's targets, for each of its datums, without a gradient.
pub fn logprobs(
    passes: &mut Passes,
    ctx: &Context,
    model: ModelView<'_>,
    datums: &[Datum],
    part: &Part,
) -> Result<Vec<Vec<f32>>> {
    let (_, logps) = forward(&mut Compute { passes, ctx, model }, datums, part)?;
    let mut rest = &logps[..];
    let of = |datum: &Datum| {
        let (own, others) = rest.split_at(datum.targets.len());
        rest = others;
        own.to_vec()
    };
    Ok(datums[part.datums()].iter().map(of).collect())
}

/// A part of a call's datums that is computed in one micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The datums of each group, and the length of their common prefix.
    groups: Vec<(Range<usize>, usize)>,
}

impl Part {
    /// The indices of the datums.
    pub fn datums(&self) -> Range<usize> {
        match (self.groups.first(), self.groups.last()) {
            (Some((first, _)), Some((last, _))) => first.start..last.end,
            _ => 0..0,
        }
    }
}

/// Splits datums into micro-batches of up to `max_tokens` rows, and of four times as many targets. A larger group is a
/// micro-batch of its own. The split between groups changes no bit of a result.
pub fn split(datums: &[Datum], max_tokens: usize) -> Vec<Part> {
    let mut parts: Vec<(Part, usize)> = Vec::new();
    for (group, prefix) in groups(datums) {
        let own = &datums[group.clone()];
        let rows = prefix + own.iter().map(|datum| datum.ids.len() - prefix).sum::<usize>();
        // Rows with several targets, and those of a shared prefix, take space in the head for each of their targets.
        let targets = own.iter().map(|datum| datum.targets.len()).sum::<usize>();
        let rows = rows.max(targets * MOST_GROUP_ROWS / MOST_GROUP_TARGETS);
        match parts.last_mut() {
            Some((part, tokens)) if *tokens + rows <= max_tokens => {
                part.groups.push((group, prefix));
                *tokens += rows;
            }
            _ => parts.push((Part { groups: vec![(group, prefix)] }, rows)),
        }
    }
    parts.into_iter().map(|(part, _)| part).collect()
}

/// Divides datums into groups with a common prefix. A datum joins the group before it if it keeps at least half of that
/// group's common prefix, has at least half as many tokens in common with it as with the next datum, and the group does
/// not become too large. Groups are a function of the datums alone.
fn groups(datums: &[Datum]) -> Vec<(Range<usize>, usize)> {
    let common = |a: &Datum, b: &Datum| a.ids.iter().zip(&b.ids).take_while(|(a, b)| a == b).count();
    let mut groups: Vec<(Range<usize>, usize)> = Vec::new();
    for (index, datum) in datums.iter().enumerate() {
        if let Some((group, prefix)) = groups.last_mut() {
            let shared = common(&datums[group.start], datum).min(*prefix);
            let kept = if group.len() > 1 { *prefix } else { 0 };
            let next = datums.get(index + 1).map_or(0, |next| common(datum, next));
            let all = &datums[group.start..=index];
            let rows = shared + all.iter().map(|datum| datum.ids.len() - shared).sum::<usize>();
            let targets = all.iter().map(|datum| datum.targets.len()).sum::<usize>();
            let is_small = rows <= MOST_GROUP_ROWS && targets <= MOST_GROUP_TARGETS;
            if is_small && shared > 0 && 2 * shared >= kept.max(next) {
                (group.end, *prefix) = (index + 1, shared);
                continue;
            }
        }
        groups.push((index..index + 1, datum.ids.len()));
    }
    groups
}

/// Runs the forward pass of a part. Returns the log-probabilities of all targets, in the order of the datums.
fn forward(compute: &mut Compute<'_>, datums: &[Datum], part: &Part) -> Result<(BatchTensors, Vec<f32>)> {
    let memory = compute.passes.memory().clone();
    let config = compute.model.config().clone();
    // One more token for each datum: the last token of a branch has no row.
    let rest = |prefix: usize, datum: &Datum| datum.ids[prefix..].iter().copied().chain([0]).collect::<Vec<u32>>();
    let rests: Vec<(&[u32], Vec<Vec<u32>>)> = part
        .groups
        .iter()
        .map(|(group, prefix)| {
            let of = &datums[group.clone()];
            (&of[0].ids[..*prefix], of.iter().map(|datum| rest(*prefix, datum)).collect())
        })
        .collect();
    let branches: Vec<Vec<&[u32]>> = rests.iter().map(|(_, rests)| rests.iter().map(Vec::as_slice).collect()).collect();
    let segments = rests.iter().zip(&branches).map(|((prefix, _), branches)| GroupSegment { prefix, branches });
    let own = &datums[part.datums()];
    let targets: Vec<Targets<'_>> =
        own.iter().map(|datum| Targets { ids: &datum.targets, width: datum.width }).collect();
    let packed = Batch::new(&segments.collect::<Vec<_>>(), true).with_targets(&targets);
    let (capacity, positions) = (packed.capacity(), own.iter().map(|datum| datum.ids.len()).max().unwrap_or(1));
    compute.passes.reserve(&config, capacity, capacity.tokens, positions);
    let tensors = BatchTensors::new(&memory.part("workspace"), &packed);
    if let Err(error) = memory.check() {
        // Later, smaller parts must not find buffers that were refused.
        compute.passes.release();
        return Err(error.into());
    }
    let outputs = compute.forward(&tensors, 1.0, false)?;
    Ok((tensors, outputs.logps))
}
