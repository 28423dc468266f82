//! The same GRPO step at four levels, each a real configuration, each measured:
//!
//! | level | generation | update |
//! |---|---|---|
//! | baseline | no KV cache: every token computes its whole sequence again; one thread, portable code | padded, the prompt computed for every completion, logits in memory |
//! | basic | KV cache, a static batch that runs to its longest completion, every prompt prefilled for every completion; SIMD, all threads | as above, with SIMD and all threads |
//! | advanced | continuous batching; numbers in `--dtype` | packed, log-probabilities fused with the head; numbers in `--dtype` |
//! | optimal | the prompt's pages shared by its completions | the prompt computed once for its completions |
//!
//! Baseline and basic compute in f32. All levels update on the samples of the optimal one, from the same weights: their
//! losses and gradient norms must be equal within the rounding of the dtype.

use super::report::column;
use super::workload::timed;
use super::{Machine, Report, Subject, Workload};
use anyhow::ensure;
use kernels::ops::{linear, rows, softmax};
use kernels::rng::Stream;
use kernels::{Context, DType, Isa, Memory, Tensor, View};
use lockstep::config::ComputeDType;
use model::net::{self, Rope, Tape};
use model::{Batch, BatchTensors, Capacity, Grads, GroupSegment, Prompt, Weights};
use rollout::{Request, RolloutGroup, SamplingParams};
use serde_json::json;
use std::sync::Arc;
use train::loss::{LossSums, Normalizer};
use train::{Objective, Optimizer, OptimizerConfig, Sample, Scored, Source};

/// By how much losses and gradient norms of the levels may differ in f32: relatively, or absolutely near 0.
const TOLERANCE: (f64, f64) = (1e-3, 1e-6);
/// And in bf16, whose numbers have eight bits. Terms of the loss are about 1 and their sum is near 0: it differs as
/// they do.
const TOLERANCE_BF16: (f64, f64) = (3e-2, 3e-3);
/// The draws of completion lengths and of the baseline's tokens.
const STREAM: u64 = 0x6c65_7665_6c73;

/// One level's figures.
struct Level {
    name: &'static str,
    rollout_s: f64,
    update_s: f64,
    loss: f64,
    grad_norm: f64,
}

