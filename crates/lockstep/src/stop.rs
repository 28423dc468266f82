//! The request to stop a run: the step is ended before its optimizer step, a checkpoint of the one before is written,
//! and the run can be resumed.

use model::StopCheck;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a run, or an evaluation, is asked to stop; a clone is another handle to the same request.
///
/// The step is ended, unless its optimizer step has begun: rollout, scoring, the wait for rewards and the gradient look
/// at this between decode steps and layers. So is an evaluation. A run that is resumed does it again, to the same bits.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    requested: Arc<AtomicBool>,
    /// Looks of passes until it is given; 0: they are not counted.
    #[cfg(test)]
    pub(crate) looks_left: Arc<std::sync::atomic::AtomicUsize>,
}

impl StopSignal {
    /// One that only [`request`](Self::request) gives.
    pub fn new() -> StopSignal {
        StopSignal::default()
    }

    /// Asks to stop.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// For those who look while they work.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.requested.clone()
    }

    /// For passes through a model.
    pub(crate) fn of_passes(&self) -> StopCheck {
        let stop = self.clone();
        StopCheck::new(move || {
            #[cfg(test)]
            if stop.looks_left.load(Ordering::Relaxed) > 0 && stop.looks_left.fetch_sub(1, Ordering::Relaxed) == 1 {
                stop.request();
            }
            stop.is_requested()
        })
    }

    /// [`Stopped`] once somebody asked.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() { Err(Stopped) } else { Ok(()) }
    }
}

/// Cancelled because a [`StopSignal`] was given.
#[derive(Debug, thiserror::Error)]
#[error("stopped as asked")]
pub struct Stopped;

/// Whether `error` says no more than that a [`StopSignal`] was given.
pub fn is_stopped(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Stopped>()
            || matches!(cause.downcast_ref(), Some(rollout::Error::Stopped))
            || matches!(cause.downcast_ref(), Some(model::Error::Stopped))
            || matches!(cause.downcast_ref(), Some(train::Error::Model(model::Error::Stopped)))
    })
}
