//! Workers that join a resumed run, a finished run, or a run without workers.

use super::distributed::{distributed, end, pids, start};
use crate::support::runs::{arguments, directory, good, same_but_workers};
use crate::support::{listing, lockstep, refused};
use fleet::exchange::spool::SpoolLearner;
use fleet::status;
use std::fs;
use std::path::Path;
use std::process::Command;

const JOIN: [&str; 5] = ["worker", "--join", "out", "--name", "w1"];

fn learner<'a>(resume: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["learner", "--resume", resume][..], more].concat()
}

/// Starts a run with workers, and kills all its processes in the middle.
fn killed(root: &Path, set: &[&str]) {
    let mut child = start(root, &distributed("out", "1", &[&["max_steps=100000"], set].concat()));
    let run = root.join("out");
    testing::wait_until("there is a checkpoint", || run.join("checkpoints/step-000002").is_dir());
    child.kill().unwrap();
    for pid in pids(&run) {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
    }
    child.wait().unwrap();
    testing::wait_until("every process ends", || pids(&run).is_empty());
}

/// The previous learner was killed and left its state file. The next learner has a different configuration and starts
/// slowly.
#[test]
fn a_worker_compares_its_inputs_with_the_running_learner() {
    let dir = directory();
    let root = dir.path();
    killed(root, &["eval_strategy=no"]);
    let next = SpoolLearner::open(&root.join("out")).unwrap();
    let text = fs::read_to_string(root.join("out/config.toml")).unwrap();
    fs::write(root.join("out/config.toml"), text.replace("learning_rate = 0.01", "learning_rate = 0.02")).unwrap();
    let worker = start(root, &JOIN);
    let is_there = |worker: &status::WorkerLine| worker.name.as_str() == "w1" && worker.alive.is_some();
    let joined = || status::read(&root.join("out")).is_ok_and(|status| status.workers.iter().any(is_there));
    testing::wait_until("the worker joins", joined);
    // A worker that used the old state file would have loaded its model and been refused by now.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(joined(), "the worker has exited");
    drop(next);
    let last = fs::read_dir(root.join("out/checkpoints")).unwrap().count();
    assert!(last > 0);
    let steps = format!("max_steps={}", 100 * last);
    good(root, &learner("out", &["--set", &steps]));
    end(worker);
}

/// A worker that stays joined while the run is resumed with different keys reports the change, and no job is marked as
/// failed.
#[test]
fn a_worker_with_an_outdated_configuration_exits_without_failing_a_job() {
    let dir = directory();
    let root = dir.path();
    let mut first = start(root, &{
        let mut all = arguments("train", "out", &["max_steps=100000", "eval_strategy=no", "max_staleness=1"]);
        all[0] = "learner";
        all
    });
    let workers: Vec<_> = ["w1", "w2", "w3", "w4"]
        .map(|name| start(root, &["worker", "--join", "out", "--name", name, "--threads", "1"]))
        .into();
    testing::wait_until("there is a checkpoint", || root.join("out/checkpoints/step-000002").is_dir());
    first.kill().unwrap();
    first.wait().unwrap();
    let more = ["--set", "learning_rate=0.02", "--set", "max_steps=100000", "--set", "max_failures_per_job=1"];
    let mut second = start(root, &learner("out", &more));
    for worker in workers {
        let ended = worker.wait_with_output().unwrap();
        let output = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{output}");
        assert!(
            output.contains("the run has changed since this worker joined")
                && output.contains("start the worker again")
        );
    }
    assert!(second.try_wait().unwrap().is_none(), "the learner must wait for other workers");
    let _ = Command::new("kill").args(["-INT", &second.id().to_string()]).status();
    let code = second.wait().unwrap().code();
    assert_eq!(code, Some(130), "it stops");
}

#[test]
fn a_worker_of_a_run_without_a_learner_reports_it_and_exits() {
    let dir = directory();
    let root = dir.path();
    let short = ["max_steps=4", "eval_strategy=no", "max_staleness=1"];
    // A finished run of a single process.
    good(root, &arguments("train", "out", &short));
    let before = listing(&root.join("out"));
    refused(root, &JOIN, &["w1 cannot work for out", "the run has no workers", "learner --resume out", "--wait"]);
    assert_eq!(listing(&root.join("out")), before, "no file may be written into the run");
    // A finished run with workers.
    fs::remove_dir_all(root.join("out")).unwrap();
    good(root, &distributed("out", "1", &short));
    refused(root, &JOIN, &["w1 cannot work for out", "the run has ended after 4 of 4 batches", "--wait"]);
    // The worker waits until the run is resumed.
    let waits = start(root, &[&JOIN[..], &["--wait"]].concat());
    let is_there = |worker: &status::WorkerLine| worker.name.as_str() == "w1" && worker.alive.is_some();
    testing::wait_until("the worker joins", || {
        status::read(&root.join("out")).is_ok_and(|status| status.workers.iter().any(is_there))
    });
    good(root, &learner("out", &["--set", "max_steps=12"]));
    end(waits);
    good(root, &arguments("train", "one", &short));
    good(root, &["train", "--resume", "one", "--set", "max_steps=12"]);
    same_but_workers(&root.join("one"), &root.join("out"));
    refused(root, &["worker", "--join", "out", "--name", "checkpoint"], &["checkpoint cannot be a worker's name"]);
    let output = lockstep(root, &["worker", "--join", "d.jsonl/x", "--name", "w1"]);
    assert_ne!(output.code, Some(0), "{}", output.err);
}
