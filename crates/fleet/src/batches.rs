//! Batch files: the results that a training step learns from, written and synced to disk before the update. Generated
//! tokens could be recomputed with the same bits, but scores may differ the second time. Once a checkpoint is complete,
//! the files of earlier batches are deleted.

use crate::coordinator::SyncedBatch;
use crate::error::{OrIo, Result};
use crate::exchange::spool;
use crate::format::{batch_from_bytes, batch_to_bytes};
use crate::ids::BatchId;
use crate::job::JobResult;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The results of a batch, in the order of their job names.
pub type Batch = Vec<JobResult>;

/// The directory of a run's batch files.
#[derive(Debug)]
pub struct BatchFiles {
    directory: PathBuf,
}

impl BatchFiles {
    /// Opens `OUT/fleet/batches` in the run directory `out`.
    pub fn open(out: &Path) -> Result<BatchFiles> {
        let directory = spool::Layout::in_run(out).batches();
        spool::create_dir(&directory)?;
        spool::sweep(&directory)?;
        Ok(BatchFiles { directory })
    }

    /// The path of a batch's file.
    pub fn path(&self, batch: BatchId) -> PathBuf {
        self.directory.join(format!("{batch:06}"))
    }

    /// Writes the file of a batch, and syncs it to disk.
    pub fn save(&self, batch: BatchId, results: &[JobResult]) -> Result<()> {
        spool::write(&self.path(batch), &batch_to_bytes(batch, results), true)
    }

    /// Loads the batches from `first` on, up to the first missing or unreadable file. The files after that one are
    /// deleted, and their batches are generated again. The returned strings give the reasons.
    pub fn load(&self, first: BatchId) -> Result<(BTreeMap<BatchId, Batch>, Vec<String>)> {
        let mut batches = BTreeMap::new();
        let mut problems = Vec::new();
        for batch in self.numbers()?.into_iter().filter(|batch| *batch >= first) {
            if batch.0 != first.0 + batches.len() as u64 {
                problems.push(format!(
                    "{}: an earlier batch is missing; this batch is generated again",
                    self.path(batch).display()
                ));
                self.remove(batch)?;
                continue;
            }
            let bytes = disk::read(self.path(batch), disk::most::GROUPS).or_io("read", &self.path(batch))?;
            match batch_from_bytes(&bytes) {
                Ok((number, results)) if number == batch => drop(batches.insert(batch, results)),
                Ok((number, _)) => {
                    problems.push(format!(
                        "{}: the file contains batch {number}; the batch is generated again",
                        self.path(batch).display()
                    ));
                    self.remove(batch)?;
                }
                Err(why) => {
                    problems.push(format!("{}: {why}; the batch is generated again", self.path(batch).display()));
                    self.remove(batch)?;
                }
            }
        }
        Ok((batches, problems))
    }

    /// Deletes the batches before `first`. Call this once a checkpoint of weights trained on these batches is complete.
    pub fn remove_before(&self, first: BatchId) -> Result<()> {
        self.numbers()?.into_iter().filter(|batch| *batch < first).try_for_each(|batch| self.remove(batch))
    }

    /// Deletes the batches from `first` on.
    pub fn remove_from(&self, first: BatchId) -> Result<()> {
        self.numbers()?.into_iter().filter(|batch| *batch >= first).try_for_each(|batch| self.remove(batch))
    }

    fn remove(&self, batch: BatchId) -> Result<()> {
        let path = self.path(batch);
        disk::remove_file(&path).or_io("delete", &path)
    }

    /// The batches that have a file, in order.
    pub fn numbers(&self) -> Result<Vec<BatchId>> {
        let entries = disk::read_dir(&self.directory).or_io("read", &self.directory)?;
        let mut numbers = Vec::new();
        for entry in entries {
            numbers.extend(entry.file_name().to_str().and_then(|name| name.parse().ok()).map(BatchId));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// The answers to a batch's jobs.
pub fn answers(results: &[JobResult]) -> SyncedBatch {
    results.iter().map(|result| (result.job, result.answer)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Answer, Lineage, WorkerName};
    use crate::testing::job;

    fn result(group: u64) -> JobResult {
        JobResult {
            job: job(group),
            lineage: Lineage([1; 16]),
            worker: WorkerName::new("a").unwrap(),
            answer: Answer::of(b"x"),
            bytes: vec![group as u8; 100],
        }
    }

    #[test]
    fn batches_after_an_unreadable_file_are_deleted() {
        let out = tempfile::tempdir().unwrap();
        let files = BatchFiles::open(out.path()).unwrap();
        for batch in 0..5 {
            files.save(BatchId(batch), &[result(batch)]).unwrap();
        }
        files.remove_before(BatchId(1)).unwrap();
        let mut bytes = std::fs::read(files.path(BatchId(3))).unwrap();
        bytes[40] ^= 4;
        std::fs::write(files.path(BatchId(3)), bytes).unwrap();
        let (batches, problems) = files.load(BatchId(1)).unwrap();
        assert_eq!(batches, BTreeMap::from([1, 2].map(|batch| (BatchId(batch), vec![result(batch)]))));
        assert!(problems[0].contains("000003: wrong checksum"), "{problems:?}");
        assert!(problems[1].contains("000004: an earlier batch is missing"), "{problems:?}");
        assert_eq!(files.numbers().unwrap(), [1, 2].map(BatchId));
    }

    #[test]
    fn partial_batch_files_are_deleted() {
        let out = tempfile::tempdir().unwrap();
        let files = BatchFiles::open(out.path()).unwrap();
        std::fs::write(out.path().join("fleet/batches/.000000"), b"half").unwrap();
        drop(files);
        let files = BatchFiles::open(out.path()).unwrap();
        assert_eq!(std::fs::read_dir(out.path().join("fleet/batches")).unwrap().count(), 0);
        assert_eq!(files.load(BatchId(0)).unwrap().0, BTreeMap::new());
    }

    #[test]
    fn batches_are_loaded_and_deleted_by_range() {
        let out = tempfile::tempdir().unwrap();
        let files = BatchFiles::open(out.path()).unwrap();
        for batch in 0..6 {
            files.save(BatchId(batch), &[result(batch)]).unwrap();
        }
        files.remove_from(BatchId(5)).unwrap();
        files.remove_before(BatchId(1)).unwrap();
        assert_eq!(files.numbers().unwrap(), [1, 2, 3, 4].map(BatchId));
        let (batches, problems) = files.load(BatchId(2)).unwrap();
        assert_eq!((batches.keys().copied().collect::<Vec<_>>(), problems.len()), ([2, 3, 4].map(BatchId).to_vec(), 0));
        assert_eq!(files.numbers().unwrap(), [1, 2, 3, 4].map(BatchId), "earlier batches are kept");
        // A file that is named after a different batch is not loaded, and neither are the files after it.
        std::fs::copy(files.path(BatchId(4)), files.path(BatchId(3))).unwrap();
        let (batches, problems) = files.load(BatchId(2)).unwrap();
        assert_eq!(batches.keys().copied().collect::<Vec<_>>(), [BatchId(2)]);
        assert!(
            problems[0].ends_with("/000003: the file contains batch 4; the batch is generated again"),
            "{problems:?}"
        );
        assert!(
            problems[1].ends_with("/000004: an earlier batch is missing; this batch is generated again"),
            "{problems:?}"
        );
        assert_eq!(files.numbers().unwrap(), [1, 2].map(BatchId));
        let all = answers(&[result(1), result(2)]);
        assert_eq!(all, [1, 2].map(|group| (result(group).job, Answer::of(b"x"))).into());
    }
}
