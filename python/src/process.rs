//! Detects use of the engine in a forked process: a forked child has none of its parent's threads, and would wait for
//! them forever.

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;
use std::sync::atomic::{AtomicU32, Ordering};

/// The id of the process that used the engine first; 0 if the engine has not been used yet.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Call this before each use of the engine. Returns an error in a forked child of a process that has used the engine.
pub fn use_engine() -> PyResult<()> {
    let own = std::process::id();
    match OWNER.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(owner) if owner != own => Err(PyRuntimeError::new_err(format!(
            "this process ({own}) was forked from one ({owner}) in which lockstep_rl had been used, and has none of \
             its threads: start the process with multiprocessing.get_context(\"spawn\") instead"
        ))),
        _ => Ok(()),
    }
}
