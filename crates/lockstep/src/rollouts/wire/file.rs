//! A file of groups that grows, and the index beside it.
//!
//! `NAME.bin` is records, one behind the other. `NAME.idx` says where each lies, so that a reader goes to the nth at
//! once: 8 bytes (`LSI`, the version 1, and the length of an entry as a u32), then an entry for each record,
//! little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8, 8 | where the record begins, and its length |
//! | 8, 8 | the group's number; the first optimizer step on it, or 2^64 − 1 |
//! | 8 | XXH3 of the prompt's ids as u32: groups of one prompt |
//! | 8, 8 | f64: mean and standard deviation (of the population) of the weighted rewards; NaN without any |
//! | 4, 4 | completions, and tokens of all of them |
//!
//! Later versions may put more behind these. The index is made of the records alone: where it is missing or does not
//! fit them, it is made again.

use super::group::Group;
use super::record::{HEADER, RecordReader, WireError, record_length};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use telemetry::in_place::{is_in_place, write_again};
use twox_hash::XxHash3_64;

const INDEX_MAGIC: &[u8; 4] = b"LSI\x01";
const INDEX_HEADER: usize = 8;
const ENTRY: usize = 64;
const NO_STEP: u64 = u64::MAX;

/// Where a record lies, and what it is of.
#[derive(Clone, Copy, Debug)]
pub struct IndexEntry {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// The group's number in the run.
    pub group: u64,
    /// The first optimizer step on it.
    pub step: Option<u64>,
    /// Equal for groups of equal prompts.
    pub prompt_hash: u64,
    /// Mean of the weighted rewards; NaN without any.
    pub reward: f64,
    /// Their standard deviation, of the population.
    pub reward_std: f64,
    /// Completions.
    pub completions: u32,
    /// Tokens of all of them.
    pub tokens: u32,
}

impl IndexEntry {
    fn new(offset: u64, length: u64, group: &Group) -> IndexEntry {
        let totals: Vec<f64> = group.totals().collect();
        let n = totals.len() as f64;
        let mean = totals.iter().sum::<f64>() / n;
        let variance = totals.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        let ids: Vec<u8> = group.prompt_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        IndexEntry {
            offset,
            length,
            group: group.id,
            step: group.step,
            prompt_hash: XxHash3_64::oneshot(&ids),
            reward: mean,
            reward_std: variance.sqrt(),
            completions: narrow(group.completions.len()),
            tokens: narrow(group.tokens()),
        }
    }

