//! The trait [`Driver`]: the few device operations that a CUDA stream needs. NVIDIA's libcuda and the emulator both
//! implement it.

use super::sources::Source;
use super::tensor_core::Family;

/// An address in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address(pub u64);

impl Address {
    pub(crate) fn after(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arg {
    /// A device address; null for an absent optional argument.
    Pointer(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
}

impl Arg {
    pub(crate) const NULL: Arg = Arg::Pointer(0);
    /// The pointer advanced by this many elements of `T`.
    pub(crate) fn after<T>(self, elements: usize) -> Arg {
        match self {
            Arg::Pointer(at) => Arg::Pointer(at + (elements * size_of::<T>()) as u64),
            other => panic!("{other:?} is not a pointer"),
        }
    }
    /// The letter for the argument's type in the emulator's signatures.
    pub(super) fn kind(self) -> u8 {
        match self {
            Arg::Pointer(_) => b'p',
            Arg::U32(_) => b'u',
            Arg::U64(_) => b'l',
            Arg::F32(_) => b'f',
            Arg::F64(_) => b'd',
        }
    }
    /// The argument's bytes, in the lowest bytes of a 64-bit word: host and device are little-endian.
    pub(super) fn bits(self) -> u64 {
        match self {
            Arg::Pointer(x) | Arg::U64(x) => x,
            Arg::U32(x) => u64::from(x),
            Arg::F32(x) => u64::from(x.to_bits()),
            Arg::F64(x) => x.to_bits(),
        }
    }
}

impl From<u32> for Arg {
    fn from(x: u32) -> Arg {
        Arg::U32(x)
    }
}

/// Sizes are passed to kernels as 64-bit integers.
impl From<usize> for Arg {
    fn from(x: usize) -> Arg {
        Arg::U64(x as u64)
    }
}

impl From<u64> for Arg {
    fn from(x: u64) -> Arg {
        Arg::U64(x)
    }
}

impl From<f32> for Arg {
    fn from(x: f32) -> Arg {
        Arg::F32(x)
    }
}

impl From<f64> for Arg {
    fn from(x: f64) -> Arg {
        Arg::F64(x)
    }
}

/// The launch grid of a kernel: blocks of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub blocks: [u32; 3],
    /// Threads per block: whole warps.
    pub threads: u32,
}

impl Grid {
    /// A grid with at least one thread for each of `count` elements.
    pub(crate) fn over(count: usize) -> Grid {
        const THREADS: u32 = 256;
        Grid { blocks: [blocks(count.div_ceil(THREADS as usize)), 1, 1], threads: THREADS }
    }
    /// A grid with a block of `threads` threads for each of `count` items.
    pub(crate) fn each(count: usize, threads: u32) -> Grid {
        Grid { blocks: [blocks(count), 1, 1], threads }
    }
    /// A grid of `shares` rows of blocks, each with at least one thread for each of `columns` columns.
    pub(crate) fn columns(columns: usize, shares: u32) -> Grid {
        const THREADS: u32 = 128;
        Grid { blocks: [blocks(columns.div_ceil(THREADS as usize)), shares, 1], threads: THREADS }
    }
    /// The grid of the kernels that compute a matmul in tiles of 64 x 64 elements (`matmul.cuh`, `mma.cuh`), for an
    /// output of `rows` x `cols` elements.
    pub(crate) fn matmul(rows: usize, cols: usize) -> Grid {
        const TILE: usize = 64;
        Grid { blocks: [blocks(cols.div_ceil(TILE)), blocks(rows.div_ceil(TILE)), 1], threads: 128 }
    }
    /// The same for tiles of 128 x 128 elements.
    pub(crate) fn matmul_128(rows: usize, cols: usize) -> Grid {
        Grid { threads: 256, ..Grid::matmul(rows.div_ceil(2), cols.div_ceil(2)) }
    }
    /// The grid of the kernels that call `add_chunks` of `sums.cuh`, for `columns` columns.
    pub(crate) fn chunks(columns: usize) -> Grid {
        Grid { blocks: [blocks(columns.div_ceil(32)), 1, 1], threads: 256 }
    }
    /// A grid with 16 threads for each of `rows` rows.
    pub(crate) fn lanes(rows: usize) -> Grid {
        Grid { blocks: [blocks(rows.div_ceil(8)), 1, 1], threads: 128 }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.contains(&0)
    }
    /// Whether CUDA accepts the grid.
    pub(super) fn check(&self) -> Outcome<()> {
        let [x, y, z] = self.blocks;
        if i32::try_from(x).is_err() || y.max(z) > 65_535 || self.threads > 1024 || !self.threads.is_multiple_of(32) {
            return Err(format!(
                "a grid of {x} x {y} x {z} blocks of {} threads; CUDA allows 2147483647 x 65535 x 65535 blocks, and \
                 kernels are written for whole warps of at most 1024 threads",
                self.threads
            ));
        }
        Ok(())
    }
}

/// Number of blocks for `count` elements, as a grid's first dimension. CUDA allows 2³¹ − 1 blocks: 2³⁹ elements, more
/// than any device can store.
fn blocks(count: usize) -> u32 {
    i32::try_from(count).expect("the number of blocks fits in 31 bits") as u32
}

/// Handle of a kernel that a driver has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(pub usize);

/// Handle of an event recorded in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Event(pub usize);

/// The result of a driver call; the error is the driver's message.
pub(crate) type Outcome<T> = std::result::Result<T, String>;

/// A device with one stream. Copies and launches execute in the order of the calls, at the latest before the next
/// [`synchronise`](Driver::synchronise) returns.
pub(crate) trait Driver: Send + Sync {
    /// The family of the device's tensor cores, which determines how they compute; `None` if the device has no tensor
    /// cores.
    fn tensor_cores(&self) -> Option<Family>;
    /// Allocates device memory with unspecified contents. Returns `Ok(None)` if there is not enough memory.
    fn allocate(&self, bytes: usize) -> Outcome<Option<Address>>;
    /// Frees device memory after all earlier calls have executed.
    fn free(&self, at: Address);
    /// Allocates pinned host memory, which copies may use while the host continues. It lives as long as the driver.
    fn pinned(&self, bytes: usize) -> Outcome<*mut u8>;
    /// # Safety
    /// `from` is readable and does not change until the copy has executed; `to` is memory of this stream.
    unsafe fn to_device(&self, to: Address, from: *const u8, bytes: usize) -> Outcome<()>;
    /// # Safety
    /// `to` is writable until the copy has executed; `from` is memory of this stream.
    unsafe fn to_host(&self, from: Address, to: *mut u8, bytes: usize) -> Outcome<()>;
    /// Fills device memory with `count` copies of the `width` (2 or 4) lowest bytes of `word`.
    ///
    /// # Safety
    /// The device memory belongs to this stream.
    unsafe fn fill(&self, at: Address, word: u32, width: usize, count: usize) -> Outcome<()>;
    /// Finds a kernel of a source. The source is compiled, or loaded from a cache, when one of its kernels is first
    /// requested.
    fn function(&self, source: &Source, kernel: &'static str) -> Outcome<Function>;
    /// # Safety
    /// The arguments have the types that the kernel declares, and point to as much memory as the kernel accesses.
    unsafe fn launch(&self, function: Function, grid: Grid, args: &[Arg]) -> Outcome<()>;
    /// Waits until all earlier calls have executed.
    fn synchronise(&self) -> Outcome<()>;
    /// Total and free bytes of the device's memory. `None` if the device uses the host's memory.
    fn memory(&self) -> Outcome<Option<[u64; 2]>>;
    /// The peak number of bytes that this driver has allocated.
    fn peak(&self) -> Outcome<u64>;
    /// Records an event, which occurs once all earlier calls have executed.
    fn event(&self) -> Outcome<Event>;
    /// Seconds from event `from` to event `to`. Waits for `to`.
    fn seconds(&self, from: Event, to: Event) -> Outcome<f64>;
    /// Frees an event.
    fn destroy_event(&self, event: Event);
}
