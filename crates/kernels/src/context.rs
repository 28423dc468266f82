//! [`Context`], the first argument of every operation: the device, the backend that computes on it, and the memory from
//! which it allocates.

use crate::cores::{CoreTokens, Lease};
use crate::device::{Backend, Cpu, Cuda, DeviceEvent, DeviceMemory, Range};
use crate::matrix::PANEL;
use crate::{DType, Device, Error, Isa, Matrix, Memory, Result};
use std::cell::Cell;

/// The largest accepted number of threads. A larger number is probably a typo, and allocating that many stacks would
/// take seconds before it failed.
const MAX_THREADS: usize = 4096;

/// The device that operations run on, with its threads and memory. One per process is enough; clones share threads and
/// memory accounting.
#[derive(Clone)]
pub struct Context {
    backend: Backend,
    memory: Memory,
}

impl Context {
    /// A CPU context with the instruction set `isa` and `threads` threads, including the caller's.
    pub fn cpu(isa: Isa, threads: usize) -> Context {
        Context::given(Device::Cpu, isa, threads)
    }

    /// Like [`cpu`](Self::cpu), but with [`Device::CpuChecked`] memory. For tests.
    pub fn cpu_checked(isa: Isa, threads: usize) -> Context {
        Context::given(Device::CpuChecked, isa, threads)
    }

    /// A context of [`Device::CudaEmulated`]. For tests. Fails without a C++ compiler.
    pub fn cuda_emulated() -> Result<Context> {
        Context::on(Device::CudaEmulated, Isa::best(), 1)
    }

