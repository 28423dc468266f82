//! Threads that sleep until a condition holds: a lock, a counter and a condition variable.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Threads asleep. Nobody waits for one that has been called: that its processor is given back may take milliseconds.
#[derive(Default)]
pub(super) struct Sleepers {
    /// Asleep and not yet called. Changes under the lock only; read without it.
    asleep: AtomicUsize,
    /// Calls that nobody has answered yet.
    called: Mutex<usize>,
    wake: Condvar,
}

impl Sleepers {
    /// Sleeps until called, unless `come` is true. The thread that makes `come` true does so by a sequentially
    /// consistent write before it calls: then either `come` is seen here, or this thread is seen asleep there.
    pub fn sleep(&self, come: impl FnOnce() -> bool) {
        let mut called = self.locked();
        self.asleep.fetch_add(1, Ordering::SeqCst);
        if come() {
            self.asleep.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        while *called == 0 {
            called = self.wake.wait(called).unwrap_or_else(|e| e.into_inner());
        }
        *called -= 1;
    }

    /// Calls at most `most` threads.
    pub fn call(&self, most: usize) {
        if most == 0 || self.asleep.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut called = self.locked();
        let asleep = self.asleep.load(Ordering::SeqCst);
        let few = most.min(asleep);
        self.asleep.fetch_sub(few, Ordering::SeqCst);
        *called += few;
        drop(called);
        if few == asleep {
            self.wake.notify_all();
        } else {
            (0..few).for_each(|_| self.wake.notify_one());
        }
    }

    /// Threads asleep that nobody has called.
    #[cfg(test)]
    pub fn asleep(&self) -> usize {
        self.asleep.load(Ordering::SeqCst)
    }

    fn locked(&self) -> MutexGuard<'_, usize> {
        self.called.lock().unwrap_or_else(|e| e.into_inner())
    }
}
