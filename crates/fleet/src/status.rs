//! What a run's spool directory says about it, as a value: `lockstep status` prints it. It reads files and takes part
//! in nothing.

use crate::error::Result;
use crate::exchange::spool::{self, Layout};
use crate::exchange::{LearnerState, WorkerStatus};
use crate::job::{Job, JobName, JobResult, WorkerName};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// A run, as its files show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// None before the first learner.
    pub learner: Option<LearnerState>,
    /// The learner of `learner` lives.
    pub learner_alive: bool,
    /// The batches that jobs are open for, and the one that trains.
    pub batches: Vec<BatchStatus>,
    /// Every worker that ever joined, by name.
    pub workers: Vec<WorkerLine>,
    /// Jobs that wait for a worker.
    pub pending: Vec<JobName>,
    /// Jobs that are done and in no batch file yet.
    pub complete: Vec<JobName>,
}

/// A batch that is not trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchStatus {
    /// b.
    pub batch: u64,
    /// Its file is on the disk: it trains.
    pub synced: bool,
    /// Jobs with a result.
    pub complete: u64,
    /// Jobs that a worker does.
    pub processing: u64,
    /// Jobs that wait for a worker.
    pub pending: u64,
    /// Groups of a batch.
    pub groups: u64,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerLine {
    /// Its name.
    pub name: WorkerName,
    /// Its process, if it lives.
    pub alive: Option<u32>,
    /// What it last reported.
    pub status: Option<WorkerStatus>,
    /// Jobs that are its.
    pub processing: Vec<JobName>,
    /// Seconds since its last report, by the file's time: for people, nothing is decided by it.
    pub silent_s: Option<f64>,
}

/// Reads the status of the run directory `out`.
pub fn read(out: &Path) -> Result<Status> {
    let layout = Layout::of_run(out);
    let learner: Option<LearnerState> = spool::read_json(&layout.learner());
    let learner_alive = spool::holder(&layout.root().join("learner.lock"))?.is_some();
    let pending = spool::jobs(&layout.pending())?;
    let mut complete = Vec::new();
    let mut workers = Vec::new();
    for name in layout.known_workers()? {
        complete.extend(spool::jobs(&layout.complete(&name))?);
        let written = std::fs::metadata(layout.status(&name)).and_then(|file| file.modified()).ok();
        let silent = written.and_then(|written| written.elapsed().ok()).as_ref().map(Duration::as_secs_f64);
        workers.push(WorkerLine {
            alive: spool::holder(&layout.alive(&name))?.map(|holder| holder.pid),
            status: spool::read_json(&layout.status(&name)),
            processing: spool::jobs(&layout.processing(&name))?,
            silent_s: silent,
            name,
        });
    }
    complete.sort();
    complete.dedup();
    let files = spool::names(&layout.batches())?;
    let mut batches = Vec::new();
    if let Some(learner) = &learner {
        let last = (learner.step + learner.max_staleness).min(learner.batches.saturating_sub(1));
        for batch in learner.step..=last {
            let of_batch = |job: &&JobName| match job {
                JobName::Rollout { number, .. } => number / learner.groups.max(1) == batch,
                JobName::Evaluation { .. } => false,
            };
            let count = |jobs: &[JobName]| jobs.iter().filter(of_batch).count() as u64;
            let synced = files.contains(&format!("{batch:06}"));
            batches.push(BatchStatus {
                batch,
                synced,
                complete: if synced { learner.groups } else { count(&complete) },
                processing: workers.iter().map(|worker| count(&worker.processing)).sum(),
                pending: count(&pending),
                groups: learner.groups,
            });
        }
    }
    Ok(Status { learner, learner_alive, batches, workers, pending, complete })
}

/// A job wherever it lies: as it was offered, and its result. For `lockstep queue DIR show JOB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFiles {
    /// As it waits or is done; by whom.
    pub job: Option<(Job, Option<WorkerName>)>,
    /// Its results, one for each worker that made one.
    pub results: Vec<JobResult>,
}

/// Looks for a job in the run directory `out`.
pub fn find(out: &Path, job: JobName) -> Result<JobFiles> {
    let layout = Layout::of_run(out);
    let name = job.to_string();
    let offered = |path: &Path| Ok(spool::read(&path.join(&name))?.and_then(|bytes| Job::from_bytes(&bytes).ok()));
    let mut found = JobFiles { job: offered(&layout.pending())?.map(|job| (job, None)), results: Vec::new() };
    for worker in layout.known_workers()? {
        let done = spool::read(&layout.complete(&worker).join(&name))?;
        found.results.extend(done.and_then(|bytes| JobResult::from_bytes(&bytes).ok()));
        if let Some(job) = offered(&layout.processing(&worker))? {
            found.job = Some((job, Some(worker)));
        }
    }
    Ok(found)
}
