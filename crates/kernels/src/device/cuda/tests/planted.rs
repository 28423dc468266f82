//! Checks that the emulator finds bugs planted in kernels, under every schedule.

use super::emulated;
use crate::check::normal;
use crate::device::cuda::driver::Driver;
use crate::device::cuda::emulated::Emulated;
use crate::device::cuda::{Arg, Cuda, CudaStream, Grid, Source, source};
use crate::{Context, DType, Device, Tensor};
use std::sync::Arc;

const SOURCE: Source = source!("planted");
const COUNT: usize = 256;

/// 256 numbers and a kernel's results for them, or the error.
type Run = Result<(Vec<f32>, Vec<f32>), String>;

/// Runs the kernel on 256 numbers with a thread for each.
fn run(cuda: &Cuda, kernel: &'static str, more: &[Arg]) -> Run {
    by_fours(cuda, kernel, 128, more)
}

/// Runs the kernel on 256 numbers with two blocks of `threads` threads.
fn by_fours(cuda: &Cuda, kernel: &'static str, threads: u32, more: &[Arg]) -> Run {
    let ctx = Context::cuda(cuda.clone());
    let x: Vec<f32> = normal(1, COUNT);
    let input = Tensor::from_f32(ctx.memory(), &[COUNT], &x);
    let mut output = Tensor::zeros(ctx.memory(), &[COUNT], DType::F32);
    let mut args = vec![input.view().f32_at(cuda).unwrap(), output.view_mut().f32_at(cuda).unwrap()];
    args.extend_from_slice(more);
    cuda.launch(&SOURCE, kernel, Grid::each(2, threads), &args).map_err(|error| error.to_string())?;
    cuda.stream().synchronise().map_err(|error| error.to_string())?;
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
        let (x, y) = by_fours(&emulated(schedule).expect("as above"), "reverse_by_fours", 32, &[]).unwrap();
        assert!((0..COUNT).all(|i| y[i] == x[i / 128 * 128 + 127 - i % 128]));
        for (kernel, threads, expected) in [
            ("load4_unaligned", 32, "is not aligned to 16 bytes"),
            ("store4_unaligned", 32, "is not aligned to 16 bytes"),
            ("load4_of_shared_unaligned", 32, "is not aligned to 16 bytes"),
            ("load4_before_the_barrier", 64, "is not ordered after"),
            ("store4_before_others_have_read", 64, "is not ordered after"),
            ("load4_past_shared", 32, "element 127 of shared memory"),
            ("address_past_shared", 32, "of shared memory declared in line"),
            ("reuses_a_tile_too_early", 64, "is not ordered after"),
        ] {
            let found = by_fours(&emulated(schedule).expect("as above"), kernel, threads, &[]).expect_err(kernel);
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
    cuda.launch(&SOURCE, "past_the_end", Grid::each(1, 128), &args).unwrap();
    let found = cuda.stream().synchronise().unwrap_err().to_string();
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

#[test]
fn four_numbers_past_the_end_of_an_allocation_are_an_error() {
    let Some(cuda) = emulated(0) else { return };
    let found = by_fours(&cuda, "load4_past_the_end", 32, &[COUNT.into()]).unwrap_err();
    assert!(found.contains("0 bytes past the end of an allocation of 1024 bytes"), "{found}");
}

/// A row of a matrix with an odd number of columns is aligned to 4 bytes only.
#[test]
fn a_load_that_its_type_does_not_allow_is_an_error() {
    let Some(cuda) = emulated(0) else { return };
    run(&cuda, "eight_bytes_of_four", &[2usize.into()]).unwrap();
    let found = run(&cuda, "eight_bytes_of_four", &[3usize.into()]).unwrap_err();
    assert!(found.contains("not aligned to its type"), "{found}");
}

#[test]
fn grids_that_cuda_refuses_are_errors() {
    let Some(cuda) = emulated(0) else { return };
    for (blocks, threads) in
        [([1, 65_536, 1], 32), ([1, 1, 65_536], 32), ([1 << 31, 1, 1], 32), ([1; 3], 48), ([1; 3], 2048)]
    {
        let found = cuda.launch(&SOURCE, "adds", Grid { blocks, threads }, &[]).unwrap_err().to_string();
        assert!(found.contains("CUDA allows 2147483647 x 65535 x 65535 blocks"), "{found}");
    }
    assert!(Grid { blocks: [i32::MAX as u32, 65_535, 65_535], threads: 1024 }.check().is_ok());
}

/// The stream runs late: it reads a buffer of the host when the host waits, and writes one then.
#[test]
fn a_buffer_that_the_host_uses_before_it_waits_has_wrong_contents() {
    let Some(_) = emulated(0) else { return };
    let driver = Emulated::open().unwrap();
    let [from, to] = [(); 2].map(|()| driver.pinned(512).unwrap().cast::<f32>());
    let [x, y] = [(); 2].map(|()| driver.allocate(512).unwrap().unwrap());
    let adds = driver.function(&SOURCE, "adds").unwrap();
    // SAFETY: the buffers have 128 numbers each, and only this thread uses them; the kernel's arguments are right.
    unsafe {
        let [from, to] = [from, to].map(|at| std::slice::from_raw_parts_mut(at, 128));
        from.fill(1.0);
        to.fill(7.0);
        driver.fill(y, 0, 4, 128).unwrap();
        driver.to_device(x, from.as_ptr().cast(), 512).unwrap();
        driver.launch(adds, Grid::each(1, 128), &[Arg::Pointer(x.0), Arg::Pointer(y.0)]).unwrap();
        // The bug: the host fills the buffer again after a launch, without a wait.
        from.fill(2.0);
        driver.to_host(y, to.as_mut_ptr().cast(), 512).unwrap();
        assert!(to.iter().all(|&got| got == 7.0), "the copy has not executed yet");
        driver.synchronise().unwrap();
        assert!(to.iter().all(|&got| got == 2.0));
    }
}

#[test]
fn memory_that_was_freed_before_a_launch_is_not_mapped() {
    let Some(cuda) = emulated(0) else { return };
    let freed = cuda.stream().scratch(1024).unwrap().at(0);
    let kept = cuda.stream().scratch(1024).unwrap();
    cuda.launch(&SOURCE, "reverse", Grid::each(2, 128), &[freed, kept.at(0)]).unwrap();
    let found = cuda.stream().synchronise().unwrap_err().to_string();
    assert!(found.contains("touched memory outside an allocation"), "{found}");
}
