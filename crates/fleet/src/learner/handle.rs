//! Runs a learner on its own thread.

use super::{Learner, Notice, POLL_INTERVAL};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A [`Learner`] that runs on a thread while its caller trains. Dropping this value ends the thread.
pub struct LearnerHandle<E: Exchange + Send + 'static> {
    pub(super) shared: Arc<Shared<E>>,
    thread: Option<JoinHandle<()>>,
}

pub(super) struct Shared<E> {
    state: Mutex<State<E>>,
    changed: Condvar,
}

pub(super) struct State<E> {
    learner: Learner<E>,
    /// The error that ended the thread.
    pub(super) failed: Option<Error>,
    stopped: bool,
}

impl<E: Exchange + Send + 'static> LearnerHandle<E> {
    /// Starts a thread that serves the workers of `learner`.
    pub fn start(learner: Learner<E>) -> Result<LearnerHandle<E>> {
        let mut waiter = learner.waiter()?;
        let state = Mutex::new(State { learner, failed: None, stopped: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let served = Arc::clone(&shared);
        let serve = move || {
            loop {
                let mut state = served.lock();
                if state.stopped || state.failed.is_some() {
                    return;
                }
                if let Err(error) = state.learner.poll() {
                    state.failed = Some(error);
                }
                drop(state);
                served.changed.notify_all();
                waiter(POLL_INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("fleet".to_owned()).spawn(serve);
        let thread = thread.map_err(|e| Error::Failed(format!("cannot start a thread: {e}")))?;
        Ok(LearnerHandle { shared, thread: Some(thread) })
    }

    /// The next action for the caller. Returns `None` after `at_most`, so that the caller can check for a stop request.
    pub fn next_notice(&self, at_most: Duration) -> Result<Option<Notice>> {
        let end = Instant::now() + at_most;
        let mut state = self.shared.lock();
        loop {
            if let Some(notice) = state.learner.next_notice() {
                return Ok(Some(notice));
            }
            state.check_served()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// Calls a method that depends on the workers, such as [`Learner::frontier`] or [`Learner::trained`]. After the
    /// thread has failed, returns its error instead: the run has ended, so the learner takes no further step.
    pub fn served<T>(&self, call: impl FnOnce(&mut Learner<E>) -> Result<T>) -> Result<T> {
        let mut state = self.shared.lock();
        state.check_served()?;
        let called = call(&mut state.learner);
        drop(state);
        self.shared.changed.notify_all();
        called
    }

    /// Gives access to the learner, to read its state or end its run. Unlike [`LearnerHandle::served`], works after the
    /// thread has failed.
    pub fn with<T>(&self, call: impl FnOnce(&mut Learner<E>) -> T) -> T {
        let called = call(&mut self.shared.lock().learner);
        self.shared.changed.notify_all();
        called
    }
}

impl<E> State<E> {
    /// Returns the error that ended the thread, at every call.
    fn check_served(&mut self) -> Result<()> {
        let Some(error) = self.failed.take() else { return Ok(()) };
        self.failed = Some(Error::Failed(error.to_string()));
        Err(error)
    }
}

impl<E> Shared<E> {
    pub(super) fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<E: Exchange + Send + 'static> Drop for LearnerHandle<E> {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        if let Some(thread) = self.thread.take() {
            // The thread has already reported its panic.
            let _ = thread.join();
        }
    }
}