/// Runs all four on a step that the slowest can do in minutes.
pub fn run(ctx: &Context, shape: Subject) -> anyhow::Result<Report> {
    let workload = Workload { prompts: 2, prompt_tokens: 32, ..Workload::grpo(8, 16) };
    let workload = Workload { generations: 4, max_num_seqs: 4, ..workload };
    let columns = [
        column("level", "level", 0),
        column("rollout_s", "rollout s", 3),
        column("update_s", "update s", 3),
        column("step_s", "step s", 3),
        column("speedup", "× baseline", 1),
        column("loss", "loss", 6),
        column("grad_norm", "gradient norm", 5),
    ];
    let mut report = Report::new("levels", Machine::measure(ctx)?, &columns);
    let (config, plain) = (shape.config()?, Subject { dtype: ComputeDType::F32, ..shape });
    let prompts = workload.random_prompts(&config, 0);
    let lengths = lengths(&workload);

    let optimal = |workload: &Workload| -> anyhow::Result<(Vec<RolloutGroup>, f64)> {
        let weights = shape.weights(ctx)?;
        let mut engine = workload.engine(ctx, &config)?;
        let (groups, seconds, _) = timed(|| Ok(engine.generate(&weights, requests(workload, &prompts, &lengths))?))?;
        Ok((groups, seconds))
    };
    let (groups, optimal_rollout) = optimal(&workload)?;
    let apart = Workload { prefix_sharing: false, ..workload.clone() };
    let (same, advanced_rollout) = optimal(&apart)?;
    ensure!(ids(&same).eq(ids(&groups)), "sharing changed a completion");
    // Every completion of a static batch runs to the longest; what is beyond its own end is thrown away.
    let longest = vec![*lengths.iter().max().unwrap_or(&1); lengths.len()];
    let (cut, basic_rollout) = {
        let weights = plain.weights(ctx)?;
        let mut engine = apart.engine(ctx, &weights.config)?;
        let (out, seconds, _) = timed(|| {
            let mut out = Vec::new();
            // As many as have a seat, until the last of them has ended; then the next ones.
            for request in requests(&apart, &prompts, &longest) {
                out.extend(engine.generate(&weights, vec![request])?);
            }
            Ok(out)
        })?;
        (out, seconds)
    };
    // Another dtype may draw other tokens, but no other number of them.
    let drew_these = ids(&cut).zip(ids(&groups)).all(|(a, b)| a.starts_with(b));
    ensure!(shape.dtype != plain.dtype || drew_these, "the static batch drew others");
    let scalar = Context::cpu(Isa::PORTABLE, 1);
    let ((), baseline_rollout, _) =
        timed(|| without_cache(&scalar, &plain.weights(&scalar)?, &prompts, &workload, longest[0]))?;

    let samples = workload.samples(&groups, 0);
    let mut levels = Vec::new();
    for (name, ctx, rollout_s) in [("baseline", &scalar, baseline_rollout), ("basic", ctx, basic_rollout)] {
        let mut weights = plain.weights(ctx)?;
        let mut naive = Naive::new(ctx, &weights);
        let ((loss, grad_norm), update_s, _) = timed(|| naive.update(ctx, &mut weights, &samples, longest[0]))?;
        levels.push(Level { name, rollout_s, update_s, loss, grad_norm });
    }
    for (name, workload, rollout_s) in [("advanced", &apart, advanced_rollout), ("optimal", &workload, optimal_rollout)]
    {
        let mut weights = shape.weights(ctx)?;
        let mut trainer = workload.trainer(ctx, &config)?;
        let (metrics, update_s, _) = timed(|| Ok(trainer.update(ctx, &mut weights, &samples, 1e-6)?))?;
        levels.push(Level { name, rollout_s, update_s, loss: metrics.loss, grad_norm: metrics.grad_norm });
    }
    let base = levels[0].rollout_s + levels[0].update_s;
    for level in &levels {
        let step = level.rollout_s + level.update_s;
        report.row([
            json!(level.name),
            json!(level.rollout_s),
            json!(level.update_s),
            json!(step),
            json!(base / step),
            json!(level.loss),
            json!(level.grad_norm),
        ]);
        let last = &levels[3];
        let (relative, absolute) = if shape.dtype == plain.dtype { TOLERANCE } else { TOLERANCE_BF16 };
        let differ = |a: f64, b: f64| (a - b).abs() > (relative * b.abs()).max(absolute);
        ensure!(
            !differ(level.loss, last.loss) && !differ(level.grad_norm, last.grad_norm),
            "{}: loss {} and gradient norm {} are not those of the optimal level, {} and {}",
            level.name,
            level.loss,
            level.grad_norm,
            last.loss,
            last.grad_norm
        );
    }
    report.note(format!(
        "{} (baseline and basic: f32), {} prompts of {} tokens × {} completions of up to {} tokens, in {} seats; \
         buffers are taken within the times",
        shape.name(),
        workload.prompts,
        workload.prompt_tokens,
        workload.generations,
        workload.new_tokens,
        workload.max_num_seqs
    ));
    Ok(report)
}

/// Tokens of the completions of each prompt: between a quarter of the limit and all of it; one has all.
fn lengths(workload: &Workload) -> Vec<usize> {
    let mut stream = Stream::new(0, STREAM);
    let (most, least) = (workload.new_tokens, workload.new_tokens.div_ceil(4));
    let drawn = |_| least + (stream.next_f64() * (most - least + 1) as f64) as usize;
    let mut lengths: Vec<usize> = (0..workload.prompts).map(drawn).collect();
    lengths[0] = most;
    lengths
}

fn ids(groups: &[RolloutGroup]) -> impl Iterator<Item = &Vec<u32>> {
    groups.iter().flat_map(|group| &group.completions).map(|c| &c.ids)
}

fn requests(workload: &Workload, prompts: &[Arc<Prompt>], lengths: &[usize]) -> Vec<Request> {
    let mut requests = workload.requests(prompts, 0);
    for (request, &max_new_tokens) in requests.iter_mut().zip(lengths) {
        request.sampling = Arc::new(SamplingParams { max_new_tokens, ..(*request.sampling).clone() });
    }
    requests
}

