//! Opening regular files, and reading them into memory up to a limit.

use crate::place::Place;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, fstat, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The maximum total size of the holes in a file that is read into memory, in bytes. A hole is a range without data on
/// disk; it reads as zeros.
pub const MOST_HOLES: u64 = 32 << 20;

/// Options for opening a file, like [`std::fs::OpenOptions`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    flags: OFlags,
    write: bool,
    read: bool,
    mode: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

impl Options {
    /// Options without read or write access, which the methods below add. A file opened without either is read-only.
    pub fn new() -> Options {
        Options { flags: OFlags::empty(), write: false, read: false, mode: 0o666 }
    }

    /// Opens the file for reading.
    pub fn read(mut self) -> Options {
        self.read = true;
        self
    }

    /// Opens the file for writing.
    pub fn write(mut self) -> Options {
        self.write = true;
        self
    }

    /// Opens the file for appending.
    pub fn append(mut self) -> Options {
        self.flags |= OFlags::APPEND;
        self.write()
    }

    /// Creates the file if it does not exist.
    pub fn create(mut self) -> Options {
        self.flags |= OFlags::CREATE;
        self
    }

    /// Creates the file; fails if it exists.
    pub fn create_new(mut self) -> Options {
        self.flags |= OFlags::CREATE | OFlags::EXCL;
        self
    }

    /// Truncates the file to length 0.
    pub fn truncate(mut self) -> Options {
        self.flags |= OFlags::TRUNC;
        self
    }

    /// Sets the permissions of a newly created file.
    pub fn mode(mut self, mode: u32) -> Options {
        self.mode = mode;
        self
    }

    /// Adds flags of `open(2)`, such as `O_DIRECT`.
    pub fn flags(mut self, flags: u32) -> Options {
        self.flags |= OFlags::from_bits_retain(flags as _);
        self
    }

    /// Opens the file; fails if it is not a regular file.
    pub fn open(self, path: &Path) -> Result<File> {
        let access = match (self.read, self.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        // Without O_NONBLOCK, opening a named pipe blocks until its other end is opened. O_TRUNC is left out: the file
        // must be checked to be regular before it is truncated.
        let flags = (self.flags - OFlags::TRUNC) | access | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = match Place::of(path)?.open(flags, Mode::from_raw_mode(self.mode as _)) {
            // Opening a pipe without a reader, or a socket, fails with ENXIO.
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                return Err(not_regular(path, "a named pipe or a socket"));
            }
            Err(error) if error.raw_os_error() == Some(Errno::ISDIR.raw_os_error()) => {
                return Err(not_regular(path, "a directory"));
            }
            opened => opened?,
        };
        let kind = FileType::from_raw_mode(fstat(&opened)?.st_mode);
        if kind != FileType::RegularFile {
            let kind = match kind {
                FileType::Directory => "a directory",
                FileType::Fifo => "a named pipe",
                FileType::CharacterDevice | FileType::BlockDevice => "a device",
                _ => "a socket",
            };
            return Err(not_regular(path, kind));
        }
        let flags = fcntl_getfl(&opened)?;
        fcntl_setfl(&opened, flags - OFlags::NONBLOCK)?;
        let file = File::from(opened);
        if self.flags.contains(OFlags::TRUNC) {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

fn not_regular(path: &Path, kind: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{} is {kind}, not a regular file", path.display()))
}

/// Opens a regular file for reading.
pub fn open(path: impl AsRef<Path>) -> Result<File> {
    Options::new().read().open(path.as_ref())
}

/// Creates a file, or truncates the existing regular file.
pub fn create(path: impl AsRef<Path>) -> Result<File> {
    Options::new().write().create().truncate().open(path.as_ref())
}

/// Writes a whole file.
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
    create(path)?.write_all(bytes.as_ref())
}

/// Reads a regular file; fails if the file is longer than `most` bytes.
pub fn read(path: impl AsRef<Path>, most: u64) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let named = |error: Error| match error.get_ref() {
        Some(why) => Error::new(error.kind(), format!("{}: {why}", path.display())),
        None => error,
    };
    read_rest(&open(path)?, 0, most).map_err(named)
}

/// Reads a regular file as UTF-8; fails if the file is longer than `most` bytes.
pub fn read_to_string(path: impl AsRef<Path>, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

/// Reads an open file from offset `at` to its end; fails if that is more than `most` bytes.
pub fn read_rest(file: &File, at: u64, most: u64) -> Result<Vec<u8>> {
    let length = file.metadata()?.len().saturating_sub(at);
    if length > most {
        return Err(Error::new(
            ErrorKind::InvalidData,
            format!("the file is {length} bytes, more than the limit of {most}"),
        ));
    }
    read_range(file, at, length)
}

/// Reads `length` bytes of an open file from offset `at`, or fewer if the file ends earlier.
pub fn read_range(file: &File, at: u64, length: u64) -> Result<Vec<u8>> {
    let length = length.min(file.metadata()?.len().saturating_sub(at));
    refuse_holes_in(file, at, length)?;
    let size = usize::try_from(length).map_err(|_| ErrorKind::OutOfMemory)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| ErrorKind::OutOfMemory)?;
    // Positioned reads leave the offset of the shared handle unchanged.
    (At { file, at }).take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A reader with its own offset into an open file. It leaves the offset of the handle unchanged.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        let read = self.file.read_at(to, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Returns an error if the file has more than [`MOST_HOLES`] bytes of holes.
pub fn refuse_holes(file: &File) -> Result<()> {
    refuse_holes_in(file, 0, file.metadata()?.len())
}

fn refuse_holes_in(file: &File, begin: u64, length: u64) -> Result<()> {
    if length <= MOST_HOLES {
        return Ok(());
    }
    let data: u64 = data(file, begin..begin + length)?.into_iter().map(|part| part.end - part.start).sum();
    if length - data <= MOST_HOLES {
        Ok(())
    } else {
        Err(Error::new(
            ErrorKind::InvalidData,
            format!("the file is sparse: only {data} of its {length} bytes are on disk"),
        ))
    }
}

/// The parts of `range` that contain data, in order. The rest are holes.
pub(crate) fn data(file: &File, range: Range<u64>) -> Result<Vec<Range<u64>>> {
    // Seeking moves the offset of the caller's handle, so the offset is restored at the end.
    let before = seek(file, SeekFrom::Current(0))?;
    let mut parts = Vec::new();
    let mut at = range.start;
    while at < range.end {
        at = match seek(file, SeekFrom::Data(at)) {
            // ENXIO: the file has no data after this offset.
            Err(Errno::NXIO) => break,
            // A file system that does not support holes returns an error; the whole range is then data.
            found => found.unwrap_or(at).min(range.end),
        };
        let end = seek(file, SeekFrom::Hole(at)).map_or(range.end, |end| end.min(range.end)).max(at);
        if end > at {
            parts.push(at..end);
        }
        at = end.max(at + 1);
    }
    seek(file, SeekFrom::Start(before))?;
    Ok(parts)
}
