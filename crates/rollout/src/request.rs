//! The inputs and outputs of the engine: requests, sampling parameters, completions and groups.

use crate::models::ModelVersion;
use crate::{Error, Result};
pub use model::FinishReason;
use model::columns::{Column, ENTROPIES, SAMPLER_LOGPS, TOP_IDS, TOP_LOGPS, Values};
use model::{Columns, GroupId, Prompt, Updates};
use std::sync::Arc;

/// The sampling parameters of a request, with transformers' names.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by the temperature; 0 means greedy sampling.
    pub temperature: f64,
    /// Sample only from the `top_k` most likely tokens; 0 for all.
    pub top_k: usize,
    /// Sample only from the smallest set of most likely tokens with at least this total probability; 1 for all.
    pub top_p: f64,
    /// Sample only tokens with at least this fraction of the most likely token's probability; 0 for all.
    pub min_p: f64,
    /// For tokens that have occurred before, positive logits are divided by this and negative ones multiplied by it; 1
    /// for no penalty.
    pub repetition_penalty: f64,
    /// The maximum number of tokens of a completion.
    pub max_new_tokens: usize,
    /// Ids of tokens that end a completion. The token is part of the completion.
    pub stop_ids: Vec<u32>,
    /// Strings that end a completion once its text contains one of them.
    pub stop_strings: Vec<String>,
    /// The seed of the training run: the key of all random numbers.
    pub seed: u64,
    /// Whether to also return the log-probabilities of the prompt's tokens.
    pub prompt_logprobs: bool,
    /// The number of most likely tokens to return for each sampled token, and with `prompt_logprobs` also for each
    /// prompt token.
    pub top_logprobs: usize,
    /// Whether to return the entropy at each sampled token. This computes the lm head once more for the token's row.
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

/// A request for completions of one prompt.
#[derive(Clone, Debug)]
pub struct Request {
    /// The group, which must be unique in the training run. The group, the index of the completion and the index of the
    /// token determine the random numbers of every draw. So the random numbers do not depend on scheduling, and
    /// sampling a prompt again (as another group) gives new ones.
    pub group: GroupId,
    /// The prompt, shared by all completions.
    pub prompt: Arc<Prompt>,
    /// Number of completions of the prompt.
    pub num_generations: usize,
    /// The sampling parameters of all completions.
    pub sampling: Arc<SamplingParams>,
    /// Whether a completion that reaches a stop id or a stop string is paused instead of ended. It then waits for
    /// [`crate::Engine::extend`] or [`crate::Engine::finish`] (for tools and multi-turn conversations).
    pub pause_on_stop: bool,
    /// The version of the weights to sample with. Every step must then get these weights. `None`: the current weights
    /// of each step.
    pub model: Option<ModelVersion>,
    /// The completions that this request continues; empty if it begins all of them.
    /// [`Unfinished`](FinishReason::Unfinished) completions continue as if they had never stopped: keys and values are
    /// recomputed, and the records of their tokens are kept. Other completions are not changed.
    pub so_far: Vec<Completion>,
    /// A completion that reaches this many tokens before it ends is returned as
    /// [`Unfinished`](FinishReason::Unfinished).
    pub until: Option<usize>,
}

impl Request {
    /// A request for `num_generations` completions, sampled with the current weights of each step and never paused.
    pub fn new(group: GroupId, prompt: Arc<Prompt>, num_generations: usize, sampling: Arc<SamplingParams>) -> Request {
        let (so_far, until) = (Vec::new(), None);
        Request { group, prompt, num_generations, sampling, pause_on_stop: false, model: None, so_far, until }
    }

    /// The largest number of tokens of a completion, if a sequence has at most `max_model_len` tokens.
    pub(crate) fn most_new_tokens(&self, max_model_len: usize) -> usize {
        self.sampling.max_new_tokens.min(max_model_len.saturating_sub(self.prompt.ids.len()))
    }

    /// Fails if [`so_far`](Self::so_far) does not fit this request.
    pub(crate) fn check_so_far(&self, max_model_len: usize) -> Result<()> {
        if self.so_far.is_empty() {
            return Ok(());
        }
        let (wanted, found) = (self.num_generations, self.so_far.len());
        let most = self.most_new_tokens(max_model_len);
        let most = self.until.map_or(most, |until| until.min(most));
        let wrong = |c: &Completion| match c.is_unfinished() {
            _ if !c.is_whole(&self.sampling) => Some("has incomplete columns"),
            true if c.ids.is_empty() => Some("has no tokens but is unfinished"),
            true if c.ids.len() >= most => Some("has reached its maximum length but is unfinished"),
            _ => None,
        };
        let mut all = self.so_far.iter().enumerate();
        let what = match all.find_map(|(place, c)| Some((place, wrong(c)?))) {
            _ if wanted != found => format!("expected {wanted} completions, got {found}"),
            _ if self.so_far.iter().enumerate().any(|(place, c)| c.generation != place) => {
                "their indices are not in order".to_owned()
            }
            Some((place, what)) => format!("completion {place} {what}"),
            None if !self.so_far.iter().any(Completion::is_unfinished) => {
                "all of them have already finished".to_owned()
            }
            None => return Ok(()),
        };
        Err(Error::CannotContinue { group: self.group, what })
    }
}

