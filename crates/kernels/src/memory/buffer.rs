//! [`Buffer`]: bytes on a device, which only that device's code can access.

use super::host::{HostBytes, MAP_FROM};
use super::{Ledger, lock};
use crate::Device;
use crate::device::cuda::CudaStream;
use crate::device::cuda::driver::Address;
use crate::device::{Cpu, Cuda};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const NOT_HAD: &str = "memory was used although its allocation failed: call `Memory::check` first";

pub(super) enum Storage {
    Meta,
    Host(HostBytes),
    /// Memory of [`Device::CpuChecked`]: a handle to bytes that the ledger owns.
    Checked {
        handle: u64,
        mirror: Mirror,
    },
    Cuda {
        stream: Arc<CudaStream>,
        at: Address,
        mirror: Mirror,
    },
    /// A failed allocation on this device.
    Refused(Device),
}

/// The host's copy of an index tensor, as last written by the host. It is stale once an operation has written to the
/// tensor.
pub(super) struct Mirror {
    bytes: Option<HostBytes>,
    stale: AtomicBool,
}

impl Mirror {
    pub(super) fn of(bytes: HostBytes) -> Mirror {
        Mirror { bytes: Some(bytes), stale: AtomicBool::new(false) }
    }
    pub(super) fn none() -> Mirror {
        Mirror { bytes: None, stale: AtomicBool::new(false) }
    }
    fn outdate(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }
}

/// Owned bytes on a device, which the memory ledger counts until they are dropped.
pub(crate) struct Buffer {
    pub(super) storage: Storage,
    pub(super) bytes: usize,
    pub(super) part: &'static str,
    pub(super) ledger: Arc<Ledger>,
}

/// Element types for which any bit pattern is valid, with an alignment of at most 64.
pub(crate) trait Plain: Copy {
    /// The bits of `self`, in the lowest bits of a 32-bit word.
    fn word(self) -> u32;
}
impl Plain for f32 {
    fn word(self) -> u32 {
        self.to_bits()
    }
}
impl Plain for u32 {
    fn word(self) -> u32 {
        self
    }
}
impl Plain for half::bf16 {
    fn word(self) -> u32 {
        self.to_bits().into()
    }
}

impl Buffer {
    pub(crate) fn device(&self) -> Device {
        match &self.storage {
            Storage::Meta => Device::Meta,
            Storage::Host(_) => Device::Cpu,
            Storage::Checked { .. } => Device::CpuChecked,
            Storage::Cuda { stream, .. } => stream.device(),
            Storage::Refused(device) => *device,
        }
    }

    /// The slot of shared memory that contains the buffer, if any.
    #[cfg(target_os = "linux")]
    pub(super) fn slot(&self) -> Option<&super::slot::Hold> {
        if let Storage::Host(bytes) = &self.storage { bytes.slot() } else { None }
    }

    /// Address of the buffer's first byte, if the buffer is in host memory and large enough to be a memory map.
    pub(super) fn large_host_start(&self) -> Option<usize> {
        match &self.storage {
            Storage::Host(bytes) if self.bytes >= MAP_FROM => Some(bytes.start.as_ptr().addr()),
            _ => None,
        }
    }

    /// Address of the buffer's first byte, for an operation on the CPU.
    pub(super) fn start(&self, cpu: &Cpu) -> NonNull<u8> {
        assert!(cpu.device() == self.device(), "an operation on {:?} got memory of {:?}", cpu.device(), self.device());
        match &self.storage {
            Storage::Host(bytes) => {
                bytes.assert_readable();
                bytes.start
            }
            Storage::Checked { handle, .. } => lock(&self.ledger.checked.buffers)[handle].start,
            Storage::Cuda { .. } => unreachable!("CPU code cannot access the memory of a CUDA device"),
            Storage::Meta => panic!("operations cannot run on Device::Meta, which has no values"),
            Storage::Refused(_) => panic!("{NOT_HAD}"),
        }
    }

    /// Device address of the elements from `start` on, for an operation on a CUDA device. `writes` is true if the
    /// operation writes them.
    pub(crate) fn address<T: Plain>(&self, cuda: &Cuda, start: usize, writes: bool) -> Address {
        match &self.storage {
            Storage::Cuda { stream, at, mirror } if Arc::ptr_eq(stream, cuda.stream()) => {
                if writes {
                    mirror.outdate();
                }
                at.after(start * size_of::<T>())
            }
            Storage::Refused(_) => panic!("{NOT_HAD}"),
            _ => panic!("an operation on {:?} got memory of {:?} or of another stream", cuda.device(), self.device()),
        }
    }

