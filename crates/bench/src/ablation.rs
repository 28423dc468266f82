//! `lockstep bench ablation`: times the same work with and without each of these optimizations: fused sampling, fused
//! masked softmax, one transfer per batch, a persistent engine, prefix sharing, packing, the stable form of the KL
//! estimator.
//!
//! Both variants use the engine's own operations, and their results must agree within a tolerance; the last column has
//! the largest difference. On a device with its own memory, the table also counts kernel launches, copies and waits.

use super::levels::naive::whole_softmax;
use super::report::column;
use super::{Machine, Report, Subject, Workload, median, repeat};
use anyhow::ensure;
use kernels::ops::{residual, sample, softmax};
use kernels::rng::Stream;
use kernels::{Context, Copies, DType, Device, Tensor};
use model::{PromptCompletion, Scorer, Weights};
use serde_json::{Value, json};
use train::KlEstimator;

/// Number of rows (tokens) of a decode step.
const ROWS: usize = 16;
/// The maximum number of keys that a row of the softmax attends to.
const KEYS: usize = 128;
/// Number of integer inputs per row of a decode step.
const COLUMNS: usize = 5;
/// The score of a masked key.
const UNSEEN: f32 = -1e30;
/// The random stream of the inputs.
const STREAM: u64 = 0x61_626c_6174;

/// One variant in a comparison: its time and its results.
struct Side {
    seconds: f64,
    asked: Copies,
    results: Vec<f32>,
}

/// Calls `work` once without timing it, for the results, and then times further calls.
fn side(ctx: &Context, mut work: impl FnMut() -> anyhow::Result<Vec<f32>>) -> anyhow::Result<Side> {
    let results = work()?;
    let before = ctx.memory().copies();
    work()?;
    let asked = ctx.memory().copies() - before;
    let (least, seconds) = if ctx.memory().device() == Device::CudaEmulated { (1, 0.0) } else { (3, 0.3) };
    let times = repeat(least, seconds, || work().map(drop))?;
    Ok(Side { seconds: median(&times), asked, results })
}

/// Runs all comparisons.
pub fn run(ctx: &Context, subject: Subject) -> anyhow::Result<Report> {
    let columns = [
        column("optimization", "optimization", 0),
        column("without", "without it", 0),
        column("with_ms", "with ms", 3),
        column("without_ms", "without ms", 3),
        column("speedup", "×", 2),
        column("asked_with", "device calls with", 0),
        column("asked_without", "device calls without", 0),
        column("difference", "largest difference", 9),
    ];
    let mut report = Report::new("ablation", Machine::measure(ctx)?.with_dtype(subject.dtype.dtype()), &columns);
    let weights = subject.weights(ctx)?;
    let mut add = |names: [&str; 2], [with, without]: [Side; 2], most: f64| -> anyhow::Result<()> {
        ensure!(
            with.results.len() == without.results.len(),
            "{}: the results with and without it differ in length",
            names[0]
        );
        let pairs = with.results.iter().zip(&without.results);
        // NaN is the largest.
        let difference = pairs.map(|(a, b)| f64::from((a - b).abs())).max_by(f64::total_cmp).unwrap_or_default();
        ensure!(
            difference <= most,
            "{}: the results with and without it differ by {difference}, more than the tolerance {most}",
            names[0]
        );
        report.row([
            json!(names[0]),
            json!(names[1]),
            json!(1e3 * with.seconds),
            json!(1e3 * without.seconds),
            json!(without.seconds / with.seconds),
            asked(with.asked),
            asked(without.asked),
            json!(difference),
        ]);
        Ok(())
    };
    let rounding = if subject.dtype.dtype() == DType::F32 { 1e-4 } else { 3e-2 };
    add(["fused sampling", "logits and softmax stored, sampled on the host"], sampling(ctx, &weights)?, rounding)?;
    add(["fused masked softmax", "mask added in a separate pass"], masked_softmax(ctx)?, 1e-6)?;
    add(["one transfer per batch", "one transfer per number"], transfers(ctx)?, 0.0)?;
    let [kept, shared] = rollouts(ctx, &weights)?;
    add(["KV cache reused", "allocated for each rollout"], kept, 0.0)?;
    add(["prompt shared by its completions", "prefilled for each completion"], shared, 0.0)?;
    add(["packing", "padded to the longest completion"], packing(ctx, &weights)?, 0.0)?;
    let (kl_sides, errors) = stable_kl()?;
    add(["stable KL (expm1)", "ratio of probabilities in f32"], kl_sides, f64::MAX)?;
    report.note(format!(
        "{}; device calls: kernel launches + copies to the device + copies to the host, and waits. The largest \
         relative error of the KL estimator is {:.1e} in the stable form and {:.1e} without it",
        subject.name(),
        errors[0],
        errors[1]
    ));
    Ok(report)
}

fn asked(of: Copies) -> Value {
    if of == Copies::default() {
        Value::Null
    } else {
        json!(format!("{} + {} + {}, {}", of.launches, of.to_device, of.to_host, of.waits))
    }
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut stream = Stream::new(seed, STREAM);
    (0..count).map(|_| (stream.next_f64() * 2.0 - 1.0) as f32).collect()
}

