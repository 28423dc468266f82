//! `cargo xtask nightly tinker` runs Tinker's stock client and recipes against `lockstep serve`, with the scripts
//! `conformance/tinker_*.py`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the path of a Python interpreter that has the packages named in
/// `conformance/tinker_common.py`.
const PYTHON: &str = "TINKER_PYTHON";
/// The scripts that need the tiny model.
const SCRIPTS: [&str; 4] = ["tinker_losses", "tinker_torch", "tinker_recipes", "tinker_faults"];

/// The requirement of the check that this machine lacks, if any.
pub fn missing() -> Option<String> {
    let is_set = env::var_os(PYTHON).is_some_and(|value| Path::new(&value).exists());
    (!is_set).then(|| format!("set {PYTHON} (conformance/tinker_common.py names the packages)"))
}

/// Makes a tiny model, and runs all scripts with it. Returns the last line of each.
pub fn run() -> Result<String, String> {
    crate::cargo::run(&["build"], &[])?;
    let program = target()?.join("debug/lockstep");
    let tiny = env::temp_dir().join(format!("lockstep-tinker-{}", std::process::id()));
    let results = script("make_tiny", &program, &tiny)
        .and_then(|_| SCRIPTS.iter().map(|name| script(name, &program, &tiny)).collect::<Result<Vec<_>, _>>());
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
fn script(name: &str, program: &Path, tiny: &Path) -> Result<String, String> {
    let python = env::var_os(PYTHON).unwrap_or_default();
    let output = Command::new(python)
        .arg(format!("conformance/{name}.py"))
        .args([program, tiny])
        .output()
        .map_err(|error| format!("{PYTHON}: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let last = printed.lines().last().unwrap_or_default();
    if output.status.success() {
        return Ok(format!("{name}: {last}"));
    }
    let failed: Vec<&str> = printed.lines().filter(|line| line.starts_with("FAIL")).collect();
    Err(format!("{name}: {last}\n{}\n{}", failed.join("\n"), String::from_utf8_lossy(&output.stderr)))
}
