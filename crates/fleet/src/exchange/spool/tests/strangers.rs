//! Tests with a run directory from an untrusted source, whose files and directories may be links out of the run, named
//! pipes, devices or sparse files.

use super::{job, result};
use crate::batches::BatchFiles;
use crate::exchange::spool::{Layout, SpoolLearner, SpoolWorker};
use crate::exchange::{Exchange, WorkerExchange, WorkerStatus};
use crate::ids::BatchId;
use crate::status;
use crate::testing::name;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

/// One path for each kind of file and directory in a spool.
const PLACES: [&str; 14] = [
    "",
    "batches",
    "pending",
    "workers",
    "workers/dev1",
    "processing_by_dev1",
    "complete_from_dev1",
    "learner.json",
    "learner.lock",
    "workers/dev1/alive.lock",
    "workers/dev1/status.json",
    "pending/000000.0",
    "complete_from_dev1/000001.0",
    "batches/000000",
];

/// Replaces a file by something unexpected. The arguments are the file's path and the directory outside the run.
type Replace = fn(&Path, &Path);
const KINDS: [(&str, Replace); 6] = [
    ("link to a directory", |path, outside| symlink(outside, path).unwrap()),
    ("link to a file", |path, outside| symlink(outside.join("thesis"), path).unwrap()),
    ("link to a device", |path, _| symlink("/dev/zero", path).unwrap()),
    ("named pipe", |path, _| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap()),
    ("directory", |path, _| fs::create_dir_all(path.join("deep")).unwrap()),
    ("sparse file", |path, _| File::create(path).unwrap().set_len(3 << 30).unwrap()),
];

type Operation = fn(&Path) -> crate::Result<()>;

/// All operations that open a spool.
const OPERATIONS: [(&str, Operation); 7] = [
    ("a learner", |out| {
        let mut learner = SpoolLearner::open(out)?;
        learner.poll()?;
        learner.offer(&job(2, ""))?;
        learner.discard(&name("dev1"), job(1, "").name)?;
        learner.acknowledge(&[job(1, "").name])?;
        learner.withdraw(job(0, "").name)
    }),
    ("a worker", |out| {
        let mut worker = SpoolWorker::join(out, name("dev1"))?;
        worker.report(&WorkerStatus::default())?;
        worker.learner()?;
        worker.claim(&[]).and_then(|claimed| match claimed {
            Some(job) => worker.complete(&result(&job, "dev1")),
            None => Ok(()),
        })
    }),
    ("the batches", |out| {
        let files = BatchFiles::open(out)?;
        files.save(BatchId(1), &[result(&job(3, ""), "dev1")])?;
        files.load(BatchId(0))?;
        files.remove_before(BatchId(9))
    }),
    ("a learner with other settings", |out| Layout::in_run(out).forget_results()),
    ("the directories", |out| Layout::in_run(out).create()),
    ("the status", |out| status::read(out).map(drop)),
    ("a job's files", |out| (0..3).try_for_each(|group| status::find(out, crate::testing::job(group)).map(drop))),
];

/// A spool with all files, and a directory next to it that must stay unchanged.
fn spool() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    {
        let mut learner = SpoolLearner::open(&out).unwrap();
        let mut worker = SpoolWorker::join(&out, name("dev1")).unwrap();
        worker.report(&WorkerStatus::default()).unwrap();
        learner.offer(&job(1, "")).unwrap();
        let claimed = worker.claim(&[]).unwrap().unwrap();
        worker.complete(&result(&claimed, "dev1")).unwrap();
        learner.offer(&job(0, "")).unwrap();
        BatchFiles::open(&out).unwrap().save(BatchId(0), &[result(&job(0, ""), "dev1")]).unwrap();
        fs::write(out.join("fleet/learner.json"), claim(0, 1, 1, 0).to_string()).unwrap();
    }
    let outside = dir.path().join("outside");
    fs::create_dir_all(outside.join("deep")).unwrap();
    for name in ["thesis", ".profile", "000000", "000000.0", "000001.0", "alive.lock", "status.json", "learner.lock"] {
        fs::write(outside.join(name), "years of work").unwrap();
    }
    (dir, out)
}

