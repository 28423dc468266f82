//! An NVIDIA GPU, through NVIDIA's driver library (libcuda). This code has not run on a GPU yet (docs/cuda.md): the
//! tests use a fake library, which has the driver's functions but computes nothing.

use super::driver::{Address, Arg, Driver, Event, Function, Grid, Outcome};
use super::library::{functions, open};
use super::nvrtc::Nvrtc;
use super::sources::{self, Source, cached};
use super::tensor_core::Family;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

type Handle = *mut c_void;

functions! {
    /// The driver's functions as cuda.h declares them. Names with a version suffix are those to which cuda.h's macros
    /// expand.
    Functions {
        init = "cuInit"(c_uint);
        device_count = "cuDeviceGetCount"(*mut c_int);
        device = "cuDeviceGet"(*mut c_int, c_int);
        attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
        device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
        driver_version = "cuDriverGetVersion"(*mut c_int);
        memory = "cuMemGetInfo_v2"(*mut usize, *mut usize);
        retain_context = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
        release_context = "cuDevicePrimaryCtxRelease_v2"(c_int);
        set_context = "cuCtxSetCurrent"(Handle);
        pool = "cuDeviceGetDefaultMemPool"(*mut Handle, c_int);
        set_pool = "cuMemPoolSetAttribute"(Handle, c_int, *mut c_void);
        pool_attribute = "cuMemPoolGetAttribute"(Handle, c_int, *mut c_void);
        create_event = "cuEventCreate"(*mut Handle, c_uint);
        record_event = "cuEventRecord"(Handle, Handle);
        await_event = "cuEventSynchronize"(Handle);
        between_events = "cuEventElapsedTime"(*mut f32, Handle, Handle);
        destroy_event = "cuEventDestroy_v2"(Handle);
        create_stream = "cuStreamCreate"(*mut Handle, c_uint);
        destroy_stream = "cuStreamDestroy_v2"(Handle);
        synchronise = "cuStreamSynchronize"(Handle);
        allocate = "cuMemAllocAsync"(*mut u64, usize, Handle);
        free = "cuMemFreeAsync"(u64, Handle);
        allocate_host = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
        free_host = "cuMemFreeHost"(*mut c_void);
        to_device = "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle);
        to_host = "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle);
        fill16 = "cuMemsetD16Async"(u64, u16, usize, Handle);
        fill32 = "cuMemsetD32Async"(u64, c_uint, usize, Handle);
        load = "cuModuleLoadData"(*mut Handle, *const c_void);
        unload = "cuModuleUnload"(Handle);
        function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
        launch = "cuLaunchKernel"(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void,
        );
        error_name = "cuGetErrorName"(c_int, *mut *const c_char);
        error_text = "cuGetErrorString"(c_int, *mut *const c_char);
    }
}

/// cuda.h's `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// cuda.h's `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
pub(super) const CAPABILITY: [c_int; 2] = [75, 76];
/// cuda.h's `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`.
const MEMORY_POOLS: c_int = 115;
/// cuda.h's `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: c_int = 4;
/// cuda.h's `CU_MEMPOOL_ATTR_USED_MEM_HIGH`.
const USED_MOST: c_int = 8;
/// cuda.h's `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

impl Functions {
    /// The driver library, opened once per process.
    pub(super) fn get() -> Outcome<&'static Functions> {
        static FOUND: OnceLock<Outcome<Functions>> = OnceLock::new();
        let found: &Outcome<Functions> = FOUND.get_or_init(|| Functions::open(&Functions::path()));
        found.as_ref().map_err(|why| format!("NVIDIA's driver cannot be used: {why}; check that it is installed"))
    }

    /// The path at which the driver library is expected.
    pub(super) fn path() -> String {
        let given = std::env::var("LOCKSTEP_LIBCUDA").ok().filter(|path| !path.is_empty());
        given.unwrap_or_else(|| "libcuda.so.1".into())
    }

    pub(super) fn open(path: &str) -> Outcome<Functions> {
        let functions = Functions::of(open(&[path.into()])?)?;
        // SAFETY: `cuInit` defines no flags, so its argument is 0.
        functions.check("cuInit", unsafe { (functions.init)(0) })?;
        Ok(functions)
    }

    /// Turns an error code of the driver into a message.
    pub(super) fn check(&self, what: &str, code: c_int) -> Outcome<()> {
        if code == 0 {
            return Ok(());
        }
        let text = |get: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut at = std::ptr::null();
            // SAFETY: the pointer is valid for writes. The driver returns a null-terminated string of its own, or null.
            unsafe {
                get(code, &mut at);
                if at.is_null() { "unknown".into() } else { CStr::from_ptr(at).to_string_lossy() }
            }
        };
        Err(format!("{what}: {} ({})", text(self.error_text), text(self.error_name)))
    }
}

