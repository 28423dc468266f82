//! An append-only file of records, which can be truncated to an earlier length. Metrics, TensorBoard events and traces
//! use it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::in_place::{is_in_place, write_again};
use crate::{Error, Result};

/// An append-only file and its current length.
#[derive(Debug)]
pub(crate) struct Appended {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Appended {
    /// Opens `path`, creating the file but not its directory. `whole` receives the content of the file and returns the
    /// length of its complete records. The rest was left by a process that was killed while writing, and is truncated.
    pub(crate) fn open(path: PathBuf, whole: impl FnOnce(&[u8]) -> usize) -> Result<Self> {
        let file = disk::Options::new().read().write().create().open(&path).map_err(Error::io("open", &path))?;
        let bytes = disk::read_rest(&file, 0, disk::most::GROUPS).map_err(Error::io("read", &path))?;
        let mut this = Appended { path, file, len: bytes.len() as u64 };
        this.truncate_to(whole(&bytes) as u64)?;
        Ok(this)
    }

    /// Appends one record. If the write fails midway (a full disk), the partial record is removed by truncating the
    /// file.
    pub(crate) fn append(&mut self, record: &[u8]) -> Result<()> {
        if let Err(source) = self.file.write_all(record) {
            let _ = self.truncate_to(self.len);
            return Err(Error::io("write", &self.path)(source));
        }
        self.len += record.len() as u64;
        Ok(())
    }

    /// Checks whether the path still names the open file. If it does not, writes the file again and returns a message
    /// for people.
    pub(crate) fn check(&mut self) -> Result<Option<String>> {
        if is_in_place(&self.path, &self.file) {
            return Ok(None);
        }
        let (file, note) =
            write_again(&self.path, &self.file, self.len).map_err(Error::io("write again", &self.path))?;
        self.file = file;
        Ok(Some(note))
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Truncates the file to `len` bytes, which must not exceed its current length.
    fn truncate_to(&mut self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(Error::io("truncate", &self.path))?;
        self.file.seek(SeekFrom::Start(len)).map_err(Error::io("seek in", &self.path))?;
        self.len = len;
        Ok(())
    }

    /// Syncs the file to disk for a checkpoint, and stores its length under `name`.
    pub(crate) fn checkpoint(&mut self, name: &str, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        self.file.sync_data().map_err(Error::io("sync", &self.path))?;
        lengths.insert(name.to_owned(), self.len);
        Ok(())
    }

    /// Truncates the file to the length that the checkpoint stores under `name` (0 if there is none), or to the end of
    /// the last complete record before it. A file that is already shorter is left unchanged. Returns a message for
    /// people if the file does not match the checkpoint.
    pub(crate) fn resume(
        &mut self,
        name: &str,
        lengths: &BTreeMap<String, u64>,
        whole: impl FnOnce(&[u8]) -> usize,
    ) -> Result<Option<String>> {
        let (recorded, path) = (lengths.get(name).copied().unwrap_or(0), self.path.display());
        if recorded > self.len {
            return Ok(Some(format!(
                "{path} was deleted or shortened: it had {recorded} bytes at the checkpoint and now has {}; the run \
                 appends to the remaining bytes",
                self.len
            )));
        }
        let whole_range =
            |kept: Vec<u8>| if kept.len() as u64 == recorded { Ok(kept) } else { Err(ErrorKind::UnexpectedEof.into()) };
        let kept = disk::read_range(&self.file, 0, recorded).and_then(whole_range);
        let kept = kept.map_err(Error::io("read", &self.path))?;
        let end = whole(&kept) as u64;
        let note = (end < recorded).then(|| {
            format!(
                "{path} is not the file that the checkpoint recorded: the length in the checkpoint ends inside a \
                 record; truncated to {end} bytes"
            )
        });
        self.truncate_to(end)?;
        Ok(note)
    }
}

#[cfg(test)]
impl Appended {
    /// An `Appended` whose handle `file` need not match `path`, to test write errors.
    pub(crate) fn of(path: &Path, file: File, len: u64) -> Appended {
        Appended { path: path.to_owned(), file, len }
    }

