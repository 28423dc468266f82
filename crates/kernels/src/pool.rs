//! The thread pool of the CPU kernels. A parallel region costs a microsecond or two, because idle threads spin briefly
//! before they sleep. Any thread, including the caller's, can run tasks. A region never waits for a thread that has not
//! begun a task, because another process (a reward function, another training run) may be using that thread's core.

mod governor;
mod region;
mod scratch;
mod sleep;

#[cfg(test)]
mod tests;

pub use scratch::{Disjoint, Scratch};

use crate::Isa;
use crate::cores::Lease;
use crate::simd::control::FloatEnvironment;
use crate::simd::{Kernel, Simd};
use governor::{Governor, Watch};
use region::{Job, Region};
use sleep::Sleepers;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Work split into tasks that may run in any order on any thread.
pub trait Tasks: Sync {
    /// Runs task `index`. `scratch` belongs to the thread, and its contents are unspecified. Mark implementations
    /// `#[inline(always)]`.
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch);
}

/// How long a waiting thread spins before it sleeps. It is longer than the gaps between most regions of a decode step,
/// because waking the thread would cost about as much.
const SPIN: Duration = Duration::from_micros(if cfg!(miri) { 0 } else { 50 });
/// Number of times a spinning thread checks its condition between two readings of the clock.
const SPINS: usize = if cfg!(miri) { 2 } else { 64 };

struct Shared {
    region: Region,
    stop: AtomicBool,
    /// Whether a task of the region panicked on a worker thread.
    panicked: AtomicBool,
    /// Worker threads that sleep until a region opens.
    workers: Sleepers,
    /// The calling thread, while it sleeps until workers have finished their tasks.
    caller: Sleepers,
    governor: Governor,
}

/// A pool of threads that run [`Tasks`].
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<std::thread::JoinHandle<()>>,
    /// Locked while a region runs, so that a second calling thread waits.
    turn: Mutex<Watch>,
    /// This process's lease of cores, if processes share the machine's cores.
    lease: OnceLock<Lease>,
}

thread_local! {
    /// The thread's scratch memory, borrowed while the thread runs a task.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Pool {
    /// A pool of `threads` ≥ 1 threads, including the caller's. Fails if the system cannot start all of them.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let threads = threads.max(1);
        let (shared, turn) = (Arc::new(Shared::new(threads)), Mutex::new(Watch::new(threads)));
        // If a thread fails to start, the pool is dropped, which ends the threads that have started.
        let mut pool = Pool { workers: Vec::new(), shared, turn, lease: OnceLock::new() };
        for i in 1..threads {
            let shared = pool.shared.clone();
            let name = format!("kernel-{i}");
            pool.workers.push(std::thread::Builder::new().name(name).spawn(move || shared.work(i))?);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Lets at most `threads` of the pool's threads take tasks from now on.
    pub fn limit(&self, threads: usize) {
        // The lock makes the limit change between regions; a region chooses its threads when it opens.
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        self.shared.governor.set_most(threads);
    }

    /// Limits the pool to the cores that it can reserve through `lease`. Only the first call has an effect.
    pub fn share(&self, lease: Lease) {
        let _ = self.lease.set(lease);
    }

    /// Releases the reserved cores immediately; the pool reserves cores again when it next computes.
    pub fn release_cores(&self) {
        self.lease.get().into_iter().for_each(Lease::release);
    }

    /// Runs tasks `0..count` and returns when all are done. Panics if called from inside a task, because parallel
    /// regions do not nest.
    pub fn run<T: Tasks>(&self, isa: Isa, count: usize, tasks: &T) {
        struct One<'a, T>(&'a T, usize, &'a mut Scratch);
        impl<T: Tasks> Kernel for One<'_, T> {
            type Output = ();
            #[inline(always)]
            fn run<V: Simd>(self) {
                self.0.task::<V>(self.1, self.2);
            }
        }
        assert!(SCRATCH.with(|scratch| scratch.try_borrow_mut().is_ok()), "parallel regions must not be nested");
        let job = |index: usize| SCRATCH.with_borrow_mut(|scratch| isa.run(One(tasks, index, scratch)));
        let (threads, _running) = self.lease.get().map(|lease| lease.begin(self.threads())).unzip();
        threads.flatten().into_iter().for_each(|threads| self.limit(threads));
        let _environment = FloatEnvironment::set();
        if self.workers.is_empty() || count <= 1 {
            (0..count).for_each(job);
            return;
        }
        let mut watch = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        watch.look(&self.shared.governor);
        if self.shared.governor.limit() == 1 {
            (0..count).for_each(job);
            return;
        }
        for first in (0..count).step_by(region::MAX_TASKS) {
            let job = |index: usize| job(first + index);
            // SAFETY: `job` is `Sync`, as `tasks` is, and outlives the call of `region`, which returns or panics only
            // after every started task has ended.
            let waited = unsafe { self.shared.region(region::MAX_TASKS.min(count - first), &Job::new(&job)) };
            watch.waited(waited);
        }
    }
}

