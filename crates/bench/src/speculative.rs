//! `lockstep bench speculative`: the time that speculative draft tokens save at the end of a generation, when only one,
//! two or four of 64 completions are not finished.
//!
//! Each generation with draft tokens is paired with one without, in alternating order, on the same prompts and weights;
//! their completions are compared bit for bit. Times are CPU seconds, so that other processes disturb them less, and
//! cover only the steps after the last short completion has ended.

use super::report::column;
use super::workload::{MAX_BATCHED_TOKENS, PROMPT_TOKENS};
use super::{Machine, Report, Subject, Workload, extremes, median};
use kernels::Context;
use model::Weights;
use rollout::{Counters, Engine, EngineConfig, Request, RolloutGroup, SamplingParams, Speculative};
use serde_json::json;
use std::sync::Arc;

/// Number of completions in a generation.
const COMPLETIONS: usize = 64;
/// How many of the completions are long.
const LIVE: [usize; 3] = [1, 2, 4];
/// Number of tokens of a short completion.
const SHORT: usize = 4;

/// Sampling parameters with which random weights write more or less repetitive texts, with a name for each.
fn texts() -> [(&'static str, SamplingParams); 3] {
    let of = |temperature, top_k| SamplingParams { temperature, top_k, ..SamplingParams::default() };
    // The likelier of two tokens is, more often than not, the one before: half of what was said follows again.
    [("repetitive (greedy)", of(0.0, 0)), ("half repetitive (one of 2)", of(1.0, 2)), ("random (T = 1)", of(1.0, 0))]
}

/// Results of the steps after the last short completion.
struct Tail {
    groups: Vec<RolloutGroup>,
    cpu_s: f64,
    drawn: usize,
    done: Counters,
}

/// Times `repeats` pairs of generations for each kind of text; a long completion has `tokens` more tokens than a short
/// one.
pub fn run(ctx: &Context, shape: Subject, tokens: usize, repeats: usize) -> anyhow::Result<Report> {
    let columns = [
        column("text", "text", 0),
        column("live", "live", 0),
        column("off_tokens_per_s", "off, tokens/CPU s", 1),
        column("auto_tokens_per_s", "auto", 1),
        column("factor", "auto ×", 2),
        column("least", "least", 2),
        column("most", "most", 2),
        column("acceptance_percent", "accepted %", 0),
        column("tokens_per_pass", "tokens a pass", 2),
    ];
    let mut report = Report::new("speculative", Machine::measure(ctx)?.of_dtype(shape.dtype.dtype()), &columns);
    let weights = shape.weights(ctx)?;
    let engine = |speculative| -> anyhow::Result<Engine> {
        let config = EngineConfig {
            max_batched_tokens: MAX_BATCHED_TOKENS,
            speculative,
            ..EngineConfig::new(COMPLETIONS, PROMPT_TOKENS + SHORT + tokens)
        };
        Ok(Engine::new(ctx, &weights.config, config)?)
    };
    let (mut off, mut auto) = (engine(Speculative::Off)?, engine(Speculative::Auto)?);
    // Other prompts and other noise each time: no completion is guessed from one before.
    let mut seeds = 1..;
    for (text, sampling) in texts() {
        for live in LIVE {
            let mut pairs = Vec::new();
            for repeat in 0..=repeats {
                let seed = seeds.next().unwrap_or_default();
                let requests = requests(&weights, &sampling, (live, tokens), seed);
                let one = |engine: &mut Engine| tail(engine, &weights, requests.clone(), live);
                let (off, auto) = if repeat % 2 == 0 {
                    let off = one(&mut off)?;
                    (off, one(&mut auto)?)
                } else {
                    let auto = one(&mut auto)?;
                    (one(&mut off)?, auto)
                };
                anyhow::ensure!(off.groups == auto.groups, "{text}, {live} live: guesses have changed what was drawn");
                // The first one takes the memory.
                if repeat > 0 {
                    pairs.push((off, auto));
                }
            }
            let of = |f: &dyn Fn(&(Tail, Tail)) -> f64| pairs.iter().map(f).collect::<Vec<f64>>();
            let factors = of(&|(off, auto)| off.cpu_s / auto.cpu_s);
            let [least, most] = extremes(&factors);
            let sum = |f: fn(&Tail) -> f64| pairs.iter().map(|(_, auto)| f(auto)).sum::<f64>();
            let drafted = sum(|tail| tail.done.drafted_tokens as f64);
            let passes = sum(|tail| (tail.done.computed_tokens - tail.done.drafted_tokens) as f64);
            report.row([
                json!(text),
                json!(format!("{live} of {COMPLETIONS}")),
                json!(median(&of(&|(off, _)| off.drawn as f64 / off.cpu_s))),
                json!(median(&of(&|(_, auto)| auto.drawn as f64 / auto.cpu_s))),
                json!(median(&factors)),
                json!(least),
                json!(most),
                json!(100.0 * sum(|tail| tail.done.accepted_tokens as f64) / drafted.max(1.0)),
                json!(sum(|tail| tail.drawn as f64) / passes),
            ]);
        }
    }
    report.note(format!(
        "{}: {tokens} tokens after the others have ended, {repeats} pairs each; all completions and log-probabilities \
         are equal, bit for bit",
        shape.name()
    ));
    Ok(report)
}

/// The requests of a generation: `live` requests for one long completion each, and one request for all short ones.
fn requests(weights: &Weights, sampling: &SamplingParams, (live, tokens): (usize, usize), seed: u64) -> Vec<Request> {
    let workload = Workload { prompts: live + 1, ..Workload::grpo(COMPLETIONS, tokens) };
    let sampling = |max_new_tokens| Arc::new(SamplingParams { max_new_tokens, seed, ..sampling.clone() });
    let (long, short) = (sampling(SHORT + tokens), sampling(SHORT));
    let prompts = workload.random_prompts(&weights.config, seed).into_iter().enumerate();
    let request = |(i, prompt): (usize, _)| match i < live {
        true => Request::new(i as u64, prompt, 1, long.clone()),
        false => Request::new(i as u64, prompt, COMPLETIONS - live, short.clone()),
    };
    prompts.map(request).collect()
}

/// Generates, and times the steps after the last short completion.
fn tail(engine: &mut Engine, weights: &Weights, requests: Vec<Request>, live: usize) -> anyhow::Result<Tail> {
    for request in requests {
        engine.submit(request)?;
    }
    let mut groups = Vec::new();
    while engine.live().count() > live {
        groups.extend(engine.step(weights)?);
    }
    let (cpu_s, before) = (telemetry::system::cpu_s(), engine.counters());
    let mut drawn = 0;
    while !engine.is_idle() {
        groups.extend(engine.step(weights)?);
        drawn += engine.drawn().len();
    }
    let (cpu_s, done) = (telemetry::system::cpu_s() - cpu_s, engine.counters() - before);
    groups.sort_by_key(|group| group.id);
    Ok(Tail { groups, cpu_s, drawn, done })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use kernels::Isa;
    use lockstep::config::ComputeDType;

    #[test]
    fn tails_are_timed_and_no_bit_differs() {
        let ctx = Context::cpu(Isa::best(), 1);
        let shape = Subject { shape: Shape::Tiny, dtype: ComputeDType::F32 };
        let report = run(&ctx, shape, 24, 2).unwrap();
        let json = report.json();
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), texts().len() * LIVE.len());
        // How much is drafted depends on measured times; `rollout/tests/rollout/speculative.rs` has what must be.
        assert!(rows.iter().all(|row| row["tokens_per_pass"].as_f64().unwrap() >= 1.0), "{json}");
        let weights = shape.weights(&ctx).unwrap();
        let all = requests(&weights, &SamplingParams::default(), (4, 9), 1);
        assert_eq!(all.iter().map(|request| request.num_generations).sum::<usize>(), COMPLETIONS);
    }
}
