//! Host memory. Small buffers come from the allocator; large buffers are separate memory maps.

use std::alloc::{self, alloc_zeroed};
use std::ptr::NonNull;

/// Buffers of at least this many bytes are separate memory maps, advised to use huge pages.
pub(super) const MAP_FROM: usize = 1 << 16;

/// Zeroed bytes of host memory, aligned to 64.
///
/// All accesses go through the pointer `start`, so that disjoint ranges may be borrowed at the same time.
pub(super) struct HostBytes {
    pub(super) start: NonNull<u8>,
    owner: Owner,
}

enum Owner {
    Small(alloc::Layout),
    Map(memmap2::MmapMut),
    #[cfg(target_os = "linux")]
    Slot(super::slot::Hold),
}

// SAFETY: the value owns the memory at `start`. Tensors and their views control who may access which elements.
unsafe impl Send for HostBytes {}
// SAFETY: the value owns the memory at `start`. Tensors and their views control who may access which elements.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    /// Allocates `bytes` zeroed bytes; `None` if the allocation fails.
    pub(super) fn zeroed(bytes: usize) -> Option<HostBytes> {
        // Miri does not support memory maps.
        if bytes >= MAP_FROM && !cfg!(miri) {
            let mut map = memmap2::MmapOptions::new().len(bytes).map_anon().ok()?;
            // Huge pages are an optimisation, so the advice may fail.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            return Some(HostBytes { start: NonNull::new(map.as_mut_ptr())?, owner: Owner::Map(map) });
        }
        let layout = alloc::Layout::from_size_align(bytes.next_multiple_of(64).max(64), 64).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(HostBytes { start, owner: Owner::Small(layout) })
    }

    /// Number of bytes. It is 0 only for memory in a slot, which is not pooled.
    pub(super) fn len(&self) -> usize {
        match &self.owner {
            Owner::Small(layout) => layout.size(),
            Owner::Map(map) => map.len(),
            #[cfg(target_os = "linux")]
            Owner::Slot(_) => 0,
        }
    }
}

#[cfg(target_os = "linux")]
impl HostBytes {
    /// Bytes in a slot of shared memory, which `hold` keeps alive.
    pub(super) fn in_slot(start: NonNull<u8>, hold: super::slot::Hold) -> HostBytes {
        HostBytes { start, owner: Owner::Slot(hold) }
    }
    /// The slot of shared memory that contains the bytes, if any.
    pub(super) fn slot(&self) -> Option<&super::slot::Hold> {
        if let Owner::Slot(hold) = &self.owner { Some(hold) } else { None }
    }
}

impl HostBytes {
    /// Whether the bytes may be pooled and reused when they are freed. The bytes of a slot may not, because they belong
    /// to the slot.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.owner, Owner::Small(_) | Owner::Map(_))
    }

    /// Panics if the bytes are in a slot that another process may be writing.
    #[inline]
    pub(super) fn assert_readable(&self) {
        #[cfg(target_os = "linux")]
        if let Owner::Slot(hold) = &self.owner {
            assert!(hold.is_readable(), "a lent slot must be borrowed before it is read");
        }
    }

    /// Panics if the bytes are in a slot that other processes may be reading.
    #[inline]
    pub(super) fn assert_writable(&self) {
        #[cfg(target_os = "linux")]
        if let Owner::Slot(hold) = &self.owner {
            assert!(hold.is_writable(), "a shared slot must be locked before its weights are written");
        }
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: the memory was allocated with this layout, and no borrow of the dropped bytes exists.
            Owner::Small(layout) => unsafe { alloc::dealloc(self.start.as_ptr(), *layout) },
            Owner::Map(_) => {}
            #[cfg(target_os = "linux")]
            Owner::Slot(hold) => hold.released(),
        }
    }
}
