//! `lockstep bench parity`: compares the bits of the sampler's log-probabilities with the trainer's, for several
//! temperatures, numbers of threads and batch sizes, with and without prefix sharing and chunked prefill.

use super::report::column;
use super::{Machine, Report, Subject, Workload};
use kernels::Context;
use model::{PromptGroup, Scorer};
use rollout::{Completion, Engine, EngineConfig, RolloutGroup};
use serde_json::json;

/// Generates and scores in every combination, and counts the tokens whose log-probabilities differ. The count must be
/// 0.
pub fn run(ctx: &Context, shape: Subject) -> anyhow::Result<Report> {
    let columns = [
        column("temperature", "T", 1),
        column("threads", "threads", 0),
        column("max_num_seqs", "batch", 0),
        column("prefix_sharing", "shared prompt", 0),
        column("chunked_prefill", "chunked", 0),
        column("tokens", "tokens", 0),
        column("sampler_mismatches", "differ from first run", 0),
        column("trainer_mismatches", "≠ trainer", 0),
    ];
    let mut report = Report::new("parity", Machine::measure(ctx)?, &columns);
    let weights = shape.weights(ctx)?;
    let workload =
        Workload { prompts: 3, prompt_tokens: 77, generations: 4, max_num_seqs: 12, ..Workload::grpo(12, 24) };
    let prompts = workload.random_prompts(&weights.config, 9);
    let mut total = 0;
    for temperature in [1.0, 0.7] {
        let workload = Workload { temperature, ..workload.clone() };
        let mut first: Option<Vec<u32>> = None;
        for threads in [1, ctx.threads().max(2)] {
            let ctx = ctx.with_threads(threads);
            for (max_num_seqs, sharing, chunked) in
                [(1, true, true), (3, true, false), (12, true, true), (12, false, true), (12, false, false)]
            {
                let max_model_len = workload.prompt_tokens + workload.new_tokens;
                let config = EngineConfig {
                    kv_blocks: EngineConfig::blocks_for(max_num_seqs + 3, max_model_len),
                    max_batched_tokens: 40,
                    chunked_prefill: chunked,
                    prefix_sharing: sharing,
                    ..EngineConfig::new(max_num_seqs, max_model_len)
                };
                let mut engine = Engine::new(&ctx, &weights.config, config)?;
                engine.fill_pages(f32::NAN);
                let groups = engine.generate(&weights, workload.requests(&prompts, 9))?;
                let completions = groups.iter().flat_map(|group| &group.completions);
                let recorded = bits(completions.flat_map(Completion::logps));
                let first = first.get_or_insert_with(|| recorded.clone());
                let sampler = differing(&recorded, first);
                let trained = trainer(&ctx, &weights, &groups, temperature, sharing)?;
                let trainer = differing(&recorded, &trained);
                total += sampler + trainer;
                report.row([
                    json!(temperature),
                    json!(threads),
                    json!(max_num_seqs),
                    json!(sharing),
                    json!(chunked),
                    json!(recorded.len()),
                    json!(sampler),
                    json!(trainer),
                ]);
            }
        }
    }
    report.note(format!("{}: {total} mismatching tokens in total", shape.name()));
    anyhow::ensure!(
        total == 0,
        "{}the log-probabilities of {total} tokens differ between sampler and trainer",
        report.text(110)
    );
    Ok(report)
}

fn bits<'a>(logps: impl Iterator<Item = &'a f32>) -> Vec<u32> {
    logps.map(|l| l.to_bits()).collect()
}

fn differing(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len())
}

fn trainer(
    ctx: &Context,
    weights: &model::Weights,
    groups: &[RolloutGroup],
    temperature: f64,
    sharing: bool,
) -> anyhow::Result<Vec<u32>> {
    let groups: Vec<_> = groups
        .iter()
        .map(|group| PromptGroup {
            prompt: &group.prompt.ids,
            completions: group.completions.iter().map(|c| c.ids.as_slice()).collect(),
        })
        .collect();
    let scores = Scorer::new(ctx.memory(), 512, sharing).score_groups(ctx, weights, &groups, temperature)?;
    Ok(bits(scores.iter().flat_map(|s| &s.logps)))
}
