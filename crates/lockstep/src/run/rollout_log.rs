//! Writes groups of completions to three files: `rollouts.bin` has the groups that a run trained on, `updates.bin` the
//! effect of optimizer steps on some of them, and `evaluations.bin` the groups of evaluations.

use crate::rollouts::wire::file::GroupLog;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use telemetry::{Error, Event, EventKind, Result, Sink, Step};

/// The kind of groups in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Groups that the run trains on.
    Rollouts,
    /// Records of the effect of optimizer steps on some of these groups.
    Updates,
    /// Groups of evaluations.
    Evaluations,
}

impl Recorded {
    /// The file's name in a checkpoint's table of log lengths.
    fn name(self) -> &'static str {
        match self {
            Recorded::Rollouts => "rollouts.bin",
            Recorded::Updates => "updates.bin",
            Recorded::Evaluations => "evaluations.bin",
        }
    }

    /// The bytes of the records in `event`, if it is of this kind.
    fn record(self, event: &EventKind) -> Option<&[u8]> {
        match (self, event) {
            (Recorded::Rollouts, EventKind::Rollout { record })
            | (Recorded::Updates, EventKind::Update { record })
            | (Recorded::Evaluations, EventKind::Evaluated { record }) => Some(record),
            _ => None,
        }
    }
}

/// Appends records to one of these files and its index. Training does not depend on them, so the run continues if a
/// record cannot be written.
#[derive(Debug)]
pub struct RolloutLog {
    log: GroupLog,
    kind: Recorded,
    /// The largest size of the file in bytes.
    most: u64,
    /// True once recording has stopped.
    ended: bool,
    /// The reason why recording stopped, until it is reported.
    note: Option<String>,
}

impl RolloutLog {
    /// Opens the file, to append up to `most` bytes. An incomplete group at its end, left by a killed process, is
    /// removed.
    pub fn open(kind: Recorded, path: &Path, most: Option<usize>) -> Result<RolloutLog> {
        let log = GroupLog::open(path).map_err(|source| Error::Io { action: "open", path: path.to_owned(), source })?;
        let most = most.map_or(u64::MAX, |most| most as u64);
        Ok(RolloutLog { log, kind, most, ended: false, note: None })
    }

    /// Stops recording; the reason is reported at the next step.
    fn end(&mut self, why: &str) {
        self.ended = true;
        let path = self.log.path().display();
        self.note = Some(format!("{path}: {why}; the run continues without recording rollouts"));
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = self.log.path().to_owned();
        move |source| Error::Io { action, path, source }
    }
}

impl Sink for RolloutLog {
    fn receive(&mut self, event: &Event) -> Result<()> {
        let Some(record) = self.kind.record(&event.kind) else { return Ok(()) };
        if self.ended {
            return Ok(());
        }
        if self.log.len().saturating_add(record.len() as u64) > self.most {
            self.end(&format!("the next groups would make it larger than {} bytes (max_rollouts_bytes)", self.most));
        } else if let Err(error) = self.log.append(record) {
            self.end(&format!("cannot write it: {error}"));
        }
        Ok(())
    }

    fn check(&mut self) -> Result<Option<String>> {
        if let Some(note) = self.note.take() {
            return Ok(Some(note));
        }
        let failed = self.failed("write again");
        self.log.check().map_err(failed)
    }

    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        let failed = self.failed("sync");
        self.log.sync().map_err(failed)?;
        lengths.insert(self.kind.name().to_owned(), self.log.len());
        Ok(())
    }

    fn resume(&mut self, _step: Step, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        self.ended = false;
        let (recorded, there) = (lengths.get(self.kind.name()).copied().unwrap_or(0), self.log.len());
        let path = self.log.path().display().to_string();
        if recorded > there {
            return Ok(Some(format!(
                "{path} was deleted or shortened: it had {recorded} bytes at the checkpoint and now has {there}; the \
                 run resumes with the remaining groups"
            )));
        }
        let failed = self.failed("truncate");
        let end = self.log.truncate(recorded).map_err(failed)?;
        Ok((end < recorded).then(|| {
            format!(
                "{path} does not match the checkpoint, which ends within a record: truncated before this record, at \
                 byte {end}"
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollouts::wire::Group;
    use crate::rollouts::wire::file::GroupFile;
    use model::GroupId;

    const NAME: &str = "rollouts.bin";

    fn receive(log: &mut RolloutLog, group: u64) {
        let mut record = Vec::new();
        Group { group: GroupId(group), ..Group::default() }.write(&mut record);
        log.receive(&EventKind::Rollout { record }.into()).unwrap();
    }

    #[test]
    fn a_resumed_run_has_the_groups_of_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let mut log = RolloutLog::open(Recorded::Rollouts, &path, None).unwrap();
        receive(&mut log, 1);
        let mut lengths = BTreeMap::new();
        log.checkpoint(&mut lengths).unwrap();
        receive(&mut log, 2);
        drop(log);

        let mut log = RolloutLog::open(Recorded::Rollouts, &path, None).unwrap();
        let ids = || GroupFile::open(&path).unwrap().index().iter().map(|entry| entry.group.0).collect::<Vec<_>>();
        let note = log.resume(Step(1), &BTreeMap::from([(NAME.to_owned(), 10_000)])).unwrap().unwrap();
        assert!(note.contains("rollouts.bin was deleted or shortened") && ids() == [1, 2], "{note}");
        let inside = BTreeMap::from([(NAME.to_owned(), lengths[NAME] + 3)]);
        assert!(log.resume(Step(1), &inside).unwrap().unwrap().contains("ends within a record"));
        assert_eq!((log.resume(Step(1), &lengths).unwrap(), ids()), (None, vec![1]));
        receive(&mut log, 3);
        assert_eq!(ids(), [1, 3]);
        log.resume(Step(0), &BTreeMap::new()).unwrap();
        assert!(ids().is_empty());
    }

    #[test]
    fn recording_ends_with_a_warning_at_the_limit_or_if_writing_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let ids = |path: &Path| GroupFile::open(path).unwrap().index().iter().map(|e| e.group.0).collect::<Vec<_>>();
        let mut log = RolloutLog::open(Recorded::Rollouts, &path, None).unwrap();
        receive(&mut log, 1);
        let one = log.log.len() as usize;
        let mut log = RolloutLog::open(Recorded::Rollouts, &path, Some(2 * one)).unwrap();
        for group in 2..6 {
            receive(&mut log, group);
        }
        assert_eq!(ids(&path), [1, 2]);
        let note = log.check().unwrap().unwrap();
        assert!(note.contains("rollouts.bin") && note.contains("max_rollouts_bytes"), "{note}");
        assert_eq!(log.check().unwrap(), None, "the note is returned once");
        // A run that resumes from before the limit records again.
        log.resume(Step(1), &BTreeMap::from([(NAME.to_owned(), one as u64)])).unwrap();
        receive(&mut log, 7);
        assert_eq!(ids(&path), [1, 7]);

        // Invalid bytes are used to make writing fail.
        let mut log = RolloutLog::open(Recorded::Rollouts, &path, None).unwrap();
        log.receive(&EventKind::Rollout { record: vec![1; 40] }.into()).unwrap();
        assert!(log.check().unwrap().unwrap().contains("the run continues"));
        receive(&mut log, 8);
        assert_eq!(ids(&path), [1, 7]);
    }
}
