//! Whose threads the engine's are: a forked child has none of its parent's, and would wait for them for ever.

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process that used the engine first; 0: none yet.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Called before the engine is: an error in the child of a process whose engine has begun.
pub fn use_engine() -> PyResult<()> {
    let own = std::process::id();
    match OWNER.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(owner) if owner != own => Err(PyRuntimeError::new_err(format!(
            "this process ({own}) was forked from one ({owner}) in which lockstep_rl had been used, and has none of \
             its threads: start it anew instead, with multiprocessing.get_context(\"spawn\")"
        ))),
        _ => Ok(()),
    }
}
