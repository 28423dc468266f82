//! Requests of the service, their checks, and the reasons to refuse one.

use super::load::ServiceSizes;
use model::net::LEAST_TEMPERATURE;
use rollout::SamplingParams;

/// The largest number of alternatives for each token.
const MOST_TOP_LOGPROBS: usize = 20;
/// The largest number of stop strings.
const MOST_STOPS: usize = 16;
/// The largest number of prompts of a request: their places are 16 bits of the number that decides random numbers.
const MOST_PROMPTS: usize = 1 << 16;

/// A request: `n` completions of each prompt. Its seed, the place of a prompt, the index of a sample and the index of a
/// token determine every random number.
#[derive(Clone, Debug, PartialEq)]
pub struct Generate {
    /// The name of the model or of the adapter.
    pub model: String,
    /// The prompts, as token ids.
    pub prompts: Vec<Vec<u32>>,
    /// The number of completions of each prompt.
    pub n: usize,
    /// The seed; `None`: random numbers from the server's seed and the number of the request.
    pub seed: Option<u64>,
    /// The maximum number of tokens of a completion; `None`: up to the end of the context.
    pub max_tokens: Option<usize>,
    /// Logits are divided by the temperature; 0 means greedy sampling.
    pub temperature: f64,
    /// Sample only from the smallest set of most likely tokens with at least this total probability.
    pub top_p: f64,
    /// Sample only from the `top_k` most likely tokens; 0 for all.
    pub top_k: usize,
    /// Sample only tokens with at least this fraction of the most likely token's probability.
    pub min_p: f64,
    /// Makes tokens that have occurred less likely if above 1.
    pub repetition_penalty: f64,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Ids that end a completion, besides those of the model.
    pub stop_token_ids: Vec<u32>,
    /// Whether the model's own end tokens do not end a completion.
    pub ignore_eos: bool,
    /// The number of most likely tokens to return at each position.
    pub top_logprobs: usize,
    /// Whether to return the log-probabilities of the prompt's tokens.
    pub prompt_logprobs: bool,
}

impl Default for Generate {
    fn default() -> Generate {
        let SamplingParams { temperature, top_p, top_k, min_p, repetition_penalty, .. } = SamplingParams::default();
        Generate {
            model: String::new(),
            prompts: Vec::new(),
            n: 1,
            seed: None,
            max_tokens: None,
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            top_logprobs: 0,
            prompt_logprobs: false,
        }
    }
}

/// The reason why a request is refused. Nothing of it is computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// A field has a wrong value.
    #[error("{message}")]
    Field {
        /// The name of the field in [`Generate`]; `prompt` for [`Generate::prompts`].
        field: &'static str,
        /// The value and the fix.
        message: String,
    },
    /// The prompt, or the prompt with the maximum number of tokens, does not fit the context.
    #[error("{0}")]
    ContextLength(String),
    /// No model has this name.
    #[error("The model `{model}` does not exist. This server has: {}.", known.join(", "))]
    NoSuchModel {
        /// The name in the request.
        model: String,
        /// All names.
        known: Vec<String>,
    },
    /// Too many completions are open.
    #[error(
        "The server has {open} open completions, and at most {most} may run and wait. Retry later, or start the server \
         with a larger --max-waiting."
    )]
    Busy {
        /// The number of open completions.
        open: usize,
        /// The largest number of open completions.
        most: usize,
    },
    /// The server stops.
    #[error("The server stops, and accepts no more requests.")]
    Stops,
    /// The owner thread has ended.
    #[error("The engine has ended. Restart the server; its log has the reason.")]
    Ended,
}

impl Refused {
    pub(super) fn field(field: &'static str, message: impl Into<String>) -> Refused {
        Refused::Field { field, message: message.into() }
    }
}

impl Generate {
    /// The number of completions.
    pub(super) fn completions(&self) -> usize {
        self.prompts.len().saturating_mul(self.n)
    }

