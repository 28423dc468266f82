//! The learner's side of a spool directory.

use super::watch::Watch;
use super::{
    FileLock, Holder, Layout, create_dir, holder, jobs, owner, read, read_json, remove, sweep, take_lock, write,
};
use crate::coordinator::Event;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, LearnerState, Observer, Scan, Seen, Waiter, WorkerStatus};
use crate::job::{Answer, Job, JobName, JobResult, Lineage, WorkerName};
use crate::lock::Locks;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The learner's side of a spool directory.
pub struct SpoolLearner {
    layout: Layout,
    /// The lock that shows that a learner is running.
    _lock: FileLock,
    holder: Holder,
    observer: Observer,
    /// Results that have been read, but not returned by `take` or deleted.
    results: BTreeMap<(WorkerName, JobName), JobResult>,
    workers: Vec<WorkerName>,
    problems: Vec<String>,
    /// Stalled workers that cannot be killed and were reported.
    unreachable: BTreeSet<(WorkerName, u64)>,
}

impl SpoolLearner {
    /// Opens the spool of the run directory `out`. Jobs that an earlier learner offered are deleted; results and
    /// claimed jobs are kept. If a learner is already running, the error names its process.
    pub fn open(out: &Path) -> Result<SpoolLearner> {
        let layout = Layout::in_run(out);
        layout.create()?;
        let lock = layout.root().join("learner.lock");
        let remedy = "Wait until it has ended, or stop it";
        let (lock, holder) = take_lock(&lock, &format!("a learner of {}", out.display()), remedy)?;
        for job in jobs(&layout.pending())? {
            remove(&layout.pending().join(job.to_string()))?;
        }
        sweep(&layout.pending())?;
        sweep(layout.root())?;
        create_dir(&layout.batches())?;
        let problems = lock.warning.iter().cloned().collect();
        Ok(SpoolLearner {
            layout,
            _lock: lock,
            holder,
            observer: Observer::default(),
            results: BTreeMap::new(),
            workers: Vec::new(),
            problems,
            unreachable: BTreeSet::new(),
        })
    }

    /// The layout of the spool's files.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads the lock and the status of a worker.
    fn look(&self, worker: &WorkerName) -> Result<Seen> {
        let status: WorkerStatus = read_json(&self.layout.status(worker)).unwrap_or_default();
        let holder = holder(&self.layout.alive(worker))?;
        // A process that has just taken the lock may not have written its number yet. Until then, the process is not
        // considered alive.
        let alive = holder.is_some_and(|holder| holder.incarnation > 0);
        let incarnation = holder.map_or(status.incarnation, |holder| holder.incarnation);
        let is_its = status.incarnation == incarnation;
        Ok(Seen {
            incarnation,
            alive,
            ended: is_its && status.ended,
            failures: status.failures,
            progress: if is_its { status.progress } else { 0 },
        })
    }

    /// Reads a new result. An unreadable result is deleted, and its job is done again.
    fn read_result(&mut self, worker: &WorkerName, job: JobName) -> Result<Option<(Lineage, Answer)>> {
        let path = self.layout.complete(worker).join(job.to_string());
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let fits = |result: &JobResult| result.job == job && result.worker == *worker;
        let result = match JobResult::from_bytes(&bytes) {
            Ok(result) if fits(&result) => result,
            Ok(result) => {
                return self.refuse(&path, &format!("the file contains job {} by {}", result.job, result.worker));
            }
            Err(why) => return self.refuse(&path, &why),
        };
        let content = (result.lineage, result.answer);
        self.results.insert((worker.clone(), job), result);
        Ok(Some(content))
    }

