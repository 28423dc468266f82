//! `cargo xtask nightly trl_suite` runs TRL's tests of its trainers on the Python package, with
//! `conformance/trl_suite/run.py`, which writes docs/python/trl-suite.md. `cargo xtask nightly trl_matrix` runs the
//! same training here and in TRL, with `conformance/trl_matrix/run.py`, which writes a table in
//! docs/python/from-trl.md.

use std::env;
use std::path::Path;
use std::process::Command;

/// Environment variable with the path of TRL's source: a clone, or a directory with its tests.
const CHECKOUT: &str = "TRL_CHECKOUT";
/// Environment variable with the path of a Python interpreter that has torch, transformers, peft, datasets, pytest, TRL
/// and lockstep_rl.
const PYTHON: &str = "TRL_SUITE_PYTHON";
const PAGE: &str = "docs/python/trl-suite.md";

/// Requirements of the tests that this machine lacks, if any.
pub fn missing() -> Option<String> {
    unset(&[CHECKOUT, PYTHON])
}

/// Requirements of `trl_matrix` that this machine lacks, if any.
pub fn missing_python() -> Option<String> {
    unset(&[PYTHON])
}

fn unset(names: &[&str]) -> Option<String> {
    let unset = |name: &&&str| env::var_os(name).is_none_or(|value| !Path::new(&value).exists());
    let missing: Vec<&str> = names.iter().filter(unset).copied().collect();
    (!missing.is_empty())
        .then(|| format!("set {} (conformance/trl_suite/run.py describes the values)", missing.join(" and ")))
}

/// Trains with every trainer and every combination of arguments, and compares the results with TRL's. Returns the
/// number of comparisons that hold.
pub fn matrix() -> Result<String, String> {
    let python = env::var_os(PYTHON).unwrap_or_default();
    let output = Command::new(python)
        .args(["conformance/trl_matrix/run.py", "--write"])
        .output()
        .map_err(|e| format!("{PYTHON}: {e}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let last = printed.lines().last().unwrap_or_default().to_owned();
    if output.status.success() && last.ends_with("cells hold") {
        Ok(last)
    } else {
        Err(format!("{last}\n{printed}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// Runs all five test files and returns the totals on the page.
pub fn run() -> Result<String, String> {
    let python = env::var_os(PYTHON).unwrap_or_default();
    let status = Command::new(python)
        .args(["conformance/trl_suite/run.py", "--write"])
        .status()
        .map_err(|e| format!("{PYTHON}: {e}"))?;
    let page = std::fs::read_to_string(PAGE).map_err(|e| format!("{PAGE}: {e}"))?;
    let totals = totals(&page).ok_or_else(|| format!("{PAGE} has no totals"))?;
    if status.success() {
        Ok(totals)
    } else {
        Err(format!("{totals}; a result differs from conformance/trl_suite/table.toml: the output names the test"))
    }
}

/// The number of tests, and of passed and failed tests, from the last row of the page's table.
fn totals(page: &str) -> Option<String> {
    let row = page.lines().find_map(|line| line.strip_prefix("| all |"))?;
    let [tests, passed, failed] = row.split('|').map(str::trim).take(3).collect::<Vec<_>>().try_into().ok()?;
    Some(format!("{passed} of {tests} tests pass, {failed} fail, the others are excluded with reasons"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_from_the_last_row_of_the_table() {
        let page = "| file | tests |\n|---|---|\n| `a.py` | 3 | 1 | 0 | 2 |\n| all | 627 | 240 | 3 | 9 |\n";
        let expected = "240 of 627 tests pass, 3 fail, the others are excluded with reasons";
        assert_eq!(totals(page).as_deref(), Some(expected));
        assert_eq!(totals("nothing"), None);
    }
}
