//! CUDA: kernels in CUDA C++ (`ops/*/*.cu`), which NVRTC compiles at run time, on a GPU; or, for tests, which the
//! host's C++ compiler compiles, on the CPU.
//!
//! [`stream`] is one stream of a device: memory, copies, launches. It asks a [`driver`], of which there are two:
//! [`libcuda`] and the emulator ([`emulated`]). An operation's `cuda.rs` launches kernels with [`Cuda`], which it is
//! handed after the checks. `kernel.cuh` is what kernels begin with.

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

/// The kernels of an operation, in `name.cu` beside the file that says so.
macro_rules! source {
    ($name:literal) => {
        $crate::device::cuda::Source { name: $name, text: include_str!(concat!($name, ".cu")) }
    };
}
pub(crate) use source;

/// What an operation computes with on a CUDA device, and what it shows to get at addresses.
#[derive(Clone)]
pub(crate) struct Cuda {
    stream: Arc<CudaStream>,
}

impl Cuda {
    /// Opens the device.
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
    /// How the tensor cores multiply bf16. The first time, they are compared with their family's formula: a device
    /// whose bits are others is refused.
    pub(crate) fn tensor_cores(&self) -> Result<Family> {
        self.stream.tensor_cores(|family| self_test::run(self, family))
    }
    /// The error of an operation, or a dtype, that this device does not have.
    pub(crate) fn lacks(&self, what: &str) -> Error {
        Error::Device(format!("{}: {what} is not there yet; the device \"cpu\" has it", self.device().name()))
    }
    /// Runs a kernel; an empty grid is no launch. The arguments are what the kernel declares, and what they point to is
    /// as large as it takes it for: an operation has checked shapes, and the emulator looks at the rest.
    pub(crate) fn launch(&self, source: &Source, kernel: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        // SAFETY: as above; only operations of this crate launch.
        unsafe { self.stream.launch(source, kernel, grid, args) }
    }
}
