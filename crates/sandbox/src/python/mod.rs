//! Runs Python unit tests: assertions that call functions of a completion's program.
//!
//! There are two sandboxes, one for the program (`program.py`) and one for its tests (`judge.py`). They are connected
//! only by two pipes (`port.py`), through which the tests call the program's functions. Plain values are copied
//! (`values.py`). For any other object the tests get a mirror, which forwards each use to the program (`mirrors.py`).
//! So the sandbox that decides an assertion holds no code, file, process or memory of the program, and expected values
//! never reach the program. Each call carries a fresh number, and each verdict the nonce of this test run.

use super::place::{directory, write};
use super::running::{End, Limits};
use super::sandbox::{JOB, Outcome, Sandbox};
use super::source::UnitTests;
use super::verdict::Verdict;
use serde::Deserialize;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The Python files that both sandboxes run before their own file.
const BOTH: [&str; 3] = [include_str!("values.py"), include_str!("port.py"), include_str!("mirrors.py")];
const PROGRAM: [&str; 1] = [include_str!("program.py")];
const JUDGE: [&str; 6] = [
    include_str!("around.py"),
    include_str!("deciding.py"),
    include_str!("reading.py"),
    include_str!("pytest.py"),
    include_str!("judge.py"),
    include_str!("running.py"),
];

/// A script that compiles the Python source on standard input to bytecode. Compiling takes as long as a short test, so
/// the result is kept.
const COMPILE: &str = "import sys, marshal, importlib.util as u
code = compile(sys.stdin.buffer.read(), sys.argv[1], 'exec')
sys.stdout.buffer.write(u.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))";
const COMPILE_LIMITS: Limits = Limits {
    wall: Duration::from_secs(60),
    memory_mb: 512,
    resident_mb: 512,
    processes: 8,
    output: 1 << 22,
    disk_mb: 1,
    compiles: false,
};
/// The message of `port.py` if the program ends before it answers.
const ENDED: &str = "the program ended";
/// The bytecode of `program.py` and `judge.py`, compiled by the sandbox's interpreter at the first use.
static COMPILED: Mutex<Option<Arc<[Vec<u8>; 2]>>> = Mutex::new(None);

/// A message from the sandbox of the tests, about one test or all.
#[derive(Deserialize)]
enum Word {
    #[serde(rename = "failure")]
    Test(Option<String>),
    /// The test evaluated no assertion on an answer of the program, and is ignored.
    #[serde(rename = "undecided")]
    Undecided(()),
    /// The test called the program, and reached none of its assertions because of the program's answers.
    #[serde(rename = "unreached")]
    Unreached(()),
    /// The tests themselves cannot be run, for this reason.
    #[serde(rename = "broken")]
    Broken(String),
}

/// Runs the tests of `source`, the program of the completion. `prompt` is code that the completion may continue.
pub(super) fn judge(
    source: &str,
    prompt: &str,
    unit: &UnitTests,
    all: bool,
    limits: Limits,
    sandbox: &Sandbox,
) -> std::io::Result<Verdict> {
    let (program, judge) = (directory()?, directory()?);
    let (prompt, constants) = if unit.check { (prompt, "") } else { ("", prompt) };
    let compiled = compiled(sandbox)?;
    let sources = [("main.py", source), ("prompt.py", prompt), ("setup.py", &unit.setup)];
    for (name, text) in
        sources.map(|(name, text)| (name, text.as_bytes())).iter().chain([&("program.pyc", &*compiled[0])])
    {
        write(program.path(), name, text)?;
    }
    let nonce = nonce()?;
    let given = json!({"nonce": nonce, "tests": unit.tests, "entry_point": unit.entry_point, "check": unit.check,
        "prompt": prompt, "constants": constants, "all": all, "setup": unit.setup});
    write(judge.path(), "judge.pyc", &compiled[1])?;
    write(judge.path(), "tests.json", given.to_string().as_bytes())?;
    let python = |more: &[&str], file: &str| -> Vec<String> {
        let words = ["python3", "-I", "-B"].iter().chain(more).map(|word| (*word).to_owned());
        words.chain([format!("{JOB}/{file}")]).collect()
    };
    let (runs, judges) = (python(&[], "program.pyc"), python(&["-S"], "judge.pyc"));
    let outcome = sandbox.run_judged((program.path(), &runs), (judge.path(), &judges), limits)?;
    verdict(sandbox, unit, &nonce, &outcome)
}

