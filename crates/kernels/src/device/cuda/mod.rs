//! The CUDA backend: kernels in CUDA C++ (`ops/*/*.cu`). NVRTC compiles them at run time for a GPU; for tests, the
//! host's C++ compiler compiles them for the CPU.
//!
//! [`stream`] is one stream of a device: memory, copies and launches. It uses one of two [`driver`]s: [`libcuda`] or
//! the emulator ([`emulated`]). An operation's `cuda.rs` receives a [`Cuda`] after the checks, and launches its kernels
//! with it. Every kernel's source begins with `kernel.cuh`.

pub(crate) mod driver;
mod emulated;
mod libcuda;
mod library;
pub(super) mod measure;
mod nvrtc;
mod nvtx;
pub(super) mod probe;
mod self_test;
mod sources;
pub(crate) mod stream;
pub(crate) mod tensor_core;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use driver::{Arg, Grid};
pub(crate) use sources::Source;
pub(crate) use stream::CudaStream;
use tensor_core::Family;

use super::Device;
use crate::{Error, Result};
use std::sync::Arc;

/// The CUDA source of an operation's kernels: `name.cu` next to the file that uses this macro.
macro_rules! source {
    ($name:literal) => {
        $crate::device::cuda::Source { name: $name, text: include_str!(concat!($name, ".cu")) }
    };
}
pub(crate) use source;

/// The backend for operations on a CUDA device. Getting a tensor's device address requires the backend as an argument.
#[derive(Clone)]
pub(crate) struct Cuda {
    stream: Arc<CudaStream>,
}

impl Cuda {
    /// Opens a CUDA device, real or emulated.
    pub(crate) fn open(device: Device) -> Result<Cuda> {
        let driver = match device {
            Device::Cuda(number) => libcuda::open_device(number),
            _ => emulated::open(),
        };
        let driver = driver.map_err(|why| Error::Device(format!("{}: {why}", device.name())))?;
        Ok(Cuda { stream: Arc::new(CudaStream::new(device, driver)?) })
    }
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
    pub(crate) fn device(&self) -> Device {
        self.stream.device()
    }
    /// The family of the device's tensor cores, which determines how they multiply bf16. The first call compares them
    /// with the family's formula; a device with different bits is refused.
    pub(crate) fn tensor_cores(&self) -> Result<Family> {
        self.stream.tensor_cores(|family| self_test::run(self, family))
    }
    /// The error for an operation or a dtype without a CUDA kernel.
    pub(crate) fn lacks(&self, what: &str) -> Error {
        Error::Device(format!("{}: {what} is not supported yet; use the device \"cpu\"", self.device().name()))
    }
    /// Runs a kernel; an empty grid launches nothing. The arguments must have the types that the kernel declares, and
    /// point to as much memory as the kernel accesses. Operations check the shapes, and the emulator checks types and
    /// memory accesses in tests.
    pub(crate) fn launch(&self, source: &Source, kernel: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        // SAFETY: the documented conditions hold, since only operations of this crate call this function.
        unsafe { self.stream.launch(source, kernel, grid, args) }
    }
}
