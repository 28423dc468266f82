//! A reward program that scores groups while other groups are still being generated: the run equals, bit for bit, a run
//! in which the program scores whole batches, and the program exits with the run.

use crate::support::command;
use crate::support::runs::{arguments, directory, good, same_but_lineage};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Scores by length, answers after a delay that depends on the prompt, and appends the number of completions in each
/// call to `<name>`.
const PROGRAM: &str = r#"
import json, sys, time
for line in sys.stdin:
    batch = json.loads(line)
    prompts, texts = batch["prompts"], batch["completions"]
    with open(sys.argv[1], "a") as asked:
        print(len(texts), file=asked)
    time.sleep(sum(map(ord, prompts[0])) % 4 * 0.005)
    rewards = [None if "z" in text else float(len(text)) for text in texts]
    print(json.dumps({"rewards": rewards, "extra": {"of": prompts}, "metrics": {"asked": 1}}), flush=True)
"#;

/// `reward_funcs` with the program, or `None` without Python.
fn reward(directory: &Path, name: &str, by_group: bool) -> Option<String> {
    testing::program("python3")?;
    fs::write(directory.join("reward.py"), PROGRAM).unwrap();
    let command = format!("kind = \"command\", command = \"python3 reward.py {name}\", by_group = {by_group}");
    Some(format!("reward_funcs=[\"unique_chars\", {{{command}}}]"))
}

#[test]
fn scoring_by_group_changes_no_bit() {
    let dir = directory();
    let root = dir.path();
    let sizes = |name: &str| -> BTreeSet<String> {
        fs::read_to_string(root.join(name)).unwrap().lines().map(str::to_owned).collect()
    };
    let (Some(whole), Some(groups)) = (reward(root, "whole", false), reward(root, "groups", true)) else { return };
    good(root, &arguments("train", "a", &[&whole, "threads=1"]));
    good(root, &arguments("train", "b", &[&groups, "threads=2", "max_num_seqs=3"]));
    same_but_lineage(&root.join("a"), &root.join("b"));
    // A training step has four completions for each of two prompts; an evaluation has the configured number for each of
    // two prompts.
    assert!(
        sizes("whole").contains("4") && !sizes("groups").contains("4"),
        "{:?} {:?}",
        sizes("whole"),
        sizes("groups")
    );
    let lines = fs::read_to_string(root.join("b/metrics.jsonl")).unwrap();
    assert!(lines.contains("\"reward_hidden_time_s\"") && lines.contains("\"reward_time_s\""), "{lines}");
}

#[test]
fn a_signal_ends_the_step_and_the_reward_program() {
    let dir = directory();
    let root = dir.path();
    let program = "echo $$ > pid; while read -r line; do touch asked; sleep 0.1; echo '{\"rewards\": [1, 2]}'; done\n";
    fs::write(root.join("reward.sh"), program).unwrap();
    let reward = "reward_funcs=[{kind = \"command\", command = \"sh reward.sh\", by_group = true}]";
    let set = [reward, "num_generations_eval=2", "max_steps=1000"];
    let run = command(root, &arguments("train", "run", &set)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let run = run.unwrap();
    testing::wait_until("the reward is called", || root.join("asked").exists());
    let signal =
        |arguments: &[&str]| Command::new("kill").args(arguments).stderr(Stdio::null()).status().unwrap().success();
    assert!(signal(&["-INT", &run.id().to_string()]));
    let ended = run.wait_with_output().unwrap();
    let printed = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.code() == Some(130) && printed.contains("stopped as asked after step"), "{printed}");
    let pid = fs::read_to_string(root.join("pid")).unwrap();
    assert!(!signal(&["-0", pid.trim()]), "the reward program is still alive");
}
