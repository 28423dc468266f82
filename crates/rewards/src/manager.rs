//! Calls all reward functions on a generation batch, some of them while the engine is still generating.
//!
//! A reward that scores groups separately ([`Reward::scores_by_group`]) is called on another thread as soon as the
//! group's last completion has ended, while the engine generates the other groups. A slow reward (an external program)
//! then delays the training run only by the time that it needs after generation. Every other reward is called once
//! after generation, on all completions. The result does not depend on the order in which groups end: scores are joined
//! in the order in which the groups were requested.
//!
//! The scores of a group may also come from another process ([`score_group`]); they are joined in the same way.

use crate::steps::misplaced;
use crate::{Columns, Content, Problem, ProblemKind, Reward, RewardBatch, Scores, StepScore, TABLE_COLUMNS};
use model::{GroupId, Step};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The owned form of a [`RewardBatch`]: the completions of a group or batch with their other fields. All lists have the
/// same length.
#[derive(Default)]
pub struct RewardInputs {
    /// The prompt of each completion.
    pub prompts: Vec<Content>,
    /// The completions to score.
    pub completions: Vec<Content>,
    /// The token ids of each completion.
    pub ids: Vec<Vec<u32>>,
    /// The other columns of the dataset, with one value for each completion.
    pub columns: Columns,
    /// For each completion, the index (from 0) of its dataset row.
    pub rows: Vec<usize>,
}

impl RewardInputs {
    fn batch(&self, step: Step) -> RewardBatch<'_> {
        let RewardInputs { prompts, completions, ids, columns, rows } = self;
        RewardBatch { prompts, completions, completion_ids: ids, columns, rows, step }
    }

    fn append(&mut self, next: RewardInputs) {
        self.prompts.extend(next.prompts);
        self.completions.extend(next.completions);
        self.ids.extend(next.ids);
        self.rows.extend(next.rows);
        for (name, values) in next.columns {
            self.columns.entry(name).or_default().extend(values);
        }
    }
}

/// A function that makes the reward inputs of a group from the group's id and the token ids of its completions.
pub type MakeInputs<'a> = Arc<dyn Fn(GroupId, Vec<Vec<u32>>) -> model::Result<RewardInputs> + Send + Sync + 'a>;

/// The reward functions and their inputs.
pub struct RewardManager<'a> {
    /// The reward functions.
    pub rewards: &'a mut [Box<dyn Reward>],
    /// Makes the prompts, texts and dataset columns of a group's completions.
    pub make_inputs: MakeInputs<'a>,
    /// The training step, passed to rewards.
    pub step: Step,
}

/// The scores of one completion from all rewards.
#[derive(Clone, Debug, Default)]
pub struct CompletionScores {
    /// One score per reward function; `None` if the reward gave no score.
    pub rewards: Vec<Option<f64>>,
    /// For each reward function, the scores of the completion's steps, if the reward gave step scores.
    pub steps: Vec<Option<Vec<StepScore>>>,
    /// The values that rewards add to the completions table, by column name.
    pub extra: Map<String, Value>,
}

/// The scores of a generation batch from all rewards.
#[derive(Default)]
pub struct RewardOutput {
    /// Each completion as passed to rewards, with its scores.
    pub completions: Vec<(Content, CompletionScores)>,
    /// Failures of rewards in this batch.
    pub problems: Vec<Problem>,
    /// Extra metrics that rewards report. Each name is prefixed by the reward's name, so that it cannot replace a
    /// metric of the training run.
    pub metrics: Vec<(String, f64)>,
    /// The start and duration in seconds of each scoring call that overlapped with generation.
    pub overlapped: Vec<(Instant, f64)>,
    /// Seconds that each reward took.
    pub seconds: Vec<f64>,
    /// For each reward, the number of completions whose scoring timed out, with or without a score.
    pub timed_out: Vec<usize>,
}

