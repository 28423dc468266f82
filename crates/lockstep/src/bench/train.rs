//! Forward and backward of a training micro-batch, and how much a shared prompt saves.

use super::report::column;
use super::workload::timed;
use super::{Machine, Report, Subject, Workload, median};
use kernels::Context;
use model::Weights;
use serde_json::json;
use std::sync::Arc;
use train::{Advantage, Sample};

/// One row: prompt tokens, completions, tokens of each, sharing.
const CASES: [(usize, usize, usize, bool); 4] =
    [(88, 8, 64, true), (88, 8, 64, false), (1024, 8, 64, true), (1024, 8, 64, false)];

/// Times updates (forward, backward, optimizer), `repeats` of each case.
pub fn run(ctx: &Context, shape: Subject, repeats: usize) -> anyhow::Result<Report> {
    let machine = Machine::measure(ctx).of_dtype(shape.dtype.dtype());
    let columns = [
        column("case", "prompt + G × completion", 0),
        column("prefix_sharing", "shared", 0),
        column("rows", "rows", 0),
        column("forward_s", "forward s", 3),
        column("backward_s", "backward s", 3),
        column("optimizer_s", "optimizer s", 3),
        column("gflops", "GFLOP/s", 1),
        column("flops_percent", "of peak %", 0),
    ];
    let mut report = Report::new("train", machine.clone(), &columns);
    let mut weights = shape.weights(ctx)?;
    let mut times = Vec::new();
    for (prompt, group, tokens, sharing) in CASES {
        let workload = Workload {
            prompts: 1,
            prompt_tokens: prompt,
            generations: group,
            prefix_sharing: sharing,
            ..Workload::grpo(group, tokens)
        };
        let samples = samples(&workload, &weights);
        let mut trainer = workload.trainer(ctx, &weights.config)?;
        let (mut forward, mut backward, mut optimizer, mut flops, mut rows) = (vec![], vec![], vec![], 0.0, 0);
        // The first one takes the memory.
        for repeat in 0..=repeats {
            let (metrics, _, work) = timed(|| Ok(trainer.update(ctx, &mut weights, &samples, 1e-6)?))?;
            if repeat > 0 {
                forward.push(metrics.forward_time_s);
                backward.push(metrics.backward_time_s);
                optimizer.push(metrics.optimizer_time_s);
            }
            (flops, rows) = (work.0, metrics.computed_tokens);
        }
        let both = median(&forward) + median(&backward);
        times.push(both);
        report.row([
            json!(format!("{prompt} + {group} × {tokens}")),
            json!(if sharing { "yes" } else { "no" }),
            json!(rows),
            json!(median(&forward)),
            json!(median(&backward)),
            json!(median(&optimizer)),
            json!(flops / both / 1e9),
            json!(machine.of_flops(flops / both)),
        ]);
    }
    for (case, pair) in CASES.chunks(2).zip(times.chunks(2)) {
        let (prompt, group, tokens, _) = case[0];
        report.note(format!("{prompt} + {group} × {tokens}: sharing the prompt is {:.2} × as fast", pair[1] / pair[0]));
    }
    report.note(format!("{}; GFLOP/s of forward and backward together, optimizer's FLOPs included", shape.name()));
    Ok(report)
}

/// Completions of random ids; what a sampler would have recorded is of no consequence for the time.
fn samples(workload: &Workload, weights: &Weights) -> Vec<Sample> {
    let completion = Workload { prompts: workload.generations, prompt_tokens: workload.new_tokens, ..workload.clone() };
    let prompt: Arc<[u32]> = workload.prompt_ids(&weights.config, 5)[0].clone();
    let sample = |(i, ids): (usize, Arc<[u32]>)| Sample {
        sampler_logps: vec![-1.0; ids.len()],
        versions: vec![u64::MAX; ids.len()],
        advantage: Advantage::Sequence(if i % 2 == 0 { 1.0 } else { -1.0 }),
        ..Sample::supervised(prompt.clone(), ids.to_vec())
    };
    completion.prompt_ids(&weights.config, 6).into_iter().enumerate().map(sample).collect()
}
