//! A reward program that scores group by group while other groups are generated: the run equals, bit for bit, one in
//! which the program scores batches; and the program ends with the run.

use crate::support::command;
use crate::support::runs::{arguments, directory, good, same_but_lineage};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Scores by length, answers after a time that depends on the prompt, and appends to `<name>` the number of completions
/// in each call.
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
fn no_bit_depends_on_who_is_asked_when() {
    let dir = directory();
    let root = dir.path();
    let sizes = |name: &str| -> BTreeSet<String> {
        fs::read_to_string(root.join(name)).unwrap().lines().map(str::to_owned).collect()
    };
    let (Some(whole), Some(groups)) = (reward(root, "whole", false), reward(root, "groups", true)) else { return };
    good(root, &arguments("train", "a", &[&whole, "threads=1"]));
    good(root, &arguments("train", "b", &[&groups, "threads=2", "max_num_seqs=3"]));
    same_but_lineage(&root.join("a"), &root.join("b"));
    // A step has four completions of two prompts; an evaluation of two prompts has the configured number.
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
fn a_signal_ends_the_step_and_no_program_is_left() {
    let dir = directory();
    let root = dir.path();
    let program = "echo $$ > pid; while read -r line; do touch asked; sleep 0.1; echo '{\"rewards\": [1, 2]}'; done\n";
    fs::write(root.join("reward.sh"), program).unwrap();
    let reward = "reward_funcs=[{kind = \"command\", command = \"sh reward.sh\", by_group = true}]";
    let set = [reward, "num_generations_eval=2", "max_steps=1000"];
    let run = command(root, &arguments("train", "run", &set)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let run = run.unwrap();
    testing::wait_until("the reward is asked", || root.join("asked").exists());
    let signal =
        |arguments: &[&str]| Command::new("kill").args(arguments).stderr(Stdio::null()).status().unwrap().success();
    assert!(signal(&["-INT", &run.id().to_string()]));
    let ended = run.wait_with_output().unwrap();
    let printed = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.code() == Some(130) && printed.contains("stopped as asked after step"), "{printed}");
    let pid = fs::read_to_string(root.join("pid")).unwrap();
    assert!(!signal(&["-0", pid.trim()]), "the reward program lives");
}
