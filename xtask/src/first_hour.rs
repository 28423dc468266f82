//! Runs `bench/cuda/first_hour.sh` on the emulator at small sizes, so that the script is known to work before a GPU is
//! rented for an hour.

use crate::cargo;
use std::process::{Command, Stdio};

pub fn check() -> Result<(), String> {
    let script = "bench/cuda/first_hour.sh";
    // As `cargo test --workspace` builds them.
    let (lockstep, tests) = (executable("lockstep", "bin")?, executable("kernels", "lib")?);
    let out = std::path::absolute("target/first-hour").map_err(|e| e.to_string())?;
    if out.exists() {
        std::fs::remove_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    }
    let status = |arguments: &[&str]| {
        let mut command = Command::new("bash");
        command.arg(script).args(arguments).stdin(Stdio::null());
        command.env("LOCKSTEP_BIN", &lockstep).env("LOCKSTEP_KERNEL_TESTS", &tests);
        command.status().map(|status| status.code()).map_err(|why| format!("bash {script}: {why}"))
    };
    let place = out.to_string_lossy();
    match status(&["--device", "cuda-emulated", "--small", "--out", &place])? {
        Some(0) => {}
        code => return Err(format!("{script} ended with {code:?}; see {place}")),
    }
    let report = std::fs::read_to_string(out.join("report.json")).map_err(|e| format!("{place}/report.json: {e}"))?;
    let report: serde_json::Value = serde_json::from_str(&report).map_err(|e| format!("{place}/report.json: {e}"))?;
    let checks = report["checks"].as_array().map_or(0, Vec::len);
    if report["passed"] != true || report["emulated"] != true || checks != 9 {
        return Err(format!("{place}/report.json: {report}"));
    }
    match status(&["--device", "tpu"])? {
        Some(2) => Ok(()),
        code => Err(format!("{script} --device tpu: {code:?}, not 2")),
    }
}

/// The path of something that cargo builds: the program, or the tests of a library.
fn executable(name: &str, kind: &str) -> Result<String, String> {
    let build: &[&str] =
        if kind == "bin" { &["build", "--workspace", "--bins"] } else { &["test", "--workspace", "--lib", "--no-run"] };
    let output = cargo::command().args(build).arg("--message-format=json").stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let artifacts = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let is_it =
        |artifact: &serde_json::Value| artifact["target"]["name"] == name && artifact["target"]["kind"][0] == kind;
    let found = artifacts.filter(is_it).find_map(|artifact| artifact["executable"].as_str().map(String::from));
    found.ok_or_else(|| format!("cargo {}: no executable {name}", build.join(" ")))
}
