//! Runs that a signal stops: the signal is acknowledged at once and obeyed at any point of the run, the exit code is
//! that of the signal, and a resume gives the same bits.

use crate::support::command;
use crate::support::runs::{arguments, directory, good, same};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The signals that stop a run, and the resulting exit codes.
const SIGNALS: [(&str, i32); 4] = [("INT", 130), ("TERM", 143), ("HUP", 129), ("USR1", 138)];

/// A reward program that takes `seconds` for each batch of four completions, creates a file on each request, and always
/// gives the same scores.
pub fn reward(directory: &Path, seconds: &str) -> String {
    let program =
        format!("while read -r line; do touch asked; sleep {seconds}; echo '{{\"rewards\": [1, 2, 0, 1]}}'; done\n");
    fs::write(directory.join("reward.sh"), program).unwrap();
    "reward_funcs=[\"command:sh reward.sh\"]".to_owned()
}

/// Waits until a file exists and, if `full`, is not empty.
pub fn wait_for(file: &Path, full: bool) {
    let what = format!("{} comes", file.display());
    testing::wait_until(&what, || fs::metadata(file).is_ok_and(|m| !full || m.len() > 0));
}

/// Starts the program.
pub fn start(directory: &Path, arguments: &[&str]) -> Child {
    command(directory, arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

pub fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap().success());
}

pub fn is_alive(pid: &str) -> bool {
    // A dead process may still be listed as a zombie.
    if let Ok(state) = fs::read_to_string(format!("/proc/{}/stat", pid.trim())) {
        return !state.contains(") Z ");
    }
    Command::new("kill").args(["-0", pid.trim()]).stderr(Stdio::null()).status().unwrap().success()
}

/// The exit status and the output.
fn ended(child: Child) -> (ExitStatus, String) {
    let output = child.wait_with_output().unwrap();
    (output.status, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_stopped_run_resumes_to_the_same_bits() {
    let dir = directory();
    let root = dir.path();
    // Once the run named in the file `hold` has logged a step, the reward is slow, so that the signal arrives before
    // the last step.
    let slow = reward(root, "$(if [ -s \"$(cat hold)/metrics.jsonl\" ]; then echo 1; else echo 0.01; fi)");
    let set = [&*slow, "save_steps=1"];
    fs::write(root.join("hold"), "nothing").unwrap();
    good(root, &arguments("train", "whole", &set));
    for (name, code) in SIGNALS {
        let all = arguments("train", name, &set);
        fs::write(root.join("hold"), name).unwrap();
        let child = start(root, &all);
        wait_for(&root.join(name).join("metrics.jsonl"), true);
        signal(&child, name);
        fs::write(root.join("hold"), "nothing").unwrap();
        let (status, printed) = ended(child);
        assert_eq!(status.code(), Some(code), "{name}: {printed}");
        let acknowledged = format!("SIG{name}: the run writes a checkpoint and stops");
        for words in [&*acknowledged, "stopped as asked after step", "--resume"] {
            assert!(printed.contains(words), "{name}: `{words}`: {printed}");
        }
        assert!(!root.join(name).join("model").exists(), "{name}: an unfinished run must not have a result");
        good(root, &[&all[..], &["--resume", "latest"]].concat());
        same(&root.join("whole"), &root.join(name));
    }
}

/// A reward program that answers at once, but sleeps while the file `slow` exists and the request contains `word`.
fn slow_at(directory: &Path, word: &str, answer: &str) -> String {
    let program = format!(
        "echo $$ > pid\nwhile read -r line; do\ncase \"$line\" in *'{word}'*) \
         if [ -e slow ]; then touch asked; sleep 300; fi;; esac\necho '{answer}'\ndone\n"
    );
    fs::write(directory.join("reward.sh"), program).unwrap();
    "{kind = \"command\", command = \"sh reward.sh\", timeout_s = 600, by_group = true}".to_owned()
}

/// A run that is stopped while it waits for a reward resumes to the bits of an uninterrupted run.
fn stopped_while_waiting(word: &str, after: u64) {
    let dir = directory();
    let root = dir.path();
    let rewards = format!("reward_funcs=[{}]", slow_at(root, word, "{\"rewards\": [1, 2]}"));
    let best = "metric_for_best_model=reward";
    let set = [&*rewards, "num_generations_eval=2", "save_steps=2", "record_rollouts=true", best];
    good(root, &arguments("train", "whole", &set));
    fs::write(root.join("slow"), "").unwrap();
    let all = arguments("train", "cut", &set);
    let child = start(root, &all);
    wait_for(&root.join("asked"), false);
    let pid = fs::read_to_string(root.join("pid")).unwrap();
    signal(&child, "TERM");
    let (status, printed) = ended(child);
    assert_eq!(status.code(), Some(143), "{printed}");
    assert!(printed.contains(&format!("stopped as asked after step {after};")), "{printed}");
    assert!(!is_alive(&pid), "the reward program is still alive");
    fs::remove_file(root.join("slow")).unwrap();
    good(root, &[&all[..], &["--resume", "latest"]].concat());
    // A signal leaves an additional checkpoint.
    if after % 2 == 1 {
        fs::remove_dir_all(root.join(format!("cut/checkpoints/step-{after:06}"))).unwrap();
    }
    same(&root.join("whole"), &root.join("cut"));
}

#[test]
fn a_stop_while_waiting_for_rewards_resumes_to_the_same_bits() {
    stopped_while_waiting("\"global_step\":5,", 5);
}

#[test]
fn a_stop_during_an_evaluation_resumes_to_the_same_bits() {
    // Held-out prompts start with this word.
    stopped_while_waiting("\"prompts\":[\"sea ", 4);
}

/// The program blocks where it cannot check for a stop request: the first signal is only acknowledged, and the second
/// one ends the program at once.
#[test]
fn the_first_signal_is_acknowledged_and_the_second_kills_all_programs() {
    let dir = directory();
    let root = dir.path();
    // The reward ignores the end of its input, and has a child process.
    fs::write(root.join("reward.sh"), "sleep 1000 & echo $$ $! > pids; while :; do sleep 1; done\n").unwrap();
    let set = ["reward_funcs=[\"command:sh reward.sh\"]", "dataset_name=/dev/stdin"];
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = command(root, &arguments("train", "run", &set));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // The data is a pipe that is never written to or closed.
        let mut child = command.spawn().unwrap();
        let _input = child.stdin.take();
        wait_for(&root.join("pids"), true);
        let pids = fs::read_to_string(root.join("pids")).unwrap();
        fs::remove_file(root.join("pids")).unwrap();
        signal(&child, "HUP");
        let mut printed = BufReader::new(child.stderr.take().unwrap()).lines();
        let acknowledged = printed.find(|line| line.as_ref().is_ok_and(|line| line.contains("SIGHUP")));
        assert!(acknowledged.is_some(), "{name}: the program ended without a message");
        // A terminal that closes sends SIGHUP twice.
        signal(&child, "HUP");
        std::thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none(), "{name}: a second SIGHUP must not end the program");
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
        testing::wait_until("the reward programs end", || pids.split_whitespace().all(|pid| !is_alive(pid)));
    }
}

