//! One parallel region: a range of tasks that the caller and its workers claim one by one.
//!
//! Each thread has a queue of tasks: the caller's queue holds the first tasks, and the last worker's queue the last
//! ones. A thread takes tasks from the front of its own queue and, once that queue is empty, steals from the back of
//! the others. So if two successive regions are split by the same rows, a thread mostly reads data that it wrote
//! itself. This matters because reading a cache line written by another core costs twenty times as much as a hit in the
//! core's own cache; for a small operation, these misses would dominate.
//!
//! A queue is one atomic word with the range of remaining tasks. A thread claims a task by a compare-and-swap of that
//! word, and only then reads the job. A region ends only when all claimed tasks are done, so a thread with a claim
//! always finds the job of its own region. (ABA is harmless: if the word has the same value again in the next region,
//! the claim belongs to that region.)

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The maximum number of tasks in one region.
pub(super) const MAX_TASKS: usize = 1 << 30;
/// The maximum number of queues, each on a separate cache line. There are only a few, so that a thread quickly finds a
/// task or sees that none is left. With more threads than queues, several threads share a queue.
const MOST_QUEUES: usize = 8;

/// A pointer to a closure `Fn(usize)`, with its type erased.
pub(super) struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

impl Job {
    pub fn new<F: Fn(usize) + Sync>(f: &F) -> Job {
        /// # Safety
        /// `data` points to a live `F`.
        unsafe fn call<F: Fn(usize)>(data: *const (), index: usize) {
            // SAFETY: the caller upholds this function's safety contract.
            unsafe { (*data.cast::<F>())(index) }
        }
        Job { data: std::ptr::from_ref(f).cast(), call: call::<F> }
    }
}

/// The state of the current parallel region, which the caller and the workers share.
#[derive(Default)]
pub(super) struct Region {
    /// Number of regions opened so far.
    opened: AtomicU64,
    /// The job's closure. Written only while no thread has a claim.
    data: AtomicPtr<()>,
    call: AtomicPtr<()>,
    /// Number of queues in the current region. A thread that still reads the previous region's value finds fewer tasks,
    /// or none.
    used: AtomicUsize,
    queues: [TaskQueue; MOST_QUEUES],
    /// Number of tasks that workers have finished in the current region.
    done: AtomicUsize,
}

/// The range of remaining tasks: its start in the upper 32 bits, its end in the lower ones.
#[derive(Default)]
#[repr(align(128))]
struct TaskQueue(AtomicU64);

impl TaskQueue {
    fn open(&self, tasks: Range<usize>) {
        self.0.store((tasks.start as u64) << 32 | tasks.end as u64, Ordering::Release);
    }

    /// Empties the queue and returns the number of tasks that were left.
    fn close(&self) -> usize {
        parts(self.0.swap(0, Ordering::AcqRel)).len()
    }

    /// Takes the first task of the queue, or its last one.
    fn take(&self, first: bool) -> Option<usize> {
        let less = |state: u64| {
            let left = parts(state);
            (!left.is_empty()).then(|| if first { state + (1 << 32) } else { state - 1 })
        };
        let left = parts(self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok()?);
        Some(if first { left.start } else { left.end - 1 })
    }
}

fn parts(state: u64) -> Range<usize> {
    (state >> 32) as usize..(state & u64::from(u32::MAX)) as usize
}

/// A task that a thread has claimed in the open region.
pub(super) struct Claim<'a> {
    region: &'a Region,
    index: usize,
}

impl Region {
    /// Opens a region with tasks `0..count`, split among `threads` threads.
    ///
    /// # Safety
    /// The previous region is closed and its claimed tasks are done. The job's closure is [`Sync`] and lives until this
    /// region is closed and its claimed tasks are done.
    pub unsafe fn open(&self, count: usize, threads: usize, job: &Job) {
        debug_assert!(count <= MAX_TASKS);
        self.data.store(job.data.cast_mut(), Ordering::Relaxed);
        self.call.store(job.call as *mut (), Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        let used = threads.clamp(1, MOST_QUEUES);
        self.used.store(used, Ordering::Relaxed);
        for (i, queue) in self.queues[..used].iter().enumerate() {
            queue.open(i * count / used..(i + 1) * count / used);
        }
        // With SeqCst, a worker that goes to sleep either sees this write, or is seen sleeping.
        self.opened.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of regions opened so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }

    /// Claims the next task for thread `thread`, if one is left.
    pub fn claim(&self, thread: usize) -> Option<Claim<'_>> {
        let used = self.used.load(Ordering::Relaxed).max(1);
        let of = |i: usize| &self.queues[(thread + i) % used];
        let index = of(0).take(true).or_else(|| (1..used).find_map(|i| of(i).take(false)))?;
        Some(Claim { region: self, index })
    }

    /// Ends claiming: drops the tasks that no thread has claimed, and returns their number.
    pub fn close(&self) -> usize {
        self.queues[..self.used.load(Ordering::Relaxed)].iter().map(TaskQueue::close).sum()
    }

    /// Number of tasks that workers have finished in this region. Their writes are visible after this call.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }
}

impl Claim<'_> {
    /// Runs the claimed task.
    ///
    /// # Safety
    /// The closure of the region's job is alive.
    pub unsafe fn run(&self) {
        let (data, call) = (self.region.data.load(Ordering::Relaxed), self.region.call.load(Ordering::Relaxed));
        // SAFETY: `open` stored a function of this type, before it filled the queue that this claim comes from.
        let call: unsafe fn(*const (), usize) = unsafe { std::mem::transmute(call) };
        // SAFETY: the caller guarantees that the closure is alive. `data` and `call` belong to the same job, so their
        // types match.
        unsafe { call(data, self.index) }
    }

    /// Counts the task as finished by a worker.
    pub fn done(self) {
        self.region.done.fetch_add(1, Ordering::SeqCst);
    }
}
