//! `cargo xtask nightly [NAME]…`: runs the checks that take too long for CI, one after another, and writes each result
//! to a committed table as soon as it is known.

use crate::provenance::{commit, date, machine};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Instant;

/// The committed table: the last result of each check.
const RESULTS: &str = "docs/nightly.md";
const HEAD: &str = "# Checks that CI does not run

These checks take too long for CI. `cargo xtask nightly` runs them all, `cargo xtask nightly NAME` runs one; the command
writes this table, which has the last result of each.

| check | date | commit | machine | seconds | result |
|---|---|---|---|---|---|
";

/// The outcome of a check that did not fail.
pub enum Done {
    /// The check passed; a short summary with figures.
    Passed(String),
    /// The check cannot run on this machine because of missing requirements; its last result stays in the table.
    Unavailable(String),
}

/// The dev profile of the kernels.
const KERNELS: &str = "profile.dev.package.lockstep-kernels";

/// A check: its name and the function that runs it. The first line of an error goes into the table.
type Check = (&'static str, fn() -> Result<Done, String>);

const CHECKS: [Check; 28] = [
    ("agents", agents),
    ("commands", commands),
    ("emulate", emulate),
    ("fleet_ends", fleet_ends),
    ("fleet_kills", fleet_kills),
    ("fleet_runs", fleet_runs),
    ("fleet_search", fleet_search),
    ("fleet_simulations", fleet_simulations),
    ("golden", golden),
    ("kernel_checks", kernel_checks),
    ("kills", kills),
    ("last_words", last_words),
    ("launchers", launchers),
    ("memory_plan", memory_plan),
    ("miri", miri),
    ("mutants", mutants),
    ("network", network),
    ("page_runs", page_runs),
    ("pages", pages),
    ("parity", parity),
    ("rank_kills", rank_kills),
    ("sandbox", sandbox),
    ("strangers_run", strangers_run),
    ("terminals", terminals),
    ("tinker", tinker),
    ("trl_matrix", trl_matrix),
    ("trl_suite", trl_suite),
    ("verdicts", verdicts),
];

fn emulate() -> Result<Done, String> {
    crate::emulate::full().map(|()| Done::Passed("wrote crates/kernels/emulated.txt".to_owned()))
}

/// Runs the README's two commands in a clean clone.
fn commands() -> Result<Done, String> {
    let clone = std::env::temp_dir().join(format!("lockstep-clone-{}", std::process::id()));
    let place = clone.to_string_lossy();
    let git = Command::new("git").args(["clone", "--quiet", ".", &*place]).status();
    if !git.is_ok_and(|status| status.success()) {
        return Err("git clone failed".to_owned());
    }
    let mut figures = Vec::new();
    for words in [&["run", "--release", "--", "demo", "--out", "target/demo"][..], &["test", "--workspace"]] {
        let start = Instant::now();
        let mut command = crate::cargo::command();
        let status = command.args(words).current_dir(&clone).env_remove("CARGO_TARGET_DIR").status();
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            return Err(format!("cargo {}: {status:?}", words.join(" ")));
        }
        figures.push(format!("cargo {}: {:.0} s, build included", words[..2].join(" "), start.elapsed().as_secs_f64()));
    }
    let _ = fs::remove_dir_all(&clone);
    Ok(Done::Passed(figures.join("; ")))
}

/// Runs the golden runs on every instruction set of this machine.
fn golden() -> Result<Done, String> {
    let test = ["test", "--workspace", "--test", "golden", "golden_runs_match_the_recorded_hashes"];
    crate::cargo::run(&test, &[("GOLDEN_RUNS", "all")])?;
    Ok(Done::Passed("bits equal bits.txt on every instruction set".to_owned()))
}

/// Tests everything that runs kernels with the compiler's checks of overflows and with debug assertions, which the dev
/// profile leaves out.
fn kernel_checks() -> Result<Done, String> {
    let checks = ["debug-assertions", "overflow-checks"].map(|check| format!("{KERNELS}.{check}=true"));
    let mut command = crate::cargo::command();
    command.arg("test").args(checks.iter().flat_map(|check| ["--config", check]));
    for name in ["kernels", "model", "rollout", "train"] {
        command.args(["-p", &format!("lockstep-{name}")]);
    }
    let text = printed(&mut command)?;
    let passed = text.lines().filter_map(|line| line.strip_prefix("test result: ok. ")?.split_once(" passed"));
    let count: usize = passed.filter_map(|(count, _)| count.parse::<usize>().ok()).sum();
    Ok(Done::Passed(format!("{count} tests of kernels, model, rollout and train")))
}