/// The scores of one group from one reward, computed by another process.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenScores {
    /// Index of the reward in the list of all rewards.
    pub reward: usize,
    /// The reward's scores of the group.
    pub scores: Scores,
    /// Seconds that the reward took.
    pub seconds: f64,
}

/// Scores one group with the rewards whose indices are in `asked`. Each of these must [score groups
/// separately](Reward::scores_by_group).
pub fn score_group(
    rewards: &mut [Box<dyn Reward>],
    asked: &[usize],
    inputs: &RewardInputs,
    step: Step,
) -> Vec<GivenScores> {
    let (batch, list) = (inputs.batch(step), Asked::default());
    let ask = |&reward: &usize| {
        let (scores, seconds) = list.ask(rewards[reward].as_mut(), &batch);
        GivenScores { reward, scores, seconds }
    };
    asked.iter().map(ask).collect()
}

/// The rewards that are currently running, each with its start time. Threads that wait for rewards read this list.
#[derive(Clone, Default)]
pub struct Asked(Arc<Mutex<Vec<(String, Instant)>>>);

impl Asked {
    /// The name of the reward that has been running longest, and for how long.
    pub fn longest(&self) -> Option<(String, Duration)> {
        let asked = self.list();
        asked.iter().min_by_key(|(_, since)| *since).map(|(name, since)| (name.clone(), since.elapsed()))
    }

    fn list(&self) -> MutexGuard<'_, Vec<(String, Instant)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Calls a reward; returns its scores and the seconds it took.
    fn ask(&self, reward: &mut dyn Reward, batch: &RewardBatch<'_>) -> (Scores, f64) {
        let since = Instant::now();
        self.list().push((reward.name().to_owned(), since));
        let scores = reward.score(batch).with_places();
        self.list().retain(|(name, _)| name != reward.name());
        assert_eq!(scores.values.len(), batch.len(), "scores of reward `{}`", reward.name());
        (scores, since.elapsed().as_secs_f64())
    }
}

/// A generation batch whose completions are being scored.
pub struct RewardJob<'scope, 'a> {
    make_inputs: MakeInputs<'a>,
    step: Step,
    names: Vec<String>,
    asked: Asked,
    /// The rewards that need all completions at once, with their indices.
    late: Vec<(usize, &'a mut Box<dyn Reward>)>,
    /// The thread that scores single groups; `None` if no reward scores by group.
    worker: Option<RewardWorker<'scope>>,
}

/// The thread that scores groups while other groups are generated.
struct RewardWorker<'scope> {
    /// Declared first, so that it is dropped first: the thread then scores no further group after a failed generation.
    cancel: CancelOnDrop,
    groups: Sender<(GroupId, Vec<Vec<u32>>)>,
    thread: ScopedJoinHandle<'scope, model::Result<EarlyScores>>,
}

/// Dropping this value tells the scoring thread to score no further groups.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The scores that the scoring thread computed before generation ended.
struct EarlyScores {
    /// Indices of the rewards that the thread called.
    places: Vec<usize>,
    /// For each group, its inputs, and the scores and seconds of each reward that the thread called.
    groups: BTreeMap<GroupId, (RewardInputs, Vec<(Scores, f64)>)>,
    times: Vec<(Instant, Instant)>,
}

impl<'a> RewardManager<'a> {
    /// Starts scoring a batch before its groups are generated. Other processes call the rewards whose indices are in
    /// `elsewhere`; their scores are passed to [`finish`](RewardJob::finish).
    pub fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        elsewhere: &[usize],
    ) -> std::io::Result<RewardJob<'scope, 'a>>
    where
        'a: 'scope,
    {
        let RewardManager { rewards, make_inputs, step } = self;
        let names = rewards.iter().map(|r| r.name().to_owned()).collect();
        let here = rewards.iter_mut().enumerate().filter(|(place, _)| !elsewhere.contains(place));
        let (early, late): (Vec<_>, Vec<_>) = here.partition(|(_, reward)| reward.scores_by_group());
        let asked = Asked::default();
        let worker = if early.is_empty() {
            None
        } else {
            Some(RewardWorker::start(scope, early, make_inputs.clone(), step, asked.clone())?)
        };
        Ok(RewardJob { make_inputs, step, names, asked, late, worker })
    }
}

