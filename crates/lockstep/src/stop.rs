//! A request to stop a run. The step in progress is cancelled before its optimizer step, a checkpoint of the last
//! complete step is written, and the run can be resumed from it.

use model::StopCheck;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A flag that requests the stop of a run or an evaluation. All clones share one flag.
///
/// A stop cancels the current step, unless its optimizer step has begun: rollout, scoring, the wait for rewards and the
/// gradient check the flag between decode steps and layers. An evaluation is cancelled in the same way. A resumed run
/// computes the cancelled step again, with the same bits.
///
/// Work that a stopped run's checkpoint needs is not cancelled: while a `Held` exists, these checks see no request, and
/// only [`is_requested`](Self::is_requested) returns true.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    requested: Arc<Mutex<Requested>>,
    /// Whether work must be cancelled: a stop was requested, and no [`Held`] exists.
    cancels: Arc<AtomicBool>,
    /// For tests: the signal is set after this many checks in forward and backward passes; 0 turns counting off.
    #[cfg(test)]
    pub(crate) looks_left: Arc<std::sync::atomic::AtomicUsize>,
}

#[derive(Debug, Default)]
struct Requested {
    stop: bool,
    /// The number of [`Held`] values.
    held: usize,
}

/// While this value exists, a stop request cancels no work. See [`StopSignal::hold`].
#[must_use]
pub(crate) struct Held(StopSignal);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.change(|requested| requested.held -= 1);
    }
}

impl StopSignal {
    /// A signal that is not set, until [`request`](Self::request) sets it.
    pub fn new() -> StopSignal {
        StopSignal::default()
    }

    fn lock(&self) -> MutexGuard<'_, Requested> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Requested)) {
        let mut requested = self.lock();
        change(&mut requested);
        self.cancels.store(requested.stop && requested.held == 0, Ordering::Relaxed);
    }

    /// Requests a stop of the run.
    pub fn request(&self) {
        self.change(|requested| requested.stop = true);
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.lock().stop
    }

    /// Defers stop requests while the caller completes a checkpoint. A request takes effect when the returned value is
    /// dropped.
    pub(crate) fn hold(&self) -> Held {
        self.change(|requested| requested.held += 1);
        Held(self.clone())
    }

    /// The flag that cancels work, for code that checks it.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.cancels.clone()
    }

    fn cancels(&self) -> bool {
        self.cancels.load(Ordering::Relaxed)
    }

    /// The same signal in the form checked by a model's forward and backward passes.
    pub(crate) fn stop_check(&self) -> StopCheck {
        let stop = self.clone();
        StopCheck::new(move || {
            #[cfg(test)]
            if stop.looks_left.load(Ordering::Relaxed) > 0 && stop.looks_left.fetch_sub(1, Ordering::Relaxed) == 1 {
                stop.request();
            }
            stop.cancels()
        })
    }

    /// Fails with [`Stopped`] if work must be cancelled.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.cancels() { Err(Stopped) } else { Ok(()) }
    }
}

/// The error of work that was cancelled by a [`StopSignal`].
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

    /// Work for a stopped run's checkpoint is not cancelled, whenever the request arrives.
    #[test]
    fn a_held_signal_cancels_nothing_until_its_release() {
        for requested_before in [true, false] {
            let signal = StopSignal::new();
            let flag = signal.flag();
            let cancels = || [flag.load(Ordering::Relaxed), signal.check().is_err(), signal.cancels()];
            if requested_before {
                signal.request();
                assert_eq!(cancels(), [true; 3]);
            }
            let (outer, inner) = (signal.hold(), signal.clone().hold());
            signal.request();
            assert!(signal.is_requested());
            assert_eq!(cancels(), [false; 3]);
            drop(outer);
            assert_eq!(cancels(), [false; 3], "another clone still holds the signal");
            drop(inner);
            assert_eq!(cancels(), [true; 3]);
        }
        let signal = StopSignal::new();
        drop(signal.hold());
        assert!(signal.check().is_ok() && !signal.is_requested());
    }

    #[test]
    fn a_stop_is_distinguished_from_a_failure() {
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