    /// Kills the process that is proven to hold the worker's lock.
    pub(super) fn kill_with(&mut self, locks: &Locks, worker: &WorkerName) -> Result<bool> {
        use rustix::process::{Signal, pidfd_send_signal};
        let path = self.layout.alive(worker);
        // The lock is held, so the file names its current holder.
        let Some(before) = holder(&path)? else { return Ok(true) };
        let owner = read(&path)?.and_then(|text| owner(&String::from_utf8_lossy(&text)));
        let why = match locks.handle(before.pid, owner.as_ref(), &path) {
            // The worker is a thread of this process.
            Ok(_) if before.pid == std::process::id() => return Ok(true),
            Ok(process) => match holder(&path)? {
                Some(now) if now == before => match pidfd_send_signal(&process, Signal::KILL) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => return Ok(true),
                    Err(error) => error.to_string(),
                },
                _ => return Ok(true),
            },
            Err(why) => why.to_string(),
        };
        if self.unreachable.insert((worker.clone(), before.incarnation)) {
            self.problems.push(format!(
                "worker {worker} is stalled, but process {} was not killed: {why}. Its jobs are offered to other \
                 workers; kill the process on its machine",
                before.pid
            ));
        }
        Ok(false)
    }

    fn refuse(&mut self, path: &Path, why: &str) -> Result<Option<(Lineage, Answer)>> {
        self.problems.push(format!("{}: {why}; the job is repeated", path.display()));
        remove(path).map(|()| None)
    }
}

impl Exchange for SpoolLearner {
    fn announce(&mut self, state: &LearnerState) -> Result<()> {
        let state = LearnerState { incarnation: self.holder.incarnation, ..state.clone() };
        let text = serde_json::to_vec_pretty(&state).map_err(|e| Error::Failed(e.to_string()))?;
        write(&self.layout.learner(), &text, false)
    }

    fn offer(&mut self, job: &Job) -> Result<()> {
        self.observer.offered(job.name);
        write(&self.layout.pending().join(job.name.to_string()), &job.to_bytes(), false)
    }

    fn release(&mut self, worker: &WorkerName, job: JobName) -> Result<()> {
        self.observer.released(worker, job);
        remove(&self.layout.processing(worker).join(job.to_string()))
    }

    fn withdraw(&mut self, job: JobName) -> Result<()> {
        self.observer.withdrawn(job);
        remove(&self.layout.pending().join(job.to_string()))?;
        self.workers.iter().try_for_each(|worker| remove(&self.layout.processing(worker).join(job.to_string())))
    }

    fn take(&mut self, worker: &WorkerName, job: JobName) -> Option<JobResult> {
        self.results.remove(&(worker.clone(), job))
    }

    fn discard(&mut self, worker: &WorkerName, job: JobName) -> Result<()> {
        self.results.remove(&(worker.clone(), job));
        self.observer.discarded(worker, job);
        remove(&self.layout.complete(worker).join(job.to_string()))
    }

    fn acknowledge(&mut self, jobs: &[JobName]) -> Result<()> {
        for job in jobs {
            for worker in &self.workers {
                remove(&self.layout.complete(worker).join(job.to_string()))?;
            }
        }
        Ok(())
    }

    fn kill(&mut self, worker: &WorkerName) -> Result<bool> {
        self.kill_with(&Locks::system(), worker)
    }

    fn poll(&mut self) -> Result<Vec<Event>> {
        let mut scan = Scan::default();
        // Directories are read in the order in which a job moves through them, so that no move is missed.
        scan.pending.extend(jobs(&self.layout.pending())?);
        self.workers = self.layout.known_workers()?;
        for worker in self.workers.clone() {
            let seen = self.look(&worker)?;
            let processing = jobs(&self.layout.processing(&worker))?;
            scan.processing.extend(processing.into_iter().map(|job| (worker.clone(), job)));
            for job in jobs(&self.layout.complete(&worker))? {
                let known = self.observer.knows(&worker, job);
                let content = if known { None } else { self.read_result(&worker, job)? };
                if known || content.is_some() {
                    scan.results.insert((worker.clone(), job), content);
                }
            }
            if !seen.alive {
                sweep(&self.layout.complete(&worker))?;
            }
            scan.workers.insert(worker, seen);
        }
        Ok(self.observer.compare(scan))
    }

    fn waiter(&self) -> Result<Waiter> {
        let mut watch = Watch::new();
        let layout = self.layout.clone();
        let mut watched = Vec::new();
        watch.add(&layout.workers());
        Ok(Box::new(move |at_most| {
            let workers = layout.known_workers().unwrap_or_default();
            if workers != watched {
                for worker in &workers {
                    watch.add(&layout.complete(worker));
                    watch.add(&layout.processing(worker));
                }
                watched = workers;
            }
            watch.wait(at_most);
        }))
    }

    fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }
}
