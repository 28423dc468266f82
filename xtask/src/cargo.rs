//! Runs the cargo that runs this program.

use std::path::PathBuf;
use std::process::Command;

/// A cargo command, to which the caller adds arguments.
pub fn command() -> Command {
    Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
}

/// Runs a cargo command and shows its output.
pub fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let status = command().args(arguments).envs(environment.iter().copied()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo {}: {status}", arguments.join(" "))),
        Err(error) => Err(format!("cargo {}: {error}", arguments.join(" "))),
    }
}

/// Builds the release and returns the directory that contains it.
pub fn release() -> Result<PathBuf, String> {
    run(&["build", "--release"], &[])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(PathBuf::from(target).join("release"))
}
