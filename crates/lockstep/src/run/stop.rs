//! The request to stop a run: its step ends or is given up, a checkpoint is written, it can be resumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a run, or an evaluation, is asked to stop; a clone is another handle to the same request.
///
/// A step that computes is finished. A rollout, an evaluation or a wait for rewards is given up: it is done again, to
/// the same bits, when the run goes on.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// One that only [`request`](Self::request) gives.
    pub fn new() -> StopSignal {
        StopSignal::default()
    }

    /// Asks to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// For those who look while they work.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// [`Stopped`] once somebody asked.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() { Err(Stopped) } else { Ok(()) }
    }
}

/// Given up because a [`StopSignal`] was given.
#[derive(Debug, thiserror::Error)]
#[error("stopped as asked")]
pub struct Stopped;

/// Whether `error` says no more than that a [`StopSignal`] was given.
pub fn is_stopped(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Stopped>()
            || matches!(cause.downcast_ref(), Some(rollout::Error::Stopped))
            || matches!(cause.downcast_ref(), Some(model::Error::Stopped))
    })
}