    /// Checks all fields but the model. Returns the number of tokens that remain after the shortest prompt.
    pub(super) fn check(&self, vocab: usize, sizes: &ServiceSizes) -> Result<usize, Refused> {
        let within = |field, value: f64, fits: bool, expected: &str| {
            let refused = || Refused::field(field, format!("`{field}` is {value}: expected {expected}"));
            if fits { Ok(()) } else { Err(refused()) }
        };
        let count = |field, value: usize, least: usize, most: usize| {
            within(field, value as f64, (least..=most).contains(&value), &format!("{least} to {most}"))
        };
        let t = self.temperature;
        within("temperature", t, t == 0.0 || t >= LEAST_TEMPERATURE && t.is_finite(), "0 (greedy) or more")?;
        within("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "a number above 0, up to 1")?;
        within("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "a number from 0 to 1")?;
        let penalty = self.repetition_penalty;
        within("repetition_penalty", penalty, penalty > 0.0 && penalty.is_finite(), "a number above 0")?;
        count("n", self.n, 1, sizes.most_open())?;
        count("top_logprobs", self.top_logprobs, 0, MOST_TOP_LOGPROBS)?;
        if let Some(tokens) = self.max_tokens {
            within("max_tokens", tokens as f64, tokens > 0, "1 or more")?;
        }
        if self.stop.len() > MOST_STOPS || self.stop.iter().any(String::is_empty) {
            let message = format!("`stop` must have at most {MOST_STOPS} strings, and none may be empty");
            return Err(Refused::field("stop", message));
        }
        let is_outside = |ids: &[u32]| ids.iter().copied().find(|&id| id as usize >= vocab);
        if let Some(id) = is_outside(&self.stop_token_ids) {
            let message = format!("`stop_token_ids` has {id}, but the model's ids are below {vocab}");
            return Err(Refused::field("stop_token_ids", message));
        }
        if self.prompts.is_empty() || self.prompts.len() > MOST_PROMPTS {
            let message = format!("`prompt` has {} prompts: expected 1 to {MOST_PROMPTS}", self.prompts.len());
            return Err(Refused::field("prompt", message));
        }
        for prompt in &self.prompts {
            if prompt.is_empty() {
                return Err(Refused::field("prompt", "a prompt is empty: expected at least one token"));
            }
            if let Some(id) = is_outside(prompt) {
                let message = format!("a prompt has the token id {id}, but the model's ids are below {vocab}");
                return Err(Refused::field("prompt", message));
            }
            self.check_context(prompt.len(), sizes.max_model_len)?;
        }
        let (all, most) = (self.completions(), sizes.most_open());
        if all > most {
            let message = format!(
                "{} prompts with n = {} are {all} completions, but the server holds at most {most}: send fewer in a \
                 request, or start the server with a larger --max-waiting",
                self.prompts.len(),
                self.n
            );
            return Err(Refused::field("n", message));
        }
        let shortest = self.prompts.iter().map(Vec::len).min().unwrap_or(0);
        Ok(sizes.max_model_len - shortest)
    }

    fn check_context(&self, prompt: usize, most: usize) -> Result<(), Refused> {
        let wanted = self.max_tokens.unwrap_or(1);
        if prompt.saturating_add(wanted) <= most {
            return Ok(());
        }
        Err(Refused::ContextLength(match self.max_tokens {
            Some(tokens) => format!(
                "This model's maximum context length is {most} tokens, but the request has {prompt} in a prompt and up \
                 to {tokens} in a completion. Shorten the prompt or lower max_tokens."
            ),
            None => format!(
                "This model's maximum context length is {most} tokens, and a prompt of {prompt} tokens leaves no room. \
                 Shorten the prompt."
            ),
        }))
    }

    /// The engine's sampling parameters. `longest` is the maximum number of tokens without
    /// [`max_tokens`](Self::max_tokens).
    pub(super) fn sampling(&self, stop_ids: Vec<u32>, longest: usize, seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            max_new_tokens: self.max_tokens.unwrap_or(longest),
            stop_ids,
            stop_strings: self.stop.clone(),
            seed: self.seed.unwrap_or(seed),
            prompt_logprobs: self.prompt_logprobs,
            top_logprobs: self.top_logprobs,
            entropies: false,
        }
    }
}
