//! Repeats workers' jobs, and reports the first bit in which a worker's answer differs from the repeated one. Times,
//! and results of rewards that cannot be repeated, are not compared.

use super::jobs::{GroupAnswer, GroupJob, score};
use crate::stop::StopSignal;
use anyhow::{Context as _, bail};
use model::columns::Values;
use model::tokenizer::Tokenizer;
use model::{Columns, GroupId, ModelView};
use rewards::{GivenScores, Reward, Scores};
use rollout::{Completion, Engine, RolloutGroup};
use std::collections::BTreeMap;
use std::fmt;

/// The maximum number of characters shown of a value, since a worker may send long strings.
const LONGEST: usize = 200;

/// The first difference between a worker's answer and the repeated job.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The index of the completion in its group, if the difference is in one.
    pub completion: Option<usize>,
    /// The index of the token in its completion, if the difference is at a token.
    pub token: Option<usize>,
    /// The name of the value that differs.
    pub what: String,
    /// The worker's value and the repeated job's, as text. Numbers are shown with their bits.
    pub given: String,
    pub remade: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { completion, token, what, given, remade } = self;
        completion.iter().try_for_each(|completion| write!(f, "completion {completion}, "))?;
        token.iter().try_for_each(|token| write!(f, "token {token}, "))?;
        write!(f, "{what}: the worker sent {given}, but the repeated job gives {remade}")
    }
}

/// Repeats jobs.
pub struct Remaker<'a> {
    /// The engine that generates.
    pub engine: &'a mut Engine,
    /// The reward functions; only deterministic ones are called again.
    pub rewards: &'a mut [Box<dyn Reward>],
    /// Decodes completions for the reward functions.
    pub tokenizer: &'a Tokenizer,
    /// Cancels the repetition.
    pub stop: &'a StopSignal,
}

impl Remaker<'_> {
    /// Repeats `jobs`, and returns each job with its answer, by group. `model` must have the version named by the jobs.
    /// Only reward functions for which `asked` is true are called.
    pub fn remake(
        &mut self,
        model: ModelView<'_>,
        jobs: &[GroupJob],
        asked: impl Fn(&str) -> bool,
    ) -> anyhow::Result<BTreeMap<GroupId, (GroupJob, GroupAnswer)>> {
        let updates = model.version().trained();
        if let Some(job) = jobs.iter().find(|job| job.updates != updates) {
            bail!(
                "the job of group {} is for weights of version {}, but the model has version {updates}",
                job.group,
                job.updates
            );
        }
        let requests = jobs.iter().map(|job| job.request(None)).collect();
        let groups = self.engine.generate_with(model, requests, |_| {})?;
        let mut made = BTreeMap::new();
        for group in groups {
            let job =
                jobs.iter().find(|job| job.group == group.group).context("the collection has a group without a job")?;
            let mut job = job.clone();
            job.rewards.retain(|name| asked(name));
            let scores = if group.is_unfinished() {
                Vec::new()
            } else {
                score(self.rewards, self.tokenizer, self.stop, &group, &job)?
            };
            made.insert(job.group, (job, GroupAnswer { group, scores, rollout_s: 0.0 }));
        }
        Ok(made)
    }
}

/// The first difference between `given`, a worker's answer to a job with these `rewards`, and `remade`.
pub fn difference(
    given: &GroupAnswer,
    rewards: &[String],
    (job, remade): &(GroupJob, GroupAnswer),
) -> Option<Difference> {
    let scores = || {
        job.rewards.iter().zip(&remade.scores).find_map(|(name, remade)| {
            let given = &given.scores[rewards.iter().position(|other| other == name)?];
            reward_difference(name, given, remade)
        })
    };
    group_difference(&given.group, &remade.group).or_else(scores)
}

/// Compares the generated columns.
fn group_difference(given: &RolloutGroup, remade: &RolloutGroup) -> Option<Difference> {
    let RolloutGroup { group, prompt, completions, prompt_columns } = remade;
    let pairs = given.completions.iter().zip(completions).enumerate();
    let token_difference =
        |(place, (given, remade))| Some(Difference { completion: Some(place), ..tokens(given, remade)? });
    unequal("number of the group", &given.group, group)
        .or_else(|| unequal("prompt", &given.prompt.ids, &prompt.ids))
        .or_else(|| unequal("number of completions", &given.completions.len(), &completions.len()))
        .or_else(|| pairs.into_iter().find_map(token_difference))
        .or_else(|| (!same_columns(&given.prompt_columns, prompt_columns)).then(|| differs("columns of the prompt")))
}

