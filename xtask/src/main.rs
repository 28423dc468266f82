//! Developer commands: `cargo xtask check` runs what CI runs after the tests.

use std::process::{Command, ExitCode};
use std::time::Instant;

const HELP: &str = "cargo xtask check    formatting, lints, docs, fixtures, the demo end to end (what CI runs beside `cargo test --workspace`)
cargo xtask check fmt|clippy|docs|fixtures|demo    one of them";

/// A check: its name and how it is made.
type Check = (&'static str, fn() -> Result<(), String>);

const CHECKS: [Check; 5] =
    [("fmt", fmt), ("clippy", clippy), ("docs", docs), ("fixtures", fixtures::check), ("demo", demo::check)];

mod demo;
mod fixtures;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let chosen: Vec<Check> = match words[..] {
        ["check"] => CHECKS.to_vec(),
        ["check", name] => CHECKS.into_iter().filter(|check| check.0 == name).collect(),
        _ => Vec::new(),
    };
    if chosen.is_empty() {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    }
    for (name, check) in chosen {
        let start = Instant::now();
        println!("── {name}");
        if let Err(why) = check() {
            eprintln!("── {name} FAILED: {why}");
            return ExitCode::FAILURE;
        }
        println!("── {name} ok, {:.0} s", start.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}

/// Runs a command of cargo's, its output passed on.
fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo).args(arguments).envs(environment.iter().copied()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo {}: {status}", arguments.join(" "))),
        Err(error) => Err(format!("cargo {}: {error}", arguments.join(" "))),
    }
}

fn fmt() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"], &[])
}

fn clippy() -> Result<(), String> {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
}

fn docs() -> Result<(), String> {
    cargo(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}
