//! Runs the cargo that started this program.

use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Arguments that start the mutation tests, which are a separate workspace.
pub const MUTANTS: [&str; 7] =
    ["run", "--quiet", "--manifest-path", "mutants/Cargo.toml", "--target-dir", "target/mutants/program", "--"];

/// A cargo command, to which the caller adds arguments. `cargo run` sets variables that describe xtask. They are
/// removed, because build scripts that read them (as ring's does) would run again, and everything that depends on them
/// would be rebuilt.
pub fn command() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| describes_a_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Whether `cargo run` sets this variable to describe a package.
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

/// The output of `cargo metadata` with these arguments.
pub fn metadata<T: DeserializeOwned>(arguments: &[&str]) -> Result<T, String> {
    let output = command().args(["metadata", "--format-version", "1"]).args(arguments).output();
    let output = output.map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

/// Builds the release profile and returns its directory.
pub fn release() -> Result<PathBuf, String> {
    run(&["build", "--release"], &[])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(PathBuf::from(target).join("release"))
}

/// The path of a program (`kind` "bin") or of a library's tests ("lib") from the build of `cargo test --workspace`, so
/// that nothing is rebuilt with different features.
pub fn executable(name: &str, kind: &str) -> Result<PathBuf, String> {
    let build = ["test", "--workspace", "--no-run", "--message-format=json"];
    let output = command().args(build).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let artifacts = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_it = |artifact: &Value| {
        let is_named = artifact["target"]["name"] == name && artifact["target"]["kind"][0] == kind;
        // A program has a second executable with its unit tests.
        is_named && artifact["profile"]["test"] == (kind == "lib")
    };
    let found = artifacts.filter(is_it).find_map(|artifact| artifact["executable"].as_str().map(PathBuf::from));
    found.ok_or_else(|| format!("cargo {}: built no executable {name}", build.join(" ")))
}

/// The standard output of a program; an error if the program fails.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

/// The program in the environment variable LOCKSTEP, or the program from the test build.
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
    fn variables_that_describe_this_package_are_removed() {
        let command = command();
        let removed = |name: &str| command.get_envs().any(|(of, value)| of == name && value.is_none());
        assert!(removed("CARGO_MANIFEST_DIR") && removed("CARGO_PKG_NAME") && removed("CARGO_PKG_VERSION_MAJOR"));
        assert!(!removed("PATH") && !removed("CARGO") && !describes_a_package("CARGO_TARGET_DIR"));
    }
}
