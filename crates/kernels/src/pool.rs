//! A small pool of threads for kernels: a parallel region costs a microsecond or two, because waiting threads spin
//! briefly before they park.

use crate::Isa;
use crate::simd::{Kernel, Simd};
use std::cell::{RefCell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Work cut into tasks that may run in any order on any thread.
pub trait Tasks: Sync {
    /// Runs task `index`. `scratch` is the thread's own, its contents unspecified. Mark it `#[inline(always)]`.
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch);
}

/// Memory that a thread keeps from task to task.
#[derive(Default)]
pub struct Scratch {
    buffer: Vec<f32>,
    ids: Vec<u32>,
    inner: Option<Box<Scratch>>,
}

impl Scratch {
    /// `len` elements with unspecified contents.
    pub fn f32(&mut self, len: usize) -> &mut [f32] {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        &mut self.buffer[..len]
    }
    /// `len` elements with unspecified contents, and a list of ids with unspecified contents.
    pub fn with_ids(&mut self, len: usize) -> (&mut [f32], &mut Vec<u32>) {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        (&mut self.buffer[..len], &mut self.ids)
    }
    /// `len` elements with unspecified contents, and another scratch for what is called while they are in use.
    pub fn split(&mut self, len: usize) -> (&mut [f32], &mut Scratch) {
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        (&mut self.buffer[..len], self.inner.get_or_insert_default())
    }
}

/// A mutable slice that tasks write disjoint ranges of.
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    _borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out ranges only through `slice`, whose callers promise that they are disjoint.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Shares `slice` among tasks.
    pub fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), _borrow: PhantomData }
    }
    /// Elements `range`.
    ///
    /// # Safety
    /// While the result lives, no other task holds an overlapping range.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the borrowed slice; disjointness is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// How many times a waiting thread looks before it parks (some 20 µs), and the caller before it yields.
const SPINS: usize = if cfg!(miri) { 20 } else { 4000 };

type Job = dyn Fn(usize) + Sync;

struct Shared {
    /// The job of the current epoch; written by the caller while every worker waits.
    job: UnsafeCell<Option<(*const Job, usize)>>,
    epoch: AtomicUsize,
    next: AtomicUsize,
    /// Workers that have not finished the current epoch.
    pending: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

// SAFETY: `job` is written only while `pending == 0` (no worker reads it) and published by the release store of
// `epoch`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only while the caller of `run` keeps the closure alive.
unsafe impl Send for Shared {}

/// Threads that run [`Tasks`].
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<std::thread::JoinHandle<()>>,
    /// One region at a time: a second caller waits here.
    region: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` ≥ 1, of which the caller's is one. Fails where the system gives no more threads.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            epoch: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: Mutex::new(0),
            wake: Condvar::new(),
        });
        // Dropped with the threads that it has, if there are not enough.
        let mut pool = Pool { workers: Vec::new(), shared, region: Mutex::new(()) };
        for i in 1..threads.max(1) {
            let shared = pool.shared.clone();
            pool.workers.push(std::thread::Builder::new().name(format!("kernel-{i}")).spawn(move || work(&shared))?);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs tasks `0..count`; returns when all are done. Not to be called from inside a task.
    pub fn run<T: Tasks>(&self, isa: Isa, count: usize, tasks: &T) {
        struct One<'a, T>(&'a T, usize, &'a mut Scratch);
        impl<T: Tasks> Kernel for One<'_, T> {
            type Output = ();
            #[inline(always)]
            fn run<V: Simd>(self) {
                self.0.task::<V>(self.1, self.2);
            }
        }
        let job = |index: usize| SCRATCH.with_borrow_mut(|scratch| isa.run(One(tasks, index, scratch)));
        let _environment = FloatEnvironment::set();
        if self.workers.is_empty() || count <= 1 {
            (0..count).for_each(job);
            return;
        }
        let _region = self.region.lock().unwrap_or_else(|e| e.into_inner());
        let shared = &*self.shared;
        let erased: &(dyn Fn(usize) + Sync) = &job;
        // SAFETY: only the lifetime is erased; `run` does not return before every worker has left the job.
        let erased: *const Job = unsafe { std::mem::transmute(erased) };
        // SAFETY: `pending` is 0: every worker waits for the next epoch.
        unsafe { *shared.job.get() = Some((erased, count)) };
        shared.next.store(0, Ordering::Relaxed);
        shared.pending.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if *shared.sleepers.lock().expect("pool") > 0 {
            shared.wake.notify_all();
        }
        let mine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| claim(shared, count, &job)));
        let mut spins = 0;
        while shared.pending.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let theirs = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = mine {
            std::panic::resume_unwind(panic);
        }
        assert!(!theirs, "a kernel thread panicked; its message is above");
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

fn claim(shared: &Shared, count: usize, job: &(dyn Fn(usize) + Sync)) {
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if index >= count {
            return;
        }
        job(index);
    }
}

fn work(shared: &Shared) {
    let _environment = FloatEnvironment::set();
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == seen {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let mut sleepers = shared.sleepers.lock().expect("pool");
            *sleepers += 1;
            while shared.epoch.load(Ordering::SeqCst) == seen {
                sleepers = shared.wake.wait(sleepers).expect("pool");
            }
            *sleepers -= 1;
        }
        seen += 1;
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: published by the epoch just seen; the caller keeps the closure alive until `pending` is 0.
        let (job, count) = unsafe { (*shared.job.get()).expect("a job of this epoch") };
        // SAFETY: as above.
        let job = unsafe { &*job };
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| claim(shared, count, job))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.pending.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        let _sleepers = self.shared.sleepers.lock();
        self.shared.wake.notify_all();
        drop(_sleepers);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// Round to nearest, denormals kept, while it lives: a caller's own settings (flush-to-zero, say) must not change bits.
/// (Miri knows no assembly, and no other settings.)
struct FloatEnvironment {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    callers: u32,
}

impl FloatEnvironment {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn set() -> Self {
        const DEFAULT: u32 = 0x1f80;
        let mut callers = 0u32;
        // SAFETY: stores and loads the SSE control word, which is per thread; `Drop` restores the caller's. The
        // compiler assumes the default word, which is what is set here.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &mut callers, options(nostack));
            std::arch::asm!("ldmxcsr [{}]", in(reg) &DEFAULT, options(nostack));
        }
        FloatEnvironment { callers }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fn set() -> Self {
        FloatEnvironment {}
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Drop for FloatEnvironment {
    fn drop(&mut self) {
        // SAFETY: restores the word that `set` saved on this thread.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &self.callers, options(nostack)) }
    }
}

#[cfg(test)]
mod tests;
