//! Slots of shared memory: one process writes a version of the weights into a slot, and others read it in place.
//!
//! A slot is a memfd (or, if the processes share no pid namespace, a file in `/dev/shm`). It begins with a
//! [header](Contents) and a description of the layout; the allocations follow one after another, aligned to 64. Writer
//! and readers build the same tree of tensors in the same order, so they compute the same addresses, and nothing is
//! copied or packed again.
//!
//! The kernel's file lock on a slot determines who may access it. The system releases the lock when the process dies,
//! but not while the process is stopped:
//!
//! - A reader's memory comes from a [`Pin`], which is a shared lock. It is read-only. Every tensor in it keeps the pin.
//! - A writer's memory is writable while the writer holds the exclusive lock, which [`SlotWriter::publish`] releases.
//!   `publish` takes the slot's tensors by exclusive reference, so no other code is still writing to them.
//! - While a writer holds the exclusive lock, it can lend the slot to processes that work for it ([`LentSlot`]): each
//!   of them then reads and writes elements that no other one accesses, as they agree by messages. Readers cannot pin
//!   the slot until the writer publishes it, also if the writer dies.
//!
//! A process of the same user that ignores these rules (it maps a file of `weights_dir` for writing, or debugs the
//! writer) can change the numbers that a reader sees. With a memfd that is not lent, only a debugger can do this: the
//! seals prevent truncation and all writes, except those through the writer's own mapping.

mod fill;
mod header;
mod lent;
mod owned;
mod pin;
mod place;
#[cfg(test)]
mod tests;

pub use fill::SlotFiller;
pub use header::Contents;
pub use lent::LentSlot;
pub use pin::{Pin, SlotReader};

use super::host::HostBytes;
use super::{Buffer, Memory};
use crate::{Error, Result};
use header::{Head, WRITING};
use lent::Lent;
use memmap2::MmapRaw;
use pin::Pinned;
use place::Place;
use std::fs::TryLockError;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The parameters of a new slot of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SlotOptions<'a> {
    /// Id of the training run to which the slot belongs.
    pub run: [u8; 16],
    /// Description of the tensors in the slot, one line each. Writer and readers must have the same description.
    pub layout: &'a str,
    /// Bytes of all allocations in the slot, each rounded up to 64.
    pub bytes: usize,
    /// The directory for the slot's file; `None` creates a memfd.
    pub dir: Option<&'a Path>,
    /// Whether the slot will be [sealed](SlotWriter::seal) once it is filled.
    pub sealed_later: bool,
    /// Whether the slot will be [lent](LentSlot) to other processes. Its memory is taken when a process first writes
    /// it, near the cores of that process.
    pub lent: bool,
}

/// A writable slot of shared memory. Clones are handles of the same slot.
#[derive(Clone)]
pub struct SlotWriter(Arc<Writer>);

pub(super) struct Writer {
    map: MmapRaw,
    place: Place,
    head: Head,
    /// Whether this process has the slot's exclusive lock, and so may write.
    locked: AtomicBool,
    /// Number of allocations in the slot that are alive.
    live: AtomicUsize,
    /// Whether the slot's memory was already handed out.
    taken: AtomicBool,
}

/// Keeps the mapping of a slot alive, for the writer's allocations or the readers'.
#[derive(Clone)]
pub(super) enum Hold {
    Writer(Arc<Writer>),
    Pin(Arc<Pinned>),
    Lent(Arc<Lent>),
}

/// An allocator that hands out a slot's bytes in order.
pub(super) struct Arena {
    hold: Hold,
    next: AtomicUsize,
}

impl Arena {
    fn new(hold: Hold) -> Arc<Arena> {
        Arc::new(Arena { hold, next: AtomicUsize::new(0) })
    }

    /// Allocates the next `bytes` bytes of the slot; `None` if the slot is full.
    pub(super) fn take(&self, bytes: usize) -> Option<HostBytes> {
        let size = bytes.checked_next_multiple_of(64)?;
        let from = self.next.fetch_add(size, Ordering::Relaxed);
        let (map, head) = match &self.hold {
            Hold::Writer(writer) => (&writer.map, &writer.head),
            Hold::Pin(pinned) => (pinned.map(), pinned.head()),
            Hold::Lent(lent) => (lent.map(), lent.head()),
        };
        if from.checked_add(size)? > head.bytes {
            return None;
        }
        // SAFETY: the address lies inside the mapping, which is `data + bytes` long, and the arena gives out each byte
        // once.
        let start = NonNull::new(unsafe { map.as_mut_ptr().add(head.data + from) })?;
        if let Hold::Writer(writer) = &self.hold {
            writer.live.fetch_add(1, Ordering::SeqCst);
        }
        Some(HostBytes::in_slot(start, self.hold.clone()))
    }

    /// Whether the slot belongs to another process.
    pub(super) fn is_of_another_process(&self) -> bool {
        !matches!(self.hold, Hold::Writer(_))
    }
}

