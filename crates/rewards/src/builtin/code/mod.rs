//! `code`: a reward that runs the program in a completion, isolated, on the tests of its dataset row.
//!
//! A test of a whole program is a standard input with the expected output. The program passes it by exiting with code 0
//! in time and printing the expected output; white space at the ends of lines is ignored. Expected outputs never enter
//! the sandbox, so a program cannot read or patch its way to a result. Unit tests are in `python` and `ocaml`, the
//! formats of tests in `source`. The score is 1 if every test passes, or with `partial` the share of tests that pass. A
//! program that does not compile scores 0. Up to `workers` programs run in parallel; each source is compiled once.
//!
//! Without isolation no program is run: the reward then fails to build.

mod cgroup;
mod confined;
mod group;
mod language;
mod memory;
mod ocaml;
mod options;
mod output;
mod place;
mod python;
mod running;
mod sandbox;
mod seccomp;
mod source;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod throughput;
mod user;

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::language::{Language, LanguageOption, NAMES, named};
pub(crate) use self::options::CodeOptions;
use self::place::directory;
use self::running::{End, Limits};
use self::sandbox::{JOB, Outcome, Sandbox};
use self::source::{StreamTest, Tests, UnitTests, code_of, tests_of};
use serde_json::Value;
use tempfile::TempDir;

use super::Builtin;
use crate::{Content, Error, Problem, Result, Reward, RewardBatch, Scores};

/// How many compiled sources are cached.
const CACHED: usize = 256;
/// The shortest time limit for the trial program of a language, which must pass.
const PATIENCE: Duration = Duration::from_secs(20);
/// The largest compiled program, in bytes.
const PROGRAM_BYTES: usize = 64 << 20;

/// The `code` reward; the header of `code/mod.rs` describes it.
pub(crate) struct Code {
    name: String,
    language: Language,
    /// The language whose unit tests this reward can run, if any.
    units: Option<Units>,
    options: CodeOptions,
    run_limits: Limits,
    compile_limits: Limits,
    /// The cache: source → the program ready to run, or why it cannot run.
    cache: HashMap<String, Arc<Prepared>>,
    /// The cache for OCaml: source and unit tests → the compiled solution and tests.
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

/// A source in a directory of its own, compiled if its language has a compiler.
enum Prepared {
    Ready(TempDir),
    /// The source does not compile; holds the messages of the compiler.
    Refused(String),
}

/// The result of running a program on its tests.
#[derive(Debug, Default, PartialEq)]
struct Verdict {
    passed: usize,
    of: usize,
    /// Why the first failed test failed; empty if none failed.
    failure: String,
    /// Whether the program exceeded its time limit.
    timed_out: bool,
    /// OCaml's staged score, if the option `staged` is set.
    staged: Option<ocaml::Staged>,
}

impl Builtin for Code {
    const KIND: &'static str = "code";
    const MAIN_OPTION: Option<&'static str> = Some("language");
    type Options = CodeOptions;

