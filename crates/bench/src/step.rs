//! `lockstep bench step`: times a GRPO step and its stages, and compares the step with its roofline: the least time in
//! which the machine could do the step's FLOPs and memory reads. Steps whose update recomputes the forward pass
//! alternate with steps that reuse the activations kept from the rollout.

use super::report::column;
use super::workload::{Bench, StepTimes};
use super::{Machine, Report, Subject, Workload, median};
use kernels::Context;
use lockstep::bad_input;
use serde_json::json;

/// Times `repeats` pairs of steps with `completions` completions of `tokens` tokens each, after an untimed pair that
/// allocates memory.
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
        column("activations", "activations", 0),
        column("step_s", "step s", 2),
        column("rollout_s", "rollout s", 2),
        column("update_s", "update s", 2),
        column("forward_s", "forward s", 2),
        column("generated_tokens_per_s", "tokens/s", 0),
        column("roofline_s", "roofline s", 2),
        column("roofline_percent", "of roofline %", 0),
        column("kept_percent", "kept %", 0),
        column("mismatching_tokens", "mismatches", 0),
    ];
    let mut report = Report::new("step", machine.clone(), &columns);
    let workload = Workload::grpo(completions, tokens);
    let mut bench = Bench::new(workload.clone(), ctx, shape.weights(ctx)?)?;
    let modes = [("computed", false), ("kept", true)];
    let mut steps = [const { Vec::new() }; 2];
    let mut mismatches = [0; 2];
    for repeat in 0..=repeats {
        for (mode, (_, keeps)) in modes.into_iter().enumerate() {
            let step = bench.step(keeps)?;
            mismatches[mode] += step.mismatches;
            if repeat > 0 {
                steps[mode].push(step);
            }
        }
    }
    let work = |(flops, bytes): (f64, f64)| machine.roofline_s(flops, bytes);
    for (((name, _), steps), mismatches) in modes.into_iter().zip(&steps).zip(mismatches) {
        let of = |f: fn(&StepTimes) -> f64| median(&steps.iter().map(f).collect::<Vec<_>>());
        let (rollout, update) = (of(|s| s.rollout_s), of(|s| s.update_s));
        let roofline = work(steps[0].rollout_work) + work(steps[0].update_work);
        report.row([
            json!(shape.name()),
            json!(format!("{completions} × {tokens}")),
            json!(name),
            json!(rollout + update),
            json!(rollout),
            json!(update),
            json!(of(|s| s.forward_s)),
            json!(workload.generated_tokens() as f64 / rollout),
            json!(roofline),
            json!(100.0 * roofline / (rollout + update)),
            json!(100.0 * of(|s| s.kept)),
            json!(mismatches),
        ]);
        let (flops, bytes) =
            (steps[0].rollout_work.0 + steps[0].update_work.0, steps[0].rollout_work.1 + steps[0].update_work.1);
        report.note(format!(
            "{name}: {:.0} GFLOP and {:.1} GB, as counted by the operations: the roofline counts each operation's \
             inputs and outputs as memory traffic, even if a cache holds them",
            flops / 1e9,
            bytes / 1e9
        ));
    }
    let ratio = |f: fn(&StepTimes) -> f64| {
        let pairs = steps[0].iter().zip(&steps[1]).map(|(computed, kept)| f(kept) / f(computed));
        median(&pairs.collect::<Vec<_>>())
    };
    report.note(format!(
        "time with kept / with computed activations, median of {repeats} pairs of steps: step {:.3}, rollout {:.3}, \
         update {:.3}, forward {:.3}",
        ratio(|s| s.rollout_s + s.update_s),
        ratio(|s| s.rollout_s),
        ratio(|s| s.update_s),
        ratio(|s| s.forward_s)
    ));
    Ok(report)
}
