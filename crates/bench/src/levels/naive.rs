//! A naive implementation of updates and values: it stores full logits and their softmax, repeats the prompt in every
//! sequence, and pads sequences.

use anyhow::Context as _;
use kernels::ops::{linear, rows, softmax};
use kernels::{Context, DType, Memory, Tensor, View};
use model::net::{self, Rope, Tape};
use model::{Batch, BatchTensors, Capacity, Grads, GroupSegment, Weights};
use train::loss::{LossSums, Normalizer};
use train::{Objective, Optimizer, OptimizerConfig, Sample, Scored, Source};

/// The softmax of full logits, and the hidden rows from which the logits are computed.
struct Logits {
    hidden: Tensor,
    softmax: Tensor,
}

impl Logits {
    fn of(ctx: &Context, memory: &Memory, weights: &Weights, pass: &Pass) -> anyhow::Result<Logits> {
        let (tape, chosen) = (&pass.tape, &pass.chosen);
        let (r, h, v) = (chosen.shape()[0], weights.config.hidden_size, weights.config.vocab_size);
        let zeros = |shape: &[usize]| Tensor::zeros(memory, shape, DType::F32);
        let (mut hidden, mut logits, mut softmax) = (zeros(&[r, h]), zeros(&[r, v]), zeros(&[r, v]));
        rows::gather(ctx, rows::Gather { x: tape.hidden(), rows: chosen.view(), out: hidden.view_mut() })?;
        let (first, end) =
            (Tensor::from_u32(memory, &[r], &vec![0; r]), Tensor::from_u32(memory, &[r], &vec![v as u32; r]));
        whole_softmax(ctx, (hidden.view(), weights), [&first, &end], [&mut logits, &mut softmax])?;
        Ok(Logits { hidden, softmax })
    }
}

