//! An appendable file of groups, with an index file.
//!
//! `NAME.bin` is a sequence of records. `NAME.idx` has the offset of each record, so that a reader can seek to the
//! n-th: 8 bytes (`LSI`, the version 1, and the length of an entry as a u32), then an entry for each record,
//! little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8, 8 | u64: offset and length of the record |
//! | 8, 8 | u64: the group's number; the first optimizer step on the group, or 2^64 − 1 if not known |
//! | 8 | XXH3 of the prompt's ids as u32; groups of the same prompt have the same hash |
//! | 8, 8 | f64: mean and population standard deviation of the group's weighted rewards; NaN if there are none |
//! | 4, 4 | u32: number of completions, and number of tokens in all of them |
//!
//! Later versions may append fields to an entry. The index depends only on the records: if it is missing or does not
//! match them, it is recomputed.

use super::group::Group;
use super::read::Outline;
use super::record::{HEADER, RecordReader, WireError, record_length};
use model::GroupId;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use telemetry::Step;
use telemetry::in_place::{is_in_place, write_again};
use twox_hash::XxHash3_64;

const INDEX_MAGIC: &[u8; 4] = b"LSI\x01";
const INDEX_HEADER: usize = 8;
const ENTRY: usize = 64;
const NO_STEP: u64 = u64::MAX;

/// An entry of the index: the offset of a record, and a summary of its group.
#[derive(Clone, Copy, Debug)]
pub struct IndexEntry {
    /// Offset of the record's first byte in the file.
    pub offset: u64,
    /// Length of the record in bytes.
    pub length: u64,
    /// The group.
    pub group: GroupId,
    /// The first optimizer step that trained on the group.
    pub step: Option<Step>,
    /// A hash of the prompt's token ids, equal for groups with the same prompt.
    pub prompt_hash: u64,
    /// Mean of the weighted rewards of the group; NaN if there are none.
    pub reward: f64,
    /// Population standard deviation of the weighted rewards.
    pub reward_std: f64,
    /// Completions in the group.
    pub completions: u32,
    /// Tokens in all completions of the group.
    pub tokens: u32,
}

impl IndexEntry {
    fn new(offset: u64, length: u64, group: &Outline) -> IndexEntry {
        let totals = &group.totals;
        let n = totals.len() as f64;
        let mean = totals.iter().sum::<f64>() / n;
        let variance = totals.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        let ids: Vec<u8> = group.prompt_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        IndexEntry {
            offset,
            length,
            group: group.group,
            step: group.step,
            prompt_hash: XxHash3_64::oneshot(&ids),
            reward: mean,
            reward_std: variance.sqrt(),
            completions: narrow(group.completions as u64),
            tokens: narrow(group.tokens),
        }
    }

