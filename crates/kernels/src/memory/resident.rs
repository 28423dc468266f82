//! Counts the tensors' resident bytes. The operating system allocates physical memory for a page of a memory map only
//! on first access.

use super::{Buffer, Ledger, Memory, lock};
use std::collections::BTreeMap;

/// The large buffers in host memory: address, size in bytes, and part.
pub(super) type Maps = BTreeMap<usize, (usize, &'static str)>;

impl Ledger {
    /// Adds a large buffer, so that its resident pages can be counted.
    pub(super) fn enter(&self, buffer: &Buffer) {
        if let Some(start) = buffer.large_host_start() {
            lock(&self.maps).insert(start, (buffer.bytes, buffer.part));
        }
    }

    /// Removes a freed buffer.
    pub(super) fn leave(&self, buffer: &Buffer) {
        if let Some(start) = buffer.large_host_start() {
            lock(&self.maps).remove(&start);
        }
    }
}

impl Memory {
    /// Resident bytes of each part's tensors in host memory. Small buffers are assumed to be resident. `None` on
    /// devices with separate memory, and if the operating system does not report residency (only Linux does).
    pub fn resident(&self) -> Option<BTreeMap<&'static str, usize>> {
        #[cfg(target_os = "linux")]
        if self.device == crate::Device::Cpu {
            return pages::resident(&self.ledger);
        }
        None
    }
}

#[cfg(target_os = "linux")]
mod pages {
    use super::{BTreeMap, Ledger, lock};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Bytes of one entry of `/proc/self/pagemap`, which describes one page.
    const ENTRY: usize = 8;
    /// The bit of an entry that is set if the page is in memory.
    const PRESENT: u64 = 1 << 63;
    /// Number of entries read at once.
    const AT_ONCE: usize = 1 << 13;

    pub(super) fn resident(ledger: &Ledger) -> Option<BTreeMap<&'static str, usize>> {
        let (parts, maps) = (lock(&ledger.parts).clone(), lock(&ledger.maps).clone());
        let mut counted: BTreeMap<_, _> = parts.into_iter().map(|(part, usage)| (part, usage.bytes)).collect();
        let pages = Pages { map: File::open("/proc/self/pagemap").ok()?, size: rustix::param::page_size() };
        for (start, (bytes, part)) in maps {
            let absent = bytes - pages.present(start, bytes)?;
            let counted = counted.entry(part).or_default();
            *counted = counted.saturating_sub(absent);
        }
        Some(counted)
    }

    struct Pages {
        map: File,
        size: usize,
    }

    impl Pages {
        /// Number of resident bytes among the `bytes` bytes from `start` on.
        fn present(&self, start: usize, bytes: usize) -> Option<usize> {
            let (mut present, end) = (0, start + bytes);
            let (first, last) = (start / self.size, end.div_ceil(self.size));
            let mut entries = vec![0; AT_ONCE.min(last - first) * ENTRY];
            for at in (first..last).step_by(AT_ONCE) {
                let read = &mut entries[..AT_ONCE.min(last - at) * ENTRY];
                self.map.read_exact_at(read, (at * ENTRY) as u64).ok()?;
                for (page, entry) in (at..).zip(read.as_chunks::<ENTRY>().0) {
                    if u64::from_ne_bytes(*entry) & PRESENT != 0 {
                        present += end.min((page + 1) * self.size) - start.max(page * self.size);
                    }
                }
            }
            Some(present)
        }
    }
}
