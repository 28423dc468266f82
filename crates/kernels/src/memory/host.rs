//! Bytes of the host: small ones of the allocator, large ones maps of their own.

use std::alloc::{self, alloc_zeroed};
use std::ptr::NonNull;

/// Bytes from here on come as whole, huge-page-advised maps of their own.
pub(super) const MAP_FROM: usize = 1 << 16;

/// Zeroed bytes of the host, aligned to 64.
///
/// Elements are reached through `start` alone, so that disjoint ranges may be borrowed at once.
pub(super) struct HostBytes {
    pub(super) start: NonNull<u8>,
    owner: Owner,
}

enum Owner {
    Small(alloc::Layout),
    Map(#[allow(dead_code, reason = "unmapped when it is dropped")] memmap2::MmapMut),
}

// SAFETY: it owns what `start` points to; who may touch which elements is what tensors and their views see to.
unsafe impl Send for HostBytes {}
// SAFETY: as above.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    /// None if they cannot be had.
    pub(super) fn zeroed(bytes: usize) -> Option<HostBytes> {
        // Miri has no maps.
        if bytes >= MAP_FROM && !cfg!(miri) {
            let mut map = memmap2::MmapOptions::new().len(bytes).map_anon().ok()?;
            // Huge pages are an optimisation: a kernel without them is fine.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            return Some(HostBytes { start: NonNull::new(map.as_mut_ptr())?, owner: Owner::Map(map) });
        }
        let layout = alloc::Layout::from_size_align(bytes.next_multiple_of(64).max(64), 64).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(HostBytes { start, owner: Owner::Small(layout) })
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        if let Owner::Small(layout) = self.owner {
            // SAFETY: allocated with this layout; nobody borrows what is dropped.
            unsafe { alloc::dealloc(self.start.as_ptr(), layout) }
        }
    }
}
