//! The date, commit and machine that are recorded with a result.

use std::fs;
use std::process::Command;

/// Today's date in UTC.
pub fn date() -> String {
    output("date", &["-u", "+%F"])
}

/// The current commit, and whether there are uncommitted changes.
pub fn commit() -> String {
    let changed = !output("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
    let commit = output("git", &["rev-parse", "--short", "HEAD"]);
    if changed { format!("{commit} and changes") } else { commit }
}

/// The processors of this machine.
pub fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name);
    format!("{} cores, {name}", std::thread::available_parallelism().map_or(0, usize::from))
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
