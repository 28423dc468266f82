//! Completions from a function of the calling program (TRL's `rollout_func`), which may use the engine, an environment
//! or another model. This module knows nothing of reward functions.

use super::scoring::{GivenColumns, Prompts};
use crate::bad_input;
use crate::data::prompts::Prompt;
use crate::error::{BadInput, OrBadInput};
use anyhow::Context as _;
use kernels::Context;
use model::chat::{ChatTemplate, PromptEncoder};
use model::columns::SAMPLER_LOGPS;
use model::tokenizer::Tokenizer;
use model::{Columns, GroupId, ModelView, PromptCompletion, Scorer, Updates};
use rewards::Content;
use rollout::{Completion, Engine, FinishReason, Request, RolloutGroup, SamplingParams};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The prompts that a [`RolloutFunction`] must complete, with the settings.
pub struct RolloutRequest<'a> {
    /// One prompt per completion; the completions of a group are adjacent and have the same prompt.
    pub prompts: Vec<&'a Content>,
    /// Completions in each group.
    pub num_generations: usize,
    /// The run's sampling parameters.
    pub sampling: &'a SamplingParams,
}

/// A completion made by the caller's function.
#[derive(Clone, Debug, Default)]
pub struct GivenCompletion {
    /// Token ids of the prompt, the same for all completions of a group.
    pub prompt_ids: Vec<u32>,
    /// Token ids of the completion.
    pub ids: Vec<u32>,
    /// The log-probability of each token under the policy that sampled it. Missing values (NaN or `None`) are computed
    /// with the current policy.
    pub logps: Option<Vec<f32>>,
    /// Whether the model sampled each token. Tokens from an environment are `false` and are not trained on. `None`: all
    /// sampled.
    pub sampled: Option<Vec<bool>>,
    /// Columns for reward functions, besides the dataset's.
    pub columns: Map<String, Value>,
}

/// A prompt that a rollout function passes to the engine.
pub enum RolloutPrompt {
    /// Token ids, used as they are.
    Ids(Vec<u32>),
    /// A string, or a conversation to be rendered by the chat template.
    Content(Content),
}

/// Generates completions with the current policy, from prompts, completions per prompt and sampling parameters.
pub type Generate<'a> =
    dyn FnMut(Vec<RolloutPrompt>, usize, SamplingParams) -> anyhow::Result<Vec<RolloutGroup>> + Send + 'a;

/// A function of the calling program that makes completions instead of the engine.
pub trait RolloutFunction: Send {
    /// Returns one completion for each prompt of the request, in the same order; it may call `generate`.
    fn complete(
        &mut self,
        request: &RolloutRequest<'_>,
        generate: &mut Generate<'_>,
    ) -> anyhow::Result<Vec<GivenCompletion>>;
}

/// The error of a [`RolloutFunction`] that failed, or whose completions cannot be trained on.
#[derive(Debug, thiserror::Error)]
#[error("the rollout function failed")]
pub struct RolloutFailed;

/// A scorer that several parts of a run share, so that its buffers are allocated once.
pub type SharedScorer = Arc<Mutex<Scorer>>;

/// Locks a shared scorer.
pub fn lock(scorer: &SharedScorer) -> MutexGuard<'_, Scorer> {
    scorer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The caller's rollout function, and the data for checking its completions.
pub struct FunctionRollouts {
    pub function: Box<dyn RolloutFunction>,
    pub ctx: Context,
    pub tokenizer: Arc<Tokenizer>,
    /// Renders conversations as text.
    pub template: Option<Arc<ChatTemplate>>,
    /// Computes log-probabilities that the function does not supply.
    pub scorer: SharedScorer,
    /// The values of the key `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
    /// The maximum number of tokens in prompt and completion together.
    pub max_tokens: usize,
}

/// The groups that a rollout function returned.
pub struct GivenRollouts {
    pub groups: Vec<RolloutGroup>,
    /// The dataset rows, with the prompt's token ids as the function returned them.
    pub prompts: Prompts,
    /// The function's additional columns for each completion.
    pub columns: GivenColumns,
    /// The next group number after these groups and those that the engine generated for the function.
    pub next: GroupId,
}

/// The engine's completions for the function in this call: (prompt, completion) → log-probabilities, finish reason. A
/// completion that the function returns unchanged has these log-probabilities.
type Written = HashMap<(Vec<u32>, Vec<u32>), (Vec<f32>, FinishReason)>;

