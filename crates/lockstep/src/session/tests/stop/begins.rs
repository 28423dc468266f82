//! How runs begin and continue, and what is said of it.

use super::super::{config, directory, one_thread, options, rows};
use super::ends::Seen;
use crate::config::{Config, Purpose, Strategy};
use crate::{Run, RunOptions};
use std::ops::ControlFlow::{Break, Continue};
use std::path::{Path, PathBuf};
use telemetry::record::RunRecord;

fn sft() -> RunOptions {
    RunOptions::new().context(one_thread()).train_rows(rows())
}

fn every_step(dir: &Path, out: &str) -> Config {
    Config { save_strategy: Strategy::Steps, save_steps: 1, logging_steps: 1, ..config(dir, out) }
}

/// A run that its caller ended after this step.
fn ended(dir: &Path, out: &str, last: u64) -> PathBuf {
    let options = sft().on_step(move |step| if step == last { Break(()) } else { Continue(()) });
    let run = Run::new(Purpose::Sft, every_step(dir, out), options).unwrap().run().unwrap();
    run.dir.root().to_owned()
}

/// What is said when the run is resumed, and the step that it continues after.
fn resumed(from: &Path) -> (Vec<String>, u64) {
    let seen = Seen::default();
    let run = Run::resume(Purpose::Sft, from, sft().sink(seen.clone())).unwrap();
    (seen.messages(), run.steps_done())
}

#[track_caller]
fn says(messages: &[String], words: &str) {
    assert!(messages.iter().any(|text| text == words), "{words:?} is not in {messages:#?}");
}

#[test]
fn a_run_continues_after_the_checkpoint_that_is_named() {
    let dir = directory();
    let root = ended(dir.path(), "out", 3);
    let place = root.display();
    let (messages, step) = resumed(&root);
    assert_eq!(step, 3);
    says(&messages, &format!("resuming after step 3 from {place}/checkpoints/step-000003"));
    assert!(!messages.iter().any(|text| text.contains("is kept in") || text.contains("was killed")), "{messages:#?}");
    let (messages, step) = resumed(&root.join("checkpoints/step-000001"));
    assert_eq!(step, 1);
    says(&messages, &format!("what the run did after step 1 is kept in {place}/abandoned/after-step-000001"));
    says(&messages, &format!("resuming after step 1 from {place}/checkpoints/step-000001"));
    let starts = RunRecord::read(&root.join("record.json")).unwrap().starts;
    assert_eq!(starts.iter().map(|start| start.step).collect::<Vec<_>>(), [0, 3, 1]);
    assert!(starts.iter().all(|start| start.changed.is_empty()), "{starts:?}");
}

#[test]
fn a_run_that_moved_or_was_killed_is_told() {
    let dir = directory();
    let root = ended(dir.path(), "out", 1);
    let moved = dir.path().join("moved");
    std::fs::rename(&root, &moved).unwrap();
    let killed = r#"{"pid": 1, "host": "elsewhere", "since_s": 5, "command": ["lockstep", "sft"]}"#;
    std::fs::write(moved.join("run.lock"), killed).unwrap();
    let (messages, _) = resumed(&moved);
    let (old, new) = (root.display(), moved.display());
    says(&messages, &format!("the run's directory was {old}, and is now {new}"));
    let word = |text: &String| text.starts_with("process 1 on elsewhere (`lockstep sft`, for ");
    let killed = messages.iter().find(|text| word(text)).unwrap_or_else(|| panic!("{messages:#?}"));
    assert!(killed.ends_with(") was killed while it wrote into this directory"), "{killed}");
    let (messages, _) = resumed(&moved);
    assert!(!messages.iter().any(|text| text.contains("was killed") || text.contains("is now")), "{messages:#?}");
}

#[test]
fn a_run_without_a_checkpoint_starts_again() {
    let dir = directory();
    let root = ended(dir.path(), "out", 2);
    std::fs::remove_dir_all(root.join("checkpoints")).unwrap();
    std::fs::remove_dir_all(root.join("model")).unwrap();
    let (messages, step) = resumed(&root);
    assert_eq!(step, 0);
    let place = root.display();
    says(&messages, &format!("{place} has no checkpoint: the run starts again from step 0"));
    says(&messages, &format!("what the run did after step 0 is kept in {place}/abandoned/after-step-000000"));
    assert!(!messages.iter().any(|text| text.starts_with("resuming")), "{messages:#?}");
}

#[test]
fn other_data_or_another_task_is_not_continued_with() {
    let dir = directory();
    let root = ended(dir.path(), "out", 1);
    let resume = |purpose, options: RunOptions| Run::resume(purpose, &root, options).err().map(|e| format!("{e:#}"));
    let other = crate::Rows::try_from(vec![serde_json::json!({"prompt": "x", "completion": "y"}); 6]).unwrap();
    let data = resume(Purpose::Sft, RunOptions::new().context(one_thread()).train_rows(other)).unwrap();
    assert!(data.contains("memory: the training data is not what the run began with"), "{data}");
    let task = resume(Purpose::Grpo, options()).unwrap();
    assert!(task.contains("is a run of `lockstep sft`: resume it with that, not with `lockstep train`"), "{task}");
    assert_eq!(resume(Purpose::Sft, sft()), None);
    // A run that is there already is not overwritten.
    let again = Run::new(Purpose::Sft, every_step(dir.path(), "out"), sft()).err().unwrap().to_string();
    assert!(again.contains("already holds a run; resume it with --resume"), "{again}");
}

/// A checkpoint whose files are of different steps, or that is damaged, is refused with the one before it.
#[test]
fn a_damaged_checkpoint_is_refused_with_the_one_before_it() {
    let dir = directory();
    let root = ended(dir.path(), "out", 2);
    let state = root.join("checkpoints/step-000002/run_state.json");
    let mut bytes = std::fs::read(&state).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let error = Run::resume(Purpose::Sft, &root, sft()).err().unwrap();
    assert!(crate::error::is_bad_input(&error));
    let fix = format!("resume from the checkpoint before it with --resume {}/checkpoints/step-000001", root.display());
    assert!(error.to_string().ends_with(&fix), "{error:#}");
    let (_, step) = resumed(&root.join("checkpoints/step-000001"));
    assert_eq!(step, 1);
}
