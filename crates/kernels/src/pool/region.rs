//! One parallel-for: a range of tasks that the caller and its workers claim one by one.
//!
//! Each thread has a queue of tasks: the first tasks are the caller's, the last ones the last worker's. A thread takes
//! tasks from the front of its own queue, and once that is empty, from the back of the others'. So a thread reads what
//! it wrote itself in the region before, where both were cut by the same rows: a line that another core wrote costs
//! twenty times as much as a hit in the own cache, which is most of a small operation's time.
//!
//! A queue is one atomic word, which holds the tasks that are left; a thread claims a task by swapping the word, and
//! reads the job after that. A region ends only when all claimed tasks are done, so a thread with a claim always finds
//! the job of its own region. (A word with the same value in the next region does no harm: it is a claim of that one.)

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The most tasks of a region.
pub(super) const MOST: usize = 1 << 30;
/// The most queues, each on a cache line of its own: few, so that a thread soon finds a task or none. Above this number
/// of threads, several take from the same queue.
const MOST_QUEUES: usize = 8;

/// A closure with its type erased.
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

/// State that the caller and the workers share.
#[derive(Default)]
pub(super) struct Region {
    /// Regions opened so far.
    opened: AtomicU64,
    /// Written while nobody holds a claim.
    data: AtomicPtr<()>,
    call: AtomicPtr<()>,
    /// Queues that this region uses. A thread that still reads the last region's number finds fewer tasks, or none.
    used: AtomicUsize,
    queues: [TaskQueue; MOST_QUEUES],
    /// Tasks that workers have done.
    done: AtomicUsize,
}

/// Tasks that are left: the first one in the upper half, their end in the lower.
#[derive(Default)]
#[repr(align(128))]
struct TaskQueue(AtomicU64);

impl TaskQueue {
    fn open(&self, tasks: Range<usize>) {
        self.0.store((tasks.start as u64) << 32 | tasks.end as u64, Ordering::Release);
    }

    /// What was left.
    fn close(&self) -> usize {
        parts(self.0.swap(0, Ordering::AcqRel)).len()
    }

    /// Takes the first task, or the last.
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

/// A task of an open region.
pub(super) struct Claim<'a> {
    region: &'a Region,
    index: usize,
}

impl Region {
    /// Opens it with tasks `0..count` for so many threads.
    ///
    /// # Safety
    /// The last region is closed and its tasks are done. The job's closure is [`Sync`] and lives until that is so of
    /// this one.
    pub unsafe fn open(&self, count: usize, threads: usize, job: &Job) {
        debug_assert!(count <= MOST);
        self.data.store(job.data.cast_mut(), Ordering::Relaxed);
        self.call.store(job.call as *mut (), Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        let used = threads.clamp(1, MOST_QUEUES);
        self.used.store(used, Ordering::Relaxed);
        for (i, queue) in self.queues[..used].iter().enumerate() {
            queue.open(i * count / used..(i + 1) * count / used);
        }
        // SeqCst: a worker that goes to sleep sees it, or is seen sleeping.
        self.opened.fetch_add(1, Ordering::SeqCst);
    }

    /// Regions opened so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }

    /// The next task for this thread, if there is one.
    pub fn claim(&self, thread: usize) -> Option<Claim<'_>> {
        let used = self.used.load(Ordering::Relaxed).max(1);
        let of = |i: usize| &self.queues[(thread + i) % used];
        let index = of(0).take(true).or_else(|| (1..used).find_map(|i| of(i).take(false)))?;
        Some(Claim { region: self, index })
    }

    /// Ends claiming; how many tasks nobody has claimed.
    pub fn close(&self) -> usize {
        self.queues[..self.used.load(Ordering::Relaxed)].iter().map(TaskQueue::close).sum()
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
        // SAFETY: written by `open` from such a function, before the queue that this claim was taken from.
        let call: unsafe fn(*const (), usize) = unsafe { std::mem::transmute(call) };
        // SAFETY: the caller's promise: `data` is of the type that `call` was made for, as both are of one job.
        unsafe { call(data, self.index) }
    }

    /// Says that a worker has done it.
    pub fn done(self) {
        self.region.done.fetch_add(1, Ordering::SeqCst);
    }
}
