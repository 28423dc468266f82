//! What a step holds, by part: as the ledger counts it, beside what the process has resident.

use super::report::column;
use super::workload::Bench;
use super::{Machine, Report, Subject, Workload};
use kernels::Context;
use serde_json::json;

/// One step of `shape`; in a process of its own, so that the peak is its own.
pub fn run(ctx: &Context, shape: Subject) -> anyhow::Result<Report> {
    let machine = Machine::measure(ctx);
    let columns = [column("part", "part", 0), column("mib", "MiB", 1)];
    let mut report = Report::new("memory", machine, &columns);
    let (completions, tokens) = shape.step();
    let mut bench = Bench::new(Workload::grpo(completions, tokens), ctx, shape.weights(ctx)?)?;
    bench.step()?;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
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
        "{}, {completions} completions × {tokens} tokens, full fine-tuning; measuring the ceilings took 256 MiB \
         before the step",
        shape.name()
    ));
    Ok(report)
}
