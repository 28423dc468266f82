//! Learner and workers in different containers: separate PID namespaces, a shared run directory and a shared directory
//! of weights. The same PID names different processes in each container. The tests need permission to create
//! namespaces, and are skipped otherwise.

use super::distributed::{distributed, end, pids};
use crate::support::runs::{arguments, directory, good, listing_names, same_but_workers};
use crate::support::{command, lockstep};
use fleet::exchange::spool::Layout;
use fleet::{WorkerName, status};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const UNSHARE: [&str; 5] = ["--pid", "--fork", "--kill-child", "--mount", "--mount-proc"];

fn namespaces() -> Option<()> {
    let made = Command::new("unshare").args(UNSHARE).arg("true").stderr(Stdio::null()).status();
    made.is_ok_and(|status| status.success())
        .then_some(())
        .or_else(|| testing::skip("no permission to create a PID namespace"))
}

/// A container with two processes: the program, and one that counts in the file `beats`. Dropping this value ends both.
struct Container(Child);

impl Container {
    /// In this container, PID 2 is the counting process.
    fn start(root: &Path, name: &str, arguments: &[&str]) -> Container {
        Container::of(root, name, arguments, "$BEAT & $PROGRAM & wait $!")
    }

    /// In this container, PID 2 is the program.
    fn start_first(root: &Path, name: &str, arguments: &[&str]) -> Container {
        Container::of(root, name, arguments, "$PROGRAM & program=$!; $BEAT & wait $program")
    }

    fn of(root: &Path, name: &str, arguments: &[&str], script: &str) -> Container {
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let beat = format!(
            "(i=0; while :; do i=$((i + 1)); echo $i > {name}.beats.new; mv {name}.beats.new {name}.beats; sleep 0.05; \
             done)"
        );
        let program = format!("'{}' {} 2> {name}.said", env!("CARGO_BIN_EXE_lockstep"), words.join(" "));
        let script = script.replace("$BEAT", &beat).replace("$PROGRAM", &program);
        let mut unshare = Command::new("unshare");
        for (name, _) in command(root, &[]).get_envs().filter(|(_, value)| value.is_none()) {
            unshare.env_remove(name);
        }
        unshare.env("HF_HUB_OFFLINE", "1").args(UNSHARE).args(["sh", "-c", &script]).current_dir(root);
        Container(unshare.stdout(Stdio::null()).spawn().unwrap())
    }

    fn end(mut self, root: &Path, name: &str) {
        let output = || fs::read_to_string(root.join(format!("{name}.said"))).unwrap_or_default();
        let status = testing::wait_for_end(name, &mut self.0);
        assert!(status.success(), "{name}: {}", output());
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn beats(root: &Path, name: &str) -> u64 {
    fs::read_to_string(root.join(format!("{name}.beats"))).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Waits until the process with PID 2 in the container has made progress, which proves that it is alive.
fn assert_alive(root: &Path, name: &str) {
    let before = beats(root, name);
    testing::wait_until(&format!("process 2 of {name} makes progress"), || beats(root, name) > before);
}

/// The host PID of the process whose command line contains these words.
fn number_outside(words: &[&str]) -> Option<u32> {
    fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse::<u32>().ok()?;
        let line = fs::read(process.path().join("cmdline")).ok()?;
        let given: Vec<&str> =
            line.split(|&byte| byte == 0).map(|word| std::str::from_utf8(word).unwrap_or("")).collect();
        (given.first() == Some(&env!("CARGO_BIN_EXE_lockstep")) && words.iter().all(|word| given.contains(word)))
            .then_some(pid)
    })
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

fn slots(weights: &Path) -> Vec<String> {
    listing_names(weights).into_iter().filter(|name| name.ends_with(".slot")).collect()
}

fn learner<'a>(out: &'a str, weights: &'a str, set: &[&'a str]) -> Vec<&'a str> {
    let mut all = arguments("train", out, set);
    all[0] = "learner";
    [&all[..], &["--weights-dir", weights]].concat()
}