impl Hold {
    /// Whether this process may read the slot now.
    pub(super) fn is_readable(&self) -> bool {
        !matches!(self, Hold::Lent(lent) if !lent.is_borrowed())
    }
    /// Whether this process may write the slot now.
    pub(super) fn is_writable(&self) -> bool {
        match self {
            Hold::Writer(writer) => writer.locked.load(Ordering::SeqCst),
            Hold::Pin(_) => false,
            Hold::Lent(lent) => lent.is_borrowed(),
        }
    }
    /// Called when an allocation in the slot is dropped.
    pub(super) fn released(&self) {
        if let Hold::Writer(writer) = self {
            writer.live.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl SlotWriter {
    /// Creates a slot of zeros, locked for writing. Unless the slot is [lent](SlotOptions::lent), the system allocates
    /// the memory now, so that missing memory is an error here and not a signal later.
    pub fn create(options: SlotOptions<'_>) -> Result<SlotWriter> {
        let head = Head::new(&options);
        let place = Place::create(&options, head.data + options.bytes)?;
        let map = place.map_to_write(&head, !options.lent)?;
        place.seal_after_mapping(options.sealed_later, options.lent)?;
        place
            .file
            .try_lock()
            .map_err(|error| place.error(format!("the writer failed to lock its own slot: {error}")))?;
        let [locked, taken] = [true, false].map(AtomicBool::new);
        let writer = Writer { map, place, head, locked, live: AtomicUsize::new(0), taken };
        writer.write_head(&Contents { number: WRITING, ..Contents::default() }, true);
        Ok(SlotWriter(Arc::new(writer)))
    }

    /// The path that readers open. For a memfd it is `/proc/PID/fd/N`, which exists as long as this process.
    pub fn path(&self) -> &Path {
        &self.0.place.path
    }

    /// A [`Memory`] that allocates in the slot and counts in `memory`'s ledger. Fails on the second call.
    pub fn memory(&self, memory: &Memory) -> Result<Memory> {
        if self.0.taken.swap(true, Ordering::SeqCst) {
            return Err(self.0.place.error("the slot's memory was already handed out".into()));
        }
        memory.in_slot(Arena::new(Hold::Writer(self.0.clone())))
    }

    /// Takes the slot's exclusive lock, unless a reader pins the slot. Returns whether this process has the lock now.
    pub fn try_lock(&self) -> Result<bool> {
        if self.0.locked.load(Ordering::SeqCst) {
            return Ok(true);
        }
        match self.0.place.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(self.0.place.error(format!("failed to lock: {error}"))),
        }
        self.0.write_head(&Contents { number: WRITING, ..Contents::default() }, false);
        self.0.locked.store(true, Ordering::SeqCst);
        Ok(true)
    }

    /// [`publish`](Self::publish) for the buffers of all tensors in the slot, to which the caller has exclusive
    /// references.
    pub(crate) fn publish_buffers(&self, buffers: &[&Buffer], contents: Contents, checksum: bool) -> Result<()> {
        let writer = &self.0;
        let all = buffers.iter().all(|buffer| buffer.slot().is_some_and(|hold| hold.is_of(writer)));
        let live = writer.live.load(Ordering::SeqCst);
        if !all || live != buffers.len() {
            let message = format!("published with {} tensors, but the slot has {live} live tensors", buffers.len());
            return Err(writer.place.error(message));
        }
        if !writer.locked.load(Ordering::SeqCst) {
            return Err(writer.place.error("the slot must be locked before it is published".into()));
        }
        // The caller's references are exclusive, so no other code is writing the slot, and from now on none can.
        writer.locked.store(false, Ordering::SeqCst);
        writer.write_head(&writer.summed(contents, checksum), false);
        writer.place.file.unlock().map_err(|error| writer.place.error(format!("failed to unlock: {error}")))
    }

    /// Publishes the slot and ends writing permanently; no tensor in the slot may still be alive. After that, no
    /// process can write the memfd, and this process is a reader like any other.
    pub fn seal(self, contents: Contents, checksum: bool) -> Result<SlotReader> {
        let path = self.0.place.path.clone();
        let fail = |message: &str| Error::Slot { path: path.clone(), message: message.into() };
        let writer = Arc::try_unwrap(self.0).map_err(|_| fail("cannot seal a slot that is in use"))?;
        writer.write_head(&writer.summed(contents, checksum), false);
        let Writer { map, place, .. } = writer;
        drop(map);
        place.seal_content()?;
        place.file.unlock().map_err(|error| place.error(format!("failed to unlock: {error}")))?;
        SlotReader::of(place)
    }
}

impl Hold {
    fn is_of(&self, writer: &Arc<Writer>) -> bool {
        matches!(self, Hold::Writer(own) if Arc::ptr_eq(own, writer))
    }
}

impl Writer {
    fn summed(&self, contents: Contents, checksum: bool) -> Contents {
        // SAFETY: the bytes lie inside the mapping and are initialised. The callers ensure that no other code in this
        // process writes them, and no other process can while the lock is held.
        let data = || unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.head.data), self.head.bytes) };
        Contents { checksum: checksum.then(|| twox_hash::XxHash3_64::oneshot(data())), ..contents }
    }

    /// Writes the header, and with `layout` also the description of the layout. It writes through the mapping, because
    /// a seal of the memfd forbids writing to the file.
    fn write_head(&self, contents: &Contents, layout: bool) {
        let write = |at: usize, bytes: &[u8]| {
            // SAFETY: the header and the layout lie inside the mapping, before the data. No reference to them exists,
            // since readers read them from the file.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(at), bytes.len()) }
        };
        write(0, &self.head.encode(contents));
        if layout {
            write(header::BYTES, self.head.layout.as_bytes());
        }
    }
}
