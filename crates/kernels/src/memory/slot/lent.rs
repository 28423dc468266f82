//! A slot that its writer lends to this process.

use super::header::{self, Head, WRITING};
use super::place::Place;
use super::{Arena, Hold, Memory};
use crate::Result;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::{File, TryLockError};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A slot that another process has created to be [lent](super::SlotOptions::lent), and that it has locked for writing.
///
/// Between [`borrow`](Self::borrow) and [`give_back`](Self::give_back), this process reads and writes elements of the
/// slot. The writer asks for this by a message, and waits for the answer before it accesses the same elements itself or
/// publishes the slot.
pub struct LentSlot(Arc<Lent>);

pub(in crate::memory) struct Lent {
    place: Place,
    map: MmapRaw,
    head: Head,
    borrowed: AtomicBool,
    /// Whether the slot's memory was already handed out.
    taken: AtomicBool,
}

impl Lent {
    pub(super) fn map(&self) -> &MmapRaw {
        &self.map
    }
    pub(super) fn head(&self) -> &Head {
        &self.head
    }
    pub(super) fn is_borrowed(&self) -> bool {
        self.borrowed.load(Ordering::SeqCst)
    }
}

impl LentSlot {
    /// Opens and maps the slot at [`SlotWriter::path`](super::SlotWriter::path), whose description must be `layout`.
    pub fn open(path: &Path, layout: &str) -> Result<LentSlot> {
        let place = Place::open_to_write(path)?;
        let (head, _) = Head::read(&place.file).map_err(|e| place.error(format!("failed to read: {e}")))?;
        head.expect_layout(layout).map_err(|why| place.error(why))?;
        let map = MmapOptions::new().map_raw(&place.file);
        let map = map.map_err(|e| place.error(format!("failed to map for writing: {e}")))?;
        let _ = map.advise(memmap2::Advice::HugePage);
        if map.len() < head.data + head.bytes {
            return Err(place.error("the file is shorter than its header says".into()));
        }
        let [borrowed, taken] = [false, false].map(AtomicBool::new);
        Ok(LentSlot(Arc::new(Lent { place, map, head, borrowed, taken })))
    }

    /// A [`Memory`] whose allocations are the slot's bytes, in the order in which the writer allocated them. They can
    /// be accessed while the slot is borrowed. Fails on the second call.
    pub fn memory(&self, memory: &Memory) -> Result<Memory> {
        if self.0.taken.swap(true, Ordering::SeqCst) {
            return Err(self.0.place.error("the slot's memory was already handed out".into()));
        }
        memory.in_slot(Arena::new(Hold::Lent(self.0.clone())))
    }

    /// Begins to access the slot. Fails unless its writer has locked it for writing.
    pub fn borrow(&self) -> Result<()> {
        let Lent { place, borrowed, .. } = &*self.0;
        let fail = |what: &str, error: &std::io::Error| place.error(format!("{what}: {error}"));
        let lock = File::open(format!("/proc/self/fd/{}", place.file.as_raw_fd()));
        let lock = lock.map_err(|e| fail("failed to reopen", &e))?;
        let is_locked = match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => true,
            Ok(()) => lock.unlock().is_err(),
            Err(TryLockError::Error(error)) => return Err(fail("failed to lock", &error)),
        };
        let (_, contents) = header::read(&lock).map_err(|e| fail("failed to read", &e))?;
        if !is_locked || contents.number != WRITING {
            return Err(place.error("the slot is lent, but its writer has not locked it".into()));
        }
        borrowed.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the access to the slot: tensors in it can no longer be read or written.
    pub fn give_back(&self) {
        self.0.borrowed.store(false, Ordering::SeqCst);
    }
}
