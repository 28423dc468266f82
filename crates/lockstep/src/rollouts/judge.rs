//! Completions to scores: asks every reward, some beside the engine.
//!
//! A reward that judges a group by itself ([`Reward::judges_by_group`]) is asked as soon as the group's last completion has
//! ended, on a thread beside the engine, which goes on with the others; so a reward that takes its time (a program outside)
//! costs the run only what is left when generation has ended. Every other reward is asked once, about all completions, after
//! that. When groups end changes no bit: what was said of them is put together in the order of the questions.

use crate::data::prompts::Prompt;
use model::tokenizer::Tokenizer;
use rewards::{Columns, Content, Problem, Reward, RewardBatch, Scores};
use rollout::Completion;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;
use train::RewardMatrix;

/// A judged batch.
#[derive(Clone, Debug)]
pub struct Judged {
    /// One row per completion, one column per reward.
    pub matrix: RewardMatrix,
    /// The prompt of each completion.
    pub prompts: Vec<Content>,
    /// The completions as rewards saw them.
    pub completions: Vec<Content>,
    /// What kept rewards from judging.
    pub problems: Vec<Problem>,
    /// Numbers that rewards want logged.
    pub metrics: Vec<(String, f64)>,
    /// Columns that rewards add to the completions table.
    pub extra: Vec<(String, Vec<Value>)>,
    /// When, and for how many seconds, groups were judged while others were still generated.
    pub hidden: Vec<(Instant, f64)>,
}

impl Default for Judged {
    /// Of nothing.
    fn default() -> Self {
        let matrix = RewardMatrix { rewards: Vec::new(), names: Vec::new(), weights: Vec::new() };
        Judged {
            matrix,
            prompts: Vec::new(),
            completions: Vec::new(),
            problems: Vec::new(),
            metrics: Vec::new(),
            extra: Vec::new(),
            hidden: Vec::new(),
        }
    }
}

impl Judged {
    /// That completions have no score at all though no reward said why: every reward gave null. TRL warns of it too.
    pub fn unscored(&self) -> Option<String> {
        let rows = self.matrix.rewards.iter().filter(|row| row.iter().all(Option::is_none)).count();
        (rows > 0 && self.problems.is_empty()).then(|| {
            format!(
                "no reward gave a score for {rows} of {} completions: they teach nothing",
                self.matrix.rewards.len()
            )
        })
    }
}

/// Who judges, and what they are told.
pub struct Judges<'a> {
    /// The rewards.
    pub rewards: &'a mut [Box<dyn Reward>],
    /// The weight of each.
    pub weights: &'a [f64],
    /// Makes completions texts.
    pub tokenizer: &'a Tokenizer,
    /// The training step.
    pub step: u64,
}

/// A generation that is being judged.
pub struct Judging<'scope, 'a> {
    sheets: Sheets<'a>,
    weights: &'a [f64],
    names: Vec<String>,
    /// The rewards that wait for all completions, with their places.
    late: Vec<(usize, &'a mut Box<dyn Reward>)>,
    /// None if all of them do.
    beside: Option<Beside<'scope>>,
    /// Generation and ids of what has ended, by group.
    ended: Vec<Vec<(usize, Vec<u32>)>>,
}

/// The thread that judges groups.
struct Beside<'scope> {
    /// Before the others, so that a generation that failed does not wait for what nobody will read.
    given_up: GivenUp,
    groups: Sender<(usize, Vec<Vec<u32>>)>,
    thread: ScopedJoinHandle<'scope, anyhow::Result<Early>>,
}

/// Tells the thread, when dropped, to judge no further group.
struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the thread found.
struct Early {
    /// The places of its rewards.
    places: Vec<usize>,
    /// Of each group, in the order in which they ended.
    groups: Vec<(usize, Sheet, Vec<Scores>)>,
    times: Vec<(Instant, Instant)>,
}