/// The state file of a learner that has ended.
fn claim(step: u64, batches: u64, groups: u64, max_staleness: u64) -> serde_json::Value {
    serde_json::json!({
        "pid": 1, "step": step, "batches": batches, "groups": groups, "max_staleness": max_staleness,
        "lineage": "00000000000000000000000000000000", "ended": false, "slots": [],
        "checkpoints": {"last": null, "waiting": []}, "counts": crate::exchange::Counts::default(),
    })
}

fn contents(outside: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = paths.map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect();
    all.sort();
    all
}

/// Runs an operation on its own thread, so that a hang fails the test.
fn ended(what: &str, operation: Operation, out: &Path) -> Result<(), String> {
    let (send, receive) = channel();
    let out = out.to_owned();
    std::thread::spawn(move || send.send(operation(&out).map_err(|error| error.to_string())));
    testing::receive(what, &receive)
}

#[test]
fn no_file_of_a_spool_leads_out_of_the_run_or_blocks() {
    let mut refused = 0;
    for place in PLACES {
        for (kind, make) in KINDS {
            for (who, operation) in OPERATIONS {
                // Skip operations that do not open this path.
                let opens = match who {
                    "the batches" => ["", "batches", "batches/000000"].contains(&place),
                    "a learner with other settings" => {
                        ["", "batches", "complete_from_dev1", "workers"].contains(&place)
                    }
                    "the directories" => ["", "pending", "workers"].contains(&place),
                    "a learner" => !place.starts_with("processing"),
                    "a worker" => place != "batches",
                    "the status" => !place.is_empty(),
                    _ => !["batches", "workers/dev1"].contains(&place) && !place.ends_with(".lock"),
                };
                if !opens {
                    continue;
                }
                let (dir, out) = spool();
                let path = out.join("fleet").join(place);
                let is_dir = path.is_dir();
                if is_dir {
                    fs::remove_dir_all(&path).unwrap()
                } else {
                    fs::remove_file(&path).unwrap()
                }
                let outside = dir.path().join("outside");
                // The path must not end with a slash, which would follow a link.
                make(&path.components().collect::<PathBuf>(), &outside);
                let before = contents(&outside);
                let case = format!("{who}, with a {kind} as fleet/{place}");
                let outcome = ended(&case, operation, &out);
                assert_eq!(contents(&outside), before, "{case}: {outcome:?}");
                let name = path.components().next_back().unwrap().as_os_str().to_string_lossy().into_owned();
                if let Err(text) = &outcome {
                    assert!(text.contains(&name), "{case}: {text}");
                    refused += 1;
                }
                let is_followed = is_dir && kind == "link to a directory" && outcome.is_ok();
                assert!(!is_followed, "{case}: the link was followed");
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

/// The learner's state may come from an untrusted source: the status lists only a part of the range that it claims, and
/// sums do not overflow.
#[test]
fn an_untrusted_learner_state_costs_neither_memory_nor_time() {
    let most = u64::MAX;
    let rows: [(u64, u64, u64, u64, usize); 20] = [
        (0, 4, 1, 2, 2),
        (3, 4, 1, 2, 1),
        (4, 4, 1, 2, 0),
        (0, 0, 0, 0, 1),
        (0, 9, 0, 0, 1),
        (2, 9, 3, 1, 4),
        (0, 1 << 63, 20_000, 1, 1000),
        (0, 1 << 63, 1 << 24, 1, 1000),
        (0, 1 << 63, 1 << 40, 1, 1000),
        (0, most, most, 1, 1000),
        (0, most, most, most, 1000),
        (5, most, most, 0, 1000),
        (most, most, most, most, 0),
        (most - 1, most, most, 1, 1),
        (most, 1, 1, 1, 0),
        (1 << 63, most, 1 << 63, 1, 1000),
        (most - 5, most, 10, 1, 5),
        (0, 999, most, 1, 999),
        (0, 1000, most, 1, 1000),
        (0, 1001, most, 1, 1000),
    ];
    for (step, batches, max_staleness, groups, listed) in rows {
        let (_dir, out) = spool();
        let learner = claim(step, batches, groups, max_staleness);
        fs::write(out.join("fleet/learner.json"), learner.to_string()).unwrap();
        let status = status::read(&out).unwrap();
        assert!(status.learner.is_some(), "{learner}");
        assert_eq!(status.batches.len(), listed, "{learner}");
        status::find(&out, crate::testing::job(0)).unwrap();
        status::find(&out, crate::testing::chunk(most, u32::MAX)).unwrap();
    }
}
