//! One optimizer step: samples in, weights one version further.
//!
//! samples → groups → micro-batches → forward → log-probabilities → loss and its gradient → backward, adding to the
//! gradients → clip → AdamW. The loss sees log-probabilities alone, on the host: T numbers.
//!
//! With an adapter's dropout, the gradient is that of a forward pass with dropout. A policy's loss compares its
//! log-probabilities with those of sampler and reference, which know no dropout, so they come from a pass without it, and
//! ∂J/∂log π_θ is taken there:
//!
//! ∇ = Σ_t ∂J/∂log π_θ(t) ∇ log π_θ,dropped(t)
//!
//! That costs a second forward pass. The other losses (supervised, of pairs, of scores) are those of the pass with dropout,
//! which is then the only one.

use crate::loss::entropy::{EntropyControl, quantile};
use crate::loss::sampling::SamplingSums;
use crate::loss::{LossSums, Totals};
use crate::objective::{Objective, Scored};
use crate::optimizer::Optimizer;
use crate::{Error, OptimizerConfig, Result, Sample, UpdateMetrics};
use kernels::{Context, Memory, Tensor};
use model::batch::Dropout;
use model::net::{self, Rope, Tape};
use model::packing::{check_groups, longest, micro_batches};
use model::scoring::grow_rope;
use model::{
    BatchTensors, Capacity, Grads, LoraConfig, MicroBatch, ModelConfig, ModelView, PromptCompletion, PromptGroup,
    Trainable,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

/// This many skipped steps in a row end the run.
pub const MAX_SKIPPED_IN_A_ROW: u32 = 3;

/// How a [`Trainer`] works.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerConfig {
    /// What is minimised.
    pub objective: Objective,
    /// AdamW.
    pub optimizer: OptimizerConfig,
    /// The adapter that is trained, which the weights must have; none: every parameter is trained.
    pub adapter: Option<LoraConfig>,
    /// Logits are divided by it, as in sampling; above 0.
    pub temperature: f64,
    /// Rows of a micro-batch; a larger group is a micro-batch of its own. It changes memory, never the result.
    pub max_tokens_per_micro_batch: usize,
    /// Consecutive samples with the same prompt compute it once.
    pub prefix_sharing: bool,
    /// Keep only each layer's input, and compute the rest again in the backward pass.
    pub gradient_checkpointing: bool,
}

/// What a checkpoint holds of a trainer besides the [moments](Trainer::optimizer).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Optimizer steps taken (skipped ones not counted): the exponent of AdamW's bias correction.
    pub steps: u64,
    /// Steps skipped in a row up to now.
    pub skipped_in_a_row: u32,
    /// Steps skipped in the run.
    pub skipped_total: u64,
    /// The weight of the entropy bonus, if it adapts.
    #[serde(default)]
    pub entropy: Option<EntropyControl>,
}

/// Gradients, moments and buffers of a training run. The weights stay the caller's.
pub struct Trainer {
    config: TrainerConfig,
    memory: Memory,
    grads: Grads,
    optimizer: Optimizer,
    rope: Option<(usize, Rope)>,
    tape: Option<Tape>,
    skipped_in_a_row: u32,
    skipped_total: u64,
    entropy: EntropyControl,
}

/// What the model says of a micro-batch's scored tokens; the tape holds the rest.
struct Forward {
    tensors: BatchTensors,
    /// What a second pass, which the gradient is of, drops.
    dropout: Option<Dropout>,
    logps: Vec<f32>,
    entropies: Vec<f32>,
}

/// The optimizer batch, one element per sample.
struct Work<'a> {
    samples: &'a [Sample],
    /// Which completion tokens the loss uses.
    masks: &'a [Vec<bool>],
    totals: Totals,
}

/// What the micro-batches of a step add up to.
#[derive(Default)]
struct Measured {
    sums: LossSums,
    entropy: f64,
    compared: u64,
    mismatches: u64,
    max_difference: f64,
    forward_time_s: f64,
    backward_time_s: f64,
}

