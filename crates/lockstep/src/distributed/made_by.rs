//! `fleet/made_by.jsonl`: which worker made which group. Nothing of the run depends on it; who verifies one names the
//! liar by it.

use anyhow::Context as _;
use fleet::exchange::spool::Layout;
use fleet::{JobName, JobResult};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A line: the groups of a batch by who made them.
#[derive(Serialize, Deserialize)]
struct Line {
    batch: u64,
    groups: BTreeMap<String, Vec<u64>>,
}

/// The file, to append to.
pub struct MadeBy(File);

fn path(out: &Path) -> PathBuf {
    Layout::of_run(out).root().join("made_by.jsonl")
}

impl MadeBy {
    /// That of the run directory `out`.
    pub fn open(out: &Path) -> anyhow::Result<MadeBy> {
        let path = path(out);
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        Ok(MadeBy(file.with_context(|| path.display().to_string())?))
    }

    /// Notes who made a batch. A batch that is made again has another line, which counts.
    pub fn note(&mut self, batch: u64, results: &[JobResult]) -> anyhow::Result<()> {
        let mut groups: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for result in results {
            if let JobName::Rollout { number, .. } = result.job {
                let own = groups.entry(result.worker.as_str().to_owned()).or_default();
                // It may have made several chunks of it.
                if own.last() != Some(&number) {
                    own.push(number);
                }
            }
        }
        let mut line = serde_json::to_vec(&Line { batch, groups })?;
        line.push(b'\n');
        self.0.write_all(&line).context("fleet/made_by.jsonl")
    }
}

/// Who made a group of the run in `out`, if it has workers; of one that was made in chunks, all of them.
pub fn made_by(out: &Path, group: u64) -> Option<String> {
    let text = fs::read_to_string(path(out)).ok()?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let of = |line: Line| {
        let makers = line.groups.into_iter().filter(|(_, groups)| groups.contains(&group)).map(|(name, _)| name);
        Some(makers.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty())
    };
    lines.filter_map(of).next_back()
}
