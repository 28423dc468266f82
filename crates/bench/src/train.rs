//! `lockstep bench train`: times the update on a training micro-batch, with and without prefix sharing.

use super::report::column;
use super::workload::timed;
use super::{Machine, Report, Subject, Workload, median};
use kernels::Context;
use model::columns::SAMPLER_LOGPS;
use model::{Columns, Prompt, Weights};
use serde_json::json;
use std::sync::Arc;
use train::{Advantage, Sample};

/// The cases: the number of groups (of eight completions), and the tokens of the prompt. Each case runs with shared and
/// with unshared prompts.
const CASES: [(usize, usize); 3] = [(1, 88), (1, 1024), (4, 1024)];
/// Completions per group; the next constant is the tokens of each.
const GROUP: usize = 8;
const TOKENS: usize = 64;

/// Times `repeats` updates (forward, backward, optimizer) of each case.
pub fn run(ctx: &Context, shape: Subject, repeats: usize) -> anyhow::Result<Report> {
    let machine = Machine::measure(ctx)?.with_dtype(shape.dtype.dtype());
    let columns = [
        column("case", "groups × (prompt + G × completion)", 0),
        column("prefix_sharing", "shared", 0),
        column("rows", "rows", 0),
        column("forward_s", "forward s", 3),
        column("backward_s", "backward s", 3),
        column("optimizer_s", "optimizer s", 3),
        column("update_s", "update s", 3),
        column("gflops", "GFLOP/s", 1),
        column("flops_percent", "of peak %", 0),
    ];
    let mut report = Report::new("train", machine.clone(), &columns);
    let mut weights = shape.weights(ctx)?;
    for (prompts, prompt_tokens) in CASES {
        let case = format!("{prompts} × ({prompt_tokens} + {GROUP} × {TOKENS})");
        let mut by_sharing = Vec::new();
        for prefix_sharing in [true, false] {
            let grpo = Workload::grpo(prompts * GROUP, TOKENS);
            let workload = Workload { prompts, prompt_tokens, prefix_sharing, ..grpo };
            let samples = samples(&workload, &weights);
            let mut trainer = workload.trainer(ctx, &weights.config)?;
            let (mut times, mut flops, mut rows) = ([vec![], vec![], vec![], vec![]], 0.0, 0);
            // The first repetition allocates memory and is not timed.
            for repeat in 0..=repeats {
                let (metrics, seconds, work) = timed(|| Ok(trainer.update(ctx, &mut weights, &samples, 1e-6)?))?;
                if repeat > 0 {
                    let of = [metrics.forward_time_s, metrics.backward_time_s, metrics.optimizer_time_s, seconds];
                    times.iter_mut().zip(of).for_each(|(times, s)| times.push(s));
                }
                (flops, rows) = (work.0, metrics.computed_tokens);
            }
            let [forward, backward, optimizer, update] = times.map(|times| median(&times));
            let both = forward + backward;
            by_sharing.push((both, update, flops));
            report.row([
                json!(case),
                json!(if prefix_sharing { "yes" } else { "no" }),
                json!(rows),
                json!(forward),
                json!(backward),
                json!(optimizer),
                json!(update),
                json!(flops / both / 1e9),
                json!(machine.flops_percent(flops / both)),
            ]);
        }
        let [shared, apart] = by_sharing[..] else { unreachable!("each case has two rows") };
        let (gain, most) = (apart.0 / shared.0, apart.2 / shared.2);
        report.note(format!(
            "{case}: with a shared prompt, forward and backward are {gain:.2} × as fast ({:.0} % of the {most:.2} × \
             that the FLOPs allow), and the whole update is {:.2} × as fast",
            100.0 * gain / most,
            apart.1 / shared.1
        ));
    }
    report.note(format!("{}; GFLOP/s of forward and backward together, including the optimizer's FLOPs", shape.name()));
    Ok(report)
}

/// Samples with random token ids and made-up log-probabilities. Their values do not affect the time.
fn samples(workload: &Workload, weights: &Weights) -> Vec<Sample> {
    let one_each = Workload { prompts: workload.completions(), prompt_tokens: workload.new_tokens, ..workload.clone() };
    let prompts = workload.random_prompts(&weights.config, 5);
    let each = prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, workload.generations));
    let sample = |(i, (prompt, completion)): (usize, (&Arc<Prompt>, Arc<Prompt>))| Sample {
        columns: Columns::of([(SAMPLER_LOGPS, vec![-1.0; completion.ids.len()])]),
        versions: vec![model::Updates(u64::MAX); completion.ids.len()],
        advantage: Advantage::Sequence(if i % 2 == 0 { 1.0 } else { -1.0 }),
        ..Sample::supervised(prompt.clone(), completion.ids.clone())
    };
    each.zip(one_each.random_prompts(&weights.config, 6)).enumerate().map(sample).collect()
}
