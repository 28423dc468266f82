//! Where tensors live, and the ledger of how many bytes each part of a run holds.
//!
//! [`Device::Meta`] allocates nothing and only counts: building a run's parts on it is how `lockstep plan` knows the
//! memory of a run before it starts.

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What memory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// Nowhere: shapes and byte counts only.
    Meta,
}

/// Bytes from here on come as whole, huge-page-advised maps of their own.
const MAP_FROM: usize = 1 << 16;

/// A handle to allocate with: a device, the part of the run that the bytes are booked under, and the shared ledger.
#[derive(Clone)]
pub struct Memory {
    device: Device,
    part: &'static str,
    ledger: Arc<Ledger>,
}

#[derive(Default)]
struct Ledger {
    parts: Mutex<BTreeMap<&'static str, Usage>>,
}

/// Bytes that a part holds now and held at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Now.
    pub bytes: usize,
    /// At most so far.
    pub peak_bytes: usize,
}

impl Memory {
    /// Memory of `device`, with an empty ledger.
    pub fn new(device: Device) -> Memory {
        Memory { device, part: "other", ledger: Arc::default() }
    }
    /// The same memory and ledger, booking under `part`.
    pub fn part(&self, part: &'static str) -> Memory {
        Memory { part, ..self.clone() }
    }
    /// What it is on.
    pub fn device(&self) -> Device {
        self.device
    }
    /// Rows of wide activations that are best computed at a time on this device: what one op writes is still near when the next
    /// reads it.
    pub fn rows_at_once(&self) -> usize {
        256
    }
    /// Bytes by part.
    pub fn usage(&self) -> BTreeMap<&'static str, Usage> {
        self.ledger.parts.lock().expect("ledger").clone()
    }
    /// `bytes` zeroed bytes, aligned to 64.
    pub(crate) fn allocate(&self, bytes: usize) -> Buffer {
        let storage = match self.device {
            Device::Meta => Storage::Meta,
            Device::Cpu if bytes >= MAP_FROM => Storage::Map(anonymous_map(bytes)),
            Device::Cpu => Storage::Small(vec![Line([0; 64]); bytes.div_ceil(64)]),
        };
        let mut parts = self.ledger.parts.lock().expect("ledger");
        let usage = parts.entry(self.part).or_default();
        usage.bytes += bytes;
        usage.peak_bytes = usage.peak_bytes.max(usage.bytes);
        Buffer { storage, bytes, part: self.part, ledger: self.ledger.clone() }
    }
}

fn anonymous_map(bytes: usize) -> memmap2::MmapMut {
    let map = memmap2::MmapOptions::new().len(bytes).map_anon();
    let map = map.unwrap_or_else(|e| panic!("out of memory: {bytes} bytes: {e}"));
    // Huge pages are an optimisation: a kernel without them is fine.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    map
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

enum Storage {
    Meta,
    Small(Vec<Line>),
    Map(memmap2::MmapMut),
}

/// Owned bytes, booked in a ledger until dropped.
pub(crate) struct Buffer {
    storage: Storage,
    bytes: usize,
    part: &'static str,
    ledger: Arc<Ledger>,
}

/// Element types that any bit pattern is a value of, aligned to at most 64.
pub(crate) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u32 {}
impl Plain for half::bf16 {}

impl Buffer {
    pub(crate) fn device(&self) -> Device {
        match self.storage {
            Storage::Meta => Device::Meta,
            _ => Device::Cpu,
        }
    }
    pub(crate) fn as_slice<T: Plain>(&self) -> &[T] {
        let start: *const u8 = match &self.storage {
            Storage::Meta => return &[],
            Storage::Small(v) => v.as_ptr().cast(),
            Storage::Map(m) => m.as_ptr(),
        };
        // SAFETY: `bytes` initialised bytes from `start`, aligned to 64 (a `Line` or a page); any bits are a `Plain`.
        unsafe { std::slice::from_raw_parts(start.cast(), self.bytes / size_of::<T>()) }
    }
    pub(crate) fn as_mut_slice<T: Plain>(&mut self) -> &mut [T] {
        let start: *mut u8 = match &mut self.storage {
            Storage::Meta => return &mut [],
            Storage::Small(v) => v.as_mut_ptr().cast(),
            Storage::Map(m) => m.as_mut_ptr(),
        };
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), self.bytes / size_of::<T>()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A poisoned ledger is no reason to panic while dropping.
        if let Ok(mut parts) = self.ledger.parts.lock()
            && let Some(usage) = parts.get_mut(self.part)
        {
            usage.bytes -= self.bytes;
        }
    }
}