impl FunctionRollouts {
    /// Calls the function for `prompts`. Completions that it generates with the engine use the random numbers of the
    /// prompts' own groups, in order. A function that completes each prompt once, in order, therefore gets the
    /// completions of a run without a function.
    pub fn rollouts(
        &mut self,
        engine: &mut Engine,
        model: ModelView<'_>,
        prompts: &Prompts,
        num_generations: usize,
        sampling: &SamplingParams,
    ) -> anyhow::Result<GivenRollouts> {
        let first = prompts.keys().next().copied().unwrap_or_default();
        let (mut next, mut written) = (first, Written::new());
        let (template, kwargs) = (self.template.as_deref(), &self.kwargs);
        let encoder = PromptEncoder { tokenizer: &self.tokenizer, template, kwargs, tools: None };
        let vocabulary = model.config().vocab_size;
        let mut generate = |asked: Vec<RolloutPrompt>, num_generations, own: SamplingParams| {
            let (same_temperature, own) = (own.temperature == sampling.temperature, Arc::new(own));
            let request = |(group, prompt): (GroupId, RolloutPrompt)| -> anyhow::Result<Request> {
                let ids = match prompt {
                    RolloutPrompt::Ids(ids) => ids,
                    RolloutPrompt::Content(content) => encoder.encode(&content).or_bad_input()?,
                };
                check_ids("a prompt", &ids, vocabulary)?;
                let (prompt, sampling) = (model::Prompt::new(ids), own.clone());
                Ok(Request::new(group, prompt, num_generations, sampling))
            };
            let requests: Vec<_> = next.and_after().zip(asked).map(request).collect::<anyhow::Result<_>>()?;
            next = next.after(requests.len());
            let groups = engine.generate(model, requests).map_err(|error| match error {
                rollout::Error::Stopped => error.into(),
                error => BadInput::new(error.to_string()),
            })?;
            for group in groups.iter().filter(|_| same_temperature) {
                for one in &group.completions {
                    let key = (group.prompt.ids.clone(), one.ids.clone());
                    written.insert(key, (one.logps().to_vec(), one.finish_reason));
                }
            }
            Ok(groups)
        };
        let repeated = prompts.values().flat_map(|prompt| std::iter::repeat_n(&prompt.content, num_generations));
        let request = RolloutRequest { prompts: repeated.collect(), num_generations, sampling };
        let given = self.function.complete(&request, &mut generate).context(RolloutFailed)?;
        let given = self.checked(given, request.prompts.len(), num_generations, vocabulary).context(RolloutFailed)?;
        self.grouped(given, &written, model, prompts, num_generations, sampling)
            .map(|made| GivenRollouts { next: next.max(first.after(prompts.len())), ..made })
    }

    /// Checks that the completions can be trained on and returns them.
    fn checked(
        &self,
        given: Vec<GivenCompletion>,
        expected: usize,
        num_generations: usize,
        vocabulary: usize,
    ) -> anyhow::Result<Vec<GivenCompletion>> {
        if given.len() != expected {
            bad_input!(
                "it returned {} completions for {expected} prompts, but must return one per prompt (each prompt is \
                 repeated {num_generations} times, once per completion of its group)",
                given.len()
            );
        }
        for (i, one) in given.iter().enumerate() {
            let GivenCompletion { prompt_ids, ids, logps, sampled, .. } = one;
            check_ids(&format!("prompt_ids[{i}]"), prompt_ids, vocabulary)?;
            check_ids(&format!("completion_ids[{i}]"), ids, vocabulary)?;
            let sizes = [("logprobs", logps.as_ref().map(Vec::len)), ("env_mask", sampled.as_ref().map(Vec::len))];
            if let Some((name, Some(size))) = sizes.iter().find(|(_, size)| size.is_some_and(|n| n != ids.len())) {
                bad_input!("{name}[{i}] must have one element per token: it has {size} for {} tokens", ids.len());
            }
            if sampled.as_ref().is_some_and(|sampled| !sampled.contains(&true)) {
                bad_input!(
                    "env_mask[{i}] is 0 for every token, so there is nothing to learn: at least one token must \
                    come from the model"
                );
            }
            let tokens = prompt_ids.len() + ids.len();
            if tokens > self.max_tokens {
                bad_input!(
                    "prompt and completion {i} have {tokens} tokens, but at most {} fit: raise max_completion_length, \
                     or set max_prompt_length if the function's prompts are longer than the dataset's",
                    self.max_tokens
                );
            }
        }
        for (group, completions) in given.chunks(num_generations).enumerate() {
            if let Some(at) = completions.iter().position(|one| one.prompt_ids != completions[0].prompt_ids) {
                let first = group * num_generations;
                bad_input!(
                    "prompt_ids[{}] differs from prompt_ids[{first}], but all completions of a group must share one \
                     prompt: move the tokens that differ into completion_ids, with env_mask 0",
                    first + at
                );
            }
        }
        Ok(given)
    }

