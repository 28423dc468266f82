//! Shared helpers for tests of CUDA kernels, and the tests of the stream and the emulator.

use super::Cuda;
use super::emulated::Emulated;
use super::stream::CudaStream;
use super::tensor_core::{AMPERE, Family, HOPPER};
use crate::check::normal;
use crate::{Context, Device, Isa, Result, Tensor};
use std::sync::Arc;

mod compile;
mod functions;
mod invariance;
mod libcuda;
mod planted;
mod self_test;
mod stream;
pub(crate) mod tensor_core;

/// The emulator with this schedule. Without a C++ compiler: none and a printed line, or an error in CI.
pub(crate) fn emulated(schedule: u32) -> Option<Cuda> {
    emulated_with(|driver| driver.schedule = schedule)
}

/// The emulator with this schedule and tensor cores of this family.
pub(crate) fn emulated_as(schedule: u32, family: Family) -> Option<Cuda> {
    emulated_with(|driver| (driver.schedule, driver.family) = (schedule, family))
}

fn emulated_with(set: impl FnOnce(&mut Emulated)) -> Option<Cuda> {
    match Emulated::open() {
        Ok(mut driver) => {
            set(&mut driver);
            let stream = CudaStream::new(Device::CudaEmulated, Box::new(driver)).expect("host memory");
            Some(Cuda { stream: Arc::new(stream) })
        }
        Err(why) if std::env::var("CI").is_ok_and(|ci| ci == "true") => panic!("{why}"),
        Err(why) => {
            eprintln!("skipped 1: {why}");
            None
        }
    }
}

/// The GPU that `LOCKSTEP_DEVICE` names, which must exist; without that variable the emulator.
pub(crate) fn device(schedule: u32) -> Option<Cuda> {
    match Device::from_env().expect("a device") {
        gpu @ Device::Cuda(_) => Some(Cuda::open(gpu).expect("the GPU")),
        _ => emulated(schedule),
    }
}

/// Devices that multiply bf16, and their families: the GPU that `LOCKSTEP_DEVICE` names, or the emulator as each
/// family.
pub(crate) fn with_tensor_cores(schedule: u32) -> Vec<(Cuda, Family)> {
    if let gpu @ Device::Cuda(_) = Device::from_env().expect("a device") {
        let cuda = Cuda::open(gpu).expect("the GPU");
        let family = cuda.tensor_cores().expect("tensor cores");
        return vec![(cuda, family)];
    }
    let all = [AMPERE, HOPPER].map(|family| emulated_as(schedule, family).map(|cuda| (cuda, family)));
    all.into_iter().flatten().collect()
}

/// Contexts for tests in f32: every instruction set with each of these numbers of threads, and the emulator.
pub(crate) fn contexts(threads: &[usize]) -> Vec<Context> {
    let on_cpu = Isa::present().into_iter().flat_map(|isa| threads.iter().map(move |&n| Context::cpu(isa, n)));
    on_cpu.chain(emulated(0).map(Context::cuda)).collect()
}

/// Number of emulator schedules to test: `LOCKSTEP_EMULATOR_SCHEDULES`, or 1.
pub(crate) fn schedules() -> u32 {
    std::env::var("LOCKSTEP_EMULATOR_SCHEDULES").ok().map_or(1, |n| n.parse().expect("a number of schedules"))
}

/// Whether tests may use sizes that take too long for CI.
pub(crate) fn full() -> bool {
    std::env::var_os("LOCKSTEP_EMULATOR_FULL").is_some_and(|value| !value.is_empty())
}

/// Checks that `run` gives the same bits on the CPU and on the emulator, or on the GPU that `LOCKSTEP_DEVICE` names.
pub(crate) fn same(run: impl Fn(&Context) -> Result<Vec<u32>>) {
    let expected = run(&Context::cpu(Isa::best(), 2)).expect("the CPU");
    for schedule in 0..schedules() {
        let Some(cuda) = device(schedule) else { return };
        let got = run(&Context::cuda(cuda)).expect("the device");
        assert_eq!(got.len(), expected.len());
        let differ = expected.iter().zip(&got).position(|(a, b)| a != b);
        if let Some(at) = differ {
            let [expected, got] = [expected[at], got[at]].map(f32::from_bits);
            panic!("schedule {schedule}, element {at}: {got:e} is not the CPU's {expected:e}");
        }
    }
}

pub(crate) fn bits(tensors: &[&Tensor]) -> Vec<u32> {
    tensors.iter().flat_map(|t| t.to_vec_f32()).map(f32::to_bits).collect()
}

pub(crate) fn random(ctx: &Context, seed: u64, shape: &[usize]) -> Tensor {
    Tensor::from_f32(ctx.memory(), shape, &normal(seed, shape.iter().product()))
}
