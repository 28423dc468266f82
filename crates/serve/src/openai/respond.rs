//! Waits for the events of a request, and writes them as one response or as a stream of server-sent events.

use super::choice::{Choice, Piece, echoed};
use super::{Endpoint, Wanted, chat, completions, generate, now};
use crate::error::{ApiError, answer};
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use lockstep::service::{Event, Ranked, Service, Ticket, Token};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The message of a request that was cancelled. Only its client cancels a request without a session.
const CANCELLED: &str = "the request was cancelled";
/// The number of the latest response, for the ids of responses.
static RESPONSES: AtomicU64 = AtomicU64::new(0);

/// A request whose events arrive. Dropping it, as the server does if the client leaves, cancels the request.
struct Pending {
    service: Service,
    wanted: Wanted,
    choices: Vec<Choice>,
    /// The prompts whose completions have not all ended.
    open: usize,
    /// The number of tokens of ended prompts that were in the prefix cache.
    cached_tokens: usize,
    /// Events that have arrived. A slow reader keeps at most the tokens of its own request here, and no KV-cache pages.
    events: UnboundedReceiver<Event>,
    _ticket: Ticket,
    id: String,
    created: u64,
}

/// Submits a request, and responds.
pub async fn respond(service: Service, wanted: Wanted) -> Result<Response, ApiError> {
    let (sender, events) = unbounded_channel();
    let deliver = move |event| sender.send(event).is_ok();
    let ticket = wanted.submit(&service, deliver)?;
    let number = RESPONSES.fetch_add(1, Ordering::Relaxed);
    let prefix = if wanted.endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
    let created = now();
    let id = wanted.request_id.clone().unwrap_or_else(|| format!("{prefix}-{created:x}-{number}"));
    let pending = Pending {
        choices: Choice::all(&service, &wanted, &id),
        open: wanted.generate.prompts.len(),
        cached_tokens: 0,
        id,
        service,
        wanted,
        events,
        _ticket: ticket,
        created,
    };
    if pending.wanted.stream { Ok(pending.streamed()) } else { pending.whole().await }
}

impl Pending {
    async fn next(&mut self) -> Event {
        let ended = || Event::Failed("the engine has ended: the server's log has the reason".to_owned());
        self.events.recv().await.unwrap_or_else(ended)
    }

    /// The index of a token's completion in `choices`.
    fn index(&self, token: &Token) -> usize {
        token.prompt * self.wanted.generate.n + token.sample
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut texts: Vec<(String, Vec<Piece>)> = self.choices.iter().map(|_| Default::default()).collect();
        let mut scored: Vec<Vec<(f32, Vec<Ranked>)>> = vec![Vec::new(); self.wanted.generate.prompts.len()];
        while self.open > 0 {
            match self.next().await {
                Event::Token(token) => {
                    let index = self.index(&token);
                    let (text, piece) = self.choices[index].push(&self.wanted, &token)?;
                    texts[index].0 += &text;
                    texts[index].1.push(piece);
                }
                Event::Ended { prompt, prompt_logprobs, cached_tokens } => {
                    self.cached_tokens += cached_tokens;
                    scored[prompt] = prompt_logprobs;
                    self.open -= 1;
                }
                Event::Failed(message) => return Err(ApiError::failed(message)),
                Event::Cancelled => return Err(ApiError::failed(CANCELLED)),
            }
        }
        let Pending { wanted, choices, service, .. } = &self;
        let of = |(choice, (text, mut pieces)): (&Choice, (String, Vec<Piece>))| {
            let mut text = text;
            if wanted.echo {
                let prompt = &wanted.generate.prompts[choice.prompt];
                let (before, prompt_pieces) = echoed(service, wanted, prompt, &scored[choice.prompt])?;
                (text, pieces) = (before + &text, [prompt_pieces, pieces].concat());
            }
            Ok(match wanted.endpoint {
                Endpoint::Completions => completions::choice(wanted, choice, &text, &pieces, true),
                Endpoint::Chat => chat::choice(wanted, choice, &text, &pieces),
                Endpoint::Generate => generate::choice(wanted, choice, &pieces),
            })
        };
        let all = choices.iter().zip(texts).map(of).collect::<Result<Vec<Value>, ApiError>>()?;
        let mut response = self.envelope("", all);
        response["usage"] = self.usage();
        if wanted.endpoint == Endpoint::Chat && wanted.return_token_ids {
            response["prompt_token_ids"] = json!(wanted.generate.prompts[0]);
        }
        Ok(answer(&response))
    }

