//! The test binaries of the planted tree: which test reaches which mutant, and whether one notices it.

use super::list::Mutant;
use crate::cargo;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
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

/// A test hangs that has not ended after this, and the multiple of what it took without a change.
const PATIENCE: (Duration, u32) = (Duration::from_secs(90), 8);
/// What no test may take even without a change.
const ENDLESS: Duration = Duration::from_secs(900);
/// Test binaries that run at a time.
const WORKERS: usize = 3;
/// The quickest are asked first, then twice as many, and so on.
const FIRST: usize = 8;
/// Slower tests are not asked in a quick run.
const QUICK: Duration = Duration::from_secs(6);

/// What became of a mutant.
pub enum Outcome {
    /// The crate and its test, or what else ended.
    Killed(String),
    /// So many tests evaluated it, and so many more would, but are slow.
    Survived(usize, usize),
}

struct Binary {
    /// As `lockstep-train` or `lockstep-cli it`.
    name: String,
    path: PathBuf,
    /// Where cargo would run it.
    directory: PathBuf,
}

struct Test {
    binary: usize,
    name: String,
    time: Duration,
    reaches: Vec<usize>,
}

/// All tests, as far as they were needed until now.
pub struct Suite {
    binaries: Vec<Binary>,
    tests: Vec<Test>,
    /// Time and reach of tests that ran, and where they are kept.
    known: Map<String, Value>,
    file: PathBuf,
}

impl Suite {
    /// Builds the tree under `work`: the tests of `crates` (directories), of `lockstep` and of the program.
    pub fn build(work: &Path, crates: &[String]) -> Result<Suite, String> {
        let mut command = cargo::command();
        command.args(["test", "--no-run", "--message-format=json", "-p", "lockstep-cli"]).stderr(Stdio::inherit());
        for name in crates.iter().map(|dir| dir.trim_start_matches("crates/")) {
            command.args(["-p", &if name == "lockstep" { name.to_owned() } else { format!("lockstep-{name}") }]);
        }
        command.current_dir(work.join("tree")).env("CARGO_TARGET_DIR", work.join("target"));
        let output = command.output().map_err(|e| format!("cargo: {e}"))?;
        if !output.status.success() {
            return Err("the planted tree does not build".to_owned());
        }
        let messages = output.stdout.lines().map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok());
        let binaries = messages.filter_map(|message| binary(&message)).collect();
        let file = work.join("reach.json");
        let known = serde_json::from_str(&fs::read_to_string(&file).unwrap_or_default()).unwrap_or_default();
        Ok(Suite { binaries, tests: Vec::new(), known, file })
    }

    /// Runs every test that `mutants` need and that is not known yet by itself, to see how long it takes and what it
    /// reaches: those of their crates, of the run skeleton and of the program.
    pub fn look_at(&mut self, mutants: &[&Mutant]) -> Result<(), String> {
        let needed = |binary: &Binary| is_above(binary) || mutants.iter().any(|mutant| is_own(binary, mutant));
        let mut all = Vec::new();
        for (at, binary) in self.binaries.iter().enumerate().filter(|(_, binary)| needed(binary)) {
            let listed = binary.command(&["--list", "--format", "terse"]).output().map_err(|e| e.to_string())?;
            let names = listed.stdout.lines().map_while(Result::ok);
            all.extend(names.filter_map(|line| Some((at, line.strip_suffix(": test")?.to_owned()))));
        }
        let key = |(at, name): &(usize, String)| format!("{} {name}", self.binaries[*at].name);
        let unknown: Vec<_> = all.iter().filter(|test| !self.known.contains_key(&key(test))).collect();
        let known = Mutex::new(self.known.clone());
        in_parallel(&unknown, |test| {
            let key = key(test);
            let reached = self.file.with_file_name(key.replace([' ', ':'], "_"));
            let start = Instant::now();
            let mut command = self.binaries[test.0].command(&["--exact", &test.1]);
            command.env("MUTANTS_REACHED", &reached);
            let limits = BTreeMap::from([(test.1.clone(), ENDLESS)]);
            if let Some(failure) = watch(&mut command, limits)? {
                println!("{key} without any change: {failure}; it is left out");
                return Ok(());
            }
            let seconds = start.elapsed().as_secs_f64();
            let text = fs::read_to_string(&reached).unwrap_or_default();
            let _ = fs::remove_file(&reached);
            let mut ids: Vec<usize> = text.lines().filter_map(|id| id.parse().ok()).collect();
            ids.sort_unstable();
            ids.dedup();
            println!("{key}: {seconds:.1} s, reaches {}", ids.len());
            let mut known = known.lock().map_err(|e| e.to_string())?;
            known.insert(key, json!({"seconds": seconds, "reaches": ids}));
            let text = Value::Object(known.clone()).to_string();
            fs::write(&self.file, text).map_err(|e| format!("{}: {e}", self.file.display()))
        })?;
        let known = known.into_inner().map_err(|e| e.to_string())?;
        let of = |test: &(usize, String)| {
            let entry = known.get(&key(test))?;
            let ids = entry["reaches"].as_array()?.iter().filter_map(Value::as_u64);
            let time = Duration::from_secs_f64(entry["seconds"].as_f64()?);
            Some(Test { binary: test.0, name: test.1.clone(), time, reaches: ids.map(|id| id as usize).collect() })
        };
        self.tests = all.iter().filter_map(of).collect();
        Ok(())
    }

    /// Runs the tests that reach `mutant` until one notices it: the one that noticed it before, then the quick ones
    /// first. A failure counts when it comes again, and not without the mutant: no result rests on chance.
    pub fn outcome(&self, mutant: &Mutant, before: &str, quick: bool) -> Result<Outcome, String> {
        let asked = |binary: &Binary| is_own(binary, mutant) || is_above(binary);
        let reaches = |test: &&Test| asked(&self.binaries[test.binary]) && test.reaches.contains(&mutant.id);
        let named = |test: &Test| format!("{} {}", self.binaries[test.binary].name, test.name) == before;
        let mut tests: Vec<&Test> = self.tests.iter().filter(reaches).collect();
        let all = tests.len();
        tests.retain(|test| !quick || test.time < QUICK || named(test));
        tests.sort_by_key(|test| (!named(test), test.time));
        let (mut begin, mut size) = (0, if tests.first().is_some_and(|test| named(test)) { 1 } else { FIRST });
        while begin < tests.len() {
            let end = tests.len().min(begin + size);
            if let Some(by) = self.first_failure(mutant, &tests[begin..end])? {
                return Ok(Outcome::Killed(by));
            }
            (begin, size) = (end, FIRST.max(2 * size));
        }
        Ok(Outcome::Survived(tests.len(), all - tests.len()))
    }

    fn first_failure(&self, mutant: &Mutant, tests: &[&Test]) -> Result<Option<String>, String> {
        for (at, binary) in self.binaries.iter().enumerate() {
            let mut asked: Vec<&Test> = tests.iter().copied().filter(|test| test.binary == at).collect();
            while let Some(first) = binary.failure(&asked, Some(mutant))? {
                let mut suspects = asked.clone();
                suspects.retain(|test| first.suspects.is_empty() || first.suspects.contains(&test.name));
                if let Some(again) = binary.failure(&suspects, Some(mutant))?
                    && binary.failure(&suspects, None)?.is_none()
                {
                    return Ok(Some(format!("{} {again}", binary.name)));
                }
                println!("{}: {} {first} by chance, and is not asked", mutant.id, binary.name);
                asked.retain(|test| suspects.iter().all(|suspect| suspect.name != test.name));
            }
        }
        Ok(None)
    }
}

