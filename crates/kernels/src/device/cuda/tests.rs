//! Shared helpers for tests of CUDA kernels, and the tests of the stream and the emulator.

use super::Cuda;
use super::emulated::Emulated;
use super::stream::CudaStream;
use super::tensor_core::{AMPERE, Family, HOPPER};
use crate::check::normal;
use crate::{Context, Device, Isa, Tensor};
use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

mod assembly;
mod compile;
mod functions;
mod invariance;
mod libcuda;
mod load;
mod planted;
mod planted_in_ops;
mod self_test;
mod stream;
pub(crate) mod tensor_core;

/// The emulator with this schedule. Without a C++ compiler, prints a line and returns `None`, or fails in CI.
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

/// The GPU that `LOCKSTEP_DEVICE` names, which must exist; the emulator if the variable is not set.
pub(crate) fn device(schedule: u32) -> Option<Cuda> {
    match Device::from_env().expect("a device") {
        gpu @ Device::Cuda(_) => {
            // CUDA creates a context when a process first opens the GPU, and destroys the context with its last user.
            // Creation takes tenths of a second, so tests keep one context alive.
            static KEPT: OnceLock<Cuda> = OnceLock::new();
            KEPT.get_or_init(|| Cuda::open(gpu).expect("the GPU"));
            Some(Cuda::open(gpu).expect("the GPU"))
        }
        _ => emulated(schedule),
    }
}

/// Devices that multiply bf16, with their families: the GPU that `LOCKSTEP_DEVICE` names, or the emulator as each
/// family. A GPU is not compared with its formula first, so that tests can report the differences.
pub(crate) fn with_tensor_cores(schedule: u32) -> Vec<(Cuda, Family)> {
    if let Device::Cuda(_) = Device::from_env().expect("a device") {
        let Some(cuda) = device(schedule) else { return Vec::new() };
        return match cuda.stream().tensor_cores(|_| Ok(())) {
            Ok(family) => vec![(cuda, family)],
            Err(why) => {
                eprintln!("skipped 1: {why}");
                Vec::new()
            }
        };
    }
    let all = [AMPERE, HOPPER].map(|family| emulated_as(schedule, family).map(|cuda| (cuda, family)));
    all.into_iter().flatten().collect()
}

/// Contexts for tests in f32: every instruction set with each of these thread counts, and the emulator.
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