/// Computes full logits and their softmax, both `[rows, vocabulary]`; fused operations store neither. `first` and
/// `end`, both `[rows]`, bound the vocabulary range of each row's softmax.
pub(crate) fn whole_softmax(
    ctx: &Context,
    (hidden, weights): (View<'_>, &Weights),
    [first, end]: [&Tensor; 2],
    [logits, softmax]: [&mut Tensor; 2],
) -> anyhow::Result<()> {
    let y = logits.view_mut();
    linear::forward(ctx, linear::Forward { x: hidden, w: weights.head(), bias: None, y, accumulate: false })?;
    let (first, end) = (first.view(), end.view());
    let args = softmax::Forward { x: logits.view(), scale: 1.0, first, end, y: softmax.view_mut() };
    Ok(softmax::forward(ctx, args)?)
}

/// Computes updates and values in the naive way.
pub(super) struct Naive {
    memory: Memory,
    grads: Grads,
    optimizer: Optimizer,
    objective: Objective,
    /// The number of tokens to which every completion is padded; `None` for no padding.
    width: Option<usize>,
}

/// The forward pass of samples through the layers, with activations kept for the backward pass.
struct Pass {
    batch: Batch,
    tensors: BatchTensors,
    rope: Rope,
    tape: Tape,
    /// Index of the hidden row that predicts each completion token.
    chosen: Tensor,
    /// Number of tokens of each completion, including padding.
    widths: Vec<usize>,
}

impl Naive {
    pub(super) fn new(ctx: &Context, weights: &Weights, objective: Objective, width: Option<usize>) -> Naive {
        Naive {
            memory: ctx.memory().clone(),
            grads: Grads::zeros(ctx.memory(), &weights.config),
            optimizer: Optimizer::new(ctx.memory(), &weights.config, None, OptimizerConfig::default()),
            objective,
            width,
        }
    }

    /// The value of the state in which each token was chosen, computed by a model with a value head.
    pub(super) fn values(&self, ctx: &Context, weights: &Weights, samples: &[Sample]) -> anyhow::Result<Vec<Vec<f32>>> {
        let mut pass = self.pass(ctx, weights, samples)?;
        net::score_forward(ctx, weights, &pass.tensors, &mut pass.tape)?;
        let (all, mut first) = (pass.tape.scores().to_vec_f32(), 0);
        let own = |(sample, width): (&Sample, &usize)| {
            let values = all[first..first + sample.completion.len()].to_vec();
            first += width;
            values
        };
        Ok(samples.iter().zip(&pass.widths).map(own).collect())
    }

    /// Takes an optimizer step; returns its loss and gradient norm.
    pub(super) fn update(
        &mut self,
        ctx: &Context,
        weights: &mut Weights,
        samples: &[Sample],
        learning_rate: f64,
    ) -> anyhow::Result<(f64, f64)> {
        let mut pass = self.pass(ctx, weights, samples)?;
        let loss = if self.objective.is_of_scores() {
            self.score_gradient(ctx, weights, samples, &mut pass)?
        } else {
            self.head_gradient(ctx, weights, samples, &mut pass)?
        };
        net::backward(ctx, &*weights, &pass.rope, &pass.tensors, &mut pass.tape, &mut self.grads)?;
        self.grads.finish(ctx)?;
        let norm = self.optimizer.measure(ctx, &self.grads)?;
        self.optimizer.step(
            ctx,
            &mut model::NextParams::in_place(&mut weights.params),
            &self.grads.params,
            learning_rate,
        )?;
        weights.publish();
        Ok((loss, norm.norm))
    }

    fn pass(&self, ctx: &Context, weights: &Weights, samples: &[Sample]) -> anyhow::Result<Pass> {
        let padded = |s: &Sample| {
            let width = self.width.unwrap_or(s.completion.len());
            s.completion.iter().copied().chain(std::iter::repeat(0)).take(width).collect()
        };
        let padded: Vec<Vec<u32>> = samples.iter().map(padded).collect();
        let branches: Vec<[&[u32]; 1]> = padded.iter().map(|ids| [ids.as_slice()]).collect();
        let segments: Vec<_> = samples
            .iter()
            .zip(&branches)
            .map(|(sample, branches)| GroupSegment { prefix: &sample.prompt.ids, branches: branches.as_slice() })
            .collect();
        let batch = Batch::new(&segments, false);
        let tensors = BatchTensors::new(&self.memory, &batch);
        let lengths = samples.iter().zip(&padded).map(|(s, ids)| s.prompt.ids.len() + ids.len());
        let positions = lengths.max().context("an update must have at least one sample")?;
        let rope = Rope::new(&self.memory, &weights.config, positions);
        let capacity: Capacity = batch.capacity();
        let mut tape = Tape::new(&self.memory, &weights.config, capacity, false);
        net::forward(ctx, weights, &rope, &tensors, &mut tape)?;
        let chosen = Tensor::from_u32(&self.memory, &[batch.score_rows.len()], &batch.score_rows);
        Ok(Pass { batch, tensors, rope, tape, chosen, widths: padded.iter().map(Vec::len).collect() })
    }

    /// The loss of a model with a value head, and the gradient down to the last layer's output.
    fn score_gradient(
        &mut self,
        ctx: &Context,
        weights: &Weights,
        samples: &[Sample],
        pass: &mut Pass,
    ) -> anyhow::Result<f64> {
        net::score_forward(ctx, weights, &pass.tensors, &mut pass.tape)?;
        let scores = pass.tape.scores().to_vec_f32();
        let (mut d_scores, mut first) = (vec![0.0; scores.len()], 0);
        let masks: Vec<Vec<bool>> = samples.iter().map(|s| vec![true; s.completion.len()]).collect();
        let (normalizer, mut sums) = (Normalizer::of(&masks), LossSums::default());
        for ((sample, mask), width) in samples.iter().zip(&masks).zip(&pass.widths) {
            let tokens = first..first + sample.completion.len();
            let (logps, d_logps) = (&scores[tokens.clone()], &mut d_scores[tokens]);
            let (entropies, d_entropies) = (vec![0.0; mask.len()], &mut [] as &mut [f32]);
            let source = Source::Sample(sample);
            let scored = Scored { source, mask, logps, entropies: &entropies, d_logps, d_entropies };
            self.objective.evaluate(&normalizer, &mut [scored], &mut sums);
            first += width;
        }
        let d_scores = Tensor::from_f32(&self.memory, &[d_scores.len()], &d_scores);
        net::score_backward(ctx, weights, &pass.tensors, d_scores.view(), &mut pass.tape, &mut self.grads)?;
        Ok(sums.loss)
    }

    /// The loss of a language model, and the gradient down to the last layer's output.
    fn head_gradient(
        &mut self,
        ctx: &Context,
        weights: &Weights,
        samples: &[Sample],
        pass: &mut Pass,
    ) -> anyhow::Result<f64> {
        let logits = Logits::of(ctx, &self.memory, weights, pass)?;
        let vocabulary = weights.config.vocab_size;
        let mut d_logits = logits.softmax.to_vec_f32();
        let loss = self.loss(samples, pass, &mut d_logits, vocabulary);
        let (r, h, n) = (pass.chosen.shape()[0], weights.config.hidden_size, pass.batch.ids.len());
        let d_logits = Tensor::from_f32(&self.memory, &[r, vocabulary], &d_logits);
        let mut d_hidden = Tensor::zeros(&self.memory, &[r, h], DType::F32);
        let back = linear::BackwardInput {
            d_y: d_logits.view(),
            w: weights.head(),
            d_x: d_hidden.view_mut(),
            accumulate: false,
        };
        linear::backward_input(ctx, back)?;
        let d_w = linear::BackwardWeight {
            x: logits.hidden.view(),
            d_y: d_logits.view(),
            d_w: self.grads.head_mut().expect("every parameter is trained"),
            d_bias: None,
            segments: None,
        };
        linear::backward_weight(ctx, d_w)?;
        let mut d_x = pass.tape.d_hidden_mut();
        d_x.fill(0.0);
        rows::scatter_add(
            ctx,
            rows::ScatterAdd { d_out: d_hidden.view(), rows: pass.chosen.view(), d_x: d_x.reshape(&[n, h]) },
        )?;
        Ok(loss)
    }

    /// Computes the loss. Overwrites the softmax p in `d_logits` with the gradient of the loss, which is 0 for padding.
    /// For the loss J, the entropy H and a vocabulary index v, the gradient is:
    ///
    /// (1[v = token] − p_v) ∂J/∂log p − p_v (log p_v + H) ∂J/∂H
    #[allow(clippy::disallowed_methods)] // reference code; no result depends on its bits
    fn loss(&self, samples: &[Sample], pass: &Pass, d_logits: &mut [f32], vocabulary: usize) -> f64 {
        let masks: Vec<Vec<bool>> = samples.iter().map(|s| vec![true; s.completion.len()]).collect();
        let normalizer = Normalizer::of(&masks);
        let with_entropy = self.objective.has_entropy_grad(&normalizer);
        let mut sums = LossSums::default();
        let mut first = 0;
        for ((sample, mask), &width) in samples.iter().zip(&masks).zip(&pass.widths) {
            let row = |t: usize| (first + t) * vocabulary;
            let target = |t: usize| pass.batch.targets[first + t] as usize;
            let logps: Vec<f32> = (0..mask.len()).map(|t| d_logits[row(t) + target(t)].ln()).collect();
            let entropy = |t: usize| {
                if with_entropy {
                    d_logits[row(t)..row(t) + vocabulary].iter().map(|&p| surprise(p)).sum()
                } else {
                    0.0
                }
            };
            let entropies: Vec<f32> = (0..mask.len()).map(entropy).collect();
            let (mut d_logps, mut d_entropies) = (vec![0.0; mask.len()], vec![0.0; mask.len()]);
            let scored = Scored {
                source: Source::Sample(sample),
                mask,
                logps: &logps,
                entropies: &entropies,
                d_logps: &mut d_logps,
                d_entropies: &mut d_entropies,
            };
            self.objective.evaluate(&normalizer, &mut [scored], &mut sums);
            for t in 0..width {
                let cells = &mut d_logits[row(t)..row(t) + vocabulary];
                let Some(&d) = d_logps.get(t) else {
                    cells.fill(0.0);
                    continue;
                };
                if with_entropy {
                    let (h, d_h) = (entropies[t], d_entropies[t]);
                    for p in cells.iter_mut() {
                        *p = *p * -d + d_h * (surprise(*p) - *p * h);
                    }
                } else {
                    for p in cells.iter_mut() {
                        *p *= -d;
                    }
                }
                cells[target(t)] += d;
            }
            first += width;
        }
        sums.loss
    }
}

/// The entropy term −p log p; 0 for p = 0.
#[allow(clippy::disallowed_methods)] // reference code; no result depends on its bits
fn surprise(p: f32) -> f32 {
    if p > 0.0 { -p * p.ln() } else { 0.0 }
}
