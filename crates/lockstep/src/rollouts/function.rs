//! Completions that a program's own function makes, with the engine, an environment or another model: TRL's
//! `rollout_func`. Knows no reward.

use super::scoring::{GivenColumns, Prompts};
use crate::bad_input;
use crate::data::prompts::Prompt;
use crate::error::{BadInput, OrBadInput};
use anyhow::Context as _;
use kernels::Context;
use model::chat::{ChatTemplate, PromptEncoder};
use model::columns::SAMPLER_LOGPS;
use model::tokenizer::Tokenizer;
use model::{Columns, ModelView, PromptCompletion, Scorer};
use rewards::Content;
use rollout::{Completion, Engine, FinishReason, Request, RolloutGroup, SamplingParams};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// What a [`RolloutFunction`] is asked for.
pub struct RolloutRequest<'a> {
    /// The prompt of each completion; those of a group stand behind one another.
    pub prompts: Vec<&'a Content>,
    /// Completions of a group.
    pub num_generations: usize,
    /// How the run draws tokens.
    pub sampling: &'a SamplingParams,
}

/// A completion of a program's own.
#[derive(Clone, Debug, Default)]
pub struct GivenCompletion {
    /// The prompt's ids, the same for all of a group.
    pub prompt_ids: Vec<u32>,
    /// What follows it.
    pub ids: Vec<u32>,
    /// log π of each token under the policy that sampled it. NaN, or none: that of the policy as it is.
    pub logps: Option<Vec<f32>>,
    /// Whether the model sampled the token; others are an environment's, and not learned. Not there: it sampled all.
    pub mask: Option<Vec<bool>>,
    /// What rewards are given beside the dataset's columns.
    pub columns: Map<String, Value>,
}

/// What the engine is to continue.
pub enum RolloutPrompt {
    /// Ids as they are.
    Ids(Vec<u32>),
    /// A text, or a conversation that the chat template renders.
    Content(Content),
}

/// Completes prompts with the policy as it is: so many completions of each, drawn like this.
pub type Generate<'a> =
    dyn FnMut(Vec<RolloutPrompt>, usize, SamplingParams) -> anyhow::Result<Vec<RolloutGroup>> + Send + 'a;

/// Makes completions in the place of the engine.
pub trait RolloutFunction: Send {
    /// A completion for each prompt of the request, in its order.
    fn complete(
        &mut self,
        request: &RolloutRequest<'_>,
        generate: &mut Generate<'_>,
    ) -> anyhow::Result<Vec<GivenCompletion>>;
}

/// A [`RolloutFunction`] failed, or gave what cannot be trained on.
#[derive(Debug, thiserror::Error)]
#[error("the rollout function failed")]
pub struct RolloutFailed;

/// A scorer that several use, one after the other: its buffers exist once.
pub type SharedScorer = Arc<Mutex<Scorer>>;

/// The caller's function, and what its completions are checked against.
pub struct FunctionRollouts {
    pub function: Box<dyn RolloutFunction>,
    pub ctx: Context,
    pub tokenizer: Arc<Tokenizer>,
    /// Renders conversations.
    pub template: Option<Arc<ChatTemplate>>,
    /// Scores what has no log-probabilities.
    pub scorer: SharedScorer,
    /// `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
    /// The most tokens of a prompt with its completion.
    pub max_tokens: usize,
}

/// The groups of a function.
pub struct GivenRollouts {
    pub groups: Vec<RolloutGroup>,
    /// The rows of the dataset, with the ids that the function gave them.
    pub prompts: Prompts,
    /// What it says of each completion.
    pub columns: GivenColumns,
    /// The first rollout number that neither a group nor what the engine wrote for it has.
    pub next: u64,
}

/// What the engine wrote for the function in this call: where that comes back as it was, its weights are known.
type Written = HashMap<(Vec<u32>, Vec<u32>), (Vec<f32>, FinishReason)>;

