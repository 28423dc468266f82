//! Completions to scores: asks every reward function, some beside the engine.
//!
//! A reward that judges a group by itself ([`Reward::judges_by_group`]) is asked as soon as the group's last completion has
//! ended, on a thread beside the engine, which goes on with the others; so a reward that takes its time (a program outside)
//! costs the run only what is left when generation has ended. Every other reward is asked once, about all completions, after
//! that. When groups end changes no bit: scores are put together in the order of the requests.

use super::groups::{Rollouts, ScoredCompletion, ScoredGroup};
use crate::data::prompts::Prompt;
use model::tokenizer::Tokenizer;
use rewards::{Columns, Content, Problem, Reward, RewardBatch, Scores};
use rollout::RolloutGroup;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

/// The dataset's row of each group, by the group's number.
pub type Prompts = BTreeMap<u64, Arc<Prompt>>;

/// The scores of a generation.
#[derive(Default)]
pub struct RewardOutput {
    /// The groups with their scores, in the order of the requests.
    pub rollouts: Rollouts,
    /// What kept rewards from giving a score.
    pub problems: Vec<Problem>,
    /// Numbers that rewards want logged.
    pub metrics: Vec<(String, f64)>,
    /// When, and for how many seconds, groups were scored while others were still generated.
    pub hidden: Vec<(Instant, f64)>,
}

impl RewardOutput {
    /// A warning that completions have no score and no reward reported why: every reward gave null. TRL warns of it too.
    pub fn unscored_warning(&self) -> Option<String> {
        let all = self.rollouts.completions().count();
        let unscored = self.rollouts.completions().filter(|c| c.rewards.iter().all(Option::is_none)).count();
        (unscored > 0 && self.problems.is_empty())
            .then(|| format!("no reward gave a score for {unscored} of {all} completions: they teach nothing"))
    }
}

/// Reward functions, and what they are called with.
pub struct RewardManager<'a> {
    /// The rewards.
    pub rewards: &'a mut [Box<dyn Reward>],
    /// The weight of each.
    pub weights: &'a [f64],
    /// Makes completions texts.
    pub tokenizer: &'a Tokenizer,
    /// The training step.
    pub step: u64,
}

/// A generation whose completions are being scored.
pub struct RewardJob<'scope, 'a> {
    prompts: &'a Prompts,
    builder: InputBuilder<'a>,
    weights: &'a [f64],
    names: Vec<String>,
    /// The rewards that wait for all completions, with their places.
    late: Vec<(usize, &'a mut Box<dyn Reward>)>,
    /// None if all of them do.
    worker: Option<RewardWorker<'scope>>,
}

/// The thread that scores groups.
struct RewardWorker<'scope> {
    /// Before the others, so that a generation that failed does not wait for what nobody will read.
    cancel: CancelOnDrop,
    groups: Sender<(u64, Vec<Vec<u32>>)>,
    thread: ScopedJoinHandle<'scope, anyhow::Result<EarlyScores>>,
}

/// Tells the thread, when dropped, to score no further group.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the thread found.
struct EarlyScores {
    /// The places of its rewards.
    places: Vec<usize>,
    groups: BTreeMap<u64, (RewardInputs, Vec<Scores>)>,
    times: Vec<(Instant, Instant)>,
}

impl<'a> RewardManager<'a> {
    /// Begins to score the groups of `prompts`, which are still to be generated.
    pub fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        prompts: &'a Prompts,
    ) -> anyhow::Result<RewardJob<'scope, 'a>>
    where
        'a: 'scope,
    {
        let builder = InputBuilder::new(self.tokenizer, prompts, self.step);
        let names = self.rewards.iter().map(|r| r.name().to_owned()).collect();
        let (early, late): (Vec<_>, Vec<_>) =
            self.rewards.iter_mut().enumerate().partition(|(_, reward)| reward.judges_by_group());
        let worker = match early.is_empty() {
            true => None,
            false => Some(RewardWorker::start(scope, early, builder.clone())?),
        };
        Ok(RewardJob { prompts, builder, weights: self.weights, names, late, worker })
    }
}

