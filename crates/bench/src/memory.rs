//! `lockstep bench memory`: the memory of a step by part, as counted by the memory ledger, and the process's resident
//! memory. Also measures the memory that computing log-probabilities needs beyond inputs and outputs, which would
//! reveal stored [tokens, vocabulary] logits.

use super::report::column;
use super::workload::Bench;
use super::{Machine, Report, Subject, Workload};
use kernels::ops::lm_head;
use kernels::{Context, DType, Matrix, Tensor};
use serde_json::json;

/// Number of tokens in the measurement of log-probabilities.
const TOKENS: usize = 4096;

/// Measures one step with a model of size `shape`. Must run in a separate process, since it reads the process's peak
/// memory.
pub fn run(ctx: &Context, shape: Subject) -> anyhow::Result<Report> {
    let machine = Machine::measure(ctx)?;
    let columns = [column("part", "part", 0), column("mib", "MiB", 1)];
    let mut report = Report::new("memory", machine, &columns);
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    // This is measured first, before anything else raises the peak of the process.
    if let Some(bytes) = log_probabilities(ctx, shape)? {
        let vocabulary = shape.config()?.vocab_size;
        report.row([
            json!(format!("log-probabilities of {TOKENS} tokens of {vocabulary}, both ways")),
            json!(mib(bytes as f64)),
        ]);
    }
    let (completions, tokens) = shape.step();
    let mut bench = Bench::new(Workload::grpo(completions, tokens), ctx, shape.weights(ctx)?)?;
    bench.step()?;
    let mut counted = 0.0;
    for (part, usage) in ctx.memory().usage() {
        counted += usage.peak_bytes as f64;
        report.row([json!(part), json!(mib(usage.peak_bytes as f64))]);
    }
    report.row([json!("all of these"), json!(mib(counted))]);
    if let Some(peak) = telemetry::system::peak_rss_bytes() {
        report.row([json!("peak of resident memory"), json!(mib(peak as f64))]);
    }
    report.note(format!(
        "{}, {completions} completions × {tokens} tokens, full fine-tuning. Log-probabilities: what is resident beyond \
         weight, hidden states and their gradients, not part of the sum",
        shape.name()
    ));
    Ok(report)
}

/// The growth of the resident memory in bytes, beyond weight, hidden rows, their gradients and the outputs, while
/// log-probabilities, entropies and their backward pass are computed. `None` if the operating system does not report
/// it.
fn log_probabilities(ctx: &Context, shape: Subject) -> anyhow::Result<Option<u64>> {
    let (config, dtype, memory) = (shape.config()?, shape.dtype.dtype(), ctx.memory());
    let (v, h) = (config.vocab_size, config.hidden_size);
    let mut weight = Matrix::zeros_of(memory, v, h, dtype);
    // Writing the weight makes its pages resident. Small slices are used, since freed memory of large ones would stay
    // resident and hide the memory allocated below.
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
    // The current peak comes from measuring the ceilings. Growth is only visible above that peak, so filler memory is
    // allocated up to it.
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
