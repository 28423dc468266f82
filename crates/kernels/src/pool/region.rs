//! One parallel region: tasks that whoever comes claims one by one.
//!
//! A claim is one atomic addition to a word that holds both the next task and how many there are, so it says at once
//! whether it got a task. The job is read after that: a region ends only when all claimed tasks are done, so whoever
//! holds a claim finds the job of its region, and nobody else looks at it.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The most tasks of a region.
pub(super) const MOST: usize = 1 << 30;

/// A closure without its type.
pub(super) struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

impl Job {
    pub fn new<F: Fn(usize) + Sync>(f: &F) -> Job {
        /// # Safety
        /// `data` is an `F` that lives.
        unsafe fn call<F: Fn(usize)>(data: *const (), index: usize) {
            // SAFETY: the caller's promise.
            unsafe { (*data.cast::<F>())(index) }
        }
        Job { data: std::ptr::from_ref(f).cast(), call: call::<F> }
    }
}

/// What the caller and the workers share.
#[derive(Default)]
pub(super) struct Region {
    /// Tasks in the upper half, the next one in the lower, which claims that come too late push beyond it.
    state: AtomicU64,
    /// Written while nobody holds a claim.
    data: AtomicPtr<()>,
    call: AtomicPtr<()>,
    /// Tasks that workers have done.
    done: AtomicUsize,
}

/// A task of an open region.
pub(super) struct Claim<'a> {
    region: &'a Region,
    index: usize,
}

fn parts(state: u64) -> (usize, usize) {
    ((state >> 32) as usize, (state & u64::from(u32::MAX)) as usize)
}

impl Region {
    /// Opens it with tasks `0..count`.
    ///
    /// # Safety
    /// The last region is closed and its tasks are done. The job's closure is [`Sync`] and lives until that is so of
    /// this one.
    pub unsafe fn open(&self, count: usize, job: &Job) {
        debug_assert!(count <= MOST);
        self.data.store(job.data.cast_mut(), Ordering::Relaxed);
        self.call.store(job.call as *mut (), Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        // SeqCst: a worker that goes to sleep sees it, or is seen sleeping.
        self.state.store((count as u64) << 32, Ordering::SeqCst);
    }

    /// Whether a task waits.
    pub fn is_open(&self) -> bool {
        let (count, next) = parts(self.state.load(Ordering::SeqCst));
        next < count
    }

    /// The next task, if there is one.
    pub fn claim(&self) -> Option<Claim<'_>> {
        if !self.is_open() {
            return None;
        }
        let (count, index) = parts(self.state.fetch_add(1, Ordering::AcqRel));
        (index < count).then_some(Claim { region: self, index })
    }

    /// Ends claiming; how many tasks were claimed.
    pub fn close(&self) -> usize {
        let (count, next) = parts(self.state.swap(0, Ordering::AcqRel));
        next.min(count)
    }

    /// Tasks that workers have done of this region; what they wrote is seen.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }
}

impl Claim<'_> {
    /// Runs the task.
    ///
    /// # Safety
    /// The job of the open region lives.
    pub unsafe fn run(&self) {
        let (data, call) = (self.region.data.load(Ordering::Relaxed), self.region.call.load(Ordering::Relaxed));
        // SAFETY: written by `open` from such a function, before the state that this claim was made of.
        let call: unsafe fn(*const (), usize) = unsafe { std::mem::transmute(call) };
        // SAFETY: the caller's promise: `data` is of the type that `call` was made for, as both are of one job.
        unsafe { call(data, self.index) }
    }

    /// Says that a worker has done it.
    pub fn done(self) {
        self.region.done.fetch_add(1, Ordering::SeqCst);
    }
}