/// Computes the most likely token of each row and its log-probability, in one fused operation and from stored logits.
fn sampling(ctx: &Context, weights: &Weights) -> anyhow::Result<[Side; 2]> {
    let (memory, h, v) = (ctx.memory(), weights.config.hidden_size, weights.config.vocab_size);
    let mut hidden = Tensor::zeros(memory, &[ROWS, h], weights.config.compute);
    hidden.view_mut().copy_from_f32(&numbers(ROWS * h, 1));
    let row = |r: usize| sample::RowParams { key: 1, counter: [r as u32, 0, 0, 0], ..sample::RowParams::GREEDY };
    let rows: Vec<_> = (0..ROWS).map(row).collect();
    let mut ids = Tensor::from_u32(memory, &[ROWS], &[0; ROWS]);
    let mut logps = Tensor::zeros(memory, &[ROWS], DType::F32);
    let with = side(ctx, || {
        let args = sample::Forward {
            hidden: hidden.view(),
            weight: weights.head(),
            rows: &rows,
            packed: None,
            ids: ids.view_mut(),
            logps: logps.view_mut(),
            truncated_logps: None,
            lse: None,
            entropies: None,
        };
        sample::forward(ctx, args)?;
        let ids = ids.view().to_vec_u32();
        Ok(ids.into_iter().map(|id| id as f32).chain(logps.to_vec_f32()).collect())
    })?;
    let [mut logits, mut softmax] = [(); 2].map(|()| Tensor::zeros(memory, &[ROWS, v], DType::F32));
    let first = Tensor::from_u32(memory, &[ROWS], &[0; ROWS]);
    let end = Tensor::from_u32(memory, &[ROWS], &[v as u32; ROWS]);
    let without = side(ctx, || {
        whole_softmax(ctx, (hidden.view(), weights), [&first, &end], [&mut logits, &mut softmax])?;
        let probabilities = softmax.to_vec_f32();
        let likeliest = |row: &[f32]| {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            (row.iter().position(|&p| p == most).unwrap_or(0) as f32, ln(most))
        };
        let (ids, logps): (Vec<f32>, Vec<f32>) = probabilities.chunks(v).map(likeliest).unzip();
        Ok(ids.into_iter().chain(logps).collect())
    })?;
    Ok([with, without])
}

#[allow(clippy::disallowed_methods)] // reference code; no result depends on its bits
fn ln(x: f32) -> f32 {
    x.ln()
}

/// Computes the softmax of causally masked scores, in one fused operation and in separate operations.
fn masked_softmax(ctx: &Context) -> anyhow::Result<[Side; 2]> {
    let (memory, n) = (ctx.memory(), KEYS);
    let x = Tensor::from_f32(memory, &[n, n], &numbers(n * n, 2));
    let ends: Vec<u32> = (1..=n as u32).collect();
    let [first, end, all] = [vec![0; n], ends, vec![n as u32; n]].map(|list| Tensor::from_u32(memory, &[n], &list));
    let mask: Vec<f32> = (0..n * n).map(|i| if i % n > i / n { UNSEEN } else { 0.0 }).collect();
    let mask = Tensor::from_f32(memory, &[n, n], &mask);
    let [mut y, mut sum, mut masked] = [(); 3].map(|()| Tensor::zeros(memory, &[n, n], DType::F32));
    let scale = 0.125;
    let with = side(ctx, || {
        let args = softmax::Forward { x: x.view(), scale, first: first.view(), end: end.view(), y: y.view_mut() };
        softmax::forward(ctx, args)?;
        Ok(y.to_vec_f32())
    })?;
    let without = side(ctx, || {
        let args = residual::Forward {
            x: x.view(),
            delta: Some(mask.view()),
            sum: Some(sum.view_mut()),
            y: masked.view_mut(),
        };
        residual::forward(ctx, args)?;
        let args = softmax::Forward { x: masked.view(), scale, first: first.view(), end: all.view(), y: y.view_mut() };
        softmax::forward(ctx, args)?;
        Ok(y.to_vec_f32())
    })?;
    Ok([with, without])
}

/// Copies the inputs of a decode step to the device, in one transfer and in one transfer per number.
fn transfers(ctx: &Context) -> anyhow::Result<[Side; 2]> {
    let inputs: Vec<u32> = (0..(COLUMNS * ROWS) as u32).collect();
    let mut at = Tensor::from_u32(ctx.memory(), &[COLUMNS * ROWS], &inputs);
    let read = |at: &Tensor| at.view().to_vec_u32().into_iter().map(|x| x as f32).collect();
    let with = side(ctx, || {
        at.view_mut().copy_from_u32(&inputs);
        Ok(read(&at))
    })?;
    let without = side(ctx, || {
        for (i, x) in inputs.iter().enumerate() {
            at.rows_mut(i..i + 1).copy_from_u32(&[*x]);
        }
        Ok(read(&at))
    })?;
    Ok([with, without])
}

