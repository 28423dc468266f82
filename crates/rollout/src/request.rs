//! Requests and what becomes of them: the types that go in and out of the engine.

use crate::models::ModelVersion;
use crate::{Error, Result};
use model::columns::{Column, ENTROPIES, SAMPLER_LOGPS, TOP_IDS, TOP_LOGPS, Values};
use model::{Columns, Prompt};
use std::sync::Arc;

/// How tokens are drawn. The names are transformers'.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 is greedy.
    pub temperature: f64,
    /// Only the `top_k` most likely tokens; 0 for all.
    pub top_k: usize,
    /// Only the most likely tokens that hold this much probability together; 1 for all.
    pub top_p: f64,
    /// Only tokens at least this times as likely as the most likely; 0 for all.
    pub min_p: f64,
    /// Logits of tokens seen before are divided by it where positive, multiplied where negative; 1 for no penalty.
    pub repetition_penalty: f64,
    /// A completion has at most this many tokens.
    pub max_new_tokens: usize,
    /// Tokens that end a completion; they are part of it.
    pub stop_ids: Vec<u32>,
    /// Texts that end a completion.
    pub stop_strings: Vec<String>,
    /// The run's seed: the key of all noise.
    pub seed: u64,
    /// Whether the log-probabilities of the prompt's tokens are wanted, too.
    pub prompt_logprobs: bool,
    /// How many of the likeliest tokens are reported beside each one, of the prompt's only with `prompt_logprobs`.
    pub top_logprobs: usize,
    /// Whether the entropy at each sampled token is wanted, too. Its row goes through the head once more.
    pub entropies: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_new_tokens: 256,
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            seed: 0,
            prompt_logprobs: false,
            top_logprobs: 0,
            entropies: false,
        }
    }
}

/// A prompt and how many completions it wants.
#[derive(Clone, Debug)]
pub struct Request {
    /// The group's number, unique in the run: with the generation and the token index it names every draw, so that
    /// noise does not depend on scheduling and a prompt drawn again gets new noise.
    pub id: u64,
    /// The prompt.
    pub prompt: Arc<Prompt>,
    /// Completions.
    pub num_generations: usize,
    /// How tokens are drawn.
    pub sampling: Arc<SamplingParams>,
    /// A completion that reaches a stop id or a stop string waits for [`crate::Engine::extend`] or
    /// [`crate::Engine::finish`] instead of ending (tools, several turns).
    pub pause_on_stop: bool,
    /// The weights that it is computed with, which every step must then be given; none: those of each step, whose new
    /// versions are used at once.
    pub model: Option<ModelVersion>,
    /// What completions have so far, one each; nothing if they begin here. Those that are
    /// [`Unfinished`](FinishReason::Unfinished) continue as if they had never stopped: their keys and values are
    /// computed again, and what was recorded of their tokens stays. The others stay as they are.
    pub so_far: Vec<Completion>,
    /// A completion that has so many tokens and has not ended is given away [`Unfinished`](FinishReason::Unfinished).
    pub until: Option<usize>,
}

impl Request {
    /// A request for `num_generations` completions that end by themselves, with the weights of each step.
    pub fn new(id: u64, prompt: Arc<Prompt>, num_generations: usize, sampling: Arc<SamplingParams>) -> Request {
        let (so_far, until) = (Vec::new(), None);
        Request { id, prompt, num_generations, sampling, pause_on_stop: false, model: None, so_far, until }
    }

    /// What of [`so_far`](Self::so_far) is none of this request's.
    pub(crate) fn check_so_far(&self, max_model_len: usize) -> Result<()> {
        if self.so_far.is_empty() {
            return Ok(());
        }
        let (wanted, found) = (self.num_generations, self.so_far.len());
        let most = self.sampling.max_new_tokens.min(max_model_len - self.prompt.ids.len());
        let most = self.until.map_or(most, |until| until.min(most));
        let wrong = |c: &Completion| match c.is_unfinished() {
            _ if !c.is_whole(&self.sampling) => Some("lacks what is recorded of each token"),
            true if c.ids.is_empty() => Some("has no token, and is not finished"),
            true if c.ids.len() >= most => Some("is as long as it may become, and is not finished"),
            _ => None,
        };
        let mut all = self.so_far.iter().enumerate();
        let what = match all.find_map(|(place, c)| Some((place, wrong(c)?))) {
            _ if wanted != found => format!("there are {found} of {wanted}"),
            _ if self.so_far.iter().enumerate().any(|(place, c)| c.generation != place) => "their order".to_owned(),
            Some((place, what)) => format!("number {place} {what}"),
            None if !self.so_far.iter().any(Completion::is_unfinished) => "all of them have ended".to_owned(),
            None => return Ok(()),
        };
        Err(Error::CannotContinue { id: self.id, what })
    }
}

/// A request that the engine has accepted. It means nothing to another engine, and nothing once the request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(crate) index: usize,
    pub(crate) serial: u64,
}