    fn to_bytes(self) -> [u8; ENTRY] {
        let (mean, std) = (self.reward.to_bits(), self.reward_std.to_bits());
        let numbers = [self.offset, self.length, self.group, self.step.unwrap_or(NO_STEP), self.prompt_hash, mean, std];
        let mut bytes = [0; ENTRY];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[56..60].copy_from_slice(&self.completions.to_le_bytes());
        bytes[60..].copy_from_slice(&self.tokens.to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> IndexEntry {
        let number = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        IndexEntry {
            offset: number(0),
            length: number(1),
            group: number(2),
            step: Some(number(3)).filter(|&step| step != NO_STEP),
            prompt_hash: number(4),
            reward: f64::from_bits(number(5)),
            reward_std: f64::from_bits(number(6)),
            completions: half(56),
            tokens: half(60),
        }
    }
}

/// A file of groups to read from.
#[derive(Debug)]
pub struct GroupFile {
    path: PathBuf,
    file: File,
    index: Vec<IndexEntry>,
}

impl GroupFile {
    /// Opens it. Its index is read, or made where it does not fit; what a writer has begun and not ended is not seen.
    pub fn open(path: &Path) -> Result<GroupFile> {
        let file = File::open(path)?;
        let whole = whole_records(&file, file.metadata()?.len(), path)?;
        let index = match read_index(&index_path(path)).filter(|index| fits(index, &whole)) {
            Some(mut index) => {
                index.truncate(whole.len());
                index
            }
            None => whole.iter().map(|&(at, length)| read(&file, path, at, length)).collect::<Result<_>>()?,
        };
        Ok(GroupFile { path: path.to_owned(), file, index })
    }

    /// What it has.
    pub fn index(&self) -> &[IndexEntry] {
        &self.index
    }

    /// The group of the record at this place of [`index`](Self::index).
    pub fn read(&self, place: usize) -> Result<Group> {
        let entry = self.index[place];
        let bytes = bytes_of(&self.file, entry.offset, entry.length)?;
        group_of(&bytes, &self.path, entry.offset)
    }

    /// All groups, in their order.
    pub fn groups(&self) -> impl Iterator<Item = Result<Group>> {
        (0..self.index.len()).map(|place| self.read(place))
    }
}

/// A file of groups to append to.
#[derive(Debug)]
pub struct GroupLog {
    path: PathBuf,
    file: File,
    len: u64,
    index: File,
    entries: usize,
}

impl GroupLog {
    /// Opens `path` to append, creating it (not its directory) if need be. What a kill left of a record is cut off.
    pub fn open(path: &Path) -> Result<GroupLog> {
        let options = || OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let file = options().open(path)?;
        let mut whole = whole_records(&file, file.metadata()?.len(), path)?;
        // A power cut can leave a record whose bytes never reached the disk.
        while let Some(&(at, length)) = whole.last()
            && RecordReader::take(&bytes_of(&file, at, length)?).is_err()
        {
            whole.pop();
        }
        let len = whole.last().map_or(0, |(at, length)| at + length);
        let index_path = index_path(path);
        let known = read_index(&index_path).filter(|index| fits(index, &whole));
        let index = options().open(&index_path)?;
        if known.is_none() {
            let entries = whole.iter().map(|&(at, length)| read(&file, path, at, length));
            let mut bytes = [&INDEX_MAGIC[..], &(ENTRY as u32).to_le_bytes()].concat();
            for entry in entries {
                bytes.extend(entry?.to_bytes());
            }
            index.set_len(0)?;
            index.write_all_at(&bytes, 0)?;
        }
        let mut log = GroupLog { path: path.to_owned(), file, len, index, entries: 0 };
        log.cut(len, whole.len())?;
        Ok(log)
    }

    /// Looks whether both paths still name the files; what was deleted or replaced is written again, which is said.
    pub fn check(&mut self) -> Result<Option<String>> {
        let index = index_path(&self.path);
        let index_len = (INDEX_HEADER + self.entries * ENTRY) as u64;
        let files = [(&self.path, &mut self.file, self.len), (&index, &mut self.index, index_len)];
        let mut notes = Vec::new();
        for (path, file, len) in files.into_iter().filter(|(path, file, _)| !is_in_place(path, file)) {
            let (new, note) = write_again(path, file, len)?;
            *file = new;
            notes.push(note);
        }
        Ok((!notes.is_empty()).then(|| notes.join("; ")))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no record.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends records of groups. If that fails half-way (a full disk), what was written of them is cut off again.
    pub fn append(&mut self, records: &[u8]) -> Result<()> {
        let (mut rest, mut entries, mut added) = (records, Vec::new(), 0);
        while !rest.is_empty() {
            let at = records.len() - rest.len();
            let (group, next) = Group::read(rest).map_err(|error| broken(&self.path, self.len + at as u64, &error))?;
            let length = (rest.len() - next.len()) as u64;
            entries.extend(IndexEntry::new(self.len + at as u64, length, &group).to_bytes());
            (rest, added) = (next, added + 1);
        }
        let index_end = (INDEX_HEADER + self.entries * ENTRY) as u64;
        let written =
            self.file.write_all_at(records, self.len).and_then(|()| self.index.write_all_at(&entries, index_end));
        if let Err(error) = written {
            let _ = self.cut(self.len, self.entries);
            return Err(error);
        }
        self.len += records.len() as u64;
        self.entries += added;
        Ok(())
    }

    /// Puts everything on the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.flush()?;
        self.file.sync_data()
    }

    /// Cuts it to the records of its first `len` bytes; gives the length that it has then.
    pub fn truncate(&mut self, len: u64) -> Result<u64> {
        let whole = whole_records(&self.file, self.len.min(len), &self.path)?;
        let end = whole.last().map_or(0, |(at, length)| at + length);
        self.cut(end, whole.len())?;
        Ok(end)
    }

    fn cut(&mut self, len: u64, entries: usize) -> Result<()> {
        self.file.set_len(len)?;
        self.index.set_len((INDEX_HEADER + entries * ENTRY) as u64)?;
        (self.len, self.entries) = (len, entries);
        Ok(())
    }
}

/// The index beside a file of groups.
pub fn index_path(path: &Path) -> PathBuf {
    path.with_extension("idx")
}

/// Where the records of the first `len` bytes begin, and their lengths, by their headers; the last may not be whole and
/// is then not among them. Other bytes than a record's are an error.
fn whole_records(file: &File, len: u64, path: &Path) -> Result<Vec<(u64, u64)>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(left) = (len - at).checked_sub(HEADER as u64) {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, at)?;
        let length = match record_length(&header) {
            Ok(length) => length,
            // Zeros: a file that was lengthened, and never filled (a power cut).
            Err(_) if header == [0; HEADER] => break,
            Err(error) => return Err(broken(path, at, &error)),
        };
        if length - HEADER as u64 > left {
            break;
        }
        found.push((at, length));
        at += length;
    }
    Ok(found)
}

/// The entries of an index; nothing if it is none.
fn read_index(path: &Path) -> Option<Vec<IndexEntry>> {
    let bytes = std::fs::read(path).ok()?;
    let (header, entries) = bytes.split_at_checked(INDEX_HEADER)?;
    let size = u32::from_le_bytes(header[4..].try_into().ok()?) as usize;
    if header[..4] != INDEX_MAGIC[..] || size < ENTRY {
        return None;
    }
    Some(entries.chunks_exact(size).map(IndexEntry::of_bytes).collect())
}

/// Whether the first entries are those of these records.
fn fits(index: &[IndexEntry], whole: &[(u64, u64)]) -> bool {
    index.len() >= whole.len() && index.iter().zip(whole).all(|(entry, &place)| (entry.offset, entry.length) == place)
}

fn read(file: &File, path: &Path, at: u64, length: u64) -> Result<IndexEntry> {
    Ok(IndexEntry::new(at, length, &group_of(&bytes_of(file, at, length)?, path, at)?))
}

/// The bytes of a record, which are known to be there.
fn bytes_of(file: &File, at: u64, length: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

fn group_of(bytes: &[u8], path: &Path, at: u64) -> Result<Group> {
    Group::read(bytes).map(|(group, _)| group).map_err(|error| broken(path, at, &error))
}

fn broken(path: &Path, at: u64, error: &WireError) -> Error {
    Error::new(ErrorKind::InvalidData, format!("{}, the record at byte {at}: {error}", path.display()))
}
