//! The endpoints. Each reads a request into a [`Wanted`], and writes the events of the service as OpenAI's or vLLM's
//! JSON: `completions`, `chat` and `generate`. `tools` reads and writes the tools of a chat, `choice` turns tokens into
//! text and log-probabilities, `respond` waits for events and writes the whole response or a stream.

mod chat;
mod choice;
mod completions;
mod generate;
mod respond;
pub mod tools;

pub use respond::respond;

use crate::body::Object;
use crate::error::ApiError;
use lockstep::service::{Event, Generate, Service, TextOptions, Ticket};
use serde_json::{Value, json};
use tools::Calls;

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Completions,
    Chat,
    Generate,
}

/// A request as an endpoint has read it.
#[derive(Clone, Debug)]
pub struct Wanted {
    endpoint: Endpoint,
    generate: Generate,
    text: TextOptions,
    stream: bool,
    /// Whether a stream ends with a chunk about usage.
    include_usage: bool,
    /// The number of alternatives for each token; `None`: no log-probabilities.
    logprobs: Option<usize>,
    /// Whether token ids are returned.
    return_token_ids: bool,
    /// Whether tokens in log-probabilities are `token_id:<id>` in place of their text.
    names_ids: bool,
    /// Whether the text begins with the prompt.
    echo: bool,
    /// The id that the client gave to the request.
    request_id: Option<String>,
    /// How tool calls are separated from text; `None`: they are not.
    calls: Option<Calls>,
}

impl Wanted {
    /// Reads a request. Encoding text takes time, so this runs on a thread that may block.
    pub fn read(endpoint: Endpoint, service: &Service, bytes: &[u8]) -> Result<Wanted, ApiError> {
        match endpoint {
            Endpoint::Completions => completions::read(service, bytes),
            Endpoint::Chat => chat::read(service, bytes),
            Endpoint::Generate => generate::read(service, bytes),
        }
    }

    /// Reads the fields that all endpoints share from `object`. The prompts are still empty.
    fn sampled(endpoint: Endpoint, service: &Service, model: Option<String>, o: &Object) -> Result<Wanted, ApiError> {
        let model = match model {
            Some(model) => model,
            // vLLM's token endpoint may omit the name.
            None if endpoint == Endpoint::Generate => service.models().next().unwrap_or_default().to_owned(),
            None => return Err(ApiError::field("model", "`model` is missing: GET /v1/models lists the names")),
        };
        let usual = Generate::default();
        let generate = Generate {
            model,
            n: o.count("n")?.unwrap_or(1),
            seed: o.seed("seed")?,
            max_tokens: o.count("max_tokens")?,
            temperature: o.number("temperature")?.unwrap_or(usual.temperature),
            top_p: o.number("top_p")?.unwrap_or(usual.top_p),
            // vLLM also writes -1 for all tokens.
            top_k: if o.number("top_k")? == Some(-1.0) { 0 } else { o.count("top_k")?.unwrap_or(usual.top_k) },
            min_p: o.number("min_p")?.unwrap_or(usual.min_p),
            repetition_penalty: o.number("repetition_penalty")?.unwrap_or(usual.repetition_penalty),
            stop: o.texts("stop")?,
            stop_token_ids: o.ids("stop_token_ids")?,
            ignore_eos: o.flag("ignore_eos")?.unwrap_or(false),
            ..usual
        };
        let text = TextOptions {
            stop: generate.stop.clone(),
            stop_ids: service.stop_ids(&generate),
            show_special: !o.flag("skip_special_tokens")?.unwrap_or(true),
        };
        Ok(Wanted {
            endpoint,
            generate,
            text,
            stream: false,
            include_usage: false,
            logprobs: None,
            return_token_ids: o.flag("return_token_ids")?.unwrap_or(false),
            names_ids: o.flag("return_tokens_as_token_ids")?.unwrap_or(false),
            echo: false,
            request_id: None,
            calls: None,
        })
    }

    /// Reads `stream` and `stream_options`.
    fn with_stream(mut self, o: &mut Object) -> Result<Wanted, ApiError> {
        self.stream = o.flag("stream")?.unwrap_or(false);
        let Some(options) = o.take("stream_options") else { return Ok(self) };
        if !self.stream {
            return Err(ApiError::field("stream_options", "`stream_options` needs \"stream\": true"));
        }
        let known = |options: &Value| {
            let mut include = false;
            for (name, value) in options.as_object()? {
                match name.as_str() {
                    "include_usage" => include = value.as_bool()?,
                    // Padding against observers of an encrypted connection, which this server does not have.
                    "include_obfuscation" => drop(value.as_bool()?),
                    "continuous_usage_stats" if *value == false => {}
                    _ => return None,
                }
            }
            Some(include)
        };
        self.include_usage = known(&options).ok_or_else(|| {
            crate::body::wrong("stream_options", &options, "an object with include_usage: true or false")
        })?;
        Ok(self)
    }

    /// Sets the number of alternatives for each token; `None`: no log-probabilities.
    fn with_logprobs(mut self, logprobs: Option<usize>) -> Wanted {
        self.logprobs = logprobs;
        self.generate.top_logprobs = logprobs.unwrap_or(0);
        self
    }

    /// Submits the request. Errors name this endpoint's fields.
    pub fn submit(
        &self,
        service: &Service,
        deliver: impl Fn(Event) -> bool + Send + Sync + 'static,
    ) -> Result<Ticket, ApiError> {
        service.generate(self.generate.clone(), deliver).map_err(|refused| self.own_name(refused.into()))
    }

    fn prompt_tokens(&self) -> usize {
        self.generate.prompts.iter().map(Vec::len).sum()
    }

    /// OpenAI's `usage` after this many generated tokens. The prefix cache had `cached_tokens` of the prompts.
    fn usage(&self, completion_tokens: usize, cached_tokens: usize) -> Value {
        let prompt_tokens = self.prompt_tokens();
        let total_tokens = prompt_tokens + completion_tokens;
        json!({
            "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        })
    }

    /// The name of a field of the service's request in this endpoint's request.
    fn own_name(&self, mut error: ApiError) -> ApiError {
        let param = error.param.as_deref().map(|param| match (self.endpoint, param) {
            (Endpoint::Chat, "prompt") => "messages",
            (Endpoint::Generate, "prompt") => "token_ids",
            (Endpoint::Completions | Endpoint::Generate, "top_logprobs") => "logprobs",
            (_, other) => other,
        });
        error.param = param.map(str::to_owned);
        error
    }
}

/// Seconds since 1970, as in `created`.
pub fn now() -> u64 {
    telemetry::system::since_1970().as_secs()
}

/// The response of `/v1/models`.
pub fn models(service: &Service, created: u64) -> Value {
    let base = service.models().next().unwrap_or_default().to_owned();
    let of = |name: &str| {
        let parent = (name != base).then_some(&base);
        json!({
            "id": name, "object": "model", "created": created, "owned_by": "lockstep", "root": name,
            "parent": parent, "max_model_len": service.sizes().max_model_len,
        })
    };
    json!({"object": "list", "data": service.models().map(of).collect::<Vec<_>>()})
}