    fn grouped(
        &mut self,
        given: Vec<GivenCompletion>,
        written: &Written,
        model: ModelView<'_>,
        prompts: &Prompts,
        num_generations: usize,
        sampling: &SamplingParams,
    ) -> anyhow::Result<GivenRollouts> {
        let unknown = |one: &GivenCompletion| one.logps.as_ref().is_none_or(|logps| logps.iter().any(|l| l.is_nan()));
        let unscored: Vec<_> = given
            .iter()
            .filter(|one| unknown(one))
            .map(|one| PromptCompletion { prompt: &one.prompt_ids, completion: &one.ids })
            .collect();
        // At temperature 0 the engine records the log-probabilities of temperature 1.
        let temperature = if sampling.temperature > 0.0 { sampling.temperature } else { 1.0 };
        let mut scorer = self.scorer.lock().unwrap_or_else(PoisonError::into_inner);
        let scores = scorer.score(&self.ctx, model, &unscored, temperature)?;
        drop(scorer);
        let version = model.version().trained();
        let mut scores = scores.into_iter().map(|scores| scores.logps);
        let (groups, next) = (Vec::new(), GroupId::default());
        let mut made = GivenRollouts { groups, prompts: Prompts::new(), columns: BTreeMap::new(), next };
        let mut given = given.into_iter();
        for (&number, row) in prompts {
            let mut group = RolloutGroup::new(number, row.tokens.clone(), Vec::new());
            let mut columns = Vec::new();
            for (generation, one) in given.by_ref().take(num_generations).enumerate() {
                if generation == 0 && one.prompt_ids != group.prompt.ids {
                    group.prompt = model::Prompt::new(one.prompt_ids.clone());
                }
                let own = if unknown(&one) { scores.next() } else { None };
                group.completions.push(completion(generation, &one, own, written, version, &sampling.stop_ids));
                columns.push(one.columns);
            }
            made.prompts.insert(number, Arc::new(Prompt { tokens: group.prompt.clone(), ..(**row).clone() }));
            made.columns.insert(number, columns);
            made.groups.push(group);
        }
        Ok(made)
    }
}

/// Converts a function's completion to the engine's type. `scores` are log-probabilities under the current policy
/// (version `version`), for tokens for which the function gave none.
fn completion(
    generation: usize,
    given: &GivenCompletion,
    scores: Option<Vec<f32>>,
    written: &Written,
    version: Updates,
    stop_ids: &[u32],
) -> Completion {
    let tokens = given.ids.len();
    let generated = written.get(&(given.prompt_ids.clone(), given.ids.clone()));
    let bits = |logps: &[f32]| logps.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
    let (logps, is_policys) = match (&given.logps, scores) {
        (None, scores) => (scores.unwrap_or_default(), true),
        (Some(logps), Some(scores)) => {
            (logps.iter().zip(scores).map(|(&l, own)| if l.is_nan() { own } else { l }).collect(), false)
        }
        (Some(logps), None) => (logps.clone(), generated.is_some_and(|(own, _)| bits(own) == bits(logps))),
    };
    let version = if is_policys { version } else { super::versions::NO_VERSION };
    // As in TRL, a completion whose last token is not an end-of-sequence id is treated as truncated.
    let ended = given.ids.last().is_some_and(|id| stop_ids.contains(id));
    let reason = FinishReason::from_truncated(!ended);
    Completion {
        generation,
        ids: given.ids.clone(),
        sampled: given.sampled.clone().unwrap_or_else(|| vec![true; tokens]),
        versions: vec![version; tokens],
        columns: Columns::of([(SAMPLER_LOGPS, logps)]),
        finish_reason: generated.map_or(reason, |(_, reason)| *reason),
    }
}

fn check_ids(name: &str, ids: &[u32], vocabulary: usize) -> anyhow::Result<()> {
    if ids.is_empty() {
        bad_input!("{name} must have at least one token");
    }
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(BadInput::new(format!(
            "{name} has token {id}, but token ids must be below {vocabulary}, the vocabulary size"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