/// The id of a request that an engine has accepted. It is valid only for that engine and only until the request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(crate) index: usize,
    pub(crate) serial: u64,
}

/// Id of a sequence of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    pub(crate) index: usize,
    pub(crate) serial: u64,
}

/// A token that was drawn in a step, for streaming.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// The id that [`Engine::submit`](crate::Engine::submit) returned for the request.
    pub request: RequestId,
    /// The sequence that got the token.
    pub sequence: SequenceId,
    /// The group, [`Request::group`].
    pub group: GroupId,
    /// Index of the completion in the group.
    pub generation: usize,
    /// Index of the token in the completion.
    pub index: usize,
    /// Id of the token.
    pub id: u32,
    /// Log-probability of the token, as in [`Completion::logps`].
    pub logp: f32,
    /// The reason why the completion ended with this token, if it did.
    pub finish_reason: Option<FinishReason>,
}

/// The result of a request: a prompt and its completions.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutGroup {
    /// The group of the request, [`Request::group`].
    pub group: GroupId,
    /// The prompt of the request (the same shared object).
    pub prompt: Arc<Prompt>,
    /// All completions, ordered by [`Completion::generation`].
    pub completions: Vec<Completion>,
    /// With [`SamplingParams::prompt_logprobs`], columns with one element for each prompt token except the first.
    /// Otherwise empty.
    pub prompt_columns: Columns,
}

impl RolloutGroup {
    /// A group with these completions.
    pub fn new(group: GroupId, prompt: Arc<Prompt>, completions: Vec<Completion>) -> RolloutGroup {
        RolloutGroup { group, prompt, completions, prompt_columns: Columns::default() }
    }

    /// Whether a completion of the group is unfinished, and can be continued.
    pub fn is_unfinished(&self) -> bool {
        self.completions.iter().any(Completion::is_unfinished)
    }
}

/// A completion: the tokens after a prompt. Lists have one element per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The index of the episode in the group. Usually an episode is one sequence, however many turns it has. An episode
    /// of several sequences (several agents, or a context that is rewritten) is several completions with the same
    /// index.
    pub generation: usize,
    /// Token ids, including the stop id.
    pub ids: Vec<u32>,
    /// Whether the model sampled the token (otherwise it was inserted).
    pub sampled: Vec<bool>,
    /// The version of the weights with which the token was sampled.
    pub versions: Vec<Updates>,
    /// Further columns with a value per token. The engine records [`SAMPLER_LOGPS`](model::columns::SAMPLER_LOGPS):
    /// log-softmax of all logits / T, before penalty and truncation (T = 1 for greedy sampling); 0 for tokens that the
    /// model did not sample. With [`SamplingParams::top_logprobs`] = k there are also
    /// [`TOP_IDS`](model::columns::TOP_IDS) and [`TOP_LOGPS`](model::columns::TOP_LOGPS), with k values per token; with
    /// [`SamplingParams::entropies`] also [`ENTROPIES`](model::columns::ENTROPIES), 0 for tokens that the model did not
    /// sample.
    pub columns: Columns,
    /// The reason why the completion ended.
    pub finish_reason: FinishReason,
}

impl Completion {
    /// The sampler's log-probability of each token ([`SAMPLER_LOGPS`](model::columns::SAMPLER_LOGPS)); empty if
    /// unknown.
    pub fn logps(&self) -> &[f32] {
        self.columns.sampler_logps().unwrap_or_default()
    }

    /// The number of tokens that the model sampled.
    pub fn sampled_tokens(&self) -> usize {
        self.sampled.iter().filter(|&&sampled| sampled).count()
    }

    /// Whether the completion is unfinished, and can be continued.
    pub fn is_unfinished(&self) -> bool {
        self.finish_reason == FinishReason::Unfinished
    }

    /// Whether the completion has all columns that an engine records with these sampling parameters, for each token.
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
        [self.sampled.len(), self.versions.len()] == [tokens; 2]
            && number(SAMPLER_LOGPS, true)
            && number(ENTROPIES, sampling.entropies && tokens > 0)
            && top
    }
}

/// Converts token ids to text, for stop strings.
pub trait Detokenize: Send + Sync {
    /// The text of `ids`.
    fn decode(&self, ids: &[u32]) -> String;
}

/// Special tokens are decoded as text, so that they can be stop strings.
impl Detokenize for model::Tokenizer {
    fn decode(&self, ids: &[u32]) -> String {
        // Decoding does not fail for ids of the vocabulary. An empty text contains no stop string.
        model::Tokenizer::decode(self, ids, false).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