/// A file in memory, read only: weight files are read through it.
pub struct FileMap(Option<memmap2::Mmap>);

impl FileMap {
    /// Maps the file. It must not be truncated while the map lives (the process would be killed on access).
    pub fn open(path: &Path) -> Result<FileMap> {
        let fail = |source| Error::Map { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.len() == 0 {
            return Ok(FileMap(None));
        }
        // SAFETY: read-only; the promise about truncation is the caller's, as documented.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
        Ok(FileMap(Some(map)))
    }
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
    /// Lets go of the memory of these bytes, which stay readable: from the file again, page by page, when touched.
    pub fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.0 {
            // Only whole pages, so that neighbours which are still to be read stay.
            let page = 4096;
            let (from, to) = (range.start.next_multiple_of(page), range.end / page * page);
            if from < to && to <= map.len() {
                // SAFETY: the map is read-only and of a file, so dropped pages come back with the same bytes.
                // Failing to release costs memory, nothing else.
                let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, to - from) };
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_bytes_of_a_file_stay_readable() {
        let path = std::env::temp_dir().join(format!("lockstep-file-map-{}", std::process::id()));
        let data: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let map = FileMap::open(&path).unwrap();
        for range in [0..20_000, 5..9000, 4096..8192, 19_999..20_000, 7..7, 0..1 << 40] {
            map.release(range);
            assert!(map.bytes() == data);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(FileMap::open(&path).is_err());
    }

    #[test]
    fn bytes_are_zeroed_aligned_and_booked_by_part() {
        for device in [Device::Cpu, Device::Meta] {
            let memory = Memory::new(device);
            let weights = memory.part("weights");
            let small = weights.allocate(100);
            let large = weights.allocate(MAP_FROM + 4);
            let other = memory.part("kv").allocate(8);
            let total = 100 + MAP_FROM + 4;
            assert_eq!(memory.usage()["weights"], Usage { bytes: total, peak_bytes: total });
            assert_eq!(memory.usage()["kv"].bytes, 8);
            for buffer in [&small, &large, &other] {
                assert_eq!(buffer.device(), device);
                let data = buffer.as_slice::<u32>();
                assert_eq!(data.len(), if device == Device::Cpu { buffer.bytes / 4 } else { 0 });
                assert!(data.iter().all(|&x| x == 0));
                assert!(device == Device::Meta || data.as_ptr().align_offset(64) == 0);
            }
            drop(large);
            assert_eq!(memory.usage()["weights"], Usage { bytes: 100, peak_bytes: total });
            drop((small, other));
            assert_eq!(weights.usage()["weights"], Usage { bytes: 0, peak_bytes: total });
        }
    }

    #[test]
    fn writes_are_kept() {
        let mut buffer = Memory::new(Device::Cpu).allocate(MAP_FROM);
        buffer.as_mut_slice::<f32>()[MAP_FROM / 4 - 1] = 2.5;
        assert_eq!(buffer.as_slice::<f32>()[MAP_FROM / 4 - 1], 2.5);
    }

    #[test]
    fn files_are_mapped_and_a_missing_one_is_named() {
        let path = std::env::temp_dir().join(format!("lockstep-map-{}", std::process::id()));
        for content in [&b""[..], b"some bytes"] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(FileMap::open(&path).unwrap().bytes(), content);
        }
        std::fs::remove_file(&path).unwrap();
        let message = FileMap::open(&path).err().expect("no such file").to_string();
        assert!(message.contains("lockstep-map-"), "{message}");
    }
}
