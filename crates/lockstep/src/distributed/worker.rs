//! A worker's side: finds the weights of a job, pins them, and does it.

use super::learner::job_of;
use super::{Identity, Shared};
use crate::error::paragraph;
use crate::rollouts::collector::Collector;
use crate::rollouts::jobs::GroupAnswer;
use crate::stop::{StopSignal, is_stopped};
use anyhow::{Context as _, bail};
use fleet::exchange::LearnerState;
use fleet::exchange::spool::Layout;
use fleet::worker::{Done, NotDone, Progress, Work};
use fleet::{Answer, Job};
use kernels::Context;
use model::{Adapter, LoraConfig, ModelConfig, ModelView, SharedSlot, Weights};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a worker looks for weights that are not there yet.
const LOOK: Duration = Duration::from_millis(5);
/// How often it tells that it works.
const TELL: Duration = Duration::from_millis(200);

/// What does the jobs of a run.
pub struct WorkerWork {
    parts: Parts,
    layout: Layout,
    slots: HashMap<PathBuf, SharedSlot>,
    base: Option<(PathBuf, Weights)>,
    tokens: u64,
    seconds: f64,
}

/// What a worker computes with.
pub struct Parts {
    /// The run's directory.
    pub out: PathBuf,
    /// Its device and threads.
    pub ctx: Context,
    /// The shape of the model.
    pub model: Arc<ModelConfig>,
    /// The adapter that is trained, if one is.
    pub lora: Option<LoraConfig>,
    /// Generates and scores.
    pub collector: Collector,
    /// Ends a job.
    pub stop: StopSignal,
    /// This worker's.
    pub identity: Identity,
    /// A reward that cannot score ends the worker.
    pub refuses_failed_rewards: bool,
}

/// The weights of a job, pinned.
enum Pinned {
    Whole(Weights),
    Adapter(Adapter),
}

impl WorkerWork {
    /// A worker of these parts.
    pub fn new(parts: Parts) -> WorkerWork {
        let layout = Layout::of_run(&parts.out);
        WorkerWork { parts, layout, slots: HashMap::new(), base: None, tokens: 0, seconds: 0.0 }
    }

    fn shared(&self) -> anyhow::Result<Option<Shared>> {
        let Ok(bytes) = std::fs::read(self.layout.learner()) else { return Ok(None) };
        let state: LearnerState = serde_json::from_slice(&bytes).context("learner.json")?;
        let shared: Shared = serde_json::from_value(state.shared).context("learner.json")?;
        if let Some(what) = self.parts.identity.difference(&shared.identity) {
            bail!("the run has changed since this worker joined: {what}; start the worker again");
        }
        Ok(Some(shared))
    }

    /// The weights of a job, once they are published; none if the job is not wanted any more.
    fn pin(&mut self, job: &Job, progress: &Progress<'_>) -> anyhow::Result<Option<Pinned>> {
        loop {
            if let Some(shared) = self.shared()?
                && let Some(pinned) = self.try_pin(job, &shared)?
            {
                return Ok(Some(pinned));
            }
            progress.advance("waiting for weights");
            if progress.must_stop() {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// None if they are not there: not yet, or because their learner has ended.
    fn try_pin(&mut self, job: &Job, shared: &Shared) -> anyhow::Result<Option<Pinned>> {
        let Some(place) = shared.slots.get(&job.version).filter(|place| place.lineage == job.lineage) else {
            return Ok(None);
        };
        // Slots of a learner that has ended take memory as long as they are mapped.
        self.slots.retain(|path, _| shared.slots.values().any(|place| place.path == *path));
        let slot = match self.slots.entry(place.path.clone()) {
            std::collections::hash_map::Entry::Occupied(slot) => slot.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => match open(&place.path, shared.run) {
                Some(slot) => free.insert(slot),
                None => return Ok(None),
            },
        };
        let (memory, config) = (self.parts.ctx.memory(), &self.parts.model);
        let found = match (&self.parts.lora, &shared.base) {
            (Some(lora), Some(base)) => {
                if self.base.as_ref().is_none_or(|(path, _)| path != base) {
                    let Some(slot) = open(base, shared.run) else { return Ok(None) };
                    let Some((weights, _)) = slot.weights(memory, config)? else { return Ok(None) };
                    self.base = Some((base.clone(), weights));
                }
                slot.adapter(memory, config, lora)?.map(|(adapter, contents)| (Pinned::Adapter(adapter), contents))
            }
            _ => slot.weights(memory, config)?.map(|(weights, contents)| (Pinned::Whole(weights), contents)),
        };
        let is_it = |contents: &kernels::memory::slot::Contents| contents.number == place.stored_as;
        Ok(found.filter(|(_, contents)| is_it(contents)).map(|(pinned, _)| pinned))
    }

    fn work(&mut self, job: &Job, progress: &Progress<'_>) -> anyhow::Result<Option<GroupAnswer>> {
        let group_job = job_of(job)?;
        let Some(pinned) = self.pin(job, progress)? else { return Ok(None) };
        let view = match (&pinned, &self.base) {
            (Pinned::Whole(weights), _) => ModelView::from(weights),
            (Pinned::Adapter(adapter), Some((_, base))) => ModelView::new(base, Some(adapter)),
            (Pinned::Adapter(_), None) => bail!("the base of the adapter is gone"),
        };
        let since = Instant::now();
        let collector = &mut self.parts.collector;
        let group = telling(progress, "sampling", || collector.generate(view, &group_job))?;
        let rollout_s = since.elapsed().as_secs_f64();
        // Scores need no weights: the learner may write this slot.
        drop(pinned);
        self.tokens += group.completions.iter().map(|c| c.ids.len() as u64).sum::<u64>();
        self.seconds += rollout_s;
        progress.share(serde_json::json!({ "tokens_per_s": self.tokens as f64 / self.seconds.max(1e-9) }));
        let scores = telling(progress, "scoring", || collector.score(&group, &group_job))?;
        let problems = scores.iter().flat_map(|given| &given.scores.problems);
        if let Some(problem) = problems.filter(|problem| problem.fatal).find(|_| self.parts.refuses_failed_rewards) {
            bail!("reward `{}` fails: {}", problem.reward, problem.message);
        }
        Ok(Some(GroupAnswer { group, scores, rollout_s }))
    }
}

impl Work for WorkerWork {
    fn run(&mut self, job: &Job, progress: &Progress<'_>) -> Result<Done, NotDone> {
        match self.work(job, progress) {
            Ok(Some(answer)) => {
                let fingerprint = GroupAnswer::fingerprint(&answer.group);
                Ok(Done { bytes: answer.to_bytes(), answer: Answer { fingerprint, more: false } })
            }
            Ok(None) => Err(NotDone::Stopped),
            Err(error) if self.parts.stop.is_requested() || is_stopped(&error) => Err(NotDone::Stopped),
            Err(error) => Err(NotDone::Failed(paragraph(&error))),
        }
    }
}

/// A slot of this run; none if it is gone.
fn open(path: &Path, run: [u8; 16]) -> Option<SharedSlot> {
    SharedSlot::open(path).ok().filter(|slot| slot.run() == run)
}

/// Does `work`, and tells meanwhile that it proceeds.
fn telling<T>(progress: &Progress<'_>, stage: &str, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    progress.advance(stage);
    std::thread::scope(|scope| {
        let teller = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::thread::park_timeout(TELL);
                progress.advance(stage);
            }
        });
        // Also when it panics: the scope waits for the thread.
        let _ended = Ended(&done, teller.thread().clone());
        work()
    })
}

struct Ended<'a>(&'a AtomicBool, std::thread::Thread);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.unpark();
    }
}
