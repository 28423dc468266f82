//! Ends every kind of run with workers in every way, and continues it. The promised checkpoint must exist, the final
//! bits must be the same, and no process may wait forever. CI runs a tenth of the table; `cargo xtask nightly
//! fleet_ends` runs all of it.

mod answers;
mod kinds;

use super::distributed::pids;
use super::stopping::{signal, wait_for};
use crate::support::command;
use crate::support::runs::{good, same_but_workers};
use kinds::{KINDS, Kind, Runs};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A way to end a run and to continue it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A signal, sent once or twice, and the program's exit code.
    Signal(&'static str, u32, i32),
    /// SIGHUP for a program whose parent ignores it.
    Nohup,
    /// The terminal is closed: the program gets SIGHUP, and cannot write to the terminal any more.
    Terminal,
    /// The run is complete, and is resumed with more steps. The first steps were taken by one process, or with workers.
    Raised {
        by_workers: bool,
    },
    /// Every process is killed. The run continues from its first checkpoint with a different learning rate.
    ChangedKey,
    /// The learner is killed; with `AllKilled`, every process is killed.
    LearnerKilled,
    AllKilled,
}

const WAYS: [Way; 15] = [
    Way::Signal("INT", 1, 130),
    Way::Signal("TERM", 1, 143),
    Way::Signal("HUP", 1, 129),
    Way::Signal("USR1", 1, 138),
    Way::Signal("INT", 2, 130),
    Way::Signal("TERM", 2, 143),
    Way::Signal("HUP", 2, 129),
    Way::Signal("USR1", 2, 138),
    Way::Nohup,
    Way::Terminal,
    Way::Raised { by_workers: true },
    Way::Raised { by_workers: false },
    Way::ChangedKey,
    Way::LearnerKilled,
    Way::AllKilled,
];

impl Way {
    /// Whether ending the run leaves a checkpoint of the last step. (A second SIGINT or SIGTERM ends everything at
    /// once.)
    fn promises(self) -> bool {
        match self {
            Way::Signal(name, times, _) => times == 1 || ["HUP", "USR1"].contains(&name),
            way => way == Way::Terminal,
        }
    }
}

/// Starts a program with the default action for SIGHUP, which is ignored under `nohup`.
const USUAL: [&str; 2] = ["env", "--default-signal=HUP"];

/// The steps of checkpoints that every run has.
const SAVED: [u64; 3] = [4, 8, 12];

/// A row of the table: a run of one kind, which is then ended.
struct Row<'a> {
    runs: &'a Runs,
    kind: &'a Kind,
    out: String,
}

