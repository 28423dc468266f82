//! Only one process may write to a run directory: a second one is refused, and runs that start together stay separate.

use crate::stopping::{reward, start, wait_for};
use crate::support::lockstep;
use crate::support::runs::{arguments, directory, good, same};
use std::fs;

#[test]
fn a_second_process_is_refused_and_changes_nothing() {
    let dir = directory();
    let root = dir.path();
    let slow = reward(root, "0.3");
    let all = arguments("train", "run", &[&slow, "save_steps=1"]);
    let mut first = start(root, &all);
    wait_for(&root.join("run/checkpoints/step-000001/run_state.json"), true);
    // An unfinished checkpoint, as if the run were writing it at this moment.
    fs::create_dir_all(root.join("run/checkpoints/.unfinished-step-000099")).unwrap();
    let started = fs::metadata(root.join("run/config.toml")).unwrap().modified().unwrap();
    let by_name = [&all[..], &["--resume", "latest"]].concat();
    let older = ["train", "--resume", "run/checkpoints/step-000001"];
    for second in [&["train", "--resume", "run"][..], &older, &by_name] {
        let printed = lockstep(root, second);
        assert_eq!(printed.code, Some(2), "{second:?}: {}", printed.err);
        for words in [&*format!("process {}", first.id()), "run is in use", "`, for ", "--out"] {
            assert!(printed.err.contains(words), "`{words}`: {}", printed.err);
        }
    }
    assert!(
        root.join("run/checkpoints/.unfinished-step-000099").exists(),
        "the unfinished checkpoint of a live run was deleted"
    );
    assert_eq!(fs::metadata(root.join("run/config.toml")).unwrap().modified().unwrap(), started);

    // The lock of a killed run is free, and the next process reports which process it replaces.
    first.kill().unwrap();
    first.wait().unwrap();
    reward(root, "0");
    let printed = good(root, &["train", "--resume", "run"]);
    let killed = format!("process {}", first.id());
    assert!(printed.err.contains(&killed) && printed.err.contains("was killed"), "{}", printed.err);
    assert!(!root.join("run/checkpoints/.unfinished-step-000099").exists());
    assert_eq!(fs::read(root.join("run/run.lock")).unwrap(), b"", "a finished run must clear its lock");
    assert!(!good(root, &["train", "--resume", "run"]).err.contains("was killed"));
}

#[test]
fn runs_that_start_together_stay_separate() {
    let dir = directory();
    let root = dir.path();
    let whole = arguments("sft", "whole", &[]);
    good(root, &whole);
    let together = |arguments: &[&str]| {
        let children: Vec<_> = (0..3).map(|_| start(root, arguments)).collect();
        let ended = children.into_iter().map(|child| child.wait_with_output().unwrap());
        let mut codes: Vec<_> = ended.map(|output| output.status.code()).collect();
        codes.sort();
        codes
    };
    // Only one of three runs gets the directory that all of them name.
    assert_eq!(together(&arguments("sft", "run", &[])), [Some(0), Some(2), Some(2)]);
    same(&root.join("whole"), &root.join("run"));
    // Without an explicit directory, each run gets its own.
    let out = whole.iter().position(|word| *word == "--out").unwrap();
    let nameless = [&whole[..out], &whole[out + 2..]].concat();
    assert_eq!(together(&nameless), [Some(0); 3]);
    let made: Vec<_> = fs::read_dir(root.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(made.len(), 3, "{made:?}");
    for run in &made {
        same(&root.join("whole"), run);
    }
}
