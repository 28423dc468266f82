//! Tests of a stream's memory, copies and failures.

use super::emulated;
use crate::device::cuda::emulated::Emulated;
use crate::device::cuda::{Cuda, CudaStream, Grid, Source, source};
use crate::memory::Copies;
use crate::{Context, DType, Device, DeviceMemory, Memory, Tensor};
use std::sync::Arc;

#[test]
fn stream_memory_is_zeroed_copied_filled_and_counted() {
    let Some(cuda) = emulated(0) else { return };
    let ctx = Context::cuda(cuda);
    let memory = ctx.memory().part("weights");
    let mut x = Tensor::zeros(&memory, &[3, 5], DType::F32);
    assert_eq!((x.to_vec_f32(), x.device()), (vec![0.0; 15], Device::CudaEmulated));
    assert_eq!(memory.usage()["weights"].bytes, 60);
    x.rows_mut(1..2).copy_from_f32(&[1.0, 2.0, 3.0, 4.0, 5.0]);
    x.rows_mut(2..3).fill(7.0);
    assert_eq!(x.to_vec_f32(), [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 7.0, 7.0, 7.0, 7.0]);
    let before = memory.copies();
    let mut half = Tensor::zeros(&memory, &[3], DType::Bf16);
    half.view_mut().fill(1.5);
    half.rows_mut(1..2).copy_from_f32(&[-2.0]);
    assert_eq!(half.to_vec_f32(), [1.5, -2.0, 1.5]);
    let expected = Copies { to_device: 1, to_device_bytes: 2, to_host: 1, to_host_bytes: 6, launches: 0, waits: 1 };
    assert_eq!(memory.copies() - before, expected);
    memory.check().unwrap();
    drop((x, half));
    assert_eq!(memory.usage()["weights"].bytes, 0);
}

/// Copies more bytes than the staging memory holds, in one copy and in many copies for which the host does not wait.
#[test]
fn copies_larger_than_the_staging_memory_arrive_whole() {
    let Some(cuda) = emulated(0) else { return };
    let ctx = Context::cuda(cuda);
    let data: Vec<f32> = (0..1_500_000).map(|i| i as f32).collect();
    assert!(Tensor::from_f32(ctx.memory(), &[data.len()], &data).to_vec_f32() == data);
    let mut many = Tensor::zeros(ctx.memory(), &[30, 50_000], DType::F32);
    let before = ctx.memory().copies().waits;
    for (row, data) in data.chunks(50_000).enumerate() {
        many.rows_mut(row..row + 1).copy_from_f32(data);
    }
    assert_eq!(ctx.memory().copies().waits - before, 1, "6 MB go through 4 MB of staging memory");
    assert!(many.to_vec_f32() == data);
}

#[test]
fn indices_have_a_host_copy_until_a_kernel_writes_them() {
    let Some(cuda) = emulated(0) else { return };
    let ctx = Context::cuda(cuda.clone());
    let mut ids = Tensor::from_u32(ctx.memory(), &[4], &[1, 2, 3, 4]);
    let before = ctx.memory().copies();
    assert_eq!(ids.rows(1..3).indices(), [2, 3]);
    assert_eq!(ctx.memory().copies(), before);
    ids.view_mut().u32_at(&cuda);
    let stale = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ids.view().indices().to_vec()));
    assert!(stale.is_err(), "reading indices that a kernel wrote must panic");
    assert_eq!(ids.view().to_vec_u32(), [1, 2, 3, 4]);
}

#[test]
fn a_failed_allocation_is_an_error_that_names_the_part() {
    let Some(cuda) = emulated(0) else { return };
    let memory = Context::cuda(cuda).memory().part("kv cache");
    let _refused = Tensor::zeros(&memory, &[1 << 58], DType::F32);
    let message = memory.check().unwrap_err().to_string();
    assert_eq!(message, format!("out of memory: kv cache: cannot allocate {} bytes", 1u64 << 60));
    memory.check().unwrap();
    let alone = Memory::new(Device::CudaEmulated);
    let _refused = Tensor::zeros(&alone, &[1], DType::F32);
    assert_eq!(alone.check().unwrap_err().to_string(), "memory of cuda-emulated must be allocated through its context");
}

#[test]
fn peak_memory_is_counted_and_the_memory_limit_is_enforced() {
    let Ok(mut driver) = Emulated::open() else { return };
    driver.memory_limit = Some([10_000, 4_000]);
    let ctx =
        Context::cuda(Cuda { stream: Arc::new(CudaStream::new(Device::CudaEmulated, Box::new(driver)).unwrap()) });
    let memory = ctx.memory().part("activations");
    let first = Tensor::zeros(&memory, &[500], DType::F32);
    drop(Tensor::zeros(&memory, &[750], DType::F32));
    let of = |ctx: &Context| ctx.device_memory().unwrap().unwrap();
    let expected = DeviceMemory { total_and_free: Some([10_000, 8_000]), peak: 5_000 };
    assert_eq!(of(&ctx), expected);
    // The free memory was queried before another user took 4,000 bytes of it.
    let _refused = Tensor::zeros(&memory, &[1_001], DType::F32);
    assert_eq!(memory.check().unwrap_err().to_string(), "out of memory: activations: cannot allocate 4004 bytes");
    drop(first);
    let _held = Tensor::zeros(&memory, &[1_500], DType::F32);
    memory.check().unwrap();
    assert_eq!(of(&ctx).peak, 6_000);
}

#[test]
fn events_are_ordered_in_time_and_freed() {
    let Some(cuda) = emulated(0) else { return };
    let ctx = Context::cuda(cuda.clone());
    let mark = || ctx.record_event().unwrap().unwrap();
    let first = mark();
    // The emulator's stream runs late, so an event occurs when the host waits.
    cuda.stream().synchronise().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    let second = mark();
    assert!(second.seconds_since(&first).unwrap() >= 0.005);
    assert!(Context::cpu(crate::Isa::best(), 1).record_event().unwrap().is_none());
}

#[test]
fn memory_of_another_cuda_stream_is_refused() {
    let (Some(cuda), Some(other)) = (emulated(0), emulated(0)) else { return };
    let x = Tensor::zeros(Context::cuda(cuda).memory(), &[1], DType::F32);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| x.view().f32_at(&other).is_ok())).is_err());
}

#[test]
fn kernels_that_are_missing_or_do_not_compile_are_errors() {
    let Some(cuda) = emulated(0) else { return };
    const MISSING: Source = source!("planted");
    let refused = |cuda: &Cuda, source, kernel| {
        let error = cuda.launch(source, kernel, Grid::over(1), &[]).unwrap_err();
        assert!(matches!(error, crate::Error::Device(_)));
        error.to_string()
    };
    assert_eq!(refused(&cuda, &MISSING, "nowhere"), "cuda-emulated: planted.cu has no kernel nowhere");
    const BROKEN: Source = Source { name: "broken", text: "KERNEL(broken, 32) { int x = }" };
    let message = refused(&cuda, &BROKEN, "broken");
    assert!(message.contains("failed to compile broken.cu") && message.contains("broken.cu:1:"), "{message}");
}
