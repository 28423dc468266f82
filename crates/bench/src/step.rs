//! `lockstep bench step`: times a GRPO step and its stages, and compares the step with its roofline: the least time in
//! which the machine could do the step's FLOPs and memory reads.

use super::report::column;
use super::workload::{Bench, StepTimes};
use super::{Machine, Report, Subject, Workload, median};
use kernels::Context;
use lockstep::bad_input;
use serde_json::json;

/// Times `repeats` steps with `completions` completions of `tokens` tokens each, after an untimed step that allocates
/// memory.
pub fn run(
    ctx: &Context,
    shape: Subject,
    (completions, tokens): (usize, usize),
    repeats: usize,
) -> anyhow::Result<Report> {
    if completions > 8 && !completions.is_multiple_of(8) {
        bad_input!("--completions {completions}: the number must be a multiple of 8 (the group size), or less than 8");
    }
    let machine = Machine::measure(ctx)?.with_dtype(shape.dtype.dtype());
    let columns = [
        column("shape", "shape", 0),
        column("completions", "completions", 0),
        column("step_s", "step s", 2),
        column("rollout_s", "rollout s", 2),
        column("update_s", "update s", 2),
        column("generated_tokens_per_s", "tokens/s", 0),
        column("roofline_s", "roofline s", 2),
        column("roofline_percent", "of roofline %", 0),
        column("mismatching_tokens", "mismatches", 0),
    ];
    let mut report = Report::new("step", machine.clone(), &columns);
    let workload = Workload::grpo(completions, tokens);
    let mut bench = Bench::new(workload.clone(), ctx, shape.weights(ctx)?)?;
    let mut steps = Vec::new();
    let mut mismatches = 0;
    for repeat in 0..=repeats {
        let step = bench.step()?;
        mismatches += step.mismatches;
        if repeat > 0 {
            steps.push(step);
        }
    }
    let of = |f: fn(&StepTimes) -> f64| median(&steps.iter().map(f).collect::<Vec<_>>());
    let (rollout, update) = (of(|s| s.rollout_s), of(|s| s.update_s));
    let work = |(flops, bytes): (f64, f64)| machine.roofline_s(flops, bytes);
    let roofline = work(steps[0].rollout_work) + work(steps[0].update_work);
    report.row([
        json!(shape.name()),
        json!(format!("{completions} × {tokens}")),
        json!(rollout + update),
        json!(rollout),
        json!(update),
        json!(workload.generated_tokens() as f64 / rollout),
        json!(roofline),
        json!(100.0 * roofline / (rollout + update)),
        json!(mismatches),
    ]);
    let (flops, bytes) =
        (steps[0].rollout_work.0 + steps[0].update_work.0, steps[0].rollout_work.1 + steps[0].update_work.1);
    report.note(format!(
        "{:.0} GFLOP and {:.1} GB, as counted by the operations: the roofline counts each operation's inputs and \
         outputs as memory traffic, even if a cache holds them",
        flops / 1e9,
        bytes / 1e9
    ));
    Ok(report)
}
