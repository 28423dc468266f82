//! The sizes and limits of a run (the number of batches, the staleness, the number of jobs at once), and the formula
//! for the version of the weights that samples a chunk of a batch.

use crate::ids::{BatchId, GroupId, Version};
use crate::job::JobName;
use serde::{Deserialize, Serialize};

/// The point from which a learner continues. From `batch` on, results of older weights do not exist: jobs for which the
/// formula gives a version older than `version` are sampled with `version`. A new run continues from batch 0 with
/// version 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Continued {
    /// The first batch that was not sampled with older weights.
    pub batch: BatchId,
    /// The version of the weights that samples this batch.
    pub version: Version,
}

/// The sizes and limits of a run that the protocol depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// N, the generation batches in the whole run.
    pub batches: u64,
    /// g, the groups in each batch.
    pub groups: u64,
    /// k, the maximum age of the sampling weights in batches.
    pub max_staleness: u64,
    /// The point from which the run continues.
    pub continued: Continued,
    /// True if completions are sampled in chunks of `partial_rollout_tokens`, each with newer weights.
    pub chunks: bool,
    /// The maximum number of unfinished jobs (pending or in progress) per worker.
    pub max_inflight_tasks: u64,
    /// The maximum number of results that wait for later batches, per worker.
    pub queue_maxsize: u64,
    /// A worker is killed if its progress counter does not change for this many milliseconds.
    pub stale_after_ms: u64,
    /// A job that is unfinished for this many milliseconds is offered again if a worker is idle. `None`: never.
    pub straggler_after_ms: Option<u64>,
    /// If this many workers fail on one job, the run ends.
    pub failures_per_job: u32,
    /// If this many workers vanish while doing only one job, the run ends.
    pub kills_per_job: u32,
    /// A worker is expelled once this many of its results have not answered their jobs.
    pub refusals_per_worker: u32,
}

impl Plan {
    /// A plan of `batches` batches of `groups` groups, with the default limits.
    pub fn new(batches: u64, groups: u64, max_staleness: u64) -> Plan {
        Plan {
            batches,
            groups,
            max_staleness,
            continued: Continued::default(),
            chunks: false,
            max_inflight_tasks: 1024,
            queue_maxsize: 1024,
            stale_after_ms: 60_000,
            straggler_after_ms: Some(30_000),
            failures_per_job: 3,
            kills_per_job: 30,
            refusals_per_worker: 3,
        }
    }

    /// Checks the values. Values with which a run could not end are refused.
    pub fn check(&self) -> Result<(), String> {
        let least = |name: &str, value: u64, least: u64| {
            if value >= least { Ok(()) } else { Err(format!("{name} must be at least {least}, got {value}")) }
        };
        least("the number of groups per batch", self.groups, 1)?;
        least("max_inflight_tasks", self.max_inflight_tasks, 1)?;
        least("heartbeat_stale_after_s in ms", self.stale_after_ms, 1)?;
        least("max_failures_per_job", u64::from(self.failures_per_job), 1)?;
        least("max_kills_per_job", u64::from(self.kills_per_job), 1)?;
        least("the number of refusals per worker", u64::from(self.refusals_per_worker), 1)
    }

    /// V(b, c) = clamp(b − k + c, v, b): the version of the weights that samples chunk c of batch b. Normally v is 0.
    /// In a continued run, v is [`Continued::version`] for batches from [`Continued::batch`] on.
    pub fn version(&self, batch: BatchId, chunk: u32) -> Version {
        let Continued { batch: first, version } = self.continued;
        let oldest = if batch < first { Version(0) } else { version };
        let version = batch.0.saturating_add(u64::from(chunk)).saturating_sub(self.max_staleness);
        Version(version).max(oldest).min(batch.version())
    }

    /// The index of the last chunk of a group; 0 if completions are not split.
    pub fn last_chunk(&self) -> u32 {
        if self.chunks { u32::try_from(self.max_staleness).unwrap_or(u32::MAX) } else { 0 }
    }

