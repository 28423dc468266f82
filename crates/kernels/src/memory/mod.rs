//! Memory of tensors, and the ledger: how many bytes each part of a training run has allocated.
//!
//! [`Device::Meta`] allocates nothing and only counts. `lockstep plan` builds the parts of a training run on it to
//! determine the run's memory before it starts.

mod buffer;
mod file_map;
mod host;
mod resident;
#[cfg(target_os = "linux")]
pub mod slot;
#[cfg(test)]
mod tests;

pub(crate) use buffer::{Buffer, Plain};
pub use file_map::FileMap;

use crate::device::cuda::CudaStream;
use crate::{DType, Device, Error, Result};
use buffer::{Mirror, Storage};
use host::{HostBytes, MAP_FROM};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Buffers of up to this many bytes are pooled when they are freed, so that the buffers of each micro-batch or step
/// need no new allocation on the device.
const POOLED: usize = 1 << 20;
/// Maximum number of pooled buffers in each size class, from one power of two to the next.
const POOLED_EACH: usize = 16;
/// Bytes of a page of a memory map.
const PAGE: usize = 1 << 12;

/// A handle for allocating memory: a device, the part of the training run to which the bytes are charged, and the
/// shared ledger.
#[derive(Clone)]
pub struct Memory {
    device: Device,
    part: &'static str,
    ledger: Arc<Ledger>,
    /// The slot of shared memory for allocations, if any.
    #[cfg(target_os = "linux")]
    slot: Option<Arc<slot::Arena>>,
}

#[derive(Default)]
struct Ledger {
    parts: Mutex<BTreeMap<&'static str, Usage>>,
    maps: Mutex<resident::Maps>,
    /// The first allocation that failed, until [`Memory::check`] reports it.
    refused: Mutex<Option<Error>>,
    checked: Checked,
    /// Freed host memory for reuse, by the logarithm of its size.
    pool: Mutex<HashMap<u32, Vec<HostBytes>>>,
    /// The stream that allocates a CUDA device's memory.
    stream: Option<Arc<CudaStream>>,
}

impl Ledger {
    /// Zeroed bytes of host memory, from the pool if it has a buffer of that size. `None` if the allocation fails.
    fn host_bytes(&self, bytes: usize) -> Option<HostBytes> {
        if bytes > POOLED {
            return HostBytes::zeroed(bytes);
        }
        // Small sizes are rounded up to powers of two, so that a pooled buffer fits many requests. Rounding a memory
        // map up to a power of two could nearly double its size, and with huge pages all of it would be resident.
        let size = if bytes < MAP_FROM { bytes.next_power_of_two().max(64) } else { bytes.next_multiple_of(PAGE) };
        let fits = |pooled: &mut Vec<HostBytes>| {
            let large_enough = pooled.iter().enumerate().filter(|(_, host)| host.len() >= size);
            let at = large_enough.min_by_key(|(_, host)| host.len())?.0;
            Some(pooled.swap_remove(at))
        };
        let Some(pooled) = lock(&self.pool).get_mut(&size.ilog2()).and_then(fits) else {
            return HostBytes::zeroed(size);
        };
        // SAFETY: no other code holds the buffer, which has `size` bytes or more.
        unsafe { pooled.start.write_bytes(0, bytes) };
        Some(pooled)
    }

    /// Returns freed bytes to the pool, if it has room.
    fn give_back(&self, host: HostBytes) {
        if host.is_own() && host.len() <= POOLED {
            let mut pool = lock(&self.pool);
            let same_size = pool.entry(host.len().ilog2()).or_default();
            same_size.push(host);
            if same_size.len() > POOLED_EACH {
                // Evicts the smallest buffer, because larger ones fit more requests.
                let least = same_size.iter().enumerate().min_by_key(|(_, host)| host.len()).map_or(0, |(at, _)| at);
                same_size.swap_remove(least);
            }
        }
    }
}

/// The buffers behind the handles of [`Device::CpuChecked`], and counts of the copies.
#[derive(Default)]
struct Checked {
    buffers: Mutex<HashMap<u64, HostBytes>>,
    handles: AtomicU64,
    to_device: [AtomicU64; 2],
    to_host: [AtomicU64; 2],
}

/// Counts of copies between the host and a device with its own memory, and of kernels launched there, since the memory
/// was created. For [`Device::CpuChecked`] only copies are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Number of copies from the host to the device.
    pub to_device: u64,
    /// Number of bytes copied to the device.
    pub to_device_bytes: u64,
    /// Number of copies from the device to the host.
    pub to_host: u64,
    /// Number of bytes copied to the host.
    pub to_host_bytes: u64,
    /// Number of kernels launched.
    pub launches: u64,
    /// Number of times that the host waited for the device.
    pub waits: u64,
}

impl std::ops::Sub for Copies {
    type Output = Copies;
    fn sub(self, before: Copies) -> Copies {
        Copies {
            to_device: self.to_device - before.to_device,
            to_device_bytes: self.to_device_bytes - before.to_device_bytes,
            to_host: self.to_host - before.to_host,
            to_host_bytes: self.to_host_bytes - before.to_host_bytes,
            launches: self.launches - before.launches,
            waits: self.waits - before.waits,
        }
    }
}

/// Locks `mutex`, even if a thread panicked while holding it, because its data cannot be in an inconsistent state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Memory of one part of a training run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes allocated now.
    pub bytes: usize,
    /// The peak number of bytes allocated so far.
    pub peak_bytes: usize,
}

