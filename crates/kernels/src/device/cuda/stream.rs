//! A CUDA stream: a device's memory, copies and launches in order, with counts.
//!
//! The host waits for the device only for copies to the host, and when the staging memory is full. If the driver
//! reports an error after the call that caused it, the stream keeps the error and returns it from every later
//! operation.

use super::driver::{Address, Arg, Driver, Event, Function, Grid, Outcome};
use super::sources::Source;
use super::tensor_core::Family;
use crate::device::Device;
use crate::{Error, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Size of the pinned staging memory of a stream. A larger copy goes through memory that is not pinned, and the host
/// waits for the copy.
pub(crate) const STAGING: usize = 4 << 20;

/// Counts of copies, launches and waits of a stream.
#[derive(Default)]
struct Counters {
    launches: AtomicU64,
    waits: AtomicU64,
    to_device: [AtomicU64; 2],
    to_host: [AtomicU64; 2],
}

pub(crate) struct CudaStream {
    device: Device,
    driver: Box<dyn Driver>,
    functions: Mutex<HashMap<(&'static str, &'static str), Function>>,
    staging: Mutex<Staging>,
    failure: Mutex<Option<String>>,
    counters: Counters,
    /// The family of the tensor cores, after they have been compared with its formula.
    tensor_cores: OnceLock<Outcome<Family>>,
}

/// Pinned host memory from which copies to the device read while the host continues. The memory is filled from start to
/// end; then the host waits for the stream and starts over.
struct Staging {
    start: *mut u8,
    used: usize,
}

// SAFETY: only the holder of the lock accesses the memory.
unsafe impl Send for Staging {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn count(counter: &[AtomicU64; 2], bytes: usize) {
    counter[0].fetch_add(1, Ordering::Relaxed);
    counter[1].fetch_add(bytes as u64, Ordering::Relaxed);
}

impl CudaStream {
    pub(crate) fn new(device: Device, driver: Box<dyn Driver>) -> Result<CudaStream> {
        let start = driver.pinned(STAGING).map_err(|why| Error::Device(format!("{}: {why}", device.name())))?;
        Ok(CudaStream {
            device,
            driver,
            functions: Mutex::default(),
            staging: Mutex::new(Staging { start, used: 0 }),
            failure: Mutex::default(),
            counters: Counters::default(),
            tensor_cores: OnceLock::new(),
        })
    }
    pub(crate) fn device(&self) -> Device {
        self.device
    }
    /// The family of the tensor cores. The first call runs `compare`, which checks the tensor cores against the
    /// family's formula.
    pub(crate) fn tensor_cores(&self, compare: impl FnOnce(Family) -> Outcome<()>) -> Result<Family> {
        let find = || {
            let family = self.driver.tensor_cores().filter(|family| family.has_bf16());
            let family = family.ok_or_else(|| "the device has no tensor cores for bf16".to_owned())?;
            compare(family).map(|()| family)
        };
        self.tensor_cores.get_or_init(find).clone().map_err(|why| self.error(&why))
    }

    /// Allocates `bytes` zeroed bytes of device memory; `None` if the allocation fails.
    pub(crate) fn zeroed(&self, bytes: usize) -> Option<Address> {
        let at = self.driver.allocate(bytes.max(4)).unwrap_or_else(|why| self.fail(why)?)?;
        // SAFETY: the memory was allocated above, and its size is rounded up to whole words.
        self.note(unsafe { self.driver.fill(at, 0, 2, bytes.div_ceil(2)) });
        Some(at)
    }
    /// Allocates device memory with unspecified contents for one operation. It is freed in the stream's order.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Scratch<'_>> {
        let refused = || Error::OutOfMemory { part: "workspace", bytes };
        match self.driver.allocate(bytes.max(4)) {
            Ok(at) => Ok(Scratch { stream: self, at: at.ok_or_else(refused)? }),
            Err(why) => Err(self.error(&why)),
        }
    }
    /// Like [`scratch`](Self::scratch), but filled with `words`.
    pub(crate) fn scratch_of(&self, words: &[u32]) -> Result<Scratch<'_>> {
        let scratch = self.scratch(size_of_val(words))?;
        let write = |to: *mut u8| {
            // SAFETY: source and destination have the same number of bytes, and no other code accesses the destination.
            unsafe { to.copy_from_nonoverlapping(words.as_ptr().cast(), size_of_val(words)) }
        };
        // SAFETY: the memory belongs to this stream, and `write` initialises all of it.
        unsafe { self.upload(scratch.at, size_of_val(words), write) };
        Ok(scratch)
    }
    pub(crate) fn free(&self, at: Address) {
        self.driver.free(at);
    }

    /// Copies `bytes` bytes to the device. `write` puts them at an address on the host that is aligned to 64.
    ///
    /// # Safety
    /// `to..to + bytes` is memory of this stream, and `write` initialises `bytes` bytes.
    pub(crate) unsafe fn upload(&self, to: Address, bytes: usize, write: impl FnOnce(*mut u8)) {
        count(&self.counters.to_device, bytes);
        if bytes > STAGING {
            let mut host = host_bytes(bytes);
            write(host.as_mut_ptr().cast());
            // SAFETY: the caller upholds this function's safety contract, and `host` lives until the copy has happened.
            self.note(unsafe { self.driver.to_device(to, host.as_ptr().cast(), bytes) });
            return self.note(self.wait());
        }
        let mut staging = lock(&self.staging);
        if staging.used + bytes > STAGING {
            // Copies that read the old contents of the staging memory may still be pending.
            self.note(self.wait());
            staging.used = 0;
        }
        // SAFETY: the address lies inside the staging memory. The lock is held, and no copy from this part is pending.
        let from = unsafe { staging.start.add(staging.used) };
        staging.used += bytes.next_multiple_of(64);
        write(from);
        // SAFETY: the caller upholds this function's safety contract, and `from` is not touched until the host has
        // waited for the stream.
        self.note(unsafe { self.driver.to_device(to, from, bytes) });
    }

    /// Copies `bytes` bytes to the host and passes their address, aligned to at least 8, to `read`. Waits for the
    /// stream.
    ///
    /// # Panics
    /// If the stream has failed, because returned zeros might be mistaken for results.
    ///
    /// # Safety
    /// `from..from + bytes` is memory of this stream.
    pub(crate) unsafe fn download<R>(&self, from: Address, bytes: usize, read: impl FnOnce(*const u8) -> R) -> R {
        count(&self.counters.to_host, bytes);
        let (mut host, mut staging) = (Vec::new(), lock(&self.staging));
        let to: *mut u8 = if bytes <= STAGING {
            // Pending copies from the staging memory execute before this one, in the stream's order.
            staging.start
        } else {
            host = host_bytes(bytes);
            host.as_mut_ptr().cast()
        };
        // SAFETY: the caller upholds this function's safety contract. `to` has `bytes` bytes, and no other code
        // accesses it.
        self.note(unsafe { self.driver.to_host(from, to, bytes) });
        self.note(self.wait());
        staging.used = 0;
        self.check().unwrap_or_else(|error| panic!("cannot copy from a device that has failed: {error}"));
        let result = read(to);
        drop((staging, host));
        result
    }

    /// Writes the `width` lowest bytes of `word` `count` times, from device address `at` on.
    ///
    /// # Safety
    /// The bytes are device memory of this stream, and no other code accesses them during the call.
    pub(crate) unsafe fn fill(&self, at: Address, word: u32, width: usize, count: usize) {
        // SAFETY: the caller upholds this function's safety contract.
        self.note(unsafe { self.driver.fill(at, word, width, count) });
    }

    /// Returns the kernel, which is loaded on the first call.
    fn function(&self, source: &Source, kernel: &'static str) -> Result<Function> {
        let mut functions = lock(&self.functions);
        if let Some(&function) = functions.get(&(source.name, kernel)) {
            return Ok(function);
        }
        let function = self.driver.function(source, kernel).map_err(|why| self.error(&why))?;
        Ok(*functions.entry((source.name, kernel)).or_insert(function))
    }
    /// Loads a kernel without launching it.
    #[cfg(test)]
    pub(crate) fn load(&self, source: &Source, kernel: &'static str) -> Result<()> {
        self.function(source, kernel).map(|_| ())
    }

    /// Runs a kernel; an empty grid launches nothing.
    ///
    /// # Safety
    /// `args` are the kernel's arguments, and the memory that the kernel accesses through them belongs to this stream.
    pub(crate) unsafe fn launch(&self, source: &Source, kernel: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        self.check()?;
        if grid.is_empty() {
            return Ok(());
        }
        grid.check().map_err(|why| self.error(&format!("kernel {kernel}: {why}")))?;
        let function = self.function(source, kernel)?;
        self.counters.launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds this function's safety contract.
        self.note(unsafe { self.driver.launch(function, grid, args) });
        self.check()
    }

    fn wait(&self) -> Outcome<()> {
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        self.driver.synchronise()
    }

    /// Waits for the stream; an error of any earlier operation is returned.
    #[cfg(test)]
    pub(crate) fn synchronise(&self) -> Result<()> {
        self.note(self.wait());
        self.check()
    }

    /// Records the first error, which all later operations return.
    pub(crate) fn note(&self, outcome: Outcome<()>) {
        if let Err(why) = outcome {
            self.fail::<()>(why);
        }
    }
    fn fail<T>(&self, why: String) -> Option<T> {
        lock(&self.failure).get_or_insert(why);
        None
    }
    fn error(&self, why: &str) -> Error {
        Error::Device(format!("{}: {why}", self.device.name()))
    }
    /// Fails if the host already knows, without waiting, that an operation has failed.
    pub(crate) fn check(&self) -> Result<()> {
        lock(&self.failure).as_ref().map_or(Ok(()), |why| Err(self.error(why)))
    }

    /// Total and free bytes of the device's memory; `None` if the device uses the host's memory.
    pub(super) fn memory(&self) -> Result<Option<[u64; 2]>> {
        self.driver.memory().map_err(|why| self.error(&why))
    }
    /// The peak number of bytes allocated.
    pub(super) fn peak(&self) -> Result<u64> {
        self.driver.peak().map_err(|why| self.error(&why))
    }
    pub(super) fn event(&self) -> Result<Event> {
        self.driver.event().map_err(|why| self.error(&why))
    }
    pub(super) fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        self.driver.seconds(from, to).map_err(|why| self.error(&why))
    }
    pub(super) fn destroy_event(&self, event: Event) {
        self.driver.destroy_event(event);
    }

    /// The numbers of launches, waits, copies to the device, their bytes, copies to the host, and their bytes.
    pub(crate) fn counts(&self) -> [u64; 6] {
        let Counters { launches, waits, to_device, to_host } = &self.counters;
        [launches, waits, &to_device[0], &to_device[1], &to_host[0], &to_host[1]].map(|n| n.load(Ordering::Relaxed))
    }
}

/// Device memory for one operation. When dropped, it is freed in the stream's order, after the kernels that were
/// launched before.
pub(crate) struct Scratch<'a> {
    stream: &'a CudaStream,
    at: Address,
}

impl Scratch<'_> {
    /// A kernel argument: the address `bytes` bytes after the start of the memory.
    pub(crate) fn at(&self, bytes: usize) -> Arg {
        Arg::Pointer(self.at.after(bytes).0)
    }
}

impl Scratch<'_> {
    /// A copy of the first `count` words. Waits for the stream.
    pub(crate) fn words(&self, count: usize) -> Vec<u32> {
        let read = |from: *const u8| {
            // SAFETY: the stream provides `count` words at an aligned address.
            (0..count).map(|i| unsafe { from.cast::<u32>().add(i).read() }).collect()
        };
        // SAFETY: the memory belongs to this stream and has this many bytes.
        unsafe { self.stream.download(self.at, count * size_of::<u32>(), read) }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.stream.free(self.at);
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // The driver frees the staging memory, so no copy from it may be pending.
        let _ = self.driver.synchronise();
    }
}

fn host_bytes(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(8)]
}
