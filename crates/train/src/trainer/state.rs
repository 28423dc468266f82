//! The state that training changes, for one model: gradients, the optimizer's moments, counters.
//!
//! The stages of a step: samples → groups → micro-batches → forward pass → log-probabilities → loss and its gradient →
//! backward pass, accumulating gradients → clipping → optimizer. The loss is computed on the host from
//! log-probabilities and entropies only, which are a few numbers per token.
//!
//! A step consists of [`accumulate`](TrainState::accumulate), once or for each part of the optimizer batch,
//! [`reduce`](TrainState::reduce) and [`step`](TrainState::step). Losses divide by counts of the whole optimizer batch
//! ([`TrainState::normalizer`]), which are known beforehand, so accumulating the gradient in parts gives the same bits.

use super::kept::{Origin, Planned};
use super::loss_gradient::loss_and_gradient;
use super::passes::{Compute, Forward, ForwardSums, LossBatch, Measured, Outputs, Passes};
use super::ranks::Ranks;
use super::shares::Shares;
use super::skip::Skipped;
use super::{MAX_SKIPPED_IN_A_ROW, StepParams, TrainerConfig, TrainerState};
use crate::loss::Normalizer;
use crate::loss::entropy::{EntropyControl, quantile, with_bonus};
use crate::loss::sampling::SamplingSums;
use crate::objective::{Objective, Scored};
use crate::optimizer::{GradNorm, Optimizer};
use crate::optimizer_batch::{Sequence, groups, prompt_runs, sequences};
use crate::{Error, Means, Result, Samples, UpdateMetrics};
use kernels::mean::over;
use kernels::{Context, Memory};
use model::kept::RolloutActivations;
use model::packing::longest;
use model::{Capacity, Grads, ModelConfig, ModelView, Params, StopCheck, Trainable};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Gradients, optimizer and counters of one model in training. The weights belong to the caller.
pub struct TrainState {
    pub(crate) config: TrainerConfig,
    pub(crate) memory: Memory,
    pub(crate) grads: Grads,
    pub(super) shares: Shares,
    /// The slots for other ranks; `None` if this process computes all shares.
    pub(super) lent: Option<LentSlots>,
    /// The other ranks; `None` if this process computes all shares.
    pub(super) ranks: Option<Arc<Ranks>>,
    pub(crate) optimizer: Optimizer,
    pub(super) skipped_in_a_row: u32,
    pub(crate) skipped_total: u64,
    pub(crate) entropy: EntropyControl,
    /// Loss, counts and measurements accumulated since the last step; `None` if there are none.
    accumulated: Option<Accumulated>,
}

/// The slots of shared memory that this process lends to other ranks.
pub(super) struct LentSlots {
    /// The slot of each buffer of the gradient's shares.
    pub(super) gradients: Vec<PathBuf>,
    /// The slots of the optimizer's state.
    pub(super) state: Vec<PathBuf>,
}

/// The sums of loss, counts and measurements over the calls of [`TrainState::accumulate`] in one step. (Gradients are
/// accumulated separately.)
struct Accumulated {
    /// The loss function of these calls.
    loss: Objective,
    normalizer: Normalizer,
    measured: Measured,
    sequences: usize,
    groups: usize,
    computed_tokens: usize,
    micro_batches: usize,
    optimizer_time_s: f64,
    is_reduced: bool,
    /// The gradient norm, if ranks have computed it.
    norm: Option<[f32; 2]>,
    /// Whether the passes may use kept activations.
    uses_activations: bool,
}

/// Forward passes that were run to obtain the [`Normalizer`], and are reused for the gradient.
#[derive(Default)]
struct Ahead {
    forwards: Vec<Forward>,
    sums: ForwardSums,
}

