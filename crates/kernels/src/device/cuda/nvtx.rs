//! NVTX: named ranges for NVIDIA's profilers. The library is opened if it exists (at `LOCKSTEP_NVTX`, or where the
//! dynamic loader finds CUDA 12's); otherwise ranges do nothing.

use super::driver::Outcome;
use super::library::open;
use std::ffi::{CString, c_char};
use std::sync::OnceLock;

pub(super) struct Nvtx {
    start: unsafe extern "C" fn(*const c_char) -> u64,
    end: unsafe extern "C" fn(u64),
}

impl Nvtx {
    /// The NVTX library, opened once per process.
    pub(super) fn get() -> Option<&'static Nvtx> {
        static FOUND: OnceLock<Option<Nvtx>> = OnceLock::new();
        let given = || std::env::var("LOCKSTEP_NVTX").ok().filter(|path| !path.is_empty());
        FOUND.get_or_init(|| Nvtx::open(&given().unwrap_or_else(|| "libnvToolsExt.so.1".into())).ok()).as_ref()
    }

    fn open(path: &str) -> Outcome<Nvtx> {
        let library = open(&[path.into()])?;
        // SAFETY: the types are those that nvToolsExt.h declares for these names.
        unsafe {
            let start = library.get(b"nvtxRangeStartA\0").map_err(|e| e.to_string())?;
            let end = library.get(b"nvtxRangeEnd\0").map_err(|e| e.to_string())?;
            Ok(Nvtx { start: *start, end: *end })
        }
    }

    pub(super) fn start(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the string is null-terminated, and the library copies it.
        unsafe { (self.start)(name.as_ptr()) }
    }

    pub(super) fn end(&self, range: u64) {
        // SAFETY: any number is valid.
        unsafe { (self.end)(range) }
    }
}
