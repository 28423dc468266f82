//! The memory behind a slot of shared memory: a sealed memfd, or a file.

use super::owned::{Owned, is_in_place};
use super::{Head, SlotOptions};
use crate::{Error, Result};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use std::fs::{File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(super) struct Place {
    pub file: File,
    /// The path that other processes open.
    pub path: PathBuf,
    is_memfd: bool,
    /// For a file created by this process: prevents others from deleting the file, and deletes it at the end.
    owned: Option<Owned>,
}

impl Place {
    /// Creates an empty memfd or file of `length` bytes.
    pub fn create(options: &SlotOptions<'_>, length: usize) -> Result<Place> {
        let path = options.dir.map_or_else(|| PathBuf::from("memfd"), Path::to_owned);
        let fail = |message: String| Error::Slot { path: path.clone(), message };
        let available = available_memory();
        if available.is_some_and(|available| length as u64 > available) {
            let available = available.unwrap_or(0);
            return Err(fail(format!(
                "a weight slot takes {:.1} MB, but only {:.1} MB of memory are available: use a smaller max_staleness \
                 (there are max_staleness + 1 slots), an adapter, or dtype = \"bf16\"",
                length as f64 / 1e6,
                available as f64 / 1e6
            )));
        }
        let place = match options.dir {
            None => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let file =
                    memfd_create("lockstep-weights", flags).map_err(|e| fail(format!("cannot create a memfd: {e}")))?;
                let (file, number) = (File::from(file), std::process::id());
                let path = PathBuf::from(format!("/proc/{number}/fd/{}", file.as_raw_fd()));
                if !is_in_place(&file, &path) {
                    return Err(fail(format!(
                        "other processes cannot open the slot at {}, since /proc is missing or belongs to another pid \
                         namespace: set --weights-dir to a directory, such as /dev/shm",
                        path.display()
                    )));
                }
                Place { file, path, is_memfd: true, owned: None }
            }
            Some(dir) => {
                let made = Owned::create(dir, &options.run);
                let (file, owned) = made.map_err(|e| fail(format!("cannot create a file for weights: {e}")))?;
                Place { file, path: owned.slot().to_owned(), is_memfd: false, owned: Some(owned) }
            }
        };
        place.file.set_permissions(Permissions::from_mode(0o600)).map_err(|e| place.error(e.to_string()))?;
        place.file.set_len(length as u64).map_err(|e| place.no_room(length, &e))?;
        Ok(place)
    }

    /// Opens a memfd or file created by another process.
    pub fn open(path: &Path) -> Result<Place> {
        let fail = |e: std::io::Error| Error::Slot { path: path.to_owned(), message: format!("failed to open: {e}") };
        // In another pid namespace the path of a memfd may be an open file of a different process, perhaps a pipe.
        // `disk` rejects a pipe instead of blocking on it.
        let file = disk::open(path).map_err(fail)?;
        Ok(Place { file, path: path.to_owned(), is_memfd: false, owned: None })
    }

    /// Opens a memfd or file of another process, to write it.
    pub fn open_to_write(path: &Path) -> Result<Place> {
        let fail = |e: std::io::Error| Error::Slot { path: path.to_owned(), message: format!("failed to open: {e}") };
        let file = disk::Options::new().read().write().open(path).map_err(fail)?;
        Ok(Place { file, path: path.to_owned(), is_memfd: false, owned: None })
    }

    /// Maps the memory for writing, in huge pages if possible. If `now`, the system allocates it immediately; memory of
    /// a file is always allocated, since a full file system would end the process.
    pub fn map_to_write(&self, head: &Head, now: bool) -> Result<MmapRaw> {
        let map = MmapOptions::new().map_raw(&self.file).map_err(|e| self.no_room(head.data + head.bytes, &e))?;
        // Huge pages are an optimisation, so the advice may fail.
        let _ = map.advise_range(Advice::HugePage, head.data, head.bytes);
        if self.is_memfd && !now {
            return Ok(map);
        }
        // This must run before `fallocate`, which allocates small pages.
        let populate = || match head.bytes {
            0 => Ok(()),
            bytes => map.advise_range(Advice::PopulateWrite, head.data, bytes),
        };
        let has_errno = |error: &std::io::Error, errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
        let populated = populate();
        match &populated {
            // Linux before 5.14 does not support `MADV_POPULATE_WRITE` (EINVAL). Without enough memory, the call fails
            // with a bad address (EFAULT); `fallocate` then reports the actual error.
            Err(error) if !has_errno(error, Errno::INVAL) && !has_errno(error, Errno::FAULT) => {
                return Err(self.no_room(head.data + head.bytes, error));
            }
            _ => {}
        }
        for (from, length) in [(0, head.data.min(super::header::BYTES + head.layout.len())), (head.data, head.bytes)] {
            if length > 0 {
                let taken = fallocate(&self.file, FallocateFlags::empty(), from as u64, length as u64);
                taken.map_err(|e| self.no_room(head.data + head.bytes, &e.into()))?;
            }
        }
        if populated.is_err_and(|error| has_errno(&error, Errno::FAULT)) {
            populate().map_err(|e| self.no_room(head.data + head.bytes, &e))?;
        }
        Ok(map)
    }

    /// Seals the memfd: its length can no longer change, and unless it is lent, it can be written only through the
    /// existing mapping.
    pub fn seal_after_mapping(&self, sealed_later: bool, lent: bool) -> Result<()> {
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if !lent {
            seals |= SealFlags::FUTURE_WRITE;
        }
        if !sealed_later {
            seals |= SealFlags::SEAL;
        }
        self.seal(seals)
    }

    /// Seals the memfd against all writes. No writable mapping may exist any more.
    pub fn seal_content(&self) -> Result<()> {
        if !self.is_memfd {
            let read_only = self.file.set_permissions(Permissions::from_mode(0o400));
            return read_only.map_err(|e| self.error(format!("failed to make read-only: {e}")));
        }
        self.seal(SealFlags::WRITE | SealFlags::SEAL)
    }

    fn seal(&self, seals: SealFlags) -> Result<()> {
        if !self.is_memfd {
            return Ok(());
        }
        fcntl_add_seals(&self.file, seals).map_err(|e| self.error(format!("failed to seal: {e}")))
    }

    pub fn error(&self, message: String) -> Error {
        Error::Slot { path: self.path.clone(), message }
    }

    pub(super) fn no_room(&self, length: usize, error: &std::io::Error) -> Error {
        let fix = if self.owned.is_some() {
            "set weights_dir to a directory with more free space"
        } else {
            "use a smaller max_staleness, or a container with more memory"
        };
        self.error(format!("not enough space for a weight slot of {:.1} MB ({error}): {fix}", length as f64 / 1e6))
    }
}

/// Bytes of memory available in the system; `None` if it does not report them.
fn available_memory() -> Option<u64> {
    available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// The available bytes according to the text of `/proc/meminfo`.
pub(super) fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}