impl RewardJob<'_, '_> {
    /// A group ended: the rewards that need no more are asked about it.
    pub fn group_ended(&mut self, group: &RolloutGroup) {
        if let Some(worker) = &self.worker {
            // If nobody receives it, `finish` says why.
            let _ = worker.groups.send((group.id, group.completions.iter().map(|c| c.ids.clone()).collect()));
        }
    }

    /// All of them ended: waits for the groups that are still being scored, and asks the rewards that want to see all.
    pub fn finish(self, groups: Vec<RolloutGroup>) -> anyhow::Result<RewardOutput> {
        let generated = Instant::now();
        let RewardJob { prompts, builder, weights, names, late, worker } = self;
        let mut scores: Vec<Scores> = names.iter().map(|_| Scores::default()).collect();
        let mut hidden = Vec::new();
        let mut inputs = RewardInputs::default();
        match worker {
            Some(worker) => {
                let EarlyScores { places, groups: mut scored, times } = worker.finish()?;
                let mut by_reward: Vec<Vec<Scores>> = vec![Vec::with_capacity(groups.len()); places.len()];
                for group in &groups {
                    let (own, scores) = scored.remove(&group.id).expect("every group has ended");
                    inputs.append(own);
                    by_reward.iter_mut().zip(scores).for_each(|(of_groups, scores)| of_groups.push(scores));
                }
                for (place, of_groups) in places.into_iter().zip(by_reward) {
                    scores[place] = Scores::of_groups(of_groups);
                }
                let until = |(from, to): (Instant, Instant)| to.min(generated).saturating_duration_since(from);
                hidden.extend(times.iter().map(|&time| (time.0, until(time).as_secs_f64())));
                hidden.retain(|(_, seconds)| *seconds > 0.0);
            }
            None => {
                for group in &groups {
                    let ids = group.completions.iter().map(|c| c.ids.clone()).collect();
                    inputs.append(builder.of_group(group.id, ids)?);
                }
            }
        }
        for (place, reward) in late {
            scores[place] = ask(reward.as_mut(), &inputs.batch(builder.step));
        }
        let (mut problems, mut metrics) = (Vec::new(), Vec::new());
        let mut rows = vec![(Vec::with_capacity(names.len()), Map::new()); inputs.ids.len()];
        for (name, scores) in names.iter().zip(scores) {
            let scores = finite(name, scores);
            rows.iter_mut().zip(scores.values).for_each(|((rewards, _), value)| rewards.push(value));
            for (column, values) in scores.extra {
                rows.iter_mut().zip(values).for_each(|((_, extra), value)| drop(extra.insert(column.clone(), value)));
            }
            problems.extend(scores.problems);
            metrics.extend(scores.metrics);
        }
        let mut rows = inputs.completions.into_iter().zip(rows);
        let mut score = |completion| {
            let (content, (rewards, extra)) = rows.next().expect("a row of each completion");
            ScoredCompletion { completion, content, rewards, extra }
        };
        let scored = |group: RolloutGroup| ScoredGroup {
            id: group.id,
            prompt: prompts[&group.id].clone(),
            completions: group.completions.into_iter().map(&mut score).collect(),
        };
        let groups = groups.into_iter().map(scored).collect();
        let rollouts = Rollouts { groups, reward_names: names, reward_weights: weights.to_vec() };
        Ok(RewardOutput { rollouts, problems, metrics, hidden })
    }
}

impl<'scope> RewardWorker<'scope> {
    fn start<'a: 'scope>(
        scope: &'scope Scope<'scope, '_>,
        rewards: Vec<(usize, &'a mut Box<dyn Reward>)>,
        builder: InputBuilder<'a>,
    ) -> anyhow::Result<RewardWorker<'scope>> {
        let (groups, received) = channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let stop = cancelled.clone();
        let thread = std::thread::Builder::new().name("rewards".into());
        let thread = thread.spawn_scoped(scope, move || score_groups(rewards, &builder, &received, &stop))?;
        Ok(RewardWorker { cancel: CancelOnDrop(cancelled), groups, thread })
    }

