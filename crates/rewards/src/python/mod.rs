//! `python`: a reward that is a function in a Python file, with TRL's calling convention:
//! `"python:rewards.py:happy_reward"`.
//!
//! Each such reward has a Python interpreter that keeps running, as a [`command`](crate::command) does. The interpreter
//! runs an adapter script, which the Python package uses too. The adapter imports the user's file, converts a batch to
//! TRL's keyword arguments, awaits async functions, and converts the results to numbers. An exception is reported with
//! its traceback and the row in which it occurred.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;
use serde_json::Value;

use crate::command::{self, CommandReward, Dialect, Words};
use crate::{Error, Result};

const KIND: &str = "python";

/// The adapter script that the interpreter runs. The first line removes the working directory from the module path:
/// modules are imported from the directory of the function's file.
const ADAPTER: &str = concat!("import sys\nif sys.path[:1] == ['']: del sys.path[0]\n", include_str!("calling.py"));

/// The options of a `python` reward, in addition to `kind` and `name`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PythonOptions {
    /// The file and the function: `FILE:FUNCTION`.
    python: String,
    /// The Python interpreter, by name or path, and its arguments.
    #[serde(default = "default_interpreter")]
    interpreter: Words,
    /// Seconds that one batch may take, as for a `command` reward.
    #[serde(default = "command::default_timeout_s")]
    timeout_s: f64,
    #[serde(default = "command::default_max_restarts")]
    max_restarts: u32,
    #[serde(default)]
    by_group: bool,
}

fn default_interpreter() -> Words {
    Words::Line("python3".to_owned())
}

impl PythonOptions {
    fn place(&self) -> Result<(&str, &str)> {
        let place = self.python.rsplit_once(':').map(|(file, function)| (file.trim(), function.trim()));
        place.filter(|(file, function)| !file.is_empty() && !function.is_empty()).ok_or_else(|| {
            let message =
                format!("expected FILE:FUNCTION, as in \"python:rewards.py:happy_reward\", got `{}`", self.python);
            Error::options(KIND, message)
        })
    }
}

/// Starts the interpreter, which imports the file. The start has the same time limit as a batch, and is cancelled when
/// `stop` is set.
pub(crate) fn build(name: String, options: PythonOptions, stop: &Arc<AtomicBool>) -> Result<CommandReward> {
    let (file, function) = options.place()?;
    if !Path::new(file).is_file() {
        return Err(Error::options(KIND, format!("the file {file} does not exist (for `{}`)", options.python)));
    }
    let mut words = options.interpreter.clone().split()?;
    let interpreter = words[0].clone();
    words.extend(["-c", ADAPTER, file, function].map(str::to_owned));
    let PythonOptions { timeout_s, max_restarts, by_group, .. } = options;
    let command = command::CommandOptions { command: Words::List(words), timeout_s, max_restarts, by_group };
    CommandReward::start(name, command, Dialect::Python, stop.clone()).map_err(|error| match error {
        Error::Program { message, .. } if message.starts_with("no such program") => Error::options(
            KIND,
            format!(
                "the interpreter `{interpreter}` was not found: install Python 3, or name another interpreter in the \
                 reward's table, as in {{ kind = \"python\", python = \"{file}:{function}\", interpreter = \
                 \".venv/bin/python\" }}"
            ),
        ),
        Error::Program { message, .. } => Error::options(KIND, format!("{file}:{function}: {message}")),
        Error::Options { message, .. } => Error::options(KIND, message),
        other => other,
    })
}

/// The options with each path replaced by the result of `absolute`.
pub(crate) fn map_paths<E>(
    options: PythonOptions,
    absolute: impl Fn(&str) -> std::result::Result<String, E>,
) -> std::result::Result<Vec<(&'static str, Value)>, E> {
    let Ok((file, function)) = options.place() else { return Ok(Vec::new()) };
    let mut mapped = vec![("python", format!("{}:{function}", absolute(file)?).into())];
    if let Ok(mut words) = options.interpreter.clone().split()
        && words[0].contains('/')
    {
        words[0] = absolute(&words[0])?;
        mapped.push(("interpreter", words.into()));
    }
    Ok(mapped)
}

/// The name of the reward, which is that of its function (as in TRL), and the file.
pub(crate) fn label(options: &PythonOptions) -> Result<(String, String)> {
    let (file, function) = options.place()?;
    let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok((function.to_owned(), stem.unwrap_or_default()))
}

#[cfg(all(test, unix))]
mod tests;
