//! `lockstep bench memory`: the memory of a step by component, as counted by the memory ledger, and the process's
//! resident memory. The benchmark also measures the memory that computing log-probabilities takes in addition to its
//! inputs and outputs. If [tokens, vocabulary] logits were stored, they would show there.

use super::report::column;
use super::workload::Bench;
use super::{Machine, Report, Subject, Workload};
use kernels::ops::lm_head;
use kernels::{Context, DType, Matrix, Tensor};
use serde_json::json;

/// Number of tokens in the measurement of log-probabilities.
const TOKENS: usize = 4096;

/// Measures one step with a model of size `shape`. The measurement needs its own process, since it reads the peak
/// memory of the process.
pub fn run(ctx: &Context, shape: Subject) -> anyhow::Result<Report> {
    let machine = Machine::measure(ctx)?;
    let columns = [column("part", "part", 0), column("mib", "MiB", 1)];
    let mut report = Report::new("memory", machine, &columns);
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    // Log-probabilities are measured first, before anything else raises the peak memory of the process.
    if let Some(bytes) = log_probabilities(ctx, shape)? {
        let vocabulary = shape.config()?.vocab_size;
        report.row([
            json!(format!("log-probabilities of {TOKENS} tokens, vocabulary {vocabulary}, forward and backward")),
            json!(mib(bytes as f64)),
        ]);
    }
    let (completions, tokens) = shape.step();
    let mut bench = Bench::new(Workload::grpo(completions, tokens), ctx, shape.weights(ctx)?)?;
    bench.step(true)?;
    let mut counted = 0.0;
    for (part, usage) in ctx.memory().usage() {
        counted += usage.peak_bytes as f64;
        report.row([json!(part), json!(mib(usage.peak_bytes as f64))]);
    }
    report.row([json!("sum of these parts"), json!(mib(counted))]);
    if let Some(peak) = telemetry::system::peak_rss_bytes() {
        report.row([json!("peak resident memory"), json!(mib(peak as f64))]);
    }
    report.note(format!(
        "{}, {completions} completions × {tokens} tokens, full fine-tuning. Log-probabilities: resident memory in \
         addition to weight, hidden states and their gradients; not part of the sum",
        shape.name()
    ));
    Ok(report)
}

/// The bytes by which resident memory grows while log-probabilities, entropies and their backward pass are computed.
/// Weight, hidden rows, their gradients and the outputs are not counted. `None` if the operating system does not report
/// resident memory.
fn log_probabilities(ctx: &Context, shape: Subject) -> anyhow::Result<Option<u64>> {
    let (config, dtype, memory) = (shape.config()?, shape.dtype.dtype(), ctx.memory());
    let (v, h) = (config.vocab_size, config.hidden_size);
    let mut weight = Matrix::zeros_of(memory, v, h, dtype);
    // Writing the weight makes its pages resident. It is written in small slices: a large freed buffer would stay
    // resident and hide the memory that is allocated below.
    for first in (0..v).step_by(64) {
        let rows = (v - first).min(64);
        weight.pack_rows(first, &vec![0.01; rows * h]);
    }
    let written = |dims: &[usize], dtype| {
        let mut tensor = Tensor::zeros(memory, dims, dtype);
        tensor.view_mut().fill(0.5);
        tensor
    };
    let hidden = written(&[TOKENS, h], dtype);
    let targets = Tensor::from_u32(memory, &[TOKENS], &vec![0; TOKENS]);
    let [mut logps, mut lse, mut entropies, d_logps] = [(); 4].map(|()| written(&[TOKENS], DType::F32));
    let mut d_hidden = written(&[TOKENS, h], DType::F32);
    let mut d_weight = Matrix::zeros(memory, v, h);
    d_weight.data_mut().view_mut().fill(0.25);
    // Measuring the machine's peaks has raised the peak memory of the process. Growth shows only above that peak, so
    // filler memory is allocated up to it.
    let (Some(peak), Some(now)) = (telemetry::system::peak_rss_bytes(), telemetry::system::rss_bytes()) else {
        return Ok(None);
    };
    let filler = vec![1u8; peak.saturating_sub(now) as usize];
    let before = telemetry::system::rss_bytes();
    let args = lm_head::Forward {
        hidden: hidden.view(),
        weight: &weight,
        targets: targets.view(),
        inv_temperature: 1.0,
        logps: logps.view_mut(),
        lse: lse.view_mut(),
        entropies: Some(entropies.view_mut()),
    };
    lm_head::forward(ctx, args)?;
    let args = lm_head::Backward {
        hidden: hidden.view(),
        weight: &weight,
        targets: targets.view(),
        inv_temperature: 1.0,
        lse: lse.view(),
        d_logps: d_logps.view(),
        d_entropies: None,
        entropies: None,
        d_hidden: d_hidden.view_mut(),
        d_weight: Some(&mut d_weight),
        segments: None,
    };
    lm_head::backward(ctx, args)?;
    std::hint::black_box(&filler);
    let peak = telemetry::system::peak_rss_bytes();
    Ok(peak.zip(before).map(|(peak, before)| peak.saturating_sub(before)))
}