impl FunctionRollouts {
    /// The function's completions of `prompts`. What it has the engine write has the noise of the prompts' own numbers,
    /// one after the other: prompts that are completed once, in order, become what they would without a function.
    pub fn rollouts(
        &mut self,
        engine: &mut Engine,
        model: ModelView<'_>,
        prompts: &Prompts,
        num_generations: usize,
        sampling: &SamplingParams,
    ) -> anyhow::Result<GivenRollouts> {
        let first = prompts.keys().next().copied().unwrap_or(0);
        let (mut next, mut written) = (first, Written::new());
        let (template, kwargs) = (self.template.as_deref(), &self.kwargs);
        let encoder = PromptEncoder { tokenizer: &self.tokenizer, template, kwargs, tools: None };
        let vocabulary = model.config().vocab_size;
        let mut generate = |asked: Vec<RolloutPrompt>, num_generations, own: SamplingParams| {
            let (same_temperature, own) = (own.temperature == sampling.temperature, Arc::new(own));
            let request = |(id, prompt): (u64, RolloutPrompt)| -> anyhow::Result<Request> {
                let ids = match prompt {
                    RolloutPrompt::Ids(ids) => ids,
                    RolloutPrompt::Content(content) => encoder.encode(&content).or_bad_input()?,
                };
                check_ids("a prompt", &ids, vocabulary)?;
                let (prompt, sampling) = (model::Prompt::new(ids), own.clone());
                Ok(Request::new(id, prompt, num_generations, sampling))
            };
            let requests: Vec<_> = (next..).zip(asked).map(request).collect::<anyhow::Result<_>>()?;
            next += requests.len() as u64;
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
            .map(|made| GivenRollouts { next: next.max(first + prompts.len() as u64), ..made })
    }

    /// Completions that can be trained on.
    fn checked(
        &self,
        given: Vec<GivenCompletion>,
        expected: usize,
        num_generations: usize,
        vocabulary: usize,
    ) -> anyhow::Result<Vec<GivenCompletion>> {
        if given.len() != expected {
            bad_input!(
                "it gave {} completions for {expected} prompts: one for each is expected (every prompt is there \
                 {num_generations} times, as often as its group has completions)",
                given.len()
            );
        }
        for (i, one) in given.iter().enumerate() {
            let GivenCompletion { prompt_ids, ids, logps, mask, .. } = one;
            check_ids(&format!("prompt_ids[{i}]"), prompt_ids, vocabulary)?;
            check_ids(&format!("completion_ids[{i}]"), ids, vocabulary)?;
            let sizes = [("logprobs", logps.as_ref().map(Vec::len)), ("env_mask", mask.as_ref().map(Vec::len))];
            if let Some((name, Some(size))) = sizes.iter().find(|(_, size)| size.is_some_and(|n| n != ids.len())) {
                bad_input!("{name}[{i}] has {size} elements for {} tokens", ids.len());
            }
            if mask.as_ref().is_some_and(|mask| !mask.contains(&true)) {
                bad_input!("env_mask[{i}] is 0 for every token: the model sampled none, there is nothing to learn");
            }
            let tokens = prompt_ids.len() + ids.len();
            if tokens > self.max_tokens {
                bad_input!(
                    "prompt and completion {i} have {tokens} tokens, and there is room for {}: raise \
                     max_completion_length, or set max_prompt_length for longer prompts than the dataset's",
                    self.max_tokens
                );
            }
        }
        for (group, completions) in given.chunks(num_generations).enumerate() {
            if let Some(at) = completions.iter().position(|one| one.prompt_ids != completions[0].prompt_ids) {
                let first = group * num_generations;
                bad_input!(
                    "prompt_ids[{}] is another than prompt_ids[{first}], but both are of one group, which shares its \
                     prompt: put what differs into completion_ids, with env_mask 0",
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
        // At T = 0 the engine records those of T = 1.
        let temperature = if sampling.temperature > 0.0 { sampling.temperature } else { 1.0 };
        let mut scorer = self.scorer.lock().unwrap_or_else(PoisonError::into_inner);
        let scores = scorer.score(&self.ctx, model, &unscored, temperature)?;
        drop(scorer);
        let version = model.version().trained();
        let mut scores = scores.into_iter().map(|scores| scores.logps);
        let mut made = GivenRollouts { groups: Vec::new(), prompts: Prompts::new(), columns: BTreeMap::new(), next: 0 };
        let mut given = given.into_iter();
        for (&id, row) in prompts {
            let mut group = RolloutGroup::new(id, row.tokens.clone(), Vec::new());
            let mut columns = Vec::new();
            for (generation, one) in given.by_ref().take(num_generations).enumerate() {
                if generation == 0 && one.prompt_ids != group.prompt.ids {
                    group.prompt = model::Prompt::new(one.prompt_ids.clone());
                }
                let own = if unknown(&one) { scores.next() } else { None };
                group.completions.push(completion(generation, &one, own, written, version, &sampling.stop_ids));
                columns.push(one.columns);
            }
            made.prompts.insert(id, Arc::new(Prompt { tokens: group.prompt.clone(), ..(**row).clone() }));
            made.columns.insert(id, columns);
            made.groups.push(group);
        }
        Ok(made)
    }
}

/// A completion as if the engine had written it; `scores` are those of the policy, whose version is `version`, where
/// the function knows none.
fn completion(
    generation: usize,
    given: &GivenCompletion,
    scores: Option<Vec<f32>>,
    written: &Written,
    version: u64,
    stop_ids: &[u32],
) -> Completion {
    let tokens = given.ids.len();
    let of_engine = written.get(&(given.prompt_ids.clone(), given.ids.clone()));
    let bits = |logps: &[f32]| logps.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
    let (logps, is_policys) = match (&given.logps, scores) {
        (None, scores) => (scores.unwrap_or_default(), true),
        (Some(logps), Some(scores)) => {
            (logps.iter().zip(scores).map(|(&l, own)| if l.is_nan() { own } else { l }).collect(), false)
        }
        (Some(logps), None) => (logps.clone(), of_engine.is_some_and(|(own, _)| bits(own) == bits(logps))),
    };
    let version = if is_policys { version } else { super::replay::NO_VERSION };
    // As TRL: what does not end in an id that ends completions was cut.
    let ended = given.ids.last().is_some_and(|id| stop_ids.contains(id));
    let reason = if ended { FinishReason::Stop } else { FinishReason::Length };
    Completion {
        generation,
        ids: given.ids.clone(),
        mask: given.mask.clone().unwrap_or_else(|| vec![true; tokens]),
        versions: vec![version; tokens],
        columns: Columns::of([(SAMPLER_LOGPS, logps)]),
        finish_reason: of_engine.map_or(reason, |(_, reason)| *reason),
    }
}

fn check_ids(name: &str, ids: &[u32], vocabulary: usize) -> anyhow::Result<()> {
    if ids.is_empty() {
        bad_input!("{name} has no token");
    }
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => {
            Err(BadInput::new(format!("{name} has token {id}, and the model's vocabulary ends at {vocabulary}")))
        }
        None => Ok(()),
    }
}