impl RewardJob<'_, '_> {
    /// Names of the reward functions.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The list of running rewards, for threads that wait for them.
    pub fn asked(&self) -> Asked {
        self.asked.clone()
    }

    /// Reports a finished group with its completions, so that the rewards that score by group are called on it.
    pub fn group_ended(&mut self, group: GroupId, completions: impl FnOnce() -> Vec<Vec<u32>>) {
        if let Some(worker) = &self.worker {
            // If the worker has already ended, `finish` reports the reason.
            let _ = worker.groups.send((group, completions()));
        }
    }

    /// Called when all groups have ended: waits for the groups that are still being scored, and calls the rewards that
    /// need all completions. `given` holds the scores from other processes, by group. Either all groups have scores
    /// from the same rewards, or no group has any.
    pub fn finish(
        self,
        groups: impl ExactSizeIterator<Item = (GroupId, impl FnOnce() -> Vec<Vec<u32>>)>,
        mut given: BTreeMap<GroupId, Vec<GivenScores>>,
    ) -> model::Result<RewardOutput> {
        let generated = Instant::now();
        let RewardJob { make_inputs, step, names, asked, late, worker } = self;
        let mut seconds = vec![0.0; names.len()];
        let mut scores: Vec<Scores> = names.iter().map(|_| Scores::default()).collect();
        let mut overlapped = Vec::new();
        let mut inputs = RewardInputs::default();
        let mut by_reward: BTreeMap<usize, Vec<Scores>> = BTreeMap::new();
        let mut early = worker.map(RewardWorker::finish).transpose()?;
        for (group, ids) in groups {
            let mut group_scores = given.remove(&group).unwrap_or_default();
            inputs.append(match &mut early {
                Some(EarlyScores { places, groups, .. }) => {
                    let (own, scores) = groups.remove(&group).expect("every group has been scored");
                    let here = places.iter().zip(scores);
                    group_scores.extend(here.map(|(&reward, (scores, seconds))| GivenScores {
                        reward,
                        scores,
                        seconds,
                    }));
                    own
                }
                None => make_inputs(group, ids())?,
            });
            for GivenScores { reward, scores, seconds: took } in group_scores {
                by_reward.entry(reward).or_default().push(scores);
                seconds[reward] += took;
            }
        }
        for (place, parts) in by_reward {
            scores[place] = Scores::from_groups(parts);
        }
        if let Some(EarlyScores { times, .. }) = early {
            let until = |(from, to): (Instant, Instant)| to.min(generated).saturating_duration_since(from);
            overlapped.extend(times.iter().map(|&time| (time.0, until(time).as_secs_f64())));
            overlapped.retain(|(_, seconds)| *seconds > 0.0);
        }
        for (place, reward) in late {
            (scores[place], seconds[place]) = asked.ask(reward.as_mut(), &inputs.batch(step));
        }
        let (mut problems, mut metrics, mut timed_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut rows = vec![CompletionScores::default(); inputs.ids.len()];
        let mut taken: BTreeSet<String> = TABLE_COLUMNS.map(str::to_owned).into_iter().chain(names.clone()).collect();
        for (name, scores) in names.iter().zip(scores) {
            let mut scores = placed(name, finite(name, scores), &inputs);
            rows.iter_mut().zip(scores.values).for_each(|(row, value)| row.rewards.push(value));
            scores.steps.resize(rows.len(), None);
            rows.iter_mut().zip(scores.steps).for_each(|(row, steps)| row.steps.push(steps));
            for (mut column, values) in scores.extra {
                // Columns of the completions table must have unique names.
                while !taken.insert(column.clone()) {
                    column = format!("{name}_{column}");
                }
                rows.iter_mut().zip(values).for_each(|(row, value)| drop(row.extra.insert(column.clone(), value)));
            }
            let late = scores.problems.iter().filter(|problem| problem.kind == ProblemKind::TimedOut);
            timed_out.push(scores.timed_out + late.map(|problem| problem.rows).sum::<usize>());
            problems.extend(scores.problems);
            metrics.extend(scores.metrics.into_iter().map(|(metric, value)| (metric_name(name, &metric), value)));
        }
        let completions = inputs.completions.into_iter().zip(rows).collect();
        Ok(RewardOutput { completions, problems, metrics, overlapped, seconds, timed_out })
    }
}

impl<'scope> RewardWorker<'scope> {
    fn start<'a: 'scope>(
        scope: &'scope Scope<'scope, '_>,
        rewards: Vec<(usize, &'a mut Box<dyn Reward>)>,
        make_inputs: MakeInputs<'a>,
        step: Step,
        asked: Asked,
    ) -> std::io::Result<RewardWorker<'scope>> {
        let (groups, received) = channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let stop = cancelled.clone();
        let thread = std::thread::Builder::new().name("rewards".into());
        let score = move || score_groups(rewards, &make_inputs, step, &received, &stop, &asked);
        let thread = thread.spawn_scoped(scope, score)?;
        Ok(RewardWorker { cancel: CancelOnDrop(cancelled), groups, thread })
    }

