//! A resumed run regenerates results on disk that do not match their jobs. An earlier learner may have accepted such
//! results.

use super::kinds::{KINDS, Kind, Runs};
use super::{Row, USUAL};
use crate::support::runs::{good, same_but_workers};
use fleet::{GroupId, JobName, JobResult, batch_from_bytes, batch_to_bytes};
use std::fs;
use std::path::{Path, PathBuf};

type Change = fn(&mut Vec<JobResult>, &[JobResult]);

/// Changes to the results in a file; the second argument has the results of the previous file.
const CHANGES: [(&str, Change); 20] = [
    ("an empty result", |all, _| all[0].bytes.clear()),
    ("the last result is empty", |all, _| all.last_mut().unwrap().bytes.clear()),
    ("all results are empty", |all, _| all.iter_mut().for_each(|one| one.bytes.clear())),
    ("half a result", |all, _| half(&mut all[0].bytes)),
    ("a byte fewer", |all, _| cut(&mut all[1].bytes)),
    ("a byte more", |all, _| all[1].bytes.push(0)),
    ("one byte", |all, _| all[0].bytes.truncate(1)),
    ("the first bytes are changed", |all, _| all[0].bytes[..4].fill(0xff)),
    ("a byte in the middle is changed", |all, _| flip(&mut all[1].bytes)),
    ("zeros", |all, _| all[0].bytes.fill(0)),
    ("text", |all, _| all[0].bytes = b"{\"group\": 8}".to_vec()),
    ("the result of another group", |all, _| all[0].bytes = all[1].bytes.clone()),
    ("the result of another batch", |all, before| all[0].bytes = before[0].bytes.clone()),
    ("two results are swapped", |all, _| swap(all)),
    ("a result is repeated", |all, _| twice(&mut all[0].bytes)),
    ("another fingerprint", |all, _| all[0].answer.fingerprint ^= 1),
    ("a result is marked as unfinished", |all, _| all[1].answer.more = true),
    ("a missing answer", |all, _| drop(all.remove(0))),
    ("no answer", |all, _| all.clear()),
    ("a result of a later batch", |all, _| all[1].job = JobName::first(GroupId(22))),
];

fn half(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() / 2);
}

fn cut(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() - 1);
}

fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
}

fn twice(bytes: &mut Vec<u8>) {
    bytes.extend(bytes.clone());
}

fn swap(all: &mut [JobResult]) {
    let first = all[0].bytes.clone();
    all[0].bytes = std::mem::replace(&mut all[1].bytes, first);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The batch files of the run, in order.
fn batches(run: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.join("fleet/batches")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| file.file_name().and_then(|name| name.to_str()).is_some_and(|name| !name.starts_with('.')));
    files.sort();
    files
}

/// A run of this kind that was killed after its first checkpoint, when two batches had followed. On a busy machine, a
/// run can reach another checkpoint before it is killed, which deletes these batches or makes them useless. Then
/// another run is started.
fn killed_between_checkpoints<'a>(runs: &'a Runs, kind: &'a Kind) -> Row<'a> {
    let attempts = (0..10).map(|attempt| {
        let row = Row { runs, kind, out: format!("killed-{}-{attempt}", kind.name.replace(' ', "")) };
        let mut child = row.begin(&USUAL);
        let has_batches = || {
            let files = batches(&row.run());
            files.len() >= 2 && files[0].ends_with("000004")
        };
        let saved = |step: &str| row.run().join("checkpoints").join(step).is_dir();
        testing::wait_until("two batches follow the first checkpoint", || {
            saved("step-000008") || saved("step-000004") && has_batches()
        });
        row.kill_all(&mut child);
        row.hurry();
        row.ended(child);
        // A learner that outlives its supervisor for a moment saves its last step.
        let is_saved_once = fs::read_dir(row.run().join("checkpoints")).is_ok_and(|entries| {
            let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.starts_with("step-")).eq(["step-000004"])
        });
        let is_between = is_saved_once && has_batches();
        (row, is_between)
    });
    attempts.filter(|(_, is_between)| *is_between).map(|(row, _)| row).next().expect("no run was killed in time")
}

/// Changes a file in copies of a killed run, and resumes them.
fn try_all(rows: &[(&str, Change)]) {
    let runs = Runs::new();
    for kind in KINDS.iter().filter(|kind| ["k = 0", "k = 1"].contains(&kind.name)) {
        let row = killed_between_checkpoints(&runs, kind);
        for (number, (what, change)) in rows.iter().enumerate() {
            let out = format!("{}-{number}", row.out);
            let run = runs.root().join(&out);
            copy(&row.run(), &run);
            let files = batches(&run);
            // Half of the rows change the last file, the others a file that is followed by other files.
            let place = if number % 2 == 0 { files.len() - 1 } else { 1 };
            let read = |file: &Path| batch_from_bytes(&fs::read(file).unwrap()).unwrap();
            let (before, (batch, mut all)) = (read(&files[place - 1]).1, read(&files[place]));
            change(&mut all, &before);
            fs::write(&files[place], batch_to_bytes(batch, &all)).unwrap();
            let output = good(runs.root(), &["train", "--resume", &out, "--distributed", "--workers", "2"]);
            let is_reported = ["recomputed", "generated again"].iter().any(|text| output.err.contains(text));
            assert!(is_reported, "{}, {what}: {}", kind.name, output.err);
            same_but_workers(&runs.whole(kind), &run);
        }
    }
}

#[test]
fn some_damaged_results_are_regenerated() {
    try_all(&[CHANGES[0], CHANGES[13]]);
}

#[test]
#[ignore = "minutes: cargo xtask nightly fleet_ends"]
fn all_damaged_results_are_regenerated() {
    try_all(&CHANGES);
}
