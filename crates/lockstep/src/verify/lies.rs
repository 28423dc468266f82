//! Wrong values in each field of a run's files, with correct checksums: each is reported, or its field is in a list of
//! fields that are not compared. docs/verify.md has these lists, with reasons. A field that is not in either makes a
//! test fail.

mod checkpoint;
mod groups;
mod run_record;

use super::tests::{directory, run, verified};
use super::*;
use crate::config::Config;
use crate::rollouts::wire::Group;
use crate::rollouts::wire::file::{GroupFile, GroupLog};
use crate::rollouts::wire::lies::split;
use std::fs;

const DOCS: &str = include_str!("../../../../docs/verify.md");

/// The settings of one kind of run.
type Change = fn(&mut Config);

/// Checks that the table in docs/verify.md has a row for the field.
#[track_caller]
fn is_documented(file: &str, field: &str) {
    let row = |line: &&str| line.starts_with(&format!("| {file} |")) && line.contains(&format!("`{field}`"));
    assert!(DOCS.lines().any(|line| row(&line)), "docs/verify.md has no row of {file}, `{field}`");
}

/// A run of two steps with checkpoints, whose rewards return problems, metrics and scores.
fn small(dir: &Path, change: impl FnOnce(&mut Config)) -> PathBuf {
    let answers = ["\"ab\"", "null", "[\"m\", \"o\"]", "3", "null", "\"r\""];
    let row = |(word, answer): (&str, &str)| format!("{{\"prompt\": \"{word} \", \"answer\": {answer}}}\n");
    let rows: Vec<String> = ["ab", "sun", "moon", "tree", "x", "river"].into_iter().zip(answers).map(row).collect();
    fs::write(dir.join("d.jsonl"), rows.concat()).unwrap();
    run(dir, |config| {
        config.reward_funcs = vec!["unique_chars".into(), "exact_match".into()];
        (config.max_steps, config.save_steps, config.beta) = (2, 1, 0.1);
        change(config);
    })
}

/// The records of a file, as bytes.
fn read(path: &Path) -> Vec<Vec<u8>> {
    split(&fs::read(path).unwrap())
}

/// Rewrites a file of groups, with its index if the records can be read.
fn write(path: &Path, records: &[Vec<u8>]) {
    for path in [path.to_owned(), path.with_extension("idx")] {
        let _ = fs::remove_file(path);
    }
    if GroupLog::open(path).unwrap().append(&records.concat()).is_err() {
        fs::write(path, records.concat()).unwrap();
    }
}

/// The reported difference, which every wrong value must cause.
#[track_caller]
fn convicted(root: &Path, lie: &str) -> Difference {
    let report = verified(root);
    report.difference.unwrap_or_else(|| panic!("{lie}: {:?}, {:?}", report.proven, report.not_verified))
}

#[track_caller]
fn proven(root: &Path, lie: &str) {
    let report = verified(root);
    assert!(report.difference.is_none() && report.not_verified.is_empty(), "{lie}: {report:?}");
}

fn groups_of(records: &[Vec<u8>]) -> Vec<Group> {
    Group::read_all(&records.concat()).unwrap()
}

/// Files that users may add to a result, and files that they may not.
#[test]
fn a_result_has_the_files_of_its_checkpoint_and_added_texts() {
    let dir = directory();
    let root = small(dir.path(), |config| config.max_steps = 1);
    proven(&root, "the result as it was");
    let file = GroupFile::open(&root.join("rollouts.bin")).unwrap();
    assert_eq!(file.index().len(), 2);
    let result = root.join("model");
    for name in files::ADDED {
        fs::write(result.join(name), "a text").unwrap();
        proven(&root, name);
        is_documented("`model/`", name);
    }
    let mut model: Vec<PathBuf> = fs::read_dir(&result).unwrap().map(|entry| entry.unwrap().path()).collect();
    model.retain(|path| !files::ADDED.iter().any(|name| path.ends_with(name)));
    assert!(model.len() >= 4, "{model:?}");
    for path in &model {
        let bytes = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        let found = convicted(&root, &path.display().to_string());
        let expected = (&*path.display().to_string(), "none", "the file");
        assert_eq!((&*found.place.unwrap(), &*found.recorded, &*found.remade), expected);
        fs::write(path, bytes).unwrap();
    }
    proven(&root, "the result as it was");
    // All files are missing, as if the directory had been emptied.
    let kept: Vec<Vec<u8>> = model.iter().map(|path| fs::read(path).unwrap()).collect();
    for path in &model {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(convicted(&root, "an empty directory").kind, "file");
    model.iter().zip(kept).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    proven(&root, "the result as it was");
}
