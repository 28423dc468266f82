//! Writes a file with direct I/O, bypassing the page cache, where the system supports it.
//!
//! Checkpoints are not read soon after they are written. Buffered writes would cost more CPU time than producing the
//! bytes (a page for every 4 KiB, a copy, writeback) and would evict data in use. So full pieces go directly from
//! memory to the disk; one piece is written while the next is filled. The last bytes, and patches after a [`Seek`], are
//! buffered writes.

use std::fs::File;
use std::io::{Error, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Alignment of memory addresses, file offsets and lengths: the largest block size of common disks.
const BLOCK: usize = 4096;
/// Bytes of one direct write; smaller files are not written directly. Smaller pieces would wake this thread and the
/// writer more often, and each wake-up takes a core from a computing thread. (Small in tests, so that there are several
/// pieces.)
const AT_ONCE: usize = if cfg!(test) { 2 * BLOCK } else { 8 << 20 };

/// Value of Linux's `O_DIRECT` flag on this platform, if known.
const DIRECT: Option<u32> = match () {
    () if !cfg!(target_os = "linux") => None,
    () if cfg!(target_arch = "x86_64") => Some(0o40000),
    () if cfg!(target_arch = "aarch64") => Some(0o200000),
    () => None,
};

/// The file, opened twice: once normally and once for direct I/O.
struct Disk {
    path: PathBuf,
    file: File,
    /// `None`: not opened yet. `Some(None)`: direct I/O is not available.
    direct: Option<Option<File>>,
}

impl Disk {
    fn put(&mut self, bytes: &[u8], at: u64) -> Result<()> {
        if bytes.len() == AT_ONCE {
            let direct = self.direct.get_or_insert_with(|| open_direct(&self.path));
            if let Some(file) = direct {
                // If this fails for any reason (the disk's block may be larger), the buffered write below succeeds or
                // reports the error.
                if file.seek(SeekFrom::Start(at)).is_ok() && file.write_all(bytes).is_ok() {
                    return Ok(());
                }
                *direct = None;
            }
        }
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(bytes)
    }
}

fn open_direct(path: &Path) -> Option<File> {
    // Some file systems do not support direct I/O.
    disk::Options::new().write().flags(DIRECT?).open(path).ok()
}

/// A buffer of `room` bytes from `start` on, aligned to [`BLOCK`]. It grows up to [`AT_ONCE`] bytes; it starts smaller
/// because most files are small and the system clears each page that is touched.
struct Piece {
    memory: Vec<u8>,
    start: usize,
    room: usize,
}

impl Piece {
    fn new(room: usize) -> Piece {
        let memory = vec![0; room + BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        Piece { memory, start, room }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.room]
    }

    /// Makes room for `len` bytes and keeps the first `kept`.
    fn grow(&mut self, len: usize, kept: usize) {
        if len > self.room {
            let mut larger = Piece::new(len.next_power_of_two().min(AT_ONCE));
            larger.bytes()[..kept].copy_from_slice(&self.bytes()[..kept]);
            *self = larger;
        }
    }
}

/// A thread that writes one full piece while the next one is filled, so that the disk and the producer do not wait for
/// each other.
struct Writer {
    pieces: Sender<(Piece, u64)>,
    /// Returns each piece after it was written or the write failed.
    written: Receiver<(Piece, Result<()>)>,
    thread: JoinHandle<Disk>,
}

impl Writer {
    fn start(mut disk: Disk) -> Result<Writer> {
        let ((pieces, queued), (done, written)) = (channel::<(Piece, u64)>(), channel());
        let work = move || {
            for (mut piece, at) in queued {
                let result = disk.put(piece.bytes(), at);
                // After an error, the receiver may be gone.
                let _ = done.send((piece, result));
            }
            disk
        };
        let thread = std::thread::Builder::new().name("disk".to_owned()).spawn(work)?;
        Ok(Writer { pieces, written, thread })
    }
}

pub(super) struct DirectFile {
    /// The open file; none while the writer has it.
    disk: Option<Disk>,
    /// The writer thread, started by the first full piece. From then on one piece is always being written.
    writer: Option<Writer>,
    /// The piece that is being filled.
    piece: Piece,
    /// Number of bytes in the piece so far.
    len: usize,
    /// Offset in the file of the piece's first byte.
    at: u64,
}

impl DirectFile {
    pub fn create(path: &Path) -> Result<DirectFile> {
        Ok(DirectFile::of(path, disk::create(path)?))
    }

    fn of(path: &Path, file: File) -> DirectFile {
        let disk = Disk { path: path.to_owned(), file, direct: None };
        DirectFile { disk: Some(disk), writer: None, piece: Piece::new(BLOCK), len: 0, at: 0 }
    }

    /// Writes the remaining bytes, and waits until the whole file is on the disk.
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.disk()?.file.sync_all()
    }

    /// Gives the full piece to the writer, and takes back the piece that was written before it.
    fn hand_over(&mut self) -> Result<()> {
        let empty = match (&self.writer, self.disk.take()) {
            (Some(writer), _) => {
                let (piece, result) = writer.written.recv().map_err(|_| gone())?;
                result?;
                piece
            }
            (None, Some(disk)) => {
                self.writer = Some(Writer::start(disk)?);
                Piece::new(AT_ONCE)
            }
            (None, None) => return Err(gone()),
        };
        let full = std::mem::replace(&mut self.piece, empty);
        let writer = self.writer.as_ref().ok_or_else(gone)?;
        writer.pieces.send((full, self.at)).map_err(|_| gone())?;
        self.at += AT_ONCE as u64;
        self.len = 0;
        Ok(())
    }

    /// The open file, after the writer has finished all its pieces.
    fn disk(&mut self) -> Result<&mut Disk> {
        if let Some(Writer { pieces, written, thread }) = self.writer.take() {
            drop(pieces);
            self.disk = Some(thread.join().map_err(|_| gone())?);
            written.try_iter().try_for_each(|(_, result)| result)?;
        }
        self.disk.as_mut().ok_or_else(gone)
    }
}