/// A GPU, its primary context and one stream.
pub(super) struct LibCuda {
    cuda: &'static Functions,
    /// The compiler. It is not needed for kernels that were compiled ahead of time.
    nvrtc: Outcome<&'static Nvrtc>,
    /// Directories with kernels that were compiled ahead of time.
    shipped: Vec<PathBuf>,
    device: c_int,
    context: Handle,
    stream: Handle,
    pool: Handle,
    capability: (c_int, c_int),
    /// The GPU's compute capability as compilers spell it, such as "90".
    arch: String,
    modules: Mutex<HashMap<&'static str, Handle>>,
    /// Kernels and their sources by the driver's handle, for error messages.
    names: Mutex<HashMap<usize, String>>,
    /// Handle of the kernel that was launched last.
    launched: AtomicUsize,
    pinned: Mutex<Vec<*mut c_void>>,
}

// SAFETY: the driver's handles may be used from any thread whose current context is theirs, and each call sets this
// context.
unsafe impl Send for LibCuda {}
// SAFETY: each call sets the context of its thread, mutable state is behind locks, and the driver is thread-safe.
unsafe impl Sync for LibCuda {}

/// Opens the GPU with this index.
pub(super) fn open_device(number: u8) -> Outcome<Box<dyn Driver>> {
    let functions = Functions::get()?;
    let (nvrtc, shipped) = (Nvrtc::get(), sources::shipped());
    // If a machine has the driver but no compiler, this must be reported before a model is loaded.
    if shipped.is_empty() {
        nvrtc.clone()?;
    }
    open_with(functions, nvrtc, shipped, number)
}

pub(super) fn open_with(
    cuda: &'static Functions,
    nvrtc: Outcome<&'static Nvrtc>,
    shipped: Vec<PathBuf>,
    number: u8,
) -> Outcome<Box<dyn Driver>> {
    let mut count = 0;
    // SAFETY: the pointer is valid for writes.
    cuda.check("cuDeviceGetCount", unsafe { (cuda.device_count)(&mut count) })?;
    if c_int::from(number) >= count {
        return Err(match count {
            0 => "this machine has no CUDA device".into(),
            1 => "there is one device: cuda".into(),
            2 => "there are 2 devices: cuda and cuda:1".into(),
            _ => format!("there are {count} devices: cuda to cuda:{}", count - 1),
        });
    }
    let mut driver = LibCuda {
        cuda,
        nvrtc,
        shipped,
        device: 0,
        context: null_mut(),
        stream: null_mut(),
        capability: (0, 0),
        pool: null_mut(),
        arch: String::new(),
        modules: Mutex::default(),
        names: Mutex::default(),
        launched: AtomicUsize::new(0),
        pinned: Mutex::default(),
    };
    // SAFETY: the pointers are valid for writes, and the device exists.
    unsafe {
        cuda.check("cuDeviceGet", (cuda.device)(&mut driver.device, c_int::from(number)))?;
        let [major, minor, pools] = [CAPABILITY[0], CAPABILITY[1], MEMORY_POOLS].map(|attribute| {
            let mut value = 0;
            let code = (cuda.attribute)(&mut value, attribute, driver.device);
            cuda.check("cuDeviceGetAttribute", code).map(|()| value)
        });
        let (major, minor) = (major?, minor?);
        if major < 7 || pools? == 0 {
            return Err(format!(
                "compute capability {major}.{minor}: expected at least 7.0, and a driver for at least CUDA 11.2"
            ));
        }
        driver.capability = (major, minor);
        driver.arch = format!("{major}{minor}");
        cuda.check("cuDevicePrimaryCtxRetain", (cuda.retain_context)(&mut driver.context, driver.device))?;
        driver.enter()?;
        cuda.check("cuStreamCreate", (cuda.create_stream)(&mut driver.stream, NON_BLOCKING))?;
        cuda.check("cuDeviceGetDefaultMemPool", (cuda.pool)(&mut driver.pool, driver.device))?;
        // Freed memory stays in the pool for later allocations.
        let mut keep = u64::MAX;
        let set = (cuda.set_pool)(driver.pool, RELEASE_THRESHOLD, std::ptr::from_mut(&mut keep).cast());
        cuda.check("cuMemPoolSetAttribute", set)?;
    }
    Ok(Box::new(driver))
}

impl LibCuda {
    /// Makes the GPU's context current on the calling thread.
    fn enter(&self) -> Outcome<()> {
        // SAFETY: the context is retained.
        self.cuda.check("cuCtxSetCurrent", unsafe { (self.cuda.set_context)(self.context) })
    }

