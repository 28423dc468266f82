//! The first argument of every operation: the device, the backend that computes on it, and the memory to allocate from.

use crate::cores::{CoreTokens, Lease};
use crate::device::{Backend, Cpu, Cuda, DeviceEvent, DeviceMemory, Range};
use crate::matrix::PANEL;
use crate::{DType, Device, Error, Isa, Matrix, Memory, Result};
use std::cell::Cell;

/// More threads than any machine has cores for: a typo, which would take stacks and seconds to find out.
const MAX_THREADS: usize = 4096;

/// The device that operations run on. One per process is enough; clones share threads and ledger.
#[derive(Clone)]
pub struct Context {
    backend: Backend,
    memory: Memory,
}

impl Context {
    /// The CPU with `threads` threads (the caller's is one of them) and the instruction set `isa`.
    pub fn cpu(isa: Isa, threads: usize) -> Context {
        Context::given(Device::Cpu, isa, threads)
    }

    /// The CPU, with memory of [`Device::CpuChecked`].
    pub fn cpu_checked(isa: Isa, threads: usize) -> Context {
        Context::given(Device::CpuChecked, isa, threads)
    }

    /// [`Device::CudaEmulated`]: an error where no C++ compiler is.
    pub fn cuda_emulated() -> Result<Context> {
        Context::on(Device::CudaEmulated, Isa::best(), 1)
    }

    /// Shapes and byte counts only ([`Device::Meta`]): nothing that computes is run with it.
    pub fn meta() -> Context {
        Context::given(Device::Meta, Isa::PORTABLE, 1)
    }

    fn on(device: Device, isa: Isa, threads: usize) -> Result<Context> {
        match device {
            Device::Cpu | Device::CpuChecked | Device::Meta => {
                Ok(Context { backend: Backend::Cpu(Cpu::new(isa, threads, device)?), memory: Memory::new(device) })
            }
            Device::Cuda(_) | Device::CudaEmulated => Ok(Context::of(Cuda::open(device)?)),
        }
    }

    fn of(cuda: Cuda) -> Context {
        Context { memory: Memory::of_stream(cuda.stream().clone()), backend: Backend::Cuda(cuda) }
    }

    /// A device that computes with kernels in CUDA.
    #[cfg(test)]
    pub(crate) fn cuda(cuda: Cuda) -> Context {
        Context::of(cuda)
    }

