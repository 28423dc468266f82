//! `files.json` in a checkpoint: its files with their lengths and checksums. It detects a file that is intact by
//! itself, but belongs to the checkpoint of another step.

use super::{ZERO_CHECKSUM, checksum, find_checksum, write_json};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Name of the file that lists the other files of its directory.
pub const FILE_LIST: &str = "files.json";

/// The files of a directory that were written together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileList {
    /// Number of optimizer steps done when the files were written.
    pub step: u64,
    /// The files by path relative to the directory, with `/` as separator.
    pub files: BTreeMap<String, ListedFile>,
}

/// Length and checksum of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// XXH3 (64 bits) of the file's bytes. For a safetensors file that has a checksum in its header, that checksum; it
    /// is verified when the tensors are read.
    pub xxh3: String,
}

impl FileList {
    /// Lists all files below `dir` as they are now.
    pub fn of(dir: &Path, step: u64) -> Result<FileList> {
        let (mut files, mut open) = (BTreeMap::new(), vec![PathBuf::new()]);
        while let Some(below) = open.pop() {
            let directory = dir.join(&below);
            let io = |e| Error::io(&directory, e);
            for entry in fs::read_dir(&directory).map_err(io)? {
                let entry = entry.map_err(io)?;
                let path = below.join(entry.file_name());
                if entry.file_type().map_err(io)?.is_dir() {
                    open.push(path);
                } else if path != Path::new(FILE_LIST) {
                    let file = ListedFile::of(&dir.join(&path))?;
                    files.insert(path.to_string_lossy().replace(std::path::MAIN_SEPARATOR, "/"), file);
                }
            }
        }
        Ok(FileList { step, files })
    }

    /// Writes the list to `dir`.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_json(&dir.join(FILE_LIST), &serde_json::json!(self))
    }

    /// Reads the list of `dir`; none if there is none, as in models and in checkpoints of older versions.
    pub fn read(dir: &Path) -> Result<Option<FileList>> {
        let path = dir.join(FILE_LIST);
        let text = match fs::read(&path) {
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            text => text.map_err(|e| Error::io(&path, e))?,
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| Error::file(&path, format!("is damaged: {e}")))
    }

    /// An error if a file of `dir` is missing or differs from the list. Only paths that `which` accepts are checked.
    pub fn check(&self, dir: &Path, which: impl Fn(&str) -> bool) -> Result<()> {
        for (name, listed) in self.files.iter().filter(|(name, _)| which(name)) {
            let path = dir.join(name);
            let difference = match ListedFile::of(&path) {
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => "is missing".into(),
                Err(other) => return Err(other),
                Ok(found) if found == *listed => continue,
                Ok(found) if found.bytes != listed.bytes => {
                    format!("has {} bytes, and had {}", found.bytes, listed.bytes)
                }
                Ok(found) => format!("has the checksum (XXH3) {}, and had {}", found.xxh3, listed.xxh3),
            };
            let message = format!(
                "is not the file that was written with the others of step {}: it {difference} ({FILE_LIST} lists what \
                 belongs together; who means to change it deletes that list)",
                self.step
            );
            return Err(Error::file(path, message));
        }
        Ok(())
    }
}

impl ListedFile {
    fn of(path: &Path) -> Result<ListedFile> {
        let io = |e| Error::io(path, e);
        let bytes = fs::metadata(path).map_err(io)?.len();
        let of_tensors = path.extension().is_some_and(|extension| extension == "safetensors");
        let xxh3 = match of_tensors.then(|| in_header(path)).transpose().map_err(io)?.flatten() {
            Some(recorded) => recorded,
            None => checksum(&fs::read(path).map_err(io)?),
        };
        Ok(ListedFile { bytes, xxh3 })
    }
}

/// The checksum in the header of a safetensors file, if it has one.
fn in_header(path: &Path) -> std::io::Result<Option<String>> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(super::METADATA_BYTES).read_to_end(&mut start)?;
    let digits = find_checksum(&start).map(|place| String::from_utf8_lossy(&start[place]).into_owned());
    Ok(digits.filter(|digits| digits != ZERO_CHECKSUM))
}

/// An error if a file of `dir` that `which` accepts differs from the directory's list. Does nothing without a list.
pub(crate) fn check_listed(dir: &Path, which: impl Fn(&str) -> bool) -> Result<()> {
    FileList::read(dir)?.map_or(Ok(()), |list| list.check(dir, which))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        fs::create_dir(dir.path().join("value_model")).unwrap();
        fs::write(dir.path().join("value_model/config.json"), "{\"a\": 1}").unwrap();
        dir
    }

    #[test]
    fn what_is_changed_shortened_or_missing_is_named() {
        let dir = directory();
        let list = FileList::of(dir.path(), 7).unwrap();
        assert_eq!(list.files.keys().collect::<Vec<_>>(), ["config.json", "value_model/config.json"]);
        list.write(dir.path()).unwrap();
        assert_eq!(FileList::read(dir.path()).unwrap().as_ref(), Some(&list));
        assert_eq!(FileList::of(dir.path(), 7).unwrap(), list, "the list does not list itself");
        list.check(dir.path(), |_| true).unwrap();
        // An additional file is no error.
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        list.check(dir.path(), |_| true).unwrap();
        let path = dir.path().join("value_model/config.json");
        for (text, words) in
            [(Some("{\"a\": 2}"), "checksum"), (Some("{\"a\":"), "has 5 bytes, and had 8"), (None, "missing")]
        {
            match text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let refusal = list.check(dir.path(), |_| true).unwrap_err().to_string();
            let named = ["value_model/config.json", "step 7", words].iter().all(|part| refusal.contains(part));
            assert!(named, "{refusal}");
            list.check(dir.path(), |name| name == "config.json").unwrap();
        }
    }

    #[test]
    fn a_list_that_is_damaged_is_no_list_of_nothing() {
        let dir = directory();
        fs::write(dir.path().join(FILE_LIST), "{\"step\": 7").unwrap();
        assert!(FileList::read(dir.path()).unwrap_err().to_string().contains("files.json: is damaged"));
        assert_eq!(FileList::read(&dir.path().join("config.json")).unwrap(), None);
    }
}