impl<'a> Judges<'a> {
    /// Begins to judge `group` completions of each of `questions`, which are still to be generated.
    pub fn begin<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        questions: &'a [Arc<Prompt>],
        group: usize,
    ) -> anyhow::Result<Judging<'scope, 'a>>
    where
        'a: 'scope,
    {
        let sheets = Sheets::new(self.tokenizer, questions, group, self.step);
        let names = self.rewards.iter().map(|r| r.name().to_owned()).collect();
        let (early, late): (Vec<_>, Vec<_>) =
            self.rewards.iter_mut().enumerate().partition(|(_, reward)| reward.judges_by_group());
        let beside = match early.is_empty() {
            true => None,
            false => Some(Beside::start(scope, early, sheets.clone())?),
        };
        Ok(Judging { ended: vec![Vec::new(); questions.len()], sheets, weights: self.weights, names, late, beside })
    }
}

impl Judging<'_, '_> {
    /// A completion ended; the last of its group sends the group to be judged.
    pub fn ended(&mut self, completion: &Completion) {
        let Some(beside) = &self.beside else { return };
        let group = &mut self.ended[completion.request];
        group.push((completion.generation, completion.ids.clone()));
        if group.len() == self.sheets.group {
            group.sort_unstable_by_key(|(generation, _)| *generation);
            let ids = group.drain(..).map(|(_, ids)| ids).collect();
            // If nobody receives it, `finish` says why.
            let _ = beside.groups.send((completion.request, ids));
        }
    }

    /// All of them ended: waits for the groups that are still being judged, and asks the rewards that want to see all.
    pub fn finish(self, completions: &[Completion]) -> anyhow::Result<Judged> {
        let generated = Instant::now();
        let Judging { sheets, weights, names, late, beside, .. } = self;
        let mut scores: Vec<Scores> = names.iter().map(|_| Scores::default()).collect();
        let mut hidden = Vec::new();
        let sheet = match beside {
            Some(beside) => {
                let Early { places, mut groups, times } = beside.finish()?;
                groups.sort_unstable_by_key(|(group, ..)| *group);
                assert_eq!(groups.len(), sheets.questions.len(), "every group has ended");
                let mut said: Vec<Vec<Scores>> = vec![Vec::with_capacity(groups.len()); places.len()];
                let mut whole = Sheet::default();
                for (_, sheet, scores) in groups {
                    whole.append(sheet);
                    said.iter_mut().zip(scores).for_each(|(said, scores)| said.push(scores));
                }
                for (place, said) in places.into_iter().zip(said) {
                    scores[place] = Scores::of_groups(said);
                }
                let until = |(from, to): (Instant, Instant)| to.min(generated).saturating_duration_since(from);
                hidden.extend(times.iter().map(|&time| (time.0, until(time).as_secs_f64())));
                hidden.retain(|(_, seconds)| *seconds > 0.0);
                whole
            }
            None => sheets.all(completions)?,
        };
        for (place, reward) in late {
            scores[place] = ask(reward.as_mut(), &sheet.batch(sheets.step));
        }
        let mut rows = vec![Vec::with_capacity(names.len()); sheet.ids.len()];
        let (mut problems, mut metrics, mut extra) = (Vec::new(), Vec::new(), Vec::new());
        for (name, scores) in names.iter().zip(scores) {
            let scores = finite(name, scores);
            rows.iter_mut().zip(scores.values).for_each(|(row, value)| row.push(value));
            problems.extend(scores.problems);
            metrics.extend(scores.metrics);
            extra.extend(scores.extra);
        }
        let matrix = RewardMatrix { rewards: rows, names, weights: weights.to_vec() };
        let Sheet { prompts, completions, .. } = sheet;
        Ok(Judged { matrix, prompts, completions, problems, metrics, extra, hidden })
    }
}

impl<'scope> Beside<'scope> {
    fn start<'a: 'scope>(
        scope: &'scope Scope<'scope, '_>,
        rewards: Vec<(usize, &'a mut Box<dyn Reward>)>,
        sheets: Sheets<'a>,
    ) -> anyhow::Result<Beside<'scope>> {
        let (groups, received) = channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let stop = given_up.clone();
        let thread = std::thread::Builder::new().name("rewards".into());
        let thread = thread.spawn_scoped(scope, move || judge_groups(rewards, &sheets, &received, &stop))?;
        Ok(Beside { given_up: GivenUp(given_up), groups, thread })
    }

