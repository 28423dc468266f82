//! The file `fleet/expelled.jsonl`: workers whose results a run no longer accepts, each with the reason. A restarted
//! learner reads it.

use super::fleet_error;
use anyhow::Context as _;
use fleet::WorkerName;
use fleet::exchange::spool::Layout;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

#[derive(Serialize, Deserialize)]
struct Line {
    worker: WorkerName,
    why: String,
}

/// The open file, to append to.
pub(super) struct Expelled(File);

impl Expelled {
    /// Opens the file in the run directory `out`, and returns the workers that it already contains.
    pub fn open(out: &Path) -> anyhow::Result<(Expelled, Vec<WorkerName>)> {
        let layout = Layout::in_run(out);
        layout.create().map_err(fleet_error)?;
        let path = layout.root().join("expelled.jsonl");
        let text = match disk::read_to_string(&path, disk::most::STATE) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| path.display().to_string())?,
        };
        // If the last line is incomplete, its worker must be detected again.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let names = lines.map(|line| line.worker).collect();
        let file = disk::Options::new().append().create().mode(0o600).open(&path);
        Ok((Expelled(file.with_context(|| path.display().to_string())?), names))
    }

    /// Adds a worker and syncs the file to disk.
    pub fn note(&mut self, worker: &WorkerName, why: &str) -> anyhow::Result<()> {
        let line = Line { worker: worker.clone(), why: why.to_owned() };
        let mut line = serde_json::to_vec(&line)?;
        line.push(b'\n');
        self.0.write_all(&line).and_then(|()| self.0.sync_data()).context("fleet/expelled.jsonl")
    }
}