    fn to_bytes(self) -> [u8; ENTRY] {
        let (mean, std) = (self.reward.to_bits(), self.reward_std.to_bits());
        let step = self.step.map_or(NO_STEP, |step| step.0);
        let numbers = [self.offset, self.length, self.group.0, step, self.prompt_hash, mean, std];
        let mut bytes = [0; ENTRY];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[56..60].copy_from_slice(&self.completions.to_le_bytes());
        bytes[60..].copy_from_slice(&self.tokens.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> IndexEntry {
        let number = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        IndexEntry {
            offset: number(0),
            length: number(1),
            group: GroupId(number(2)),
            step: Some(number(3)).filter(|&step| step != NO_STEP).map(Step),
            prompt_hash: number(4),
            reward: f64::from_bits(number(5)),
            reward_std: f64::from_bits(number(6)),
            completions: half(56),
            tokens: half(60),
        }
    }
}

/// A file of groups, opened for reading.
#[derive(Debug)]
pub struct GroupFile {
    path: PathBuf,
    file: File,
    index: Vec<IndexEntry>,
}

impl GroupFile {
    /// Opens the file, and reads its index, or recomputes the index if it does not match. An incomplete last record is
    /// ignored.
    pub fn open(path: &Path) -> Result<GroupFile> {
        GroupFile::read_by(path, |path| read_index(&index_path(path), 0))
    }

    /// Adds the records that were appended since the file was opened. Only these records are read; if the known ones
    /// have changed, the file is opened anew.
    pub fn grow(&mut self) -> Result<()> {
        match self.appended() {
            Some(entries) => self.index.extend(entries),
            None => *self = GroupFile::open(&self.path)?,
        }
        Ok(())
    }

    /// The entries of the appended records; `None` if the file was replaced or truncated, or if its index does not have
    /// these entries.
    fn appended(&self) -> Option<Vec<IndexEntry>> {
        let last = self.index.last().filter(|_| is_in_place(&self.path, &self.file))?;
        let whole = whole_records(&self.file, last.offset, self.file.metadata().ok()?.len(), &self.path).ok()?;
        // A run that was resumed from an earlier step has written other groups at this place.
        let index = read_index(&index_path(&self.path), self.index.len() - 1)?;
        let is_same = index.first()?.to_bytes() == last.to_bytes() && fits(&index, &whole);
        Some(index.get(1..whole.len()).filter(|_| is_same)?.to_vec())
    }

    /// Opens the file without trusting its index, which has no checksum: all records are read once. If a record is
    /// damaged, the error names the group from the index.
    pub fn open_by_records(path: &Path) -> Result<GroupFile> {
        GroupFile::read_by(path, |_| None).or_else(|damaged| GroupFile::open(path).map_err(|_| damaged))
    }

    fn read_by(path: &Path, index: impl FnOnce(&Path) -> Option<Vec<IndexEntry>>) -> Result<GroupFile> {
        let file = disk::open(path)?;
        let whole = whole_records(&file, 0, file.metadata()?.len(), path)?;
        // The index is read after the records: if a run is still writing, the index then covers at least these records.
        let index = match index(path).filter(|index| fits(index, &whole)) {
            Some(mut index) => {
                index.truncate(whole.len());
                index
            }
            None => whole.iter().map(|&(at, length)| read(&file, path, at, length)).collect::<Result<_>>()?,
        };
        Ok(GroupFile { path: path.to_owned(), file, index })
    }

    /// The index entries of all records.
    pub fn index(&self) -> &[IndexEntry] {
        &self.index
    }

    /// Reads the group whose record has this index in [`index`](Self::index).
    pub fn read(&self, place: usize) -> Result<Group> {
        self.read_record(place).map(|(group, _)| group)
    }

    /// Like [`read`](Self::read), and also returns the bytes of the record.
    pub(crate) fn read_record(&self, place: usize) -> Result<(Group, Vec<u8>)> {
        let entry = self.index[place];
        let bytes = bytes_of(&self.file, entry.offset, entry.length)?;
        Ok((group_of(&bytes, &self.path, entry.offset)?, bytes))
    }

    /// The first entry of the index on disk that does not match its record: its position, the entry, and the correct
    /// entry. Unreadable records are skipped.
    pub(crate) fn wrong_entry(&self) -> Option<(usize, IndexEntry, IndexEntry)> {
        let by_index = GroupFile::open(&self.path).ok()?;
        by_index.index.iter().enumerate().find_map(|(place, entry)| {
            let correct = read(&self.file, &self.path, entry.offset, entry.length).ok()?;
            (correct.to_bytes() != entry.to_bytes()).then_some((place, *entry, correct))
        })
    }

    /// All groups, in file order.
    pub fn groups(&self) -> impl Iterator<Item = Result<Group>> {
        (0..self.index.len()).map(|place| self.read(place))
    }
}

/// A file of groups, opened for appending.
#[derive(Debug)]
pub struct GroupLog {
    path: PathBuf,
    file: File,
    len: u64,
    index: File,
    entries: usize,
}

impl GroupLog {
    /// Opens `path` for appending. Creates the file if it does not exist, but not its directory. Removes an incomplete
    /// last record, which a killed process may leave.
    pub fn open(path: &Path) -> Result<GroupLog> {
        let options = disk::Options::new().read().write().create();
        let file = options.open(path)?;
        let mut whole = whole_records(&file, 0, file.metadata()?.len(), path)?;
        // After a power failure, the file's length may be on disk without its bytes.
        while let Some(&(at, length)) = whole.last()
            && RecordReader::take(&bytes_of(&file, at, length)?).is_err()
        {
            whole.pop();
        }
        let len = whole.last().map_or(0, |(at, length)| at + length);
        let index_path = index_path(path);
        let known = read_index(&index_path, 0).filter(|index| fits(index, &whole));
        let index = options.open(&index_path)?;
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

    /// Checks that both paths still name the open files. A deleted or replaced file is written again, and the returned
    /// text reports it.
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

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no records.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the records of some groups. If an append fails (disk full, for example), the written part is removed.
    pub fn append(&mut self, records: &[u8]) -> Result<()> {
        let (mut rest, mut entries, mut added) = (records, Vec::new(), 0);
        while !rest.is_empty() {
            let at = records.len() - rest.len();
            let at = self.len + at as u64;
            let broken = |error| broken(&self.path, at, &error);
            let (record, next) = RecordReader::take(rest).map_err(broken)?;
            let group = Outline::from_record(&record).map_err(broken)?;
            entries.extend(IndexEntry::new(at, (rest.len() - next.len()) as u64, &group).to_bytes());
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

    /// Flushes all data to the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.flush()?;
        self.file.sync_data()
    }

    /// Truncates the file to the complete records in its first `len` bytes, and returns the new length.
    pub fn truncate(&mut self, len: u64) -> Result<u64> {
        let whole = whole_records(&self.file, 0, self.len.min(len), &self.path)?;
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

/// The path of the index file of a file of groups.
pub fn index_path(path: &Path) -> PathBuf {
    path.with_extension("idx")
}

/// Offset and length of each complete record between the offsets `at` and `len`, from the records' headers. An
/// incomplete last record is left out. Bytes that are not a record are an error.
fn whole_records(file: &File, mut at: u64, len: u64, path: &Path) -> Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    while let Some(left) = len.checked_sub(at + HEADER as u64) {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, at)?;
        let length = match record_length(&header) {
            Ok(length) => length,
            // The header is zero: the file was extended but not filled, as after a power failure.
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

/// The entries of an index file, without the first `skipped`; `None` if the file is missing or invalid.
fn read_index(path: &Path, skipped: usize) -> Option<Vec<IndexEntry>> {
    let file = disk::open(path).ok()?;
    let header = disk::read_range(&file, 0, INDEX_HEADER as u64).ok()?;
    let (magic, size) = header.split_at_checked(INDEX_MAGIC.len())?;
    let size = u32::from_le_bytes(size.try_into().ok()?) as usize;
    if magic != INDEX_MAGIC || size < ENTRY {
        return None;
    }
    let begin = skipped.checked_mul(size)?.checked_add(INDEX_HEADER)?;
    let entries = disk::read_rest(&file, begin as u64, disk::most::GROUPS).ok()?;
    Some(entries.chunks_exact(size).map(IndexEntry::from_bytes).collect())
}

/// Whether the index begins with the entries of these records.
fn fits(index: &[IndexEntry], whole: &[(u64, u64)]) -> bool {
    index.len() >= whole.len() && index.iter().zip(whole).all(|(entry, &place)| (entry.offset, entry.length) == place)
}

fn read(file: &File, path: &Path, at: u64, length: u64) -> Result<IndexEntry> {
    let bytes = bytes_of(file, at, length)?;
    let outline = RecordReader::take(&bytes).and_then(|(record, _)| Outline::from_record(&record));
    Ok(IndexEntry::new(at, length, &outline.map_err(|error| broken(path, at, &error))?))
}

/// The bytes of a record that is known to be complete.
fn bytes_of(file: &File, at: u64, length: u64) -> Result<Vec<u8>> {
    let bytes = disk::read_range(file, at, length)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

fn group_of(bytes: &[u8], path: &Path, at: u64) -> Result<Group> {
    Group::read(bytes).map(|(group, _)| group).map_err(|error| broken(path, at, &error))
}

fn broken(path: &Path, at: u64, error: &WireError) -> Error {
    Error::new(ErrorKind::InvalidData, format!("{}, the record at byte {at}: {error}", path.display()))
}
