//! An exchange in the memory of one process, for tests. The search uses only its queue, in place of a spool directory.

use super::{Exchange, LearnerState, Observer, Scan, Seen, Waiter, WorkerExchange, WorkerStatus};
use crate::coordinator::Event;
use crate::error::Result;
use crate::job::{Job, JobName, JobResult, WorkerName, takes};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The jobs, results and workers that a spool directory would hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    pub pending: BTreeMap<JobName, Job>,
    pub processing: BTreeMap<(WorkerName, JobName), Job>,
    pub complete: BTreeMap<(WorkerName, JobName), JobResult>,
    pub workers: BTreeMap<WorkerName, Seen>,
}

impl Queue {
    pub(crate) fn offer(&mut self, job: &Job) {
        self.pending.insert(job.name, job.clone());
    }

    pub(crate) fn release(&mut self, worker: &WorkerName, job: JobName) {
        self.processing.remove(&(worker.clone(), job));
    }

    pub(crate) fn withdraw(&mut self, job: JobName) {
        self.pending.remove(&job);
        self.processing.retain(|(_, name), _| *name != job);
    }

    pub(crate) fn acknowledge(&mut self, jobs: &[JobName]) {
        self.complete.retain(|(_, job), _| !jobs.contains(job));
    }

    pub(crate) fn scan(&self) -> Scan {
        let content = |result: &JobResult| Some((result.lineage, result.answer));
        Scan {
            pending: self.pending.keys().copied().collect(),
            processing: self.processing.keys().cloned().collect(),
            results: self.complete.iter().map(|(key, result)| (key.clone(), content(result))).collect(),
            workers: self.workers.clone(),
        }
    }

    pub(crate) fn claim(&mut self, worker: &WorkerName, job: JobName) -> Option<Job> {
        let taken = self.pending.remove(&job)?;
        self.processing.insert((worker.clone(), job), taken.clone());
        Some(taken)
    }

    pub(crate) fn complete(&mut self, result: &JobResult) {
        let key = (result.worker.clone(), result.job);
        self.complete.insert(key.clone(), result.clone());
        self.processing.remove(&key);
    }

    pub(crate) fn give_back(&mut self, worker: &WorkerName, job: JobName) {
        if let Some(back) = self.processing.remove(&(worker.clone(), job)) {
            self.pending.insert(job, back);
        }
    }
}

#[derive(Default)]
struct Shared {
    queue: Queue,
    learner: Option<LearnerState>,
    statuses: BTreeMap<WorkerName, WorkerStatus>,
}

/// The memory that learner and workers share.
#[derive(Clone, Default)]
pub struct Memory(Arc<(Mutex<Shared>, Condvar)>);

impl Memory {
    /// An empty memory.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Creates the learner's side. A new learner takes over the results that an earlier one left.
    pub fn learner(&self) -> MemoryLearner {
        let mut shared = self.lock();
        shared.queue.pending.clear();
        drop(shared);
        MemoryLearner { memory: self.clone(), observer: Observer::default() }
    }

    /// Creates a worker's side.
    pub fn worker(&self, name: WorkerName) -> MemoryWorker {
        let mut shared = self.lock();
        let seen = shared.queue.workers.entry(name.clone()).or_default();
        *seen = Seen { incarnation: seen.incarnation + 1, alive: true, ..Seen::default() };
        drop(shared);
        self.0.1.notify_all();
        MemoryWorker { memory: self.clone(), name }
    }

    /// The last status that a worker reported.
    pub fn status(&self, worker: &WorkerName) -> Option<WorkerStatus> {
        self.lock().statuses.get(worker).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait(&self, at_most: Duration) {
        // A spurious wake-up is harmless: the caller checks again and waits.
        drop(self.0.1.wait_timeout(self.lock(), at_most));
    }
}

/// The learner's side of [`Memory`].
pub struct MemoryLearner {
    memory: Memory,
    observer: Observer,
}

impl MemoryLearner {
    fn change(&mut self, change: impl FnOnce(&mut Shared)) -> Result<()> {
        change(&mut self.memory.lock());
        self.memory.0.1.notify_all();
        Ok(())
    }
}

impl Exchange for MemoryLearner {
    fn announce(&mut self, state: &LearnerState) -> Result<()> {
        self.change(|shared| shared.learner = Some(state.clone()))
    }