    /// The batch to which a group belongs.
    pub fn batch_of(&self, group: GroupId) -> BatchId {
        BatchId(group.0 / self.groups)
    }

    /// The first group of a batch.
    pub fn first_group(&self, batch: BatchId) -> GroupId {
        GroupId(batch.0 * self.groups)
    }

    /// The groups of a batch.
    pub fn groups_of(&self, batch: BatchId) -> impl Iterator<Item = GroupId> + Clone + use<> {
        (self.first_group(batch).0..self.first_group(batch.next()).0).map(GroupId)
    }

    /// The number of batches, as the exclusive end of their range.
    pub fn end(&self) -> BatchId {
        BatchId(self.batches)
    }

    /// The version of the weights that samples a job.
    pub fn version_of(&self, job: JobName) -> Version {
        self.version(self.batch_of(job.group), job.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_from_batch_and_chunk() {
        let versions = |k, chunks| {
            let plan = Plan { chunks, ..Plan::new(5, 2, k) };
            let batch = move |b| (0..=plan.last_chunk()).map(|c| plan.version(BatchId(b), c).0).collect::<Vec<_>>();
            (0..5).map(batch).collect::<Vec<_>>()
        };
        assert_eq!(versions(0, true), [[0], [1], [2], [3], [4]]);
        assert_eq!(versions(2, false), [[0], [0], [0], [1], [2]]);
        assert_eq!(versions(2, true), [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]);
    }

    /// Each row: k, chunks, the number of batches in a checkpoint at batch 4, and the versions of the chunks of batches
    /// 4 to 8.
    #[test]
    fn a_continued_run_samples_only_with_existing_weights() {
        let versions = |k, chunks, there: u64| {
            let continued = Continued { batch: BatchId(4 + there), version: Version(4) };
            let plan = Plan { chunks, continued, ..Plan::new(9, 2, k) };
            let batch = move |b| (0..=plan.last_chunk()).map(|c| plan.version(BatchId(b), c).0).collect::<Vec<_>>();
            (4..9).map(batch).collect::<Vec<_>>()
        };
        assert_eq!(versions(0, false, 0), [[4], [5], [6], [7], [8]]);
        assert_eq!(versions(1, false, 0), [[4], [4], [5], [6], [7]]);
        assert_eq!(versions(1, false, 1), [[3], [4], [5], [6], [7]], "the rule without a continuation");
        assert_eq!(versions(2, false, 0), [[4], [4], [4], [5], [6]]);
        assert_eq!(versions(2, false, 1), [[2], [4], [4], [5], [6]]);
        assert_eq!(versions(2, false, 2), [[2], [3], [4], [5], [6]]);
        assert_eq!(versions(9, false, 0), [[4]; 5]);
        assert_eq!(versions(2, true, 0), [[4, 4, 4], [4, 4, 5], [4, 5, 6], [5, 6, 7], [6, 7, 8]]);
        assert_eq!(versions(2, true, 1), [[2, 3, 4], [4, 4, 5], [4, 5, 6], [5, 6, 7], [6, 7, 8]]);
        assert_eq!(versions(2, true, 2), [[2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 7], [6, 7, 8]]);
        // A run that continues in the middle of a batch uses the weights at the start of the next batch.
        let plan = Plan { continued: Continued { batch: BatchId(5), version: Version(5) }, ..Plan::new(9, 2, 2) };
        assert_eq!([4, 5, 6, 7, 8].map(|batch| plan.version(BatchId(batch), 0).0), [2, 5, 5, 5, 6]);
    }

    #[test]
    fn values_with_which_a_run_cannot_end_are_refused() {
        assert_eq!(Plan::new(1, 1, 0).check(), Ok(()));
        assert!(Plan { max_inflight_tasks: 0, ..Plan::new(1, 1, 2) }.check().unwrap_err().contains("at least 1"));
        assert!(Plan { groups: 0, ..Plan::new(1, 1, 0) }.check().is_err());
    }
}
