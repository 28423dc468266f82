//! A file that grows by whole records and can be truncated to an earlier length, for metrics, TensorBoard events and
//! traces.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::in_place::{is_in_place, write_again};
use crate::{Error, Result};

/// An append-only file and its present length.
#[derive(Debug)]
pub(crate) struct Appended {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Appended {
    /// Opens `path`, creating the file but not its directory. `whole` receives all bytes of the file and returns how
    /// many of them are complete records. The rest, left by a process that was killed while writing, is cut off.
    pub(crate) fn open(path: PathBuf, whole: impl FnOnce(&[u8]) -> usize) -> Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(Error::io("read", &path))?;
        let mut this = Appended { path, file, len: bytes.len() as u64 };
        this.truncate_to(whole(&bytes) as u64)?;
        Ok(this)
    }

    /// Appends one record. If that fails half-way (a full disk), the part that was written is cut off again.
    pub(crate) fn append(&mut self, record: &[u8]) -> Result<()> {
        if let Err(source) = self.file.write_all(record) {
            let _ = self.truncate_to(self.len);
            return Err(Error::io("write", &self.path)(source));
        }
        self.len += record.len() as u64;
        Ok(())
    }

    /// Checks whether the path still names the file. If not, writes the file again and returns a message for people.
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

    /// Truncates the file to `len` bytes, which is at most its present length.
    fn truncate_to(&mut self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(Error::io("truncate", &self.path))?;
        self.file.seek(SeekFrom::Start(len)).map_err(Error::io("seek in", &self.path))?;
        self.len = len;
        Ok(())
    }

    /// Syncs the file to disk for a checkpoint, and enters its length under `name`.
    pub(crate) fn checkpoint(&mut self, name: &str, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        self.file.sync_data().map_err(Error::io("sync", &self.path))?;
        lengths.insert(name.to_owned(), self.len);
        Ok(())
    }

    /// Truncates the file to the length that a checkpoint has under `name`, or to 0, but never inside a record. If the
    /// file was deleted, shortened or rewritten since the checkpoint, it continues from what is left, and the result is
    /// a message that says so.
    pub(crate) fn resume(
        &mut self,
        name: &str,
        lengths: &BTreeMap<String, u64>,
        whole: impl FnOnce(&[u8]) -> usize,
    ) -> Result<Option<String>> {
        let (recorded, path) = (lengths.get(name).copied().unwrap_or(0), self.path.display());
        if recorded > self.len {
            return Ok(Some(format!(
                "{path} was deleted or shortened: it had {recorded} bytes at the checkpoint and has {}; the run \
                 continues with what is left of it",
                self.len
            )));
        }
        let mut kept = vec![0; recorded as usize];
        self.file.rewind().and_then(|()| self.file.read_exact(&mut kept)).map_err(Error::io("read", &self.path))?;
        let end = whole(&kept) as u64;
        let note = (end < recorded).then(|| {
            format!(
                "{path} is not the file of the checkpoint, whose end falls into a record: cut before it, at byte {end}"
            )
        });
        self.truncate_to(end)?;
        Ok(note)
    }
}
