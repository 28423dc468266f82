//! `lockstep bench rollout`: times complete decode steps, including the sampler, for several batch sizes. Each sequence
//! has its own prompt.
//!
//! A decode step must read every weight once, and the keys and values of all its sequences. The benchmark divides these
//! bytes by the time of the step, and compares the quotient with the measured memory bandwidth of this machine.

use super::report::column;
use super::workload::MAX_BATCHED_TOKENS;
use super::{Machine, Report, Subject, Workload, median};
use kernels::Context;
use serde_json::json;

/// Batch sizes: the number of sequences.
const BATCHES: [usize; 5] = [1, 4, 16, 32, 64];
/// Prompt tokens of each sequence before the measured steps.
const PROMPT: usize = 128;

/// Times at least `steps` decode steps for each batch size. In each of these steps every sequence draws a token.
pub fn run(ctx: &Context, shape: Subject, steps: usize) -> anyhow::Result<Report> {
    let machine = Machine::measure(ctx)?.with_dtype(shape.dtype.dtype());
    let columns = [
        column("sampling", "sampling", 0),
        column("batch", "batch", 0),
        column("step_ms", "step ms", 2),
        column("tokens_per_s", "tokens/s", 1),
        column("gb_per_s", "GB/s", 2),
        column("bandwidth_percent", "of read peak %", 0),
        column("gflops", "GFLOP/s", 1),
        column("flops_percent", "of peak %", 0),
    ];
    let mut report = Report::new("rollout", machine.clone(), &columns);
    let weights = shape.weights(ctx)?;
    let config = weights.config.clone();
    let weight_bytes: usize = weights.params.tensors().iter().map(|t| t.bytes()).sum();
    // A tied embedding is read as the lm head. An untied embedding is not counted, since only one row per token is
    // read.
    let unread = if config.tie_word_embeddings { 0 } else { weights.params.embedding.data().bytes() };
    let kv_token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * config.compute.bytes();
    for temperature in [0.0, 1.0] {
        for batch in BATCHES {
            // Prefilling all prompts takes several steps. Completions that start early generate tokens during these
            // steps, so their limit is larger by the number of these steps.
            let prefill = (batch * PROMPT).div_ceil(MAX_BATCHED_TOKENS);
            let workload = Workload {
                prompts: batch,
                prompt_tokens: PROMPT,
                temperature,
                max_num_seqs: batch,
                ..Workload::grpo(1, steps + prefill + 1)
            };
            let steps_of_all = workload.decode_steps(ctx, &weights)?;
            let time = median(&steps_of_all.iter().map(|step| step.0).collect::<Vec<_>>());
            let work = steps_of_all.last().map_or(0.0, |step| step.1);
            let attended = PROMPT + (steps + prefill) / 2;
            let bytes = (weight_bytes - unread + batch * attended * kv_token_bytes) as f64;
            report.row([
                json!(if temperature == 0.0 { "greedy" } else { "T = 1" }),
                json!(batch),
                json!(1e3 * time),
                json!(batch as f64 / time),
                json!(bytes / time / 1e9),
                json!(machine.bandwidth_percent(bytes / time)),
                json!(work / time / 1e9),
                json!(machine.flops_percent(work / time)),
            ]);
        }
    }
    report.note(format!(
        "{}, {PROMPT}-token prompts, medians of at least {steps} decode steps per batch size",
        shape.name()
    ));
    Ok(report)
}