    /// The file with a source's kernels compiled ahead of time, for this architecture or an older one with the same
    /// major version.
    fn shipped(&self, source: &Source) -> Option<PathBuf> {
        let (major, minor) = self.capability;
        let names = (0..=minor).rev().map(|minor| {
            let options = Nvrtc::options(&format!("{major}{minor}"));
            sources::shipped_name(source, &options)
        });
        let names: Vec<String> = names.collect();
        let files = self.shipped.iter().flat_map(|directory| names.iter().map(|name| directory.join(name)));
        files.into_iter().find(|file| file.is_file())
    }

    /// The file of a source's kernels compiled by NVRTC, now or in an earlier process.
    fn compiled(&self, source: &Source) -> Outcome<PathBuf> {
        let nvrtc = self.nvrtc.clone().map_err(|why| match self.shipped.first() {
            Some(place) => {
                format!(
                    "{} has no kernels compiled from this version's {}.cu for sm_{}; {why}",
                    place.display(),
                    source.name,
                    self.arch
                )
            }
            None => why,
        })?;
        let (version, text) = (format!("{:?}", nvrtc.version), source.complete(""));
        let inputs = [version.as_str(), &Nvrtc::options(&self.arch).join(" "), &text];
        cached(source.name, "cubin", &inputs, |to| {
            let cubin = nvrtc.compile(source, &self.arch)?.cubin;
            std::fs::write(to, cubin).map_err(|e| format!("{} cannot be written: {e}", to.display()))
        })
    }

    fn name(&self, function: usize) -> String {
        let names = self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        names.get(&function).map_or_else(|| "none".to_owned(), String::clone)
    }

    fn module(&self, source: &Source) -> Outcome<Handle> {
        let mut modules = self.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(&module) = modules.get(source.name) {
            return Ok(module);
        }
        let path = match self.shipped(source) {
            Some(path) => path,
            None => self.compiled(source)?,
        };
        let cubin = std::fs::read(&path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
        let mut module = null_mut();
        // SAFETY: the binary is complete and contains its own length.
        let code = unsafe { (self.cuda.load)(&mut module, cubin.as_ptr().cast()) };
        self.cuda.check(&format!("cuModuleLoadData of {}", path.display()), code)?;
        modules.insert(source.name, module);
        Ok(module)
    }
}

impl Driver for LibCuda {
    fn tensor_cores(&self) -> Option<Family> {
        Family::of(self.capability.0, self.capability.1)
    }

    fn allocate(&self, bytes: usize) -> Outcome<Option<Address>> {
        self.enter()?;
        let mut at = 0;
        // SAFETY: the pointer is valid for writes, and the stream is our own.
        match unsafe { (self.cuda.allocate)(&mut at, bytes, self.stream) } {
            OUT_OF_MEMORY => Ok(None),
            code => self.cuda.check("cuMemAllocAsync", code).map(|()| Some(Address(at))),
        }
    }

    fn free(&self, at: Address) {
        // If `enter` fails, an earlier call has already reported the error.
        if self.enter().is_ok() {
            // SAFETY: the memory was allocated by `allocate`, and is freed once, after all work that uses it.
            unsafe { (self.cuda.free)(at.0, self.stream) };
        }
    }

    fn pinned(&self, bytes: usize) -> Outcome<*mut u8> {
        self.enter()?;
        let mut at = null_mut();
        // SAFETY: the pointer is valid for writes, and 0 means no flags.
        self.cuda.check("cuMemHostAlloc", unsafe { (self.cuda.allocate_host)(&mut at, bytes, 0) })?;
        self.pinned.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(at);
        Ok(at.cast())
    }

    unsafe fn to_device(&self, to: Address, from: *const u8, bytes: usize) -> Outcome<()> {
        self.enter()?;
        // SAFETY: the caller upholds this function's safety contract.
        let code = unsafe { (self.cuda.to_device)(to.0, from.cast(), bytes, self.stream) };
        self.cuda.check("cuMemcpyHtoDAsync", code)
    }

    unsafe fn to_host(&self, from: Address, to: *mut u8, bytes: usize) -> Outcome<()> {
        self.enter()?;
        // SAFETY: the caller upholds this function's safety contract.
        let code = unsafe { (self.cuda.to_host)(to.cast(), from.0, bytes, self.stream) };
        self.cuda.check("cuMemcpyDtoHAsync", code)
    }

    unsafe fn fill(&self, at: Address, word: u32, width: usize, count: usize) -> Outcome<()> {
        self.enter()?;
        // SAFETY: the caller upholds this function's safety contract.
        let code = unsafe {
            match width {
                2 => (self.cuda.fill16)(at.0, word as u16, count, self.stream),
                _ => (self.cuda.fill32)(at.0, word, count, self.stream),
            }
        };
        self.cuda.check("cuMemsetAsync", code)
    }

