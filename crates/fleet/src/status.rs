//! What a run's spool directory says about it, as a value: `lockstep status` prints it. It reads files and takes part
//! in nothing.

use crate::error::Result;
use crate::exchange::spool::{self, Layout};
use crate::exchange::{LearnerState, WorkerStatus};
use crate::format::batch_from_bytes;
use crate::job::{Job, JobName, JobResult, WorkerName};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// A worker of another machine that was heard by its learner within so many seconds lives.
const HEARD_S: f64 = 10.0;

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
    /// Batches whose file is there, in order: no checkpoint covers them yet.
    pub synced: Vec<u64>,
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
    /// Jobs whose result it handed over, and that are in no batch file yet.
    pub complete: Vec<JobName>,
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
        // In the order in which a job moves, so that one that moves meanwhile is not missed.
        let processing = spool::jobs(&layout.processing(&name))?;
        let done = spool::jobs(&layout.complete(&name))?;
        complete.extend(&done);
        let written = std::fs::metadata(layout.status(&name)).and_then(|file| file.modified()).ok();
        let silent = written.and_then(|written| written.elapsed().ok()).as_ref().map(Duration::as_secs_f64);
        let status: Option<WorkerStatus> = spool::read_json(&layout.status(&name));
        let mut alive = spool::holder(&layout.alive(&name))?.map(|holder| holder.pid);
        let mut processing = processing;
        // One of another machine has no lock and no directories here: it is what its learner has heard of it.
        if let Some(status) = status.as_ref().filter(|status| status.host.is_some()) {
            let is_heard = learner_alive && silent.is_some_and(|silent| silent < HEARD_S);
            alive = (is_heard && !status.ended).then_some(status.pid);
            processing = status.jobs.iter().map(|(job, _)| *job).filter(|_| alive.is_some()).collect();
        }
        workers.push(WorkerLine { alive, status, processing, complete: done, silent_s: silent, name });
    }
    complete.sort();
    complete.dedup();
    let files = batch_files(&layout)?;
    let mut batches = Vec::new();
    if let Some(learner) = &learner {
        let last = (learner.step + learner.max_staleness).min(learner.batches.saturating_sub(1));
        for batch in learner.step..=last {
            let of_batch = |job: &&JobName| match job {
                JobName::Rollout { number, .. } => number / learner.groups.max(1) == batch,
                JobName::Evaluation { .. } => false,
            };
            let count = |jobs: &[JobName]| jobs.iter().filter(of_batch).count() as u64;
            let synced = files.contains(&batch);
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
    Ok(Status { learner, learner_alive, batches, workers, pending, complete, synced: files })
}

/// The numbers of the batch files, in order. What is being written has a dot in front.
fn batch_files(layout: &Layout) -> Result<Vec<u64>> {
    let mut numbers: Vec<u64> = spool::names(&layout.batches())?.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// A job wherever it lies: as it was offered, and its result. For `lockstep queue DIR show JOB`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFiles {
    /// As it waits or is done; by whom.
    pub job: Option<(Job, Option<WorkerName>)>,
    /// Its results, one for each worker that made one; that of the batch file is among them.
    pub results: Vec<JobResult>,
    /// The batch whose file has its result.
    pub synced: Option<u64>,
    /// Files of it that cannot be read, each with the reason.
    pub unreadable: Vec<String>,
}

/// Looks for a job in the run directory `out`.
pub fn find(out: &Path, job: JobName) -> Result<JobFiles> {
    let layout = Layout::of_run(out);
    let name = job.to_string();
    let mut found = JobFiles::default();
    let mut unreadable = Vec::new();
    let mut offered = |directory: &Path| read_as(&directory.join(&name), Job::from_bytes, &mut unreadable);
    found.job = offered(&layout.pending())?.map(|job| (job, None));
    for worker in layout.known_workers()? {
        if let Some(job) = offered(&layout.processing(&worker))? {
            found.job = Some((job, Some(worker)));
        }
    }
    for worker in layout.known_workers()? {
        let path = layout.complete(&worker).join(&name);
        found.results.extend(read_as(&path, JobResult::from_bytes, &mut unreadable)?);
    }
    if let JobName::Rollout { number, .. } = job
        && let Some(learner) = spool::read_json::<LearnerState>(&layout.learner())
    {
        let batch = number / learner.groups.max(1);
        let path = layout.batches().join(format!("{batch:06}"));
        let results = read_as(&path, batch_from_bytes, &mut unreadable)?.map_or(Vec::new(), |(_, results)| results);
        for result in results.into_iter().filter(|result| result.job == job) {
            found.synced = Some(batch);
            // A result is deleted after its batch is synced: for a moment it is in both.
            if !found.results.contains(&result) {
                found.results.push(result);
            }
        }
    }
    found.unreadable = unreadable;
    Ok(found)
}

/// What a file holds; none if it is not there, or cannot be read, which is said.
fn read_as<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> std::result::Result<T, String>,
    unreadable: &mut Vec<String>,
) -> Result<Option<T>> {
    let Some(bytes) = spool::read(path)? else { return Ok(None) };
    let read = parse(&bytes).map_err(|why| unreadable.push(format!("{}: {why}", path.display())));
    Ok(read.ok())
}
