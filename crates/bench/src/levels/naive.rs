//! The update as a first implementation writes it: whole logits and their softmax in memory, every sequence with a
//! prompt of its own.

use anyhow::Context as _;
use kernels::ops::{linear, rows, softmax};
use kernels::{Context, DType, Memory, Tensor, View};
use model::net::{self, Rope, Tape};
use model::{Batch, BatchTensors, Capacity, Grads, GroupSegment, Weights};
use train::loss::{LossSums, Normalizer};
use train::{Objective, Optimizer, OptimizerConfig, Sample, Scored, Source};

/// Logits `[R, V]` in memory, and their softmax.
struct Logits {
    hidden: Tensor,
    softmax: Tensor,
}

impl Logits {
    fn of(ctx: &Context, memory: &Memory, weights: &Weights, tape: &Tape, chosen: &Tensor) -> anyhow::Result<Logits> {
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

/// Whole logits `[R, V]` of the head and their softmax, from `first` to `end` (`[R]` each): what fused operations never
/// write.
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

/// Computes it.
pub(super) struct Naive {
    memory: Memory,
    grads: Grads,
    optimizer: Optimizer,
    objective: Objective,
}

impl Naive {
    pub(super) fn new(ctx: &Context, weights: &Weights) -> Naive {
        Naive {
            memory: ctx.memory().clone(),
            grads: Grads::zeros(ctx.memory(), &weights.config),
            optimizer: Optimizer::new(ctx.memory(), &weights.config, None, OptimizerConfig::default()),
            objective: Objective::Policy(train::LossConfig::default()),
        }
    }

    /// Loss and gradient norm. With `width` every completion is padded to so many tokens.
    pub(super) fn update(
        &mut self,
        ctx: &Context,
        weights: &mut Weights,
        samples: &[Sample],
        width: Option<usize>,
        learning_rate: f64,
    ) -> anyhow::Result<(f64, f64)> {
        let padded = |s: &Sample| {
            let width = width.unwrap_or(s.completion.len());
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
        let positions = lengths.max().context("an update of no samples")?;
        let rope = Rope::new(&self.memory, &weights.config, positions);
        let capacity: Capacity = batch.capacity();
        let mut tape = Tape::new(&self.memory, &weights.config, capacity, false);
        net::forward(ctx, &*weights, &rope, &tensors, &mut tape)?;
        let chosen = Tensor::from_u32(&self.memory, &[batch.score_rows.len()], &batch.score_rows);
        let logits = Logits::of(ctx, &self.memory, weights, &tape, &chosen)?;

        let vocabulary = weights.config.vocab_size;
        let mut d_logits = logits.softmax.to_vec_f32();
        let loss = self.loss(samples, &batch, &mut d_logits, &padded, vocabulary);
        let (r, h, n) = (chosen.shape()[0], weights.config.hidden_size, batch.ids.len());
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
        let mut d_x = tape.d_hidden_mut();
        d_x.fill(0.0);
        rows::scatter_add(
            ctx,
            rows::ScatterAdd { d_out: d_hidden.view(), rows: chosen.view(), d_x: d_x.reshape(&[n, h]) },
        )?;
        net::backward(ctx, &*weights, &rope, &tensors, &mut tape, &mut self.grads)?;
        self.grads.finish(ctx)?;
        let norm = self.optimizer.measure(ctx, &self.grads)?;
        self.optimizer.step(ctx, &mut model::NextParams::in_place(&mut weights.params), &self.grads, learning_rate)?;
        weights.publish();
        Ok((loss, norm.norm))
    }

    /// The loss; the softmax in `d_logits` becomes its gradient: (1[v = token] − p) ∂J/∂log p, with padding at 0.
    #[allow(clippy::disallowed_methods)] // of a yardstick, whose bits nothing depends on
    fn loss(
        &self,
        samples: &[Sample],
        batch: &Batch,
        d_logits: &mut [f32],
        padded: &[Vec<u32>],
        vocabulary: usize,
    ) -> f64 {
        let masks: Vec<Vec<bool>> = samples.iter().map(|s| vec![true; s.completion.len()]).collect();
        let normalizer = Normalizer::of(&masks);
        let mut sums = LossSums::default();
        let mut first = 0;
        for (s, sample) in samples.iter().enumerate() {
            let (width, tokens) = (padded[s].len(), sample.completion.len());
            let row = |t: usize| (first + t) * vocabulary;
            let logp = |t: usize| d_logits[row(t) + batch.targets[first + t] as usize].ln();
            let logps: Vec<f32> = (0..tokens).map(logp).collect();
            let (entropies, mut d_logps) = (vec![0.0; tokens], vec![0.0; tokens]);
            let (source, mask, d_entropies) = (Source::Sample(sample), masks[s].as_slice(), &mut [] as &mut [f32]);
            let scored =
                Scored { source, mask, logps: &logps, entropies: &entropies, d_logps: &mut d_logps, d_entropies };
            self.objective.evaluate(&normalizer, &mut [scored], &mut sums);
            for t in 0..width {
                let d = d_logps.get(t).copied().unwrap_or(0.0);
                let cells = &mut d_logits[row(t)..row(t) + vocabulary];
                cells.iter_mut().for_each(|p| *p *= -d);
                cells[batch.targets[first + t] as usize] += d;
            }
            first += width;
        }
        sums.loss
    }
}
