//! `lockstep config`: shows, explains and translates configurations.

mod explain;
mod from_trl;
mod markdown;
mod python;

use crate::options::{ConfigArgs, RewardArgs};
use crate::output;
use clap::Subcommand;
use lockstep::config::Purpose;
use lockstep::error::OrBadInput;
use std::path::PathBuf;

/// Shows, explains and translates configurations.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockstep config show my.toml --set beta=0.04     every key and its origin
  lockstep config explain steps_per_generation     what a key means
  lockstep config schema > lockstep.schema.json    for an editor
  lockstep config from-trl train_grpo.py > my.toml translate a TRL script")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints every key with its value and the source of the value (defaults, file, environment, flags), as TOML.
    Show {
        #[command(flatten)]
        config: Box<ConfigArgs>,
        #[command(flatten)]
        rewards: RewardArgs,
        /// Prints values only, as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Explains keys: meaning, type, default, TRL's default, and whether they may change on resume.
    Explain {
        /// Names of the keys.
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
    /// Prints the JSON Schema of a configuration file.
    Schema,
    /// Prints docs/config.md: every key, and how keys that only TRL has are handled.
    Markdown,
    /// Translates the GRPOConfig and GRPOTrainer arguments of a TRL script to TOML, and lists the arguments that it
    /// could not translate. The script is parsed by Python, but not executed.
    FromTrl {
        /// The TRL script.
        #[arg(value_name = "FILE.py")]
        file: PathBuf,
        /// The Python interpreter that parses the script, 3.9 or newer.
        #[arg(long, value_name = "PATH", default_value = "python3")]
        python: PathBuf,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let text = match args.command {
        Command::Show { config: mut layers, rewards, json } => {
            rewards.give(&mut layers.more)?;
            let resolved = layers.resolve(Purpose::Show)?;
            for note in &resolved.notes {
                output::note(format_args!("note: {note}"));
            }
            if json { serde_json::to_string_pretty(&resolved.to_json())? + "\n" } else { resolved.to_toml() }
        }
        Command::Explain { keys } => {
            keys.iter().map(|key| explain::explain(key)).collect::<anyhow::Result<Vec<_>>>()?.join("\n")
        }
        Command::Schema => serde_json::to_string_pretty(&explain::schema())? + "\n",
        Command::Markdown => markdown::page(),
        Command::FromTrl { file, python } => {
            let script = std::fs::read(&file).or_bad_input_in(format!("cannot read {}", file.display()))?;
            let calls = python::calls(&script, &python).or_bad_input_in(file.display())?;
            from_trl::translate(&calls).or_bad_input_in(file.display())?
        }
    };
    Ok(output::exact(&text)?)
}
