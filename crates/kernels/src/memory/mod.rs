//! Where tensors live, and the ledger of how many bytes each part of a run holds.
//!
//! [`Device::Meta`] allocates nothing and only counts: building a run's parts on it is how `lockstep plan` knows the
//! memory of a run before it starts.

mod file_map;
mod host;
#[cfg(test)]
mod tests;

pub use file_map::FileMap;

use crate::device::Cpu;
use crate::{DType, Device, Error, Result};
use host::HostBytes;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Buffers up to this size are kept when they are let go of, for the next one of their size: what a micro-batch or a
/// step takes anew each time costs no allocation of the device's.
const POOLED: usize = 1 << 20;
/// So many of each size.
const POOLED_EACH: usize = 16;

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
    /// What could not be allocated first, until [`Memory::check`] reports it.
    refused: Mutex<Option<Error>>,
    checked: Checked,
    /// Memory that nobody holds now, by its size, a power of two.
    pool: Mutex<HashMap<usize, Vec<HostBytes>>>,
}

impl Ledger {
    /// Zeroed bytes, of the pool if it has some of their size. None if they cannot be had.
    fn host_bytes(&self, bytes: usize) -> Option<HostBytes> {
        if bytes > POOLED {
            return HostBytes::zeroed(bytes);
        }
        let size = bytes.next_power_of_two().max(64);
        let Some(pooled) = lock(&self.pool).get_mut(&size).and_then(Vec::pop) else { return HostBytes::zeroed(size) };
        // SAFETY: nobody else holds these `size` bytes.
        unsafe { pooled.start.write_bytes(0, bytes) };
        Some(pooled)
    }

    /// Takes `bytes` bytes back.
    fn give_back(&self, host: HostBytes, bytes: usize) {
        if bytes <= POOLED {
            let mut pool = lock(&self.pool);
            let of_size = pool.entry(bytes.next_power_of_two().max(64)).or_default();
            if of_size.len() < POOLED_EACH {
                of_size.push(host);
            }
        }
    }
}

/// What stands behind the handles of [`Device::CpuChecked`], and what was copied.
#[derive(Default)]
struct Checked {
    buffers: Mutex<HashMap<u64, HostBytes>>,
    handles: AtomicU64,
    to_device: [AtomicU64; 2],
    to_host: [AtomicU64; 2],
}

/// Copies between the host and [`Device::CpuChecked`] since the memory was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// From the host to the device.
    pub to_device: u64,
    /// Their bytes.
    pub to_device_bytes: u64,
    /// From the device to the host.
    pub to_host: u64,
    /// Their bytes.
    pub to_host_bytes: u64,
}

impl std::ops::Sub for Copies {
    type Output = Copies;
    fn sub(self, before: Copies) -> Copies {
        Copies {
            to_device: self.to_device - before.to_device,
            to_device_bytes: self.to_device_bytes - before.to_device_bytes,
            to_host: self.to_host - before.to_host,
            to_host_bytes: self.to_host_bytes - before.to_host_bytes,
        }
    }
}

