//! How runs begin and continue, and the messages about it.

use super::super::{config, directory, one_thread, rows};
use super::ends::Seen;
use crate::config::{Config, Purpose, Strategy};
use crate::{Run, RunOptions};
use std::ops::ControlFlow::{Break, Continue};
use std::path::{Path, PathBuf};
use telemetry::Step;
use telemetry::record::RunRecord;

fn sft() -> RunOptions {
    RunOptions::new().context(one_thread()).train_rows(rows())
}

fn every_step(dir: &Path, out: &str) -> Config {
    Config { save_strategy: Strategy::Steps, save_steps: 1, logging_steps: 1, ..config(dir, out) }
}

/// A run that its caller ended after this step.
fn ended(dir: &Path, out: &str, last: u64) -> PathBuf {
    let options = sft().on_step(move |step| if step == Step(last) { Break(()) } else { Continue(()) });
    let run = Run::new(Purpose::Sft, every_step(dir, out), options).unwrap().run().unwrap();
    run.dir.root().to_owned()
}

/// The messages when the run is resumed, and the step from which it continues.
fn resumed(from: &Path) -> (Vec<String>, u64) {
    let seen = Seen::default();
    let run = Run::resume(Purpose::Sft, from, sft().sink(seen.clone())).unwrap();
    (seen.messages(), run.last_step().0)
}

#[track_caller]
fn says(messages: &[String], words: &str) {
    assert!(messages.iter().any(|text| text == words), "{words:?} is not in {messages:#?}");
}

#[test]
fn a_run_continues_from_the_named_checkpoint() {
    let dir = directory();
    let root = ended(dir.path(), "out", 3);
    let place = root.display();
    let (messages, step) = resumed(&root);
    assert_eq!(step, 3);
    says(&messages, &format!("resuming after step 3 from {place}/checkpoints/step-000003"));
    assert!(!messages.iter().any(|text| text.contains("are kept in") || text.contains("was killed")), "{messages:#?}");
    let (messages, step) = resumed(&root.join("checkpoints/step-000001"));
    assert_eq!(step, 1);
    says(&messages, &format!("the steps after step 1 are kept in {place}/abandoned/after-step-000001"));
    says(&messages, &format!("resuming after step 1 from {place}/checkpoints/step-000001"));
    let starts = RunRecord::read(&root.join("record.json")).unwrap().starts;
    assert_eq!(starts.iter().map(|start| start.step.0).collect::<Vec<_>>(), [0, 3, 1]);
    assert!(starts.iter().all(|start| start.changed.is_empty()), "{starts:?}");
}

#[test]
fn a_resume_reports_a_moved_or_killed_run() {
    let dir = directory();
    let root = ended(dir.path(), "out", 1);
    let moved = dir.path().join("moved");
    std::fs::rename(&root, &moved).unwrap();
    let killed = r#"{"pid": 1, "host": "elsewhere", "since_s": 5, "command": ["lockstep", "sft"]}"#;
    std::fs::write(moved.join("run.lock"), killed).unwrap();
    let (messages, _) = resumed(&moved);
    let (old, new) = (root.display(), moved.display());
    says(&messages, &format!("the run's directory was moved from {old} to {new}"));
    let word = |text: &String| text.starts_with("process 1 on elsewhere (`lockstep sft`, for ");
    let killed = messages.iter().find(|text| word(text)).unwrap_or_else(|| panic!("{messages:#?}"));
    assert!(killed.ends_with(") was killed while it wrote into this directory"), "{killed}");
    let (messages, _) = resumed(&moved);
    assert!(!messages.iter().any(|text| text.contains("was killed") || text.contains("was moved")), "{messages:#?}");
}