fn is_own(binary: &Binary, mutant: &Mutant) -> bool {
    let package = binary.name.trim_start_matches("lockstep-").split(' ').next();
    package == mutant.file.split('/').nth(1)
}

/// Everything can be reached from the run skeleton and the program.
fn is_above(binary: &Binary) -> bool {
    binary.name == "lockstep" || binary.name.starts_with("lockstep-cli ")
}

/// `f` of all items, some at a time; the first error.
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

/// The test binary that a message of cargo's is of.
fn binary(message: &Value) -> Option<Binary> {
    let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = match directory.file_name()?.to_str()? {
        "lockstep" => "lockstep".to_owned(),
        name => format!("lockstep-{name}"),
    };
    let target = message["target"]["name"].as_str()?;
    let name = match message["target"]["kind"][0].as_str()? {
        "test" => format!("{package} {target}"),
        "lib" => package,
        _ => return None,
    };
    Some(Binary { name, path: path.into(), directory })
}

impl Binary {
    /// The first failure among `tests`.
    fn failure(&self, tests: &[&Test], mutant: Option<&Mutant>) -> Result<Option<Failure>, String> {
        if tests.is_empty() {
            return Ok(None);
        }
        let mut arguments = vec!["--exact"];
        arguments.extend(tests.iter().map(|test| test.name.as_str()));
        let mut command = self.command(&arguments);
        if let Some(mutant) = mutant {
            command.env("MUTANT", mutant.id.to_string());
        }
        watch(&mut command, tests.iter().map(|test| (test.name.clone(), PATIENCE.0 + PATIENCE.1 * test.time)).collect())
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

/// What went wrong with tests of one binary.
struct Failure {
    /// Those that may have to do with it.
    suspects: Vec<String>,
    /// Unless a test just failed.
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

/// The first failure among the tests in `left`, each of which ends within a time; all processes that it started are
/// ended.
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
