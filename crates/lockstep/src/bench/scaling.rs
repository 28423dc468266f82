//! How speed changes with the number of completions, their length, and the threads.

use super::report::column;
use super::workload::Bench;
use super::{Machine, Report, Subject, Workload};
use kernels::Context;
use serde_json::json;

/// One step each (after a first one that takes the memory): completions 8 → `most`, length 128 → `longest`, threads 1 → all.
pub fn run(ctx: &Context, shape: Subject, most: usize, longest: usize) -> anyhow::Result<Report> {
    let columns = [
        column("threads", "threads", 0),
        column("completions", "completions", 0),
        column("new_tokens", "tokens each", 0),
        column("rollout_tokens_per_s", "rollout tokens/s", 0),
        column("update_tokens_per_s", "update tokens/s", 0),
        column("rollout_s", "rollout s", 2),
        column("update_s", "update s", 2),
    ];
    let mut report = Report::new("scaling", Machine::measure(ctx).of_dtype(shape.dtype.dtype()), &columns);
    let mut cases: Vec<(usize, usize, usize)> = vec![(1, 32, 128)];
    let doubling =
        |from: usize, to: usize| std::iter::successors(Some(from), |n| Some(n * 2)).take_while(move |n| *n <= to);
    cases.extend(doubling(8, most).map(|n| (ctx.threads(), n, 128)));
    cases.extend(doubling(256, longest).map(|n| (ctx.threads(), 8, n)));
    let mut both = Vec::new();
    for (threads, completions, tokens) in cases {
        let ctx = Context::cpu(ctx.isa(), threads);
        let workload = Workload { gradient_checkpointing: tokens > 1024, ..Workload::grpo(completions, tokens) };
        let mut bench = Bench::new(workload.clone(), &ctx, shape.weights(&ctx)?)?;
        bench.step()?;
        let step = bench.step()?;
        let generated = workload.generated_tokens() as f64;
        if (completions, tokens) == (32, 128) {
            both.push((threads, step.rollout_s, step.update_s));
        }
        report.row([
            json!(threads),
            json!(completions),
            json!(tokens),
            json!(generated / step.rollout_s),
            json!(generated / step.update_s),
            json!(step.rollout_s),
            json!(step.update_s),
        ]);
    }
    if let [one, all] = both[..]
        && one.0 != all.0
    {
        report.note(format!(
            "32 × 128, {} → {} threads: rollout {:.2} ×, update {:.2} ×",
            one.0,
            all.0,
            one.1 / all.1,
            one.2 / all.2
        ));
    }
    report.note(format!("{}; update tokens are completion tokens", shape.name()));
    Ok(report)
}