    fn offer(&mut self, job: &Job) -> Result<()> {
        self.observer.offered(job.name);
        self.change(|shared| shared.queue.offer(job))
    }

    fn release(&mut self, worker: &WorkerName, job: JobName) -> Result<()> {
        self.observer.released(worker, job);
        self.change(|shared| shared.queue.release(worker, job))
    }

    fn withdraw(&mut self, job: JobName) -> Result<()> {
        self.observer.withdrawn(job);
        self.change(|shared| shared.queue.withdraw(job))
    }

    fn take(&mut self, worker: &WorkerName, job: JobName) -> Option<JobResult> {
        self.memory.lock().queue.complete.get(&(worker.clone(), job)).cloned()
    }

    fn discard(&mut self, worker: &WorkerName, job: JobName) -> Result<()> {
        self.observer.discarded(worker, job);
        self.change(|shared| drop(shared.queue.complete.remove(&(worker.clone(), job))))
    }

    fn acknowledge(&mut self, jobs: &[JobName]) -> Result<()> {
        self.change(|shared| shared.queue.acknowledge(jobs))
    }

    fn kill(&mut self, _worker: &WorkerName) -> Result<bool> {
        // A thread cannot be killed. A test with a stalled thread ends by its own timeout.
        Ok(true)
    }

    fn poll(&mut self) -> Result<Vec<Event>> {
        let scan = self.memory.lock().queue.scan();
        Ok(self.observer.compare(scan))
    }

    fn waiter(&self) -> Result<Waiter> {
        let memory = self.memory.clone();
        Ok(Box::new(move |at_most| memory.wait(at_most)))
    }
}

/// A worker's side of [`Memory`]. Dropping this value ends the worker.
pub struct MemoryWorker {
    memory: Memory,
    name: WorkerName,
}

impl MemoryWorker {
    fn change<T>(&mut self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let changed = change(&mut self.memory.lock().queue);
        self.memory.0.1.notify_all();
        changed
    }
}

impl WorkerExchange for MemoryWorker {
    fn learner(&mut self) -> Result<Option<LearnerState>> {
        Ok(self.memory.lock().learner.clone())
    }

    fn claim(&mut self, profiles: &[String]) -> Result<Option<Job>> {
        let name = self.name.clone();
        Ok(self.change(|queue| {
            let fits = |job: &Job| takes(profiles, &job.profile);
            let job = queue.pending.values().find(|job| fits(job))?.name;
            queue.claim(&name, job)
        }))
    }

    fn is_wanted(&mut self, job: JobName) -> bool {
        self.memory.lock().queue.processing.contains_key(&(self.name.clone(), job))
    }

    fn report(&mut self, status: &WorkerStatus) -> Result<()> {
        let mut shared = self.memory.lock();
        shared.statuses.insert(self.name.clone(), status.clone());
        if let Some(seen) = shared.queue.workers.get_mut(&self.name) {
            (seen.progress, seen.ended) = (status.progress, status.ended);
        }
        Ok(())
    }

    fn complete(&mut self, result: &JobResult) -> Result<()> {
        self.change(|queue| queue.complete(result));
        Ok(())
    }

    fn give_back(&mut self, job: JobName) -> Result<()> {
        let name = self.name.clone();
        self.change(|queue| queue.give_back(&name, job));
        Ok(())
    }

