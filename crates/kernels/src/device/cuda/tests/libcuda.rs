//! Tests the calls to NVIDIA's driver with a fake driver library, which needs no GPU.

use crate::device::cuda::libcuda::{Functions, open_with};
use crate::device::cuda::nvrtc::Nvrtc;
use crate::device::cuda::sources::shipped_name;
use crate::device::cuda::{Arg, Cuda, CudaStream, Grid, Source};
use crate::{Context, DType, Device, DeviceMemory, Tensor};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles the fake library; without a compiler, prints a line and returns `None`.
fn library() -> Option<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("lockstep-fake-cuda-{}-{count}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/device/cuda/tests/fake_cuda.cpp");
    let run = Command::new("c++").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(source).status();
    match run {
        Ok(status) => assert!(status.success()),
        Err(why) => {
            eprintln!("skipped 1: c++: {why}");
            return None;
        }
    }
    Some(path)
}

#[test]
fn memory_copies_and_launches_call_the_driver_correctly() {
    let Some(path) = library() else { return };
    let name = path.to_string_lossy().into_owned();
    let cuda: &'static Functions = Box::leak(Box::new(Functions::open(&name).unwrap()));
    let nvrtc: &'static Nvrtc = Box::leak(Box::new(Nvrtc::open(std::slice::from_ref(&name)).unwrap()));
    // SAFETY: the library is already loaded, and the function has no arguments.
    let live = || unsafe {
        let library = libloading::Library::new(&path).unwrap();
        library.get::<unsafe extern "C" fn() -> i32>(b"fake_live\0").unwrap()()
    };
    let refused = |number| open_with(cuda, Ok(nvrtc), Vec::new(), number).err().unwrap();
    assert_eq!(refused(2), "there are 2 devices: cuda and cuda:1");
    assert!(refused(0).starts_with("cuDeviceGetAttribute: unknown"), "{}", refused(0));
    {
        let open = || {
            let stream = CudaStream::new(Device::Cuda(1), open_with(cuda, Ok(nvrtc), Vec::new(), 1).unwrap()).unwrap();
            Cuda { stream: Arc::new(stream) }
        };
        let cuda = open();
        let ctx = Context::cuda(cuda.clone());
        assert_eq!((ctx.describe(), ctx.arithmetic(DType::F32)), ("cuda:1", "f32"));
        let mut x = Tensor::zeros(ctx.memory(), &[7], DType::F32);
        assert_eq!(x.to_vec_f32(), [0.0; 7]);
        x.rows_mut(2..4).copy_from_f32(&[1.5, 2.5]);
        x.rows_mut(5..7).fill(3.0);
        assert_eq!(x.to_vec_f32(), [0.0, 0.0, 1.5, 2.5, 0.0, 3.0, 3.0]);
        // The name contains the PID, so that another test run does not find these kernels in the cache.
        let name: &'static str = Box::leak(format!("fake{}", std::process::id()).into());
        let source = Source { name, text: "" };
        let args = |scale: f32| [x.view().f32_at(&cuda).unwrap(), Arg::F32(scale), Arg::U32(9)];
        let grid = Grid { blocks: [3, 4, 5], threads: 64 };
        cuda.launch(&source, "there", grid, &args(0.5)).unwrap();
        assert_eq!(x.to_vec_f32(), [3.0, 4.0, 5.0, 64.0, 1.0, 0.5, 9.0]);
        let (first, second) = (ctx.record_event().unwrap().unwrap(), ctx.record_event().unwrap().unwrap());
        assert_eq!(second.seconds_since(&first).unwrap(), 0.5);
        let expected = DeviceMemory { total_and_free: Some([4 << 30, 3 << 30]), peak: 12345 };
        assert_eq!(ctx.device_memory().unwrap(), Some(expected));
        drop((first, second));
        let missing = cuda.launch(&source, "elsewhere", grid, &args(0.5)).unwrap_err().to_string();
        assert!(missing.starts_with(&format!("cuda:1: kernel elsewhere of {name}.cu: unknown")), "{missing}");
        let broken = Source { name: "refused", text: "broken" };
        let message = cuda.launch(&broken, "there", grid, &args(0.5)).unwrap_err().to_string();
        assert_eq!(message, "cuda:1: NVRTC 12.9 failed to compile refused.cu:\na line of a log");
        // Every later operation returns the same error.
        let failed = format!(
            "cuda:1: kernel there of {name}.cu: cuLaunchKernel: an illegal memory access (CUDA_ERROR_ILLEGAL_ADDRESS)"
        );
        assert_eq!(cuda.launch(&source, "there", grid, &args(-1.0)).unwrap_err().to_string(), failed);
        assert_eq!(cuda.launch(&source, "there", grid, &args(0.5)).unwrap_err().to_string(), failed);
        assert_eq!(ctx.memory().check().unwrap_err().to_string(), failed);
        let later = open();
        let ctx = Context::cuda(later.clone());
        let y = Tensor::zeros(ctx.memory(), &[7], DType::F32);
        let args = [y.view().f32_at(&later).unwrap(), Arg::F32(0.25), Arg::U32(9)];
        later.launch(&source, "there", grid, &args).unwrap();
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| y.to_vec_f32()));
        assert!(read.is_err(), "a copy after a fault");
        let found = ctx.memory().check().unwrap_err().to_string();
        let (fault, advice) = ("cuda:1: cuStreamSynchronize: an illegal memory access", "CUDA_LAUNCH_BLOCKING=1");
        assert!(found.starts_with(fault) && found.contains(advice), "{found}");
        assert!(found.contains(&format!("the last launch was kernel there of {name}.cu")), "{found}");
        drop(y);
        let other = Context::cuda(open());
        let _refused = Tensor::zeros(&other.memory().part("kv cache"), &[1 << 40], DType::F32);
        assert!(other.memory().check().unwrap_err().to_string().starts_with("out of memory: kv cache"));
    }
    assert_eq!(live(), 0, "all resources must be freed");
    std::fs::remove_file(&path).unwrap();
}

