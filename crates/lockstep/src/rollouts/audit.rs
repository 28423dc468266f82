//! Repeats workers' jobs, and finds the first bit in which a worker's answer differs from the repeated one.

use super::jobs::{GroupAnswer, GroupJob, score};
use crate::stop::StopSignal;
use anyhow::{Context as _, bail};
use model::ModelView;
use model::tokenizer::Tokenizer;
use rewards::Reward;
use rollout::{Completion, Engine};
use std::collections::BTreeMap;
use std::fmt;

/// The first difference between a worker's answer and the repeated job.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The index of the completion in its group.
    pub completion: usize,
    /// The index of the token in its completion, if the difference is at a token.
    pub token: Option<usize>,
    /// The name of the value that differs.
    pub what: String,
    /// The worker's value and the repeated job's, as text; numbers with their bits.
    pub given: String,
    pub remade: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { completion, token, what, given, remade } = self;
        write!(f, "completion {completion}, ")?;
        token.iter().try_for_each(|token| write!(f, "token {token}, "))?;
        write!(f, "{what}: it said {given}, and the job gives {remade}")
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
    /// Repeats `jobs` and returns each job with its answer, by group number. `model` must have the version that the
    /// jobs name. Only the reward functions for which `asked` is true are called.
    pub fn remake(
        &mut self,
        model: ModelView<'_>,
        jobs: &[GroupJob],
        asked: impl Fn(&str) -> bool,
    ) -> anyhow::Result<BTreeMap<u64, (GroupJob, GroupAnswer)>> {
        let version = model.version().trained();
        if let Some(job) = jobs.iter().find(|job| job.version != version) {
            bail!("the job of group {} is for weights of version {}, not {version}", job.number, job.version);
        }
        let requests = jobs.iter().map(|job| job.request(None)).collect();
        let groups = self.engine.generate_with(model, requests, |_| {})?;
        let mut made = BTreeMap::new();
        for group in groups {
            let job = jobs.iter().find(|job| job.number == group.id).context("a group of each job")?;
            let mut job = job.clone();
            job.rewards.retain(|name| asked(name));
            let scores = match group.is_unfinished() {
                true => Vec::new(),
                false => score(self.rewards, self.tokenizer, self.stop, &group, &job)?,
            };
            made.insert(job.number, (job, GroupAnswer { group, scores, rollout_s: 0.0 }));
        }
        Ok(made)
    }
}

/// The first bit in which `given`, a worker's answer to a job with these `rewards`, differs from `remade`.
pub fn difference(
    given: &GroupAnswer,
    rewards: &[String],
    (job, remade): &(GroupJob, GroupAnswer),
) -> Option<Difference> {
    let pairs = given.group.completions.iter().zip(&remade.group.completions).enumerate();
    let of_tokens = |(place, (given, remade))| Some(Difference { completion: place, ..tokens(given, remade)? });
    if let Some(found) = pairs.into_iter().find_map(of_tokens) {
        return Some(found);
    }
    job.rewards.iter().zip(&remade.scores).find_map(|(name, remade)| {
        let given = &given.scores[rewards.iter().position(|other| other == name)?].scores;
        let bits = |score: &Option<f64>| score.map(f64::to_bits);
        let show = |score: Option<f64>| score.map_or("none".to_owned(), |x| format!("{x} ({:#018x})", x.to_bits()));
        let mut pairs = given.values.iter().zip(&remade.scores.values).enumerate();
        let (completion, (given, remade)) = pairs.find(|(_, (given, remade))| bits(given) != bits(remade))?;
        let (given, remade) = (show(*given), show(*remade));
        Some(Difference { completion, token: None, what: format!("score of `{name}`"), given, remade })
    })
}

fn tokens(given: &Completion, remade: &Completion) -> Option<Difference> {
    let bits = |c: &Completion| c.logps().iter().map(|logp| logp.to_bits()).collect::<Vec<_>>();
    let float = |&bits: &u32| format!("{} ({bits:#010x})", f32::from_bits(bits));
    let fields = |c: &Completion| format!("{:?}, {:?}, {:?}", c.finish_reason, c.mask, c.generation);
    let whole = |what: &str, given: String, remade: String| {
        (given != remade).then(|| Difference { completion: 0, token: None, what: what.to_owned(), given, remade })
    };
    list("token", &given.ids, &remade.ids, ToString::to_string)
        .or_else(|| list("log-probability", &bits(given), &bits(remade), float))
        .or_else(|| list("version of the weights", &given.versions, &remade.versions, ToString::to_string))
        .or_else(|| whole("finish reason and mask", fields(given), fields(remade)))
        .or_else(|| (given.columns != remade.columns).then(|| differs("columns of its tokens")))
}

fn differs(what: &str) -> Difference {
    let (given, remade) = ("others".to_owned(), "its own".to_owned());
    Difference { completion: 0, token: None, what: what.to_owned(), given, remade }
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
