//! The test binaries of the planted tree: which test reaches which mutant, and whether one notices it.

use super::list::Mutant;
use crate::cargo;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A test that hangs is killed after this, and the multiple of what it took without a change.
const PATIENCE: (Duration, u32) = (Duration::from_secs(60), 10);
/// Test binaries that run at a time.
const WORKERS: usize = 4;
/// The quickest are asked first.
const FIRST: usize = 8;

/// What became of a mutant.
pub enum Outcome {
    /// The crate and its test, or what else ended.
    Killed(String),
    /// So many tests evaluated it.
    Survived(usize),
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
    /// reaches: those of their crates, and of the program.
    pub fn look_at(&mut self, mutants: &[&Mutant]) -> Result<(), String> {
        let needed = |binary: &Binary| is_program(binary) || mutants.iter().any(|mutant| is_own(binary, mutant));
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
            if let Some(failed) = watch(&mut command, Duration::from_secs(600))? {
                println!("{key} fails without any change, and is left out: {failed}");
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

    /// Runs the tests that reach `mutant` until one notices it: of its own crate first, then of the program, the quick
    /// ones first.
    pub fn outcome(&self, mutant: &Mutant) -> Result<Outcome, String> {
        let mut count = 0;
        for own in [true, false] {
            let part = |binary: &Binary| if own { is_own(binary, mutant) } else { is_program(binary) };
            let reaches = |test: &&Test| part(&self.binaries[test.binary]) && test.reaches.contains(&mutant.id);
            let mut reaching: Vec<&Test> = self.tests.iter().filter(reaches).collect();
            reaching.sort_by_key(|test| test.time);
            count += reaching.len();
            let (first, rest) = reaching.split_at(reaching.len().min(FIRST));
            for tests in [first, rest] {
                if let Some(by) = self.first_failure(mutant, tests)? {
                    return Ok(Outcome::Killed(by));
                }
            }
        }
        Ok(Outcome::Survived(count))
    }

    fn first_failure(&self, mutant: &Mutant, tests: &[&Test]) -> Result<Option<String>, String> {
        for (at, binary) in self.binaries.iter().enumerate() {
            let chosen: Vec<&&Test> = tests.iter().filter(|test| test.binary == at).collect();
            if chosen.is_empty() {
                continue;
            }
            let mut arguments = vec!["--exact"];
            arguments.extend(chosen.iter().map(|test| test.name.as_str()));
            let mut command = binary.command(&arguments);
            command.env("MUTANT", mutant.id.to_string());
            let limit = PATIENCE.0 + PATIENCE.1 * chosen.iter().map(|test| test.time).sum::<Duration>();
            if let Some(by) = watch(&mut command, limit)? {
                return Ok(Some(format!("{} {by}", binary.name)));
            }
        }
        Ok(None)
    }
}

fn is_own(binary: &Binary, mutant: &Mutant) -> bool {
    let package = binary.name.trim_start_matches("lockstep-").split(' ').next();
    package == mutant.file.split('/').nth(1)
}

fn is_program(binary: &Binary) -> bool {
    binary.name.starts_with("lockstep-cli ")
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

/// The first test that fails, or what else went wrong with the binary; all processes that it started are ended.
fn watch(command: &mut Command, limit: Duration) -> Result<Option<String>, String> {
    let mut child = command.stdout(Stdio::piped()).process_group(0).spawn().map_err(|e| e.to_string())?;
    let Some(stdout) = child.stdout.take() else { return Err("no output".to_owned()) };
    let (lines, received) = channel();
    std::thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|l| lines.send(l)));
    let deadline = Instant::now() + limit;
    let outcome = loop {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(name) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
                    break Some(name.to_owned());
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some("(time-out)".to_owned()),
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait().map_err(|e| e.to_string())?;
                break (!status.success()).then(|| format!("({status})"));
            }
        }
    };
    end(&mut child);
    Ok(outcome)
}

fn end(child: &mut Child) {
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).stderr(Stdio::null()).status();
    let _ = child.wait();
}
