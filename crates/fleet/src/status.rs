//! Reads the status of a run from the files in its spool directory, for `lockstep status`. Nothing is written.

use crate::error::Result;
use crate::exchange::spool::{self, Layout};
use crate::exchange::{LearnerState, WorkerStatus};
use crate::format::batch_from_bytes;
use crate::ids::BatchId;
use crate::job::{Job, JobName, JobResult, WorkerName};
use serde::Serialize;
use std::path::Path;

/// The maximum number of batches that the status lists. `learner.json` may come from an untrusted source, so the range
/// that it claims may be huge.
const MOST_LISTED: u64 = 1000;

/// A worker on another machine is considered alive if its learner has heard from it within this many seconds.
const HEARD_S: f64 = 10.0;

/// The status of a run according to its files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// The state written by the last learner; `None` before the first learner.
    pub learner: Option<LearnerState>,
    /// Whether the process of that learner is still running.
    pub learner_alive: bool,
    /// The batch that is being trained on, and the batches that have open jobs.
    pub batches: Vec<BatchStatus>,
    /// All workers that have ever joined, by name.
    pub workers: Vec<WorkerLine>,
    /// Jobs that are waiting for a worker.
    pub pending: Vec<JobName>,
    /// Jobs that are done but not in a batch file yet.
    pub complete: Vec<JobName>,
    /// Batches that have a file, in order. These are the batches since the last checkpoint.
    pub synced: Vec<BatchId>,
}

/// The status of a batch that waits for training or is being trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchStatus {
    /// The batch.
    pub batch: BatchId,
    /// True if the batch's file is on disk, so that the batch can be trained on.
    pub synced: bool,
    /// Jobs that have a result.
    pub complete: u64,
    /// Jobs that workers are doing.
    pub processing: u64,
    /// Jobs that are waiting for a worker.
    pub pending: u64,
    /// Groups in each batch.
    pub groups: u64,
}

/// The status of a worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerLine {
    /// The worker's name.
    pub name: WorkerName,
    /// The process number of the worker, if it is alive.
    pub alive: Option<u32>,
    /// The last status that the worker reported.
    pub status: Option<WorkerStatus>,
    /// Jobs that the worker is doing.
    pub processing: Vec<JobName>,
    /// Jobs whose results the worker has returned, but which are not in a batch file yet.
    pub complete: Vec<JobName>,
    /// Seconds since the worker's last report, by the file's modification time. Only for display.
    pub silent_s: Option<f64>,
}

/// Reads the status of the run directory `out`.
pub fn read(out: &Path) -> Result<Status> {
    let layout = Layout::in_run(out);
    let learner: Option<LearnerState> = spool::read_json(&layout.learner());
    let learner_alive = spool::holder(&layout.root().join("learner.lock"))?.is_some();
    let pending = spool::jobs(&layout.pending())?;
    let mut complete = Vec::new();
    let mut workers = Vec::new();
    for name in layout.known_workers()? {
        // Directories are read in the order in which a job moves through them, so that no move is missed.
        let processing = spool::jobs(&layout.processing(&name))?;
        let done = spool::jobs(&layout.complete(&name))?;
        complete.extend(&done);
        let written = std::fs::metadata(layout.status(&name)).and_then(|file| file.modified()).ok();
        // A time in the future (from a different clock) is treated as now.
        let silent = written.map(|written| written.elapsed().unwrap_or_default().as_secs_f64());
        let status: Option<WorkerStatus> = spool::read_json(&layout.status(&name));
        let mut alive = spool::holder(&layout.alive(&name))?.map(|holder| holder.pid);
        let mut processing = processing;
        // A worker on another machine has neither lock nor directories here. Its state is the last report that the
        // learner received.
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
        let listed = learner.max_staleness.min(MOST_LISTED - 1);
        let last = learner.batch.0.saturating_add(listed).min(learner.batches.saturating_sub(1));
        for batch in (learner.batch.0..=last).map(BatchId) {
            let is_in_batch = |job: &&JobName| learner.batch_of(job.group) == batch;
            let count = |jobs: &[JobName]| jobs.iter().filter(is_in_batch).count() as u64;
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

/// The batches that have a file, in order. Files that are still being written have a leading dot in their name and are
/// left out.
fn batch_files(layout: &Layout) -> Result<Vec<BatchId>> {
    let names = spool::names(&layout.batches())?;
    let mut batches: Vec<BatchId> = names.iter().filter_map(|name| name.parse().ok()).map(BatchId).collect();
    batches.sort_unstable();
    Ok(batches)
}

/// All files of a job, for `lockstep queue DIR show JOB`: its offer and its results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFiles {
    /// The job while it is pending or claimed, with the worker that claimed it.
    pub job: Option<(Job, Option<WorkerName>)>,
    /// The results of the job, one for each worker that did it, including the result in the batch file.
    pub results: Vec<JobResult>,
    /// The batch file with the result.
    pub synced: Option<BatchId>,
    /// Files of the job that cannot be read, with the reasons.
    pub unreadable: Vec<String>,
}

/// Finds the files of a job in the run directory `out`.
pub fn find(out: &Path, job: JobName) -> Result<JobFiles> {
    let layout = Layout::in_run(out);
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
    if let Some(learner) = spool::read_json::<LearnerState>(&layout.learner()) {
        let batch = learner.batch_of(job.group);
        let path = layout.batches().join(format!("{batch:06}"));
        let results = read_as(&path, batch_from_bytes, &mut unreadable)?.map_or(Vec::new(), |(_, results)| results);
        for result in results.into_iter().filter(|result| result.job == job) {
            found.synced = Some(batch);
            // A result is deleted after its batch was synced, so for a moment it is in both places.
            if !found.results.contains(&result) {
                found.results.push(result);
            }
        }
    }
    found.unreadable = unreadable;
    Ok(found)
}

/// The parsed content of a file; `None` if the file does not exist or cannot be read. The reason is then added to
/// `unreadable`.
fn read_as<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> std::result::Result<T, String>,
    unreadable: &mut Vec<String>,
) -> Result<Option<T>> {
    let Some(bytes) = spool::read(path)? else { return Ok(None) };
    let read = parse(&bytes).map_err(|why| unreadable.push(format!("{}: {why}", path.display())));
    Ok(read.ok())
}

#[cfg(test)]
mod tests;
