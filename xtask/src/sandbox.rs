//! Runs the full tables of the sandbox's tests (CI runs a part of them): correct, wrong and hostile programs, with each
//! kind of isolation, as root and as an ordinary user.

use std::path::Path;
use std::process::Stdio;

/// Names of the tests, which CI ignores because they take long.
const TESTS: [&str; 7] = [
    "all_humaneval_canonical_solutions_pass_and_stubs_do_not",
    "every_reference_solution_of_mbpp_passes",
    "each_solution_of_all_problems_is_scored_by_its_stage",
    "all_ordinary_solutions_in_both_isolations_as_both_users",
    "nothing_is_earned_by_all_attacks",
    "most_tests_of_all_mbpp_run_with_the_full_guarantee",
    "the_complete_tables_in_both_isolations_as_both_users",
];
/// Prefixes of the output lines that report results.
const LANGUAGES: [&str; 2] = ["ocaml, ", "python, "];

/// Requirements of these tests that this machine lacks, if any.
pub fn missing() -> Option<String> {
    let programs = ["bwrap", "ocamlc", "python3", "setpriv"];
    let missing: Vec<_> = programs.iter().filter(|name| !Path::new("/usr/bin").join(name).exists()).collect();
    (!missing.is_empty()).then(|| format!("missing in /usr/bin: {missing:?}"))
}

/// Runs the tests and returns their reported results.
pub fn run() -> Result<String, String> {
    let mut cargo = crate::cargo::command();
    cargo.args(["test", "-p", "lockstep-sandbox", "--lib", "--"]).args(TESTS).args(["--ignored", "--nocapture"]);
    cargo.args(["--test-threads", "1"]).env("CI", "true");
    let output = cargo.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo test: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        println!("{text}");
        return Err(format!("cargo test: {}", output.status));
    }
    let found = found(&text);
    if found.is_empty() { Err(format!("no test reported a result: {text}")) } else { Ok(found.join("; ")) }
}

/// The lines in which the tests report results, without duplicates.
fn found(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for line in text.lines() {
        // The first line of a test follows the test's name.
        let line = line.rsplit_once(" ... ").map_or(line, |(_, rest)| rest);
        if LANGUAGES.iter().any(|language| line.starts_with(language)) && !found.contains(&line) {
            found.push(line);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_are_read_from_the_output_of_tests() {
        let text = "test a::b ... ocaml, landlock: 3 right 1\nocaml, x: 2\npython, y\n\nocaml, x: 2\ntest c ... ok\nok";
        assert_eq!(super::found(text), ["ocaml, landlock: 3 right 1", "ocaml, x: 2", "python, y"]);
    }
}
