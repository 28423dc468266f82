//! The trait `Driver`: the few device operations that a stream needs, which libcuda and the emulator both implement.

use super::sources::Source;
use super::tensor_core::Family;

/// A byte of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address(pub u64);

impl Address {
    pub(crate) fn after(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// What a kernel is called with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arg {
    /// Null stands for an argument that is not given.
    Pointer(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
}

impl Arg {
    pub(crate) const NULL: Arg = Arg::Pointer(0);
    /// So many elements of `T` further on.
    pub(crate) fn after<T>(self, elements: usize) -> Arg {
        match self {
            Arg::Pointer(at) => Arg::Pointer(at + (elements * size_of::<T>()) as u64),
            other => panic!("{other:?} points to nothing"),
        }
    }
    /// The letter of its type in the emulator's signatures.
    pub(super) fn kind(self) -> u8 {
        match self {
            Arg::Pointer(_) => b'p',
            Arg::U32(_) => b'u',
            Arg::U64(_) => b'l',
            Arg::F32(_) => b'f',
            Arg::F64(_) => b'd',
        }
    }
    /// The argument's bytes in a word, from the first on: host and device are little-endian.
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

/// Sizes travel as 64 bits.
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

/// Blocks of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub blocks: [u32; 3],
    /// Threads of a block: whole warps.
    pub threads: u32,
}

impl Grid {
    /// At least one thread for each of `count`.
    pub(crate) fn over(count: usize) -> Grid {
        const THREADS: u32 = 256;
        Grid { blocks: [blocks(count.div_ceil(THREADS as usize)), 1, 1], threads: THREADS }
    }
    /// A block of `threads` threads for each of `count`.
    pub(crate) fn each(count: usize, threads: u32) -> Grid {
        Grid { blocks: [blocks(count), 1, 1], threads }
    }
    /// At least one thread for each of `columns`, `shares` times.
    pub(crate) fn columns(columns: usize, shares: u32) -> Grid {
        const THREADS: u32 = 128;
        Grid { blocks: [blocks(columns.div_ceil(THREADS as usize)), shares, 1], threads: THREADS }
    }
    /// What `matmul` of `sums.cuh` takes for `rows` x `cols` elements.
    pub(crate) fn matmul(rows: usize, cols: usize) -> Grid {
        const TILE: usize = 64;
        Grid { blocks: [blocks(cols.div_ceil(TILE)), blocks(rows.div_ceil(TILE)), 1], threads: 256 }
    }
    /// What `matmul_bf16` of `mma.cuh` takes for `rows` x `cols` elements.
    pub(crate) fn matmul_bf16(rows: usize, cols: usize) -> Grid {
        Grid { threads: 128, ..Grid::matmul(rows, cols) }
    }
    /// What `add_chunks` of `sums.cuh` takes for so many columns.
    pub(crate) fn chunks(columns: usize) -> Grid {
        Grid { blocks: [blocks(columns.div_ceil(32)), 1, 1], threads: 256 }
    }
    /// 16 lanes for each of `rows`.
    pub(crate) fn lanes(rows: usize) -> Grid {
        Grid { blocks: [blocks(rows.div_ceil(8)), 1, 1], threads: 128 }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.contains(&0)
    }
}

/// A grid's first dimension has at most 2³¹ − 1 blocks: 2³⁹ elements, more than any device holds.
fn blocks(count: usize) -> u32 {
    i32::try_from(count).expect("a grid's blocks fit 31 bits") as u32
}

/// A kernel that a driver has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(pub usize);

/// A place in what a stream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Event(pub usize);

/// Why something failed, in the driver's words.
pub(crate) type Outcome<T> = std::result::Result<T, String>;

/// A device with one stream: what is asked for happens in that order, copies and launches some time before the next
/// [`synchronise`](Driver::synchronise) returns.
pub(crate) trait Driver: Send + Sync {
    /// How its tensor cores compute; none where it has none.
    fn tensor_cores(&self) -> Option<Family>;
    /// Memory with any content. `Ok(None)`: there is not so much.
    fn allocate(&self, bytes: usize) -> Outcome<Option<Address>>;
    /// Lets go of it once what was asked for before has happened.
    fn free(&self, at: Address);
    /// Host memory that copies may read and write while the host continues. It lives as long as the driver.
    fn pinned(&self, bytes: usize) -> Outcome<*mut u8>;
    /// # Safety
    /// `from` is readable, and unchanged, until the copy has happened; the device's memory is this stream's.
    unsafe fn to_device(&self, to: Address, from: *const u8, bytes: usize) -> Outcome<()>;
    /// # Safety
    /// `to` is writable until the copy has happened; the device's memory is this stream's.
    unsafe fn to_host(&self, from: Address, to: *mut u8, bytes: usize) -> Outcome<()>;
    /// Fills memory with the `width` (2 or 4) lowest bytes of `word`.
    ///
    /// # Safety
    /// The device's memory is this stream's.
    unsafe fn fill(&self, at: Address, word: u32, width: usize, count: usize) -> Outcome<()>;
    /// A kernel of a source, which is compiled, or loaded from a cache, when one of its kernels is first asked for.
    fn function(&self, source: &Source, kernel: &'static str) -> Outcome<Function>;
    /// # Safety
    /// The arguments are of the types that the kernel declares, and what they point to is as large as it takes it for.
    unsafe fn launch(&self, function: Function, grid: Grid, args: &[Arg]) -> Outcome<()>;
    /// Waits until all that was asked for has happened.
    fn synchronise(&self) -> Outcome<()>;
    /// Bytes of memory that the device has, and those that nobody holds. None: it has as much as the host.
    fn memory(&self) -> Outcome<Option<[u64; 2]>>;
    /// The most bytes that this driver's allocations have held together.
    fn peak(&self) -> Outcome<u64>;
    /// An event, which happens when all that was asked for before it has.
    fn event(&self) -> Outcome<Event>;
    /// Seconds from one event to another, which is waited for.
    fn seconds(&self, from: Event, to: Event) -> Outcome<f64>;
    /// Lets go of an event.
    fn destroy_event(&self, event: Event);
}
