//! [`Context`], the first argument of every operation: the device, the backend that computes on it, and the memory to
//! allocate from.

use crate::cores::{CoreTokens, Lease};
use crate::device::{Backend, Cpu, Cuda, DeviceEvent, DeviceMemory, Range};
use crate::matrix::PANEL;
use crate::{DType, Device, Error, Isa, Matrix, Memory, Result};
use std::cell::Cell;

/// The largest number of threads that is accepted. A larger one is a typo, which would cost stacks and seconds before
/// it failed.
const MAX_THREADS: usize = 4096;

/// The device that operations run on, its threads and its memory. One per process is enough; clones share threads and
/// memory accounting.
#[derive(Clone)]
pub struct Context {
    backend: Backend,
    memory: Memory,
}

impl Context {
    /// A context of the CPU with the instruction set `isa` and `threads` threads, of which the caller's is one.
    pub fn cpu(isa: Isa, threads: usize) -> Context {
        Context::given(Device::Cpu, isa, threads)
    }

    /// As [`cpu`](Self::cpu), with memory of [`Device::CpuChecked`], which tests use.
    pub fn cpu_checked(isa: Isa, threads: usize) -> Context {
        Context::given(Device::CpuChecked, isa, threads)
    }

    /// A context of [`Device::CudaEmulated`], which tests use. Fails where there is no C++ compiler.
    pub fn cuda_emulated() -> Result<Context> {
        Context::on(Device::CudaEmulated, Isa::best(), 1)
    }

    /// A context that only knows shapes and byte counts ([`Device::Meta`]): no operation may compute with it.
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

    /// A context of a device that runs CUDA kernels.
    #[cfg(test)]
    pub(crate) fn cuda(cuda: Cuda) -> Context {
        Context::of(cuda)
    }

    /// Opens the device for code that chose the number of threads itself. Panics if that fails.
    fn given(device: Device, isa: Isa, threads: usize) -> Context {
        Context::on(device, isa, threads).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The context that the environment variables `LOCKSTEP_DEVICE`, `LOCKSTEP_ISA` and `LOCKSTEP_THREADS` name; by
    /// default the CPU, its best instruction set and all cores.
    pub fn from_env() -> Result<Context> {
        Context::from_env_with(None, None)
    }

    /// [`from_env`](Self::from_env), where `device` and `threads` take precedence over the environment if they are
    /// given.
    pub fn from_env_with(device: Option<Device>, threads: Option<usize>) -> Result<Context> {
        let (device, isa) = (device.map_or_else(Device::from_env, Ok)?, Isa::from_env()?);
        let threads = threads.map_or_else(threads_from_env, Ok)?;
        if threads > MAX_THREADS {
            let message = format!("{threads} is more than {MAX_THREADS}; as many as the machine has cores are best");
            return Err(Error::Value { op: "threads", message });
        }
        Context::on(device, isa, threads)
    }

    /// A context of the same device and instruction set with `threads` threads, and memory accounting of its own.
    pub fn with_threads(&self, threads: usize) -> Context {
        match &self.backend {
            Backend::Cpu(cpu) => Context::given(cpu.device(), cpu.isa(), threads),
            Backend::Cuda(cuda) => Context::of(cuda.clone()),
        }
    }

    /// The name of what computes, as a training run records it: on a CPU the instruction set. Two runs have the same
    /// bits only if they have the same name.
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
    /// a matmul followed by an activation. It does where matmuls run on tiles: writing and reading the matmul's output
    /// costs more there than packing the rows and reading the weight for each block of outputs.
    pub fn fuses_gates(&self, gate_up: &Matrix) -> bool {
        let Backend::Cpu(cpu) = &self.backend else { return false };
        let on_tiles = cpu.isa().has_tiles() && gate_up.data().dtype() == DType::Bf16;
        on_tiles && gate_up.rows().is_multiple_of(2 * PANEL)
    }

    /// Rows of wide activations to compute at a time; see [`Memory::rows_at_once`].
    pub fn rows_at_once(&self) -> usize {
        self.memory.rows_at_once()
    }

    /// From now on the context computes with the cores that it can reserve of `tokens`, at most one for each of its
    /// [`threads`](Self::threads). It lets other processes have them every few milliseconds, and while it does not
    /// compute. Results do not depend on that. On other devices than the CPU this does nothing. Fails if the system
    /// starts no thread, which ends the turns.
    pub fn share_cores(&self, tokens: CoreTokens) -> Result<()> {
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.share_cores(Lease::new(tokens)?);
        }
        Ok(())
    }
    /// Releases the reserved cores at once, until the context computes again. A context that does not compute releases
    /// them without this call, but some milliseconds later.
    pub fn release_cores(&self) {
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.release_cores();
        }
    }
    /// CPU threads that compute, the caller's included.
    pub fn threads(&self) -> usize {
        match &self.backend {
            Backend::Cpu(cpu) => cpu.threads(),
            Backend::Cuda(_) => 1,
        }
    }

    /// Memory of a GPU, total, free and at peak; none for the CPU.
    pub fn device_memory(&self) -> Result<Option<DeviceMemory>> {
        match &self.backend {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => cuda.memory().map(Some),
        }
    }

    /// Records an event on the device; two events give the time between them. None for the CPU, where the host's clock
    /// serves.
    pub fn record_event(&self) -> Result<Option<DeviceEvent>> {
        match &self.backend {
            Backend::Cpu(_) => Ok(None),
            Backend::Cuda(cuda) => cuda.record_event().map(Some),
        }
    }

    /// Begins a named range for profilers, which ends when the value is dropped. None where no profiler can show it.
    pub fn range(&self, name: &str) -> Option<Range> {
        match &self.backend {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => cuda.range(name),
        }
    }

    /// The memory that tensors are allocated from.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The backend by which an operation chooses its implementation.
    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }
}

/// Number of threads to compute with: `LOCKSTEP_THREADS`, or the cores that this process may use.
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

/// Adds the floating-point operations and the bytes of memory traffic that an operation needs at least to the counts of
/// the calling thread ([`counted`]).
pub(crate) fn count(flops: u64, bytes: u64) {
    FLOPS.set(FLOPS.get() + flops);
    BYTES.set(BYTES.get() + bytes);
}

/// [`count`] for a matmul of `[m, k]` by `[k, n]`: its multiply-adds, and the bytes of each operand once.
pub(crate) fn count_matmul(m: usize, n: usize, k: usize, weight_bytes: usize) {
    count(2 * (m * n * k) as u64, (weight_bytes + size_of::<f32>() * m * (n + k)) as u64);
}

/// Floating-point operations and bytes of memory traffic that the operations called from this thread have counted so
/// far.
pub fn counted() -> (u64, u64) {
    (FLOPS.get(), BYTES.get())
}

#[cfg(test)]
mod tests;
