//! Writes results as the client expects them.

use super::futures::Answer;
use super::proto::{
    ArrayRecord, BatchedTensor, DType, ForwardBackwardOutput, SampleResponse, SampledSequence, StopReason, TopkLogprobs,
};
use lockstep::service::training::{Cause, Compared, Done, Failure, Kind, Passed};
use lockstep::service::{FinishReason, Ranked, Token};
use prost::Message;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The id and the log-probability that fill up rows with fewer than k tokens.
const FILLER: (i32, f32) = (0, -99999.0);

/// The answer to a request for training; `model_id` is its model.
pub fn done(model_id: &str, result: Result<Done, Failure>) -> Answer {
    match result {
        Ok(Done::Created) => Answer::Json(json!({"model_id": model_id, "type": "create_model"})),
        Ok(Done::Passed(passed)) => Answer::Proto(output(&passed).encode_to_vec()),
        Ok(Done::Stepped { grad_norm, compared }) => {
            let mut metrics = metrics_of(compared);
            metrics.insert("grad_norm:mean".to_owned(), grad_norm);
            let metrics: Map<String, Value> = metrics.into_iter().map(|(name, value)| (name, json!(value))).collect();
            Answer::Json(json!({"metrics": metrics, "type": "optim_step"}))
        }
        Ok(Done::Loaded(path)) => {
            Answer::Json(json!({"model_id": model_id, "path": path.to_string(), "type": "load_weights"}))
        }
        Ok(Done::Saved(path)) => {
            let kind = match path.kind {
                Kind::Training => "save_weights",
                Kind::Sampler => "save_weights_for_sampler",
            };
            Answer::Json(json!({"path": path.to_string(), "type": kind}))
        }
        Ok(Done::Sampler(id)) => Answer::Json(json!({"sampling_session_id": id, "type": "save_weights_for_sampler"})),
        Err(failure) => failed(&failure),
    }
}

pub fn failed(failure: &Failure) -> Answer {
    let category = if failure.cause == Cause::Request { "user" } else { "server" };
    Answer::Failed { error: failure.message.clone(), category }
}

/// Comparisons with the log-probabilities that the client sent; none if nothing was compared. The client reduces
/// metrics over chunks by the part of the name after the colon.
fn metrics_of(compared: Compared) -> BTreeMap<String, f64> {
    if compared.tokens == 0 {
        return BTreeMap::new();
    }
    BTreeMap::from([
        ("lockstep/logp_compared_tokens:sum".to_owned(), compared.tokens as f64),
        ("lockstep/logp_mismatch_tokens:sum".to_owned(), compared.mismatches as f64),
        ("lockstep/logp_max_difference:max".to_owned(), compared.max_difference),
    ])
}

fn output(passed: &Passed) -> ForwardBackwardOutput {
    let mut offsets = vec![0i64];
    for logps in &passed.logps {
        offsets.push(offsets[offsets.len() - 1] + (size_of::<f32>() * logps.len()) as i64);
    }
    let tensor = BatchedTensor {
        data: passed.logps.iter().flatten().flat_map(|logp| logp.to_le_bytes()).collect(),
        offsets: offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect(),
        dtype: DType::Float32 as i32,
        trailing_shape: Vec::new(),
    };
    let record = ArrayRecord {
        type_tag: "ArrayRecord".to_owned(),
        fields: BTreeMap::from([("logprobs".to_owned(), tensor)]),
        num_datums: passed.logps.len() as i64,
    };
    let mut metrics = metrics_of(passed.compared);
    metrics.insert("loss:sum".to_owned(), passed.loss);
    ForwardBackwardOutput { loss_fn_output_type: "ArrayRecord".to_owned(), loss_fn_outputs: vec![record], metrics }
}

/// The sequences of a request, as far as they were drawn.
pub struct Sequences {
    sequences: Vec<Vec<Token>>,
    /// Whether the log-probabilities of the prompt are returned.
    scores_prompt: bool,
    /// The number of alternatives for each token.
    pub topk: usize,
    /// The number of alternatives for each prompt token.
    pub topk_prompt: usize,
    /// The number of last prompt tokens that have log-probabilities; `None`: all.
    pub last_n: Option<usize>,
    prompt_tokens: usize,
}

