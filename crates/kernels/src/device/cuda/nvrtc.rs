//! NVRTC, NVIDIA's CUDA compiler as a library: compiles a source for one architecture.
//!
//! `LOCKSTEP_NVRTC` is the path of the library; without it the dynamic loader looks for versions 13 and 12.

use super::driver::Outcome;
use super::library::{functions, open};
use super::sources::Source;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

functions! {
    Functions {
        version = "nvrtcVersion"(*mut c_int, *mut c_int);
        create = "nvrtcCreateProgram"(
            *mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        );
        compile = "nvrtcCompileProgram"(*mut c_void, c_int, *const *const c_char);
        destroy = "nvrtcDestroyProgram"(*mut *mut c_void);
        log_size = "nvrtcGetProgramLogSize"(*mut c_void, *mut usize);
        log = "nvrtcGetProgramLog"(*mut c_void, *mut c_char);
        ptx_size = "nvrtcGetPTXSize"(*mut c_void, *mut usize);
        ptx = "nvrtcGetPTX"(*mut c_void, *mut c_char);
        cubin_size = "nvrtcGetCUBINSize"(*mut c_void, *mut usize);
        cubin = "nvrtcGetCUBIN"(*mut c_void, *mut c_char);
    }
}

pub(super) struct Nvrtc {
    functions: Functions,
    /// NVRTC's major and minor version.
    pub version: (i32, i32),
}

/// The result of compiling a source.
pub(super) struct Compiled {
    pub cubin: Vec<u8>,
    #[cfg_attr(not(test), allow(dead_code, reason = "only the test that compiles all kernels reads it"))]
    pub ptx: String,
    #[cfg_attr(not(test), allow(dead_code, reason = "only the test that compiles all kernels reads it"))]
    pub log: String,
}

/// Compiler options: `a·b + c` is never contracted (a fused multiply-add must be explicit in the source), no
/// instruction is approximate, division and square roots are correctly rounded, and denormals are kept.
const OPTIONS: [&str; 7] =
    ["--std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-w", "--ptxas-options=-v"];

impl Nvrtc {
    /// NVRTC, opened once per process.
    pub(super) fn get() -> Outcome<&'static Nvrtc> {
        static FOUND: OnceLock<Outcome<Nvrtc>> = OnceLock::new();
        FOUND.get_or_init(|| Nvrtc::open(&Nvrtc::paths())).as_ref().map_err(|why| {
            format!(
                "NVRTC, which compiles kernels, cannot be used: {why}; install CUDA, or \
                 `pip install nvidia-cuda-nvrtc` and set LOCKSTEP_NVRTC to its libnvrtc.so"
            )
        })
    }

    /// The paths at which NVRTC is expected, in this order.
    pub(super) fn paths() -> Vec<String> {
        match std::env::var("LOCKSTEP_NVRTC") {
            Ok(path) if !path.is_empty() => vec![path],
            _ => ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(String::from).to_vec(),
        }
    }

    pub(super) fn open(paths: &[String]) -> Outcome<Nvrtc> {
        let functions = Functions::of(open(paths)?)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for writes.
        let code = unsafe { (functions.version)(&mut major, &mut minor) };
        if code != 0 {
            return Err(format!("nvrtcVersion failed with code {code}"));
        }
        Ok(Nvrtc { functions, version: (major, minor) })
    }

    /// Compiler options for the architecture `arch`, a compute capability such as "90" or "90a".
    pub(super) fn options(arch: &str) -> Vec<String> {
        let arch = format!("--gpu-architecture=sm_{arch}");
        std::iter::once(arch).chain(OPTIONS.map(String::from)).collect()
    }

    /// Compiles a source for the architecture `arch`.
    pub(super) fn compile(&self, source: &Source, arch: &str) -> Outcome<Compiled> {
        let options: Vec<CString> = Nvrtc::options(arch).into_iter().map(c_string).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let (text, name) = (c_string(source.complete("")), c_string(format!("{}.cu", source.name)));
        let f = &self.functions;
        let mut program = null_mut();
        // SAFETY: the strings are null-terminated and live until the program is created. No headers are passed.
        let made = unsafe { (f.create)(&mut program, text.as_ptr(), name.as_ptr(), 0, null(), null()) };
        if made != 0 {
            return Err(format!("nvrtcCreateProgram failed with code {made}"));
        }
        // SAFETY: the program exists, and `options` holds this many null-terminated strings.
        let code = unsafe { (f.compile)(program, options.len() as c_int, options.as_ptr()) };
        let take = |size: unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int,
                    get: unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int| {
            let mut bytes = 0;
            // SAFETY: the program exists, and `to` has as many bytes as the library requires.
            unsafe {
                size(program, &mut bytes);
                let mut to = vec![0u8; bytes];
                get(program, to.as_mut_ptr().cast());
                to
            }
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
        let log = text(take(f.log_size, f.log));
        let compiled = match code {
            0 => Ok(Compiled { cubin: take(f.cubin_size, f.cubin), ptx: text(take(f.ptx_size, f.ptx)), log }),
            _ => Err(format!(
                "NVRTC {}.{} failed to compile {}.cu:\n{}",
                self.version.0,
                self.version.1,
                source.name,
                log.trim()
            )),
        };
        // SAFETY: the program was created above, and is destroyed only here.
        unsafe { (f.destroy)(&mut program) };
        compiled
    }
}

fn c_string(text: String) -> CString {
    CString::new(text).expect("sources and options contain no NUL byte")
}
