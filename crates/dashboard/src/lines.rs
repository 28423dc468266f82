//! Reads a JSON Lines file incrementally as it grows. The lines are not interpreted.

use crate::kept::Stamp;
use std::fs::File;
use std::path::PathBuf;

/// The number of bytes read at once, which is also the maximum length of a line.
pub(crate) const PIECE: u64 = 8 << 20;

/// The number of bytes by which a file is recognized, at its start and before the position up to which it was read.
const SAMPLE: usize = 256;

/// A file, and the position up to which the file was read.
pub(crate) struct Lines {
    path: PathBuf,
    /// The number of bytes read, and the first and the last of these bytes. If they change, the file was replaced, or
    /// truncated and written again (a run that was resumed from an earlier step), and it is read from the start.
    read: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
    /// The file when it was last opened: while it stays the same, it has no new lines.
    seen: Option<Stamp>,
}

/// An open file with its length, and whether the file was replaced since the last read.
pub(crate) struct Opened {
    file: File,
    length: u64,
    pub begins_anew: bool,
}

impl Lines {
    /// The file at this path, with nothing read yet.
    pub fn new(path: PathBuf) -> Lines {
        Lines { path, read: 0, head: Vec::new(), tail: Vec::new(), seen: None }
    }

    /// The number of bytes read.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Opens the file; `None` if it does not exist, or has not changed since it was last opened.
    pub fn open(&mut self) -> Option<Opened> {
        let stamp = Stamp::of(&self.path).ok()?;
        if self.seen == Some(stamp) {
            return None;
        }
        let file = disk::open(&self.path).ok()?;
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let has = |at: u64, known: &[u8]| disk::read_range(&file, at, known.len() as u64).is_ok_and(|now| now == known);
        let begins_anew =
            length < self.read || !has(0, &self.head) || !has(self.read - self.tail.len() as u64, &self.tail);
        if begins_anew {
            (self.read, self.head, self.tail) = (0, Vec::new(), Vec::new());
        }
        self.seen = Some(stamp);
        Some(Opened { file, length, begins_anew })
    }

    /// Reads the next complete lines; `None` at the end. A line that is still being written is left for the next call.
    /// An untrusted file may have any length and consist of one line: reading stops at a line that exceeds the maximum.
    pub fn next(&mut self, of: &Opened) -> Option<Vec<u8>> {
        if self.read >= of.length {
            return None;
        }
        let Ok(mut bytes) = disk::read_range(&of.file, self.read, PIECE) else {
            // The file is opened again next time, since the error may pass.
            self.seen = None;
            return None;
        };
        bytes.truncate(bytes.iter().rposition(|&byte| byte == b'\n')? + 1);
        if self.read == 0 {
            self.head = bytes[..bytes.len().min(SAMPLE)].to_vec();
        }
        self.tail = bytes[bytes.len().saturating_sub(SAMPLE)..].to_vec();
        self.read += bytes.len() as u64;
        Some(bytes)
    }
}
