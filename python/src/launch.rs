//! Ranks of a launch: processes in which a launcher such as torchrun runs the same script.

use crate::errors::exception;
use crate::process::use_engine;
use lockstep::ranks::{self, Rendezvous};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Whether other ranks work for this process, rank 0 of a launch.
enum Meeting {
    NotYet,
    /// They meet this process here.
    Open(Arc<Rendezvous>),
    /// They have ended.
    Over,
}

static MEETING: Mutex<Meeting> = Mutex::new(Meeting::NotYet);

/// The place where the other ranks of a launch meet this process, if it is rank 0 and they can join.
pub fn rendezvous() -> Option<Arc<Rendezvous>> {
    match &*MEETING.lock().unwrap_or_else(PoisonError::into_inner) {
        Meeting::Open(rendezvous) => Some(rendezvous.clone()),
        Meeting::NotYet | Meeting::Over => None,
    }
}

/// The rank of this process, and the number of processes; (0, 1) without a launcher.
#[pyfunction]
pub fn launch_place() -> PyResult<(usize, usize)> {
    let launch = ranks::launch_from_env().map_err(|error| exception(&error))?;
    Ok(launch.map_or((0, 1), |launch| (launch.rank, launch.world_size)))
}

/// Lets the other processes of a launch work for this one, if it is rank 0. Otherwise works for rank 0, and exits with
/// its exit code; this function then does not return.
#[pyfunction]
pub fn enter_launch(py: Python<'_>) -> PyResult<()> {
    use_engine()?;
    let failed = |error: anyhow::Error| exception(&error);
    let Some(launch) = ranks::launch_from_env().map_err(failed)? else { return Ok(()) };
    ranks::check_launch(&launch).map_err(failed)?;
    if launch.rank > 0 {
        let code = py.detach(|| lockstep_cli::serve_launch(&launch)).map_err(failed)?;
        std::process::exit(i32::from(code));
    }
    let mut meeting = MEETING.lock().unwrap_or_else(PoisonError::into_inner);
    match &*meeting {
        Meeting::NotYet => {
            *meeting = Meeting::Open(Arc::new(ranks::open(launch).map_err(failed)?));
            Ok(())
        }
        Meeting::Open(_) => Err(PyRuntimeError::new_err("another training runs in this launch: wait for its end")),
        Meeting::Over => Err(PyRuntimeError::new_err(
            "a launch trains once: the other processes ended with the first training. Start another launch for the \
             next one",
        )),
    }
}

/// Ends the other processes of the launch with this exit code.
#[pyfunction]
pub fn leave_launch(py: Python<'_>, exit_code: u8) {
    let mut meeting = MEETING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Meeting::Open(rendezvous) = std::mem::replace(&mut *meeting, Meeting::Over) {
        py.detach(|| rendezvous.end(exit_code));
    }
}
