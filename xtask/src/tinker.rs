//! `cargo xtask nightly tinker` runs Tinker's stock client and recipes against `lockstep serve`, with the scripts
//! `conformance/tinker_*.py`, and `cargo xtask nightly agents` the environments and checks of others.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the path of a Python interpreter that has the packages named in
/// `conformance/tinker_common.py`.
const PYTHON: &str = "TINKER_PYTHON";
/// The scripts that need the tiny model.
const SCRIPTS: [&str; 6] =
    ["tinker_losses", "tinker_torch", "tinker_recipes", "tinker_faults", "tinker_load", "tinker_clients"];
/// The scripts of environments, each with the environment variable that has the path of a Python interpreter with the
/// packages named in the script. The packages of one cannot be installed beside those of the other.
const AGENT_SCRIPTS: [(&str, &str); 2] = [("OPENENV_PYTHON", "openenv_flow"), ("VERIFIERS_PYTHON", "verifiers_flow")];

/// The requirement of `nightly tinker` that this machine lacks, if any.
pub fn missing() -> Option<String> {
    without(PYTHON, "conformance/tinker_common.py names the packages")
}

/// The requirement of `nightly agents` that this machine lacks, if any.
pub fn missing_agents() -> Option<String> {
    AGENT_SCRIPTS
        .iter()
        .find_map(|(variable, name)| without(variable, &format!("conformance/{name}.py names the packages")))
}

fn without(variable: &str, packages: &str) -> Option<String> {
    let is_set = env::var_os(variable).is_some_and(|value| Path::new(&value).exists());
    (!is_set).then(|| format!("set {variable} ({packages})"))
}

/// Runs the scripts of environments. Returns the last line of each.
pub fn agents() -> Result<String, String> {
    crate::cargo::run(&["build"], &[])?;
    let program = target()?.join("debug/lockstep");
    let all = AGENT_SCRIPTS.iter().map(|(variable, name)| script(variable, name, &[&program]));
    all.collect::<Result<Vec<_>, _>>().map(|lines| lines.join("; "))
}

/// Makes a tiny model, and runs all scripts with it. Returns the last line of each.
pub fn run() -> Result<String, String> {
    crate::cargo::run(&["build"], &[])?;
    let program = target()?.join("debug/lockstep");
    let tiny = env::temp_dir().join(format!("lockstep-tinker-{}", std::process::id()));
    let one = |name: &str| script(PYTHON, name, &[&program, &tiny]);
    let results = one("make_tiny").and_then(|_| SCRIPTS.iter().map(|name| one(name)).collect::<Result<Vec<_>, _>>());
    let _ = std::fs::remove_dir_all(&tiny);
    results.map(|lines| lines.join("; "))
}

fn target() -> Result<PathBuf, String> {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => Ok(PathBuf::from(target)),
        None => env::current_dir().map(|root| root.join("target")).map_err(|error| error.to_string()),
    }
}

/// Runs a script. Returns its name and its last line.
fn script(variable: &str, name: &str, arguments: &[&Path]) -> Result<String, String> {
    let python = env::var_os(variable).unwrap_or_default();
    let output = Command::new(python)
        .arg(format!("conformance/{name}.py"))
        .args(arguments)
        .output()
        .map_err(|error| format!("{variable}: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let last = printed.lines().last().unwrap_or_default();
    if output.status.success() {
        return Ok(format!("{name}: {last}"));
    }
    let failed: Vec<&str> = printed.lines().filter(|line| line.starts_with("FAIL")).collect();
    Err(format!("{name}: {last}\n{}\n{}", failed.join("\n"), String::from_utf8_lossy(&output.stderr)))
}
