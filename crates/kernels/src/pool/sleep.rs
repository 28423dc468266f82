//! Lets threads sleep until a condition holds: a lock, a counter of sleeping threads and a condition variable.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// A set of sleeping threads. A thread that wakes others does not wait until they run, because the system may take
/// milliseconds to give them a core.
#[derive(Default)]
pub(super) struct Sleepers {
    /// Number of sleeping threads that have not been called. Written only under the lock, but read without it.
    asleep: AtomicUsize,
    /// Number of calls that no thread has answered yet.
    called: Mutex<usize>,
    wake: Condvar,
}

impl Sleepers {
    /// Puts the current thread to sleep until another thread calls it, unless `come` is true. The thread that makes
    /// `come` true must do so by a sequentially consistent write before [`call`](Self::call). Then either the sleeper
    /// sees `come`, or the caller sees the sleeper.
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

    /// Wakes at most `most` sleeping threads.
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

    /// Number of sleeping threads that have not been called.
    #[cfg(test)]
    pub fn asleep(&self) -> usize {
        self.asleep.load(Ordering::SeqCst)
    }

    fn locked(&self) -> MutexGuard<'_, usize> {
        self.called.lock().unwrap_or_else(|e| e.into_inner())
    }
}
