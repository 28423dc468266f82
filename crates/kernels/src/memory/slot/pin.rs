//! Readers of a slot of shared memory, and the pins that prevent the slot from being overwritten.

use super::header::{self, Contents, Head, WRITING};
use super::owned::is_in_place;
use super::place::Place;
use super::{Arena, Hold, Memory};
use crate::{Error, Result};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{File, TryLockError};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// A read-only mapping of a slot of shared memory that another process writes. Clones share the mapping.
#[derive(Clone)]
pub struct SlotReader(Arc<Reader>);

struct Reader {
    place: Place,
    map: MmapRaw,
    head: Head,
}

/// A reader's shared lock on a slot. The slot's contents do not change until the pin and every tensor of its
/// [memory](Pin::memory) are dropped, or the process ends.
#[derive(Clone)]
pub struct Pin(Arc<Pinned>);

pub(in crate::memory) struct Pinned {
    reader: Arc<Reader>,
    contents: Contents,
    /// A file with the shared lock. Every pin opens the file separately, so that dropping one pin does not release the
    /// lock of another.
    lock: File,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Closing the file is not enough: between fork and exec, a child process has copies of all open files.
        let _ = self.lock.unlock();
    }
}

impl Pinned {
    pub(super) fn map(&self) -> &MmapRaw {
        &self.reader.map
    }
    pub(super) fn head(&self) -> &Head {
        &self.reader.head
    }
}

impl SlotReader {
    /// Opens and maps the slot at [`SlotWriter::path`](super::SlotWriter::path).
    pub fn open(path: &Path) -> Result<SlotReader> {
        SlotReader::of(Place::open(path)?)
    }

    pub(super) fn of(place: Place) -> Result<SlotReader> {
        let (head, _) = Head::read(&place.file).map_err(|e| place.error(format!("failed to read: {e}")))?;
        let map = MmapOptions::new().map_raw_read_only(&place.file);
        let map = map.map_err(|e| place.error(format!("failed to map: {e}")))?;
        let _ = map.advise(memmap2::Advice::HugePage);
        if map.len() < head.data + head.bytes {
            return Err(place.error("the file is shorter than its header says".into()));
        }
        Ok(SlotReader(Arc::new(Reader { place, map, head })))
    }

    /// The path that other processes open.
    pub fn path(&self) -> &Path {
        &self.0.place.path
    }

    /// Id of the training run to which the slot belongs.
    pub fn run(&self) -> [u8; 16] {
        self.0.head.run
    }

    /// Description of the tensors in the slot, one line each.
    pub fn layout(&self) -> &str {
        &self.0.head.layout
    }

    /// Bytes of all allocations in the slot.
    pub fn bytes(&self) -> usize {
        self.0.head.bytes
    }

    /// Fails if the slot's description differs from `layout`; the error names the first line that differs.
    pub fn expect_layout(&self, layout: &str) -> Result<()> {
        self.0.head.expect_layout(layout).map_err(|why| self.0.place.error(why))
    }

    /// Pins the slot's current contents; `None` while the slot is being written.
    pub fn pin(&self) -> Result<Option<Pin>> {
        let place = &self.0.place;
        let fail = |what: &str, error: &std::io::Error| place.error(format!("{what}: {error}"));
        let own = format!("/proc/self/fd/{}", place.file.as_raw_fd());
        let lock = match File::open(own) {
            // Without /proc, the file is opened by its path.
            Err(_) if is_in_place(&place.file, &place.path) => File::open(&place.path),
            opened => opened,
        };
        let lock = lock.map_err(|e| fail("failed to reopen", &e))?;
        match lock.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(fail("failed to lock", &error)),
        }
        // Read the contents only under the lock, because until then the writer can change them.
        let (_, contents) = header::read(&lock).map_err(|e| fail("failed to read", &e))?;
        if contents.number == WRITING {
            return Ok(None); // the writer died while it was writing the slot
        }
        Ok(Some(Pin(Arc::new(Pinned { reader: self.0.clone(), contents, lock }))))
    }
}

impl Pin {
    /// The contents of the pinned slot.
    pub fn contents(&self) -> Contents {
        self.0.contents
    }

    /// A [`Memory`] whose allocations are the slot's bytes, in the order in which the writer allocated them. They are
    /// read-only, and every allocation keeps the pin.
    pub fn memory(&self, memory: &Memory) -> Result<Memory> {
        memory.in_slot(Arena::new(Hold::Pin(self.0.clone())))
    }

    /// Copies bytes from offset `at` of the slot's data to `out`, to send them to another machine.
    pub fn read_at(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let Reader { place, head, .. } = &*self.0.reader;
        if at.checked_add(out.len()).is_none_or(|end| end > head.bytes) {
            return Err(place.error(format!(
                "the slot has {} bytes, so {} bytes from offset {at} are out of range",
                head.bytes,
                out.len()
            )));
        }
        let read = self.0.lock.read_exact_at(out, (head.data + at) as u64);
        read.map_err(|e| place.error(format!("failed to read: {e}")))
    }

    /// Compares the slot's bytes with the checksum that the writer published. Fails if they differ, or if the checksum
    /// is missing.
    pub fn audit(&self) -> Result<()> {
        let Reader { place, map, head } = &*self.0.reader;
        // SAFETY: the bytes lie inside the mapping and are initialised. The pin prevents the writer from changing them.
        // If another process of this user ignores the pin and changes them, only the hash changes, since any bits are
        // valid bytes.
        let data = unsafe { std::slice::from_raw_parts(map.as_ptr().add(head.data), head.bytes) };
        let found = twox_hash::XxHash3_64::oneshot(data);
        match self.0.contents.checksum {
            Some(checksum) if checksum == found => Ok(()),
            Some(checksum) => {
                let message =
                    format!("the weights have the checksum {found:016x}, but were published with {checksum:016x}");
                Err(place.error(message))
            }
            None => Err(Error::Slot {
                path: place.path.clone(),
                message: "the weights were published without a checksum".into(),
            }),
        }
    }
}
