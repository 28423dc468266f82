//! Detects CUDA on this machine, for `lockstep doctor`. The probe launches no kernels and keeps no device open.

use super::driver::Outcome;
use super::libcuda::{CAPABILITY, Functions};
use super::nvrtc::Nvrtc;
use super::sources;
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::ptr::null_mut;

/// The CUDA installation of this machine.
#[derive(Clone, Debug)]
pub struct CudaProbe {
    /// Path at which NVIDIA's driver library is expected.
    pub driver_path: String,
    /// The driver, or the reason why it is missing.
    pub driver: Result<CudaDriver, String>,
    /// Paths at which NVRTC, which compiles kernels, is expected.
    pub nvrtc_paths: Vec<String>,
    /// NVRTC's version, or the reason why it cannot be used.
    pub nvrtc: Result<String, String>,
    /// Directory in which compiled kernels are cached.
    pub kernel_cache: PathBuf,
}

/// NVIDIA's driver, and the GPUs that it reports.
#[derive(Clone, Debug)]
pub struct CudaDriver {
    /// The newest version of CUDA that the driver supports, such as "12.9".
    pub version: String,
    /// The GPUs in the order of their indices, with an error for each GPU that cannot be used.
    pub devices: Vec<Result<CudaDevice, String>>,
}

/// A GPU that the driver reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// NVIDIA's name for the GPU.
    pub name: String,
    /// Compute capability, such as "9.0".
    pub capability: String,
    /// Bytes of the GPU's memory.
    pub memory_bytes: u64,
    /// Free bytes of the GPU's memory.
    pub free_bytes: u64,
}

impl CudaProbe {
    /// Looks for the driver, NVRTC and the GPUs.
    pub fn new() -> CudaProbe {
        CudaProbe {
            driver_path: Functions::path(),
            driver: Functions::get().and_then(driver),
            nvrtc_paths: Nvrtc::paths(),
            nvrtc: Nvrtc::get().map(|nvrtc| format!("{}.{}", nvrtc.version.0, nvrtc.version.1)),
            kernel_cache: sources::directory(),
        }
    }
}

impl Default for CudaProbe {
    fn default() -> CudaProbe {
        CudaProbe::new()
    }
}

fn driver(cuda: &Functions) -> Outcome<CudaDriver> {
    let (mut version, mut count) = (0, 0);
    // SAFETY: the pointers are valid for writes.
    unsafe {
        cuda.check("cuDriverGetVersion", (cuda.driver_version)(&mut version))?;
        cuda.check("cuDeviceGetCount", (cuda.device_count)(&mut count))?;
    }
    let version = format!("{}.{}", version / 1000, version % 1000 / 10);
    Ok(CudaDriver { version, devices: (0..count).map(|number| device(cuda, number)).collect() })
}

fn device(cuda: &Functions, number: c_int) -> Outcome<CudaDevice> {
    let (mut device, mut name) = (0, [0 as c_char; 256]);
    // SAFETY: the pointers are valid for writes, the device exists, and its context is released again.
    unsafe {
        cuda.check("cuDeviceGet", (cuda.device)(&mut device, number))?;
        cuda.check("cuDeviceGetName", (cuda.device_name)(name.as_mut_ptr(), name.len() as c_int - 1, device))?;
        let [major, minor] = CAPABILITY.map(|attribute| {
            let mut value = 0;
            cuda.check("cuDeviceGetAttribute", (cuda.attribute)(&mut value, attribute, device)).map(|()| value)
        });
        let capability = format!("{}.{}", major?, minor?);
        let mut context = null_mut();
        cuda.check("cuDevicePrimaryCtxRetain", (cuda.retain_context)(&mut context, device))?;
        let (mut free, mut total) = (0, 0);
        let asked = cuda
            .check("cuCtxSetCurrent", (cuda.set_context)(context))
            .and_then(|()| cuda.check("cuMemGetInfo", (cuda.memory)(&mut free, &mut total)));
        (cuda.release_context)(device);
        asked?;
        Ok(CudaDevice {
            name: CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
            capability,
            memory_bytes: total as u64,
            free_bytes: free as u64,
        })
    }
}
