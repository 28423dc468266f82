//! Scores a worker's groups on separate threads, concurrently with its engine. There are as many threads as batches may
//! be in flight, so that a slow reward does not delay the groups of the next batch.

use crate::rollouts::jobs::{GroupAnswer, GroupJob, score};
use crate::stop::StopSignal;
use anyhow::{anyhow, ensure};
use model::GroupId;
use model::tokenizer::Tokenizer;
use rewards::Reward;
use rollout::RolloutGroup;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Creates one set of rewards; each thread has its own. The first signal ends the wait for starting reward programs;
/// the second ends the wait for scores.
pub type MakeRewards = Arc<dyn Fn(&StopSignal, &StopSignal) -> anyhow::Result<Vec<Box<dyn Reward>>> + Send + Sync>;

/// The threads that score a worker's groups.
pub struct Scorers {
    make: MakeRewards,
    tokenizer: Arc<Tokenizer>,
    /// Ends all waits for rewards when this value is dropped.
    stop: StopSignal,
    /// The rewards of the first thread, created early.
    first: Option<Vec<Box<dyn Reward>>>,
    most: usize,
    /// Groups that were submitted and not answered yet.
    open: usize,
    groups: Option<Sender<ToScore>>,
    waiting: Arc<Mutex<Receiver<ToScore>>>,
    answers: (Sender<Answered>, Receiver<Answered>),
    threads: Vec<JoinHandle<()>>,
}

struct ToScore {
    job: GroupJob,
    group: RolloutGroup,
    rollout_s: f64,
}

/// A group with its answer or error.
type Answered = (GroupId, anyhow::Result<GroupAnswer>);

impl Scorers {
    /// Scorers with up to `most` threads (at least 1). The first set of rewards is created here, so that the caller
    /// receives its errors.
    pub fn new(
        make: MakeRewards,
        tokenizer: Arc<Tokenizer>,
        most: usize,
        start: &StopSignal,
    ) -> anyhow::Result<Scorers> {
        let stop = StopSignal::new();
        let first = Some(make(start, &stop)?);
        let (groups, waiting) = channel();
        let (groups, waiting) = (Some(groups), Arc::new(Mutex::new(waiting)));
        let threads = Vec::new();
        Ok(Scorers { make, tokenizer, stop, first, most, open: 0, groups, waiting, answers: channel(), threads })
    }

    /// Submits a group to be scored.
    pub fn submit(&mut self, job: GroupJob, group: RolloutGroup, rollout_s: f64) -> anyhow::Result<()> {
        self.open += 1;
        if self.open > self.threads.len() && self.threads.len() < self.most {
            self.start()?;
        }
        let is_sent = |groups: &Sender<ToScore>| groups.send(ToScore { job, group, rollout_s }).is_ok();
        ensure!(self.groups.as_ref().is_some_and(is_sent), "all scoring threads have ended");
        Ok(())
    }

    /// The next scored group, if there is one.
    pub fn next_answer(&mut self) -> Option<(GroupId, anyhow::Result<GroupAnswer>)> {
        let answer = self.answers.1.try_recv().ok();
        self.open -= usize::from(answer.is_some());
        answer
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let (make, tokenizer, stop) = (self.make.clone(), self.tokenizer.clone(), self.stop.clone());
        let (waiting, answers, first) = (self.waiting.clone(), self.answers.0.clone(), self.first.take());
        let run = move || {
            let mut rewards = first.map_or_else(|| make(&stop, &stop), Ok).map_err(|error| error.to_string());
            loop {
                let next = waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv();
                let Ok(ToScore { job, group, rollout_s }) = next else { return };
                let scored = match &mut rewards {
                    Ok(rewards) => catch_unwind(AssertUnwindSafe(|| score(rewards, &tokenizer, &stop, &group, &job)))
                        .unwrap_or_else(|_| Err(anyhow!("a reward panicked; see its message above"))),
                    Err(why) => Err(anyhow!("{why}")),
                };
                let answer = scored.map(|scores| GroupAnswer { group, scores, rollout_s });
                if answers.send((job.group, answer)).is_err() {
                    return;
                }
            }
        };
        let name = format!("rewards-{}", self.threads.len());
        self.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        Ok(())
    }
}

impl Drop for Scorers {
    /// Ends the threads, and the programs started by rewards.
    fn drop(&mut self) {
        self.stop.request();
        self.groups = None;
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::prompts::Prompt;
    use model::tokenizer::SpecialTokens;
    use rewards::Content;
    use rollout::SamplingParams;
    use telemetry::Step;

    fn job(group: u64) -> GroupJob {
        let (tokens, content) = (model::Prompt::new([1]), Content::from("a"));
        GroupJob {
            group: GroupId(group),
            prompt: Prompt { row: 0, tokens, content, columns: serde_json::Map::new() },
            num_generations: 1,
            sampling: SamplingParams::default(),
            updates: model::Updates(0),
            step: Step(0),
            rewards: Vec::new(),
            so_far: Vec::new(),
            until: None,
        }
    }

    /// A thread is started only if more groups are open than threads exist, up to the limit.
    #[test]
    fn scoring_threads_are_started_for_open_groups_up_to_the_limit() {
        let tokenizer = Arc::new(Tokenizer::characters("abc".chars(), &SpecialTokens::default()).unwrap());
        let make: MakeRewards = Arc::new(|_: &StopSignal, _: &StopSignal| Ok(Vec::new()));
        let mut scorers = Scorers::new(make, tokenizer, 2, &StopSignal::new()).unwrap();
        let submit = |scorers: &mut Scorers, number: u64| {
            let group = RolloutGroup::new(GroupId(number), job(number).prompt.tokens, Vec::new());
            scorers.submit(job(number), group, 0.5).unwrap();
        };
        let answer = |scorers: &mut Scorers| loop {
            if let Some((number, answer)) = scorers.next_answer() {
                break (number.0, answer.unwrap().rollout_s);
            }
            std::thread::yield_now();
        };
        for number in 0..3 {
            submit(&mut scorers, number);
            assert_eq!((answer(&mut scorers), scorers.threads.len(), scorers.open), ((number, 0.5), 1, 0));
        }
        (3..6).for_each(|number| submit(&mut scorers, number));
        assert_eq!((scorers.threads.len(), scorers.open), (2, 3));
        let mut numbers: Vec<u64> = (0..3).map(|_| answer(&mut scorers).0).collect();
        numbers.sort_unstable();
        assert_eq!((numbers, scorers.open), (vec![3, 4, 5], 0));
        assert!(scorers.next_answer().is_none());
    }

    #[test]
    fn rewards_that_cannot_be_created_are_an_error_of_each_group() {
        let tokenizer = Arc::new(Tokenizer::characters("abc".chars(), &SpecialTokens::default()).unwrap());
        let fails: MakeRewards = Arc::new(|_: &StopSignal, _: &StopSignal| anyhow::bail!("no such reward"));
        let refused = Scorers::new(fails, tokenizer, 1, &StopSignal::new()).err().unwrap();
        assert_eq!(refused.to_string(), "no such reward");
    }
}
