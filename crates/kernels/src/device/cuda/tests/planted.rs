//! Checks that the emulator finds bugs planted in kernels, under every schedule.

use super::emulated;
use crate::check::normal;
use crate::device::cuda::emulated::Emulated;
use crate::device::cuda::{Arg, Cuda, CudaStream, Grid, Source, source};
use crate::{Context, DType, Device, Tensor};
use std::sync::Arc;

const SOURCE: Source = source!("planted");
const COUNT: usize = 256;

/// Runs the kernel on 256 numbers. Returns these numbers and the kernel's results, or the error.
fn run(cuda: &Cuda, kernel: &'static str, more: &[Arg]) -> Result<(Vec<f32>, Vec<f32>), String> {
    let ctx = Context::cuda(cuda.clone());
    let x: Vec<f32> = normal(1, COUNT);
    let input = Tensor::from_f32(ctx.memory(), &[COUNT], &x);
    let mut output = Tensor::zeros(ctx.memory(), &[COUNT], DType::F32);
    let mut args = vec![input.view().f32_at(cuda).unwrap(), output.view_mut().f32_at(cuda).unwrap()];
    args.extend_from_slice(more);
    cuda.launch(&SOURCE, kernel, Grid::each(2, 128), &args).map_err(|error| error.to_string())?;
    let output = output.to_vec_f32();
    ctx.memory().check().map_err(|error| error.to_string())?;
    Ok((x, output))
}

#[test]
fn the_emulator_finds_planted_bugs_under_every_schedule() {
    for schedule in 0..5 {
        let Some(_) = emulated(schedule) else { return };
        let of = |kernel, more: &[Arg]| run(&emulated(schedule).expect("as above"), kernel, more);
        let (x, y) = of("reverse", &[]).unwrap();
        assert!((0..COUNT).all(|i| y[i] == x[i / 128 * 128 + 127 - i % 128]));
        let (x, y) = of("orders_a_warp", &[]).unwrap();
        assert!((0..COUNT).all(|i| y[i] == x[i ^ 1]));
        for (kernel, expected) in [
            ("reads_before_the_barrier", "is not ordered after"),
            ("writes_before_others_have_read", "is not ordered after"),
            ("leaves_a_warp_unordered", "is not ordered after"),
            ("orders_a_warp_alone", "is not ordered after"),
            ("barrier_for_one_lane", "waits "),
            ("two_barriers_for_one", "others at that of line"),
            ("shuffle_of_some", "waits for ever in line"),
            ("past_shared", "element 127 of shared memory"),
        ] {
            let found = of(kernel, &[]).expect_err(kernel);
            assert!(found.contains(expected) && found.contains(kernel), "{kernel}, schedule {schedule}: {found}");
        }
        // Memory that was never written contains NaN.
        let (_, y) = of("never_written", &[]).unwrap();
        assert_eq!(y.iter().filter(|y| y.is_nan()).count(), 2);
    }
}

#[test]
fn an_access_past_the_end_of_an_allocation_is_an_error() {
    let Some(cuda) = emulated(0) else { return };
    let ctx = Context::cuda(cuda.clone());
    let tensor = || Tensor::zeros(ctx.memory(), &[100], DType::F32);
    let (x, mut y) = (tensor(), tensor());
    let args = [x.view().f32_at(&cuda).unwrap(), y.view_mut().f32_at(&cuda).unwrap(), 100usize.into()];
    let found = cuda.launch(&SOURCE, "past_the_end", Grid::each(1, 128), &args).unwrap_err().to_string();
    assert!(found.contains("0 bytes past the end of an allocation of 400 bytes"), "{found}");
}

#[test]
fn a_write_before_an_allocation_is_detected_when_it_is_freed() {
    let Some(cuda) = emulated(0) else { return };
    run(&cuda, "before_the_start", &[COUNT.into()]).expect("the error must be reported when the memory is freed");
    let ctx = Context::cuda(cuda);
    // A copy waits for the device, so it reports the error.
    let x = Tensor::zeros(ctx.memory(), &[1], DType::F32);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| x.to_vec_f32()));
    assert!(panic.is_err());
    let found = ctx.memory().check().unwrap_err().to_string();
    assert!(found.contains("wrote outside an allocation of 1024 bytes"), "{found}");
}

#[test]
fn a_kernel_that_does_not_end_is_stopped() {
    if emulated(0).is_none() {
        return;
    }
    let mut driver = Emulated::open().unwrap();
    driver.seconds = 1;
    let cuda = Cuda { stream: Arc::new(CudaStream::new(Device::CudaEmulated, Box::new(driver)).unwrap()) };
    let found = run(&cuda, "for_ever", &[]).unwrap_err();
    assert!(found.contains("did not end in time"), "{found}");
}

#[test]
fn kernel_arguments_of_wrong_types_are_refused() {
    let Some(cuda) = emulated(0) else { return };
    let found = run(&cuda, "past_the_end", &[Arg::U32(3)]).unwrap_err();
    assert!(found.contains("a kernel with the parameters ppl was called with ppu"), "{found}");
}
