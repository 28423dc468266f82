//! Faults other than kills: hanging processes, damaged files, and a second learner in the same directory.

use super::distributed::{distributed, end, pids, start};
use crate::support::lockstep;
use crate::support::runs::{arguments, directory, good, same_but_workers};
use fleet::exchange::spool::Layout;
use fleet::status;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// A slow reward program, so that a run takes a second or two.
const SLOW: &str = r#"reward_funcs=[{ kind = "command", command = "sh slow.sh", by_group = true }]"#;

fn slow_directory() -> tempfile::TempDir {
    let dir = directory();
    let script = "while read -r line; do sleep 0.03; echo '{\"rewards\": [1, 0.5]}'; done\n";
    std::fs::write(dir.path().join("slow.sh"), script).unwrap();
    dir
}

pub fn signal(pid: u32, name: &str) {
    let sent = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "process {pid} no longer exists");
}

/// Waits until `look` returns a value, while the process runs.
#[track_caller]
fn wait<T>(child: &mut Child, mut look: impl FnMut() -> Option<T>) -> T {
    testing::wait_for("the event occurs while the run is active", || {
        let found = look();
        assert!(found.is_some() || child.try_wait().unwrap().is_none(), "the run ended before the event");
        found
    })
}

pub fn learner_of(run: &Path) -> Option<u32> {
    let status = status::read(run).ok()?;
    status.learner.filter(|_| status.learner_alive).map(|learner| learner.pid)
}

/// The PID of a worker of the run that is processing a job.
fn busy_worker(run: &Path) -> Option<u32> {
    let workers = status::read(run).ok()?.workers;
    let busy = |worker: &status::WorkerLine| worker.status.as_ref().is_some_and(|status| !status.jobs.is_empty());
    workers.iter().filter(|worker| busy(worker)).find_map(|worker| worker.alive)
}

#[test]
fn a_stalled_worker_is_killed_only_after_the_limit() {
    let dir = slow_directory();
    let root = dir.path();
    let limits = ["heartbeat_stale_after_s=3", "heartbeat_stale_after_s=600"];
    let set = |limit| [SLOW, "max_staleness=2", "max_steps=24", limit];
    good(root, &arguments("train", "one", &set(limits[0])));
    for (out, limit, is_killed) in [("long", limits[0], true), ("short", limits[1], false)] {
        let (run, set) = (root.join(out), set(limit));
        let mut child = start(root, &distributed(out, "2", &set));
        let worker = wait(&mut child, || busy_worker(&run));
        signal(worker, "STOP");
        if is_killed {
            wait(&mut child, || (!pids(&run).contains(&worker)).then_some(()));
        } else {
            std::thread::sleep(Duration::from_millis(150));
            signal(worker, "CONT");
        }
        let output = end(child);
        assert_eq!(output.contains("made no progress"), is_killed, "{output}");
        same_but_workers(&root.join("one"), &run);
    }
}

/// A result with corrupted bits on disk is refused, and its group is regenerated.
#[test]
fn a_damaged_result_is_regenerated() {
    let dir = slow_directory();
    let root = dir.path();
    let set = [SLOW, "max_staleness=1"];
    good(root, &arguments("train", "one", &set));
    let run = root.join("out");
    let mut child = start(root, &distributed("out", "1", &set));
    let learner = wait(&mut child, || learner_of(&run).filter(|_| busy_worker(&run).is_some()));
    let name = fleet::WorkerName::new("dev1").unwrap();
    let results = Layout::in_run(&run).complete(&name);
    let is_result = |path: &PathBuf| path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'));
    // If the learner was stopped after it had read every result, it is resumed and stopped again.
    let result = wait(&mut child, || {
        signal(learner, "STOP");
        for _ in 0..50 {
            let entries = std::fs::read_dir(&results).ok()?;
            if let Some(result) = entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_result) {
                return Some(result);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        signal(learner, "CONT");
        None
    });
    let mut bytes = std::fs::read(&result).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&result, bytes).unwrap();
    signal(learner, "CONT");
    let output = end(child);
    let counts = status::read(&run).unwrap().learner.unwrap().counts;
    assert!(counts.corrupt >= 1, "{counts:?}\n{output}");
    same_but_workers(&root.join("one"), &run);
}

#[test]
fn a_second_learner_and_workers_with_other_inputs_are_refused() {
    let dir = slow_directory();
    let root = dir.path();
    let set = [SLOW, "max_steps=4", "save_steps=4"];
    let mut arguments = arguments("train", "out", &set);
    arguments[0] = "learner";
    let (run, mut child) = (root.join("out"), start(root, &arguments));
    wait(&mut child, || learner_of(&run));
    let second = lockstep(root, &["learner", "--resume", "out"]);
    assert!(second.code == Some(2) && second.err.contains("process"), "{:?} {}", second.code, second.err);
    let refuse = |file: &Path, from: &str, to: &str, words: &[&str]| {
        let own = std::fs::read_to_string(file).unwrap();
        assert!(own.contains(from), "{} does not contain {from}", file.display());
        std::fs::write(file, own.replacen(from, to, 1)).unwrap();
        let output = lockstep(root, &["worker", "--join", "out", "--name", "other"]);
        assert!(
            output.code == Some(2) && words.iter().all(|word| output.err.contains(word)),
            "{:?} {}",
            output.code,
            output.err
        );
        std::fs::write(file, own).unwrap();
    };
    let model = root.join("model");
    let tokenizer = model.join("tokenizer.json");
    refuse(&tokenizer, "{", "{ ", &["other cannot work for this run", "tokenizer.json", "at the learner"]);
    refuse(&model.join("config.json"), "10000.0", "20000.0", &["config.json", "at the learner"]);
    let config = run.join("config.toml");
    refuse(&config, "temperature = 1.0", "temperature = 0.5", &["the configuration's keys", "at the learner"]);
    good(root, &["worker", "--join", "out", "--name", "dev1"]);
    end(child);
}
