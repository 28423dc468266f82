//! `lockstep bench skip`: the time saved by leaving groups without a gradient out of the update. Of 16 groups, one
//! half, three quarters or seven eighths have all rewards equal, and so no gradient.
//!
//! Each update that skips groups is paired with one that computes all, in alternating order, on the same samples and
//! weights (the learning rate is 0). Times are CPU seconds, so that other processes disturb them less.

use super::report::column;
use super::workload::timed;
use super::{Machine, Report, Subject, Workload, extremes, median};
use crate::workload::Bench;
use kernels::Context;
use serde_json::json;
use train::{Advantage, Sample, Trainer};

/// Number of groups in the optimizer batch.
const GROUPS: usize = 16;
/// Numbers of groups that have a gradient.
const LIVE: [usize; 3] = [8, 4, 2];

/// The time of one update.
#[derive(Clone, Copy, Default)]
struct Update {
    cpu_s: f64,
    /// Seconds of the optimizer in the whole update, as a share from 0 to 1.
    optimizer: f64,
}

/// Times `repeats` pairs of updates for each number of groups with a gradient. The step has `completions` completions
/// of `tokens` tokens.
pub fn run(
    ctx: &Context,
    shape: Subject,
    (completions, tokens): (usize, usize),
    repeats: usize,
) -> anyhow::Result<Report> {
    let columns = [
        column("live", "groups with a gradient", 0),
        column("full_s", "all computed, CPU s", 3),
        column("skipped_s", "left out, CPU s", 3),
        column("bound_s", "share + optimizer, CPU s", 3),
        column("over_bound", "of that", 3),
        column("least", "least", 3),
        column("most", "most", 3),
        column("update_factor", "update ×", 2),
        column("step_factor", "step ×", 2),
    ];
    let mut report = Report::new("skip", Machine::measure(ctx)?.of_dtype(shape.dtype.dtype()), &columns);
    let generations = (completions / GROUPS).max(2);
    let workload = Workload { prompts: GROUPS, generations, ..Workload::grpo(GROUPS * generations, tokens) };
    let mut bench = Bench::new(workload, ctx, shape.weights(ctx)?)?;
    let mut all = {
        let config = train::TrainerConfig { skip_zero_gradients: false, ..bench.trainer.config().clone() };
        Trainer::new(ctx.memory(), &bench.weights.config, config)?
    };
    let mut pairs = [const { Vec::new() }; LIVE.len()];
    let (mut mismatches, mut compared) = (0, 0);
    for repeat in 0..=repeats {
        let prompts = bench.workload.random_prompts(&bench.weights.config, repeat as u64);
        let before = telemetry::system::cpu_s();
        let (groups, ..) = timed(|| bench.generate(&prompts))?;
        let rollout_s = telemetry::system::cpu_s() - before;
        let mut samples = bench.workload.samples(&groups, repeat as u64);
        // As in a run: one skipped group in 64 is checked, by its number.
        samples.iter_mut().for_each(|sample| sample.group += (repeat * GROUPS) as u64);
        for (live, pairs) in LIVE.into_iter().zip(&mut pairs) {
            let samples = with_live(&samples, live);
            let mut one = |trainer: &mut Trainer| -> anyhow::Result<Update> {
                let (version, before) = (bench.weights.version, telemetry::system::cpu_s());
                let (metrics, seconds, _) = timed(|| Ok(trainer.update(ctx, &mut bench.weights, &samples, 0.0)?))?;
                bench.weights.version = version;
                mismatches += metrics.logp_mismatch_tokens;
                compared += metrics.logp_compared_tokens;
                Ok(Update { cpu_s: telemetry::system::cpu_s() - before, optimizer: metrics.optimizer_time_s / seconds })
            };
            let (full, skipped) = if repeat % 2 == 0 {
                let full = one(&mut all)?;
                (full, one(&mut bench.trainer)?)
            } else {
                let skipped = one(&mut bench.trainer)?;
                (one(&mut all)?, skipped)
            };
            // The first one takes the memory.
            if repeat > 0 {
                pairs.push((full, skipped, rollout_s));
            }
        }
    }
    for (live, pairs) in LIVE.into_iter().zip(&pairs) {
        let share = live as f64 / GROUPS as f64;
        let bound = |full: &Update| full.cpu_s * (share * (1.0 - full.optimizer) + full.optimizer);
        let of = |f: &dyn Fn(&(Update, Update, f64)) -> f64| pairs.iter().map(f).collect::<Vec<f64>>();
        let ratios = of(&|(full, skipped, _)| skipped.cpu_s / bound(full));
        let [least, most] = extremes(&ratios);
        report.row([
            json!(format!("{live} of {GROUPS}")),
            json!(median(&of(&|(full, ..)| full.cpu_s))),
            json!(median(&of(&|(_, skipped, _)| skipped.cpu_s))),
            json!(median(&of(&|(full, ..)| bound(full)))),
            json!(median(&ratios)),
            json!(least),
            json!(most),
            json!(median(&of(&|(full, skipped, _)| full.cpu_s / skipped.cpu_s))),
            json!(median(&of(&|(full, skipped, rollout)| (full.cpu_s + rollout) / (skipped.cpu_s + rollout)))),
        ]);
    }
    report.note(format!(
        "{}: {GROUPS} groups of {generations} × {tokens}, {repeats} pairs each; {mismatches} of {compared} compared \
         tokens differ. \"share + optimizer\": the share of the full update's forward and backward pass, and its \
         optimizer",
        shape.name()
    ));
    Ok(report)
}

/// The samples with new advantages: they differ from 0 in `live` groups, evenly spread, and are 0 in the others.
fn with_live(samples: &[Sample], live: usize) -> Vec<Sample> {
    let mut samples = samples.to_vec();
    for (i, sample) in samples.iter_mut().enumerate() {
        let lives = (sample.group as usize % GROUPS).is_multiple_of(GROUPS / live);
        let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
        sample.advantage = Advantage::Sequence(if lives { sign } else { 0.0 });
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use kernels::Isa;
    use lockstep::config::ComputeDType;

    #[test]
    fn pairs_are_counted_and_no_bit_differs() {
        let ctx = Context::cpu(Isa::best(), 1);
        let shape = Subject { shape: Shape::Tiny, dtype: ComputeDType::F32 };
        let report = run(&ctx, shape, (32, 4), 2).unwrap();
        let text = report.text(200);
        assert!(text.contains("2 of 16") && text.contains(" 0 of "), "{text}");
    }
}
