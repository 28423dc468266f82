//! `lockstep rollouts`: prints recorded rollouts as JSON lines.

use crate::output;
use lockstep::error::{BadInput, OrBadInput};
use lockstep::wire::file::{GroupFile, IndexEntry};
use lockstep::{RunDir, bad_input};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Prints the rollouts that a run recorded (record_rollouts = true) as JSON lines, one per completion.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run's directory, or its rollouts.bin.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Prints only the group with this number.
    #[arg(long, value_name = "N", conflicts_with = "index")]
    pub group: Option<u64>,
    /// Prints one line per group instead: its number, step, reward and lengths, without tokens.
    #[arg(long)]
    pub index: bool,
    /// The record to print: groups that were trained on; new log-probabilities of some of them after the step (in
    /// tokens.new_logps); or groups of evaluations.
    #[arg(long, value_enum, default_value_t = Of::Training)]
    pub of: Of,
}

/// The records of a run.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Of {
    /// rollouts.bin
    Training,
    /// updates.bin
    Updates,
    /// evaluations.bin
    Evaluations,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let path = if args.run.is_dir() {
        let run = RunDir::open(&args.run)?;
        match args.of {
            Of::Training => run.rollouts(),
            Of::Updates => run.updates(),
            Of::Evaluations => run.evaluations(),
        }
    } else {
        args.run
    };
    let file = GroupFile::open(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound if path.with_extension("jsonl").exists() => BadInput::new(format!(
            "{}: no such file; {}, written by an older version, is already in the JSON lines format",
            path.display(),
            path.with_extension("jsonl").display()
        )),
        std::io::ErrorKind::NotFound => {
            BadInput::new(format!("{}: no such file; only a run with record_rollouts = true writes it", path.display()))
        }
        std::io::ErrorKind::InvalidData => BadInput::new(error.to_string()),
        _ => BadInput::new(format!("{}: {error}", path.display())),
    })?;
    let wanted = |entry: &IndexEntry| args.group.is_none_or(|group| entry.group.0 == group);
    if let Some(group) = args.group
        && !file.index().iter().any(wanted)
    {
        bad_input!("{} has no group {group}; --index lists the recorded groups", path.display());
    }
    for (place, entry) in file.index().iter().enumerate().filter(|(_, entry)| wanted(entry)) {
        if args.index {
            output::json(&index_line(entry))?;
            continue;
        }
        for line in file.read(place).or_bad_input()?.lines() {
            output::json(&line)?;
        }
    }
    Ok(())
}

fn index_line(entry: &IndexEntry) -> Value {
    json!({
        "group": entry.group,
        "step": entry.step,
        "reward": entry.reward,
        "reward_std": entry.reward_std,
        "completions": entry.completions,
        "tokens": entry.tokens,
        "prompt_hash": format!("{:016x}", entry.prompt_hash),
        "offset": entry.offset,
        "length": entry.length,
    })
}
