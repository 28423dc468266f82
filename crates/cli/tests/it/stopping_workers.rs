//! Runs with workers that are stopped by signals: the rules of a single process hold, whichever process gets the signal
//! and however many signals arrive. (`terminals` tests Ctrl-C and closing terminals.)

use super::distributed::{distributed, pids};
use super::stopping::{signal, start, wait_for};
use crate::support::command;
use crate::support::runs::{arguments, directory, good, same_but_workers};
use fleet::status;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

const SET: [&str; 3] = ["max_staleness=0", "max_steps=12", "save_steps=12"];

fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name.starts_with("step-")).collect()
}

fn ended(child: Child) -> (ExitStatus, String) {
    let output = child.wait_with_output().unwrap();
    (output.status, String::from_utf8(output.stderr).unwrap())
}

fn send(pid: u32, name: &str) {
    // The process may already have ended.
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

fn learner_of(run: &Path) -> Option<u32> {
    let status = status::read(run).ok()?;
    status.learner.filter(|_| status.learner_alive).map(|learner| learner.pid)
}

/// A reward program that is slow once the run named in the file `hold` has logged a step, so that a signal arrives
/// before the end.
fn slow_reward(root: &Path) -> &'static str {
    let script = "while read -r line; do [ -s \"$(cat hold)/metrics.jsonl\" ] && sleep 0.5
        echo '{\"rewards\": [1, 2, 0, 1]}'; done\n";
    fs::write(root.join("reward.sh"), script).unwrap();
    fs::write(root.join("hold"), "nothing").unwrap();
    "reward_funcs=[\"command:sh reward.sh\"]"
}

/// Which processes get the signal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    Supervisor,
    /// All processes; learner and workers first, since their supervisor may pass the signal on.
    All,
    Learner,
    Workers,
}

/// Signals in order, without pauses, and the exit code. Each row must leave a checkpoint.
type Row = (&'static [(To, &'static str)], i32);

/// Stops a run in each way, and resumes it to the bits of an uninterrupted run.
fn stop_and_resume(rows: &[Row]) {
    let dir = directory();
    let root = dir.path();
    let set = [&SET[..], &[slow_reward(root)]].concat();
    good(root, &arguments("train", "whole", &set));
    for (i, (signals, code)) in rows.iter().enumerate() {
        let out = format!("run-{i}");
        let run = root.join(&out);
        fs::write(root.join("hold"), &out).unwrap();
        let child = start(root, &distributed(&out, "2", &set));
        wait_for(&run.join("metrics.jsonl"), true);
        let learner = learner_of(&run).expect("it trains");
        let workers: Vec<u32> = pids(&run).into_iter().filter(|pid| *pid != learner).collect();
        for (to, name) in *signals {
            let supervisor = [child.id()];
            let to: &[u32] = match to {
                To::Supervisor => &supervisor,
                To::All => &[&workers[..], &[learner], &supervisor].concat(),
                To::Learner => &[learner],
                To::Workers => &workers,
            };
            for pid in to {
                send(*pid, name);
            }
        }
        fs::write(root.join("hold"), "nothing").unwrap();
        let (status, printed) = ended(child);
        assert_eq!(status.code(), Some(*code), "{signals:?}: {printed}");
        assert!(printed.contains("stopped as asked after step"), "{signals:?}: {printed}");
        assert_eq!(checkpoints(&run).len(), 1, "{signals:?}: {printed}");
        assert!(pids(&run).is_empty() && !run.join("model").exists(), "{signals:?}: {printed}");
        good(root, &["train", "--resume", &out, "--distributed", "--workers", "2"]);
        // A signal leaves an additional checkpoint.
        for name in checkpoints(&run).iter().filter(|name| *name != "step-000012") {
            fs::remove_dir_all(run.join("checkpoints").join(name)).unwrap();
        }
        same_but_workers(&root.join("whole"), &run);
    }
}

#[test]
fn a_signal_sent_twice_or_to_every_process_leaves_a_checkpoint() {
    use To::{All, Supervisor};
    stop_and_resume(&[
        (&[(Supervisor, "HUP"), (Supervisor, "HUP")], 129),
        // Batch systems and service managers signal all processes.
        (&[(All, "TERM")], 143),
    ]);
}