/// Compares the results of the reward `name`.
fn reward_difference(name: &str, given: &GivenScores, remade: &GivenScores) -> Option<Difference> {
    // The seconds that a reward took cannot be repeated.
    let GivenScores { reward: _, scores: remade, seconds: _ } = remade;
    let Scores { values, steps, problems, extra, metrics, timed_out } = remade;
    let given = &given.scores;
    let bits = |score: &Option<f64>| score.map(f64::to_bits);
    let show = |score: Option<f64>| score.map_or("none".to_owned(), |x| format!("{x} ({:#018x})", x.to_bits()));
    let mut pairs = given.values.iter().zip(values).enumerate();
    if let Some((completion, (given, remade))) = pairs.find(|(_, (given, remade))| bits(given) != bits(remade)) {
        let (given, remade) = (show(*given), show(*remade));
        let what = format!("score of `{name}`");
        return Some(Difference { completion: Some(completion), token: None, what, given, remade });
    }
    let of = |what: &str| format!("{what} of `{name}`");
    unequal(&of("number of scores"), &given.values.len(), &values.len())
        .or_else(|| unequal(&of("scores of steps"), &given.steps, steps))
        .or_else(|| unequal(&of("problems"), &given.problems, problems))
        .or_else(|| unequal(&of("columns"), &given.extra, extra))
        .or_else(|| unequal(&of("metrics"), &given.metrics, metrics))
        .or_else(|| unequal(&of("completions that ran out of time"), &given.timed_out, timed_out))
}

/// Compares two values as strings: -0 differs from 0, and NaN equals NaN. Long strings are truncated.
fn unequal<T: fmt::Debug>(what: &str, given: &T, remade: &T) -> Option<Difference> {
    let [given, remade] = [given, remade].map(|value| format!("{value:?}"));
    let short = |text: String| match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    let found = Difference {
        completion: None,
        token: None,
        what: what.to_owned(),
        given: String::new(),
        remade: String::new(),
    };
    (given != remade).then(|| Difference { given: short(given), remade: short(remade), ..found })
}

fn tokens(given: &Completion, remade: &Completion) -> Option<Difference> {
    let Completion { generation: _, ids, sampled: _, versions, columns, finish_reason: _ } = remade;
    let bits = |c: &Completion| c.logps().iter().map(|logp| logp.to_bits()).collect::<Vec<_>>();
    let float = |&bits: &u32| format!("{} ({bits:#010x})", f32::from_bits(bits));
    let fields = |c: &Completion| format!("{:?}, {:?}, {:?}", c.finish_reason, c.sampled, c.generation);
    let whole = |what: &str, given: String, remade: String| {
        (given != remade).then(|| Difference { given, remade, ..differs(what) })
    };
    list("token", &given.ids, ids, ToString::to_string)
        .or_else(|| list("log-probability", &bits(given), &bits(remade), float))
        .or_else(|| list("version of the weights", &given.versions, versions, ToString::to_string))
        .or_else(|| whole("finish reason and mask", fields(given), fields(remade)))
        .or_else(|| (!same_columns(&given.columns, columns)).then(|| differs("columns of its tokens")))
}

/// Whether two sets of columns have the same bits.
fn same_columns(a: &Columns, b: &Columns) -> bool {
    let bits = |values: &Values| match values {
        Values::F32(values) => (true, values.iter().map(|x| x.to_bits()).collect::<Vec<_>>()),
        Values::U32(values) => (false, values.clone()),
    };
    let all = |columns: &Columns| {
        let of =
            |(name, column): (&str, &model::columns::Column)| (name.to_owned(), column.width, bits(&column.values));
        columns.iter().map(of).collect::<Vec<_>>()
    };
    all(a) == all(b)
}

fn differs(what: &str) -> Difference {
    let (given, remade) = ("others".to_owned(), "its own".to_owned());
    Difference { completion: None, token: None, what: what.to_owned(), given, remade }
}

/// The first index at which two lists differ.
fn list<T: PartialEq>(what: &str, a: &[T], b: &[T], show: impl Fn(&T) -> String) -> Option<Difference> {
    let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
    let value = |list: &[T]| list.get(at).map_or_else(|| "none".to_owned(), &show);
    let found = || Difference { token: Some(at), given: value(a), remade: value(b), ..differs(what) };
    (a.len() != b.len() || at < a.len()).then(found)
}

#[cfg(test)]
mod tests;
