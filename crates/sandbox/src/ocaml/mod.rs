//! Runs OCaml unit tests, and reports the last stage that a solution reaches: parsed, typed, compiled with its tests,
//! tested.
//!
//! A solution and its tests are two programs in two sandboxes, connected by two pipes (`Sandbox::run_judged`).
//! `tool.ml`, which links the compiler's own parser and type checker, compiles both. The tests are compiled against the
//! interface that the compiler infers for the solution. Each use of a value of the solution becomes a call to the other
//! process, with the types that the value has at that point (`describe.ml`). `carry.ml` transfers arguments, results,
//! exceptions, functions and in-place changes, and the tests' process checks every byte against those types. So the
//! process that decides a test runs no code of the solution, and no expected value reaches the solution.

use super::place::{directory, write, write_program};
use super::running::{End, Limits};
use super::sandbox::{JOB, Outcome, Sandbox};
use super::source::UnitTests;
use super::staged::NotBuilt;
use super::verdict::Verdict;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;

#[cfg(test)]
mod tests;

/// The source files of the tool: name and contents.
const SOURCES: [(&str, &str); 7] = [
    ("build.sh", include_str!("build.sh")),
    ("carry.ml", include_str!("carry.ml")),
    ("describe.ml", include_str!("describe.ml")),
    ("cut.ml", include_str!("cut.ml")),
    ("tool.ml", include_str!("tool.ml")),
    ("serve.ml", include_str!("serve.ml")),
    ("judge.ml", include_str!("judge.ml")),
];

/// Files as pairs of name and contents.
type Files = Vec<(String, Vec<u8>)>;

/// The compiled tool and runtime, built once per process.
static BUILT: Mutex<Option<Files>> = Mutex::new(None);

/// The directory with the tool's files, written once.
#[derive(Default)]
pub(super) struct Tool(Mutex<Option<Arc<TempDir>>>);

impl Tool {
    /// Copies the tool's files into the directory of a job.
    fn put(&self, job: &Path, limits: Limits, sandbox: &Sandbox) -> std::io::Result<()> {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match &*own {
            Some(place) => place.clone(),
            None => {
                let place = Arc::new(directory()?);
                for (name, bytes) in built(limits, sandbox)? {
                    write_program(&place.path().join(&name), &bytes)?;
                }
                own.insert(place).clone()
            }
        };
        drop(own);
        for file in std::fs::read_dir(place.path())? {
            let file = file?;
            let to = job.join(file.file_name());
            if std::fs::hard_link(file.path(), &to).is_err() {
                write_program(&to, &std::fs::read(file.path())?)?;
            }
        }
        Ok(())
    }
}

/// The exit code of `prlimit` if the program cannot be started. [`NOT_FOUND`] is its code for a missing program.
const NOT_STARTED: i32 = 126;
const NOT_FOUND: i32 = 127;

/// The result of building a solution with its tests.
pub(super) enum Built {
    /// Both programs were built.
    Programs {
        solution: TempDir,
        judge: TempDir,
        /// Number of assertions in the tests.
        of: usize,
        /// Number of compiler warnings about the solution.
        warnings: usize,
        /// Whether the solution can influence the meaning of its tests, because the tests use names that it defines.
        weak: bool,
    },
    /// No program was built; holds the reason and the compiler's messages.
    Not { why: NotBuilt, words: String },
}

/// Settings of the build, besides the solution and its tests.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Whether every ill-typed definition is counted; otherwise checking stops at the first.
    pub count_errors: bool,
    /// Whether to reject tests that compile only because the solution redefines names of the standard library.
    pub strict: bool,
}