/// Times generation with one engine against a new engine for each call, and with shared against unshared prompts.
fn rollouts(ctx: &Context, weights: &Weights) -> anyhow::Result<[[Side; 2]; 2]> {
    let workload = Workload { prompts: 2, prompt_tokens: 32, generations: 4, max_num_seqs: 8, ..Workload::grpo(8, 4) };
    let prompts = workload.random_prompts(&weights.config, 0);
    let generate = |engine: &mut rollout::Engine| -> anyhow::Result<Vec<f32>> {
        let groups = engine.generate(weights, workload.requests(&prompts, 0))?;
        let completions = groups.iter().flat_map(|group| &group.completions);
        Ok(completions.flat_map(|c| c.logps().iter().copied()).collect())
    };
    let mut shared = workload.engine(ctx, &weights.config)?;
    let apart = Workload { prefix_sharing: false, ..workload.clone() };
    let mut unshared = apart.engine(ctx, &weights.config)?;
    let kept = side(ctx, || generate(&mut shared))?;
    let anew = side(ctx, || generate(&mut workload.engine(ctx, &weights.config)?))?;
    let again = side(ctx, || generate(&mut shared))?;
    let each = side(ctx, || generate(&mut unshared))?;
    Ok([[kept, anew], [again, each]])
}

/// Computes log-probabilities of completions, packed and padded. Their lengths are 25 % to 100 % of the longest.
fn packing(ctx: &Context, weights: &Weights) -> anyhow::Result<[Side; 2]> {
    const LONGEST: usize = 64;
    let mut stream = Stream::new(3, STREAM);
    let mut ids = |count: usize| -> Vec<u32> {
        (0..count).map(|_| (stream.next_f64() * weights.config.vocab_size as f64) as u32).collect()
    };
    let lengths = [LONGEST, 16, 24, 40, 16, 32, 20, 48];
    let rows: Vec<(Vec<u32>, Vec<u32>)> = lengths.iter().map(|&n| (ids(8), ids(n))).collect();
    let padded = |completion: &Vec<u32>| -> Vec<u32> {
        completion.iter().copied().chain(std::iter::repeat(0)).take(LONGEST).collect()
    };
    let wide: Vec<Vec<u32>> = rows.iter().map(|(_, completion)| padded(completion)).collect();
    let mut scorer = Scorer::new(ctx.memory(), 4096, true);
    let mut score = |completions: &[&[u32]]| -> anyhow::Result<Vec<f32>> {
        let pairs = rows.iter().zip(completions);
        let pairs: Vec<_> = pairs.map(|((prompt, _), completion)| PromptCompletion { prompt, completion }).collect();
        let scores = scorer.score(ctx, weights, &pairs, 1.0)?;
        // Only real tokens are compared, not padding.
        Ok(scores.iter().zip(lengths).flat_map(|(scores, n)| scores.logps[..n].to_vec()).collect())
    };
    let packed: Vec<&[u32]> = rows.iter().map(|(_, completion)| completion.as_slice()).collect();
    let wide: Vec<&[u32]> = wide.iter().map(Vec::as_slice).collect();
    let with = side(ctx, || score(&packed))?;
    let without = side(ctx, || score(&wide))?;
    Ok([with, without])
}

/// Computes the KL estimator for pairs of close log-probabilities, in the stable form and directly from probabilities.
/// Also returns the largest relative error of each form.
fn stable_kl() -> anyhow::Result<([Side; 2], [f64; 2])> {
    let host = Context::meta();
    let differences: Vec<f64> = (1..=4096).map(|i| f64::from(i) * 1e-6).collect();
    let logp = -2.0;
    let with =
        side(&host, || Ok(differences.iter().map(|d| KlEstimator::K3.estimate(logp, logp + d) as f32).collect()))?;
    let without = side(&host, || Ok(differences.iter().map(|&d| naive_kl(logp as f32, (logp + d) as f32)).collect()))?;
    // The first four terms of the series of e^d − d − 1, which suffice for small d.
    let exact = |d: f64| d * d * (0.5 + d * (1.0 / 6.0 + d * (1.0 / 24.0 + d / 120.0)));
    let error = |side: &Side| {
        let errors = side.results.iter().zip(&differences).map(|(k, &d)| (f64::from(*k) / exact(d) - 1.0).abs());
        errors.max_by(f64::total_cmp).unwrap_or_default()
    };
    let errors = [error(&with), error(&without)];
    ensure!(errors[0] < 1e-5, "the relative error of the stable KL estimator must be below 1e-5, got {}", errors[0]);
    Ok(([with, without], errors))
}

/// The k3 KL estimator, computed from probabilities instead of log-probabilities.
#[allow(clippy::disallowed_methods)] // reference code; no result depends on its bits
fn naive_kl(logp: f32, ref_logp: f32) -> f32 {
    let ratio = ref_logp.exp() / logp.exp();
    ratio - 1.0 - ratio.ln()
}