impl Sequences {
    pub fn new(samples: usize, prompt_tokens: usize, scores_prompt: bool) -> Sequences {
        let sequences = vec![Vec::new(); samples];
        Sequences { sequences, scores_prompt, topk: 0, topk_prompt: 0, last_n: None, prompt_tokens }
    }

    pub fn push(&mut self, token: Token) {
        self.sequences[token.sample].push(token);
    }

    /// The response, after the last token.
    pub fn response(&self, prompt: &[(f32, Vec<Ranked>)], cached_tokens: usize) -> Vec<u8> {
        let prompt = Some(prompt).filter(|_| self.scores_prompt);
        let sequences = self.sequences.iter().map(|tokens| self.sequence(tokens)).collect();
        // The first token of a prompt has no log-probability.
        let first = self.prompt_tokens - self.last_n.unwrap_or(self.prompt_tokens).min(self.prompt_tokens);
        let scored = |position: usize| position > 0 && position >= first;
        let prompt_logprobs = prompt.map(|prompt| {
            let all = std::iter::once(f32::NAN).chain(prompt.iter().map(|(logp, _)| *logp)).enumerate();
            all.flat_map(|(i, logp)| if scored(i) { logp } else { f32::NAN }.to_le_bytes()).collect()
        });
        let topk_prompt_logprobs = prompt.filter(|_| self.topk_prompt > 0).map(|prompt| {
            let rows = std::iter::once(&[][..]).chain(prompt.iter().map(|(_, top)| &top[..])).enumerate();
            topk(self.topk_prompt, rows.map(|(i, top)| if scored(i) { top } else { &[] }))
        });
        let prompt_cache_hit_tokens = i32::try_from(cached_tokens).unwrap_or(i32::MAX);
        SampleResponse { sequences, prompt_logprobs, topk_prompt_logprobs, prompt_cache_hit_tokens }.encode_to_vec()
    }

    fn sequence(&self, tokens: &[Token]) -> SampledSequence {
        let is_stopped = tokens.last().and_then(|token| token.finish_reason) == Some(FinishReason::Stop);
        SampledSequence {
            stop_reason: if is_stopped { StopReason::Stop } else { StopReason::Length } as i32,
            tokens: tokens.iter().flat_map(|token| token.token.id.to_le_bytes()).collect(),
            logprobs: Some(tokens.iter().flat_map(|token| token.token.logp.to_le_bytes()).collect()),
            topk_sampled_logprobs: (self.topk > 0).then(|| topk(self.topk, tokens.iter().map(|token| &token.top[..]))),
        }
    }
}

/// A matrix of the `k` most likely tokens in each row.
fn topk<'a>(k: usize, rows: impl Iterator<Item = &'a [Ranked]>) -> TopkLogprobs {
    let (mut token_ids, mut logprobs, mut length) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        length += 1;
        for i in 0..k {
            let (id, logp) = row.get(i).map_or(FILLER, |ranked| (ranked.id.cast_signed(), ranked.logp));
            token_ids.extend(id.to_le_bytes());
            logprobs.extend(logp.to_le_bytes());
        }
    }
    TopkLogprobs { token_ids, logprobs, k: k as u32, length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_written_as_the_recorded_bytes() {
        // Recorded from the wheel's own encoder: two datums of five targets each, with log-probability -1.
        let passed = Passed { logps: vec![vec![-1.0; 5]; 2], loss: 1.25, compared: Compared::default() };
        let bytes: String = output(&passed).encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "0a0b41727261795265636f7264",
            "12630a0b41727261795265636f7264",
            "12520a086c6f6770726f6273",
            "12460a28",
            &"000080bf".repeat(10),
            "121800000000000000001400000000000000",
            "2800000000000000",
            "18011802",
            "1a130a086c6f73733a73756d11000000000000f43f",
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn a_sequence_is_written_as_the_recorded_bytes() {
        let mut sequences = Sequences::new(1, 3, false);
        for (id, finish_reason) in [(100, None), (101, Some(FinishReason::Stop))] {
            let token = Ranked { id, logp: -1.0 };
            sequences.push(Token { prompt: 0, sample: 0, token, top: Vec::new(), finish_reason });
        }
        let bytes: String = sequences.response(&[], 0).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, "0a14120864000000650000001a08000080bf000080bf");
    }
}