/// Kernels that were compiled ahead of time need no compiler. Other kernels do, and without a compiler the error names
/// the paths that were tried.
#[test]
fn shipped_kernels_need_no_compiler() {
    let Some(path) = library() else { return };
    let cuda: &'static Functions = Box::leak(Box::new(Functions::open(&path.to_string_lossy()).unwrap()));
    let place = std::env::temp_dir().join(format!("lockstep-cubins-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let driver = open_with(cuda, Err("no compiler".into()), vec![place.clone()], 1).unwrap();
    let sources = ["shipped", "older", "missing"].map(|name| Source { name, text: "" });
    for (source, arch, content) in [(&sources[0], "86", "cubin of sm_86"), (&sources[1], "80", "cubin of sm_80")] {
        std::fs::write(place.join(shipped_name(source, &Nvrtc::options(arch))), content).unwrap();
    }
    assert!(driver.function(&sources[0], "there").is_ok());
    // The file for sm_80 is found, and rejected by the fake library, which accepts only sm_86.
    let older = driver.function(&sources[1], "there").unwrap_err();
    assert!(older.starts_with("cuModuleLoadData of ") && older.contains("/older-"), "{older}");
    let missing = driver.function(&sources[2], "there").unwrap_err();
    assert_eq!(
        missing,
        format!("{} has no kernels compiled from this version's missing.cu for sm_86; no compiler", place.display())
    );
    // Kernels compiled from another text are not used.
    let changed = Source { text: "x", ..sources[0] };
    assert!(driver.function(&Source { name: "shipped_too", ..changed }, "there").is_err());
    assert_ne!(shipped_name(&changed, &[]), shipped_name(&sources[0], &[]));
    drop(driver);
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::remove_file(&path).unwrap();
}

/// The fake library refuses calls on another stream, so the tests above fail if one of Lockstep's calls uses the
/// default stream, which does not wait for Lockstep's stream.
#[test]
fn the_fake_library_refuses_the_default_stream() {
    let Some(path) = library() else { return };
    // SAFETY: the library is compiled from `fake_cuda.cpp`, and the function has no arguments.
    let accepted = unsafe {
        let library = libloading::Library::new(&path).unwrap();
        library.get::<unsafe extern "C" fn() -> i32>(b"fake_accepts_the_default_stream\0").unwrap()()
    };
    assert_eq!(accepted, 0);
    std::fs::remove_file(&path).unwrap();
}
