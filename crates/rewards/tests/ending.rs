//! Tests that no program of a reward outlives its process. The test needs a process of its own, because `end_programs`
//! cannot be undone.

#![cfg(unix)]

use rewards::{RewardSpec, build, end_programs};
use std::process::Command;

#[test]
fn end_programs_kills_programs_and_prevents_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    // The program and its descendants keep the pipe open for reading. When all of them are dead, opening the pipe for
    // writing fails.
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let script = dir.path().join("reward.sh");
    std::fs::write(&script, format!("exec 3<>'{}'\nsleep 600\n", fifo.display())).unwrap();
    let spec = RewardSpec::from(format!("command:sh {}", script.display()).as_str());
    let _reward = build(&spec, "r".to_owned()).unwrap();
    let until_alive = |alive: bool| {
        testing::wait_until("the program begins, and is killed", || {
            let of = format!("of={}", fifo.display());
            let opened = Command::new("dd").args([&of, "oflag=nonblock", "conv=notrunc", "count=0"]).output().unwrap();
            opened.status.success() == alive
        });
    };
    until_alive(true);
    end_programs();
    until_alive(false);
    let refusal = build(&spec, "r".to_owned()).err().expect("refused").to_string();
    assert!(refusal.contains("this process is exiting"), "{refusal}");
}