impl Row<'_> {
    fn root(&self) -> &Path {
        self.runs.root()
    }

    fn run(&self) -> PathBuf {
        self.root().join(&self.out)
    }

    /// The arguments of the run with workers.
    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let mut all = self.runs.arguments(self.kind, &self.out, more);
        all.extend(["--distributed", "--workers", "2"].map(str::to_owned));
        all
    }

    fn slow(&self) -> PathBuf {
        self.root().join(format!("slow-{}", self.out))
    }

    /// Starts the run with the words `before` in front of the program's words, and waits until the first step is
    /// logged. Its rewards are slow until [`Row::hurry`].
    fn begin(&self, before: &[&str]) -> Child {
        fs::write(self.slow(), "").unwrap();
        let all = self.arguments(&[]);
        let program = command(self.root(), &all.iter().map(String::as_str).collect::<Vec<_>>());
        let mut by = Command::new(before[0]);
        by.args(&before[1..]).arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => by.env(name, value),
                None => by.env_remove(name),
            };
        }
        by.env("SLOW", self.slow()).current_dir(self.root());
        let child = by.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(&self.run().join("metrics.jsonl"), true);
        child
    }

    fn hurry(&self) {
        fs::remove_file(self.slow()).unwrap();
    }

    /// Waits until the program and all its processes exit. Returns the exit code, and everything printed on standard
    /// output and standard error.
    fn ended(&self, mut child: Child) -> (Option<i32>, String) {
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let reported = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap());
        let printed = std::thread::spawn(move || std::io::read_to_string(stdout).unwrap());
        let status = testing::wait_for_end("the run ends", &mut child);
        testing::wait_until("every process ends", || pids(&self.run()).is_empty());
        (status.code(), printed.join().unwrap() + &reported.join().unwrap())
    }

    fn checkpoints(&self) -> Vec<u64> {
        let entries = fs::read_dir(self.run().join("checkpoints")).into_iter().flatten().flatten();
        let step = |name: String| name.strip_prefix("step-")?.parse().ok();
        let mut steps: Vec<u64> = entries.filter_map(|entry| step(entry.file_name().into_string().ok()?)).collect();
        steps.sort_unstable();
        steps
    }

    /// Continues the run, and compares it with an uninterrupted run.
    fn go_on(&self, way: Way) {
        let mut all: Vec<&str> = vec!["train", "--resume", &self.out];
        // About half of the rows continue the run in one process, the others with workers.
        if self.out.len().is_multiple_of(2) || way == (Way::Raised { by_workers: false }) {
            all.extend(["--distributed", "--workers", "2"]);
        }
        let from = format!("{}/checkpoints/step-000004", self.out);
        let expected = match way {
            Way::Raised { .. } => {
                all.extend(["--set", "max_steps=12"]);
                self.runs.raised(self.kind)
            }
            Way::ChangedKey => {
                all =
                    vec!["train", "--resume", &from, "--distributed", "--workers", "2", "--set", "learning_rate=0.02"];
                self.runs.changed(self.kind)
            }
            _ => self.runs.whole(self.kind),
        };
        good(self.root(), &all);
        let run = self.run();
        fs::remove_dir_all(run.join("abandoned")).ok();
        for step in self.checkpoints().into_iter().filter(|step| !SAVED.contains(step)) {
            fs::remove_dir_all(run.join(format!("checkpoints/step-{step:06}"))).unwrap();
        }
        same_but_workers(&expected, &run);
    }

    /// Checks that the run has the checkpoint that was reported.
    fn has_promised(&self, reported: Option<&str>) {
        let steps = self.checkpoints();
        let Some(reported) = reported else { return assert!(!steps.is_empty(), "the run has no checkpoint") };
        let step =
            reported.split("stopped as asked after step ").nth(1).unwrap_or_else(|| panic!("no message: {reported}"));
        let step: u64 = step.split(';').next().unwrap().parse().unwrap();
        assert!(step >= 1 && steps.contains(&step), "after step {step} the checkpoints are {steps:?}: {reported}");
    }

    fn try_it(&self, way: Way) {
        match way {
            Way::Signal(name, times, code) => {
                let child = self.begin(&USUAL);
                for time in 0..times {
                    if time > 0 {
                        // Two simultaneous signals of the same kind would be delivered as one.
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    signal(&child, name);
                }
                self.hurry();
                let (status, reported) = self.ended(child);
                assert_eq!(status, Some(code), "{reported}");
                if way.promises() {
                    self.has_promised(Some(&reported));
                }
            }
            Way::Nohup => {
                let child = self.begin(&["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]);
                signal(&child, "HUP");
                self.hurry();
                let (status, reported) = self.ended(child);
                assert_eq!(status, Some(0), "{reported}");
                return same_but_workers(&self.runs.whole(self.kind), &self.run());
            }
            Way::Terminal => {
                let mut child = self.begin(&[&USUAL[..], &["python3", "-c", TERMINAL]].concat());
                // The process that owns the terminal closes it.
                child.stdin.take().unwrap().write_all(b"close\n").unwrap();
                self.hurry();
                let (_, code) = self.ended(child);
                assert_eq!(code, "129\n");
                self.has_promised(None);
            }
            Way::Raised { by_workers } => {
                let short = ["max_steps=4"];
                let all =
                    if by_workers { self.arguments(&short) } else { self.runs.arguments(self.kind, &self.out, &short) };
                good(self.root(), &all.iter().map(String::as_str).collect::<Vec<_>>());
            }
            Way::ChangedKey => {
                let mut child = self.begin(&USUAL);
                self.hurry();
                wait_for(&self.run().join("checkpoints/step-000004"), false);
                self.kill_all(&mut child);
                self.ended(child);
            }
            Way::LearnerKilled => {
                let child = self.begin(&USUAL);
                kill(fleet::status::read(&self.run()).unwrap().learner.unwrap().pid);
                self.hurry();
                let (status, reported) = self.ended(child);
                assert_eq!(status, Some(0), "{reported}");
                assert!(reported.contains("started again"), "{reported}");
                return same_but_workers(&self.runs.whole(self.kind), &self.run());
            }
            Way::AllKilled => {
                let mut child = self.begin(&USUAL);
                self.kill_all(&mut child);
                self.hurry();
                self.ended(child);
            }
        }
        self.go_on(way);
    }

    fn kill_all(&self, supervisor: &mut Child) {
        supervisor.kill().unwrap();
        pids(&self.run()).into_iter().for_each(kill);
    }
}

fn kill(pid: u32) {
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
}

/// A script that runs a program in a new terminal. On request it closes the terminal, and prints the exit code of the
/// program.
const TERMINAL: &str = "
import os, pty, sys, threading
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
closes = threading.Event()
def read():
    while not closes.is_set():
        os.read(terminal, 4096)
threading.Thread(target=read, daemon=True).start()
sys.stdin.readline()
closes.set()
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
";

/// All rows of the table, in order.
fn rows() -> impl Iterator<Item = (&'static Kind, Way)> {
    KINDS.iter().flat_map(|kind| WAYS.into_iter().map(move |way| (kind, way)))
}

/// Runs these rows, three at a time, since they mostly wait. Panics with the rows that failed.
fn try_all(rows: Vec<(&'static Kind, Way)>) {
    let has_terminal = testing::program("python3").is_some();
    let runs = Runs::new();
    let (next, failed) = (std::sync::Mutex::new(rows.iter().enumerate()), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let row = next.lock().unwrap().next();
                    let Some((number, (kind, way))) = row else { return };
                    if *way == Way::Terminal && !has_terminal {
                        continue;
                    }
                    let row = Row { runs: &runs, kind, out: format!("out-{number}") };
                    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| row.try_it(*way)));
                    println!("{}, {way:?}: {}", kind.name, if tried.is_ok() { "right" } else { "WRONG" });
                    if let Err(why) = tried {
                        let why = why.downcast_ref::<String>().cloned().unwrap_or_default();
                        failed.lock().unwrap().push(format!("{}, {way:?}: {why}", kind.name));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{} ends of {} runs", rows.len() - failed.len(), rows.len());
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), rows.len(), failed.join("\n"));
}

/// The rows that CI runs: each has a different way to end, and every kind of run has a row.
#[test]
fn some_ended_runs_keep_their_checkpoint_and_continue() {
    try_all(rows().step_by(11).collect());
}

#[test]
#[ignore = "minutes: cargo xtask nightly fleet_ends"]
fn all_ended_runs_keep_their_checkpoint_and_continue() {
    try_all(rows().collect());
}