    /// Threads that a program asks for, not its user, are there.
    fn given(device: Device, isa: Isa, threads: usize) -> Context {
        Context::on(device, isa, threads).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As the environment asks for it: `LOCKSTEP_DEVICE`, `LOCKSTEP_ISA`, `LOCKSTEP_THREADS`, otherwise the CPU, its
    /// best instruction set and all cores.
    pub fn from_env() -> Result<Context> {
        Context::from_env_with(None, None)
    }

    /// [`from_env`](Self::from_env) with this device and so many threads, where they are given.
    pub fn from_env_with(device: Option<Device>, threads: Option<usize>) -> Result<Context> {
        let (device, isa) = (device.map_or_else(Device::from_env, Ok)?, Isa::from_env()?);
        let threads = threads.map_or_else(threads_from_env, Ok)?;
        if threads > MAX_THREADS {
            let message = format!("{threads} is more than {MAX_THREADS}; as many as the machine has cores are best");
            return Err(Error::Value { op: "threads", message });
        }
        Context::on(device, isa, threads)
    }

    /// A context of the same device and arithmetic with so many threads, and a memory ledger of its own.
    pub fn with_threads(&self, threads: usize) -> Context {
        match &self.backend {
            Backend::Cpu(cpu) => Context::given(cpu.device(), cpu.isa(), threads),
            Backend::Cuda(cuda) => Context::of(cuda.clone()),
        }
    }

    /// What computes, as a run's record names it: on a CPU the instruction set. Bits are promised between equal names.
    pub fn describe(&self) -> &'static str {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.isa().name(),
            Backend::Cuda(cuda) => cuda.device().name(),
        }
    }

    /// The name of the formula that matmuls in `dtype` are computed with (docs/arithmetic.md): contexts
    /// with the same one give the same bits.
    pub fn arithmetic(&self, dtype: DType) -> &'static str {
        match (dtype, &self.backend) {
            (DType::F32 | DType::U32, _) => "f32",
            (DType::Bf16, Backend::Cpu(cpu)) if cpu.isa().has_tiles() => "bf16-amx",
            (DType::Bf16, Backend::Cpu(_)) => "bf16-chain",
            (DType::Bf16, Backend::Cuda(_)) => "none",
        }
    }

    /// Whether gate and up of this weight, one below the other, are multiplied faster by [`crate::ops::glu::fused`]
    /// than by a matmul and an activation: where tiles multiply, the way through memory costs more than packing rows
    /// and reading the weight for each block of outputs.
    pub fn fuses_gates(&self, gate_up: &Matrix) -> bool {
        let Backend::Cpu(cpu) = &self.backend else { return false };
        let on_tiles = cpu.isa().has_tiles() && gate_up.data().dtype() == DType::Bf16;
        on_tiles && gate_up.rows().is_multiple_of(2 * PANEL)
    }

    /// What [`Memory::rows_at_once`] says of the context's memory.
    pub fn rows_at_once(&self) -> usize {
        self.memory.rows_at_once()
    }

    /// From now on it computes with as many of its [`threads`](Self::threads) as it gets of these cores, which it lets
    /// other processes have every few milliseconds. Results do not depend on it. On other devices nothing changes.
    pub fn share_cores(&self, tokens: CoreTokens) {
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.share_cores(Lease::new(tokens));
        }
    }
    /// Lets others have its shared cores, until it computes again: before it waits for something else.
    pub fn release_cores(&self) {
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.release_cores();
        }
    }
    /// Threads of the host that compute, the caller's included.
    pub fn threads(&self) -> usize {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.threads(),
            Backend::Cuda(_) => 1,
        }
    }

    /// What a device with memory of its own has of it; none of a CPU.
    pub fn device_memory(&self) -> Result<Option<DeviceMemory>> {
        match &self.backend {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => cuda.memory().map(Some),
        }
    }

    /// A place in what the device does, to take its time between two; none of a CPU, whose time is the host's.
    pub fn record_event(&self) -> Result<Option<DeviceEvent>> {
        match &self.backend {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => cuda.record_event().map(Some),
        }
    }

    /// Names a range of time for profilers, until it is dropped; none where nobody shows it.
    pub fn range(&self, name: &str) -> Option<Range> {
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => cuda.range(name),
        }
    }

    /// The memory to allocate from.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What operations dispatch by.
    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }
}

/// `LOCKSTEP_THREADS`, or the cores that this process may use.
pub fn threads_from_env() -> Result<usize> {
    match std::env::var("LOCKSTEP_THREADS") {
        Ok(n) if !n.is_empty() => n.parse().ok().filter(|&n| n > 0).ok_or_else(|| Error::Value {
            op: "LOCKSTEP_THREADS",
            message: format!("{n:?} is not a number of threads; give 1 or more"),
        }),
        _ => Ok(std::thread::available_parallelism().map_or(1, |n| n.get())),
    }
}

thread_local! {
    static FLOPS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Books the floating-point operations and the bytes of memory traffic that an operation needs at least (called by
/// operations, on the caller's thread).
pub(crate) fn count(flops: u64, bytes: u64) {
    FLOPS.set(FLOPS.get() + flops);
    BYTES.set(BYTES.get() + bytes);
}

/// Books a matmul's multiply-adds, and each operand once.
pub(crate) fn count_matmul(m: usize, n: usize, k: usize, weight_bytes: usize) {
    count(2 * (m * n * k) as u64, (weight_bytes + size_of::<f32>() * m * (n + k)) as u64);
}

/// FLOPs and bytes that operations called from this thread have booked so far.
pub fn counted() -> (u64, u64) {
    (FLOPS.get(), BYTES.get())
}