/// A sequence of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    pub(crate) index: usize,
    pub(crate) serial: u64,
}

/// A token as it was drawn, for streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// What [`Engine::submit`](crate::Engine::submit) gave for its request.
    pub request: RequestId,
    /// Its sequence.
    pub sequence: SequenceId,
    /// [`Request::id`]
    pub group: u64,
    /// Which completion of the group.
    pub generation: usize,
    /// Its place in the completion.
    pub index: usize,
    /// The token.
    pub id: u32,
    /// Its log-probability, as [`Completion::logps`] has it.
    pub logp: f32,
    /// Why the completion ended with it, if it did.
    pub finish_reason: Option<FinishReason>,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id or a stop string.
    Stop,
    /// `max_new_tokens`, or the end of the context.
    Length,
    /// It has not ended: [`Request::until`].
    Unfinished,
}

impl FinishReason {
    /// As servers write it.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Unfinished => "unfinished",
        }
    }
}

/// What a request became: a prompt and its completions.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutGroup {
    /// [`Request::id`]
    pub id: u64,
    /// The prompt of the request, the same by identity.
    pub prompt: Arc<Prompt>,
    /// All of them, by their generation.
    pub completions: Vec<Completion>,
    /// With [`SamplingParams::prompt_logprobs`], what is known of each token of the prompt but the first; else nothing.
    pub prompt_columns: Columns,
}

impl RolloutGroup {
    /// A group of these completions.
    pub fn new(id: u64, prompt: Arc<Prompt>, completions: Vec<Completion>) -> RolloutGroup {
        RolloutGroup { id, prompt, completions, prompt_columns: Columns::default() }
    }

    /// Whether a completion is to be continued.
    pub fn is_unfinished(&self) -> bool {
        self.completions.iter().any(Completion::is_unfinished)
    }
}

/// One sequence after a prompt. Lists have one element per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Which of the group's episodes it is of. An episode is one sequence, whatever turns it has; one of several
    /// (agents that talk, a context that is rewritten) is several completions of one number.
    pub generation: usize,
    /// Token ids, the stop id included.
    pub ids: Vec<u32>,
    /// Whether the model sampled the token.
    pub mask: Vec<bool>,
    /// Version of the weights that the token was sampled with.
    pub versions: Vec<u64>,
    /// What is known of each token. The engine records [`SAMPLER_LOGPS`](model::columns::SAMPLER_LOGPS): log-softmax of
    /// all logits / T, before penalty and truncation (T = 1 when greedy); 0 where the model did not sample. With
    /// [`SamplingParams::top_logprobs`] = k also [`TOP_IDS`](model::columns::TOP_IDS) and
    /// [`TOP_LOGPS`](model::columns::TOP_LOGPS), k wide; with [`SamplingParams::entropies`]
    /// [`ENTROPIES`](model::columns::ENTROPIES), 0 where the model did not sample.
    pub columns: Columns,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

impl Completion {
    /// [`SAMPLER_LOGPS`](model::columns::SAMPLER_LOGPS); empty if they are not known.
    pub fn logps(&self) -> &[f32] {
        self.columns.sampler_logps().unwrap_or_default()
    }

    /// Whether it is to be continued.
    pub fn is_unfinished(&self) -> bool {
        self.finish_reason == FinishReason::Unfinished
    }

    /// Whether it has what an engine records with this sampling of each of its tokens.
    pub fn is_whole(&self, sampling: &SamplingParams) -> bool {
        let tokens = self.ids.len();
        let number = |name: &str, wanted: bool| match self.columns.f32(name) {
            Some(values) => wanted && values.len() == tokens,
            None => !wanted,
        };
        let top = match (self.columns.get(TOP_IDS), self.columns.get(TOP_LOGPS)) {
            (None, None) => sampling.top_logprobs == 0 || tokens == 0,
            (
                Some(Column { width, values: Values::U32(ids) }),
                Some(Column { width: same, values: Values::F32(logps) }),
            ) => {
                let all = width * tokens;
                width == same && *width <= sampling.top_logprobs && [ids.len(), logps.len()] == [all; 2]
            }
            _ => false,
        };
        [self.mask.len(), self.versions.len()] == [tokens; 2]
            && number(SAMPLER_LOGPS, true)
            && number(ENTROPIES, sampling.entropies && tokens > 0)
            && top
    }
}

/// Ids to text, for stop strings.
pub trait Detokenize: Send + Sync {
    /// The text of `ids`.
    fn decode(&self, ids: &[u32]) -> String;
}

/// Special tokens are kept, so that one may be a stop string.
impl Detokenize for model::Tokenizer {
    fn decode(&self, ids: &[u32]) -> String {
        // Decoding fails for no ids of a vocabulary; text that cannot be made holds no stop string.
        model::Tokenizer::decode(self, ids, false).unwrap_or_default()
    }
}