    fn finish(self) -> anyhow::Result<Early> {
        let Beside { given_up, groups, thread } = self;
        drop(groups);
        let early = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        drop(given_up);
        early
    }
}

fn judge_groups(
    mut rewards: Vec<(usize, &mut Box<dyn Reward>)>,
    sheets: &Sheets<'_>,
    received: &Receiver<(usize, Vec<Vec<u32>>)>,
    given_up: &AtomicBool,
) -> anyhow::Result<Early> {
    let places = rewards.iter().map(|(place, _)| *place).collect();
    let mut early = Early { places, groups: Vec::new(), times: Vec::new() };
    while let Ok((group, ids)) = received.recv() {
        if given_up.load(Ordering::Relaxed) {
            break;
        }
        let from = Instant::now();
        let sheet = sheets.of_group(group, ids)?;
        let batch = sheet.batch(sheets.step);
        let scores = rewards.iter_mut().map(|(_, reward)| ask(reward.as_mut(), &batch)).collect();
        early.groups.push((group, sheet, scores));
        early.times.push((from, Instant::now()));
    }
    Ok(early)
}

fn ask(reward: &mut dyn Reward, batch: &RewardBatch<'_>) -> Scores {
    let scores = reward.score(batch);
    assert_eq!(scores.values.len(), batch.len(), "scores of reward `{}`", reward.name());
    scores
}

/// Makes the sheets of a generation.
#[derive(Clone)]
struct Sheets<'a> {
    tokenizer: &'a Tokenizer,
    questions: &'a [Arc<Prompt>],
    group: usize,
    step: u64,
    /// The columns that any question has.
    columns: BTreeSet<&'a str>,
}

/// Completions as rewards see them.
#[derive(Default)]
struct Sheet {
    prompts: Vec<Content>,
    completions: Vec<Content>,
    ids: Vec<Vec<u32>>,
    columns: Columns,
}

impl<'a> Sheets<'a> {
    fn new(tokenizer: &'a Tokenizer, questions: &'a [Arc<Prompt>], group: usize, step: u64) -> Self {
        let columns = questions.iter().flat_map(|q| q.columns.keys()).map(String::as_str).collect();
        Sheets { tokenizer, questions, group, step, columns }
    }

    /// Of the completions of one question.
    fn of_group(&self, group: usize, ids: Vec<Vec<u32>>) -> anyhow::Result<Sheet> {
        let question = &self.questions[group];
        let mut completions = Vec::with_capacity(ids.len());
        for ids in &ids {
            let text = self.tokenizer.decode(ids, true)?;
            completions.push(match question.content {
                Content::Text(_) => Content::Text(text),
                Content::Messages(_) => Content::assistant(text),
            });
        }
        let column = |&name: &&str| {
            let value = question.columns.get(name).cloned().unwrap_or(Value::Null);
            (name.to_owned(), vec![value; ids.len()])
        };
        let columns = self.columns.iter().map(column).collect();
        Ok(Sheet { prompts: vec![question.content.clone(); ids.len()], completions, ids, columns })
    }

    /// Of completions that lie group by group.
    fn all(&self, completions: &[Completion]) -> anyhow::Result<Sheet> {
        let mut all = Sheet::default();
        for (group, completions) in completions.chunks(self.group.max(1)).enumerate() {
            all.append(self.of_group(group, completions.iter().map(|c| c.ids.clone()).collect())?);
        }
        Ok(all)
    }
}

impl Sheet {
    fn batch(&self, step: u64) -> RewardBatch<'_> {
        let Sheet { prompts, completions, ids, columns } = self;
        RewardBatch { prompts, completions, completion_ids: ids, columns, step }
    }

    fn append(&mut self, next: Sheet) {
        self.prompts.extend(next.prompts);
        self.completions.extend(next.completions);
        self.ids.extend(next.ids);
        for (name, values) in next.columns {
            self.columns.entry(name).or_default().extend(values);
        }
    }
}

/// Scores that are not finite numbers are none, and it is said: in a mean they would spoil every other score.
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
