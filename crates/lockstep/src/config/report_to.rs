//! The values of the key `report_to`: receivers of a run's metrics and alarms, and TRL's names of services.
//!
//! A receiver is `command:PROGRAM ARGUMENTS…`, split at white space as a reward's command is, or an address that begins
//! with `http://` or `https://`. The configuration is written into the run's directory and shown on the web page, so it
//! must not contain passwords: tokens come from the environment.

use super::keys::Config;
use crate::bad_input;
use crate::error::BadInput;
use rewards::outside::{Address, split_line};

/// The environment variable with the token that `http://` and `https://` receivers get as `Authorization: Bearer`.
pub(crate) const TOKEN: &str = "LOCKSTEP_REPORT_TOKEN";

/// TRL's values, which are the names of transformers' integrations. The command line sends nothing to these services.
const TRL_VALUES: [&str; 15] = [
    "all",
    "none",
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "mlflow",
    "neptune",
    "swanlab",
    "tensorboard",
    "trackio",
    "wandb",
];
const COMMAND: &str = "command:";

/// A receiver of a run's metrics and alarms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// A program with its arguments.
    Command(Vec<String>),
    /// An address.
    Http(String),
}

impl Config {
    /// The receivers that `report_to` names, each with its entry.
    pub(crate) fn receivers(&self) -> anyhow::Result<Vec<(&str, Receiver)>> {
        let mut all = Vec::new();
        for entry in &self.report_to {
            let found = receiver(entry).map_err(|why| BadInput::new(format!("`report_to`: {why}")))?;
            all.extend(found.map(|found| (entry.as_str(), found)));
        }
        Ok(all)
    }
}

/// The command line in this value of `report_to`, if it is a command.
pub(super) fn command(entry: &str) -> Option<&str> {
    entry.strip_prefix(COMMAND)
}

/// The value of `report_to` for a command with this line.
pub(super) fn command_entry(line: &str) -> String {
    format!("{COMMAND}{line}")
}

/// The receiver that a value names, or `None` if the value is one of TRL's. The error does not contain a password.
fn receiver(entry: &str) -> Result<Option<Receiver>, String> {
    if let Some(line) = command(entry) {
        let Some(words) = split_line(line) else { return Err(format!("unclosed quote in `{}`", shown(entry))) };
        if words.first().is_none_or(String::is_empty) {
            return Err(format!("`{}` must name a program: command:PROGRAM ARGUMENTS…", shown(entry)));
        }
        words.iter().filter(|word| word.contains("://")).try_for_each(|word| no_secret_in(word))?;
        return Ok(Some(Receiver::Command(words)));
    }
    if entry.starts_with("http://") || entry.starts_with("https://") {
        no_secret_in(entry)?;
        Address::check(entry).map_err(|why| format!("`{entry}` {why}"))?;
        return Ok(Some(Receiver::Http(entry.to_owned())));
    }
    if TRL_VALUES.contains(&entry) {
        return Ok(None);
    }
    Err(format!(
        "`{}` is not a receiver: expected command:PROGRAM ARGUMENTS…, http://ADDRESS or https://ADDRESS, or one of \
         TRL's values: {}",
        shown(entry),
        TRL_VALUES.join(", ")
    ))
}

fn no_secret_in(address: &str) -> Result<(), String> {
    let secret = |secret| {
        format!(
            "`{}` has {secret}, but the configuration is written to the run's directory: pass a token in the \
             environment variable {TOKEN}",
            shown(address)
        )
    };
    Address::secret_in(address).map_or(Ok(()), |found| Err(secret(found)))
}

/// A value, truncated after the scheme of an address in it: the rest may be secret.
fn shown(entry: &str) -> String {
    entry.split_once("://").map_or(entry.to_owned(), |(before, _)| format!("{before}://…"))
}

/// Checks the values; returns notes on TRL's values, which have no effect here.
pub(super) fn check(c: &Config) -> anyhow::Result<Vec<String>> {
    let receivers = c.receivers()?;
    for (place, (entry, _)) in receivers.iter().enumerate() {
        if receivers[..place].iter().any(|(other, _)| other == entry) {
            bad_input!("`report_to` names `{entry}` twice");
        }
    }
    let unused = |entry: &&String| {
        TRL_VALUES.contains(&entry.as_str()) && !(c.tensorboard && matches!(entry.as_str(), "tensorboard" | "all"))
    };
    let unused: Vec<&str> = c.report_to.iter().filter(unused).map(String::as_str).collect();
    let note = || {
        format!(
            "report_to = {}: nothing is sent to these services; receivers are command:PROGRAM and http://ADDRESS, and \
             `tensorboard` decides whether TensorBoard files are written",
            unused.join(", ")
        )
    };
    Ok(if unused.is_empty() { Vec::new() } else { vec![note()] })
}