#[test]
fn a_run_under_nohup_ignores_sighup() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "0.05");
    let all = arguments("train", "run", &[&slow]);
    let words: Vec<String> = all.iter().map(|word| format!("'{word}'")).collect();
    let script = format!("trap '' HUP; exec '{}' {}", env!("CARGO_BIN_EXE_lockstep"), words.join(" "));
    let mut sh = Command::new("sh");
    for (name, _) in command(root, &[]).get_envs().filter(|(_, value)| value.is_none()) {
        sh.env_remove(name);
    }
    let child =
        sh.args(["-c", &script]).current_dir(root).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait_for(&root.join("run/metrics.jsonl"), true);
    signal(&child, "HUP");
    let (status, printed) = ended(child);
    assert!(status.success() && printed.contains("done: 12 steps"), "{printed}");
}

#[test]
fn every_training_command_stops_and_resumes() {
    let dir = directory();
    let root = dir.path();
    for purpose in ["sft", "dpo", "reward"] {
        let data = if purpose == "sft" { "dataset_name=d.jsonl" } else { "dataset_name=p.jsonl" };
        let held_out = if purpose == "sft" { "eval_dataset_name=e.jsonl" } else { "eval_dataset_name=q.jsonl" };
        let all = arguments(purpose, purpose, &[data, held_out, "max_steps=1000000", "save_steps=1000000"]);
        let child = start(root, &all);
        wait_for(&root.join(purpose).join("metrics.jsonl"), true);
        signal(&child, "INT");
        let (status, printed) = ended(child);
        assert_eq!(status.code(), Some(130), "{purpose}: {printed}");
        let checkpoints = || fs::read_dir(root.join(purpose).join("checkpoints")).unwrap().count();
        assert_eq!(checkpoints(), 1, "{purpose}: {printed}");
        let before = fs::metadata(root.join(purpose).join("metrics.jsonl")).unwrap().len();
        let child = start(root, &[purpose, "--resume", purpose]);
        testing::wait_until("it continues", || {
            fs::metadata(root.join(purpose).join("metrics.jsonl")).unwrap().len() > before
        });
        signal(&child, "INT");
        assert_eq!(ended(child).0.code(), Some(130), "{purpose}");
    }
}

#[test]
fn a_stopped_eval_command_has_no_result() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("slow"), "").unwrap();
    let rewards = format!("reward_funcs=[{}]", slow_at(root, "prompts", "{\"rewards\": [1]}"));
    let all =
        ["eval", "--model", "model", "--dataset", "e.jsonl", "--max-completion-length", "6", "--task", "prompt_answer"];
    let more = ["--set", &rewards, "--output", "lines.jsonl"];
    fs::write(root.join("e.jsonl"), "{\"prompt\": \"sea \", \"answer\": \"x\"}\n").unwrap();
    let child =
        command(root, &[&all[..], &more].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&root.join("asked"), false);
    let pid = fs::read_to_string(root.join("pid")).unwrap();
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(143) && output.stdout.is_empty(), "{printed}");
    assert!(printed.contains("SIGTERM: the evaluation stops") && !printed.contains("error"), "{printed}");
    // The program was killed; the kernel may take a moment.
    testing::wait_until("the reward program ends", || !is_alive(&pid));
    assert!(!root.join("lines.jsonl").exists());
}

/// A program that is computing does not notice the end of its input.
#[cfg(target_os = "linux")]
#[test]
fn a_reward_program_ends_with_a_killed_run() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("reward.sh"), "read -r line; sleep 300 & echo $$ $! > pids; wait\n").unwrap();
    let mut child = start(root, &arguments("train", "run", &["reward_funcs=[\"command:sh reward.sh\"]"]));
    wait_for(&root.join("pids"), true);
    let pids = fs::read_to_string(root.join("pids")).unwrap();
    assert!(pids.split_whitespace().count() == 2 && pids.split_whitespace().all(is_alive), "{pids}");
    child.kill().unwrap();
    child.wait().unwrap();
    testing::wait_until("the reward programs end", || !pids.split_whitespace().any(is_alive));
}