/// Builds a solution and its tests. An `Err` is a failure of the machine, not of the solution.
pub(super) fn build(
    solution: &str,
    unit: &UnitTests,
    how: How,
    tool: &Tool,
    limits: Limits,
    sandbox: &Sandbox,
) -> std::io::Result<Built> {
    let job = directory()?;
    tool.put(job.path(), limits, sandbox)?;
    let entry = unit.entry_point.as_deref().unwrap_or_default();
    for (name, text) in [("solution.ml", solution), ("setup", &unit.setup), ("entry", entry)] {
        write(job.path(), name, text.as_bytes())?;
    }
    if unit.check {
        write(job.path(), "check", b"")?;
    }
    for (i, test) in unit.tests.iter().enumerate() {
        write(job.path(), &format!("test{i}"), test.as_bytes())?;
    }
    let count = if how.count_errors { "count" } else { "first" };
    let strict = if how.strict { "strict" } else { "weak" };
    let words = [&format!("{JOB}/tool"), &format!("{JOB}/."), count, strict].map(str::to_owned);
    let outcome = sandbox.run(job.path(), &words, b"", limits)?;
    match outcome.end {
        End::Stopped => return Err(std::io::Error::other("its score is not needed any more")),
        End::Exit(NOT_STARTED | NOT_FOUND) => return Err(std::io::Error::other(outcome.words())),
        _ => {}
    }
    let Some(report) = Report::read(&outcome.stdout).filter(|_| outcome.end == End::Exit(0)) else {
        // The tool always reports its progress, so only the source can have used up the time or memory.
        sandbox.still_works(&outcome)?;
        return Ok(Built::Not { why: NotBuilt::TooMuch, words: outcome.words() });
    };
    let words = report.words;
    let why = match report.status {
        "syntax" => NotBuilt::Syntax,
        "toobig" => NotBuilt::TooMuch,
        "tests" => NotBuilt::Tests,
        "strong" | "weak" => {
            let (solution, judge) = (directory()?, directory()?);
            write(solution.path(), "program", report.program)?;
            write(judge.path(), "judge", report.judge)?;
            let weak = report.status == "weak";
            return Ok(Built::Programs { solution, judge, of: report.of, warnings: report.warnings, weak });
        }
        "uncarried" => {
            return Err(std::io::Error::other(format!(
                "its tests need something that cannot be passed to a solution: {words}"
            )));
        }
        status => match status.strip_prefix("types").and_then(|n| n.parse().ok()) {
            Some(definitions) => NotBuilt::Types(definitions),
            None => return Err(std::io::Error::other(format!("its tests cannot be compiled ({status}): {words}"))),
        },
    };
    Ok(Built::Not { why, words })
}

/// The parsed output of the build tool.
struct Report<'a> {
    status: &'a str,
    warnings: usize,
    of: usize,
    words: String,
    program: &'a [u8],
    judge: &'a [u8],
}

impl<'a> Report<'a> {
    fn read(bytes: &'a [u8]) -> Option<Report<'a>> {
        let line = bytes.iter().position(|&byte| byte == b'\n')?;
        let mut head = std::str::from_utf8(&bytes[..line]).ok()?.split(' ');
        let status = head.next()?;
        let numbers: Vec<usize> = head.map(str::parse).collect::<Result<_, _>>().ok()?;
        let &[warnings, of, words, program, judge] = numbers.as_slice() else { return None };
        let (words, rest) = bytes[line + 1..].split_at_checked(words)?;
        let (program, rest) = rest.split_at_checked(program)?;
        let words = String::from_utf8_lossy(words).into_owned();
        Some(Report { status, warnings, of, words, program, judge: rest.get(..judge)? })
    }
}

/// The tool's files, built in the sandbox at the first call and kept.
fn built(limits: Limits, sandbox: &Sandbox) -> std::io::Result<Files> {
    let mut tool = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(files) = &*tool {
        return Ok(files.clone());
    }
    let job = directory()?;
    for (name, text) in SOURCES {
        write(job.path(), name, text.as_bytes())?;
    }
    let words = ["/bin/sh", &format!("{JOB}/build.sh")].map(str::to_owned);
    // Building the tool may take longer than compiling a solution.
    let limits = Limits { wall: limits.wall.max(std::time::Duration::from_secs(300)), ..limits };
    let outcome = sandbox.run(job.path(), &words, b"", limits)?;
    let files = files_of(&outcome).ok_or_else(|| {
        let words = format!("{}: {}", outcome.words(), outcome.stderr.trim());
        std::io::Error::other(format!(
            "OCaml's judge cannot be built (it needs ocaml-nox, with compiler-libs): {words}"
        ))
    })?;
    *tool = Some(files.clone());
    Ok(files)
}

fn files_of(outcome: &Outcome) -> Option<Files> {
    let end = outcome.stdout.windows(2).position(|two| two == b"\n\n").filter(|_| outcome.end == End::Exit(0))?;
    let mut rest = &outcome.stdout[end + 2..];
    let mut files = Vec::new();
    for line in std::str::from_utf8(&outcome.stdout[..end]).ok()?.lines() {
        let (name, size) = line.split_once(' ')?;
        let (file, after) = rest.split_at_checked(size.parse().ok()?)?;
        files.push((name.to_owned(), file.to_owned()));
        rest = after;
    }
    Some(files)
}

/// Runs the tests of a solution that was built.
pub(super) fn run(
    solution: &Path,
    judge: &Path,
    of: usize,
    limits: Limits,
    sandbox: &Sandbox,
) -> std::io::Result<Verdict> {
    let words = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned);
    // The prints and reads of both programs are kept apart from the pipes that carry calls.
    let solves = format!("exec ocamlrun {JOB}/program 3<&0 4>&1 </dev/null >/dev/null");
    let judges = format!(
        "export OCAMLRUNPARAM=l=32M; exec ocamlrun {JOB}/judge 3<&0 4>&1 5>&2 </dev/null >/dev/null 2>/dev/null"
    );
    let outcome = sandbox.run_judged((solution, &words(&solves)), (judge, &words(&judges)), limits)?;
    if outcome.end == End::Stopped {
        return Err(std::io::Error::other("its score is not needed any more"));
    }
    let text = String::from_utf8_lossy(&outcome.stdout);
    if !text.lines().any(|line| line == "R ") && outcome.end != End::TimedOut {
        sandbox.check(&[]).map_err(std::io::Error::other)?;
        return Err(std::io::Error::other(format!("the judge did not start: {}", text.trim())));
    }
    verdict(&text, of, &outcome).map_err(|why| std::io::Error::other(format!("its tests cannot be run: {why}")))
}