/// Compares the bits of sampler and trainer for all batch sizes on every instruction set of this machine.
fn parity() -> Result<Done, String> {
    crate::cargo::run(&["test", "--workspace", "--test", "rollout", "parity"], &[("PARITY", "all")])?;
    Ok(Done::Passed("sampler and trainer have the same bits on every instruction set".to_owned()))
}

/// Ends runs with workers of every kind in every way, and continues them.
fn fleet_ends() -> Result<Done, String> {
    program(&["ways_to_end::"], &[" ends of "])
}

fn fleet_kills() -> Result<Done, String> {
    fleet("it", "two_thousand_kills_change_no_bit", "kills of the learner")
}

/// Trains with workers while processes are killed, and with a full disk. Takes about ten minutes on two cores.
fn fleet_runs() -> Result<Done, String> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|said| said.stdout == b"0\n");
    if !is_root {
        return Ok(Done::Unavailable("needs root, to mount a small file system".to_owned()));
    }
    let tests = ["kills_of_any_process", "a_worker_whose_disk_is_full", "gsm8k_with_workers"];
    program(&tests, &["kills of learners", "waited for room", "GSM8K:"])
}

fn fleet_search() -> Result<Done, String> {
    fleet("lib", "every_state_of_larger_runs_is_safe_and_reaches_the_end", "safe and live")
}

fn fleet_simulations() -> Result<Done, String> {
    fleet("lib", "a_hundred_thousand_runs_with_lost_and_repeated_messages", "100000 runs")
}

/// Runs a test of `fleet` that CI ignores. The result is the lines of its output that contain `words`.
fn fleet(target: &str, test: &str, words: &str) -> Result<Done, String> {
    let targets: &[&str] = if target == "lib" { &["--lib"] } else { &["--test", target] };
    let mut command = crate::cargo::command();
    command.args(["test", "--release", "-p", "lockstep-fleet"]).args(targets);
    let text = printed(command.args(["--", "--ignored", "--nocapture", test]))?;
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(words)).map(str::trim).collect();
    if lines.is_empty() { Err(text) } else { Ok(Done::Passed(lines.join("; "))) }
}

/// Kills learners, workers, `verify` and `fork`. Takes about ten minutes on two cores.
fn kills() -> Result<Done, String> {
    program(&["two_hundred_kills_change_no_bit"], &[" 200 kills:"])
}

/// Compares the memory plan with the peak memory of a one-minute run.
fn memory_plan() -> Result<Done, String> {
    program(&["the_peak_of_a_whole_model_with_kept_activations_is_within_2_percent_of_the_plan"], &["planned"])
}

/// Stops runs in every way, and runs them on consoles that cannot be written to. Takes about five minutes on two cores.
fn terminals() -> Result<Done, String> {
    program(
        &[
            "terminals::a_closing_terminal_stops_every_kind_of_run_with_a_checkpoint",
            "consoles::every_kind_of_run_has_the_same_bits_on_any_console",
            "stopping_workers::every_way_to_stop_a_run_with_workers_leaves_a_checkpoint",
        ],
        &["a terminal closed in", "on closed pipes", "ways to stop"],
    )
}

/// Runs command-line tests that CI ignores. The result is the lines of their output that contain one of `words`.
fn program(tests: &[&str], words: &[&str]) -> Result<Done, String> {
    let mut command = crate::cargo::command();
    // Uses CI's workspace build: building a single package would rebuild it with different features.
    command.args(["test", "--workspace", "--test", "it", "--"]);
    command.args(["--ignored", "--nocapture", "--test-threads=1"]);
    let text = printed(command.args(tests))?;
    let lines = text.lines().map(str::trim).filter(|line| words.iter().any(|words| line.contains(words)));
    let lines: Vec<&str> = lines.collect();
    if lines.len() < tests.len() { Err(text) } else { Ok(Done::Passed(lines.join("; "))) }
}

