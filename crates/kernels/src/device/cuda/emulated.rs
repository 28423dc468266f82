//! The emulator: the CPU as a CUDA device, for tests. Kernels are compiled by the host's C++ compiler against
//! `emulator.h`, which lists the errors that it detects.
//!
//! The stream runs late: copies, fills, launches and frees wait until the host waits for the stream. So a host that
//! changes a buffer too early, or reads one too early, gets other results than on the CPU.
//!
//! Environment variables: `LOCKSTEP_EMULATOR_SCHEDULE` is the order of blocks and threads (0, the default: ascending;
//! 1: descending; other numbers: random with that seed). `LOCKSTEP_EMULATOR_SECONDS` is the maximum duration of a
//! launch (60). `LOCKSTEP_EMULATOR_FAMILY` selects the emulated tensor cores (volta, turing, ampere or hopper, the
//! default). `LOCKSTEP_EMULATOR_MEMORY` is the device's memory in bytes; `8000000:3000000` simulates another process
//! that allocates 3,000,000 of them after the free memory was first queried. Events use the host's clock.

use super::driver::{Address, Arg, Driver, Event, Function, Grid, Outcome};
use super::sources::{Source, cached};
use super::tensor_core::{Family, HOPPER};
use libloading::Library;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Instant;

pub(super) const EMULATOR: [(&str, &str); 3] = [
    ("emulator.h", include_str!("emulator.h")),
    ("emulator_shared.h", include_str!("emulator_shared.h")),
    ("emulator_mma.h", include_str!("emulator_mma.h")),
];
/// An empty source, whose module allocates device memory.
const MEMORY: Source = Source { name: "emulator", text: "" };

/// The struct `Launch` of `emulator.h`.
#[repr(C)]
struct Launch {
    grid: [c_uint; 3],
    threads: c_uint,
    schedule: c_uint,
    seconds: c_uint,
    last_blocks: c_uint,
    fraction: c_uint,
    depth: c_uint,
    zero: c_int,
    arguments: *mut *mut c_void,
    error: *mut c_char,
    error_bytes: usize,
    fault: u64,
}

/// A compiled source, loaded as a library until the process ends.
#[derive(Clone, Copy)]
struct Module {
    launch: unsafe extern "C" fn(c_uint, *mut Launch) -> c_int,
    find: unsafe extern "C" fn(*const c_char) -> c_int,
    signature: unsafe extern "C" fn(c_uint) -> *const c_char,
    allocate: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
    clear: unsafe extern "C" fn(*mut c_void, usize),
}

