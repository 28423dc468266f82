//! `files.json` in a checkpoint lists its files with their lengths and checksums. The list detects a file that is
//! intact but belongs to the checkpoint of another step.

use super::{ZERO_CHECKSUM, find_checksum, write_json};
use crate::{Error, Result, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::Hasher;
use std::io::{Read, Seek};
use std::path::{Component, Path, PathBuf};
use twox_hash::XxHash3_64;

/// Name of the file that lists the other files of its directory.
pub const FILE_LIST: &str = "files.json";

/// A list of the files of a directory that were written together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileList {
    /// Number of optimizer steps done when the files were written.
    pub step: Step,
    /// The files by path relative to the directory, with `/` as separator.
    pub files: BTreeMap<String, ListedFile>,
}

/// Length and checksum of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// XXH3 (64 bits) of the file's bytes. If a safetensors file has a checksum in its header, this is the checksum
    /// from the header, which is verified when the tensors are read.
    pub xxh3: String,
}

impl FileList {
    /// Lists all files below `dir` as they are now.
    pub fn of(dir: &Path, step: Step) -> Result<FileList> {
        let (mut files, mut open) = (BTreeMap::new(), vec![PathBuf::new()]);
        while let Some(below) = open.pop() {
            let directory = dir.join(&below);
            let io = |e| Error::io(&directory, e);
            for entry in disk::read_dir(&directory).map_err(io)? {
                let path = below.join(entry.file_name());
                if entry.is_dir() {
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

    /// Reads the list in `dir`; `None` if the directory has no list, like models and checkpoints of older versions.
    pub fn read(dir: &Path) -> Result<Option<FileList>> {
        let path = dir.join(FILE_LIST);
        let text = match disk::read(&path, disk::most::TOKENIZER) {
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            text => text.map_err(|e| Error::io(&path, e))?,
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| Error::file(&path, format!("the list is damaged: {e}")))
    }

    /// Fails if a file in `dir` is missing or differs from the list. Only paths that `which` accepts are checked.
    pub fn check(&self, dir: &Path, which: impl Fn(&str) -> bool) -> Result<()> {
        for (name, listed) in self.files.iter().filter(|(name, _)| which(name)) {
            if !is_below(name) {
                return Err(Error::file(dir.join(FILE_LIST), format!("{name} in the list is outside the directory")));
            }
            let path = dir.join(name);
            let difference = match ListedFile::with_length(&path, Some(listed.bytes)) {
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => "is missing".into(),
                Err(other) => return Err(other),
                Ok(found) if found == *listed => continue,
                Ok(found) if found.bytes != listed.bytes => {
                    format!("has {} bytes, expected {}", found.bytes, listed.bytes)
                }
                Ok(found) => format!("has the checksum (XXH3) {}, expected {}", found.xxh3, listed.xxh3),
            };
            let message = format!(
                "not the file that was written at step {}: it {difference} ({FILE_LIST} lists the files that belong \
                 together; delete {FILE_LIST} to change a file on purpose)",
                self.step
            );
            return Err(Error::file(path, message));
        }
        Ok(())
    }
}

impl ListedFile {
    fn of(path: &Path) -> Result<ListedFile> {
        ListedFile::with_length(path, None)
    }

    /// Length and checksum of a file. If the length differs from `expected`, the file is not read and the checksum is
    /// empty.
    fn with_length(path: &Path, expected: Option<u64>) -> Result<ListedFile> {
        let io = |e| Error::io(path, e);
        let file = disk::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if expected.is_some_and(|expected| expected != bytes) {
            return Ok(ListedFile { bytes, xxh3: String::new() });
        }
        let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
        let xxh3 = match is_safetensors.then(|| in_header(&file)).transpose().map_err(io)?.flatten() {
            Some(recorded) => recorded,
            None => checksum_of(&file).map_err(io)?,
        };
        Ok(ListedFile { bytes, xxh3 })
    }
}

/// Whether a listed path stays below the directory of the list.
fn is_below(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// The checksum of a file's bytes, which are read piece by piece.
fn checksum_of(mut file: &File) -> std::io::Result<String> {
    let (mut hash, mut piece) = (XxHash3_64::default(), vec![0; 1 << 16]);
    file.rewind()?;
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("{:016x}", hash.finish())),
            n => hash.write(&piece[..n]),
        }
    }
}

/// The checksum in the header of a safetensors file, if it has one.
fn in_header(file: &File) -> std::io::Result<Option<String>> {
    let start = disk::read_range(file, 0, super::METADATA_BYTES)?;
    let digits = find_checksum(&start).map(|place| String::from_utf8_lossy(&start[place]).into_owned());
    Ok(digits.filter(|digits| digits != ZERO_CHECKSUM))
}

/// Fails if a file in `dir` that `which` accepts differs from the directory's list. Does nothing without a list.
pub(crate) fn check_listed(dir: &Path, which: impl Fn(&str) -> bool) -> Result<()> {
    FileList::read(dir)?.map_or(Ok(()), |list| list.check(dir, which))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        fs::create_dir(dir.path().join("value_model")).unwrap();
        fs::write(dir.path().join("value_model/config.json"), "{\"a\": 1}").unwrap();
        dir
    }

    #[test]
    fn the_error_names_changed_truncated_and_missing_files() {
        let dir = directory();
        let list = FileList::of(dir.path(), Step(7)).unwrap();
        assert_eq!(list.files.keys().collect::<Vec<_>>(), ["config.json", "value_model/config.json"]);
        list.write(dir.path()).unwrap();
        assert_eq!(FileList::read(dir.path()).unwrap().as_ref(), Some(&list));
        assert_eq!(FileList::of(dir.path(), Step(7)).unwrap(), list, "the list must not contain itself");
        list.check(dir.path(), |_| true).unwrap();
        // An additional file is not an error.
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        list.check(dir.path(), |_| true).unwrap();
        let path = dir.path().join("value_model/config.json");
        for (text, words) in
            [(Some("{\"a\": 2}"), "checksum"), (Some("{\"a\":"), "has 5 bytes, expected 8"), (None, "missing")]
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
    fn a_damaged_list_is_an_error() {
        let dir = directory();
        fs::write(dir.path().join(FILE_LIST), "{\"step\": 7").unwrap();
        assert!(FileList::read(dir.path()).unwrap_err().to_string().contains("files.json: the list is damaged"));
        assert_eq!(FileList::read(&dir.path().join("config.json")).unwrap(), None);
    }
}
