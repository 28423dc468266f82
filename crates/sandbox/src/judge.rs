//! Runs programs on their tests.
//!
//! A test of a complete program is a standard input with the expected output. The program passes if it exits in time
//! with code 0 and prints the expected output, where white space at the ends of lines is ignored. Expected outputs
//! never enter the sandbox, so a program cannot obtain them there. Unit tests are in `python` and `ocaml`. A source
//! that does not compile passes no test. Up to `workers` programs run in parallel, and each source is compiled once.

use super::language::{Language, LanguageOption, NAMES, named};
use super::ocaml;
use super::options::Options;
use super::place::{directory, write, write_program};
use super::python;
use super::running::{End, Limits};
use super::sandbox::{JOB, Sandbox, TRIAL_TIMEOUT};
use super::source::{StreamTest, Tests, UnitTests, code_of};
use super::staged::Staged;
use super::verdict::Verdict;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod throughput;

/// The maximum number of compiled sources in the cache.
const CACHED: usize = 256;
/// The largest compiled program, in bytes.
const PROGRAM_BYTES: usize = 64 << 20;

/// Judges programs of one language, with one kind of isolation.
pub struct Judge {
    language: Language,
    /// The language whose unit tests this judge can run, if any.
    units: Option<Units>,
    options: Options,
    run_limits: Limits,
    compile_limits: Limits,
    /// The cache: for each source, the program ready to run, or the reason why it cannot run.
    cache: HashMap<String, Arc<Prepared>>,
    /// The cache for OCaml: for each source with its unit tests, the compiled solution and tests.
    built: Mutex<BuiltCache>,
    ocaml: ocaml::Tool,
    sandbox: Sandbox,
}

type BuiltCache = HashMap<(String, UnitTests), Arc<ocaml::Built>>;

/// The languages with unit tests of functions.
#[derive(Clone, Copy, PartialEq)]
enum Units {
    Python,
    Ocaml,
}

/// A source in a separate directory, compiled if its language has a compiler.
enum Prepared {
    Ready(TempDir),
    /// The source does not compile; holds the messages of the compiler.
    Refused(String),
}

/// A text with a program, and the tests of that program.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// The program: the last code block of the language, or the whole text if it has none.
    pub text: &'a str,
    /// The task, whose code a program in Python may continue (as in HumanEval); may be empty.
    pub prompt: &'a str,
    /// The tests.
    pub tests: &'a Tests,
}