/// All modules of the process, by their complete text. Launches of all emulated devices take this lock, because a
/// launch replaces the process's signal handlers.
static MODULES: Mutex<BTreeMap<String, Module>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The C++ compiler's command, and the version that it reports.
fn compiler() -> Outcome<&'static (String, String)> {
    static FOUND: OnceLock<Option<(String, String)>> = OnceLock::new();
    let version = |name: &str| {
        let output = Command::new(name).arg("--version").output().ok().filter(|output| output.status.success())?;
        Some((name.to_owned(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let find =
        || std::env::var("CXX").ok().iter().map(String::as_str).chain(["c++", "g++", "clang++"]).find_map(version);
    FOUND.get_or_init(find).as_ref().ok_or_else(|| {
        "kernels are emulated by compiling them for the CPU, and no C++ compiler was found (CXX, c++, g++, clang++); \
         install one (Debian: apt install g++)"
            .into()
    })
}

/// The complete text of a source, in which the texts of `replaced` are replaced.
fn text(source: &Source, replaced: &[[&str; 2]]) -> String {
    let emulator = EMULATOR.map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).concat();
    let mut text = source.complete(&emulator);
    for [from, to] in replaced {
        text = text.replace(from, to);
    }
    text
}

fn compile(name: &'static str, text: &str) -> Outcome<Module> {
    let (compiler, version) = compiler()?;
    let mut options = vec!["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wno-unknown-pragmas"];
    options.extend(["-Wno-unused", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE"]);
    options.extend(["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") {
        options.push("-mfma");
    }
    let inputs = [version.as_str(), &options.join(" "), text];
    let path = cached(name, "so", &inputs, |output| {
        let input = output.with_extension("cu");
        std::fs::write(&input, text).map_err(|e| format!("{} cannot be written: {e}", input.display()))?;
        let run = Command::new(compiler).args(&options).arg(&input).arg("-o").arg(output).output();
        let _ = std::fs::remove_file(&input);
        let run = run.map_err(|e| format!("{compiler}: {e}"))?;
        let messages = String::from_utf8_lossy(&run.stderr);
        if run.status.success() {
            Ok(())
        } else {
            Err(format!("{compiler} failed to compile {name}.cu:\n{}", messages.trim()))
        }
    })?;
    let fail = |e: libloading::Error| format!("{}: {e}", path.display());
    // SAFETY: the library was compiled from `emulator.h`; its initialisers only register its kernels.
    let library = Box::leak(Box::new(unsafe { Library::new(&path) }.map_err(fail)?));
    // SAFETY: the types are those that `emulator.h` declares.
    unsafe {
        Ok(Module {
            launch: *library.get(b"emulator_launch\0").map_err(fail)?,
            find: *library.get(b"emulator_find\0").map_err(fail)?,
            signature: *library.get(b"emulator_signature\0").map_err(fail)?,
            allocate: *library.get(b"emulator_allocate\0").map_err(fail)?,
            free: *library.get(b"emulator_free\0").map_err(fail)?,
            clear: *library.get(b"emulator_clear\0").map_err(fail)?,
        })
    }
}

/// The module of a source, compiled and loaded once per process.
fn module(source: &Source, replaced: &[[&str; 2]]) -> Outcome<Module> {
    let text = text(source, replaced);
    let mut modules = lock(&MODULES);
    if let Some(module) = modules.get(&text) {
        return Ok(*module);
    }
    let module = compile(source.name, &text)?;
    modules.insert(text, module);
    Ok(module)
}

/// The number in environment variable `name`, or `default`.
fn number(name: &str, default: u32) -> Outcome<u32> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().map_err(|_| format!("{name}={text}: expected an integer")),
        _ => Ok(default),
    }
}

fn family() -> Outcome<Family> {
    match std::env::var("LOCKSTEP_EMULATOR_FAMILY") {
        Ok(name) if !name.is_empty() => Family::named(&name)
            .ok_or_else(|| format!("LOCKSTEP_EMULATOR_FAMILY={name}: expected volta, turing, ampere or hopper")),
        _ => Ok(HOPPER),
    }
}

/// The numbers of `LOCKSTEP_EMULATOR_MEMORY`: bytes of the device, and bytes that the simulated other process
/// allocates.
fn memory_limit() -> Outcome<Option<[u64; 2]>> {
    let Ok(text) = std::env::var("LOCKSTEP_EMULATOR_MEMORY") else { return Ok(None) };
    let (has, taken) = text.split_once(':').unwrap_or((&text, "0"));
    match (has.parse(), taken.parse()) {
        (Ok(has), Ok(taken)) => Ok(Some([has, taken])),
        _ => Err(format!("LOCKSTEP_EMULATOR_MEMORY={text}: expected bytes, or bytes:bytes")),
    }
}

/// Opens the emulated device.
pub(super) fn open() -> Outcome<Box<dyn Driver>> {
    Ok(Box::new(Emulated::open()?))
}

pub(super) struct Emulated {
    memory: Module,
    pub(super) schedule: u32,
    pub(super) seconds: u32,
    pub(super) family: Family,
    /// Bytes of the device, and bytes that the simulated other process allocates.
    pub(super) memory_limit: Option<[u64; 2]>,
    /// If not 0, a launch runs only this many blocks, the last ones of its grid.
    pub(super) last_blocks: u32,
    /// Texts that are replaced in sources: bugs that tests plant.
    pub(super) replaced: Vec<[&'static str; 2]>,
    functions: Mutex<Vec<(Module, u32)>>,
    held: Mutex<Held>,
}

/// A call that has not executed yet.
enum Call {
    Copy { to: *mut u8, from: *const u8, bytes: usize },
    Fill { at: Address, word: u32, width: usize, count: usize },
    Launch { module: Module, kernel: u32, grid: Grid, args: Vec<Arg> },
    Free { at: Address, bytes: usize },
    Event(usize),
}

/// The emulated device's memory, and the pending calls.
#[derive(Default)]
struct Held {
    allocations: BTreeMap<u64, usize>,
    /// Bytes of all allocations, now and at their peak.
    bytes: [u64; 2],
    events: BTreeMap<usize, Instant>,
    last_event: usize,
    calls: Vec<Call>,
    pinned: Vec<Vec<u64>>,
    /// The first error of a call. Later calls do not execute, as on a GPU.
    failed: Option<String>,
}

// SAFETY: no other code touches the memory behind the pointers until the call has executed.
unsafe impl Send for Held {}

impl Held {
    /// Describes the address `fault` of an invalid access.
    fn place(&self, fault: u64) -> String {
        let below = self.allocations.range(..=fault).next_back();
        let above = self.allocations.range(fault..).next();
        match (below, above) {
            (Some((&at, &bytes)), _) if fault - at < bytes as u64 + (1 << 20) => {
                format!("{} bytes past the end of an allocation of {bytes} bytes", fault - at - bytes as u64)
            }
            (_, Some((&at, &bytes))) => format!("{} bytes before an allocation of {bytes} bytes", at - fault),
            _ => format!("at {fault:#x}"),
        }
    }
}

impl Emulated {
    pub(super) fn open() -> Outcome<Emulated> {
        Ok(Emulated {
            memory: module(&MEMORY, &[])?,
            schedule: number("LOCKSTEP_EMULATOR_SCHEDULE", 0)?,
            seconds: number("LOCKSTEP_EMULATOR_SECONDS", 60)?.max(1),
            family: family()?,
            memory_limit: memory_limit()?,
            last_blocks: 0,
            replaced: Vec::new(),
            functions: Mutex::default(),
            held: Mutex::default(),
        })
    }

    /// Executes all pending calls. Returns the first error of this and all earlier calls.
    fn catch_up(&self, held: &mut Held) -> Outcome<()> {
        for call in std::mem::take(&mut held.calls) {
            let done = match call {
                Call::Free { at, bytes } => self.release(held, at, bytes),
                Call::Event(event) => {
                    held.events.insert(event, Instant::now());
                    Ok(())
                }
                _ if held.failed.is_some() => Ok(()),
                Call::Copy { to, from, bytes } => {
                    // SAFETY: the caller of `to_device` or `to_host` has upheld its safety contract for both pointers.
                    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
                    Ok(())
                }
                Call::Fill { at, word, width, count } => {
                    // SAFETY: the caller of `fill` has upheld its safety contract.
                    unsafe { self.write(at, word, width, count) };
                    Ok(())
                }
                // SAFETY: the caller of `launch` has upheld its safety contract.
                Call::Launch { module, kernel, grid, args } => unsafe { self.run(held, module, kernel, grid, &args) },
            };
            if let Err(why) = done {
                held.failed.get_or_insert(why);
            }
        }
        held.failed.clone().map_or(Ok(()), Err)
    }

    fn release(&self, held: &mut Held, at: Address, bytes: usize) -> Outcome<()> {
        held.allocations.remove(&at.0);
        // SAFETY: the memory was allocated with the same number of bytes and is no longer used.
        match unsafe { (self.memory.free)(at.0 as *mut c_void, bytes) } {
            0 => Err(format!("a kernel wrote outside an allocation of {bytes} bytes")),
            _ => Ok(()),
        }
    }

    /// # Safety
    /// As for [`Driver::fill`].
    unsafe fn write(&self, at: Address, word: u32, width: usize, count: usize) {
        // SAFETY: the caller upholds this function's safety contract. Allocations are aligned to 16 bytes, and ranges
        // of them to their elements.
        unsafe {
            match width {
                _ if word == 0 => (self.memory.clear)(at.0 as *mut c_void, width * count),
                2 => std::slice::from_raw_parts_mut(at.0 as *mut u16, count).fill(word as u16),
                _ => std::slice::from_raw_parts_mut(at.0 as *mut u32, count).fill(word),
            }
        }
    }

    /// Runs a kernel.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    unsafe fn run(&self, held: &Held, module: Module, kernel: u32, grid: Grid, args: &[Arg]) -> Outcome<()> {
        let mut bits: Vec<u64> = args.iter().map(|arg| arg.bits()).collect();
        let mut arguments: Vec<*mut c_void> = bits.iter_mut().map(|bits| std::ptr::from_mut(bits).cast()).collect();
        let mut error = [0u8; 600];
        let mut launch = Launch {
            grid: grid.blocks,
            threads: grid.threads,
            schedule: self.schedule,
            seconds: self.seconds,
            last_blocks: self.last_blocks,
            fraction: self.family.fraction,
            depth: self.family.depth as c_uint,
            zero: self.family.zero,
            arguments: arguments.as_mut_ptr(),
            error: error.as_mut_ptr().cast(),
            error_bytes: error.len(),
            fault: 0,
        };
        let modules = lock(&MODULES);
        // SAFETY: the arguments have the types that the kernel declares. The emulator ends a launch that accesses other
        // memory.
        let outcome = unsafe { (module.launch)(kernel, &mut launch) };
        drop(modules);
        if outcome == 0 {
            return Ok(());
        }
        let message = CStr::from_bytes_until_nul(&error).map_or_else(|_| "".into(), CStr::to_string_lossy);
        Err(if launch.fault == 0 { message.into_owned() } else { format!("{message}: {}", held.place(launch.fault)) })
    }
}

impl Driver for Emulated {
    fn tensor_cores(&self) -> Option<Family> {
        Some(self.family)
    }

    fn allocate(&self, bytes: usize) -> Outcome<Option<Address>> {
        let mut held = lock(&self.held);
        let all = held.bytes[0].saturating_add(bytes as u64);
        if self.memory_limit.is_some_and(|[has, taken]| all > has.saturating_sub(taken)) {
            return Ok(None);
        }
        // SAFETY: any number of bytes is valid.
        let at = unsafe { (self.memory.allocate)(bytes) } as u64;
        if at == 0 {
            return Ok(None);
        }
        held.bytes = [all, held.bytes[1].max(all)];
        held.allocations.insert(at, bytes);
        Ok(Some(Address(at)))
    }

    fn free(&self, at: Address) {
        let mut held = lock(&self.held);
        let Some(&bytes) = held.allocations.get(&at.0) else { return };
        held.bytes[0] -= bytes as u64;
        held.calls.push(Call::Free { at, bytes });
    }

    fn pinned(&self, bytes: usize) -> Outcome<*mut u8> {
        let mut memory = vec![0u64; bytes.div_ceil(8) + 8];
        let start = memory.as_mut_ptr().cast::<u8>();
        lock(&self.held).pinned.push(memory);
        Ok(start.wrapping_add(start.align_offset(64)))
    }

    unsafe fn to_device(&self, to: Address, from: *const u8, bytes: usize) -> Outcome<()> {
        lock(&self.held).calls.push(Call::Copy { to: to.0 as *mut u8, from, bytes });
        Ok(())
    }

    unsafe fn to_host(&self, from: Address, to: *mut u8, bytes: usize) -> Outcome<()> {
        lock(&self.held).calls.push(Call::Copy { to, from: from.0 as *const u8, bytes });
        Ok(())
    }

    unsafe fn fill(&self, at: Address, word: u32, width: usize, count: usize) -> Outcome<()> {
        lock(&self.held).calls.push(Call::Fill { at, word, width, count });
        Ok(())
    }

    fn function(&self, source: &Source, kernel: &'static str) -> Outcome<Function> {
        let module = module(source, &self.replaced)?;
        let name = CString::new(kernel).map_err(|e| e.to_string())?;
        // SAFETY: the string is null-terminated.
        let index = unsafe { (module.find)(name.as_ptr()) };
        let index = u32::try_from(index).map_err(|_| format!("{}.cu has no kernel {kernel}", source.name))?;
        let mut functions = lock(&self.functions);
        functions.push((module, index));
        Ok(Function(functions.len() - 1))
    }

    unsafe fn launch(&self, function: Function, grid: Grid, args: &[Arg]) -> Outcome<()> {
        let (module, index) = lock(&self.functions)[function.0];
        // SAFETY: `index` is a kernel of this module, and its signature is a null-terminated string.
        let expected = unsafe { CStr::from_ptr((module.signature)(index)) }.to_bytes();
        let given: Vec<u8> = args.iter().map(|arg| arg.kind()).collect();
        if given != expected {
            let text = String::from_utf8_lossy;
            return Err(format!("a kernel with the parameters {} was called with {}", text(expected), text(&given)));
        }
        lock(&self.held).calls.push(Call::Launch { module, kernel: index, grid, args: args.to_vec() });
        Ok(())
    }

    fn synchronise(&self) -> Outcome<()> {
        self.catch_up(&mut lock(&self.held))
    }

    fn memory(&self) -> Outcome<Option<[u64; 2]>> {
        let held = lock(&self.held).bytes[0];
        Ok(self.memory_limit.map(|[has, _]| [has, has.saturating_sub(held)]))
    }

    fn peak(&self) -> Outcome<u64> {
        Ok(lock(&self.held).bytes[1])
    }

    fn event(&self) -> Outcome<Event> {
        let mut held = lock(&self.held);
        held.last_event += 1;
        let event = held.last_event;
        held.calls.push(Call::Event(event));
        Ok(Event(event))
    }

    fn seconds(&self, from: Event, to: Event) -> Outcome<f64> {
        let mut held = lock(&self.held);
        self.catch_up(&mut held)?;
        let at =
            |event: Event| held.events.get(&event.0).ok_or_else(|| format!("{event:?} does not belong to this device"));
        Ok((*at(to)? - *at(from)?).as_secs_f64())
    }

    fn destroy_event(&self, event: Event) {
        lock(&self.held).events.remove(&event.0);
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (&at, &bytes) in &held.allocations {
            // SAFETY: the memory was allocated with the same number of bytes, and the stream that hands out addresses
            // is dropped.
            unsafe { (self.memory.free)(at as *mut c_void, bytes) };
        }
    }
}