#[test]
fn a_stalled_worker_in_another_container_is_not_killed() {
    let Some(()) = namespaces() else { return };
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("slow.sh"), "while read -r line; do sleep 0.1; echo '{\"rewards\": [1, 0.5]}'; done\n")
        .unwrap();
    fs::create_dir(root.join("weights")).unwrap();
    let reward = r#"reward_funcs=[{ kind = "command", command = "sh slow.sh", by_group = true }]"#;
    let set = [reward, "max_staleness=1", "heartbeat_stale_after_s=1"];
    good(root, &arguments("train", "one", &set));
    let at_home = Container::start(root, "home", &learner("out", "weights", &set));
    let away = Container::start_first(root, "away", &["worker", "--join", "out", "--name", "w1", "--threads", "1"]);
    let run = root.join("out");
    let busy = Layout::in_run(&run).processing(&WorkerName::new("w1").unwrap());
    testing::wait_until("the worker has a job", || fs::read_dir(&busy).is_ok_and(|mut jobs| jobs.next().is_some()));
    let lock = fs::read_to_string(Layout::in_run(&run).alive(&WorkerName::new("w1").unwrap())).unwrap();
    assert!(lock.starts_with("2 1\n"), "the lock must hold the PID inside the container: {lock}");
    let worker = number_outside(&["worker", "w1"]).expect("it works");
    signal(worker, "STOP");
    let output = || fs::read_to_string(root.join("home.said")).unwrap_or_default();
    testing::wait_until("the learner reports the stalled worker", || output().contains("worker w1 is stalled"));
    // Waits for three times the limit.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_alive(root, "home");
    assert_alive(root, "away");
    assert!(pids(&run).len() == 2, "learner and worker must be alive: {}", output());
    assert_eq!(output().matches("is stalled").count(), 1, "the stall must be reported once: {}", output());
    assert!(output().contains("in another container") && !output().contains("was killed: "), "{}", output());
    signal(worker, "CONT");
    away.end(root, "away");
    at_home.end(root, "home");
    assert_eq!(status::read(&run).unwrap().learner.unwrap().counts.killed, 0);
    same_but_workers(&root.join("one"), &run);
}

#[test]
fn weights_of_a_live_run_in_another_container_are_not_deleted() {
    let Some(()) = namespaces() else { return };
    let dir = directory();
    let root = dir.path();
    let weights = root.join("weights");
    fs::create_dir(&weights).unwrap();
    let set = ["max_staleness=2"];
    good(root, &arguments("train", "one", &set));
    let first = Container::start(root, "first", &learner("out", "weights", &set));
    testing::wait_until("the weights are there", || {
        root.join("out/fleet/learner.json").exists() && slots(&weights).len() >= 3
    });
    let before = slots(&weights);
    // Two other runs that use the same directory and end: one here, and one in a third container.
    let more =
        |out: &'static str| [&distributed(out, "1", &["max_steps=3"])[..], &["--weights-dir", "weights"]].concat();
    good(root, &more("second"));
    Container::start(root, "third", &more("third")).end(root, "third");
    assert_eq!(slots(&weights), before, "only the weights of the live run must remain");
    // A worker that joins now still finds the weights of the first run.
    good(root, &["worker", "--join", "out", "--name", "late", "--threads", "1"]);
    first.end(root, "first");
    same_but_workers(&root.join("one"), &root.join("out"));
    assert!(slots(&weights).is_empty(), "{:?}", listing_names(&weights));
    // The next run deletes everything that a killed container left behind.
    let killed = Container::start(root, "killed", &learner("killed", "weights", &set));
    testing::wait_until("the weights are there", || slots(&weights).len() >= 3);
    drop(killed);
    testing::wait_until("the learner of the killed container is gone", || pids(&root.join("killed")).is_empty());
    assert!(slots(&weights).len() >= 3);
    good(root, &more("fourth"));
    assert!(listing_names(&weights).is_empty(), "{:?}", listing_names(&weights));
}

#[test]
fn a_worker_that_cannot_open_the_learners_memory_is_refused() {
    let Some(()) = namespaces() else { return };
    let dir = directory();
    let root = dir.path();
    let mut all = arguments("train", "out", &[]);
    all[0] = "learner";
    let learner = super::distributed::start(root, &all);
    testing::wait_until("the learner offers jobs", || {
        fs::read_dir(root.join("out/fleet/pending")).is_ok_and(|mut jobs| jobs.next().is_some())
    });
    let mut away = Container::start(root, "away", &["worker", "--join", "out", "--name", "w1"]);
    let status = testing::wait_for_end("the worker", &mut away.0);
    let output = fs::read_to_string(root.join("away.said")).unwrap();
    assert_eq!(status.code(), Some(2), "{output}");
    assert!(output.contains("another container") && output.contains("--weights-dir"), "{output}");
    good(root, &["worker", "--join", "out", "--name", "w2"]);
    end(learner);
}

/// A second learner, in a different container, is refused by the lock; the message does not tell the user to kill a
/// process of this container.
#[test]
fn a_second_learner_in_another_container_is_refused_by_the_lock() {
    let Some(()) = namespaces() else { return };
    let dir = directory();
    let root = dir.path();
    let long = ["max_steps=1000000", "save_steps=1000000", "eval_strategy=no"];
    let _other = Container::start(root, "other", &arguments("train", "out", &long));
    super::stopping::wait_for(&root.join("out/metrics.jsonl"), true);
    let output = lockstep(root, &["train", "--resume", "out"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    assert!(output.err.contains("is in use: process ") && output.err.contains("in its container"), "{}", output.err);
    assert_alive(root, "other");
}