/// Generation that computes every sequence from its first token for every new one, with all logits in memory.
fn without_cache(
    ctx: &Context,
    weights: &Weights,
    prompts: &[Arc<Prompt>],
    workload: &Workload,
    tokens: usize,
) -> anyhow::Result<()> {
    let mut stream = Stream::new(1, STREAM);
    let each = |p: &Arc<Prompt>| vec![p.ids.clone(); workload.generations];
    let mut sequences: Vec<Vec<u32>> = prompts.iter().flat_map(each).collect();
    let (memory, vocabulary) = (ctx.memory(), weights.config.vocab_size);
    let rope = Rope::new(memory, &weights.config, workload.prompt_tokens + tokens);
    for _ in 0..tokens {
        let segments: Vec<_> = sequences.iter().map(|ids| GroupSegment { prefix: ids, branches: &[] }).collect();
        let batch = Batch::new(&segments, false);
        let mut tape = Tape::forward_only(memory, &weights.config, batch.capacity());
        net::forward(ctx, weights, &rope, &BatchTensors::new(memory, &batch), &mut tape)?;
        let last: Vec<u32> = batch.groups[1..].iter().map(|end| end - 1).collect();
        let probabilities = Logits::of(ctx, memory, weights, &tape, &Tensor::from_u32(memory, &[last.len()], &last))?;
        let probabilities = probabilities.softmax.to_vec_f32();
        for (ids, row) in sequences.iter_mut().zip(probabilities.chunks(vocabulary)) {
            let (mut left, draw) = (0.0, stream.next_f64());
            let drawn = row.iter().position(|&p| {
                left += f64::from(p);
                left > draw
            });
            ids.push(drawn.unwrap_or(vocabulary - 1) as u32);
        }
    }
    Ok(())
}

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
pub(super) fn whole_softmax(
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

/// The update as a first implementation writes it.
struct Naive {
    memory: Memory,
    grads: Grads,
    optimizer: Optimizer,
    objective: Objective,
}

impl Naive {
    fn new(ctx: &Context, weights: &Weights) -> Naive {
        Naive {
            memory: ctx.memory().clone(),
            grads: Grads::zeros(ctx.memory(), &weights.config),
            optimizer: Optimizer::new(ctx.memory(), &weights.config, None, OptimizerConfig::default()),
            objective: Objective::Policy(train::LossConfig::default()),
        }
    }

    /// Loss and gradient norm; every sequence padded to `width` completion tokens, its prompt its own.
    fn update(
        &mut self,
        ctx: &Context,
        weights: &mut Weights,
        samples: &[Sample],
        width: usize,
    ) -> anyhow::Result<(f64, f64)> {
        let padded: Vec<Vec<u32>> = samples
            .iter()
            .map(|s| s.completion.iter().copied().chain(std::iter::repeat(0)).take(width).collect())
            .collect();
        let branches: Vec<[&[u32]; 1]> = padded.iter().map(|ids| [ids.as_slice()]).collect();
        let segments: Vec<_> = samples
            .iter()
            .zip(&branches)
            .map(|(sample, branches)| GroupSegment { prefix: &sample.prompt.ids, branches: branches.as_slice() })
            .collect();
        let batch = Batch::new(&segments, false);
        let tensors = BatchTensors::new(&self.memory, &batch);
        let positions = samples.iter().map(|s| s.prompt.ids.len() + width).max().unwrap_or(1);
        let rope = Rope::new(&self.memory, &weights.config, positions);
        let capacity: Capacity = batch.capacity();
        let mut tape = Tape::new(&self.memory, &weights.config, capacity, false);
        net::forward(ctx, &*weights, &rope, &tensors, &mut tape)?;
        let chosen = Tensor::from_u32(&self.memory, &[batch.score_rows.len()], &batch.score_rows);
        let logits = Logits::of(ctx, &self.memory, weights, &tape, &chosen)?;

        let vocabulary = weights.config.vocab_size;
        let mut d_logits = logits.softmax.to_vec_f32();
        let loss = self.loss(samples, &batch, &mut d_logits, width, vocabulary);
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
        self.optimizer.step(ctx, &mut model::NextParams::in_place(&mut weights.params), &self.grads, 1e-6)?;
        weights.publish();
        Ok((loss, norm.norm))
    }

    /// The loss; the softmax in `d_logits` becomes its gradient: (1[v = token] − p) ∂J/∂log p, with padding at 0.
    #[allow(clippy::disallowed_methods)] // of a yardstick, whose bits nothing depends on
    fn loss(&self, samples: &[Sample], batch: &Batch, d_logits: &mut [f32], width: usize, vocabulary: usize) -> f64 {
        let masks: Vec<Vec<bool>> = samples.iter().map(|s| vec![true; s.completion.len()]).collect();
        let normalizer = Normalizer::of(&masks);
        let mut sums = LossSums::default();
        for (s, sample) in samples.iter().enumerate() {
            let (first, tokens) = (s * width, sample.completion.len());
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
        }
        sums.loss
    }
}