    fn wait(&mut self, at_most: Duration) {
        self.memory.wait(at_most);
    }
}

impl Drop for MemoryWorker {
    fn drop(&mut self) {
        let name = self.name.clone();
        self.change(|queue| queue.workers.entry(name).or_default().alive = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Version;
    use crate::job::{Answer, Lineage};
    use serde_json::json;

    fn job(group: u64, profile: &str) -> Job {
        let name = crate::testing::job(group);
        let lineage = Lineage([1; 16]);
        Job {
            name,
            version: Version(0),
            lineage,
            continues: None,
            alone: false,
            profile: profile.to_owned(),
            payload: Vec::new(),
        }
    }

    /// Both sides are boxed, as in a run.
    #[test]
    fn jobs_and_results_pass_through_a_memory_exchange() {
        let (memory, name) = (Memory::new(), WorkerName::new("dev1").unwrap());
        let mut learner: Box<dyn Exchange + Send> = Box::new(memory.learner());
        let mut worker: Box<dyn WorkerExchange + Send> = Box::new(memory.worker(name.clone()));
        assert_eq!(learner.poll().unwrap(), [Event::Joined(name.clone())]);
        assert_eq!(worker.learner().unwrap(), None);
        let state: LearnerState = serde_json::from_value(json!({
            "pid": 1, "step": 3, "batches": 4, "groups": 1, "max_staleness": 0, "ended": false,
            "lineage": "00000000000000000000000000000000", "checkpoints": {"last": null, "waiting": []},
            "counts": crate::exchange::Counts::default(),
        }))
        .unwrap();
        learner.announce(&state).unwrap();
        assert_eq!(worker.learner().unwrap(), Some(state));
        let [slow, fast, third] = [job(0, "slow"), job(1, "fast"), job(2, "fast")];
        for job in [&slow, &fast, &third] {
            learner.offer(job).unwrap();
        }
        assert_eq!(worker.claim(&["fast".to_owned()]).unwrap().as_ref(), Some(&fast));
        assert!(worker.is_wanted(fast.name) && !worker.is_wanted(slow.name));
        worker.give_back(fast.name).unwrap();
        assert_eq!((worker.is_wanted(fast.name), worker.claim(&[]).unwrap()), (false, Some(slow.clone())));
        learner.poll().unwrap();
        learner.withdraw(third.name).unwrap();
        learner.release(&name, slow.name).unwrap();
        assert!(!worker.is_wanted(slow.name));
        assert_eq!(worker.claim(&[]).unwrap(), Some(fast.clone()));
        assert_eq!(worker.claim(&[]).unwrap(), None);
        let status = WorkerStatus { progress: 5, ..WorkerStatus::default() };
        worker.report(&status).unwrap();
        assert_eq!(memory.status(&name), Some(status));
        let result = |group: u64| JobResult {
            job: job(group, "").name,
            lineage: Lineage([1; 16]),
            worker: name.clone(),
            answer: Answer::of(b"x"),
            bytes: b"x".to_vec(),
        };
        worker.complete(&result(1)).unwrap();
        worker.complete(&result(2)).unwrap();
        let events = learner.poll().unwrap();
        let done = |group: u64| {
            let JobResult { job, lineage, worker, answer, .. } = result(group);
            Event::Result { worker, job, lineage, answer }
        };
        let returned = Event::Returned { worker: name.clone(), job: slow.name, faulty: false };
        assert_eq!(events, [done(1), done(2), Event::Progress(name.clone()), returned]);
        assert_eq!(learner.take(&name, fast.name), Some(result(1)));
        learner.discard(&name, fast.name).unwrap();
        assert_eq!(learner.take(&name, fast.name), None);
        learner.acknowledge(&[third.name]).unwrap();
        assert_eq!(learner.take(&name, third.name), None);
        learner.kill(&name).unwrap();
        assert!(learner.take_problems().is_empty());
        learner.waiter().unwrap()(Duration::ZERO);
        worker.wait(Duration::ZERO);
        drop(worker);
        let ended = Event::Ended { worker: name, how: crate::coordinator::HowEnded::Vanished };
        assert_eq!(learner.poll().unwrap(), [ended]);
        // The offers of this learner are deleted when the next one starts.
        learner.offer(&job(7, "")).unwrap();
        drop(memory.learner());
        assert!(memory.lock().queue.pending.is_empty());
    }
}
