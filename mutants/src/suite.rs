//! The tests of the copied tree: which of them reach which mutant, and whether a test notices it.

use super::list::Mutant;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// When a test counts as hanging: the least time, and the multiple of its time without a mutant.
const PATIENCE: (Duration, u32) = (Duration::from_secs(90), 8);
/// The most time that a test may take without a mutant.
const ENDLESS: Duration = Duration::from_secs(900);
/// Number of test binaries that run in parallel.
const WORKERS: usize = 3;
/// Size of the first batch of tests, the quickest ones; each next batch is twice as large.
const FIRST: usize = 8;
/// In a quick run, tests that take longer than this are left out.
const QUICK: Duration = Duration::from_secs(6);

/// Number of stages, in which tests run in this order: first tests of the mutant's module (or of the nearest parent
/// module with tests); second, unit tests of its crate; third, integration tests and tests of other crates and of the
/// program; last, golden runs and tests on the emulated GPU.
pub const STAGES: usize = 4;

/// The result of running tests against a mutant.
pub enum Outcome {
    /// A test failed; holds its crate and name, or what else ended.
    Killed(String),
    /// No test failed: how many tests evaluated the mutant, and how many more would but were left out.
    Survived(usize, usize),
}

/// Which tests are left out.
#[derive(Clone, Copy, Default)]
pub struct Limits {
    /// Leave out slow tests.
    pub quick: bool,
    /// Leave out the remaining tests of other crates after this time.
    pub time: Option<Duration>,
}

pub struct Binary {
    /// The crate, and for integration tests the target: `lockstep-train`, `lockstep-cli it`.
    pub name: String,
    pub path: PathBuf,
    /// The working directory in which cargo would run the tests.
    pub directory: PathBuf,
}

#[derive(Clone)]
struct Test {
    binary: usize,
    name: String,
}

/// All tests, and what is known about them.
pub struct Suite {
    binaries: Vec<Binary>,
    tests: Vec<Test>,
    /// For each test, by [`Suite::key`], its time and the mutants it reaches, from a run by itself without a mutant;
    /// null for a test that fails in such a run.
    known: Mutex<Map<String, Value>>,
    /// The file that stores `known`.
    file: PathBuf,
}

impl Suite {
    pub fn new(binaries: Vec<Binary>, file: PathBuf) -> Result<Suite, String> {
        let mut tests = Vec::new();
        for (at, binary) in binaries.iter().enumerate() {
            let listed = binary.command(&["--list", "--format", "terse"]).output().map_err(|e| e.to_string())?;
            let names = listed.stdout.lines().map_while(Result::ok);
            tests.extend(
                names.filter_map(|line| Some(Test { binary: at, name: line.strip_suffix(": test")?.to_owned() })),
            );
        }
        let known = serde_json::from_str(&fs::read_to_string(&file).unwrap_or_default()).unwrap_or_default();
        Ok(Suite { binaries, tests, known: Mutex::new(known), file })
    }

    fn key(&self, test: &Test) -> String {
        format!("{} {}", self.binaries[test.binary].name, test.name)
    }

    /// The stage of each test for this mutant. The test `before`, which noticed the mutant last time, runs first.
    fn stages(&self, mutant: &Mutant, before: &str) -> Vec<usize> {
        let module = module(&mutant.file);
        let shared = |test: &Test| {
            let binary = &self.binaries[test.binary];
            let is_unit = is_own(binary, mutant) && !binary.name.contains(' ');
            let common = test.name.split("::").zip(&module).take_while(|(a, b)| a == *b).count();
            if is_unit { common } else { 0 }
        };
        let nearest = self.tests.iter().map(shared).max().unwrap_or(0).max(1);
        let stage = |test: &Test| match &self.binaries[test.binary] {
            _ if self.key(test) == before => 0,
            Binary { name, .. } if name == "lockstep-cli golden" => 3,
            // What the emulator of a GPU runs takes minutes.
            _ if test.name.contains("cuda") && !mutant.file.contains("cuda") => 3,
            Binary { name, .. } if name == "lockstep-cli it" => 2,
            _ if shared(test) == nearest => 0,
            // Integration tests run whole models.
            binary if is_own(binary, mutant) && !binary.name.contains(' ') => 1,
            _ => 2,
        };
        self.tests.iter().map(stage).collect()
    }

