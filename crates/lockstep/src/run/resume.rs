//! Where a run begins, and what must not have changed since a checkpoint.

use super::RunDir;
use super::checkpoint;
use super::checkpoint::state::RunState;
use crate::config::Config;
use crate::error::BadInput;
use kernels::Context;
use std::path::{Path, PathBuf};

/// Where a run begins.
#[derive(Clone, Debug)]
pub enum ResumeFrom {
    /// A new directory.
    Nothing,
    /// After this checkpoint.
    Checkpoint(PathBuf),
    /// A run that was killed before its first checkpoint: from step 0 again.
    Beginning,
}

impl ResumeFrom {
    /// The checkpoint, if it is one.
    pub fn checkpoint(&self) -> Option<&Path> {
        match self {
            ResumeFrom::Checkpoint(dir) => Some(dir),
            _ => None,
        }
    }
}

/// The run and the checkpoint that `resume` names. `latest` means the run of the output directory.
pub fn find_run(resume: &str, output_dir: Option<&Path>) -> anyhow::Result<(RunDir, ResumeFrom)> {
    let path = match resume {
        "latest" => output_dir.map(Path::to_owned).ok_or_else(|| {
            BadInput::new("--resume latest: of which run? Give --out DIR, or --resume DIR".to_owned())
        })?,
        dir => PathBuf::from(dir),
    };
    if resume == "latest" && RunDir::is_new(&path) {
        return Ok((RunDir::fresh(&path)?, ResumeFrom::Beginning));
    }
    if path.join("run_state.json").is_file() {
        let root = path.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        return Ok((RunDir::existing(root)?, ResumeFrom::Checkpoint(path)));
    }
    let dir = RunDir::existing(&path)?;
    checkpoint::sweep(&dir)?;
    match checkpoint::latest(&dir) {
        Some(checkpoint) => Ok((dir, ResumeFrom::Checkpoint(checkpoint))),
        None if dir.model().exists() => Err(BadInput::new(format!(
            "{}: the run has ended and left no checkpoint to go on from (save_strategy = \"no\")",
            path.display()
        ))),
        None => Ok((dir, ResumeFrom::Beginning)),
    }
}

pub(super) fn check_resumable(state: &RunState, config: &Config, ctx: &Context, data_hash: &str) -> anyhow::Result<()> {
    if state.data_hash != data_hash {
        return Err(BadInput::new(
            "the training data is not what the run began with (its SHA-256 differs): give the old file, or start a new \
             run",
        ));
    }
    let isa = ctx.describe();
    if state.isa != isa && !config.allow_other_isa {
        return Err(BadInput::new(format!(
            "the run began on {}, this is {isa}: bits are promised on one instruction set only. Set LOCKSTEP_ISA={} if \
             this machine has it, or allow_other_isa = true to go on with {isa}",
            state.isa, state.isa
        )));
    }
    Ok(())
}
