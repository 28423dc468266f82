//! `rollouts.bin`: the groups that a run trained on.

use crate::rollouts::wire::file::GroupLog;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use telemetry::{Error, Event, EventKind, Result, Sink};

/// Its name among the lengths of logs.
const NAME: &str = "rollouts.bin";

/// Writes it, and the index beside it.
#[derive(Debug)]
pub struct RolloutLog(GroupLog);

impl RolloutLog {
    /// Opens the file to append; what a kill left of a group is cut off.
    pub fn open(path: &Path) -> Result<RolloutLog> {
        GroupLog::open(path).map(RolloutLog).map_err(|source| Error::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = self.0.path().to_owned();
        move |source| Error::Io { action, path, source }
    }
}

impl Sink for RolloutLog {
    fn receive(&mut self, event: &Event) -> Result<()> {
        let EventKind::Rollout { record } = &event.kind else { return Ok(()) };
        let failed = self.failed("write");
        self.0.append(record).map_err(failed)
    }

    fn check(&mut self) -> Result<Option<String>> {
        let failed = self.failed("write again");
        self.0.check().map_err(failed)
    }

    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        let failed = self.failed("sync");
        self.0.sync().map_err(failed)?;
        lengths.insert(NAME.to_owned(), self.0.len());
        Ok(())
    }

    fn resume(&mut self, _step: u64, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        let (recorded, there) = (lengths.get(NAME).copied().unwrap_or(0), self.0.len());
        let path = self.0.path().display().to_string();
        if recorded > there {
            return Ok(Some(format!(
                "{path} was deleted or shortened: it had {recorded} bytes at the checkpoint and has {there}; the run \
                 resumes with what is left of it"
            )));
        }
        let failed = self.failed("truncate");
        let end = self.0.truncate(recorded).map_err(failed)?;
        Ok((end < recorded).then(|| {
            format!(
                "{path} is not the file of the checkpoint, whose end falls into a record: cut before it, at byte {end}"
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollouts::wire::Group;
    use crate::rollouts::wire::file::GroupFile;

    fn receive(log: &mut RolloutLog, id: u64) {
        let mut record = Vec::new();
        Group { id, ..Group::default() }.write(&mut record);
        log.receive(&EventKind::Rollout { record }.into()).unwrap();
    }

    #[test]
    fn a_resumed_run_has_the_groups_of_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let mut log = RolloutLog::open(&path).unwrap();
        receive(&mut log, 1);
        let mut lengths = BTreeMap::new();
        log.checkpoint(&mut lengths).unwrap();
        receive(&mut log, 2);
        drop(log);

        let mut log = RolloutLog::open(&path).unwrap();
        let ids = || GroupFile::open(&path).unwrap().index().iter().map(|entry| entry.group).collect::<Vec<_>>();
        let note = log.resume(1, &BTreeMap::from([(NAME.to_owned(), 10_000)])).unwrap().unwrap();
        assert!(note.contains("rollouts.bin was deleted or shortened") && ids() == [1, 2], "{note}");
        let inside = BTreeMap::from([(NAME.to_owned(), lengths[NAME] + 3)]);
        assert!(log.resume(1, &inside).unwrap().unwrap().contains("falls into a record"));
        assert_eq!((log.resume(1, &lengths).unwrap(), ids()), (None, vec![1]));
        receive(&mut log, 3);
        assert_eq!(ids(), [1, 3]);
        log.resume(0, &BTreeMap::new()).unwrap();
        assert!(ids().is_empty());
    }
}