    fn finish(self) -> model::Result<EarlyScores> {
        let RewardWorker { cancel, groups, thread } = self;
        drop(groups);
        let early = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        drop(cancel);
        early
    }
}

fn score_groups(
    mut rewards: Vec<(usize, &mut Box<dyn Reward>)>,
    make_inputs: &MakeInputs<'_>,
    step: Step,
    received: &Receiver<(GroupId, Vec<Vec<u32>>)>,
    cancelled: &AtomicBool,
    asked: &Asked,
) -> model::Result<EarlyScores> {
    let places = rewards.iter().map(|(place, _)| *place).collect();
    let mut early = EarlyScores { places, groups: BTreeMap::new(), times: Vec::new() };
    while let Ok((group, ids)) = received.recv() {
        if cancelled.load(Ordering::Relaxed) {
            break;
        }
        let from = Instant::now();
        let inputs = make_inputs(group, ids)?;
        let batch = inputs.batch(step);
        let scores = rewards.iter_mut().map(|(_, reward)| asked.ask(reward.as_mut(), &batch)).collect();
        early.groups.insert(group, (inputs, scores));
        early.times.push((from, Instant::now()));
    }
    Ok(early)
}

/// The name under which a training run logs a metric that a reward reports.
fn metric_name(reward: &str, metric: &str) -> String {
    match metric {
        // The training run already logs metrics with these two names.
        "mean" | "std" => format!("rewards/{reward}/metric_{metric}"),
        _ => format!("rewards/{reward}/{metric}"),
    }
}

/// Removes and reports the scores of completions with steps that do not end within the completion.
fn placed(name: &str, mut scores: Scores, inputs: &RewardInputs) -> Scores {
    let Scores { values, steps, problems, .. } = &mut scores;
    for (row, (steps, value)) in steps.iter_mut().zip(values).enumerate() {
        let Some(given) = steps else { continue };
        if value.is_none() {
            *steps = None;
        } else if let Some(message) = misplaced(given, inputs.ids[row].len(), &inputs.completions[row].text()) {
            problems.push(Problem::new(name, 1, message).with_kind(ProblemKind::BadAnswer).at(vec![row]));
            (*steps, *value) = (None, None);
        }
    }
    scores
}

/// Removes and reports scores that are NaN or infinite, since they would make every mean NaN or infinite.
fn finite(name: &str, mut scores: Scores) -> Scores {
    let mut bad = Vec::new();
    for (place, value) in scores.values.iter_mut().enumerate() {
        if let Some(number) = value.filter(|x| !x.is_finite()) {
            bad.push((place, number));
            *value = None;
        }
    }
    if let Some((_, first)) = bad.first() {
        let message = format!("it gave {first}, which is not a finite number");
        let problem = Problem::new(name, bad.len(), message).with_kind(ProblemKind::NotFinite);
        scores.problems.push(problem.at(bad.into_iter().map(|(place, _)| place).collect()));
    }
    scores
}

#[cfg(test)]
mod tests {
    mod job;