impl Memory {
    /// Memory of `device`, with an empty ledger. Not for CUDA devices, whose memory comes with a [`crate::Context`];
    /// for these, [`Memory::check`] fails.
    pub fn new(device: Device) -> Memory {
        Memory::over(device, Ledger::default())
    }
    /// Memory of the CUDA device of `stream`, with an empty ledger.
    pub(crate) fn from_stream(stream: Arc<CudaStream>) -> Memory {
        let device = stream.device();
        Memory::over(device, Ledger { stream: Some(stream), ..Ledger::default() })
    }
    fn over(device: Device, ledger: Ledger) -> Memory {
        Memory {
            device,
            part: "other",
            ledger: Arc::new(ledger),
            #[cfg(target_os = "linux")]
            slot: None,
        }
    }
    /// A handle with the same ledger that allocates in a weight slot, on the CPU.
    #[cfg(target_os = "linux")]
    fn in_slot(&self, arena: Arc<slot::Arena>) -> Result<Memory> {
        if self.device != Device::Cpu {
            let name = self.device.name();
            return Err(Error::Device(format!("weights in shared memory require the device cpu, got {name}")));
        }
        Ok(Memory { slot: Some(arena), ..self.clone() })
    }
    /// A handle with the same memory and ledger that charges allocations to the part named `part`.
    pub fn part(&self, part: &'static str) -> Memory {
        Memory { part, ..self.clone() }
    }
    /// The device that the memory is on.
    pub fn device(&self) -> Device {
        self.device
    }
    /// Whether tensors have contents. On [`Device::Meta`] they have none, so a caller need not read a file for them.
    pub fn has_values(&self) -> bool {
        self.device != Device::Meta
    }
    /// The best number of rows of wide activations to compute at a time on this device, so that the output of one op is
    /// still in the cache when the next op reads it.
    pub fn rows_at_once(&self) -> usize {
        256
    }
    /// Bytes allocated for each part of the training run, by its name.
    pub fn usage(&self) -> BTreeMap<&'static str, Usage> {
        lock(&self.ledger.parts).clone()
    }
    /// Counts of copies between host and device; all 0 if the host computes in its own memory.
    pub fn copies(&self) -> Copies {
        if let Some(stream) = &self.ledger.stream {
            let [launches, waits, to_device, to_device_bytes, to_host, to_host_bytes] = stream.counts();
            return Copies { to_device, to_device_bytes, to_host, to_host_bytes, launches, waits };
        }
        let load = |counts: &[AtomicU64; 2]| [0, 1].map(|i| counts[i].load(Ordering::Relaxed));
        let [to_device, to_device_bytes] = load(&self.ledger.checked.to_device);
        let [to_host, to_host_bytes] = load(&self.ledger.checked.to_host);
        Copies { to_device, to_device_bytes, to_host, to_host_bytes, ..Copies::default() }
    }
    /// Fails if any allocation has failed so far. Constructors allocate everything first and check at the end, so that
    /// not every allocation needs to return a `Result`; memory that could not be allocated is never read before the
    /// check.
    pub fn check(&self) -> Result<()> {
        lock(&self.ledger.refused).take().map_or(Ok(()), Err)?;
        self.ledger.stream.as_ref().map_or(Ok(()), |stream| stream.check())
    }
    /// Allocates `bytes` zeroed bytes, aligned to 64, for elements of `dtype`. If that fails, the buffer is empty and
    /// [`Memory::check`] is an error.
    pub(crate) fn allocate(&self, bytes: usize, dtype: DType) -> Buffer {
        let storage = self.storage(bytes, dtype).unwrap_or_else(|error| {
            lock(&self.ledger.refused).get_or_insert(error);
            Storage::Refused(self.device)
        });
        let part = self.booked_under();
        let mut parts = lock(&self.ledger.parts);
        let usage = parts.entry(part).or_default();
        usage.bytes += bytes;
        usage.peak_bytes = usage.peak_bytes.max(usage.bytes);
        drop(parts);
        let buffer = Buffer { storage, bytes, part, ledger: self.ledger.clone() };
        self.ledger.enter(&buffer);
        buffer
    }

    /// The name of the part to which allocations are charged. Memory in another process's slot is charged to a separate
    /// part.
    fn booked_under(&self) -> &'static str {
        #[cfg(target_os = "linux")]
        if self.slot.as_ref().is_some_and(|slot| slot.is_of_another_process()) {
            return "mapped weights";
        }
        self.part
    }

    fn storage(&self, bytes: usize, dtype: DType) -> Result<Storage> {
        let refused = || Error::OutOfMemory { part: self.part, bytes };
        #[cfg(target_os = "linux")]
        if let Some(slot) = &self.slot {
            return Ok(Storage::Host(slot.take(bytes).ok_or_else(refused)?));
        }
        let host = || self.ledger.host_bytes(bytes).ok_or_else(refused);
        // Index tensors keep a copy of the values that the host last wrote.
        let mirror = || if dtype == DType::U32 { Ok(Mirror::of(host()?)) } else { Ok(Mirror::none()) };
        Ok(match self.device {
            Device::Meta => Storage::Meta,
            Device::Cpu => Storage::Host(host()?),
            Device::CpuChecked => {
                let checked = &self.ledger.checked;
                let handle = checked.handles.fetch_add(1, Ordering::Relaxed);
                lock(&checked.buffers).insert(handle, host()?);
                Storage::Checked { handle, mirror: mirror()? }
            }
            Device::Cuda(_) | Device::CudaEmulated => {
                let missing =
                    || Error::Device(format!("memory of {} must be allocated through its context", self.device.name()));
                let stream = self.ledger.stream.as_ref().ok_or_else(missing)?;
                let at = stream.zeroed(bytes).ok_or_else(refused)?;
                Storage::Cuda { stream: stream.clone(), at, mirror: mirror()? }
            }
        })
    }
}
