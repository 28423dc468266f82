//! Runs the cargo that runs this program.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Arguments that start the mutation tests, which are a workspace of their own.
pub const MUTANTS: [&str; 7] =
    ["run", "--quiet", "--manifest-path", "mutants/Cargo.toml", "--target-dir", "target/mutants/program", "--"];

/// A cargo command, to which the caller adds arguments. `cargo run` describes xtask in the environment. A build script
/// that reads such a variable (as ring's does) would run again, and its dependents would be rebuilt, so these variables
/// are not passed on.
pub fn command() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| describes_a_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Whether cargo sets this variable for the program of a package.
fn describes_a_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
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

/// The path of the program (`kind` "bin") or of the tests of a library ("lib") that `cargo test --workspace` builds, so
/// that nothing is built a second time with other features.
pub fn executable(name: &str, kind: &str) -> Result<PathBuf, String> {
    let build = ["test", "--workspace", "--no-run", "--message-format=json"];
    let output = command().args(build).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let artifacts = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_it = |artifact: &Value| {
        let is_named = artifact["target"]["name"] == name && artifact["target"]["kind"][0] == kind;
        // A program has unit tests, too.
        is_named && artifact["profile"]["test"] == (kind == "lib")
    };
    let found = artifacts.filter(is_it).find_map(|artifact| artifact["executable"].as_str().map(PathBuf::from));
    found.ok_or_else(|| format!("cargo {}: no executable {name}", build.join(" ")))
}

/// The standard output of a program, if it succeeds.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

/// The program in the environment variable LOCKSTEP, or the program that the tests build.
pub fn program() -> Result<PathBuf, String> {
    match std::env::var_os("LOCKSTEP") {
        Some(program) => std::path::absolute(program).map_err(|e| format!("LOCKSTEP: {e}")),
        None => executable("lockstep", "bin"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_this_package_are_not_passed_on() {
        let command = command();
        let removed = |name: &str| command.get_envs().any(|(of, value)| of == name && value.is_none());
        assert!(removed("CARGO_MANIFEST_DIR") && removed("CARGO_PKG_NAME") && removed("CARGO_PKG_VERSION_MAJOR"));
        assert!(!removed("PATH") && !removed("CARGO") && !describes_a_package("CARGO_TARGET_DIR"));
    }
}
