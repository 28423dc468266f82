//! The file `fleet/made_by.jsonl`, which records the worker of each group. Training does not depend on it; `lockstep
//! verify` uses it to name the worker of a group that differs.

use super::chunks::CHECKPOINT;
use super::ids::group_of;
use anyhow::Context as _;
use fleet::exchange::spool::Layout;
use fleet::{BatchId, JobResult, WorkerName};
use model::GroupId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A line of the file: the groups of a batch, by worker.
#[derive(Serialize, Deserialize)]
struct Line {
    batch: BatchId,
    groups: BTreeMap<String, Vec<GroupId>>,
}

/// The open file, to append to.
pub struct MadeBy(File);

/// The file in the run directory `out`; missing if the run never had workers.
pub fn path(out: &Path) -> PathBuf {
    Layout::in_run(out).root().join("made_by.jsonl")
}

impl MadeBy {
    /// Opens the file of the run directory `out`.
    pub fn open(out: &Path) -> anyhow::Result<MadeBy> {
        let path = path(out);
        let file = disk::Options::new().append().create().mode(0o600).open(&path);
        Ok(MadeBy(file.with_context(|| path.display().to_string())?))
    }

    /// Adds a line with the workers of a batch. If a batch is regenerated, a later line replaces the earlier one.
    /// Results from a checkpoint are in an earlier line.
    pub fn note(&mut self, batch: BatchId, results: &[JobResult]) -> anyhow::Result<()> {
        let mut groups: BTreeMap<String, Vec<GroupId>> = BTreeMap::new();
        for result in results.iter().filter(|result| result.worker.as_str() != CHECKPOINT) {
            let group = group_of(result.job);
            let own = groups.entry(result.worker.as_str().to_owned()).or_default();
            // A worker may have generated several chunks of a group.
            if own.last() != Some(&group) {
                own.push(group);
            }
        }
        if groups.is_empty() {
            return Ok(());
        }
        let mut line = serde_json::to_vec(&Line { batch, groups })?;
        line.push(b'\n');
        self.0.write_all(&line).context("fleet/made_by.jsonl")
    }
}

/// The worker of each group, as (group, name of the worker).
pub fn makers(results: &[JobResult]) -> Vec<(GroupId, WorkerName)> {
    results.iter().map(|result| (group_of(result.job), result.worker.clone())).collect()
}

/// The worker of a group in the run in `out`, if the run has workers; for a group generated in chunks, all of its
/// workers.
pub fn made_by(out: &Path, group: GroupId) -> Option<String> {
    let text = text(out)?;
    let of = |line: Line| {
        let makers = line.groups.into_iter().filter(|(_, groups)| groups.contains(&group)).map(|(name, _)| name);
        Some(makers.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty())
    };
    lines(&text).filter_map(of).next_back()
}

/// For each batch of the run in `out`, the number of groups per worker. For a regenerated batch, the last line is used.
/// `None` if the run does not have the file.
pub fn groups_made(out: &Path) -> Option<BTreeMap<u64, BTreeMap<String, u64>>> {
    let text = text(out)?;
    let counts = |groups: BTreeMap<String, Vec<GroupId>>| {
        groups.into_iter().map(|(name, groups)| (name, groups.len() as u64)).collect()
    };
    Some(lines(&text).map(|line| (line.batch.0, counts(line.groups))).collect())
}

fn text(out: &Path) -> Option<String> {
    disk::read_to_string(path(out), disk::most::STATE).ok()
}

/// The lines. An incomplete last line, of a run that continues, is skipped.
fn lines(text: &str) -> impl DoubleEndedIterator<Item = Line> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}