    /// Runs each test that `mutants` need at this stage and that is not yet known, by itself and without a mutant, to
    /// measure its time and find the mutants it reaches. Each mutant comes with the test that noticed it before.
    pub fn look_at(&self, mutants: &[(&Mutant, String)], stage: usize) -> Result<(), String> {
        let mut needed: BTreeSet<usize> = BTreeSet::new();
        for (mutant, before) in mutants {
            needed.extend(self.stages(mutant, before).iter().enumerate().filter(|(_, s)| **s == stage).map(|(i, _)| i));
        }
        let known = self.known.lock().map_err(|e| e.to_string())?.clone();
        let needed = needed.into_iter().map(|at| &self.tests[at]);
        let unknown: Vec<&Test> = needed.filter(|test| !known.contains_key(&self.key(test))).collect();
        println!("stage {stage}: {} mutants; {} tests run without a change first", mutants.len(), unknown.len());
        in_parallel(&unknown, |test| {
            let key = self.key(test);
            let reached = self.file.with_file_name(key.replace([' ', ':'], "_"));
            let start = Instant::now();
            let mut command = self.binaries[test.binary].command(&["--exact", &test.name]);
            command.env("MUTANTS_REACHED", &reached);
            let failure = watch(&mut command, BTreeMap::from([(test.name.clone(), ENDLESS)]))?;
            let seconds = start.elapsed().as_secs_f64();
            let text = fs::read_to_string(&reached).unwrap_or_default();
            let _ = fs::remove_file(&reached);
            let ids: BTreeSet<usize> = text.lines().filter_map(|id| id.parse().ok()).collect();
            let entry = match failure {
                Some(failure) => {
                    println!("{key} without any change: {failure}; it is left out");
                    Value::Null
                }
                None => json!({"seconds": seconds, "reaches": ids}),
            };
            let mut known = self.known.lock().map_err(|e| e.to_string())?;
            known.insert(key, entry);
            let text = Value::Object(known.clone()).to_string();
            fs::write(&self.file, text).map_err(|e| format!("{}: {e}", self.file.display()))
        })
    }

    /// The time of a test, and whether it reaches the mutant; `None` if it fails without a change.
    fn time(&self, known: &Map<String, Value>, test: &Test, mutant: &Mutant) -> Option<(Duration, bool)> {
        let entry = known.get(&self.key(test))?;
        let reaches = entry["reaches"].as_array()?.iter().any(|id| id.as_u64() == Some(mutant.id as u64));
        Some((Duration::from_secs_f64(entry["seconds"].as_f64().unwrap_or(0.0)), reaches))
    }

    /// Runs the tests of a stage that reach `mutant` until one notices it, quick ones first. A failure counts only if
    /// it repeats with the mutant and does not occur without it, so that no result is due to chance.
    pub fn outcome(&self, mutant: &Mutant, before: &str, stage: usize, limits: Limits) -> Result<Outcome, String> {
        let start = Instant::now();
        let known = self.known.lock().map_err(|e| e.to_string())?.clone();
        let stages = self.stages(mutant, before);
        let asked = self.tests.iter().zip(&stages).filter(|(_, s)| **s == stage);
        let timed: Vec<(Duration, bool, &Test)> = asked
            .filter_map(|(test, _)| self.time(&known, test, mutant).map(|(time, reaches)| (time, reaches, test)))
            .collect();
        // A process that a test confines cannot note what it reaches: the module's own tests are asked anyway.
        let is_noted = stage > 0 || timed.iter().any(|(_, reaches, _)| *reaches);
        let of_mutant = timed.into_iter().filter(|(_, reaches, _)| *reaches || !is_noted);
        let mut tests: Vec<(Duration, &Test)> = of_mutant.map(|(time, _, test)| (time, test)).collect();
        let all = tests.len();
        tests.retain(|(time, test)| !limits.quick || *time < QUICK || self.key(test) == before);
        tests.sort_by_key(|(time, test)| (self.key(test) != before, *time));
        let (mut begin, mut size) =
            (0, if tests.first().is_some_and(|(_, t)| self.key(t) == before) { 1 } else { FIRST });
        while begin < tests.len() && (stage < 2 || limits.time.is_none_or(|time| start.elapsed() < time)) {
            let end = tests.len().min(begin + size);
            if let Some(by) = self.first_failure(mutant, &tests[begin..end])? {
                return Ok(Outcome::Killed(by));
            }
            (begin, size) = (end, FIRST.max(if stage < 2 { 2 * size } else { size }));
        }
        Ok(Outcome::Survived(begin, all - begin))
    }

    fn first_failure(&self, mutant: &Mutant, tests: &[(Duration, &Test)]) -> Result<Option<String>, String> {
        for (at, binary) in self.binaries.iter().enumerate() {
            let mut asked = tests.to_vec();
            asked.retain(|(_, test)| test.binary == at);
            while let Some(first) = binary.failure(&asked, Some(mutant))? {
                let mut suspects = asked.clone();
                suspects.retain(|(_, test)| first.suspects.is_empty() || first.suspects.contains(&test.name));
                if let Some(again) = binary.failure(&suspects, Some(mutant))?
                    && binary.failure(&suspects, None)?.is_none()
                {
                    return Ok(Some(format!("{} {again}", binary.name)));
                }
                println!("{}: {} {first} by chance, and is not asked", mutant.id, binary.name);
                asked.retain(|(_, test)| suspects.iter().all(|(_, suspect)| suspect.name != test.name));
            }
        }
        Ok(None)
    }
}

fn is_own(binary: &Binary, mutant: &Mutant) -> bool {
    let package = binary.name.trim_start_matches("lockstep-").split(' ').next();
    package == mutant.file.split('/').nth(1)
}

