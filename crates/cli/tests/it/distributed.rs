//! Runs whose completions other processes make: the bits of one process, whoever works and whatever is killed.

use crate::support::runs::{arguments, directory, good, metrics, of_lines, same_but_workers};
use crate::support::{command, lockstep, refused};
use fleet::status;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

pub fn distributed<'a>(out: &'a str, workers: &'a str, set: &[&'a str]) -> Vec<&'a str> {
    [&arguments("train", out, set)[..], &["--distributed", "--workers", workers]].concat()
}

/// The run in one process, and with each of these numbers of workers.
#[track_caller]
fn same(set: &[&str], workers: &[&str]) {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "one", set));
    for &count in workers {
        let out = format!("by-{count}");
        good(root, &distributed(&out, count, set));
        same_but_workers(&root.join("one"), &root.join(&out));
        let status = status::read(&root.join(&out)).unwrap();
        assert!(!status.learner_alive && status.workers.iter().all(|worker| worker.alive.is_none()), "{status:?}");
        ended_well(root, &out, &status);
        let done: u64 = status.workers.iter().filter_map(|worker| worker.status.as_ref()).map(|s| s.done).sum();
        assert!(done >= 12, "two groups for each batch, of which there are six at least: {done}");
        assert_eq!(of_lines_of(&root.join(&out), "async/weight_sync_bytes_copied").iter().sum::<f64>(), 0.0);
    }
}

/// Checks the status of a run that has ended: its last checkpoint is its last batch, and no job is left.
fn ended_well(root: &Path, out: &str, status: &status::Status) {
    let learner = status.learner.as_ref().unwrap();
    assert!(learner.ended, "{learner:?}");
    assert_eq!(learner.checkpoints.last, Some(learner.batch.version()), "{out}: {learner:?}");
    // A batch is kept whose steps are not all done.
    let open = if learner.batch.0 < learner.batches { vec![learner.batch] } else { Vec::new() };
    assert_eq!(status.synced, open, "{out}");
    if learner.batch.0 == learner.batches {
        let printed = lockstep(root, &["status", out]).out;
        let expected = format!("ended  checkpoint {}", learner.batches);
        assert!(printed.lines().next().is_some_and(|line| line.ends_with(&expected)), "{printed}");
        assert_eq!(lockstep(root, &["queue", out, "ls"]).out, "no jobs\n", "{out}");
    }
}

/// All fields, including those of workers.
fn of_lines_of(run: &Path, name: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()[name].as_f64();
    text.lines().filter_map(line).collect()
}

const ON_POLICY: &str = "max_staleness=0";

#[test]
fn without_staleness_workers_give_the_synchronous_run() {
    same(&[ON_POLICY, "beta=0.1", "record_rollouts=true"], &["1", "2", "5"]);
}

#[test]
fn every_kind_of_run_has_the_bits_of_one_process() {
    same(&[ON_POLICY, "dtype=bf16", "use_peft=true", "lora_r=2", "num_iterations=2"], &["2"]);
    same(&[ON_POLICY, "algorithm=ppo", "num_generations=1"], &["2"]);
    same(&["max_staleness=2", "use_peft=true", "lora_r=2", "vllm_importance_sampling_correction=true"], &["3"]);
}

#[test]
fn stale_batches_have_the_bits_of_one_process() {
    let set = ["max_staleness=2", "record_rollouts=true", "num_iterations=2", "steps_per_generation=2"];
    same(&set, &["1", "3"]);
    let dir = directory();
    let root = dir.path();
    good(root, &distributed("out", "1", &[]));
    assert_eq!(of_lines(&root.join("out"), "async/lag_max").last(), Some(&1.0), "a batch ahead is the default");
}

