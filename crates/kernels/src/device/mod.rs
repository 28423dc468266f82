//! Devices: the memory that contains tensors, and the backends that compute on it. New devices are added here.
//!
//! A tensor has a handle, never a slice. Accessing its elements requires the backend of its device ([`Cpu`], [`Cuda`])
//! as an argument, which only code for that device has. All other code copies elements, or reads the host's copy of an
//! index tensor. An operation's `mod.rs` checks its arguments without reading device memory, and dispatches by
//! [`Backend`].

mod cpu;
pub(crate) mod cuda;

pub(crate) use cpu::Cpu;
pub(crate) use cuda::Cuda;
pub use cuda::measure::{DeviceEvent, DeviceMemory, Range};
pub use cuda::probe::{CudaDevice, CudaDriver, CudaProbe};

use crate::{Error, Result};

/// The device whose memory contains a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// The CPU, with ordinary host memory.
    Cpu,
    /// The CPU, with host memory behind opaque handles, as if it were another device's. Copies in and out are explicit
    /// and counted ([`crate::Memory::copies`]), and index tensors have a mirror on the host. For tests; the bits are
    /// the same as those of `Cpu`.
    CpuChecked,
    /// The NVIDIA GPU with this index.
    Cuda(u8),
    /// The CPU in place of a GPU. It runs the CUDA kernels, compiled by a C++ compiler. Slow; for tests.
    CudaEmulated,
    /// No memory: tensors have shapes and byte counts only.
    Meta,
}

impl Device {
    /// The devices that can compute; the first GPU represents all GPUs.
    const ALL: [Device; 4] = [Device::Cpu, Device::CpuChecked, Device::Cuda(0), Device::CudaEmulated];

    /// The device's name in configurations, flags and `LOCKSTEP_DEVICE`.
    pub fn name(self) -> &'static str {
        match self {
            Device::Cpu => "cpu",
            Device::CpuChecked => "cpu-checked",
            Device::Cuda(number) => GPUS.get(usize::from(number)).copied().unwrap_or("cuda"),
            Device::CudaEmulated => "cuda-emulated",
            Device::Meta => "meta",
        }
    }

    /// Whether the device runs CUDA kernels, in its own memory.
    pub fn is_cuda(self) -> bool {
        matches!(self, Device::Cuda(_) | Device::CudaEmulated)
    }

    /// The device that `LOCKSTEP_DEVICE` names, or the CPU.
    pub fn from_env() -> Result<Device> {
        match std::env::var("LOCKSTEP_DEVICE") {
            Ok(name) if !name.is_empty() => {
                Device::from_name(&name).map_err(|error| Error::Device(format!("LOCKSTEP_DEVICE={name}: {error}")))
            }
            _ => Ok(Device::Cpu),
        }
    }

    /// The device with this name.
    pub fn from_name(name: &str) -> Result<Device> {
        let gpu = if name == "cuda:0" { "cuda" } else { name };
        if let Some(number) = GPUS.iter().position(|&known| known == gpu) {
            return Ok(Device::Cuda(number as u8));
        }
        Device::ALL.into_iter().find(|device| device.name() == name).ok_or_else(|| {
            Error::Device(format!("unknown device; expected one of: {}", Device::ALL.map(Device::name).join(", ")))
        })
    }
}

/// The names of GPUs by index. The first GPU may also be called "cuda:0".
const GPUS: [&str; 16] = [
    "cuda", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7", "cuda:8", "cuda:9", "cuda:10",
    "cuda:11", "cuda:12", "cuda:13", "cuda:14", "cuda:15",
];

/// The implementation that operations dispatch to.
#[derive(Clone)]
pub(crate) enum Backend {
    /// The CPU. Also for [`Device::CpuChecked`], whose memory differs but whose arithmetic is the same.
    Cpu(Cpu),
    Cuda(Cuda),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_gives_its_device() {
        for (name, device) in [
            ("cpu", Device::Cpu),
            ("cpu-checked", Device::CpuChecked),
            ("cuda", Device::Cuda(0)),
            ("cuda:0", Device::Cuda(0)),
            ("cuda:15", Device::Cuda(15)),
        ] {
            assert_eq!(Device::from_name(name).ok(), Some(device), "{name}");
        }
        assert_eq!(Device::Cuda(3).name(), "cuda:3");
    }

    #[test]
    fn the_error_for_an_unknown_device_lists_the_known_names() {
        for wrong in ["cuda:16", "cuda:", "gpu"] {
            let refused = Device::from_name(wrong).unwrap_err().to_string();
            assert_eq!(refused, "unknown device; expected one of: cpu, cpu-checked, cuda, cuda-emulated");
        }
    }
}
