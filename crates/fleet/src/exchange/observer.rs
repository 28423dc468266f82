//! Derives events from the difference between two scans of an exchange. Each scan corrects the remembered state, so a
//! scan during a rename, or a restart of the learner, does no harm.

use crate::coordinator::{Event, HowEnded};
use crate::job::{Answer, JobName, Lineage, WorkerName};
use std::collections::{BTreeMap, BTreeSet};

/// A scan: the contents of an exchange at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Scan {
    pub pending: BTreeSet<JobName>,
    pub processing: BTreeSet<(WorkerName, JobName)>,
    /// All results. The content is omitted for results that earlier scans have reported.
    pub results: BTreeMap<(WorkerName, JobName), Option<(Lineage, Answer)>>,
    pub workers: BTreeMap<WorkerName, Seen>,
}

/// The state of a worker in a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seen {
    pub incarnation: u64,
    pub alive: bool,
    /// True if the worker ended by itself.
    pub ended: bool,
    /// The number of processes with this name that failed and gave a reason.
    pub failures: u64,
    pub progress: u64,
}

/// Remembers the last scan of an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Observer {
    /// Offered jobs that are not known to be taken or done. True if the last scan did not find the job.
    offered: BTreeMap<JobName, bool>,
    processing: BTreeSet<(WorkerName, JobName)>,
    /// Jobs that were taken from a worker since the last scan.
    released: BTreeSet<(WorkerName, JobName)>,
    results: BTreeSet<(WorkerName, JobName)>,
    workers: BTreeMap<WorkerName, Seen>,
}

impl Observer {
    pub(crate) fn offered(&mut self, job: JobName) {
        self.offered.insert(job, false);
        // An earlier result of the job was dropped or taken back, so the next one must be reported.
        self.results.retain(|(_, known)| *known != job);
    }

    /// Records that a job was withdrawn. If a worker takes the job again, that is a new claim.
    pub(crate) fn withdrawn(&mut self, job: JobName) {
        self.offered.remove(&job);
        self.released.extend(self.processing.iter().filter(|(_, known)| *known == job).cloned());
    }

    /// Records that a worker no longer has a job. If the worker takes the job again, that is a new claim.
    pub(crate) fn released(&mut self, worker: &WorkerName, job: JobName) {
        self.released.insert((worker.clone(), job));
    }

    /// Records that a result was deleted. Another result of the same worker and job will be reported again.
    pub(crate) fn discarded(&mut self, worker: &WorkerName, job: JobName) {
        self.results.remove(&(worker.clone(), job));
    }

    /// Whether this result has been reported before.
    pub(crate) fn knows(&self, worker: &WorkerName, job: JobName) -> bool {
        self.results.contains(&(worker.clone(), job))
    }

    /// The events between the last scan and this one. Results come first, so that a worker that died after returning
    /// a result is not treated as having died during its job.
    pub(crate) fn compare(&mut self, scan: Scan) -> Vec<Event> {
        let mut events = Vec::new();
        for (key, content) in &scan.results {
            let (worker, job) = key;
            self.offered.remove(job);
            if let Some((lineage, answer)) = content.filter(|_| !self.results.contains(key)) {
                events.push(Event::Result { worker: worker.clone(), job: *job, lineage, answer });
            }
        }
        let workers = std::mem::take(&mut self.workers);
        for (name, before) in &workers {
            let now = scan.workers.get(name).copied().unwrap_or_default();
            if before.alive && (!now.alive || now.incarnation != before.incarnation) {
                let how = match now.ended && now.incarnation == before.incarnation {
                    true => HowEnded::Asked,
                    false if now.failures > before.failures => HowEnded::Failed,
                    false => HowEnded::Vanished,
                };
                events.push(Event::Ended { worker: name.clone(), how });
                self.processing.retain(|(worker, _)| worker != name);
            }
        }
        for (name, now) in &scan.workers {
            let before = workers.get(name).copied().unwrap_or_default();
            if now.alive && (!before.alive || before.incarnation != now.incarnation) {
                events.push(Event::Joined(name.clone()));
            } else if now.alive && before.progress != now.progress {
                events.push(Event::Progress(name.clone()));
            }
        }
        let released = std::mem::take(&mut self.released);
        let is_new = |key: &&(WorkerName, JobName)| !self.processing.contains(*key) || released.contains(*key);
        for (worker, job) in scan.processing.iter().filter(is_new) {
            self.offered.remove(job);
            events.push(Event::Claimed(worker.clone(), *job));
        }
        for (worker, job) in self.processing.difference(&scan.processing) {
            // A different worker's result does not show how this claim ended.
            if !scan.results.contains_key(&(worker.clone(), *job)) {
                events.push(Event::Returned { worker: worker.clone(), job: *job, faulty: false });
            }
        }
        let claimed = |job: &JobName| scan.processing.iter().any(|(_, claimed)| claimed == job);
        for (job, missed) in &mut self.offered {
            // One scan may miss a file that is being renamed; two scans in a row do not.
            let is_missing = !scan.pending.contains(job) && !claimed(job);
            if is_missing && *missed {
                events.push(Event::Lost(*job));
            }
            *missed = is_missing && !*missed;
        }
        self.results = scan.results.into_keys().collect();
        self.processing = scan.processing;
        self.workers = scan.workers;
        events
    }
}

#[cfg(test)]
mod tests;