/// A lock whose holder cannot have left half a change behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
    /// Rows of wide activations that are best computed at a time on this device: what one op writes is still near when
    /// the next reads it.
    pub fn rows_at_once(&self) -> usize {
        256
    }
    /// Bytes by part.
    pub fn usage(&self) -> BTreeMap<&'static str, Usage> {
        lock(&self.ledger.parts).clone()
    }
    /// What was copied; nothing on other devices than [`Device::CpuChecked`].
    pub fn copies(&self) -> Copies {
        let load = |counts: &[AtomicU64; 2]| [0, 1].map(|i| counts[i].load(Ordering::Relaxed));
        let [to_device, to_device_bytes] = load(&self.ledger.checked.to_device);
        let [to_host, to_host_bytes] = load(&self.ledger.checked.to_host);
        Copies { to_device, to_device_bytes, to_host, to_host_bytes }
    }
    /// Whether all that was allocated so far could be had. Constructors allocate first and check at their end, so that
    /// an allocation need not be a `Result` in each of a thousand places; what could not be had is never read before.
    pub fn check(&self) -> Result<()> {
        lock(&self.ledger.refused).take().map_or(Ok(()), Err)
    }
    /// `bytes` zeroed bytes, aligned to 64, for elements of `dtype`. If they cannot be had, [`Memory::check`] is an
    /// error, and the buffer holds nothing.
    pub(crate) fn allocate(&self, bytes: usize, dtype: DType) -> Buffer {
        let storage = self.storage(bytes, dtype).unwrap_or_else(|error| {
            lock(&self.ledger.refused).get_or_insert(error);
            Storage::Refused(self.device)
        });
        let mut parts = lock(&self.ledger.parts);
        let usage = parts.entry(self.part).or_default();
        usage.bytes += bytes;
        usage.peak_bytes = usage.peak_bytes.max(usage.bytes);
        Buffer { storage, bytes, part: self.part, ledger: self.ledger.clone() }
    }

    fn storage(&self, bytes: usize, dtype: DType) -> Result<Storage> {
        let host = || self.ledger.host_bytes(bytes).ok_or(Error::OutOfMemory { part: self.part, bytes });
        Ok(match self.device {
            Device::Meta => Storage::Meta,
            Device::Cpu => Storage::Host(host()?),
            Device::CpuChecked => {
                let checked = &self.ledger.checked;
                let handle = checked.handles.fetch_add(1, Ordering::Relaxed);
                lock(&checked.buffers).insert(handle, host()?);
                let mirror = if dtype == DType::U32 { Some(host()?) } else { None };
                Storage::Checked { handle, mirror, stale: AtomicBool::new(false) }
            }
        })
    }
}