    use super::*;

    #[test]
    fn steps_outside_of_their_completion_give_no_score() {
        use crate::StepEnd::{Char, Token};
        let inputs = RewardInputs {
            completions: vec!["ab".into(), "ab".into(), "ab".into()],
            ids: vec![vec![1, 2], vec![1], vec![1]],
            ..RewardInputs::default()
        };
        let step = |end| Some(vec![StepScore { end, score: 1.0 }]);
        let given =
            Scores { steps: vec![step(Token(1)), step(Token(1)), step(Char(2))], ..Scores::new(vec![Some(1.0); 3]) };
        let Scores { values, steps, problems, .. } = placed("r", given, &inputs);
        assert_eq!(values, [Some(1.0), None, Some(1.0)]);
        assert_eq!(steps, [step(Token(1)), None, step(Char(2))]);
        assert!(problems.len() == 1 && problems[0].message.contains("token 1"), "{problems:?}");
    }

    #[test]
    fn a_score_that_is_not_finite_is_dropped_and_reported() {
        let given = Scores::new(vec![Some(1.0), Some(f64::NAN), None, Some(f64::INFINITY), Some(-2.5)]);
        let Scores { values, problems, .. } = finite("odd", given);
        assert_eq!(values, [Some(1.0), None, None, None, Some(-2.5)]);
        assert_eq!(problems.len(), 1);
        let problem = problems[0].to_string();
        assert!(problem.contains("`odd`") && problem.contains("2 completions") && problem.contains("NaN"), "{problem}");
        let good = Scores::new(vec![Some(0.0), None]);
        assert_eq!(finite("good", good.clone()), good);
    }

    #[test]
    fn longest_names_the_reward_that_runs_longest() {
        let asked = Asked::default();
        assert!(asked.longest().is_none());
        let now = Instant::now();
        let minutes = |n: u64| now.checked_sub(Duration::from_secs(60 * n)).unwrap_or(now);
        asked.list().extend([("b".to_owned(), minutes(1)), ("a".to_owned(), minutes(2)), ("c".to_owned(), now)]);
        let (name, time) = asked.clone().longest().unwrap();
        assert!(name == "a" && time >= Duration::from_secs(120), "{name} {time:?}");
    }

    #[test]
    fn steps_of_completions_without_a_score_are_dropped_silently() {
        let inputs = RewardInputs {
            completions: vec!["ab".into(), "ab".into()],
            ids: vec![vec![1], vec![1]],
            ..RewardInputs::default()
        };
        let step = |token| Some(vec![StepScore { end: crate::StepEnd::Token(token), score: 1.0 }]);
        let given = Scores { steps: vec![step(0), step(1)], ..Scores::new(vec![None, Some(1.0)]) };
        let Scores { values, steps, problems, .. } = placed("r", given, &inputs);
        assert_eq!((values, steps), (vec![None, None], vec![None, None]));
        let message = "a step ends at token 1, but the completion has 1 tokens (counted from 0)";
        assert_eq!(problems, [Problem::new("r", 1, message).with_kind(ProblemKind::BadAnswer).at(vec![1])]);
        assert_eq!(
            [metric_name("r", "mean"), metric_name("r", "std")],
            ["rewards/r/metric_mean", "rewards/r/metric_std"]
        );
        assert_eq!(metric_name("r", "other"), "rewards/r/other");
    }
}