/// The reason why no judge was built, or why a program has no verdict. The cause is never the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error(error.to_string())
    }
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Judge {
    /// Builds a judge, and runs a trial program that must pass. If the language or the isolation does not work here,
    /// this is an error, rather than a failure of every program.
    pub fn new(options: Options) -> Result<Judge> {
        let language = match &options.language {
            LanguageOption::Own(language) => language.clone(),
            LanguageOption::Named(name) => named(name).ok_or_else(|| {
                Error(format!("unknown language `{name}`; known: {}, or a table of your own", NAMES.join(", ")))
            })?,
        };
        let plain = Path::new(&language.file).components().count() == 1 && !language.file.contains("..");
        if language.run.is_empty() || !plain {
            return Err(Error(format!("a language needs a `file` name and a `run` command: {language:?}")));
        }
        let seconds = |key: &str, seconds: f64| {
            if seconds.is_finite() && seconds > 0.0 && seconds < 1e6 {
                Ok(Duration::from_secs_f64(seconds))
            } else {
                Err(Error(format!("`{key}` must be a positive number of seconds, not {seconds}")))
            }
        };
        if options.workers == Some(0) || options.memory_mb == 0 || options.processes == 0 {
            return Err(Error("`workers`, `memory_mb` and `processes` must be at least 1".to_owned()));
        }
        let run_limits = Limits {
            wall: seconds("timeout_s", options.timeout_s)?,
            memory_mb: options.memory_mb + language.base_memory_mb,
            resident_mb: options.memory_mb,
            processes: options.processes,
            output: options.output_bytes,
            disk_mb: 64,
            compiles: false,
        };
        let compile_limits = Limits {
            wall: seconds("compile_timeout_s", options.compile_timeout_s)?,
            memory_mb: 4096 + language.base_memory_mb,
            resident_mb: 4096,
            output: PROGRAM_BYTES,
            disk_mb: 256,
            compiles: true,
            ..run_limits
        };
        let programs = [language.run.first(), language.compile.first()];
        let programs: Vec<&str> =
            programs.into_iter().flatten().map(String::as_str).filter(|p| !p.contains('{')).collect();
        let sandbox = options.sandbox(&programs).map_err(Error)?;
        let cache = HashMap::new();
        let units = match &options.language {
            LanguageOption::Named(name) if name == "python" => Some(Units::Python),
            LanguageOption::Named(name) if name == "ocaml" => Some(Units::Ocaml),
            _ => None,
        };
        if options.staged && units != Some(Units::Ocaml) {
            return Err(Error("`staged` is only for language = \"ocaml\"".to_owned()));
        }
        if options.strict.is_some() && units != Some(Units::Ocaml) {
            return Err(Error("`strict` is only for language = \"ocaml\"".to_owned()));
        }
        let (built, ocaml) = (Mutex::default(), ocaml::Tool::default());
        let mut judge = Judge { language, units, built, ocaml, options, run_limits, compile_limits, cache, sandbox };
        // The trial must pass even if the machine is busy when a run starts.
        judge.run_limits.wall = run_limits.wall.max(TRIAL_TIMEOUT);
        judge.compile_limits.wall = compile_limits.wall.max(TRIAL_TIMEOUT);
        judge.try_out().map_err(Error)?;
        (judge.run_limits, judge.compile_limits) = (run_limits, compile_limits);
        Ok(judge)
    }

    /// The column of a row that contains the tests.
    pub fn column(&self) -> &str {
        &self.options.column
    }

    /// Shares a flag that is set once the verdicts are not needed any longer. Running programs are then stopped, and
    /// get no verdict.
    pub fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.sandbox.stop = stop;
    }

    /// Reads the tests of a row in the format of a common dataset. `row` returns the value of a column. `None` if the
    /// row has no readable tests.
    pub fn tests<'a>(&self, row: impl Fn(&str) -> Option<&'a Value>) -> Option<Tests> {
        let text = |name: &str| row(name)?.as_str().map(str::to_owned);
        Tests::read(row(&self.options.column)?, &text, self.units == Some(Units::Python))
    }

    /// Runs each program on its tests, several in parallel, and returns the verdicts in the same order.
    pub fn judge(&mut self, submissions: &[Submission<'_>]) -> Vec<Result<Verdict>> {
        *self.sandbox.peak.get_mut() = 0;
        let sources: Vec<String> = submissions.iter().map(|submission| self.code(submission.text)).collect();
        let whole = sources.iter().zip(submissions).filter(|(_, one)| matches!(one.tests, Tests::Streams(_)));
        let failed = self.make_ready(whole.map(|(source, _)| source));
        self.beside(submissions.len(), |i| match (submissions[i].tests, self.cache.get(&sources[i])) {
            (Tests::Streams(tests), Some(prepared)) => Ok(self.run(prepared, tests)?),
            (Tests::Streams(_), None) => Err(failed[&sources[i]].clone()),
            (Tests::Unit(unit), _) => Ok(self.judge_unit(&submissions[i], &sources[i], unit)?),
            (Tests::Refused(why), _) => Err(Error(why.clone())),
        })
    }

    /// The peak memory, in bytes, of all processes of one program together in the last call of [`Judge::judge`]; 0 if
    /// nothing was measured. Compilers are excluded.
    pub fn peak_bytes(&self) -> u64 {
        self.sandbox.peak.load(Ordering::Relaxed)
    }

    /// A verdict as one number: the staged score if the option `staged` is set, else with `partial` the share of tests
    /// that passed, else 1 if all passed and 0 if not.
    pub fn score(&self, verdict: &Verdict) -> f64 {
        match &verdict.staged {
            Some(staged) => staged.score(),
            None if self.options.partial => verdict.passed as f64 / verdict.of as f64,
            None => f64::from(u8::from(verdict.passed == verdict.of)),
        }
    }

    fn judge_unit(&self, submission: &Submission<'_>, source: &str, unit: &UnitTests) -> std::io::Result<Verdict> {
        match self.units {
            Some(Units::Python) => {
                let (prompt, all) = (self.code(submission.prompt), self.options.partial);
                python::judge(source, &prompt, unit, all, self.run_limits, &self.sandbox)
            }
            Some(Units::Ocaml) => self.judge_ocaml(submission.text, source, unit),
            None => Err(std::io::Error::other(format!(
                "column `{}` has assertions, which run only for \"python\" and \"ocaml\"",
                self.options.column
            ))),
        }
    }

    fn words(&self, words: &[String], program: &str) -> Vec<String> {
        let source = format!("{JOB}/{}", self.language.file);
        words.iter().map(|word| word.replace("{source}", &source).replace("{program}", program)).collect()
    }

    /// Runs a trial program that must pass. A language that does not work in this isolation is refused, since every
    /// completion would score 0. For a user-defined language, only checks that its commands start.
    fn try_out(&self) -> std::result::Result<(), String> {
        let what = match &self.options.language {
            LanguageOption::Named(name) => format!("`{name}`"),
            LanguageOption::Own(language) => format!("the language with file `{}`", language.file),
        };
        let by = self.sandbox.name();
        let refuse = |why: String| format!("{what} does not work here (isolation: {by}): {why}");
        let Some(probe) = self.language.probe else {
            return self.starts().map_err(|error| refuse(error.to_string()))?.map_or(Ok(()), |why| Err(refuse(why)));
        };
        let test = StreamTest { input: "4\n".to_owned(), output: "8".into() };
        let verdict = self.prepare(probe).and_then(|prepared| self.run(&prepared, &[test]));
        match verdict.map_err(|error| refuse(error.to_string()))? {
            verdict if verdict.passed == 1 => Ok(()),
            verdict => Err(refuse(format!("a test program that doubles a number failed with \"{}\"", verdict.failure))),
        }
    }

    /// Explains why the first command of a language cannot be started. `None` if the command starts, even if it then
    /// fails on the empty source.
    fn starts(&self) -> std::io::Result<Option<String>> {
        let directory = directory()?;
        write(directory.path(), &self.language.file, b"")?;
        let (words, limits) = if self.language.compile.is_empty() {
            (&self.language.run, self.run_limits)
        } else {
            (&self.language.compile, self.compile_limits)
        };
        let script = [r#"cp /job/* /tmp/ 2>/dev/null; "$@""#, "sh"];
        let mut all: Vec<String> = ["/bin/sh", "-c"].iter().chain(&script).map(|word| (*word).to_owned()).collect();
        all.extend(self.words(words, "/tmp/program"));
        let outcome = self.sandbox.run(directory.path(), &all, b"", Limits { wall: TRIAL_TIMEOUT, ..limits })?;
        let fails = match outcome.end {
            End::Exit(126 | 127) | End::TooMuchMemory(_) | End::TooManyProcesses(_) => true,
            End::Exit(_) | End::TimedOut | End::TooMuchOutput | End::Stopped => false,
        };
        Ok(fails.then(|| outcome.words()))
    }

    /// Writes and compiles a source. The compiled program is returned through standard output, since the sandbox cannot
    /// write to the machine's file system.
    fn prepare(&self, source: &str) -> std::io::Result<Prepared> {
        let directory = directory()?;
        write(directory.path(), &self.language.file, source.as_bytes())?;
        if self.language.compile.is_empty() {
            return Ok(Prepared::Ready(directory));
        }
        // The source is copied to /tmp, because compilers write next to it.
        let script = format!(r#"cp {JOB}/* /tmp/ && "$@" >&2 && cat /tmp/program"#);
        let mut words: Vec<String> = ["/bin/sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
        words.extend(self.words(&self.language.compile, "/tmp/program"));
        let outcome = self.sandbox.run(directory.path(), &words, b"", self.compile_limits)?;
        match outcome.end {
            End::Exit(0) => {
                write_program(&directory.path().join("program"), &outcome.stdout)?;
                Ok(Prepared::Ready(directory))
            }
            End::Stopped => Err(std::io::Error::other("its score is not needed any more")),
            _ => {
                self.sandbox.still_works(&outcome)?;
                Ok(Prepared::Refused(format!("not compiled: {}", outcome.words())))
            }
        }
    }

    /// Runs the tests of a whole program; stops at the first failure unless `partial` needs all results.
    fn run(&self, prepared: &Prepared, tests: &[StreamTest]) -> std::io::Result<Verdict> {
        let mut verdict = Verdict { passed: 0, of: tests.len(), ..Verdict::default() };
        let directory = match prepared {
            Prepared::Ready(directory) => directory.path(),
            Prepared::Refused(message) => {
                verdict.failure.clone_from(message);
                return Ok(verdict);
            }
        };
        let words = self.words(&self.language.run, &format!("{JOB}/program"));
        for (i, test) in tests.iter().enumerate() {
            let outcome = self.sandbox.run(directory, &words, test.input.as_bytes(), self.run_limits)?;
            let failure = match outcome.end {
                End::Exit(0) if test.output.is(&outcome.stdout) => {
                    verdict.passed += 1;
                    continue;
                }
                End::Exit(0) => "wrong output".to_owned(),
                End::Stopped => return Err(std::io::Error::other("its score is not needed any more")),
                _ => {
                    self.sandbox.still_works(&outcome)?;
                    outcome.words()
                }
            };
            verdict.timed_out |= outcome.end == End::TimedOut;
            if verdict.failure.is_empty() {
                verdict.failure = format!("test {}: {failure}", i + 1);
            }
            if !self.options.partial {
                break;
            }
        }
        Ok(verdict)
    }

    fn code(&self, text: &str) -> String {
        code_of(text, &self.language.fences)
    }

    /// Prepares each distinct source that is run as a whole program, once. Returns the errors of those that could not
    /// be prepared.
    fn make_ready<'a>(&mut self, sources: impl Iterator<Item = &'a String>) -> HashMap<String, Error> {
        let mut wanted: Vec<&String> = sources.collect();
        wanted.sort();
        wanted.dedup();
        if self.cache.len() + wanted.len() > CACHED {
            self.cache.clear();
        }
        wanted.retain(|source| !self.cache.contains_key(*source));
        let prepared = self.beside(wanted.len(), |i| self.prepare(wanted[i]));
        let mut failed = HashMap::new();
        for (source, prepared) in wanted.into_iter().zip(prepared) {
            match prepared {
                Ok(prepared) => drop(self.cache.insert(source.clone(), Arc::new(prepared))),
                Err(error) => drop(failed.insert(source.clone(), Error::from(error))),
            }
        }
        failed
    }

    fn judge_ocaml(&self, completion: &str, source: &str, unit: &UnitTests) -> std::io::Result<Verdict> {
        let key = (source.to_owned(), unit.clone());
        let cache = || self.built.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let known = cache().get(&key).cloned();
        let built = match known {
            Some(built) => built,
            None => {
                let strict = self.options.strict.unwrap_or(true);
                let how = ocaml::How { count_errors: self.options.staged, strict };
                let built = Arc::new(ocaml::build(source, unit, how, &self.ocaml, self.compile_limits, &self.sandbox)?);
                let mut cache = cache();
                if cache.len() >= CACHED {
                    cache.clear();
                }
                cache.insert(key, built.clone());
                built
            }
        };
        let (mut verdict, staged) = match &*built {
            ocaml::Built::Not { why, words } => {
                let failure = why.to_string() + words;
                let verdict = Verdict { of: unit.tests.len(), failure, ..Verdict::default() };
                (verdict, Staged::not_built(*why))
            }
            ocaml::Built::Programs { solution, judge, of, warnings, weak } => {
                let mut verdict = ocaml::run(solution.path(), judge.path(), *of, self.run_limits, &self.sandbox)?;
                if *weak {
                    let words = "weaker guarantee: the solution redefines names of the standard library";
                    verdict.failure = format!("{} ({words})", verdict.failure).trim_start().to_owned();
                }
                let staged = Staged::tested(verdict.passed, *of, *warnings, source);
                (verdict, staged)
            }
        };
        if self.options.staged {
            let staged = staged.of(completion, source);
            if let Some(why) = staged.degenerate {
                verdict.failure = format!("{} (degenerate: {why})", verdict.failure).trim_start().to_owned();
            }
            verdict.staged = Some(staged);
        }
        Ok(verdict)
    }

    /// Computes `work(0)`, `work(1)`, … on several threads; returns the results in order.
    fn beside<T: Send>(&self, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let workers = self.options.workers.unwrap_or_else(cores).min(count);
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(count));
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= count {
                            break;
                        }
                        let result = work(i);
                        done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((i, result));
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        done.sort_by_key(|(i, _)| *i);
        done.into_iter().map(|(_, result)| result).collect()
    }
}