/// Runs tests. Returns everything that they printed, as the error if one failed.
fn printed(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(text) } else { Err(text) }
}

fn miri() -> Result<Done, String> {
    if !crate::miri::is_there() {
        return Ok(Done::Unavailable("rustup component add --toolchain nightly miri rust-src".to_owned()));
    }
    crate::miri::check().map(|()| Done::Passed("no undefined behaviour in kernels".to_owned()))
}

/// Tests workers over NATS, with a real server, and with network namespaces whose network is cut.
fn network() -> Result<Done, String> {
    let is_there = |program: &str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()))
    };
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|said| said.stdout == b"0\n");
    if !is_root || !is_there("nats-server") || !is_there("ip") {
        return Ok(Done::Unavailable("needs root, and apt-get install nats-server iproute2".to_owned()));
    }
    let tests = ["network_cuts_change_no_bit", "an_unresponsive_stream_is_recreated"];
    program(&tests, &["bytes fetched by", "cuts of", "deaf streams"])
}

/// Checks the verdicts of every kind of run against the values of its steps, and the dtype of the results. Takes two
/// minutes.
fn last_words() -> Result<Done, String> {
    program(&["last_words::", "save_dtype::"], &["runs are judged by", "results have the dtype"])
}

/// Trains under the launchers of ranks that are on the PATH, with `conformance/launchers.sh`. Takes two minutes.
fn launchers() -> Result<Done, String> {
    crate::cargo::run(&["build"], &[])?;
    let text = printed(Command::new("bash").arg("conformance/launchers.sh"))?;
    let items =
        |result: &str| text.lines().filter_map(|line| line.strip_prefix(result)).map(str::trim).collect::<Vec<_>>();
    let mut launched: Vec<&str> =
        items("PASS").iter().filter_map(|item| item.split_once(':')).map(|(name, _)| name).collect();
    launched.dedup();
    let skipped: Vec<&str> =
        items("SKIPPED").iter().filter_map(|item| item.split_once(':')).map(|(name, _)| name).collect();
    let skipped = if skipped.is_empty() { "none".to_owned() } else { skipped.join(", ") };
    Ok(Done::Passed(format!("{}; not installed: {skipped}", launched.join(", "))))
}

/// Kills random ranks of all kinds of runs at random times, and resumes the runs with other numbers of ranks. Takes ten
/// minutes on two cores.
fn rank_kills() -> Result<Done, String> {
    program(&["kills_of_random_ranks_change_no_bit"], &[" kills of ranks in "])
}

/// Retrains the runs that the page's tests open. Takes ten minutes on two cores.
fn page_runs() -> Result<Done, String> {
    crate::page_runs::run().map(Done::Passed)
}

/// Runs the commands of the tutorial and similar pages, which train the demo's model. Takes fifteen minutes.
fn pages() -> Result<Done, String> {
    program(&["pages::"], &["every command prints what the page shows"])
}

/// Runs the full tables of the sandbox's tests. Takes about 15 minutes on two cores.
fn sandbox() -> Result<Done, String> {
    match crate::sandbox::missing() {
        Some(what) => Ok(Done::Unavailable(what)),
        None => crate::sandbox::run().map(Done::Passed),
    }
}

/// Tests every command and the page on runs with damaged files, 200 times each. Takes hours on two cores.
fn strangers_run() -> Result<Done, String> {
    program(&["strangers_run::"], &["the same bits, or"])
}

/// Runs OpenEnv's check of endpoints for training, and episodes of verifiers, against `lockstep serve`. Takes a minute
/// on two cores.
fn agents() -> Result<Done, String> {
    match crate::tinker::missing_agents() {
        Some(what) => Ok(Done::Unavailable(what)),
        None => crate::tinker::agents().map(Done::Passed),
    }
}

/// Runs Tinker's stock client and three recipes of its cookbook against `lockstep serve`: log-probabilities, gradients
/// and adapters against torch, the same adapter from fresh servers, after a kill and through a faulty network, 512 open
/// samples, and clients that misbehave. Takes six minutes on two cores.
fn tinker() -> Result<Done, String> {
    match crate::tinker::missing() {
        Some(what) => Ok(Done::Unavailable(what)),
        None => crate::tinker::run().map(Done::Passed),
    }
}