/// A random string that a program cannot guess.
pub(crate) fn nonce() -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// The bytecode of both sandboxes' scripts.
fn compiled(sandbox: &Sandbox) -> std::io::Result<Arc<[Vec<u8>; 2]>> {
    let mut cache = COMPILED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(compiled) = &*cache {
        return Ok(compiled.clone());
    }
    let nothing = directory()?;
    let compile = |name: &str, own: &[&str]| {
        let source = BOTH.iter().chain(own).copied().collect::<Vec<_>>().join("\n");
        let words = ["python3", "-I", "-B", "-S", "-c", COMPILE, name].map(str::to_owned);
        let outcome = sandbox.run(nothing.path(), &words, source.as_bytes(), COMPILE_LIMITS)?;
        match outcome.end {
            End::Exit(0) => Ok(outcome.stdout),
            _ => {
                sandbox.still_works(&outcome)?;
                Err(std::io::Error::other(format!("python3 cannot compile {name}: {}", outcome.words())))
            }
        }
    };
    let compiled = Arc::new([compile("program.py", &PROGRAM)?, compile("judge.py", &JUDGE)?]);
    *cache = Some(compiled.clone());
    Ok(compiled)
}

fn verdict(sandbox: &Sandbox, unit: &UnitTests, nonce: &str, outcome: &Outcome) -> std::io::Result<Verdict> {
    let of = if unit.check { 1 } else { unit.tests.len() };
    let mut verdict = Verdict { of, timed_out: outcome.end == End::TimedOut, ..Verdict::default() };
    let text = String::from_utf8_lossy(&outcome.stdout);
    let (mut judged, mut unreached, tests) = (0, None, of);
    for line in text.lines().filter_map(|line| line.strip_prefix(nonce)) {
        judged += 1;
        match serde_json::from_str(line).map_err(std::io::Error::other)? {
            Word::Test(None) => verdict.passed += 1,
            Word::Test(Some(why)) if verdict.failure.is_empty() => {
                // The tests' process does not know that the program exceeded its memory limit.
                let is_limit = why == ENDED && matches!(outcome.end, End::TooMuchMemory(_));
                let why = if is_limit { outcome.words() } else { why };
                verdict.failure = format!("test {judged}: {why}");
            }
            Word::Test(Some(_)) => {}
            Word::Undecided(()) => verdict.of -= 1,
            Word::Unreached(()) => unreached = unreached.or(Some(judged)),
            Word::Broken(why) => return Err(std::io::Error::other(format!("its tests cannot be run: {why}"))),
        }
    }
    if outcome.end == End::Stopped {
        return Err(std::io::Error::other("its score is not needed any more"));
    }
    if judged == 0 || outcome.end != End::Exit(0) && judged < tests && verdict.failure.is_empty() {
        // If a sandbox did not start, the program has not failed.
        if text.contains("bwrap:") || outcome.stderr.contains("bwrap:") {
            sandbox.check(&[]).map_err(std::io::Error::other)?;
        }
        verdict.failure = match outcome.end {
            End::Exit(_) => return Err(std::io::Error::other(format!("the judge failed: {}", text.trim()))),
            _ => format!("test {}: {}", judged + 1, outcome.words()),
        };
    }
    match unreached {
        // Even a correct program may get this result, so it is not a failure.
        Some(test) if verdict.failure.is_empty() => Err(std::io::Error::other(format!(
            "its tests cannot be run: test {test} reached no assertion with the program's answers"
        ))),
        _ => Ok(verdict),
    }
}

#[cfg(test)]
mod tests;
