//! Unit tests of Python: assertions about calls of a program's functions.
//!
//! Two sandboxes, one for the program (`program.py`) and one for its tests (`judge.py`). They share two pipes
//! (`port.py`) and nothing else: the tests call the program's functions, values travel (`values.py`), and of what is no
//! value the other side has a mirror that asks for whatever it is asked (`mirrors.py`). Where an assertion is decided
//! there is no code, file, process or memory of the program; what is expected is never where the program is. Each call
//! has a fresh number, each verdict the run's nonce. Knows no score.

use super::sandbox::{End, JOB, Limits, Outcome, Sandbox};
use super::source::UnitTests;
use super::{Verdict, directory, words_of, write};
use serde::Deserialize;
use serde_json::json;

/// What both sides run, and then each.
const BOTH: [&str; 3] = [include_str!("values.py"), include_str!("port.py"), include_str!("mirrors.py")];
const PROGRAM: [&str; 1] = [include_str!("program.py")];
const JUDGE: [&str; 3] = [include_str!("reading.py"), include_str!("pytest.py"), include_str!("judge.py")];

/// What the judge says of a test, or of all.
#[derive(Deserialize)]
enum Word {
    #[serde(rename = "failure")]
    Test(Option<String>),
    /// The tests themselves cannot be run.
    #[serde(rename = "broken")]
    Broken(String),
}

/// Judges `source`, the completion's program. `prompt` is code that a completion may go on with.
pub(super) fn judge(
    source: &str,
    prompt: &str,
    unit: &UnitTests,
    all: bool,
    limits: Limits,
    sandbox: &Sandbox,
) -> std::io::Result<Verdict> {
    let (program, judge) = (directory()?, directory()?);
    let prompt = if unit.check { prompt } else { "" };
    for (name, text) in [
        ("program.py", joined(&PROGRAM).as_str()),
        ("main.py", source),
        ("prompt.py", prompt),
        ("setup.py", &unit.setup),
    ] {
        write(program.path(), name, text.as_bytes())?;
    }
    let nonce = super::nonce()?;
    let given = json!({"nonce": nonce, "tests": unit.tests, "entry_point": unit.entry_point, "check": unit.check,
        "prompt": prompt, "all": all, "setup": unit.setup});
    write(judge.path(), "judge.py", joined(&JUDGE).as_bytes())?;
    write(judge.path(), "tests.json", given.to_string().as_bytes())?;
    let python = |more: &[&str], file: &str| -> Vec<String> {
        let words = ["python3", "-I", "-B"].iter().chain(more).map(|word| (*word).to_owned());
        words.chain([format!("{JOB}/{file}")]).collect()
    };
    let (runs, judges) = (python(&[], "program.py"), python(&["-S"], "judge.py"));
    let outcome = sandbox.run_judged((program.path(), &runs), (judge.path(), &judges), limits)?;
    verdict(sandbox, unit, &nonce, &outcome)
}

fn joined(own: &[&str]) -> String {
    BOTH.iter().chain(own).copied().collect::<Vec<_>>().join("\n")
}

fn verdict(sandbox: &Sandbox, unit: &UnitTests, nonce: &str, outcome: &Outcome) -> std::io::Result<Verdict> {
    let of = if unit.check { 1 } else { unit.tests.len() };
    let mut verdict = Verdict { of, timed_out: outcome.end == End::TimedOut, ..Verdict::default() };
    let text = String::from_utf8_lossy(&outcome.stdout);
    let mut judged = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix(nonce)) {
        judged += 1;
        match serde_json::from_str(line).map_err(std::io::Error::other)? {
            Word::Test(None) => verdict.passed += 1,
            Word::Test(Some(why)) if verdict.failure.is_empty() => verdict.failure = format!("test {judged}: {why}"),
            Word::Test(Some(_)) => {}
            Word::Broken(why) => return Err(std::io::Error::other(format!("its tests cannot be run: {why}"))),
        }
    }
    if outcome.end == End::Stopped {
        return Err(std::io::Error::other("nobody waits for its score any more"));
    }
    if judged == 0 || outcome.end != End::Exit(0) && judged < of && verdict.failure.is_empty() {
        // A sandbox that did not start is no failure of the program.
        if text.contains("bwrap:") || outcome.stderr.contains("bwrap:") {
            sandbox.check(&[]).map_err(std::io::Error::other)?;
        }
        verdict.failure = match outcome.end {
            End::Exit(_) => return Err(std::io::Error::other(format!("the judge failed: {}", text.trim()))),
            _ => format!("test {}: {}", judged + 1, words_of(outcome)),
        };
    }
    Ok(verdict)
}

#[cfg(test)]
mod tests;