/// Completions that newer weights continue, after one, three or sixteen tokens.
#[test]
fn completions_in_chunks_have_the_bits_of_one_process() {
    let set = ["max_staleness=2", "partial_rollout_tokens=3", "record_rollouts=true", "num_iterations=2"];
    same(&[&set[..], &["steps_per_generation=2"]].concat(), &["1", "5"]);
    same(&["max_staleness=2", "partial_rollout_tokens=16", "max_completion_length=40"], &["1", "2", "5"]);
    same(&["max_staleness=1", "partial_rollout_tokens=1", "use_peft=true", "lora_r=2", "dtype=bf16"], &["2"]);
    same(&["max_staleness=2", "partial_rollout_tokens=2", "algorithm=ppo", "num_generations=1"], &["2"]);
}

/// The learner evaluates before it takes the next step, so that the best model and the end are those of one process.
#[test]
fn evaluations_choose_the_same_model_and_the_same_end() {
    let best = ["load_best_model_at_end=true", "save_steps=4", "metric_for_best_model=reward", "eval_pass_at_k=[1]"];
    for staleness in ["max_staleness=0", "max_staleness=2"] {
        same(&[&best[..], &[staleness]].concat(), &["2"]);
        let dir = directory();
        let root = dir.path();
        let set = [&best[..], &[staleness, "max_steps=40", "early_stopping_patience=1", "learning_rate=0"]].concat();
        good(root, &arguments("train", "one", &set));
        good(root, &distributed("many", "2", &set));
        let (one, many) = (root.join("one"), root.join("many"));
        assert_eq!(metrics(&one), metrics(&many));
        let model = |run: &Path| std::fs::read(run.join("model/model.safetensors")).unwrap();
        assert!(model(&one) == model(&many));
        let steps = of_lines(&many, "eval_reward").len();
        assert!((2..10).contains(&steps), "it stopped early: {steps} evaluations");
    }
}

/// A checkpoint of one is resumed by the other.
#[test]
fn one_process_and_workers_resume_each_other() {
    let in_chunks = ["max_staleness=2", "partial_rollout_tokens=2", "num_iterations=3"];
    for set in [&["max_staleness=2"][..], &["max_staleness=1", "num_iterations=3"], &[ON_POLICY], &in_chunks] {
        let dir = directory();
        let root = dir.path();
        good(root, &arguments("train", "whole", set));
        for (first, second) in [("one", "many"), ("many", "one"), ("many", "many")] {
            let out = format!("{first}-{second}");
            let half = [set, &["max_steps=12"]].concat();
            let run = |kind: &str, arguments: &[&str]| match kind {
                "one" => good(root, arguments),
                _ => good(root, &[arguments, &["--distributed", "--workers", "2"]].concat()),
            };
            run(first, &arguments("train", &out, &half));
            // From the middle: later checkpoints are set aside.
            let from = format!("{out}/checkpoints/step-000004");
            run(second, &["train", "--resume", &from]);
            std::fs::remove_dir_all(root.join(&out).join("abandoned")).ok();
            same_but_workers(&root.join("whole"), &root.join(&out));
        }
    }
}

pub fn pids(out: &Path) -> Vec<u32> {
    let Ok(status) = status::read(out) else { return Vec::new() };
    let learner = status.learner.filter(|_| status.learner_alive).map(|learner| learner.pid);
    // A process that has just taken its lock has no number in the file yet; 0 is this test's own process group.
    learner.into_iter().chain(status.workers.iter().filter_map(|worker| worker.alive)).filter(|&pid| pid > 0).collect()
}

fn kill(pid: u32) {
    let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
}

pub fn start(root: &Path, arguments: &[&str]) -> Child {
    start_as(root, arguments, None)
}