#[test]
#[ignore = "minutes: cargo xtask nightly terminals"]
fn every_way_to_stop_a_run_with_workers_leaves_a_checkpoint() {
    use To::{All, Learner, Supervisor, Workers};
    // Pending signals of different kinds are delivered in the order of their numbers, so each row has only one kind.
    let rows: [Row; 20] = [
        (&[(Supervisor, "INT")], 130),
        (&[(Supervisor, "TERM")], 143),
        (&[(Supervisor, "HUP")], 129),
        (&[(Supervisor, "USR1")], 138),
        (&[(All, "INT")], 130),
        (&[(All, "HUP")], 129),
        (&[(All, "USR1")], 138),
        (&[(Learner, "INT")], 130),
        (&[(Learner, "TERM")], 143),
        (&[(Learner, "HUP")], 129),
        (&[(Learner, "USR1")], 138),
        (&[(Learner, "TERM"), (Learner, "TERM"), (Learner, "TERM")], 143),
        (&[(Learner, "INT"), (Supervisor, "INT")], 130),
        (&[(Supervisor, "USR1"), (Supervisor, "USR1"), (All, "USR1")], 138),
        (&[(Supervisor, "HUP"), (All, "HUP"), (All, "HUP")], 129),
        (&[(Workers, "TERM"), (Supervisor, "TERM")], 143),
        (&[(Workers, "KILL"), (Supervisor, "INT")], 130),
        (&[(Learner, "STOP"), (Supervisor, "INT")], 130),
        (&[(Learner, "STOP"), (Supervisor, "HUP")], 129),
        (&[(Supervisor, "STOP"), (Supervisor, "TERM"), (Supervisor, "CONT")], 143),
    ];
    stop_and_resume(&rows);
    println!("{} ways to stop a run with workers: a checkpoint each time, and the same bits", rows.len());
}

/// Under `nohup`, a run with workers must survive the end of its terminal, too.
#[test]
fn all_processes_of_a_run_under_nohup_ignore_sighup() {
    let dir = directory();
    let root = dir.path();
    let slow = slow_reward(root);
    fs::write(root.join("hold"), "out").unwrap();
    let all = distributed("out", "2", &[&SET[..], &[slow]].concat())
        .iter()
        .map(|word| format!("'{word}'"))
        .collect::<Vec<_>>();
    let script = format!("trap '' HUP; exec '{}' {}", env!("CARGO_BIN_EXE_lockstep"), all.join(" "));
    let mut sh = Command::new("sh");
    for (name, _) in command(root, &[]).get_envs().filter(|(_, value)| value.is_none()) {
        sh.env_remove(name);
    }
    let child =
        sh.args(["-c", &script]).current_dir(root).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait_for(&root.join("out/metrics.jsonl"), true);
    signal(&child, "HUP");
    for pid in &pids(&root.join("out")) {
        send(*pid, "HUP");
    }
    signal(&child, "HUP");
    fs::write(root.join("hold"), "nothing").unwrap();
    let (status, printed) = ended(child);
    assert!(status.success() && printed.contains("done: 12 steps") && !printed.contains("SIGHUP"), "{printed}");
}

/// A learner that aborts would abort again, so it ends the run, like an error. A killed learner is restarted.
#[test]
fn a_crashed_learner_ends_the_run_which_resumes_to_the_same_bits() {
    let dir = directory();
    let root = dir.path();
    let set = [&SET[..], &[slow_reward(root), "save_steps=2"]].concat();
    good(root, &arguments("train", "whole", &set));
    fs::write(root.join("hold"), "out").unwrap();
    let run = root.join("out");
    let child = start(root, &distributed("out", "2", &set));
    wait_for(&run.join("metrics.jsonl"), true);
    send(learner_of(&run).expect("it trains"), "ABRT");
    let (status, printed) = ended(child);
    assert_eq!(status.code(), Some(134), "{printed}");
    assert!(
        printed.contains("SIGABRT") && printed.contains("the run stops") && !printed.contains("started again"),
        "{printed}"
    );
    testing::wait_until("every process ends", || pids(&run).is_empty());
    fs::write(root.join("hold"), "nothing").unwrap();
    good(root, &["train", "--resume", "out", "--distributed", "--workers", "2"]);
    same_but_workers(&root.join("whole"), &run);
}