/// The error for all writes after a failed one.
fn gone() -> Error {
    Error::other("an earlier part of the file could not be written")
}

impl Write for DirectFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = bytes.len().min(AT_ONCE - self.len);
        self.piece.grow(self.len + n, self.len);
        self.piece.bytes()[self.len..][..n].copy_from_slice(&bytes[..n]);
        self.len += n;
        if self.len == AT_ONCE {
            self.hand_over()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> Result<()> {
        let (at, len) = (self.at, self.len);
        self.disk()?;
        let disk = self.disk.as_mut().ok_or_else(gone)?;
        disk.put(&self.piece.bytes()[..len], at)?;
        (self.at, self.len) = (at + len as u64, 0);
        Ok(())
    }
}

impl Seek for DirectFile {
    /// After a seek nothing is written directly, because offsets are not multiples of a block.
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.flush()?;
        let at = self.at;
        let disk = self.disk()?;
        disk.direct = Some(None);
        disk.file.seek(SeekFrom::Start(at))?;
        self.at = disk.file.seek(to)?;
        Ok(self.at)
    }
}

impl Drop for DirectFile {
    /// Waits for the writer after an error, so that nothing writes to the file when it is removed.
    fn drop(&mut self) {
        let _ = self.disk();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_writes_store_every_byte_at_any_length() {
        let dir = tempfile::tempdir().unwrap();
        for len in [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE, 5 * AT_ONCE + 777] {
            for piece in [1000, AT_ONCE, 3 * AT_ONCE + 5] {
                let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
                let path = dir.path().join(format!("{len}-{piece}"));
                let mut file = DirectFile::create(&path).unwrap();
                bytes.chunks(piece).for_each(|piece| file.write_all(piece).unwrap());
                if len > 20 {
                    // The patch is in the first block, which is already on disk or still buffered.
                    file.seek(SeekFrom::Start(9)).unwrap();
                    file.write_all(b"checksum").unwrap();
                    bytes[9..17].copy_from_slice(b"checksum");
                }
                file.finish().unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes, "{len} bytes by {piece}");
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_at_any_write() {
        for pieces in [0, 1, 2, 5] {
            let path = Path::new("/dev/full");
            let mut file = DirectFile::of(path, File::options().write(true).open(path).unwrap());
            let bytes = vec![1; pieces * AT_ONCE + 1];
            let error = file.write_all(&bytes).and_then(|()| file.finish()).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{pieces} pieces: {error}");
        }
    }
}