    fn build(name: String, options: CodeOptions) -> Result<Self> {
        let refuse = |message: String| Error::options("code", message);
        let language = match &options.language {
            LanguageOption::Own(language) => language.clone(),
            LanguageOption::Named(name) => named(name).ok_or_else(|| {
                refuse(format!("unknown language `{name}`; known: {}, or a table of your own", NAMES.join(", ")))
            })?,
        };
        let plain = Path::new(&language.file).components().count() == 1 && !language.file.contains("..");
        if language.run.is_empty() || !plain {
            return Err(refuse(format!("a language needs a `file` name and a `run` command: {language:?}")));
        }
        let seconds = |key: &str, seconds: f64| match seconds.is_finite() && seconds > 0.0 && seconds < 1e6 {
            true => Ok(Duration::from_secs_f64(seconds)),
            false => Err(refuse(format!("`{key}` must be a positive number of seconds, not {seconds}"))),
        };
        if options.workers == Some(0) || options.memory_mb == 0 || options.processes == 0 {
            return Err(refuse("`workers`, `memory_mb` and `processes` must be at least 1".to_owned()));
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
        let sandbox = options.sandbox(&programs).map_err(refuse)?;
        let cache = HashMap::new();
        let units = match &options.language {
            LanguageOption::Named(name) if name == "python" => Some(Units::Python),
            LanguageOption::Named(name) if name == "ocaml" => Some(Units::Ocaml),
            _ => None,
        };
        if options.staged && units != Some(Units::Ocaml) {
            return Err(refuse("`staged` is of language = \"ocaml\" alone".to_owned()));
        }
        if options.strict.is_some() && units != Some(Units::Ocaml) {
            return Err(refuse("`strict` is of language = \"ocaml\" alone".to_owned()));
        }
        let (built, ocaml) = (Mutex::default(), ocaml::Tool::default());
        let mut code =
            Code { name, language, units, built, ocaml, options, run_limits, compile_limits, cache, sandbox };
        // However busy the machine is when a run starts.
        code.run_limits.wall = run_limits.wall.max(PATIENCE);
        code.compile_limits.wall = compile_limits.wall.max(3 * PATIENCE);
        code.try_out().map_err(refuse)?;
        (code.run_limits, code.compile_limits) = (run_limits, compile_limits);
        Ok(code)
    }
}

/// Describes the isolation that a reward with these options uses; `None` if there is none.
pub(crate) fn isolation(options: CodeOptions) -> Option<String> {
    Some(options.sandbox(&[]).ok()?.name())
}

/// A random string that a program cannot guess.
fn nonce() -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// Writes a file that the sandbox's user can read and execute.
fn write(directory: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let path = directory.join(name);
    std::fs::write(&path, bytes)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
}

/// Writes a program that the sandbox's user can start. A child writes it: a file that a process has open for writing
/// cannot be started, and a process that this one starts meanwhile, for another completion, would have it open until
/// its own program runs.
fn write_program(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"]).arg(path).env("PATH", "/usr/bin:/bin");
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(bytes));
    let is_done = child.wait()?.success();
    written?;
    match is_done {
        true => Ok(()),
        false => Err(std::io::Error::other(format!("{} cannot be written", path.display()))),
    }
}

impl Code {
    fn words(&self, words: &[String], program: &str) -> Vec<String> {
        let source = format!("{JOB}/{}", self.language.file);
        words.iter().map(|word| word.replace("{source}", &source).replace("{program}", program)).collect()
    }

    /// Runs a trial program that must pass. A language that does not work in this isolation is refused, since every
    /// completion would score 0. For a language of the user, checks only that its commands start.
    fn try_out(&self) -> std::result::Result<(), String> {
        let what = match &self.options.language {
            LanguageOption::Named(name) => format!("`{name}`"),
            LanguageOption::Own(language) => format!("the language of `{}`", language.file),
        };
        let by = self.sandbox.name();
        let refuse = |why: String| format!("{what} does not work here (isolation: {by}): {why}");
        let Some(probe) = self.language.probe else {
            return self.starts().map_err(|error| refuse(error.to_string()))?.map_or(Ok(()), |why| Err(refuse(why)));
        };
        let test = StreamTest { input: "4\n".to_owned(), output: "8".into() };
        let verdict = self.prepare(probe).and_then(|prepared| self.judge(&prepared, &[test]));
        match verdict.map_err(|error| refuse(error.to_string()))? {
            verdict if verdict.passed == 1 => Ok(()),
            verdict => Err(refuse(format!("a program that doubles a number fails with \"{}\"", verdict.failure))),
        }
    }

