//! `/inference/v1/generate`, vLLM's endpoint of tokens: ids in, ids and log-probabilities out, no text.

use super::choice::{Choice, Piece};
use super::{Endpoint, Wanted};
use crate::body::Object;
use crate::error::ApiError;
use crate::fields::Of;
use lockstep::service::Service;
use serde_json::{Value, json};

pub fn read(service: &Service, bytes: &[u8]) -> Result<Wanted, ApiError> {
    let mut o = Object::parse(Of::Generate, bytes)?;
    let sampling = o.object("sampling_params", Of::Sampling)?;
    if o.flag("stream")?.unwrap_or(false) {
        let message = "`stream` = true is not supported here: use /v1/completions with token ids";
        return Err(ApiError::field("stream", message).with_code("unsupported_parameter"));
    }
    let mut wanted = Wanted::sampled(Endpoint::Generate, service, o.text("model")?, &sampling)?
        // Clients that train write 1 for the sampled token's log-probability. Alternatives cost the lm head once more.
        .with_logprobs(sampling.count("logprobs")?.map(|k| if k == 1 { 0 } else { k }));
    if !o.has("token_ids") {
        return Err(ApiError::field("token_ids", "`token_ids` is missing"));
    }
    wanted.request_id = o.text("request_id")?;
    wanted.generate.prompts = vec![o.ids("token_ids")?];
    wanted.names_ids = true;
    Ok(wanted)
}

/// An element of `choices`.
pub fn choice(wanted: &Wanted, choice: &Choice, pieces: &[Piece]) -> Value {
    let entry = |name: &str, logp: Option<f32>| json!({"token": name, "logprob": logp, "bytes": null});
    let of = |piece: &Piece| {
        let mut own = entry(&piece.name, piece.logp);
        own["top_logprobs"] = piece.top.iter().map(|(name, logp)| entry(name, Some(*logp))).collect();
        own
    };
    let logprobs = wanted.logprobs.map(|_| json!({"content": pieces.iter().map(of).collect::<Vec<_>>()}));
    json!({
        "index": choice.index, "token_ids": pieces.iter().map(|piece| piece.id).collect::<Vec<_>>(),
        "finish_reason": choice.finish_reason.map(lockstep::service::FinishReason::name), "logprobs": logprobs,
    })
}
