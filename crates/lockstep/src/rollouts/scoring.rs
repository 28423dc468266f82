//! Converts completions to scored groups: prepares the input of reward functions, and stores their scores.
//! [`rewards::RewardManager`] calls the reward functions.

use super::groups::{Rollouts, ScoredCompletion, ScoredGroup, TokenScores};
use crate::config::SamplingPlan;
use crate::data::prompts::Prompt;
use crate::step::model_step;
use model::GroupId;
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
use telemetry::Step;

/// The dataset's row of each group.
pub type Prompts = BTreeMap<GroupId, Arc<Prompt>>;

/// The additional columns of each completion from a rollout function, by group.
pub type GivenColumns = BTreeMap<GroupId, Vec<Map<String, Value>>>;

/// The engine's requests: `num_generations` completions of each prompt.
pub fn requests(prompts: &Prompts, num_generations: usize, sampling: &SamplingPlan) -> Vec<Request> {
    let request = |(&group, prompt): (&GroupId, &Arc<Prompt>)| {
        Request::new(group, prompt.tokens.clone(), num_generations, sampling.of(group).clone())
    };
    prompts.iter().map(request).collect()
}

/// The scored groups of a generation batch, with the metrics and errors of reward functions.
#[derive(Clone, Default)]
pub struct ScoredRollouts {
    /// The scored groups, in request order.
    pub rollouts: Rollouts,
    /// Errors of reward functions.
    pub problems: Vec<Problem>,
    /// Metrics that reward functions log.
    pub metrics: Vec<(String, f64)>,
    /// The start and the duration in seconds of each scoring call that overlapped with generation.
    pub overlapped: Vec<(Instant, f64)>,
    /// The seconds that each reward function took.
    pub seconds: Vec<f64>,
    /// How many completions ran out of time, per reward function.
    pub timed_out: Vec<usize>,
}

impl ScoredRollouts {
    /// A warning if completions lack scores although reward functions reported no error. TRL warns, too.
    pub fn unscored_warning(&self) -> Option<String> {
        let all = self.rollouts.completions().count();
        let unscored = self.rollouts.completions().filter(|c| c.rewards.iter().all(Option::is_none)).count();
        (unscored > 0 && self.problems.is_empty() && !self.rollouts.reward_names.is_empty())
            .then(|| format!("no reward gave a score for {unscored} of {all} completions"))
    }
}

/// Scores the completions of a generation batch.
pub struct RolloutScorer<'a> {
    /// The reward functions.
    pub rewards: &'a mut [Box<dyn Reward>],
    /// The weight of each reward function.
    pub weights: &'a [f64],
    /// Decodes completions to text.
    pub tokenizer: &'a Tokenizer,
    /// Optimizer steps done so far; passed to reward functions.
    pub step: Step,
    /// Columns besides the dataset's.
    pub columns: GivenColumns,
}

/// A generation batch that is scored during its generation.
pub struct ScoringJob<'scope, 'a> {
    prompts: &'a Prompts,
    weights: &'a [f64],
    tokenizer: &'a Tokenizer,
    job: RewardJob<'scope, 'a>,
}

impl<'a> RolloutScorer<'a> {
    /// Starts scoring the groups of `prompts` before their completions are generated. Workers call the reward functions
    /// at the indices `elsewhere`, which are not called here.
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
        let manager =
            RewardManager { rewards, make_inputs: make_inputs(tokenizer, prompts, columns), step: model_step(step) };
        Ok(ScoringJob { prompts, weights, tokenizer, job: manager.start(scope, elsewhere)? })
    }
}

impl ScoringJob<'_, '_> {
    /// The reward functions that are running now.
    pub fn asked(&self) -> Asked {
        self.job.asked()
    }

    /// Marks a group as ended, and calls the reward functions that score each group separately.
    pub fn group_ended(&mut self, group: &RolloutGroup) {
        self.job.group_ended(group.group, || completion_ids(group));
    }

