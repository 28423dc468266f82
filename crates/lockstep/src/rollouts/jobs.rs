//! A collection cut into jobs, one for each group, for workers: a worker has an engine and rewards, and answers in
//! bytes.
//!
//! A job is a function of what it names (the group's number, the prompt, how tokens are drawn, the weights), so every
//! worker computes the same tokens. A worker calls those rewards that it has and that score a group by itself; the
//! process that collects calls the others: those that compare completions of several prompts, and the caller's
//! closures. Scores are merged in one place, by the code of a collection in one process, so nothing depends on who did
//! what, or when.

#[cfg(test)]
use super::collector::{Collect, Collector};
use super::collector::{CollectRequest, Collected, Observer, finite_logps, watched};
use super::scoring::{GivenColumns, Prompts, RolloutScorer, inputs_of_group};
use crate::data::prompts::Prompt;
use crate::stop::StopSignal;
use anyhow::{Context as _, bail};
#[cfg(test)]
use model::AdaptedWeights;
use model::tokenizer::Tokenizer;
use rewards::{GivenScores, Reward, score_group};
use rollout::{Completion, ModelVersion, Request, RolloutGroup, SamplingParams};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::sync::Arc;
use twox_hash::XxHash3_64;
use zerocopy::IntoBytes;

/// What a worker is asked for: the completions of a prompt, scored by some of the rewards.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupJob {
    /// The group's number in the run, which names its noise.
    pub number: u64,
    /// The row that is answered.
    pub prompt: Prompt,
    /// Completions of it.
    pub num_generations: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// The version of the weights that sample it.
    pub version: u64,
    /// Optimizer steps done: rewards receive the number.
    pub step: u64,
    /// The names of the rewards that the worker asks.
    pub rewards: Vec<String>,
    /// What its completions have so far, if they have begun.
    pub so_far: Vec<Completion>,
    /// Tokens after which a completion is given back unfinished.
    pub until: Option<usize>,
}

/// A batch that is made in chunks, as far as it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct BegunBatch {
    /// Optimizer steps done when it was begun.
    pub step: u64,
    /// The row of each group, by the group's number.
    pub prompts: Prompts,
    /// What each group has so far, with the scores of workers where it has ended and these were asked.
    pub answers: Vec<GroupAnswer>,
    /// The names of the rewards that workers ask.
    pub rewards: Vec<String>,
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupAnswer {
    /// The completions.
    pub group: RolloutGroup,
    /// What each reward of the job said, by its place among those.
    pub scores: Vec<GivenScores>,
    /// Seconds of generation.
    pub rollout_s: f64,
}

impl GroupJob {
    /// What an engine is asked for.
    pub fn request(&self, model: Option<ModelVersion>) -> Request {
        let (prompt, sampling) = (self.prompt.tokens.clone(), Arc::new(self.sampling.clone()));
        let (so_far, until) = (self.so_far.clone(), self.until);
        Request { model, so_far, until, ..Request::new(self.number, prompt, self.num_generations, sampling) }
    }
}

/// What the rewards of a job say of its completions.
pub fn score(
    rewards: &mut [Box<dyn Reward>],
    tokenizer: &Tokenizer,
    stop: &StopSignal,
    group: &RolloutGroup,
    job: &GroupJob,
) -> anyhow::Result<Vec<GivenScores>> {
    let place = |name: &String| {
        let found = rewards.iter().position(|reward| reward.name() == name && reward.scores_by_group());
        found.with_context(|| format!("this worker has no reward `{name}` that scores a group by itself"))
    };
    let asked = job.rewards.iter().map(place).collect::<anyhow::Result<Vec<_>>>()?;
    let prompts = Prompts::from([(job.number, Arc::new(job.prompt.clone()))]);
    let inputs = inputs_of_group(tokenizer, &prompts, group)?;
    let mut scores = score_group(rewards, &asked, &inputs, job.step);
    scores.iter_mut().enumerate().for_each(|(place, given)| given.reward = place);
    // After a stop request rewards may have returned early, with anything.
    stop.check()?;
    Ok(scores)
}

#[cfg(test)]
impl Collector {
    /// Does a job with the weights that it names.
    pub fn work(&mut self, model: model::ModelView<'_>, job: &GroupJob) -> anyhow::Result<GroupAnswer> {
        let version = model.version().trained();
        if version != job.version {
            bail!("the job of group {} is for weights of version {}, not {version}", job.number, job.version);
        }
        let group = self.engine.generate_with(model, vec![job.request(None)], |_| {})?.pop();
        let group = group.context("a group of each request")?;
        let scores = score(&mut self.rewards, &self.tokenizer, &self.stop, &group, job)?;
        Ok(GroupAnswer { group, scores, rollout_s: 0.0 })
    }
}

impl GroupAnswer {
    /// A hash of what is the same whoever answers: tokens and log-probabilities, and no scores.
    pub fn fingerprint(group: &RolloutGroup) -> u64 {
        GroupAnswer::fingerprint_of(group.completions.iter().map(|c| (&c.ids[..], c.logps())))
    }

    /// The same of the tokens of each completion.
    pub fn fingerprint_of<'a>(completions: impl Iterator<Item = (&'a [u32], &'a [f32])>) -> u64 {
        let mut hash = XxHash3_64::new();
        for (ids, logps) in completions {
            hash.write(&(ids.len() as u64).to_le_bytes());
            hash.write(ids.as_bytes());
            hash.write(logps.as_bytes());
        }
        hash.finish()
    }
}