/// As another user.
pub fn start_as(root: &Path, arguments: &[&str], user: Option<u32>) -> Child {
    let mut command = command(root, arguments);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

pub fn end(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");
    printed
}

/// Learner and workers are killed at random; what remains of them finishes the run to the same bits.
#[test]
fn kills_change_no_bit() {
    let dir = directory();
    let root = dir.path();
    let in_chunks = ["max_staleness=2", "max_steps=60", "partial_rollout_tokens=2"];
    for (set, kills) in [(&in_chunks[..2], 12), (&[ON_POLICY, "max_steps=60"], 6), (&in_chunks, 11)] {
        let out = format!("out-{kills}");
        let expected = format!("one-{kills}");
        good(root, &arguments("train", &expected, set));
        let mut child = start(root, &distributed(&out, "2", set));
        let (run, mut seed, mut killed) = (root.join(&out), 7u64, 0);
        while killed < kills && child.try_wait().unwrap().is_none() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The first one is killed at once, however quick the run is.
            let pause = if killed > 0 { 30 + (seed >> 33) % 300 } else { 1 };
            std::thread::sleep(Duration::from_millis(pause));
            let pids = pids(&run);
            if !pids.is_empty() {
                kill(pids[(seed >> 40) as usize % pids.len()]);
                killed += 1;
            }
        }
        let printed = end(child);
        assert!(printed.contains("started again"), "{printed}");
        let last = |run: &Path| std::fs::read(run.join("model/model.safetensors")).unwrap();
        assert!(last(&run) == last(&root.join(&expected)), "{printed}");
        assert!(pids(&run).is_empty());
    }
}

#[test]
fn without_its_supervisor_everything_ends_and_the_next_start_resumes() {
    let dir = directory();
    let root = dir.path();
    let set = ["max_steps=400", "eval_strategy=no"];
    let mut child = start(root, &distributed("out", "2", &set));
    let run = root.join("out");
    testing::wait_until("learner and workers run, and there is a checkpoint", || {
        pids(&run).len() == 3 && run.join("checkpoints/step-000002").is_dir()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    testing::wait_until("every process ends", || pids(&run).is_empty());
    let printed = lockstep(root, &["train", "--resume", "out", "--distributed", "--workers", "1"]);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    good(root, &[&arguments("train", "one", &set)[..], &["--set", "max_staleness=1"]].concat());
    let last = |run: &str| std::fs::read(root.join(run).join("model/model.safetensors")).unwrap();
    assert!(last("out") == last("one"));
}

/// By hand, in any order.
#[test]
fn a_worker_may_start_before_its_learner_and_another_model_is_refused() {
    let dir = directory();
    let root = dir.path();
    let early = start(root, &["worker", "--join", "out", "--name", "dev1", "--threads", "1"]);
    testing::wait_until("the worker runs", || !pids(&root.join("out")).is_empty());
    let second = lockstep(root, &["worker", "--join", "out", "--name", "dev1"]);
    assert_eq!(second.code, Some(2), "{}", second.err);
    assert!(second.err.contains("is there already: process") && second.err.contains("--name"), "{}", second.err);
    let mut learner = arguments("train", "out", &[]);
    learner[0] = "learner";
    good(root, &learner);
    end(early);
    let one = [&arguments("train", "one", &[])[..], &["--set", "max_staleness=1"]].concat();
    good(root, &one);
    same_but_workers(&root.join("one"), &root.join("out"));
}

#[test]
fn what_workers_cannot_do_is_refused_before_anything_starts() {
    let dir = directory();
    let root = dir.path();
    let refuse = |set: &[&str], words: &[&str]| {
        let mut learner = arguments("train", "out", set);
        learner[0] = "learner";
        refused(root, &learner, words);
    };
    refuse(&[ON_POLICY, "dynamic_sampling=true"], &["distributed", "dynamic_sampling = false"]);
    refuse(&["max_staleness=2", "queue_maxsize=3"], &["`queue_maxsize` is 3", "set it to 4 or more"]);
    refuse(&["algorithm=ppo", "num_generations=1", "target_kl=0.1"], &["target_kl", "leave it unset"]);
    refused(root, &["worker", "--join", "x", "--name", "a b"], &["letters, digits"]);
    let none = [&arguments("train", "out", &[])[..], &["--distributed", "--workers", "0"]].concat();
    refused(root, &none, &["--workers 0"]);
}