impl Shared {
    fn new(threads: usize) -> Shared {
        Shared {
            region: Region::default(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            workers: Sleepers::default(),
            caller: Sleepers::default(),
            governor: Governor::new(threads),
        }
    }

    /// Runs one parallel region on the calling thread and the workers. Returns the time that the caller waited for
    /// workers at its end. Only one call may be active at a time.
    ///
    /// # Safety
    /// The job's closure is [`Sync`] and outlives the call.
    unsafe fn region(&self, count: usize, job: &Job) -> Duration {
        let threads = self.governor.limit();
        // SAFETY: the caller upholds this function's safety contract. The previous region was closed below, and its
        // claimed tasks are done.
        unsafe { self.region.open(count, threads, job) };
        self.workers.call((count - 1).min(threads - 1));
        let (start, mut mine) = (Instant::now(), 0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            while let Some(claim) = self.region.claim(0) {
                mine += 1;
                // SAFETY: the caller upholds this function's safety contract.
                unsafe { claim.run() };
            }
        }));
        // After a panic no thread begins another task.
        let theirs = count - self.region.close() - mine;
        let task_time = start.elapsed() / mine.max(1) as u32;
        let waited = self.wait_for(theirs, SPIN + 2 * task_time);
        let panicked = self.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = result {
            resume_unwind(panic);
        }
        assert!(!panicked, "a kernel thread panicked; its message is above");
        waited
    }

    /// Waits until workers have finished the `theirs` tasks that they claimed: spins for the time `spin`, then sleeps.
    /// Returns the time spent waiting.
    fn wait_for(&self, theirs: usize, spin: Duration) -> Duration {
        let done = || self.region.done() >= theirs;
        if done() {
            return Duration::ZERO;
        }
        let start = Instant::now();
        while start.elapsed() < spin {
            if looks(done) {
                return start.elapsed();
            }
        }
        // Either a worker has no core, or its task is exceptionally long. Sleeping frees this core for it in both
        // cases.
        while !done() {
            self.caller.sleep(done);
        }
        start.elapsed()
    }

    /// The main loop of worker thread `i` ≥ 1.
    fn work(&self, i: usize) {
        let _environment = FloatEnvironment::set();
        self.governor.enter(i);
        let mut seen = 0;
        while !self.stops() {
            if i >= self.governor.limit() {
                self.governor.rest(i, || self.stops());
                continue;
            }
            let opened = self.region.opened();
            if opened == seen {
                self.wait(seen);
                continue;
            }
            seen = opened;
            let start = Instant::now();
            while let Some(claim) = self.region.claim(i) {
                // SAFETY: the caller of `region` keeps the job alive until every claimed task is done.
                if catch_unwind(AssertUnwindSafe(|| unsafe { claim.run() })).is_err() {
                    self.panicked.store(true, Ordering::Relaxed);
                }
                claim.done();
                self.caller.call(1);
            }
            self.governor.worked(i, start.elapsed());
        }
    }

    /// Waits until more than `seen` regions have been opened, or the pool stops.
    fn wait(&self, seen: u64) {
        let come = || self.region.opened() != seen || self.stops();
        let start = Instant::now();
        while start.elapsed() < SPIN {
            if looks(come) {
                return;
            }
        }
        self.workers.sleep(come);
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// Checks up to [`SPINS`] times whether `come` is true, and returns whether it was.
fn looks(come: impl Fn() -> bool) -> bool {
    (0..SPINS).any(|_| {
        std::hint::spin_loop();
        come()
    })
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.workers.call(usize::MAX);
        self.shared.governor.call_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