impl TrainState {
    /// The state of a model of this configuration, with zero moments.
    pub fn new(memory: &Memory, model: &Arc<ModelConfig>, config: TrainerConfig) -> Result<TrainState> {
        if !(config.temperature.is_finite() && config.temperature > 0.0) {
            let why = "for training it must be finite and above 0; at 0 every completion would have probability 1";
            return Err(Error::Config(format!("temperature = {}: {why}", config.temperature)));
        }
        let adapter = config.adapter.as_ref();
        let partial = || Params::trained(&memory.part("gradients"), model, adapter);
        Ok(TrainState {
            grads: Grads::trained(memory, model, adapter),
            shares: Shares::new(config.gradient_shares, partial)?,
            lent: None,
            ranks: None,
            optimizer: Optimizer::new(memory, model, adapter, config.optimizer),
            entropy: EntropyControl::new(&config.objective.entropy()),
            memory: memory.clone(),
            config,
            skipped_in_a_row: 0,
            skipped_total: 0,
            accumulated: None,
        })
    }

    /// Computes the gradient on all of `samples`, for the following [`step`](Self::step). Both together are an
    /// [`update`](super::Trainer::update). This part does not change the weights.
    pub fn gradient<'a>(
        &mut self,
        passes: &mut Passes,
        ctx: &Context,
        model: ModelView<'_>,
        samples: impl Into<Samples<'a>>,
    ) -> Result<()> {
        let (samples, loss) = (samples.into(), self.config.objective.clone());
        self.discard();
        let own = self.own_context(ctx);
        let compute = &mut Compute { passes, ctx: &own, model };
        let (normalizer, ahead) = self.normalize(compute, samples, &loss)?;
        self.accumulate_after(compute, samples, &loss, &normalizer, ahead)?;
        let stop = passes.stop.clone();
        self.reduce(ctx, &stop)
    }

    /// Discards the gradient that was accumulated since the last step.
    pub(super) fn discard(&mut self) {
        self.accumulated = None;
    }

    /// Computes the counts by which `loss` divides, if `samples` are the whole optimizer batch. If the loss leaves out
    /// tokens of low entropy, this runs the model to get the entropies; otherwise it only counts.
    pub fn normalizer(
        &mut self,
        passes: &mut Passes,
        ctx: &Context,
        model: ModelView<'_>,
        samples: Samples<'_>,
        loss: &Objective,
    ) -> Result<Normalizer> {
        let own = self.own_context(ctx);
        Ok(self.normalize(&mut Compute { passes, ctx: &own, model }, samples, loss)?.0)
    }

    /// Computes the gradient of `loss` on `samples`, a part of the optimizer batch, and adds it to the gradient
    /// accumulated since the last step.
    pub fn accumulate(
        &mut self,
        passes: &mut Passes,
        ctx: &Context,
        model: ModelView<'_>,
        samples: Samples<'_>,
        loss: &Objective,
        normalizer: &Normalizer,
    ) -> Result<()> {
        let own = self.own_context(ctx);
        let compute = &mut Compute { passes, ctx: &own, model };
        self.accumulate_after(compute, samples, loss, normalizer, Ahead::default())
    }

    /// Completes the accumulated gradient of the optimizer batch: adds the gradients of its shares as a tree, and those
    /// of other ranks.
    pub fn reduce(&mut self, ctx: &Context, stop: &StopCheck) -> Result<()> {
        let Some(accumulated) = &mut self.accumulated else { return Err(nothing_accumulated()) };
        let start = Instant::now();
        self.shares.finish(ctx, &mut self.grads)?;
        if let (Some(ranks), Some(lent)) = (&self.ranks, &self.lent) {
            let own = &lent.gradients[self.shares.buffer()];
            accumulated.norm = Some(ranks.reduce(own, &mut self.grads, self.optimizer.part(), stop)?);
        }
        accumulated.is_reduced = true;
        accumulated.optimizer_time_s += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Takes the optimizer step, unless loss or gradient are not finite: clipping, optimizer, and the next version of
    /// `model`.
    pub fn step(&mut self, ctx: &Context, model: &mut impl Trainable, params: StepParams) -> Result<UpdateMetrics> {
        let Some(accumulated) = self.accumulated.take().filter(|a| a.is_reduced) else {
            return Err(nothing_accumulated());
        };
        let Accumulated { loss: objective, normalizer, measured, .. } = accumulated;
        let start = Instant::now();
        let norm = match accumulated.norm {
            Some(norm) => self.optimizer.set_norm(norm),
            None => self.optimizer.measure(ctx, &self.grads)?,
        };
        let bonus = objective.entropy();
        let kept_entropy = over(measured.sums.entropy, normalizer.entropy_tokens as u64);
        let loss = with_bonus(measured.sums.loss, &bonus, &normalizer, kept_entropy);
        let learns = normalizer.tokens > 0;
        let skipped = !self.check_finite(loss, norm)?;
        if !skipped {
            let rate = params.learning_rate;
            match self.ranks.clone() {
                Some(ranks) => self.step_with_ranks(&ranks, model, norm, rate)?,
                None => model.update(|weights| self.optimizer.step(ctx, weights, &self.grads.params, rate))?,
            }
            if let Some(entropy) = kept_entropy {
                self.entropy.adapt(&bonus, entropy);
            }
            if let Some(ranks) = self.ranks.as_ref().filter(|_| objective.is_policy()) {
                ranks.forget_kept();
            }
        }
        Ok(UpdateMetrics {
            loss,
            grad_norm: norm.norm,
            learning_rate: params.learning_rate,
            entropy: measured.mean_entropy(&normalizer).filter(|_| !objective.is_of_scores()),
            kl: measured.sums.kl_mean().filter(|_| objective.has_kl()),
            means: if learns { measured.sums.means.clone() } else { Means::default() },
            clip: measured.sums.clip_ratios().filter(|_| objective.clips()),
            sampling: measured.sums.sampling.as_ref().and_then(SamplingSums::metrics),
            policy_loss: (learns && bonus.is_on()).then_some(measured.sums.loss),
            entropy_coef: bonus.is_on().then_some(self.entropy.coef),
            sampled: objective.is_policy(),
            sequences: accumulated.sequences as u64,
            loss_tokens: normalizer.tokens as u64,
            computed_tokens: accumulated.computed_tokens as u64,
            skipped_groups: self.skips(&objective).then_some(measured.skipped_groups),
            skipped_tokens: self.skips(&objective).then_some(measured.skipped_tokens),
            micro_batches: accumulated.micro_batches as u64,
            logp_mismatch_tokens: measured.mismatches,
            logp_compared_tokens: measured.compared,
            max_logp_difference: measured.max_difference,
            skipped,
            skipped_total: self.skipped_total,
            kept_rows: accumulated.uses_activations.then_some(measured.forward.kept_rows),
            compared_rows: measured.forward.compared_rows,
            activation_mismatch_rows: measured.forward.mismatched_rows,
            forward_time_s: measured.forward.time_s,
            backward_time_s: measured.backward_time_s,
            optimizer_time_s: accumulated.optimizer_time_s + start.elapsed().as_secs_f64(),
        })
    }

    /// As [`normalizer`](Self::normalizer), but also returns the forward passes that can be reused. The pass of a
    /// single micro-batch can be reused because its activations are still on the tape. With dropout all passes can be
    /// reused, since a second pass follows anyway.
    fn normalize(
        &mut self,
        compute: &mut Compute<'_>,
        samples: Samples<'_>,
        loss: &Objective,
    ) -> Result<(Normalizer, Ahead)> {
        let sequences = sequences(loss, samples)?;
        let entropy_coef = self.entropy.applied(&loss.entropy());
        let counts = Normalizer::of(sequences.iter().map(|s| &s.mask));
        let mut normalizer = Normalizer { entropy_coef, groups: prompt_runs(&sequences).count(), ..counts };
        let mut ahead = Ahead::default();
        let Some(q) = loss.entropy_quantile() else { return Ok((normalizer, ahead)) };
        let groups = groups(compute.model.config(), &sequences)?;
        let activations = compute.passes.activations.clone();
        let kept = activations.as_ref().map(RolloutActivations::lock);
        let kept = kept.as_deref();
        let share = |group: usize| self.shares.index(group, groups.len());
        let planned = compute.plan(&self.config, &sequences, &groups, kept, share, self.kept_elsewhere());
        let (own, others) = self.divided(&planned);
        self.reserve_for(compute, own, longest(&groups))?;
        let stop = compute.passes.stop.clone();
        let keeps = others.is_empty() && (own.len() == 1 || self.dropout() > 0.0);
        let skipped = Cell::default();
        let batch = LossBatch { loss, normalizer: &normalizer, sequences: &sequences, before: 0, skipped, kept };
        let mut entropies = Vec::with_capacity(normalizer.tokens);
        let in_loss = |planned: &Planned<'_>, outputs: &Outputs| {
            let mask = planned.micro.scored().flat_map(|i| &sequences[i].mask);
            outputs.entropies.iter().zip(mask).filter(|(_, m)| **m).map(|(e, _)| *e).collect::<Vec<f32>>()
        };
        let divided = self.divided_batch(&batch, compute.model.version().trained(), None, &stop);
        let (outputs, sums) = self.compute_divided(divided, others, |state| {
            own.iter().try_for_each(|planned| {
                let forward = state.forward(compute, &batch, planned, &mut ahead.sums)?;
                entropies.extend(in_loss(planned, &forward.outputs));
                ahead.forwards.extend(keeps.then_some(forward));
                Ok(())
            })
        })?;
        ahead.sums += sums;
        others.iter().zip(&outputs).for_each(|(planned, outputs)| entropies.extend(in_loss(planned, outputs)));
        normalizer.entropy_threshold = quantile(entropies.clone(), q);
        normalizer.entropy_tokens = entropies.iter().filter(|&&e| normalizer.keeps(f64::from(e))).count();
        Ok((normalizer, ahead))
    }

    fn accumulate_after(
        &mut self,
        compute: &mut Compute<'_>,
        samples: Samples<'_>,
        loss: &Objective,
        normalizer: &Normalizer,
        ahead: Ahead,
    ) -> Result<()> {
        if compute.model.lora() != self.config.adapter.as_ref() {
            return Err(Error::Config("the weights must have the adapter that the trainer was created for".into()));
        }
        let sequences = sequences(loss, samples)?;
        let all = groups(compute.model.config(), &sequences)?;
        let skipped = if self.skips(loss) { Skipped::of(&all, &sequences) } else { Skipped::default() };
        let groups = skipped.others(&all);
        let activations = compute.passes.activations.clone();
        let kept = activations.as_ref().map(RolloutActivations::lock);
        let kept = kept.as_deref();
        let groups_before = self.accumulated.as_ref().map_or(0, |accumulated| accumulated.groups);
        let share = |group: usize| self.shares.index(groups_before + group, normalizer.groups);
        let planned = compute.plan(&self.config, &sequences, &groups, kept, share, self.kept_elsewhere());
        let rows = |planned: &Planned<'_>| planned.micro.capacity().tokens;
        let (computed, micro_batches) = (planned.iter().map(rows).sum::<usize>(), planned.len());
        let (own, others) = self.divided(&planned);
        self.reserve_for(compute, own, longest(&groups))?;
        let stop = compute.passes.stop.clone();
        let mut accumulated = match self.accumulated.take() {
            Some(accumulated) => accumulated,
            None => {
                self.shares.begin(compute.ctx, &mut self.grads);
                self.ranks.as_ref().map_or(Ok(()), |ranks| ranks.begin(&stop))?;
                Accumulated::new(loss.clone(), *normalizer)
            }
        };
        let skipped_sequences = Cell::new(&skipped.sequences[..]);
        let before = accumulated.sequences;
        let batch = LossBatch { loss, normalizer, sequences: &sequences, before, skipped: skipped_sequences, kept };
        let measured = &mut accumulated.measured;
        measured.forward += ahead.sums;
        let mut ahead = ahead.forwards.into_iter();
        let version = compute.model.version().trained();
        let divided = self.divided_batch(&batch, version, Some(normalizer), &stop);
        let (outputs, sums) = self.compute_divided(divided, others, |state| {
            own.iter().try_for_each(|planned| {
                let forward = match ahead.next() {
                    Some(forward) => forward,
                    None => state.forward(compute, &batch, planned, &mut measured.forward)?,
                };
                state.shares.enter(compute.ctx, &mut state.grads, planned.share)?;
                state.backward(compute, &batch, &planned.micro, forward, measured)
            })
        })?;
        measured.forward += sums;
        for (planned, outputs) in others.iter().zip(&outputs) {
            loss_and_gradient(&batch, version, &planned.micro, outputs, measured);
        }
        batch.count_skipped(sequences.len(), version, measured);
        self.check_skipped(compute, &batch, &all, &skipped, measured)?;
        // Sequences with an empty completion are not computed, but are counted in the metrics.
        for Sequence { source, mask, .. } in sequences.iter().filter(|s| s.completion.is_empty()) {
            let (d_logps, d_entropies): (&mut [f32], &mut [f32]) = (&mut [], &mut []);
            let empty = Scored { source: *source, mask, logps: &[], entropies: &[], d_logps, d_entropies };
            loss.evaluate(normalizer, &mut [empty], &mut measured.sums);
        }
        accumulated.sequences += sequences.len();
        accumulated.groups += all.len();
        accumulated.computed_tokens += computed;
        accumulated.micro_batches += micro_batches;
        accumulated.uses_activations = kept.is_some();
        self.accumulated = Some(accumulated);
        Ok(())
    }

    /// Allocates memory for these micro-batches.
    pub(crate) fn reserve_for(
        &mut self,
        compute: &mut Compute<'_>,
        planned: &[Planned<'_>],
        positions: usize,
    ) -> Result<()> {
        let capacities = planned.iter().map(|planned| planned.micro.capacity());
        let capacity = capacities.fold(Capacity::default(), Capacity::max);
        let rows = |share: &[Planned<'_>]| share.iter().map(|planned| planned.micro.capacity().tokens).sum::<usize>();
        let rows = planned.chunk_by(|a, b| a.share == b.share).map(rows).max().unwrap_or(0);
        let computed = planned.iter().filter(|planned| planned.origin != Origin::Kept);
        let forwarded = computed.map(|planned| planned.micro.capacity().tokens).max().unwrap_or(0);
        self.grads.reserve(rows);
        compute.passes.reserve(compute.model.config(), capacity, forwarded, positions);
        Ok(self.memory.check()?)
    }

    /// Returns whether loss and gradient are finite, so that the step can be taken. Fails after too many consecutive
    /// skipped steps.
    pub(super) fn check_finite(&mut self, loss: f64, norm: GradNorm) -> Result<bool> {
        if loss.is_finite() && norm.finite {
            self.skipped_in_a_row = 0;
            return Ok(true);
        }
        self.skipped_in_a_row += 1;
        self.skipped_total += 1;
        if self.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW {
            return Ok(false);
        }
        let (what, value) = if loss.is_finite() { ("the gradient norm", norm.norm) } else { ("the loss", loss) };
        Err(Error::NonFinite { count: self.skipped_in_a_row, what, value })
    }

    /// The counters and the entropy coefficient, which a checkpoint stores.
    pub fn counters(&self) -> TrainerState {
        TrainerState {
            steps: self.optimizer.steps,
            skipped_in_a_row: self.skipped_in_a_row,
            skipped_total: self.skipped_total,
            entropy: self.config.objective.entropy().use_adaptive_entropy.then_some(self.entropy),
        }
    }

    /// Restores the counters from a checkpoint.
    pub fn set_counters(&mut self, state: TrainerState) {
        self.optimizer.steps = state.steps;
        (self.skipped_in_a_row, self.skipped_total) = (state.skipped_in_a_row, state.skipped_total);
        self.entropy = state.entropy.unwrap_or(self.entropy);
    }
}

impl Accumulated {
    fn new(loss: Objective, normalizer: Normalizer) -> Accumulated {
        Accumulated {
            loss,
            normalizer,
            measured: Measured::default(),
            sequences: 0,
            groups: 0,
            computed_tokens: 0,
            micro_batches: 0,
            optimizer_time_s: 0.0,
            is_reduced: false,
            norm: None,
            uses_activations: false,
        }
    }
}

fn nothing_accumulated() -> Error {
    Error::Config("`step` must be called after `accumulate` and `reduce`".into())
}