    /// Waits until all groups are scored, and calls the reward functions that compare completions of several prompts.
    /// `given` has the workers' scores, by group.
    pub fn finish(
        self,
        groups: Vec<RolloutGroup>,
        given: BTreeMap<GroupId, Vec<GivenScores>>,
    ) -> anyhow::Result<ScoredRollouts> {
        let ScoringJob { prompts, weights, tokenizer, job } = self;
        let reward_names = job.names().to_vec();
        let mut output = job.finish(groups.iter().map(|group| (group.group, || completion_ids(group))), given)?;
        let mut scores = std::mem::take(&mut output.completions).into_iter();
        let mut first = 0;
        let mut score = |completion: Completion| -> anyhow::Result<_> {
            let (content, scores) = scores.next().expect("scores of each completion");
            let CompletionScores { rewards, steps, extra } = scores;
            let steps = if steps.iter().all(Option::is_none) {
                Vec::new()
            } else {
                steps_at_tokens(tokenizer, &completion.ids, steps)?
            };
            Ok(ScoredCompletion { completion, content, rewards, steps, extra })
        };
        let scored = |ended: RolloutGroup| -> anyhow::Result<_> {
            let (group, prompt) = (ended.group, prompts[&ended.group].clone());
            let completions: Vec<_> = ended.completions.into_iter().map(&mut score).collect::<anyhow::Result<_>>()?;
            let own = first..first + completions.len();
            first = own.end;
            let problems = output.problems.iter().filter_map(|problem| problem_of(problem, &own)).collect();
            Ok(ScoredGroup { group, prompt, completions, problems, lineage: None })
        };
        let groups = groups.into_iter().map(scored).collect::<anyhow::Result<_>>()?;
        let rollouts = Rollouts { groups, reward_names, reward_weights: weights.to_vec() };
        let RewardOutput { problems, metrics, overlapped, seconds, timed_out, .. } = output;
        Ok(ScoredRollouts { rollouts, problems, metrics, overlapped, seconds, timed_out })
    }
}

/// The part of a problem that concerns one group, whose completions have the indices `own` in the batch.
fn problem_of(problem: &Problem, own: &Range<usize>) -> Option<Problem> {
    let completions: Vec<usize> =
        problem.completions.iter().filter(|place| own.contains(place)).map(|place| place - own.start).collect();
    // The example is from the problem's first completion.
    let has_first = problem.completions.first().is_some_and(|first| own.contains(first));
    let example = problem.example.clone().filter(|_| has_first);
    let rows = completions.len();
    (rows > 0).then(|| Problem { rows, completions, example, ..problem.clone() })
}

/// Process rewards with the index of each step's last token, for each reward function.
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

/// The index of the first token up to which the text has `end` characters. A character of several tokens is counted at
/// its last token.
fn token_of(tokenizer: &Tokenizer, ids: &[u32], end: usize) -> anyhow::Result<usize> {
    let (mut low, mut high) = (0, ids.len().saturating_sub(1));
    while low < high {
        let middle = (low + high) / 2;
        let text = tokenizer.completion(&ids[..=middle])?;
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER).chars().count();
        if whole >= end { high = middle } else { low = middle + 1 }
    }
    Ok(low)
}

fn completion_ids(group: &RolloutGroup) -> Vec<Vec<u32>> {
    group.completions.iter().map(|c| c.ids.clone()).collect()
}

/// The reward inputs of one group, with only the columns of the rows in `prompts`.
pub fn inputs_of_group(tokenizer: &Tokenizer, prompts: &Prompts, group: &RolloutGroup) -> model::Result<RewardInputs> {
    make_inputs(tokenizer, prompts, GivenColumns::new())(group.group, completion_ids(group))
}

/// Builds the inputs of reward functions: completions as text, or as the assistant's message in a conversation. Every
/// input has all columns of any prompt, and of any completion in `given`.
fn make_inputs<'a>(tokenizer: &'a Tokenizer, prompts: &'a Prompts, given: GivenColumns) -> MakeInputs<'a> {
    let names: BTreeSet<String> = given.values().flatten().flat_map(|columns| columns.keys().cloned()).collect();
    let columns: BTreeSet<&str> =
        prompts.values().flat_map(|prompt| prompt.columns.keys()).map(String::as_str).collect();
    Arc::new(move |group, ids| {
        let prompt = &prompts[&group];
        let mut completions = Vec::with_capacity(ids.len());
        for ids in &ids {
            let text = tokenizer.completion(ids)?;
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
