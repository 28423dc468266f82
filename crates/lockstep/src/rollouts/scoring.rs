//! Completions to scored groups: what rewards see of a completion, and what becomes of their scores.
//! [`rewards::RewardManager`] asks them.

use super::groups::{Rollouts, ScoredCompletion, ScoredGroup, TokenScores};
use crate::config::SamplingPlan;
use crate::data::prompts::Prompt;
use model::tokenizer::Tokenizer;
use rewards::{Asked, GivenScores, RewardOutput, StepEnd, StepScore};
use rewards::{CompletionScores, Content, MakeInputs, Problem, Reward, RewardInputs, RewardJob, RewardManager};
use rollout::{Completion, Request, RolloutGroup};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::thread::Scope;
use std::time::Instant;

/// The dataset's row of each group, by the group's number.
pub type Prompts = BTreeMap<u64, Arc<Prompt>>;

/// What the program that wrote completions says of each, by the group's number: columns beside the dataset's.
pub type GivenColumns = BTreeMap<u64, Vec<Map<String, Value>>>;

/// What the engine is asked for: so many completions of each prompt.
pub fn requests(prompts: &Prompts, num_generations: usize, sampling: &SamplingPlan) -> Vec<Request> {
    let request = |(&id, prompt): (&u64, &Arc<Prompt>)| {
        Request::new(id, prompt.tokens.clone(), num_generations, sampling.of(id).clone())
    };
    prompts.iter().map(request).collect()
}

/// The scores of a generation.
#[derive(Clone, Default)]
pub struct ScoredRollouts {
    /// The groups with their scores, in the order of the requests.
    pub rollouts: Rollouts,
    /// What kept rewards from giving a score.
    pub problems: Vec<Problem>,
    /// Numbers that rewards want logged.
    pub metrics: Vec<(String, f64)>,
    /// When, and for how many seconds, groups were scored while others were still generated.
    pub overlapped: Vec<(Instant, f64)>,
    /// Seconds that each reward took.
    pub seconds: Vec<f64>,
    /// How many completions of each reward ran out of time.
    pub timed_out: Vec<usize>,
}

impl ScoredRollouts {
    /// That completions have no score and no reward reported why: every reward gave null. TRL warns of it too.
    pub fn unscored_warning(&self) -> Option<String> {
        let all = self.rollouts.completions().count();
        let unscored = self.rollouts.completions().filter(|c| c.rewards.iter().all(Option::is_none)).count();
        (unscored > 0 && self.problems.is_empty() && !self.rollouts.reward_names.is_empty())
            .then(|| format!("no reward gave a score for {unscored} of {all} completions"))
    }
}

/// Scores the completions of a generation.
pub struct RolloutScorer<'a> {
    /// The rewards.
    pub rewards: &'a mut [Box<dyn Reward>],
    /// The weight of each.
    pub weights: &'a [f64],
    /// Makes completions texts.
    pub tokenizer: &'a Tokenizer,
    /// The training step.
    pub step: u64,
    /// More columns than the dataset's.
    pub columns: GivenColumns,
}

/// A generation whose completions are being scored.
pub struct ScoringJob<'scope, 'a> {
    prompts: &'a Prompts,
    weights: &'a [f64],
    tokenizer: &'a Tokenizer,
    job: RewardJob<'scope, 'a>,
}

impl<'a> RolloutScorer<'a> {
    /// Begins to score the groups of `prompts`, which are still to be generated. The rewards at the places `elsewhere`
    /// are asked there.
    pub fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        prompts: &'a Prompts,
        elsewhere: &[usize],
    ) -> anyhow::Result<ScoringJob<'scope, 'a>>
    where
        'a: 'scope,
    {
        let RolloutScorer { rewards, weights, tokenizer, step, columns } = self;
        let manager = RewardManager { rewards, make_inputs: make_inputs(tokenizer, prompts, columns), step };
        Ok(ScoringJob { prompts, weights, tokenizer, job: manager.start(scope, elsewhere)? })
    }
}

impl ScoringJob<'_, '_> {
    /// What is waited for.
    pub fn asked(&self) -> Asked {
        self.job.asked()
    }

    /// A group ended: the rewards that need no more are asked about it.
    pub fn group_ended(&mut self, group: &RolloutGroup) {
        self.job.group_ended(group.id, || completion_ids(group));
    }

