//! The batches in a checkpoint of an online run; a resume refuses damaged ones.

use crate::config::{ComputeDType, Config, Purpose};
use crate::rollouts::wire::{Group, RecordReader};
use crate::verify::tests::{directory, run};
use crate::{Run, RunOptions};
use std::path::Path;

/// The error of a run that resumes from `checkpoint` with different bytes in the file `name`.
fn refused(checkpoint: &Path, name: &str, bytes: &[u8]) -> String {
    let file = checkpoint.join(name);
    let good = std::fs::read(&file).unwrap();
    std::fs::write(&file, bytes).unwrap();
    // The list of files is removed: it would report the damage first, and is not under test.
    let _ = std::fs::remove_file(checkpoint.join("files.json"));
    let ctx = crate::context(None, Some(1), ComputeDType::F32).unwrap();
    let error = Run::resume(Purpose::Grpo, checkpoint, RunOptions::new().context(ctx)).err().expect("refused");
    std::fs::write(&file, good).unwrap();
    let text = format!("{error:#}");
    let at = text.find(name).unwrap_or_else(|| panic!("{text}"));
    // The advice on how to resume is removed, because it does not depend on this file.
    text[at..].split("; no earlier checkpoint exists").next().unwrap_or_default().to_owned()
}

/// The bytes of each batch in a file. `records` returns how many records follow the first record of a batch.
fn batches(bytes: &[u8], records: impl Fn(&RecordReader<'_>) -> u64) -> Vec<Vec<u8>> {
    let (mut batches, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (head, mut behind) = RecordReader::take(rest).unwrap();
        (0..records(&head)).for_each(|_| behind = RecordReader::take(behind).unwrap().1);
        batches.push(rest[..rest.len() - behind.len()].to_vec());
        rest = behind;
    }
    batches
}

#[test]
fn begun_batches_in_a_checkpoint_must_be_the_next_ones() {
    let dir = directory();
    let root = run(dir.path(), |config: &mut Config| {
        (config.max_staleness, config.partial_rollout_tokens) = (2, Some(2));
    });
    let (checkpoint, name) = (root.join("checkpoints/step-000002"), "frontier.begun.bin");
    let bytes = std::fs::read(checkpoint.join(name)).unwrap();
    let all = batches(&bytes, |head| 2 * head.uints("begun").unwrap().unwrap()[2]);
    let words = "frontier.begun.bin does not have the next 2 batches, with the groups from number 4 on";
    assert_eq!(all.len(), 2);
    assert_eq!(refused(&checkpoint, name, &[&all[1][..], &all[0]].concat()), words);
    assert_eq!(refused(&checkpoint, name, &all[0]), words);
    assert_eq!(refused(&checkpoint, name, &[&all[0][..], &all[0]].concat()), words);
}

#[test]
fn batches_ahead_in_a_checkpoint_must_be_the_next_ones() {
    let dir = directory();
    let root = run(dir.path(), |config: &mut Config| config.max_staleness = 2);
    let (checkpoint, name) = (root.join("checkpoints/step-000002"), "frontier.bin");
    let bytes = std::fs::read(checkpoint.join(name)).unwrap();
    let all = batches(&bytes, |head| head.uints("groups").unwrap().unwrap()[0]);
    assert_eq!(all.len(), 2);
    let words = "frontier.bin does not have the next groups, from number 4 on";
    assert_eq!(refused(&checkpoint, name, &[&all[1][..], &all[0]].concat()), words);
    let fewer = "frontier.bin has 1 batches, but run_state.json records 2";
    assert_eq!(refused(&checkpoint, name, &all[0]), fewer);
    let more = "frontier.bin has 3 batches, but run_state.json records 2";
    assert_eq!(refused(&checkpoint, name, &[&bytes[..], &all[0]].concat()), more);
}

#[test]
fn the_current_batch_must_have_the_expected_samples() {
    let dir = directory();
    let root = run(dir.path(), |config: &mut Config| (config.num_iterations, config.save_steps) = (2, 3));
    let (checkpoint, name) = (root.join("checkpoints/step-000003"), "generation_batch.bin");
    let bytes = std::fs::read(checkpoint.join(name)).unwrap();
    let mut groups = Group::read_all(&bytes).unwrap();
    groups[1].completions.pop();
    let mut fewer = Vec::new();
    for group in &groups {
        group.write(&mut fewer);
    }
    let words = "generation_batch.bin has 3 samples, but run_state.json records 4";
    assert_eq!(refused(&checkpoint, name, &fewer), words);
    let error = refused(&checkpoint, name, &bytes[..bytes.len() - 1]);
    assert!(error.starts_with("generation_batch.bin: record 1, at byte "), "{error}");
}