    fn usage(&self) -> Value {
        self.wanted.usage(self.choices.iter().map(|choice| choice.tokens).sum(), self.cached_tokens)
    }

    /// The fields around `choices`.
    fn envelope(&self, chunk: &str, choices: Vec<Value>) -> Value {
        let model = &self.wanted.generate.model;
        match self.wanted.endpoint {
            Endpoint::Generate => {
                json!({"request_id": self.id, "model": model, "created": self.created, "choices": choices})
            }
            endpoint => {
                let kind = if endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
                let object = format!("{kind}{chunk}");
                json!({"id": self.id, "object": object, "created": self.created, "model": model, "choices": choices})
            }
        }
    }

    /// A chunk of a stream.
    fn chunk(&self, choices: Vec<Value>) -> Value {
        // Only the chunks of a chat have a type of their own.
        self.envelope(if self.wanted.endpoint == Endpoint::Chat { ".chunk" } else { "" }, choices)
    }

    /// The first chunks: the roles of a chat.
    fn first(&self) -> VecDeque<Value> {
        if self.wanted.endpoint != Endpoint::Chat {
            return VecDeque::new();
        }
        let of = |choice: &Choice| {
            let delta = json!({"role": "assistant", "content": ""});
            let mut chunk = self.chunk(vec![chat::chunk(&self.wanted, choice, &[], delta)]);
            if self.wanted.return_token_ids {
                chunk["prompt_token_ids"] = json!(self.wanted.generate.prompts[0]);
            }
            chunk
        };
        self.choices.iter().map(of).collect()
    }

    /// The chunks of a token.
    fn chunks(&mut self, token: &Token) -> Result<Vec<Value>, ApiError> {
        let index = self.index(token);
        let known = self.choices[index].calls.len();
        let (text, piece) = self.choices[index].push(&self.wanted, token)?;
        let (choice, pieces) = (&self.choices[index], [piece]);
        if self.wanted.endpoint != Endpoint::Chat {
            let one = completions::choice(&self.wanted, choice, &text, &pieces, choice.tokens == 1);
            return Ok(vec![self.chunk(vec![one])]);
        }
        let mut chunks = vec![self.chunk(vec![chat::chunk(&self.wanted, choice, &pieces, json!({"content": text}))])];
        for (place, call) in choice.calls.iter().enumerate().skip(known) {
            let mut call = call.clone();
            call["index"] = json!(place);
            chunks.push(self.chunk(vec![chat::chunk(&self.wanted, choice, &[], json!({"tool_calls": [call]}))]));
        }
        if let Some(reason) = choice.finish_name() {
            let mut last = chat::chunk(&self.wanted, choice, &[], json!({}));
            last["finish_reason"] = json!(reason);
            chunks.push(self.chunk(vec![last]));
        }
        Ok(chunks)
    }

    fn streamed(self) -> Response {
        let first = self.first();
        let next = |state: Option<(Pending, VecDeque<Value>)>| async move {
            let (mut pending, mut ready) = state?;
            loop {
                if let Some(chunk) = ready.pop_front() {
                    return Some((Ok::<_, Infallible>(format!("data: {chunk}\n\n")), Some((pending, ready))));
                }
                if pending.open == 0 {
                    let mut end = String::new();
                    if pending.wanted.include_usage {
                        let mut chunk = pending.chunk(Vec::new());
                        chunk["usage"] = pending.usage();
                        end = format!("data: {chunk}\n\n");
                    }
                    return Some((Ok(end + "data: [DONE]\n\n"), None));
                }
                let more = match pending.next().await {
                    Event::Token(token) => pending.chunks(&token),
                    Event::Ended { cached_tokens, .. } => {
                        pending.cached_tokens += cached_tokens;
                        pending.open -= 1;
                        Ok(Vec::new())
                    }
                    Event::Failed(message) => Err(ApiError::failed(message)),
                    Event::Cancelled => Err(ApiError::failed(CANCELLED)),
                };
                match more {
                    Ok(chunks) => ready.extend(chunks),
                    // The status is already sent, so the error is an event.
                    Err(error) => return Some((Ok(format!("data: {}\n\n", error.to_json())), None)),
                }
            }
        };
        let body = Body::from_stream(stream::unfold(Some((self, first)), next));
        ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], body).into_response()
    }
}