    /// All of them ended: waits for the groups that are still being scored, and asks the rewards that want to see all.
    /// `given` has what was said elsewhere, by the group's number.
    pub fn finish(
        self,
        groups: Vec<RolloutGroup>,
        given: BTreeMap<u64, Vec<GivenScores>>,
    ) -> anyhow::Result<ScoredRollouts> {
        let ScoringJob { prompts, weights, tokenizer, job } = self;
        let reward_names = job.names().to_vec();
        let mut output = job.finish(groups.iter().map(|group| (group.id, || completion_ids(group))), given)?;
        let mut scores = std::mem::take(&mut output.completions).into_iter();
        let mut first = 0;
        let mut score = |completion: Completion| -> anyhow::Result<_> {
            let (content, scores) = scores.next().expect("scores of each completion");
            let CompletionScores { rewards, steps, extra } = scores;
            let steps = match steps.iter().all(Option::is_none) {
                true => Vec::new(),
                false => steps_at_tokens(tokenizer, &completion.ids, steps)?,
            };
            Ok(ScoredCompletion { completion, content, rewards, steps, extra })
        };
        let scored = |group: RolloutGroup| -> anyhow::Result<_> {
            let (id, prompt) = (group.id, prompts[&group.id].clone());
            let completions: Vec<_> = group.completions.into_iter().map(&mut score).collect::<anyhow::Result<_>>()?;
            let own = first..first + completions.len();
            first = own.end;
            let problems = output.problems.iter().filter_map(|problem| problem_of(problem, &own)).collect();
            Ok(ScoredGroup { id, prompt, completions, problems, lineage: None })
        };
        let groups = groups.into_iter().map(scored).collect::<anyhow::Result<_>>()?;
        let rollouts = Rollouts { groups, reward_names, reward_weights: weights.to_vec() };
        let RewardOutput { problems, metrics, overlapped, seconds, timed_out, .. } = output;
        Ok(ScoredRollouts { rollouts, problems, metrics, overlapped, seconds, timed_out })
    }
}

/// What of a generation's problem concerns one group, whose completions stand at `own` among all.
fn problem_of(problem: &Problem, own: &Range<usize>) -> Option<Problem> {
    let completions: Vec<usize> =
        problem.completions.iter().filter(|place| own.contains(place)).map(|place| place - own.start).collect();
    // The example is of the first completion.
    let has_first = problem.completions.first().is_some_and(|first| own.contains(first));
    let example = problem.example.clone().filter(|_| has_first);
    let rows = completions.len();
    (rows > 0).then(|| Problem { rows, completions, example, ..problem.clone() })
}

/// The last token of each step, and its score.
fn steps_at_tokens(
    tokenizer: &Tokenizer,
    ids: &[u32],
    steps: Vec<Option<Vec<StepScore>>>,
) -> anyhow::Result<Vec<Option<TokenScores>>> {
    let token = |step: StepScore| -> anyhow::Result<(usize, f64)> {
        let at = match step.end {
            StepEnd::Token(token) => token,
            StepEnd::Char(end) => token_of(tokenizer, ids, end)?,
        };
        Ok((at, step.score))
    };
    let of = |steps: Option<Vec<StepScore>>| steps.map(|steps| steps.into_iter().map(token).collect()).transpose();
    steps.into_iter().map(of).collect()
}

/// The first token with which the text has `end` characters: a letter of several tokens is there with the last of them.
fn token_of(tokenizer: &Tokenizer, ids: &[u32], end: usize) -> anyhow::Result<usize> {
    let (mut low, mut high) = (0, ids.len().saturating_sub(1));
    while low < high {
        let middle = (low + high) / 2;
        let text = tokenizer.decode(&ids[..=middle], true)?;
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER).chars().count();
        if whole >= end { high = middle } else { low = middle + 1 }
    }
    Ok(low)
}

fn completion_ids(group: &RolloutGroup) -> Vec<Vec<u32>> {
    group.completions.iter().map(|c| c.ids.clone()).collect()
}

/// What rewards see of one group, whose row has no other columns than it has.
pub fn inputs_of_group(tokenizer: &Tokenizer, prompts: &Prompts, group: &RolloutGroup) -> model::Result<RewardInputs> {
    make_inputs(tokenizer, prompts, GivenColumns::new())(group.id, completion_ids(group))
}

/// Completions as text, or as the message that answers a conversation, with the columns that any prompt has, and those
/// that are given with any completion.
fn make_inputs<'a>(tokenizer: &'a Tokenizer, prompts: &'a Prompts, given: GivenColumns) -> MakeInputs<'a> {
    let names: BTreeSet<String> = given.values().flatten().flat_map(|columns| columns.keys().cloned()).collect();
    let columns: BTreeSet<&str> =
        prompts.values().flat_map(|prompt| prompt.columns.keys()).map(String::as_str).collect();
    Arc::new(move |group, ids| {
        let prompt = &prompts[&group];
        let mut completions = Vec::with_capacity(ids.len());
        for ids in &ids {
            let text = tokenizer.decode(ids, true)?;
            completions.push(match prompt.content {
                Content::Text(_) => Content::Text(text),
                Content::Messages(_) => Content::assistant(text),
            });
        }
        let column = |&name: &&str| {
            let value = prompt.columns.get(name).cloned().unwrap_or(Value::Null);
            (name.to_owned(), vec![value; ids.len()])
        };
        let mut columns: BTreeMap<String, Vec<Value>> = columns.iter().map(column).collect();
        if let Some(given) = given.get(&group) {
            for name in &names {
                let values = given.iter().map(|own| own.get(name).cloned().unwrap_or(Value::Null)).collect();
                columns.insert(name.clone(), values);
            }
        }
        let rows = vec![prompt.row; ids.len()];
        Ok(RewardInputs { prompts: vec![prompt.content.clone(); ids.len()], completions, ids, columns, rows })
    })
}

#[cfg(test)]
mod tests;
