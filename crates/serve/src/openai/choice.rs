//! One completion of a response: its tokens become text and log-probabilities, in a stream in the same way as in a
//! whole response.

use super::tools::{self, CallParser};
use super::{Endpoint, Wanted};
use crate::error::ApiError;
use lockstep::service::{CompletionText, FinishReason, Ranked, Service, TextOptions, Token};
use serde_json::Value;

/// A token, as a response has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub id: u32,
    /// The text of the token alone, or `token_id:<id>`.
    pub name: String,
    /// The text of the token alone; empty without log-probabilities.
    pub text: String,
    /// The log-probability; the first token of a prompt has none.
    pub logp: Option<f32>,
    /// The most likely tokens at this position, with their log-probabilities.
    pub top: Vec<(String, f32)>,
    /// Whether the token belongs to the prompt, which is echoed.
    pub is_prompt: bool,
}

/// A completion that is being received.
pub struct Choice {
    /// The index in `choices`: all completions of the first prompt come first.
    pub index: usize,
    /// The place of the prompt in the request.
    pub prompt: usize,
    pub finish_reason: Option<FinishReason>,
    /// The number of tokens so far.
    pub tokens: usize,
    /// The number of characters of the tokens before the last one.
    pub offset: usize,
    characters: usize,
    text: CompletionText,
    parser: Option<CallParser>,
    /// Complete tool calls, as a response has them.
    pub calls: Vec<Value>,
}

impl Choice {
    /// The choices of a request, before their first tokens. `id` is the response's.
    pub fn all(service: &Service, wanted: &Wanted, id: &str) -> Vec<Choice> {
        let n = wanted.generate.n;
        let of = |index: usize| {
            let prompt = index / n;
            let text = service.text(&wanted.generate.prompts[prompt], &wanted.text);
            let parser = wanted.calls.as_ref().map(|calls| calls.parser(id, index));
            let calls = Vec::new();
            Choice { index, prompt, finish_reason: None, tokens: 0, offset: 0, characters: 0, text, parser, calls }
        };
        (0..wanted.generate.prompts.len() * n).map(of).collect()
    }

    /// Adds a token. Returns the text that is now complete, and the token.
    pub fn push(&mut self, wanted: &Wanted, token: &Token) -> Result<(String, Piece), ApiError> {
        let failed = |error: &dyn std::fmt::Display| ApiError::failed(format!("cannot decode a token: {error}"));
        let Ranked { id, logp } = token.token;
        let mut text = match wanted.endpoint {
            Endpoint::Generate => String::new(),
            _ => self.text.push(id, token.finish_reason).map_err(|error| failed(&error))?,
        };
        if let Some(parser) = &mut self.parser {
            text = parser.push(&text, token.finish_reason.is_some(), &mut self.calls);
        }
        (self.finish_reason, self.tokens, self.offset) = (token.finish_reason, self.tokens + 1, self.characters);
        let piece = piece(&mut self.text, wanted, id, Some(logp), &token.top).map_err(|error| failed(&error))?;
        self.characters += piece.text.chars().count();
        Ok((text, piece))
    }

    /// Why the completion ended, as a response names it.
    pub fn finish_name(&self) -> Option<&'static str> {
        let name = self.finish_reason?.name();
        Some(if self.finish_reason == Some(FinishReason::Stop) && !self.calls.is_empty() {
            tools::REASON
        } else {
            name
        })
    }
}

/// The token `id` after those that `text` has read.
fn piece(
    text: &mut CompletionText,
    wanted: &Wanted,
    id: u32,
    logp: Option<f32>,
    top: &[Ranked],
) -> Result<Piece, Box<dyn std::error::Error>> {
    let by_id = |id: u32| format!("token_id:{id}");
    let (own, others) = match wanted.logprobs {
        None => (String::new(), Vec::new()),
        Some(_) => text.piece(id, top.iter().map(|other| other.id))?,
    };
    let named =
        |(ranked, text): (&Ranked, String)| (if wanted.names_ids { by_id(ranked.id) } else { text }, ranked.logp);
    let top = top.iter().zip(others).map(named).collect();
    let name = if wanted.names_ids { by_id(id) } else { own.clone() };
    Ok(Piece { id, name, text: own, logp, top, is_prompt: false })
}

/// The text and the tokens of a prompt that is echoed. `logprobs` has the log-probability of each token but the first,
/// and the alternatives to the token.
pub fn echoed(
    service: &Service,
    wanted: &Wanted,
    prompt: &[u32],
    logprobs: &[(f32, Vec<Ranked>)],
) -> Result<(String, Vec<Piece>), ApiError> {
    let options = TextOptions { show_special: wanted.text.show_special, ..TextOptions::default() };
    let mut of = service.text(&[], &options);
    let (mut text, mut pieces) = (String::new(), Vec::new());
    for (place, &id) in prompt.iter().enumerate() {
        let is_last = place + 1 == prompt.len();
        let failed = |error: &dyn std::fmt::Display| ApiError::failed(format!("cannot decode the prompt: {error}"));
        text += &of.push(id, is_last.then_some(FinishReason::Length)).map_err(|error| failed(&error))?;
        let scored = place.checked_sub(1).and_then(|before| logprobs.get(before));
        let (logp, top) = scored.map_or((None, &[][..]), |(logp, top)| (Some(*logp), &top[..]));
        let own = piece(&mut of, wanted, id, logp, top).map_err(|error| failed(&error))?;
        pieces.push(Piece { is_prompt: true, ..own });
    }
    Ok((text, pieces))
}