/// The failure of a test that called the solution but did not reach its assertions.
const UNREACHED: &str = "reached no assertion with the solution's answers";

fn passed_or_unreached(result: &Option<String>) -> bool {
    matches!(result.as_deref(), Some("" | UNREACHED))
}

/// Parses the output of the tests' process. An `Err` describes a fault of the tests.
fn verdict(text: &str, of: usize, outcome: &Outcome) -> Result<Verdict, String> {
    let mut results: Vec<Option<String>> = vec![None; of];
    let mut gone = None;
    let mut ended = false;
    for line in text.lines() {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (number, why) = rest.split_once(' ').unwrap_or((rest, ""));
        let result = number.parse().ok().and_then(|number: usize| results.get_mut(number));
        match (kind, result) {
            ("P", Some(result)) => *result = Some(String::new()),
            ("F", Some(result)) => *result = Some(why.to_owned()),
            ("U", Some(result)) => *result = Some(UNREACHED.to_owned()),
            ("B", _) => return Err(rest.to_owned()),
            ("G", _) => gone = Some(rest.to_owned()),
            ("E", _) => ended = true,
            _ => {}
        }
    }
    let passed = results.iter().filter(|result| result.as_deref() == Some("")).count();
    let unreached = results.iter().position(|result| result.as_deref() == Some(UNREACHED));
    if let Some(test) = unreached.filter(|_| ended && results.iter().all(passed_or_unreached)) {
        return Err(format!("test {} {UNREACHED}", test + 1));
    }
    let last_words = outcome.stderr.trim().lines().next_back().unwrap_or_default();
    let end = || match (&outcome.end, &gone) {
        (End::Exit(_), Some(why)) if last_words.is_empty() => why.clone(),
        (End::Exit(_), Some(why)) => format!("{why}: {last_words}"),
        (End::Exit(_), None) => "the tests' process ended too early".to_owned(),
        _ => outcome.words(),
    };
    let timed_out = outcome.end == End::TimedOut;
    let verdict = |passed, failure| Verdict { passed, of, failure, timed_out, staged: None };
    Ok(match results.iter().position(|result| result.as_deref() != Some("")) {
        None if ended && outcome.end == End::Exit(0) => verdict(of, String::new()),
        // All tests passed, but the process did not end.
        None => verdict(of.saturating_sub(1), end()),
        Some(first) => {
            let why = results[first].clone().unwrap_or_else(end);
            verdict(passed, format!("test {}: {why}", first + 1))
        }
    })
}