enum Storage {
    Meta,
    Host(HostBytes),
    /// The bytes are the ledger's, by this handle. Index tensors also have the host's copy of what it last wrote, which
    /// is stale once an operation has written.
    Checked {
        handle: u64,
        mirror: Option<HostBytes>,
        stale: AtomicBool,
    },
    /// Memory of this device that could not be had.
    Refused(Device),
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
        match &self.storage {
            Storage::Meta => Device::Meta,
            Storage::Host(_) => Device::Cpu,
            Storage::Checked { .. } => Device::CpuChecked,
            Storage::Refused(device) => *device,
        }
    }

    /// The first byte, for an operation on the CPU.
    fn start(&self, cpu: &Cpu) -> NonNull<u8> {
        assert!(
            cpu.device() == self.device(),
            "an operation on {:?} was given memory of {:?}",
            cpu.device(),
            self.device()
        );
        match &self.storage {
            Storage::Host(bytes) => bytes.start,
            Storage::Checked { handle, .. } => lock(&self.ledger.checked.buffers)[handle].start,
            Storage::Meta => panic!("an operation was run on shapes alone"),
            Storage::Refused(_) => panic!("memory was used that could not be had: `Memory::check` was not asked"),
        }
    }

    /// Elements `range` for an operation on the CPU, to read.
    ///
    /// # Safety
    /// Nobody writes them while the result lives.
    pub(crate) unsafe fn slice<T: Plain>(&self, cpu: &Cpu, range: Range<usize>) -> &[T] {
        // SAFETY: the caller's promise.
        unsafe { self.elements(self.start(cpu), range) }
    }

    /// Elements `range` for an operation on the CPU, to write.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the result lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice_mut<T: Plain>(&self, cpu: &Cpu, range: Range<usize>) -> &mut [T] {
        if let Storage::Checked { stale, .. } = &self.storage {
            stale.store(true, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { self.elements_mut(self.start(cpu), range) }
    }

    /// Elements `range` as the host last wrote them, of an index tensor: reads no device.
    ///
    /// # Safety
    /// Nobody writes them while the result lives.
    pub(crate) unsafe fn mirror<T: Plain>(&self, range: Range<usize>) -> &[T] {
        let start = match &self.storage {
            Storage::Host(bytes) => bytes.start,
            Storage::Checked { mirror: Some(mirror), stale, .. } => {
                assert!(!stale.load(Ordering::Relaxed), "indices that an operation wrote are not known to the host");
                mirror.start
            }
            _ => panic!("memory of {:?} has no mirror on the host", self.device()),
        };
        // SAFETY: the caller's promise.
        unsafe { self.elements(start, range) }
    }

    /// Copies elements `range` to the host: shows them to `read`.
    ///
    /// # Safety
    /// Nobody writes them meanwhile.
    pub(crate) unsafe fn download<T: Plain, R>(&self, range: Range<usize>, read: impl FnOnce(&[T]) -> R) -> R {
        let start = match &self.storage {
            Storage::Host(bytes) => bytes.start,
            Storage::Checked { handle, .. } => {
                self.count(&self.ledger.checked.to_host, range.len() * size_of::<T>());
                lock(&self.ledger.checked.buffers)[handle].start
            }
            _ => panic!("there is nothing to copy from memory of {:?}", self.device()),
        };
        // SAFETY: the caller's promise.
        read(unsafe { self.elements(start, range) })
    }

    /// Copies from the host: elements `range` become what `write` makes of them. On [`Device::Meta`] nothing happens.
    ///
    /// # Safety
    /// Nobody else reads or writes them meanwhile.
    pub(crate) unsafe fn upload<T: Plain>(&self, range: Range<usize>, write: impl FnOnce(&mut [T])) {
        match &self.storage {
            Storage::Meta | Storage::Refused(_) => {}
            // SAFETY: the caller's promise.
            Storage::Host(bytes) => write(unsafe { self.elements_mut(bytes.start, range) }),
            Storage::Checked { handle, mirror, stale } => {
                self.count(&self.ledger.checked.to_device, range.len() * size_of::<T>());
                let start = lock(&self.ledger.checked.buffers)[handle].start;
                // SAFETY: the caller's promise.
                let to = unsafe { self.elements_mut(start, range.clone()) };
                write(to);
                if let Some(mirror) = mirror {
                    // SAFETY: the caller's promise; the mirror is memory of its own.
                    unsafe { self.elements_mut::<T>(mirror.start, range.clone()) }.copy_from_slice(to);
                    if range.len() * size_of::<T>() == self.bytes {
                        stale.store(false, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Sets elements `range` to `x`, where they are: no copy.
    ///
    /// # Safety
    /// Nobody else reads or writes them meanwhile.
    pub(crate) unsafe fn fill<T: Plain>(&self, range: Range<usize>, x: T) {
        let start = match &self.storage {
            Storage::Meta | Storage::Refused(_) => return,
            Storage::Host(bytes) => bytes.start,
            Storage::Checked { handle, .. } => lock(&self.ledger.checked.buffers)[handle].start,
        };
        // SAFETY: the caller's promise.
        unsafe { self.elements_mut(start, range) }.fill(x);
    }

    fn count(&self, counts: &[AtomicU64; 2], bytes: usize) {
        counts[0].fetch_add(1, Ordering::Relaxed);
        counts[1].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// # Safety
    /// `start` is that of this buffer's bytes, and nobody writes elements `range` while the result lives.
    unsafe fn elements<T: Plain>(&self, start: NonNull<u8>, range: Range<usize>) -> &[T] {
        self.assert_holds::<T>(&range);
        // SAFETY: inside `bytes` initialised bytes from `start`, aligned to 64; any bits are a `Plain`.
        unsafe { std::slice::from_raw_parts(start.cast::<T>().add(range.start).as_ptr(), range.len()) }
    }

    /// # Safety
    /// `start` is that of this buffer's bytes, and nobody else touches elements `range` while the result lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn elements_mut<T: Plain>(&self, start: NonNull<u8>, range: Range<usize>) -> &mut [T] {
        self.assert_holds::<T>(&range);
        // SAFETY: as in `elements`, and nobody else touches them.
        unsafe { std::slice::from_raw_parts_mut(start.cast::<T>().add(range.start).as_ptr(), range.len()) }
    }

    fn assert_holds<T>(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.bytes / size_of::<T>(),
            "{range:?} of {} bytes",
            self.bytes
        );
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.storage, Storage::Meta) {
            Storage::Host(host) => self.ledger.give_back(host, self.bytes),
            Storage::Checked { handle, mirror, .. } => {
                let host = lock(&self.ledger.checked.buffers).remove(&handle);
                host.into_iter().chain(mirror).for_each(|host| self.ledger.give_back(host, self.bytes));
            }
            Storage::Meta | Storage::Refused(_) => {}
        }
        if let Some(usage) = lock(&self.ledger.parts).get_mut(self.part) {
            usage.bytes -= self.bytes;
        }
    }
}