/// Who does jobs.
#[cfg(test)]
pub trait Workers {
    /// Has all of these jobs done with the current version of `weights`, which each of them names. Answers come in any
    /// order, as [`GroupAnswer::to_bytes`] wrote them.
    fn answers(&mut self, weights: &AdaptedWeights, jobs: &[GroupJob]) -> anyhow::Result<Vec<Vec<u8>>>;
}

/// Makes a collection of what workers answered, with the rewards that they do not have.
pub struct Assembler {
    /// All rewards, in their order.
    pub rewards: Vec<Box<dyn Reward>>,
    /// The names of those that workers have, which score a group by itself.
    pub of_workers: BTreeSet<String>,
    /// Decodes completions for the others.
    pub tokenizer: Arc<Tokenizer>,
    /// Ends a collection.
    pub stop: StopSignal,
}

impl Assembler {
    /// The rewards that workers ask: their places among all, and their names.
    pub fn asked_elsewhere(&self) -> (Vec<usize>, Vec<String>) {
        let by_workers = |reward: &dyn Reward| self.of_workers.contains(reward.name()) && reward.scores_by_group();
        let rewards = self.rewards.iter().enumerate().filter(|(_, reward)| by_workers(&***reward));
        rewards.map(|(place, reward)| (place, reward.name().to_owned())).unzip()
    }

    /// A job for each group of a request.
    pub fn jobs(&self, request: &CollectRequest<'_>, version: u64) -> Vec<GroupJob> {
        jobs(request, version, &self.asked_elsewhere().1)
    }

    /// The collection that `request` asks for, of the answers to its `jobs`, which come in any order.
    pub fn assemble(
        &mut self,
        request: CollectRequest<'_>,
        jobs: &[GroupJob],
        answers: &[Vec<u8>],
        rollout_s: f64,
        Observer { stages, on_wait }: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        let (places, _) = self.asked_elsewhere();
        let (mut groups, mut given) = (BTreeMap::new(), BTreeMap::new());
        for bytes in answers {
            let GroupAnswer { mut group, mut scores, .. } = answer_to(bytes, jobs)?;
            scores.iter_mut().for_each(|given| given.reward = places[given.reward]);
            // Prompts that are one by identity are computed once.
            group.prompt = request.prompts[&group.id].tokens.clone();
            given.insert(group.id, scores);
            if groups.insert(group.id, group).is_some() {
                bail!("a job was answered twice");
            }
        }
        if groups.len() < jobs.len() {
            bail!("{} jobs of {} were answered", groups.len(), jobs.len());
        }
        let groups: Vec<RolloutGroup> = groups.into_values().collect();
        if request.refuse_non_finite {
            finite_logps(&groups)?;
        }
        let CollectRequest { prompts, reward_weights, step, .. } = request;
        let columns = GivenColumns::new();
        let scorer = RolloutScorer {
            rewards: &mut self.rewards,
            weights: reward_weights,
            tokenizer: &self.tokenizer,
            step,
            columns,
        };
        let (scored, reward_s) = std::thread::scope(|scope| -> anyhow::Result<_> {
            let mut job = scorer.start(scope, &prompts, &places)?;
            groups.iter().for_each(|group| job.group_ended(group));
            let span = stages.span("rewards");
            let scored = watched(scope, job.asked(), *on_wait, || job.finish(groups, given))?;
            Ok((scored, span.end()))
        })?;
        self.stop.check()?;
        let next_number = prompts.last_key_value().map_or(0, |(last, _)| last + 1);
        Ok(Collected { scored, next_number, rollout_s, reward_s, overlapped_s: 0.0 })
    }
}

/// Collects by jobs that workers do while it waits.
#[cfg(test)]
pub struct JobCollector {
    /// Who does them.
    pub workers: Box<dyn Workers>,
    /// Puts their answers together.
    pub assembler: Assembler,
}

#[cfg(test)]
impl Collect for JobCollector {
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        let jobs = self.assembler.jobs(&request, weights.version());
        let span = observer.stages.span("rollout");
        let answers = self.workers.answers(weights, &jobs)?;
        let rollout_s = span.end();
        self.assembler.assemble(request, &jobs, &answers, rollout_s, observer)
    }
}

/// A job for each group of a request.
fn jobs(request: &CollectRequest<'_>, version: u64, rewards: &[String]) -> Vec<GroupJob> {
    // Every row has the columns that any row has.
    let columns: BTreeSet<&String> = request.prompts.values().flat_map(|prompt| prompt.columns.keys()).collect();
    let job = |(&number, prompt): (&u64, &Arc<Prompt>)| {
        let mut prompt = Prompt::clone(prompt);
        for &name in &columns {
            prompt.columns.entry(name.clone()).or_insert(Value::Null);
        }
        GroupJob {
            number,
            prompt,
            num_generations: request.num_generations,
            sampling: SamplingParams::clone(request.sampling.of(number)),
            version,
            step: request.step,
            rewards: rewards.to_vec(),
            so_far: Vec::new(),
            until: None,
        }
    };
    request.prompts.iter().map(job).collect()
}

/// The answer in `bytes` to one of `jobs`, whose numbers ascend.
fn answer_to(bytes: &[u8], jobs: &[GroupJob]) -> anyhow::Result<GroupAnswer> {
    let number = GroupAnswer::number(bytes).context("a worker's answer")?;
    let job = jobs.binary_search_by_key(&number, |job| job.number).ok().map(|at| &jobs[at]);
    let job = job.with_context(|| format!("a worker answered the job of group {number}, which is none of these"))?;
    GroupAnswer::from_bytes(bytes, job).with_context(|| format!("the answer to the job of group {number}"))
}
