//! A request to stop a run. The step being computed is cancelled before its optimizer step, a checkpoint of the last
//! complete step is written, and the run can be resumed from the checkpoint.

use model::StopCheck;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag by which a run or an evaluation is asked to stop. All clones share one flag.
///
/// A stop cancels the current step, unless its optimizer step has begun: rollout, scoring, the wait for rewards and the
/// gradient check the flag between decode steps and layers. An evaluation is cancelled likewise. A resumed run computes
/// the cancelled step again, with the same bits.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    requested: Arc<AtomicBool>,
    /// For tests: after this many checks by forward and backward passes the signal is set; 0 turns the counting off.
    #[cfg(test)]
    pub(crate) looks_left: Arc<std::sync::atomic::AtomicUsize>,
}

impl StopSignal {
    /// A signal that is not set; only [`request`](Self::request) sets it.
    pub fn new() -> StopSignal {
        StopSignal::default()
    }

    /// Asks the run to stop.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// The flag itself, for code that checks it while it works.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.requested.clone()
    }

    /// The same signal in the form that forward and backward passes of a model check.
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

    /// Fails with [`Stopped`] if a stop was requested.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() { Err(Stopped) } else { Ok(()) }
    }
}

/// The error of work that was cancelled because a [`StopSignal`] was set.
#[derive(Debug, thiserror::Error)]
#[error("stopped as asked")]
pub struct Stopped;

/// Whether `error` only means that a [`StopSignal`] was set, and nothing failed.
pub fn is_stopped(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Stopped>()
            || matches!(cause.downcast_ref(), Some(rollout::Error::Stopped))
            || matches!(cause.downcast_ref(), Some(model::Error::Stopped))
            || matches!(cause.downcast_ref(), Some(train::Error::Model(model::Error::Stopped)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clones_share_one_request() {
        let signal = StopSignal::new();
        let (clone, flag) = (signal.clone(), signal.flag());
        assert!(!signal.is_requested() && signal.check().is_ok());
        clone.request();
        assert!(signal.is_requested() && flag.load(Ordering::Relaxed));
        assert_eq!(signal.check().unwrap_err().to_string(), "stopped as asked");
        assert!(!StopSignal::new().is_requested());
    }

    #[test]
    fn a_stop_is_told_from_a_failure() {
        let stopped: [anyhow::Error; 4] = [
            Stopped.into(),
            rollout::Error::Stopped.into(),
            model::Error::Stopped.into(),
            train::Error::Model(model::Error::Stopped).into(),
        ];
        for error in stopped {
            assert!(is_stopped(&error) && is_stopped(&error.context("a step")));
        }
        assert!(!is_stopped(&anyhow::anyhow!("stopped as asked")));
        let memory = model::Error::Kernel(kernels::Error::OutOfMemory { part: "weights", bytes: 1 });
        assert!(!is_stopped(&train::Error::Model(memory).into()));
    }
}
