//! A file that grows by whole records and can be cut back to a length: what metrics, TensorBoard's events and traces
//! share.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::in_place::{is_in_place, write_again};
use crate::{Error, Result};

/// An append-only file and its length.
#[derive(Debug)]
pub(crate) struct Appended {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Appended {
    /// Opens `path` (creating the file, not its directory). `whole` is given all bytes that are there and says how
    /// many of them are whole records; the rest, which a kill in the middle of a write leaves, is cut off.
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

    /// Appends one whole record. If that fails half-way (a full disk), what was written of it is cut off again.
    pub(crate) fn append(&mut self, record: &[u8]) -> Result<()> {
        if let Err(source) = self.file.write_all(record) {
            let _ = self.truncate_to(self.len);
            return Err(Error::io("write", &self.path)(source));
        }
        self.len += record.len() as u64;
        Ok(())
    }

    /// Looks whether the path still names the file; if it does not, writes the file again, which is said.
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

    /// Cuts it to `len`, which is not more than there is.
    fn truncate_to(&mut self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(Error::io("truncate", &self.path))?;
        self.file.seek(SeekFrom::Start(len)).map_err(Error::io("seek in", &self.path))?;
        self.len = len;
        Ok(())
    }

    /// Everything on the disk, and its length under `name`: what a checkpoint of a sink does.
    pub(crate) fn checkpoint(&mut self, name: &str, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        self.file.sync_data().map_err(Error::io("sync", &self.path))?;
        lengths.insert(name.to_owned(), self.len);
        Ok(())
    }

    /// Cuts the file back to the length that a checkpoint has under `name`, or empties it; never inside a record. A
    /// file that is not what it was at the checkpoint (deleted, shortened, written anew) continues from what is left,
    /// which is said.
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