/// Trains with every trainer and every combination of arguments, and compares the results with TRL's. Takes ten minutes
/// on two cores.
fn trl_matrix() -> Result<Done, String> {
    match crate::trl_suite::missing_python() {
        Some(what) => Ok(Done::Unavailable(what)),
        None => crate::trl_suite::matrix().map(Done::Passed),
    }
}

fn trl_suite() -> Result<Done, String> {
    match crate::trl_suite::missing() {
        Some(what) => Ok(Done::Unavailable(what)),
        None => crate::trl_suite::run().map(Done::Passed),
    }
}

/// Trains ten runs with rewards that can be gamed and ten runs that learn honestly, and compares their verdicts. Takes
/// ten minutes on two cores.
fn verdicts() -> Result<Done, String> {
    match crate::verdicts::missing() {
        Some(what) => Ok(Done::Unavailable(what)),
        None => crate::verdicts::run().map(Done::Passed),
    }
}

/// Tests random mutants. Takes hours on two cores.
fn mutants() -> Result<Done, String> {
    let mut command = crate::cargo::command();
    command.args(crate::cargo::MUTANTS).args(["fresh", "200"]);
    let output = command.stderr(std::process::Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match said.trim().lines().last().filter(|_| output.status.success()) {
        Some(summary) => Ok(Done::Passed(summary.to_owned())),
        None => Err(said),
    }
}

/// Runs the checks in `names`, or all checks if it is empty.
pub fn run(names: &[&str]) -> Result<(), String> {
    if let Some(name) = names.iter().find(|name| CHECKS.iter().all(|check| check.0 != **name)) {
        let known: Vec<&str> = CHECKS.iter().map(|check| check.0).collect();
        return Err(format!("unknown check {name}; available: {}", known.join(", ")));
    }
    let mut failed = Vec::new();
    for (name, check) in CHECKS.iter().filter(|check| names.is_empty() || names.contains(&check.0)) {
        println!("── {name}");
        let start = Instant::now();
        let result = check();
        let seconds = start.elapsed().as_secs_f64();
        let outcome = match result {
            Ok(Done::Unavailable(why)) => {
                println!("── {name} cannot run on this machine: {why}");
                continue;
            }
            Ok(Done::Passed(what)) => format!("passed: {what}"),
            Err(why) => {
                failed.push(*name);
                eprintln!("{why}");
                format!("FAILED: {}", why.lines().next().unwrap_or_default())
            }
        };
        println!("── {name}, {seconds:.0} s, {outcome}");
        let row = [date(), commit(), machine(), format!("{seconds:.0}"), outcome.replace('|', "\\|")];
        let before = fs::read_to_string(RESULTS).unwrap_or_default();
        fs::write(RESULTS, with_row(&before, name, &row.join(" | "))).map_err(|e| format!("{RESULTS}: {e}"))?;
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The table with the row of the check `name` replaced.
fn with_row(table: &str, name: &str, row: &str) -> String {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let mut rows: BTreeMap<&str, &str> = rows.filter(|(name, _)| *name != "check").collect();
    rows.insert(name, row);
    rows.iter().fold(HEAD.to_owned(), |table, (name, row)| format!("{table}| {name} | {row} |\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_row_replaces_the_row_of_the_same_check() {
        let one = with_row("", "miri", "2026-01-01 | a | m | 1 | passed: x");
        let two = with_row(&one, "emulate", "2026-01-02 | b | m | 2 | passed: y");
        let three = with_row(&two, "miri", "2026-01-03 | c | m | 3 | FAILED: z");
        let rows = "| emulate | 2026-01-02 | b | m | 2 | passed: y |\n| miri | 2026-01-03 | c | m | 3 | FAILED: z |\n";
        assert_eq!(three, format!("{HEAD}{rows}"));
    }

    #[test]
    fn an_unknown_check_is_refused() {
        assert!(run(&["emulat"]).unwrap_err().contains("unknown check emulat; available: agents, commands, emulate"));
    }
}
