//! A file that is written past the page cache, where the system allows it.
//!
//! What is written is not read soon. In the page cache it costs more of a processor than all that makes it: a page for
//! every 4 KiB, a copy, and writing it back; and it evicts what is used. Whole blocks go straight from memory to the
//! disk instead; the last bytes, and whatever is mended after a [`Seek`], take the ordinary way.

use std::fs::File;
use std::io::{Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What memory, place and length are multiples of: the largest block of common disks.
const BLOCK: usize = 4096;
/// Bytes that are written at once, for which smaller files never wait. (Small in tests, for several of them.)
const AT_ONCE: usize = if cfg!(test) { 2 * BLOCK } else { 8 << 20 };

/// Linux's `O_DIRECT`, where it is known.
const DIRECT: Option<i32> = match () {
    () if !cfg!(target_os = "linux") => None,
    () if cfg!(target_arch = "x86_64") => Some(0o40000),
    () if cfg!(target_arch = "aarch64") => Some(0o200000),
    () => None,
};

pub(super) struct DirectFile {
    path: PathBuf,
    file: File,
    /// The same file, to write past the cache: not yet opened, opened, or not to be had.
    direct: Option<Option<File>>,
    /// [`AT_ONCE`] bytes from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes that wait in it.
    len: usize,
    /// Where in the file they belong.
    at: u64,
}

impl DirectFile {
    pub fn create(path: &Path) -> Result<DirectFile> {
        let file = File::create(path)?;
        let buffer = vec![0; AT_ONCE + BLOCK];
        let start = buffer.as_ptr().align_offset(BLOCK).min(BLOCK);
        Ok(DirectFile { path: path.to_owned(), file, direct: None, buffer, start, len: 0, at: 0 })
    }

    /// Writes what waits, and waits until all of the file is on the disk.
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.file.sync_all()
    }

    fn open_direct(path: &Path) -> Option<File> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // Some file systems refuse it.
            File::options().write(true).custom_flags(DIRECT?).open(path).ok()
        }
        #[cfg(not(unix))]
        None
    }
}

impl Write for DirectFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = bytes.len().min(AT_ONCE - self.len);
        self.buffer[self.start + self.len..][..n].copy_from_slice(&bytes[..n]);
        self.len += n;
        if self.len == AT_ONCE {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> Result<()> {
        let bytes = &self.buffer[self.start..self.start + self.len];
        let mut written = false;
        if self.len == AT_ONCE {
            let direct = self.direct.get_or_insert_with(|| DirectFile::open_direct(&self.path));
            if let Some(file) = direct {
                // Whatever the reason (it may be that a block is larger here), the ordinary way succeeds or names it.
                written = file.seek(SeekFrom::Start(self.at)).is_ok() && file.write_all(bytes).is_ok();
                if !written {
                    *direct = None;
                }
            }
        }
        if !written {
            self.file.seek(SeekFrom::Start(self.at))?;
            self.file.write_all(bytes)?;
        }
        self.at += self.len as u64;
        self.len = 0;
        Ok(())
    }
}

impl Seek for DirectFile {
    /// From there on nothing is written past the cache: places are no longer multiples of a block.
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.flush()?;
        self.direct = Some(None);
        self.file.seek(SeekFrom::Start(self.at))?;
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_the_length_and_the_pieces() {
        let dir = tempfile::tempdir().unwrap();
        for len in [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE, 5 * AT_ONCE + 777] {
            for piece in [1000, AT_ONCE, 3 * AT_ONCE + 5] {
                let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
                let path = dir.path().join(format!("{len}-{piece}"));
                let mut file = DirectFile::create(&path).unwrap();
                bytes.chunks(piece).for_each(|piece| file.write_all(piece).unwrap());
                if len > 20 {
                    // What is mended lies in the first block and was written long ago, or still waits.
                    file.seek(SeekFrom::Start(9)).unwrap();
                    file.write_all(b"checksum").unwrap();
                    bytes[9..17].copy_from_slice(b"checksum");
                }
                file.finish().unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes, "{len} bytes by {piece}");
            }
        }
    }
}