    /// A file to which every write fails: on a full disk, or opened without write access.
    #[cfg(target_os = "linux")]
    pub(crate) fn broken(path: &Path, is_full: bool) -> Appended {
        let file = if is_full { File::options().write(true).open("/dev/full") } else { File::open("/dev/null") };
        Appended::of(path, file.unwrap(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of the complete records, if each record has two bytes.
    fn pairs(bytes: &[u8]) -> usize {
        bytes.len() / 2 * 2
    }

    #[test]
    fn an_opened_file_is_continued_after_its_last_complete_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let read = || std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, "aabbc").unwrap();
        let mut file = Appended::open(path.clone(), pairs).unwrap();
        assert_eq!((file.len(), file.path(), read().as_str()), (4, path.as_path(), "aabb"));
        file.append(b"dd").unwrap();
        assert_eq!((file.len(), read().as_str()), (6, "aabbdd"));
        let mut lengths = BTreeMap::from([("other".to_owned(), 1)]);
        file.checkpoint("log", &mut lengths).unwrap();
        assert_eq!(lengths, BTreeMap::from([("log".to_owned(), 6), ("other".to_owned(), 1)]));
        let error = Appended::open(dir.path().join("none/log"), pairs).unwrap_err().to_string();
        assert!(error.starts_with("cannot open ") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_resume_truncates_to_the_checkpoint_or_returns_a_message() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let read = || std::fs::read_to_string(&path).unwrap();
        let mut file = Appended::open(path.clone(), pairs).unwrap();
        file.append(b"aabbccdd").unwrap();
        let at = |len: u64| BTreeMap::from([("log".to_owned(), len), ("other".to_owned(), 2)]);
        let name = path.display();
        assert_eq!(file.resume("log", &at(8), pairs).unwrap(), None, "no record follows the checkpoint");
        let note = file.resume("log", &at(9), pairs).unwrap().unwrap();
        assert_eq!(
            note,
            format!(
                "{name} was deleted or shortened: it had 9 bytes at the checkpoint and now has 8; the run appends to \
                 the remaining bytes"
            )
        );
        assert_eq!((file.len(), read().as_str()), (8, "aabbccdd"));
        let note = file.resume("log", &at(5), pairs).unwrap().unwrap();
        assert_eq!(
            note,
            format!(
                "{name} is not the file that the checkpoint recorded: the length in the checkpoint ends inside a \
                 record; truncated to 4 bytes"
            )
        );
        file.append(b"ee").unwrap();
        assert_eq!((file.len(), read().as_str()), (6, "aabbee"));
        assert_eq!(file.resume("log", &at(2), pairs).unwrap(), None);
        file.append(b"ff").unwrap();
        assert_eq!((file.len(), read().as_str()), (4, "aaff"));
        assert_eq!(file.resume("not there", &at(2), pairs).unwrap(), None);
        assert_eq!((file.len(), read().as_str()), (0, ""));
    }

    #[cfg(unix)]
    #[test]
    fn a_deleted_log_is_written_again_and_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = Appended::open(path.clone(), pairs).unwrap();
        file.append(b"aabb").unwrap();
        assert_eq!(file.check().unwrap(), None);
        std::fs::remove_file(&path).unwrap();
        let note = file.check().unwrap().unwrap();
        assert_eq!(note, format!("{} was deleted during the run: it is written again", path.display()));
        assert_eq!(file.check().unwrap(), None);
        file.append(b"cc").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "aabbcc");
        std::fs::remove_dir_all(dir.path()).unwrap();
        let error = file.check().unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write again {}: ", path.display())), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn errors_of_a_full_or_closed_file_name_the_file() {
        let path = Path::new("some/log");
        let mut full = Appended::broken(path, true);
        let error = full.append(b"aa").unwrap_err().to_string();
        assert_eq!((error.as_str(), full.len()), ("cannot write some/log: No space left on device (os error 28)", 0));
        let mut closed = Appended::broken(path, false);
        let error = closed.append(b"aa").unwrap_err().to_string();
        assert_eq!((error.as_str(), closed.len()), ("cannot write some/log: Bad file descriptor (os error 9)", 0));
        let error = closed.resume("log", &BTreeMap::new(), pairs).unwrap_err().to_string();
        assert_eq!(error, "cannot truncate some/log: Invalid argument (os error 22)");
        closed.len = 5;
        let error = closed.resume("log", &BTreeMap::from([("log".to_owned(), 5)]), pairs).unwrap_err().to_string();
        assert_eq!(error, "cannot read some/log: unexpected end of file");
    }
}