/// The module path of a source file.
fn module(file: &str) -> Vec<&str> {
    let path = file.split_once("/src/").map_or("", |(_, path)| path).trim_end_matches(".rs");
    path.split('/').filter(|name| !matches!(*name, "mod" | "lib" | "main")).collect()
}

/// Calls `f` on all items, several in parallel; returns the first error.
pub fn in_parallel<T: Sync>(items: &[T], f: impl Fn(&T) -> Result<(), String> + Sync) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            f(item)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a panic".to_owned())?)
    })
}

impl Binary {
    /// Runs `tests` and returns the first failure.
    fn failure(&self, tests: &[(Duration, &Test)], mutant: Option<&Mutant>) -> Result<Option<Failure>, String> {
        if tests.is_empty() {
            return Ok(None);
        }
        let mut arguments = vec!["--exact"];
        arguments.extend(tests.iter().map(|(_, test)| test.name.as_str()));
        let mut command = self.command(&arguments);
        if let Some(mutant) = mutant {
            command.env("MUTANT", mutant.id.to_string());
        }
        let limit = |time: &Duration| PATIENCE.0 + PATIENCE.1 * *time;
        watch(&mut command, tests.iter().map(|(time, test)| (test.name.clone(), limit(time))).collect())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments).args(["--test-threads", "2"]).current_dir(&self.directory);
        // Real data beside the repository, which is not beside its copy.
        if let Ok(shared) = Path::new("../shared").canonicalize() {
            command.env("LOCKSTEP_SHARED", shared);
        }
        command.env("CARGO_MANIFEST_DIR", &self.directory).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// A failure while the tests of one binary ran.
struct Failure {
    /// The tests that may have caused it.
    suspects: Vec<String>,
    /// How the binary ended, unless a test simply failed.
    how: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.suspects.as_slice(), &self.how) {
            ([test], None) => write!(f, "{test}"),
            ([test], Some(how)) => write!(f, "{test} ({how})"),
            (tests, how) => write!(f, "({}, one of {} tests)", how.as_deref().unwrap_or("failure"), tests.len()),
        }
    }
}

/// Runs a test binary and returns the first failure among the tests in `left`, each with its time limit. Then kills all
/// processes that the binary started.
fn watch(command: &mut Command, mut left: BTreeMap<String, Duration>) -> Result<Option<Failure>, String> {
    let mut child = command.stdout(Stdio::piped()).process_group(0).spawn().map_err(|e| e.to_string())?;
    let Some(stdout) = child.stdout.take() else { return Err("no output".to_owned()) };
    let (lines, received) = channel();
    std::thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|l| lines.send(l)));
    let mut failed = None;
    let how = loop {
        let longest = left.values().max().copied().unwrap_or(PATIENCE.0);
        match received.recv_timeout(longest) {
            Ok(line) => {
                let Some((name, outcome)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) else {
                    continue;
                };
                let name = name.trim_end_matches(" - should panic");
                left.remove(name);
                if outcome == "FAILED" {
                    failed = Some(name.to_owned());
                    break None;
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some("time-out".to_owned()),
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait().map_err(|e| e.to_string())?;
                if status.success() {
                    return Ok(None);
                }
                break Some(status.to_string());
            }
        }
    };
    end(&mut child);
    Ok(Some(Failure { suspects: failed.map_or_else(|| left.into_keys().collect(), |name| vec![name]), how }))
}

fn end(child: &mut Child) {
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).stderr(Stdio::null()).status();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_of_the_nearest_module_are_asked_first() {
        let binary = |name: &str| Binary { name: name.to_owned(), path: PathBuf::new(), directory: PathBuf::new() };
        let names = ["lockstep-a", "lockstep-a whole", "lockstep-b", "lockstep-cli it", "lockstep-cli golden"];
        let test = |(binary, name): (usize, &str)| Test { binary, name: name.to_owned() };
        let tests =
            [(0, "x::y::t"), (0, "x::t"), (0, "z::t"), (1, "x::y::t"), (2, "x::y::t"), (3, "x::y::t"), (4, "t")];
        let (tests, known) = (tests.map(test).to_vec(), Mutex::default());
        let suite = Suite { binaries: names.map(binary).into(), tests, known, file: PathBuf::new() };
        let stages = |file: &str, before: &str| {
            suite.stages(&Mutant { file: format!("crates/a/src/{file}"), ..Mutant::default() }, before)
        };
        assert_eq!(stages("x/y/mod.rs", ""), [0, 1, 1, 2, 2, 2, 3]);
        assert_eq!(stages("x/w.rs", ""), [0, 0, 1, 2, 2, 2, 3]);
        assert_eq!(stages("lib.rs", ""), [1, 1, 1, 2, 2, 2, 3]);
        assert_eq!(stages("x/y.rs", "lockstep-cli golden t"), [0, 1, 1, 2, 2, 2, 0]);
    }
}