/// The results of an operation: the bits of each tensor, by name.
pub(crate) type Results = Vec<(&'static str, Vec<u32>)>;

/// The [`Results`] of these tensors, named by the test's expressions.
macro_rules! results {
    ($($tensor:expr),* $(,)?) => {
        vec![$((stringify!($tensor), $tensor.to_vec_f32().into_iter().map(f32::to_bits).collect::<Vec<u32>>())),*]
    };
}
pub(crate) use results;

/// Checks that `run` gives the same bits on the CPU and on the emulator (or on the GPU that `LOCKSTEP_DEVICE` names),
/// for each of `cases`. All cases are tried; the failure message lists the cases that differ, each with its first
/// difference.
#[track_caller]
pub(crate) fn same<C: Debug>(cases: impl IntoIterator<Item = C>, run: impl Fn(&C, &Context) -> crate::Result<Results>) {
    let mut wrong = Vec::new();
    for case in cases {
        let expected = run(&case, &Context::cpu(Isa::best(), 2)).expect("the CPU");
        for schedule in 0..schedules() {
            let Some(cuda) = device(schedule) else { return };
            // Printed before the launch, so that the output shows where a test hangs.
            println!("case {case:?}, schedule {schedule}");
            let run = AssertUnwindSafe(|| run(&case, &Context::cuda(cuda.clone())));
            let fault = match std::panic::catch_unwind(run) {
                Ok(Ok(got)) => difference(&expected, &got),
                Ok(Err(error)) => Some(error.to_string()),
                // A copy from a device that has failed panics.
                Err(_) => Some(cuda.stream().check().map_or_else(|error| error.to_string(), |()| "it panicked".into())),
            };
            if let Some(fault) = fault {
                let line = format!("case {case:?}, schedule {schedule}: {fault}");
                println!("DIFFERS: {line}");
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "bits differ from the CPU's:\n{}", wrong.join("\n"));
}

/// The first element in which the results differ, and the number of such elements. All NaNs count as equal, because the
/// processor decides which NaN an operation gives.
fn difference(expected: &Results, got: &Results) -> Option<String> {
    let is_nan = |bits: u32| f32::from_bits(bits).is_nan();
    let differs = |(&a, &b): (&u32, &u32)| a != b && !(is_nan(a) && is_nan(b));
    assert_eq!(got.len(), expected.len());
    let mut first = None;
    let mut others = Vec::new();
    for (number, ((name, expected), (_, got))) in expected.iter().zip(got).enumerate() {
        assert_eq!(got.len(), expected.len(), "{name}");
        let count = expected.iter().zip(got).filter(|&pair| differs(pair)).count();
        let Some(at) = expected.iter().zip(got).position(differs) else { continue };
        if first.is_some() {
            others.push(format!("{name} (result {number}) in {count} of {}", got.len()));
            continue;
        }
        let value = |bits: u32| format!("{:e} ({bits:08x})", f32::from_bits(bits));
        first = Some(format!(
            "element {at} of {name} (result {number}) is {}, the CPU's is {}; {count} of {} elements differ",
            value(got[at]),
            value(expected[at]),
            got.len()
        ));
    }
    let others = if others.is_empty() { String::new() } else { format!("; so do {}", others.join(", ")) };
    first.map(|first| first + &others)
}

pub(crate) fn random(ctx: &Context, seed: u64, shape: &[usize]) -> Tensor {
    Tensor::from_f32(ctx.memory(), shape, &normal(seed, shape.iter().product()))
}

#[test]
fn difference_names_the_first_differing_element_and_counts_all() {
    let of = |y: &[f32], z: &[f32]| -> Results {
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect();
        vec![("y", bits(y)), ("z", bits(z))]
    };
    let other_nan = f32::from_bits(0xffc0_0001);
    let expected = of(&[1.0, 2.0, f32::NAN], &[0.0, 5.0]);
    for (got, message) in [
        (of(&[1.0, 2.0, f32::NAN], &[0.0, 5.0]), None),
        (of(&[1.0, 2.0, other_nan], &[0.0, 5.0]), None),
        (
            of(&[1.0, 3.0, 4.0], &[0.0, 5.0]),
            Some("element 1 of y (result 0) is 3e0 (40400000), the CPU's is 2e0 (40000000); 2 of 3 elements differ"),
        ),
        (
            of(&[1.0, 2.0, f32::NAN], &[-0.0, 5.0]),
            Some("element 0 of z (result 1) is -0e0 (80000000), the CPU's is 0e0 (00000000); 1 of 2 elements differ"),
        ),
        (
            of(&[0.0, 2.0, f32::NAN], &[7.0, 8.0]),
            Some(
                "element 0 of y (result 0) is 0e0 (00000000), the CPU's is 1e0 (3f800000); 1 of 3 elements differ; \
                 so do z (result 1) in 2 of 2",
            ),
        ),
        (
            of(&[f32::NAN, 2.0, f32::NAN], &[0.0, 5.0]),
            Some("element 0 of y (result 0) is NaN (7fc00000), the CPU's is 1e0 (3f800000); 1 of 3 elements differ"),
        ),
    ] {
        assert_eq!(difference(&expected, &got).as_deref(), message);
    }
}

/// Every case is tried, and the failure lists all cases that differ or fail.
#[test]
fn same_lists_all_cases_that_differ_or_fail() {
    if emulated(0).is_none() {
        return;
    }
    let on_device = |ctx: &Context| ctx.memory().device().is_cuda();
    let found = std::panic::catch_unwind(|| {
        same(["right", "wrong", "refused", "right too", "panics"], |&case, ctx| {
            let y = match (on_device(ctx), case) {
                (true, "refused") => return Err(crate::Error::Device("a driver's message".into())),
                (true, "panics") => panic!("in a case"),
                (true, "wrong") => [1.5, 2.5],
                _ => [1.5, 2.0],
            };
            let y = Tensor::from_f32(ctx.memory(), &[2], &y);
            Ok(results![y])
        });
    });
    let found = found.unwrap_err();
    let message = found.downcast_ref::<String>().unwrap();
    assert_eq!(message.lines().count() as u32, 1 + 3 * schedules(), "{message}");
    for words in ["\"wrong\", schedule 0: element 1 of y", "\"refused\", schedule 0: a driver's message", "\"panics\""]
    {
        assert!(message.contains(words), "{words}: {message}");
    }
}
