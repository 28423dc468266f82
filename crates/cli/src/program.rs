//! Commands that start this program again, as another process of a run, and the exit code of a process that has
//! reported its error.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The error of a process whose reason has already been reported: the exit code.
#[derive(Debug, thiserror::Error)]
#[error("exited with code {0}")]
pub struct EndedWith(pub u8);

/// A command that starts this program again.
pub(crate) fn this_program() -> Command {
    let mut words = PROGRAM.get().into_iter().flatten();
    let mut command = match words.next() {
        Some(program) => Command::new(program),
        None => Command::new(std::env::current_exe().unwrap_or_else(|_| "lockstep".into())),
    };
    command.args(words);
    command
}

/// The command that starts this program if it runs inside a Python interpreter: the interpreter and its first
/// arguments.
pub(crate) static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// A command that starts a rank other than 0. Its errors are reported by rank 0.
pub(crate) fn rank() -> Command {
    let mut command = this_program();
    command.arg("rank").stdout(Stdio::null());
    command
}