    /// Elements `range`, read-only, for an operation on the CPU.
    ///
    /// # Safety
    /// No other code writes these elements while the returned slice is alive.
    pub(crate) unsafe fn slice<T: Plain>(&self, cpu: &Cpu, range: Range<usize>) -> &[T] {
        // SAFETY: the caller upholds this function's safety contract.
        unsafe { self.elements(self.start(cpu), range) }
    }

    /// Elements `range`, writable, for an operation on the CPU.
    ///
    /// # Safety
    /// No other code accesses these elements while the returned slice is alive.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice_mut<T: Plain>(&self, cpu: &Cpu, range: Range<usize>) -> &mut [T] {
        match &self.storage {
            Storage::Checked { mirror, .. } => mirror.outdate(),
            Storage::Host(bytes) => bytes.assert_writable(),
            _ => {}
        }
        // SAFETY: the caller upholds this function's safety contract.
        unsafe { self.elements_mut(self.start(cpu), range) }
    }

    /// Elements `range` of an index tensor as the host last wrote them. Does not read the device.
    ///
    /// # Safety
    /// No other code writes these elements while the returned slice is alive.
    pub(crate) unsafe fn mirror<T: Plain>(&self, range: Range<usize>) -> &[T] {
        let start = match &self.storage {
            Storage::Host(bytes) => bytes.start,
            Storage::Checked { mirror: Mirror { bytes: Some(bytes), stale }, .. }
            | Storage::Cuda { mirror: Mirror { bytes: Some(bytes), stale }, .. } => {
                assert!(
                    !stale.load(Ordering::Relaxed),
                    "the host has no current copy of indices that an operation wrote"
                );
                bytes.start
            }
            _ => panic!("memory of {:?} has no mirror on the host", self.device()),
        };
        // SAFETY: the caller upholds this function's safety contract.
        unsafe { self.elements(start, range) }
    }

    /// Copies elements `range` to the host and passes them to `read`.
    ///
    /// # Safety
    /// No other code writes these elements during the call.
    pub(crate) unsafe fn download<T: Plain, R>(&self, range: Range<usize>, read: impl FnOnce(&[T]) -> R) -> R {
        let start = match &self.storage {
            Storage::Host(bytes) => {
                bytes.assert_readable();
                bytes.start
            }
            Storage::Checked { handle, .. } => {
                self.count(&self.ledger.checked.to_host, range.len() * size_of::<T>());
                lock(&self.ledger.checked.buffers)[handle].start
            }
            Storage::Cuda { stream, at, .. } => {
                self.assert_holds::<T>(&range);
                let bytes = range.len() * size_of::<T>();
                let show = |start: *const u8| {
                    // SAFETY: the stream provides this many bytes, aligned, and any bits are a valid `Plain`.
                    read(unsafe { std::slice::from_raw_parts(start.cast::<T>(), range.len()) })
                };
                // SAFETY: the range lies inside this buffer, and no other code writes to the buffer.
                return unsafe { stream.download(at.after(range.start * size_of::<T>()), bytes, show) };
            }
            _ => panic!("memory of {:?} has no values to copy", self.device()),
        };
        // SAFETY: the caller upholds this function's safety contract.
        read(unsafe { self.elements(start, range) })
    }

    /// Overwrites elements `range` with the contents that `write` puts into a host slice. On [`Device::Meta`] nothing
    /// happens.
    ///
    /// # Safety
    /// No other code accesses these elements during the call.
    pub(crate) unsafe fn upload<T: Plain>(&self, range: Range<usize>, write: impl FnOnce(&mut [T])) {
        match &self.storage {
            Storage::Meta | Storage::Refused(_) => {}
            Storage::Host(bytes) => {
                bytes.assert_writable();
                // SAFETY: the caller upholds this function's safety contract.
                write(unsafe { self.elements_mut(bytes.start, range) });
            }
            Storage::Cuda { stream, at, mirror } => {
                self.assert_holds::<T>(&range);
                let bytes = range.len() * size_of::<T>();
                let fill = |start: *mut u8| {
                    // SAFETY: the stream provides this many bytes of its own, aligned.
                    let to = unsafe {
                        start.write_bytes(0, bytes);
                        std::slice::from_raw_parts_mut(start.cast::<T>(), range.len())
                    };
                    write(to);
                    // SAFETY: the caller upholds this function's safety contract.
                    unsafe { self.reflect(mirror, range.clone(), to) };
                };
                // SAFETY: the range lies inside this buffer, and no other code accesses the buffer.
                unsafe { stream.upload(at.after(range.start * size_of::<T>()), bytes, fill) };
            }
            Storage::Checked { handle, mirror } => {
                self.count(&self.ledger.checked.to_device, range.len() * size_of::<T>());
                let start = lock(&self.ledger.checked.buffers)[handle].start;
                // SAFETY: the caller upholds this function's safety contract.
                let to = unsafe { self.elements_mut(start, range.clone()) };
                write(to);
                // SAFETY: the caller upholds this function's safety contract.
                unsafe { self.reflect(mirror, range, to) };
            }
        }
    }

    /// Copies the elements written by the host to the mirror.
    ///
    /// # Safety
    /// No other code accesses elements `range` during the call.
    unsafe fn reflect<T: Plain>(&self, mirror: &Mirror, range: Range<usize>, written: &[T]) {
        let Some(bytes) = &mirror.bytes else { return };
        // SAFETY: the caller upholds this function's safety contract, and `written` does not overlap the mirror.
        unsafe { self.elements_mut::<T>(bytes.start, range) }.copy_from_slice(written);
        if size_of_val(written) == self.bytes {
            mirror.stale.store(false, Ordering::Relaxed);
        }
    }

    /// Lets `write` change some of the elements `range`. If the host cannot access the device's memory, they are copied
    /// to the host and back.
    ///
    /// # Safety
    /// Same as for [`Buffer::upload`].
    pub(crate) unsafe fn update<T: Plain>(&self, range: Range<usize>, write: impl FnOnce(&mut [T])) {
        // SAFETY: the caller upholds this function's safety contract.
        unsafe {
            if !matches!(self.storage, Storage::Cuda { .. }) {
                return self.upload(range, write);
            }
            let mut host = self.download(range.clone(), <[T]>::to_vec);
            write(&mut host);
            self.upload(range, |to: &mut [T]| to.copy_from_slice(&host));
        }
    }

    /// Sets elements `range` to `x` on the device, without a copy.
    ///
    /// # Safety
    /// No other code accesses these elements during the call.
    pub(crate) unsafe fn fill<T: Plain>(&self, range: Range<usize>, x: T) {
        let start = match &self.storage {
            Storage::Meta | Storage::Refused(_) => return,
            Storage::Host(bytes) => {
                bytes.assert_writable();
                bytes.start
            }
            Storage::Checked { handle, .. } => lock(&self.ledger.checked.buffers)[handle].start,
            Storage::Cuda { stream, at, .. } => {
                self.assert_holds::<T>(&range);
                let at = at.after(range.start * size_of::<T>());
                // SAFETY: the range lies inside this buffer, and no other code accesses the buffer.
                return unsafe { stream.fill(at, x.word(), size_of::<T>(), range.len()) };
            }
        };
        // SAFETY: the caller upholds this function's safety contract.
        unsafe { self.elements_mut(start, range) }.fill(x);
    }

    fn count(&self, counts: &[AtomicU64; 2], bytes: usize) {
        counts[0].fetch_add(1, Ordering::Relaxed);
        counts[1].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// # Safety
    /// `start` is the address of this buffer's first byte, and no other code writes elements `range` while the returned
    /// slice is alive.
    unsafe fn elements<T: Plain>(&self, start: NonNull<u8>, range: Range<usize>) -> &[T] {
        self.assert_holds::<T>(&range);
        // SAFETY: the range lies inside the `bytes` initialised bytes from `start`, which is aligned to 64. Any bits
        // are a valid `Plain`.
        unsafe { std::slice::from_raw_parts(start.cast::<T>().add(range.start).as_ptr(), range.len()) }
    }

    /// # Safety
    /// `start` is the address of this buffer's first byte, and no other code accesses elements `range` while the
    /// returned slice is alive.
    #[allow(clippy::mut_from_ref)]
    unsafe fn elements_mut<T: Plain>(&self, start: NonNull<u8>, range: Range<usize>) -> &mut [T] {
        self.assert_holds::<T>(&range);
        // SAFETY: the range is valid as in `elements`, and the caller guarantees that no other code accesses it.
        unsafe { std::slice::from_raw_parts_mut(start.cast::<T>().add(range.start).as_ptr(), range.len()) }
    }

    fn assert_holds<T>(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.bytes / size_of::<T>(),
            "elements {range:?} are outside a buffer of {} bytes",
            self.bytes
        );
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.ledger.leave(self);
        match std::mem::replace(&mut self.storage, Storage::Meta) {
            Storage::Host(host) => self.ledger.give_back(host),
            Storage::Checked { handle, mirror } => {
                let host = lock(&self.ledger.checked.buffers).remove(&handle);
                host.into_iter().chain(mirror.bytes).for_each(|host| self.ledger.give_back(host));
            }
            Storage::Cuda { stream, at, mirror } => {
                stream.free(at);
                mirror.bytes.into_iter().for_each(|host| self.ledger.give_back(host));
            }
            Storage::Meta | Storage::Refused(_) => {}
        }
        if let Some(usage) = lock(&self.ledger.parts).get_mut(self.part) {
            usage.bytes -= self.bytes;
        }
    }
}
