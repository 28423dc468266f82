//! A worker's side of a spool directory.

use super::watch::Watch;
use super::{FileLock, Holder, Layout, create_dir, jobs, names, read, read_json, remove, sweep, take_lock, write};
use crate::error::{Error, OrIo, Result};
use crate::exchange::{LearnerState, WorkerExchange, WorkerStatus};
use crate::job::{Job, JobName, JobResult, WorkerName};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// A worker's side of a spool directory.
pub struct SpoolWorker {
    layout: Layout,
    name: WorkerName,
    /// The lock that shows that this worker is alive.
    _alive: FileLock,
    holder: Holder,
    /// The number of earlier processes with this name that failed.
    failures: u64,
    watch: Watch,
    /// The state of a learner that had already ended when this worker joined.
    old: Option<LearnerState>,
    /// Device and inode of a `learner.json` that was unreadable when this worker joined. Each learner renames a new
    /// file into place, so the file of the next learner has a different inode.
    damaged: Option<(u64, u64)>,
}

/// Device and inode of the file at a path. Does not follow a link.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()))
}

impl SpoolWorker {
    /// Joins the run in the directory `out`. The run's learner may start later. If a worker of this name is already
    /// running, the error names its process. Jobs that an earlier process of this name left unfinished are returned.
    pub fn join(out: &Path, name: WorkerName) -> Result<SpoolWorker> {
        let layout = Layout::in_run(out);
        layout.create()?;
        for directory in [layout.workers().join(name.as_str()), layout.processing(&name), layout.complete(&name)] {
            create_dir(&directory)?;
        }
        let who = format!("worker {name} of {}", out.display());
        let (alive, holder) = take_lock(&layout.alive(&name), &who, "Choose another --name")?;
        sweep(&layout.complete(&name))?;
        let mut watch = Watch::new();
        watch.add(layout.root());
        watch.add(&layout.pending());
        let old: Option<LearnerState> = read_json(&layout.learner());
        let damaged = identity(&layout.learner()).filter(|_| old.is_none());
        let old = old.filter(|learner| learner.ended);
        let failures = read_json(&layout.status(&name)).map_or(0, |status: WorkerStatus| status.failures);
        let mut worker = SpoolWorker { layout, name, _alive: alive, holder, failures, watch, old, damaged };
        for job in jobs(&worker.layout.processing(&worker.name))? {
            worker.give_back(job)?;
        }
        Ok(worker)
    }

    /// The worker's name.
    pub fn name(&self) -> &WorkerName {
        &self.name
    }

    /// Reads a pending job, and returns whether it has one of these profiles.
    fn fits(&self, job: JobName, profiles: &[String]) -> Result<bool> {
        if profiles.is_empty() {
            return Ok(true);
        }
        let bytes = read(&self.layout.pending().join(job.to_string()))?;
        Ok(bytes.and_then(|bytes| Job::from_bytes(&bytes).ok()).is_some_and(|job| profiles.contains(&job.profile)))
    }
}

impl WorkerExchange for SpoolWorker {
    fn learner(&mut self) -> Result<Option<LearnerState>> {
        let path = self.layout.learner();
        let parse = |bytes: Vec<u8>| {
            serde_json::from_slice(&bytes).map_err(|e| Error::Corrupt { path: path.clone(), why: e.to_string() })
        };
        let state = match read(&path).and_then(|bytes| bytes.map(parse).transpose()) {
            Ok(None) => return Ok(None),
            Ok(Some(state)) => state,
            // The unreadable file is older than this worker; the next learner replaces it.
            Err(_) if self.damaged.is_some() && identity(&path) == self.damaged => return Ok(None),
            Err(error) => return Err(error),
        };
        // This state is from an earlier learner. The next one may not be running yet, since processes start in any
        // order.
        Ok(Some(state).filter(|state| self.old.as_ref() != Some(state)))
    }

    fn claim(&mut self, profiles: &[String]) -> Result<Option<Job>> {
        let pending = self.layout.pending();
        let mut waiting: Vec<JobName> = jobs(&pending)?;
        waiting.sort_unstable();
        for job in waiting {
            if !self.fits(job, profiles)? {
                continue;
            }
            let (from, to) = (pending.join(job.to_string()), self.layout.processing(&self.name).join(job.to_string()));
            match disk::rename(&from, &to) {
                // Another worker claimed the job first.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                renamed => renamed.or_io("claim", &from)?,
            }
            let Some(bytes) = read(&to)? else { continue };
            match Job::from_bytes(&bytes) {
                Ok(read) if read.name == job => return Ok(Some(read)),
                // The file is corrupt. The learner notices that the job is missing and offers it again.
                _ => remove(&to)?,
            }
        }
        Ok(None)
    }

    fn is_wanted(&mut self, job: JobName) -> bool {
        self.layout.processing(&self.name).join(job.to_string()).exists()
    }

    fn report(&mut self, status: &WorkerStatus) -> Result<()> {
        let Holder { pid, incarnation } = self.holder;
        let failures = self.failures + status.failures;
        let status = WorkerStatus { pid, incarnation, failures, ..status.clone() };
        let text = serde_json::to_vec(&status).map_err(|e| Error::Failed(e.to_string()))?;
        write(&self.layout.status(&self.name), &text, false)
    }

    fn complete(&mut self, result: &JobResult) -> Result<()> {
        write(&self.layout.complete(&self.name).join(result.job.to_string()), &result.to_bytes(), false)?;
        remove(&self.layout.processing(&self.name).join(result.job.to_string()))
    }

    fn give_back(&mut self, job: JobName) -> Result<()> {
        let from = self.layout.processing(&self.name).join(job.to_string());
        match disk::rename(&from, self.layout.pending().join(job.to_string())) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            renamed => renamed.or_io("give back", &from),
        }
    }

    fn wait(&mut self, at_most: Duration) {
        // A job that arrived before the last event was read would not cause a wake-up.
        let is_there = names(&self.layout.pending()).is_ok_and(|names| names.iter().any(|name| !name.starts_with('.')));
        self.watch.wait(if is_there { Duration::from_millis(2).min(at_most) } else { at_most });
    }
}