    /// A context that only tracks shapes and byte counts ([`Device::Meta`]); no operation may compute with it.
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
        Context { memory: Memory::from_stream(cuda.stream().clone()), backend: Backend::Cuda(cuda) }
    }

    /// A context of a device that runs CUDA kernels.
    #[cfg(test)]
    pub(crate) fn cuda(cuda: Cuda) -> Context {
        Context::of(cuda)
    }

    /// Opens the device for a caller that chose the number of threads. Panics on failure.
    fn given(device: Device, isa: Isa, threads: usize) -> Context {
        Context::on(device, isa, threads).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The context configured by the environment variables `LOCKSTEP_DEVICE`, `LOCKSTEP_ISA` and `LOCKSTEP_THREADS`; by
    /// default the CPU, its best instruction set and all cores.
    pub fn from_env() -> Result<Context> {
        Context::from_env_with(None, None)
    }

    /// Like [`from_env`](Self::from_env), but `device` and `threads`, if given, take precedence over the environment.
    pub fn from_env_with(device: Option<Device>, threads: Option<usize>) -> Result<Context> {
        let (device, isa) = (device.map_or_else(Device::from_env, Ok)?, Isa::from_env()?);
        let threads = threads.map_or_else(threads_from_env, Ok)?;
        if threads > MAX_THREADS {
            let message = format!("must be at most {MAX_THREADS}, got {threads}; one thread per core is best");
            return Err(Error::Value { op: "threads", message });
        }
        Context::on(device, isa, threads)
    }

    /// A context for the same device and instruction set, with `threads` threads and separate memory accounting.
    pub fn with_threads(&self, threads: usize) -> Context {
        match &self.backend {
            Backend::Cpu(cpu) => Context::given(cpu.device(), cpu.isa(), threads),
            Backend::Cuda(cuda) => Context::of(cuda.clone()),
        }
    }

    /// The name of the computing hardware, as a training run records it. On a CPU it is the instruction set. Two runs
    /// give the same bits only if these names are equal.
    pub fn describe(&self) -> &'static str {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.isa().name(),
            Backend::Cuda(cuda) => cuda.device().name(),
        }
    }

    /// The name of the formula by which matmuls of `dtype` are computed (docs/arithmetic.md). Contexts with the same
    /// name give the same bits.
    pub fn arithmetic(&self, dtype: DType) -> &'static str {
        match (dtype, &self.backend) {
            (DType::F32 | DType::U32, _) => "f32",
            (DType::Bf16, Backend::Cpu(cpu)) if cpu.isa().has_tiles() => "bf16-amx",
            (DType::Bf16, Backend::Cpu(_)) => "bf16-chain",
            (DType::Bf16, Backend::Cuda(_)) => "none",
        }
    }

    /// Whether [`crate::ops::glu::fused`] computes this weight (the gate's rows above the up projection's) faster than
    /// a matmul followed by an activation. This is the case if matmuls run on tiles: writing and reading the matmul's
    /// output then costs more than packing the rows and reading the weight for each block of outputs.
    pub fn fuses_gates(&self, gate_up: &Matrix) -> bool {
        let Backend::Cpu(cpu) = &self.backend else { return false };
        let on_tiles = cpu.isa().has_tiles() && gate_up.data().dtype() == DType::Bf16;
        on_tiles && gate_up.rows().is_multiple_of(2 * PANEL)
    }

    /// Number of rows of wide activations to compute at a time; see [`Memory::rows_at_once`].
    pub fn rows_at_once(&self) -> usize {
        self.memory.rows_at_once()
    }

    /// Limits the context to the cores that it can reserve from `tokens`, at most one for each of its
    /// [`threads`](Self::threads). The context offers the cores to other processes every few milliseconds, and releases
    /// them while it is idle. The number of cores does not change results. On devices other than the CPU this does
    /// nothing. Fails if the system cannot start the thread that releases the cores.
    pub fn share_cores(&self, tokens: CoreTokens) -> Result<()> {
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.share_cores(Lease::new(tokens)?);
        }
        Ok(())
    }
    /// Releases the reserved cores immediately; the context reserves cores again when it next computes. Without this
    /// call, an idle context releases them after a few milliseconds.
    pub fn release_cores(&self) {
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.release_cores();
        }
    }
    /// Number of CPU threads that compute, including the caller's.
    pub fn threads(&self) -> usize {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.threads(),
            Backend::Cuda(_) => 1,
        }
    }

    /// Total, free and peak memory of a GPU; `None` for the CPU.
    pub fn device_memory(&self) -> Result<Option<DeviceMemory>> {
        match &self.backend {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => cuda.memory().map(Some),
        }
    }

    /// Records an event on the device. The time between two events can be queried. `None` for the CPU, where the host's
    /// clock can be used.
    pub fn record_event(&self) -> Result<Option<DeviceEvent>> {
        match &self.backend {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => cuda.record_event().map(Some),
        }
    }

    /// Begins a named range for profilers, which ends when the value is dropped. `None` if no profiler can show it.
    pub fn range(&self, name: &str) -> Option<Range> {
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => cuda.range(name),
        }
    }

    /// The memory from which tensors are allocated.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The backend, which determines the implementation of an operation.
    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }
}

/// Number of threads to compute with: `LOCKSTEP_THREADS`, or the number of cores that this process may use.
pub fn threads_from_env() -> Result<usize> {
    match std::env::var("LOCKSTEP_THREADS") {
        Ok(n) if !n.is_empty() => n.parse().ok().filter(|&n| n > 0).ok_or_else(|| Error::Value {
            op: "LOCKSTEP_THREADS",
            message: format!("expected a number of threads, 1 or more, got {n:?}"),
        }),
        _ => Ok(std::thread::available_parallelism().map_or(1, |n| n.get())),
    }
}

thread_local! {
    static FLOPS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Adds minimum floating-point operations and bytes of memory traffic to the counts of the calling thread
/// ([`counted`]): those of an operation, or those that other processes have counted.
pub fn count(flops: u64, bytes: u64) {
    FLOPS.set(FLOPS.get() + flops);
    BYTES.set(BYTES.get() + bytes);
}

/// [`count`] for a matmul of `[m, k]` by `[k, n]`: its multiply-adds, and the bytes of each operand once.
pub(crate) fn count_matmul(m: usize, n: usize, k: usize, weight_bytes: usize) {
    count(2 * (m * n * k) as u64, (weight_bytes + size_of::<f32>() * m * (n + k)) as u64);
}

/// Floating-point operations and bytes of memory traffic counted so far for the operations called from this thread.
pub fn counted() -> (u64, u64) {
    (FLOPS.get(), BYTES.get())
}

#[cfg(test)]
mod tests;
