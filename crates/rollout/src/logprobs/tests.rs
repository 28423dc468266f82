//! Tests of log-probabilities and alternatives, compared with f64.

#![allow(clippy::disallowed_methods)] // expectations may come from std's functions

use super::*;
use crate::blocks::BlockPool;
use crate::config::Speculative;
use crate::scheduler::Limits;
use crate::{Request, SamplingParams};
use model::GroupId;
use std::sync::Arc;

#[test]
fn alternatives_are_sorted_by_probability_then_id() {
    let row = Row { z: &[1.0, 3.0, -2.0, 3.0, 0.5, f32::NEG_INFINITY], lse: 4.0 };
    let ids = [1, 3, 0, 4, 2, 5];
    let logps = [-1.0, -1.0, -3.0, -3.5, -6.0, f32::NEG_INFINITY];
    for k in 0..10 {
        let n = k.min(6);
        assert_eq!(row.top(k), (ids[..n].to_vec(), logps[..n].to_vec()), "{k}");
    }
    assert_eq!(Row { z: &[7.0; 5], lse: 0.0 }.top(3).0, [0, 1, 2]);
}

/// A model with a vocabulary of 16, hidden rows, and a scheduler with one sequence for each of the given parameters.
struct Case {
    ctx: Context,
    weights: model::Weights,
    hidden: Tensor,
    rows: Vec<f32>,
    scheduler: Scheduler,
}

const HIDDEN: usize = 8;
const VOCAB: usize = 16;

fn case(prompts: &[(usize, SamplingParams)]) -> Case {
    let json = r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 16, "initializer_range": 0.8}"#;
    let ctx = Context::cpu(kernels::Isa::best(), 1);
    let config = Arc::new(model::ModelConfig::parse(json).unwrap());
    let weights = model::Weights::random(ctx.memory(), &config, 1).unwrap();
    let rows: Vec<f32> = kernels::check::normal(7, 40 * HIDDEN);
    let hidden = Tensor::from_f32(ctx.memory(), &[40, HIDDEN], &rows);
    let limits = Limits { max_num_seqs: 8, max_rows: 512, max_model_len: 256, chunked_prefill: true };
    let mut scheduler = Scheduler::new(BlockPool::new(20, false), limits, Speculative::Off);
    for (len, sampling) in prompts {
        let prompt = model::Prompt::new((0..*len as u32).map(|i| i * 7 % 16).collect::<Vec<_>>());
        scheduler.submit(Arc::new(Request::new(GroupId(0), prompt, 1, Arc::new(sampling.clone()))), false);
    }
    Case { ctx, weights, hidden, rows, scheduler }
}

impl Case {
    /// The log-probabilities of all tokens after a row, in f64.
    fn logps(&self, row: usize, temperature: f64) -> Vec<f64> {
        let head = self.weights.head().unpack_rows(0..VOCAB);
        let own = &self.rows[row * HIDDEN..][..HIDDEN];
        let z =
            |v: usize| own.iter().zip(&head[v * HIDDEN..][..HIDDEN]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        let z: Vec<f64> = (0..VOCAB).map(z).map(|z: f64| z / temperature).collect();
        let sum: f64 = z.iter().map(|z| z.exp()).sum();
        z.iter().map(|z| z - sum.ln()).collect()
    }
}

fn near(found: f32, expected: f64) {
    assert!((f64::from(found) - expected).abs() < 1e-5, "{found} {expected}");
}

#[test]
fn each_draw_returns_the_outputs_that_its_request_wants() {
    let of = |temperature, top_logprobs| (2, SamplingParams { temperature, top_logprobs, ..SamplingParams::default() });
    let all = case(&[of(1.0, 0), of(0.0, 2), of(0.5, 3), of(0.5, 20)]);
    let mut rows = LogitRows::new(&all.ctx, (&all.weights).into()).unwrap();
    // The draws contain long and short runs of the same request.
    let sequence = |i: usize| if i < 20 { 0 } else { [3, 3, 1, 2][i % 4] };
    let draws: Vec<Draw> = (0..40).map(|i| Draw { row: 39 - i as u32, sequence: sequence(i), at: 2 }).collect();
    let (model, hidden) = (ModelView::from(&all.weights), all.hidden.view());
    let tops = rows.top_tokens(&all.ctx, model, hidden, &all.scheduler, &draws).unwrap();
    assert_eq!(tops.len(), 40);
    for (draw, (ids, logps)) in draws.iter().zip(&tops) {
        let sampling = all.scheduler.sampling(draw.sequence);
        let temperature = if sampling.temperature == 0.0 { 1.0 } else { sampling.temperature };
        let expected = all.logps(draw.row as usize, temperature);
        assert_eq!((ids.len(), logps.len()), (sampling.top_logprobs.min(VOCAB), sampling.top_logprobs.min(VOCAB)));
        ids.iter().zip(logps).for_each(|(&id, &logp)| near(logp, expected[id as usize]));
        assert!(logps.is_sorted_by(|a, b| a >= b));
        let most = expected.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logps.first().into_iter().for_each(|&logp| near(logp, most));
    }
}

#[test]
fn each_prompt_token_except_the_first_has_a_log_probability() {
    let of = |prompt_logprobs| SamplingParams {
        prompt_logprobs,
        top_logprobs: 2,
        temperature: 0.5,
        ..SamplingParams::default()
    };
    let mut all = case(&[(3, of(false)), (30, of(true))]);
    let mut rows = LogitRows::new(&all.ctx, (&all.weights).into()).unwrap();
    let group = all.scheduler.sequences[1].group;
    let mut compute = |all: &mut Case, chunks: &[(usize, usize, usize)]| {
        let chunks: Vec<Chunk> = chunks.iter().map(|&(sequence, from, to)| Chunk { sequence, from, to }).collect();
        let (model, hidden) = (ModelView::from(&all.weights), all.hidden.view());
        rows.record_prompts(&all.ctx, model, hidden, &mut all.scheduler, &chunks).unwrap();
        all.scheduler.groups[group].prompt_logps.len()
    };
    // The first part of the prompt is computed first.
    assert_eq!(compute(&mut all, &[(1, 5, 9)]), 0);
    assert_eq!(compute(&mut all, &[(0, 0, 3), (1, 0, 20)]), 20);
    assert_eq!(compute(&mut all, &[(1, 20, 30)]), 29);
    assert_eq!(compute(&mut all, &[(1, 0, 30)]), 29, "a recomputed prompt must not be reported twice");
    let group = &all.scheduler.groups[group];
    let ids = &group.request.prompt.ids;
    for (p, &logp) in group.prompt_logps.iter().enumerate() {
        // In the first call, the rows follow three rows of another sequence.
        let row = if p < 20 { 3 + p } else { p - 20 };
        let expected = all.logps(row, 0.5);
        near(logp, expected[ids[p + 1] as usize]);
        let top = &group.prompt_top;
        assert_eq!((top.width, top.ids.len(), top.logps.len()), (2, 58, 58));
        (0..2).for_each(|i| near(top.logps[2 * p + i], expected[top.ids[2 * p + i] as usize]));
    }
    assert!(all.scheduler.groups[all.scheduler.sequences[0].group].prompt_logps.is_empty());
}