impl Trainer {
    /// A trainer for weights of this shape, its moments zero. The tape is taken at [`reserve`](Self::reserve), or grows
    /// with the samples.
    pub fn new(memory: &Memory, model: &Arc<ModelConfig>, config: TrainerConfig) -> Result<Trainer> {
        if !(config.temperature.is_finite() && config.temperature > 0.0) {
            let why = "training needs a sampling temperature above 0: at 0 every completion has probability 1";
            return Err(Error::Config(format!("temperature = {}: {why}", config.temperature)));
        }
        Ok(Trainer {
            grads: Grads::trained(memory, model, config.adapter.as_ref()),
            optimizer: Optimizer::new(memory, model, config.adapter.as_ref(), config.optimizer),
            entropy: EntropyControl::new(&config.objective.entropy()),
            memory: memory.clone(),
            config,
            rope: None,
            tape: None,
            skipped_in_a_row: 0,
            skipped_total: 0,
        })
    }

    /// How it works.
    pub fn config(&self) -> &TrainerConfig {
        &self.config
    }

    /// Takes the memory for updates of up to `tokens` rows, in micro-batches up to `capacity` and sequences up to
    /// `positions`, now.
    pub fn reserve(&mut self, model: &ModelConfig, tokens: usize, capacity: Capacity, positions: usize) {
        self.grads.reserve(tokens);
        let old = self.tape.as_ref().map_or(Capacity::default(), Tape::capacity);
        if self.tape.is_none() || !old.holds(capacity) {
            self.tape = None; // free before taking
            let checkpointing = self.config.gradient_checkpointing;
            self.tape = Some(Tape::new(&self.memory, model, old.max(capacity), checkpointing));
        }
        grow_rope(&mut self.rope, &self.memory, model, positions);
    }