    /// Explains why the first command of a language cannot be started; `None` if it starts, whatever it then does with
    /// an empty source.
    fn starts(&self) -> std::io::Result<Option<String>> {
        let directory = directory()?;
        write(directory.path(), &self.language.file, b"")?;
        let (words, limits) = match self.language.compile.is_empty() {
            true => (&self.language.run, self.run_limits),
            false => (&self.language.compile, self.compile_limits),
        };
        let script = [r#"cp /job/* /tmp/ 2>/dev/null; "$@""#, "sh"];
        let mut all: Vec<String> = ["/bin/sh", "-c"].iter().chain(&script).map(|word| (*word).to_owned()).collect();
        all.extend(self.words(words, "/tmp/program"));
        let outcome = self.sandbox.run(directory.path(), &all, b"", Limits { wall: PATIENCE / 4, ..limits })?;
        let fails = match outcome.end {
            End::Exit(126 | 127) | End::TooMuchMemory(_) | End::TooManyProcesses(_) => true,
            End::Exit(_) | End::TimedOut | End::TooMuchOutput | End::Stopped => false,
        };
        Ok(fails.then(|| words_of(&outcome)))
    }

    /// Writes and compiles a source. The compiled program comes back on standard output, since nothing in the sandbox
    /// can write to the machine's file system.
    fn prepare(&self, source: &str) -> std::io::Result<Prepared> {
        let directory = directory()?;
        write(directory.path(), &self.language.file, source.as_bytes())?;
        if self.language.compile.is_empty() {
            return Ok(Prepared::Ready(directory));
        }
        // Compilers write beside the source.
        let script = format!(r#"cp {JOB}/* /tmp/ && "$@" >&2 && cat /tmp/program"#);
        let mut words: Vec<String> = ["/bin/sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
        words.extend(self.words(&self.language.compile, "/tmp/program"));
        let outcome = self.sandbox.run(directory.path(), &words, b"", self.compile_limits)?;
        match outcome.end {
            End::Exit(0) => {
                write_program(&directory.path().join("program"), &outcome.stdout)?;
                Ok(Prepared::Ready(directory))
            }
            End::Stopped => Err(std::io::Error::other("nobody waits for its score any more")),
            _ => {
                self.sandbox.still_works(&outcome)?;
                Ok(Prepared::Refused(format!("not compiled: {}", words_of(&outcome))))
            }
        }
    }

    /// Runs the tests of a program; stops at the first failure unless `partial` needs all results.
    fn judge(&self, prepared: &Prepared, tests: &[StreamTest]) -> std::io::Result<Verdict> {
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
                End::Exit(0) => "another output".to_owned(),
                End::Stopped => return Err(std::io::Error::other("nobody waits for its score any more")),
                _ => {
                    self.sandbox.still_works(&outcome)?;
                    words_of(&outcome)
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
}

/// Describes to the user how a program failed.
fn words_of(outcome: &Outcome) -> String {
    let last = outcome.stderr.trim().lines().next_back().unwrap_or_default();
    match &outcome.end {
        End::Exit(code) if last.is_empty() => format!("exit code {code}"),
        End::Exit(code) => format!("exit code {code}: {last}"),
        End::TimedOut => "timed out".to_owned(),
        End::TooMuchOutput => "too much output".to_owned(),
        End::TooMuchMemory(most) => format!("used more than {most} MiB of memory"),
        End::TooManyProcesses(most) => format!("more than {most} processes and threads"),
        End::Stopped => "stopped".to_owned(),
    }
}

impl Reward for Code {
    fn name(&self) -> &str {
        &self.name
    }

    fn required_columns(&self) -> Vec<String> {
        vec![self.options.column.clone()]
    }

    fn scores_by_group(&self) -> bool {
        true
    }

    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.sandbox.stop = stop;
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let cells = match batch.column(&self.name, &self.options.column) {
            Ok(cells) => cells,
            Err(problem) => return Scores::failed(batch.len(), problem),
        };
        *self.sandbox.peak.get_mut() = 0;
        let tests: Vec<Option<Tests>> = {
            let python = self.units == Some(Units::Python);
            cells.iter().enumerate().map(|(i, cell)| tests_of(cell, batch, i, python)).collect()
        };
        let sources: Vec<String> = batch.completions.iter().map(|completion| self.code(completion)).collect();
        let whole = |tests: &Option<Tests>| matches!(tests, Some(Tests::Streams(_)));
        let mut failed =
            self.make_ready(sources.iter().zip(&tests).filter(|(_, tests)| whole(tests)).map(|(source, _)| source));
        let verdicts = self.beside(batch.len(), |i| match tests[i].as_ref()? {
            Tests::Streams(tests) => Some(self.judge(self.cache.get(&sources[i])?, tests)),
            Tests::Refused(why) => Some(Err(std::io::Error::other(why.clone()))),
            Tests::Unit(unit) => Some(match self.units {
                Some(Units::Python) => {
                    let prompt = self.code(&batch.prompts[i]);
                    let (all, limits) = (self.options.partial, self.run_limits);
                    python::judge(&sources[i], &prompt, unit, all, limits, &self.sandbox)
                }
                Some(Units::Ocaml) => self.judge_ocaml(&batch.completions[i].text(), &sources[i], unit),
                None => Err(std::io::Error::other(format!(
                    "column `{}` has assertions, which are run for \"python\" and \"ocaml\" alone",
                    self.options.column
                ))),
            }),
        });
        let mut scores = Scores::new(Vec::with_capacity(batch.len()));
        let mut failures = Vec::with_capacity(batch.len());
        for verdict in verdicts {
            scores.timed_out += usize::from(matches!(&verdict, Some(Ok(verdict)) if verdict.timed_out));
            let (value, failure) = match verdict {
                Some(Ok(Verdict { staged: Some(staged), failure, .. })) => (Some(staged.score()), failure.into()),
                Some(Ok(v)) if self.options.partial => (Some(v.passed as f64 / v.of as f64), v.failure.into()),
                Some(Ok(v)) => (Some(f64::from(u8::from(v.passed == v.of))), v.failure.into()),
                Some(Err(error)) => {
                    failed.push(error.to_string());
                    (None, Value::Null)
                }
                None => (None, Value::Null),
            };
            scores.values.push(value);
            failures.push(failure);
        }
        let untested = tests.iter().filter(|tests| tests.is_none()).count();
        if untested > 0 {
            let message = format!(
                "column `{}` has no tests such as [{{\"input\": \"1\", \"output\": \"2\"}}], [\"assert f(1) == 2\"], \
                 or a `check(candidate)` beside a column `entry_point`",
                self.options.column
            );
            scores.problems.push(Problem::new(&self.name, untested, message));
        }
        if let Some(error) = failed.first() {
            let rows = scores.values.iter().filter(|value| value.is_none()).count() - untested;
            let message = format!("a program could not be judged: {error}");
            scores.problems.push(Problem::new(&self.name, rows, message));
        }
        let peak = self.sandbox.peak.swap(0, Ordering::Relaxed);
        if peak > 0 {
            scores.metrics.push(("peak_memory_mb".to_owned(), peak as f64 / f64::from(1 << 20)));
        }
        scores.extra.push(("failure".to_owned(), failures));
        scores
    }
}

impl Code {
    fn code(&self, text: &Content) -> String {
        code_of(&text.text(), &self.language.fences)
    }

    /// Prepares each distinct source that is run as a whole program, once. Returns the errors that prevented some.
    fn make_ready<'a>(&mut self, sources: impl Iterator<Item = &'a String>) -> Vec<String> {
        let mut wanted: Vec<&String> = sources.collect();
        wanted.sort();
        wanted.dedup();
        if self.cache.len() + wanted.len() > CACHED {
            self.cache.clear();
        }
        wanted.retain(|source| !self.cache.contains_key(*source));
        let prepared = self.beside(wanted.len(), |i| self.prepare(wanted[i]));
        let mut failed = Vec::new();
        for (source, prepared) in wanted.into_iter().zip(prepared) {
            match prepared {
                Ok(prepared) => drop(self.cache.insert(source.clone(), Arc::new(prepared))),
                Err(error) => failed.push(error.to_string()),
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
                (verdict, ocaml::Staged::not_built(*why))
            }
            ocaml::Built::Programs { solution, judge, of, warnings, weak } => {
                let mut verdict = ocaml::run(solution.path(), judge.path(), *of, self.run_limits, &self.sandbox)?;
                if *weak {
                    let words = "weaker guarantee: names of the standard library are the solution's";
                    verdict.failure = format!("{} ({words})", verdict.failure).trim_start().to_owned();
                }
                let staged = ocaml::Staged::tested(verdict.passed, *of, *warnings, source);
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