    fn finish(self) -> anyhow::Result<EarlyScores> {
        let RewardWorker { cancel, groups, thread } = self;
        drop(groups);
        let early = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        drop(cancel);
        early
    }
}

fn score_groups(
    mut rewards: Vec<(usize, &mut Box<dyn Reward>)>,
    builder: &InputBuilder<'_>,
    received: &Receiver<(u64, Vec<Vec<u32>>)>,
    cancelled: &AtomicBool,
) -> anyhow::Result<EarlyScores> {
    let places = rewards.iter().map(|(place, _)| *place).collect();
    let mut early = EarlyScores { places, groups: BTreeMap::new(), times: Vec::new() };
    while let Ok((group, ids)) = received.recv() {
        if cancelled.load(Ordering::Relaxed) {
            break;
        }
        let from = Instant::now();
        let inputs = builder.of_group(group, ids)?;
        let batch = inputs.batch(builder.step);
        let scores = rewards.iter_mut().map(|(_, reward)| ask(reward.as_mut(), &batch)).collect();
        early.groups.insert(group, (inputs, scores));
        early.times.push((from, Instant::now()));
    }
    Ok(early)
}

fn ask(reward: &mut dyn Reward, batch: &RewardBatch<'_>) -> Scores {
    let scores = reward.score(batch);
    assert_eq!(scores.values.len(), batch.len(), "scores of reward `{}`", reward.name());
    scores
}

/// Makes the inputs of rewards.
#[derive(Clone)]
struct InputBuilder<'a> {
    tokenizer: &'a Tokenizer,
    prompts: &'a Prompts,
    step: u64,
    /// The columns that any prompt has.
    columns: BTreeSet<&'a str>,
}

/// Completions as rewards see them.
#[derive(Default)]
struct RewardInputs {
    prompts: Vec<Content>,
    completions: Vec<Content>,
    ids: Vec<Vec<u32>>,
    columns: Columns,
}

impl<'a> InputBuilder<'a> {
    fn new(tokenizer: &'a Tokenizer, prompts: &'a Prompts, step: u64) -> Self {
        let columns = prompts.values().flat_map(|prompt| prompt.columns.keys()).map(String::as_str).collect();
        InputBuilder { tokenizer, prompts, step, columns }
    }

    fn of_group(&self, group: u64, ids: Vec<Vec<u32>>) -> anyhow::Result<RewardInputs> {
        let prompt = &self.prompts[&group];
        let mut completions = Vec::with_capacity(ids.len());
        for ids in &ids {
            let text = self.tokenizer.decode(ids, true)?;
            completions.push(match prompt.content {
                Content::Text(_) => Content::Text(text),
                Content::Messages(_) => Content::assistant(text),
            });
        }
        let column = |&name: &&str| {
            let value = prompt.columns.get(name).cloned().unwrap_or(Value::Null);
            (name.to_owned(), vec![value; ids.len()])
        };
        let columns = self.columns.iter().map(column).collect();
        Ok(RewardInputs { prompts: vec![prompt.content.clone(); ids.len()], completions, ids, columns })
    }
}

impl RewardInputs {
    fn batch(&self, step: u64) -> RewardBatch<'_> {
        let RewardInputs { prompts, completions, ids, columns } = self;
        RewardBatch { prompts, completions, completion_ids: ids, columns, step }
    }

    fn append(&mut self, next: RewardInputs) {
        self.prompts.extend(next.prompts);
        self.completions.extend(next.completions);
        self.ids.extend(next.ids);
        for (name, values) in next.columns {
            self.columns.entry(name).or_default().extend(values);
        }
    }
}

/// Scores that are not finite numbers are none, and reported: in a mean they would spoil every other score.
fn finite(name: &str, mut scores: Scores) -> Scores {
    let mut bad = Vec::new();
    for value in &mut scores.values {
        if let Some(number) = value.filter(|x| !x.is_finite()) {
            bad.push(number);
            *value = None;
        }
    }
    if let Some(first) = bad.first() {
        let message = format!("it gave {first}, which is not a finite number");
        scores.problems.push(Problem::new(name, bad.len(), message));
    }
    scores
}

#[cfg(test)]
mod tests;