    /// One optimizer step on all of `samples`: forward, loss, backward, clip, AdamW, and the next version of `model`. A
    /// step whose loss or gradient is not finite changes nothing, is counted, and the third in a row is an error.
    pub fn update(
        &mut self,
        ctx: &Context,
        model: &mut impl Trainable,
        samples: &[Sample],
        learning_rate: f64,
    ) -> Result<UpdateMetrics> {
        if samples.is_empty() {
            return Err(Error::Config("an optimizer step needs at least one sample".into()));
        }
        let view = model.view();
        if view.lora() != self.config.adapter.as_ref() {
            return Err(Error::Config("the weights do not have the adapter that the trainer was made for".into()));
        }
        let groups = PromptGroup::by_prompt(&samples.iter().map(pair).collect::<Vec<_>>());
        check_groups(view.config(), &groups).map_err(|e| match e {
            model::Error::Sequence { index, message } => Error::Sample { index, message },
            e => e.into(),
        })?;
        let objective = &self.config.objective;
        samples.iter().enumerate().try_for_each(|(i, s)| objective.check(i, s))?;
        objective.check_order(samples)?;
        let masks: Vec<Vec<bool>> = samples.iter().map(|s| objective.loss_mask(s)).collect();
        let totals =
            Totals { entropy_coef: self.entropy.applied(&self.config.objective.entropy()), ..Totals::of(&masks) };
        let tokens = totals.tokens;

        let micro = micro_batches(&groups, self.config.max_tokens_per_micro_batch, self.config.prefix_sharing);
        let capacity = micro.iter().fold(Capacity::default(), |c, m| c.max(m.capacity()));
        let computed = micro.iter().map(|m| m.capacity().tokens).sum();
        self.reserve(view.config(), computed, capacity, longest(&groups));
        self.grads.zero(ctx);
        let mut work = Work { samples, masks: &masks, totals };
        let mut measured = Measured::default();
        let mut ahead = self.entropy_threshold(ctx, view, &mut work, &micro, &mut measured)?.into_iter();
        let totals = work.totals;
        for micro in &micro {
            let mut forward = match ahead.next() {
                Some(forward) => forward,
                None => self.forward(ctx, view, micro, &mut measured)?,
            };
            if let Some(dropout) = forward.dropout.take() {
                forward.tensors.set_dropout(Some(dropout));
                self.pass(ctx, view, &forward.tensors, &mut measured)?;
            }
            self.backward(ctx, view, &work, micro, &forward, &mut measured)?;
        }
        // Sequences without a token take no part in the model, but count in the metrics.
        for i in (0..samples.len()).filter(|&i| samples[i].completion.is_empty()) {
            let mut empty = [Scored {
                sample: &samples[i],
                mask: &masks[i],
                logps: &[],
                entropies: &[],
                d_logps: &mut [],
                d_entropies: &mut [],
            }];
            self.config.objective.evaluate(&totals, &mut empty, &mut measured.sums);
        }

        let start = Instant::now();
        self.grads.finish(ctx)?;
        let norm = self.optimizer.measure(ctx, &self.grads)?;
        let bonus = self.config.objective.entropy();
        let kept_entropy = measured.sums.entropy / totals.entropy_tokens.max(1) as f64;
        let loss = measured.sums.loss - if bonus.is_on() { totals.entropy_coef * kept_entropy } else { 0.0 };
        let skipped = self.judge(loss, norm)?;
        if !skipped {
            model.update(|params| self.optimizer.step(ctx, params, &self.grads, learning_rate))?;
            self.entropy.adapt(&bonus, kept_entropy);
        }
        let objective = &self.config.objective;
        Ok(UpdateMetrics {
            loss,
            grad_norm: norm.norm,
            learning_rate,
            entropy: (!objective.is_of_scores()).then(|| measured.entropy / tokens.max(1) as f64),
            kl: objective.has_kl().then(|| measured.sums.kl_mean()),
            means: measured.sums.means.clone(),
            clip: objective.clips().then(|| measured.sums.clip_ratios()),
            sampling: measured.sums.sampling.as_ref().map(SamplingSums::metrics),
            policy_loss: bonus.is_on().then_some(measured.sums.loss),
            entropy_coef: bonus.is_on().then_some(self.entropy.coef),
            sampled: objective.is_policy(),
            sequences: samples.len() as u64,
            loss_tokens: tokens as u64,
            computed_tokens: computed as u64,
            micro_batches: micro.len() as u64,
            logp_mismatch_tokens: measured.mismatches,
            logp_compared_tokens: measured.compared,
            max_logp_difference: measured.max_difference,
            skipped,
            skipped_total: self.skipped_total,
            forward_time_s: measured.forward_time_s,
            backward_time_s: measured.backward_time_s,
            optimizer_time_s: start.elapsed().as_secs_f64(),
        })
    }