    fn function(&self, source: &Source, kernel: &'static str) -> Outcome<Function> {
        self.enter()?;
        let (module, name) = (self.module(source)?, CString::new(kernel).map_err(|e| e.to_string())?);
        let mut function = null_mut();
        // SAFETY: the module is loaded, and the string is null-terminated.
        let code = unsafe { (self.cuda.function)(&mut function, module, name.as_ptr()) };
        let name = format!("kernel {kernel} of {}.cu", source.name);
        self.cuda.check(&name, code)?;
        self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(function as usize, name);
        Ok(Function(function as usize))
    }

    unsafe fn launch(&self, function: Function, grid: Grid, args: &[Arg]) -> Outcome<()> {
        self.enter()?;
        let mut bits: Vec<u64> = args.iter().map(|arg| arg.bits()).collect();
        let mut arguments: Vec<*mut c_void> = bits.iter_mut().map(|bits| std::ptr::from_mut(bits).cast()).collect();
        let [x, y, z] = grid.blocks;
        self.launched.store(function.0, Ordering::Relaxed);
        let (name, function, arguments) = (function.0, function.0 as Handle, arguments.as_mut_ptr());
        // SAFETY: the caller upholds this function's safety contract, and the driver copies the arguments before it
        // returns.
        let code =
            unsafe { (self.cuda.launch)(function, x, y, z, grid.threads, 1, 1, 0, self.stream, arguments, null_mut()) };
        self.cuda.check("cuLaunchKernel", code).map_err(|why| format!("{}: {why}", self.name(name)))
    }

    fn synchronise(&self) -> Outcome<()> {
        self.enter()?;
        // SAFETY: the stream is our own.
        let waited = self.cuda.check("cuStreamSynchronize", unsafe { (self.cuda.synchronise)(self.stream) });
        // The fault of a kernel is reported here, possibly long after its launch.
        waited.map_err(|why| {
            let last = self.name(self.launched.load(Ordering::Relaxed));
            format!(
                "{why}; the last launch was {last}; with CUDA_LAUNCH_BLOCKING=1 the error names the kernel at fault"
            )
        })
    }

    fn memory(&self) -> Outcome<Option<[u64; 2]>> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for writes.
        self.cuda.check("cuMemGetInfo", unsafe { (self.cuda.memory)(&mut free, &mut total) })?;
        Ok(Some([total as u64, free as u64]))
    }

    fn peak(&self) -> Outcome<u64> {
        let mut bytes = 0u64;
        // SAFETY: the pool exists, and the pointer is valid for writing a 64-bit number, which is the attribute's type.
        let code = unsafe { (self.cuda.pool_attribute)(self.pool, USED_MOST, std::ptr::from_mut(&mut bytes).cast()) };
        self.cuda.check("cuMemPoolGetAttribute", code).map(|()| bytes)
    }

    fn event(&self) -> Outcome<Event> {
        self.enter()?;
        let mut event = null_mut();
        // SAFETY: the pointer is valid for writes, and 0 means no flags.
        self.cuda.check("cuEventCreate", unsafe { (self.cuda.create_event)(&mut event, 0) })?;
        // SAFETY: the event was created above, and the stream is our own.
        let recorded = self.cuda.check("cuEventRecord", unsafe { (self.cuda.record_event)(event, self.stream) });
        let event = Event(event as usize);
        recorded.inspect_err(|_| self.destroy_event(event)).map(|()| event)
    }

    fn seconds(&self, from: Event, to: Event) -> Outcome<f64> {
        self.enter()?;
        let (from, to, mut milliseconds) = (from.0 as Handle, to.0 as Handle, 0.0);
        // SAFETY: both events were recorded on our stream, and the pointer is valid for writes.
        unsafe {
            self.cuda.check("cuEventSynchronize", (self.cuda.await_event)(to))?;
            self.cuda.check("cuEventElapsedTime", (self.cuda.between_events)(&mut milliseconds, from, to))?;
        }
        Ok(f64::from(milliseconds) / 1e3)
    }

    fn destroy_event(&self, event: Event) {
        if self.enter().is_ok() {
            // SAFETY: the event is our own and is destroyed once. The driver delays this until the event has happened.
            unsafe { (self.cuda.destroy_event)(event.0 as Handle) };
        }
    }
}

impl Drop for LibCuda {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        let modules = std::mem::take(self.modules.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let pinned = std::mem::take(self.pinned.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
        // SAFETY: all handles are our own and no longer used. Errors are ignored here.
        unsafe {
            (self.cuda.set_context)(self.context);
            if !self.stream.is_null() {
                (self.cuda.synchronise)(self.stream);
                (self.cuda.destroy_stream)(self.stream);
            }
            for module in modules.into_values() {
                (self.cuda.unload)(module);
            }
            for at in pinned {
                (self.cuda.free_host)(at);
            }
            (self.cuda.release_context)(self.device);
        }
    }
}