    /// Sets the entropy below which tokens are left out, if the objective leaves any out: a quantile of the whole optimizer
    /// batch, so that every micro-batch is computed once before the first gradient. What can be gone on with is returned: the
    /// forward pass of a lone micro-batch, whose tape is still there; with dropout, which has a pass to come, those of all.
    fn entropy_threshold(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        work: &mut Work<'_>,
        micro: &[MicroBatch<'_>],
        measured: &mut Measured,
    ) -> Result<Vec<Forward>> {
        let Some(q) = self.config.objective.entropy_quantile() else { return Ok(Vec::new()) };
        let keeps = micro.len() == 1 || self.dropout() > 0.0;
        let (mut entropies, mut kept) = (Vec::with_capacity(work.totals.tokens), Vec::new());
        for micro in micro {
            let forward = self.forward(ctx, model, micro, measured)?;
            let mask = micro.scored().flat_map(|i| &work.masks[i]);
            entropies.extend(forward.entropies.iter().zip(mask).filter(|(_, m)| **m).map(|(e, _)| *e));
            kept.extend(keeps.then_some(forward));
        }
        work.totals.entropy_threshold = quantile(entropies.clone(), q);
        work.totals.entropy_tokens = entropies.iter().filter(|&&e| work.totals.keeps(f64::from(e))).count();
        Ok(kept)
    }

    /// The chance that an input of the adapter is dropped.
    fn dropout(&self) -> f64 {
        self.config.adapter.as_ref().map_or(0.0, |lora| lora.dropout)
    }

    /// The forward pass of one micro-batch.
    fn forward(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        micro: &MicroBatch<'_>,
        measured: &mut Measured,
    ) -> Result<Forward> {
        let start = Instant::now();
        let batch = micro.batch(self.config.prefix_sharing);
        let mut tensors = BatchTensors::new(&self.memory.part("workspace"), &batch);
        let p = self.dropout();
        let mut dropout = (p > 0.0).then(|| {
            let samples: Vec<u32> = micro.scored().map(|i| i as u32).collect();
            // Skipped steps count, so that no two have the same noise.
            let step = self.optimizer.steps + self.skipped_total;
            Dropout::new(&self.memory, p, self.config.optimizer.seed, step, &batch, &samples)
        });
        if !self.config.objective.is_policy() {
            tensors.set_dropout(dropout.take());
        }
        measured.forward_time_s += start.elapsed().as_secs_f64();
        let (logps, entropies) = self.pass(ctx, model, &tensors, measured)?;
        Ok(Forward { tensors, dropout, logps, entropies })
    }

    /// A forward pass, kept on the tape: log-probabilities (or scores) and entropies.
    fn pass(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        tensors: &BatchTensors,
        measured: &mut Measured,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let start = Instant::now();
        let (Some(tape), Some((_, rope))) = (&mut self.tape, &self.rope) else { unreachable!("reserved") };
        net::forward(ctx, model, rope, tensors, tape)?;
        let (logps, entropies) = if self.config.objective.is_of_scores() {
            net::score_forward(ctx, model, tensors, tape)?;
            let scores = tape.scores().to_vec_f32();
            let entropies = vec![0.0; scores.len()];
            (scores, entropies)
        } else {
            net::head_forward(ctx, model, tensors, net::inv_temperature(self.config.temperature), tape)?;
            (tape.logps().to_vec_f32(), tape.entropies().to_vec_f32())
        };
        measured.forward_time_s += start.elapsed().as_secs_f64();
        Ok((logps, entropies))
    }

    /// Loss and backward pass of one micro-batch, whose forward pass was the last one.
    fn backward(
        &mut self,
        ctx: &Context,
        model: ModelView<'_>,
        work: &Work<'_>,
        micro: &MicroBatch<'_>,
        forward: &Forward,
        measured: &mut Measured,
    ) -> Result<()> {
        let Work { samples, masks, totals } = work;
        let Forward { tensors, logps, entropies, .. } = forward;
        let start = Instant::now();
        let (mut d_logps, mut d_entropies) = (vec![0.0; logps.len()], vec![0.0; logps.len()]);
        let (mut first, mut gradient, mut of_entropies) = (0, d_logps.as_mut_slice(), d_entropies.as_mut_slice());
        for group in micro.scored_groups() {
            let mut scored = Vec::new();
            for i in group {
                let tokens = first..first + samples[i].completion.len();
                let (own, rest) = gradient.split_at_mut(tokens.len());
                let (own_entropies, rest_entropies) = of_entropies.split_at_mut(tokens.len());
                let (logps, entropies) = (&logps[tokens.clone()], &entropies[tokens.clone()]);
                if !self.config.objective.is_of_scores() {
                    measured.add(&samples[i], &masks[i], logps, entropies, model.version().trained());
                }
                let (sample, mask) = (&samples[i], masks[i].as_slice());
                scored.push(Scored { sample, mask, logps, entropies, d_logps: own, d_entropies: own_entropies });
                (first, gradient, of_entropies) = (tokens.end, rest, rest_entropies);
            }
            self.config.objective.evaluate(totals, &mut scored, &mut measured.sums);
        }
        measured.forward_time_s += start.elapsed().as_secs_f64();

        let start = Instant::now();
        let workspace = self.memory.part("workspace");
        let d_logps = Tensor::from_f32(&workspace, &[d_logps.len()], &d_logps);
        let d_entropies = self
            .config
            .objective
            .pulls_at_entropies(totals)
            .then(|| Tensor::from_f32(&workspace, &[d_entropies.len()], &d_entropies));
        let d_entropies = d_entropies.as_ref().map(Tensor::view);
        let (Some(tape), Some((_, rope))) = (&mut self.tape, &self.rope) else { unreachable!("reserved") };
        if self.config.objective.is_of_scores() {
            net::score_backward(ctx, model, tensors, d_logps.view(), tape, &mut self.grads)?;
        } else {
            net::head_backward(ctx, model, tensors, d_logps.view(), d_entropies, tape, &mut self.grads)?;
        }
        net::backward(ctx, model, rope, tensors, tape, &mut self.grads)?;
        measured.backward_time_s += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Whether the step must be skipped; an error if it is one too many.
    fn judge(&mut self, loss: f64, norm: crate::optimizer::GradNorm) -> Result<bool> {
        if loss.is_finite() && norm.finite {
            self.skipped_in_a_row = 0;
            return Ok(false);
        }
        self.skipped_in_a_row += 1;
        self.skipped_total += 1;
        if self.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW {
            return Ok(true);
        }
        let (what, value) = if loss.is_finite() { ("the gradient norm", norm.norm) } else { ("the loss", loss) };
        Err(Error::NonFinite { count: self.skipped_in_a_row, what, value })
    }

    /// The moments, for a checkpoint.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The moments, to overwrite when a run goes on.
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// The gradients of the last update, before clipping.
    pub fn grads(&self) -> &Grads {
        &self.grads
    }

    /// Its counters, for a checkpoint.
    pub fn state(&self) -> TrainerState {
        TrainerState {
            steps: self.optimizer.steps,
            skipped_in_a_row: self.skipped_in_a_row,
            skipped_total: self.skipped_total,
            entropy: self.config.objective.entropy().use_adaptive_entropy.then_some(self.entropy),
        }
    }

    /// Goes on from saved counters.
    pub fn set_state(&mut self, state: TrainerState) {
        self.optimizer.steps = state.steps;
        (self.skipped_in_a_row, self.skipped_total) = (state.skipped_in_a_row, state.skipped_total);
        self.entropy = state.entropy.unwrap_or(self.entropy);
    }
}

impl Measured {
    /// Books what the model says of a sample, whatever the loss.
    fn add(&mut self, sample: &Sample, mask: &[bool], logps: &[f32], entropies: &[f32], version: u64) {
        let used = entropies.iter().zip(mask).filter(|(_, m)| **m);
        self.entropy += used.map(|(e, _)| f64::from(*e)).sum::<f64>();
        self.compare(sample, logps, version);
    }

    /// Counts the tokens whose recorded log-probability is not, bit for bit, the trainer's, if all of the sample's tokens
    /// were sampled with `version`. Tokens that were not sampled have no record.
    fn compare(&mut self, sample: &Sample, logps: &[f32], version: u64) {
        if sample.versions.is_empty() || sample.versions.iter().any(|&v| v != version) {
            return;
        }
        for ((&recorded, &logp), &sampled) in sample.sampler_logps.iter().zip(logps).zip(&sample.mask) {
            if sampled {
                self.compared += 1;
                self.mismatches += u64::from(recorded.to_bits() != logp.to_bits());
                let difference = (f64::from(recorded) - f64::from(logp)).abs();
                // Once NaN, it stays NaN: it must show.
                if difference > self.max_difference || difference.is_nan() {
                    self.max_difference = difference;
                }
            }
        }
    }
}

fn pair(sample: &Sample) -> PromptCompletion<'_> {
    PromptCompletion { prompt: &sample.prompt, completion: &sample.completion }
}
