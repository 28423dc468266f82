use super::*;
use crate::simd::LANES;
use std::sync::atomic::AtomicU32;

/// Tasks that count how often each of them runs.
struct Count<'a>(&'a [AtomicU32]);

impl Tasks for Count<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }
}

fn counters(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

#[test]
fn every_task_runs_once_for_any_count_and_threads() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        for count in [0, 1, 2, 3, 7, 100, 1000].into_iter().filter(|&n| n < 100 || !cfg!(miri)) {
            let counters = counters(count);
            pool.run(Isa::PORTABLE, count, &Count(&counters));
            assert!(counters.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {count} tasks");
        }
    }
}

/// Runs regions one after another, with pauses around the time after which threads sleep. This covers spinning,
/// sleeping, and a wake-up that arrives while a thread is about to sleep.
#[test]
fn sleeping_and_spinning_threads_miss_no_region() {
    let pool = Pool::new(4).unwrap();
    let counters = counters(16);
    let mut stream = crate::rng::Stream::new(1, 1);
    const REGIONS: u32 = if cfg!(miri) { 30 } else { 2000 };
    for _ in 0..REGIONS {
        pool.run(Isa::PORTABLE, counters.len(), &Count(&counters));
        let start = Instant::now();
        let pause = Duration::from_nanos(stream.below(3 * SPIN.as_nanos() as u64 + 1));
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
        if stream.below(50) == 0 {
            std::thread::sleep(std::time::Duration::from_micros(stream.below(300)));
        }
    }
    assert!(counters.iter().all(|c| c.load(Ordering::Relaxed) == REGIONS));
}

/// Runs a region of `count` tasks; the result has bit i set for each task i that ran.
fn sum_of_region(shared: &Shared, count: usize) -> u32 {
    let sum = AtomicU32::new(0);
    let job = |index: usize| {
        sum.fetch_add(1 << index, Ordering::Relaxed);
    };
    // SAFETY: the closure is `Sync` and outlives the region.
    unsafe { shared.region(count, &Job::new(&job)) };
    sum.into_inner()
}

/// If no worker takes part (other processes may have their cores), the caller runs all tasks.
#[test]
fn a_region_does_not_wait_for_threads_without_a_task() {
    let shared = Shared::new(3);
    for _ in 0..3 {
        assert_eq!(sum_of_region(&shared, 20), (1 << 20) - 1);
    }
}

#[test]
fn workers_beyond_the_limit_sleep_until_it_is_raised() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..if cfg!(miri) { 2 } else { 50 } {
        pool.shared.governor.set_limit(1);
        // No worker is woken, and running workers go to sleep. Once both sleep, only the caller runs the region.
        while pool.shared.workers.asleep() + pool.shared.governor.resting() < 2 {
            std::thread::yield_now();
        }
        let caller = std::thread::current().id();
        let alone = |_: usize| assert_eq!(std::thread::current().id(), caller);
        // SAFETY: the closure is `Sync` and outlives the region.
        unsafe { pool.shared.region(20, &Job::new(&alone)) };

        // Three tasks wait for each other, so each needs its own thread.
        pool.shared.governor.set_limit(3);
        let met = AtomicU32::new(0);
        let meet = |_: usize| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
        };
        // SAFETY: the closure is `Sync` and outlives the region.
        unsafe { pool.shared.region(3, &Job::new(&meet)) };
    }
}

#[test]
fn a_claim_belongs_to_one_region() {
    let region = Region::default();
    let sum = AtomicU32::new(0);
    let job = |index: usize| {
        sum.fetch_add(1 << index, Ordering::Relaxed);
    };
    assert!(region.claim(0).is_none());
    // SAFETY: the closure is `Sync` and lives until the end of this test.
    unsafe { region.open(3, 1, &Job::new(&job)) };
    let (first, second) = (region.claim(0).unwrap(), region.claim(0).unwrap());
    // SAFETY: the closure is `Sync` and lives until the end of this test.
    unsafe { (second.run(), first.run()) };
    assert_eq!(sum.load(Ordering::Relaxed), 0b11);
    second.done();
    assert_eq!((region.done(), region.close()), (1, 1), "the third task is cancelled");
    assert!(region.claim(0).is_none());
    // SAFETY: the closure is `Sync` and lives until the end of this test.
    unsafe { region.open(1, 1, &Job::new(&job)) };
    assert_eq!((region.opened(), region.done()), (2, 0));
    let last = region.claim(0).unwrap();
    assert!(region.claim(0).is_none() && region.claim(0).is_none());
    // SAFETY: the closure is `Sync` and lives until the end of this test.
    unsafe { last.run() };
    assert_eq!((sum.load(Ordering::Relaxed), region.close()), (0b100, 0));
}

/// Opens a region and lets the threads listed in `claims` claim a task one after another. Returns the task that each
/// thread got.
fn claimed(count: usize, threads: usize, claims: &[usize]) -> Vec<Option<usize>> {
    let region = Region::default();
    let ran = std::sync::Mutex::new(None);
    let job = |index: usize| *ran.lock().unwrap() = Some(index);
    // SAFETY: the closure is `Sync` and lives until the end of this function.
    unsafe { region.open(count, threads, &Job::new(&job)) };
    let run = |&thread: &usize| {
        // SAFETY: the closure is `Sync` and lives until the end of this function.
        region.claim(thread).inspect(|claim| unsafe { claim.run() });
        ran.lock().unwrap().take()
    };
    claims.iter().map(run).collect()
}

#[test]
fn threads_take_their_own_tasks_first_and_then_steal_from_the_back() {
    let all = |tasks: &[usize]| tasks.iter().copied().map(Some).collect::<Vec<_>>();
    assert_eq!(claimed(6, 2, &[0, 1, 0, 1, 0, 1]), all(&[0, 3, 1, 4, 2, 5]));
    assert_eq!(claimed(6, 2, &[0, 0, 0, 0, 1, 0]), all(&[0, 1, 2, 5, 3, 4]));
    assert_eq!(claimed(6, 2, &[1, 1, 1, 1, 0, 1, 0])[3..], [Some(2), Some(0), Some(1), None]);
    // The cases: one task for three threads, more threads than queues, and a worker that is not in this region.
    assert_eq!(claimed(1, 3, &[0, 1, 2]), [Some(0), None, None]);
    let mut many = claimed(100, 64, &(0..100).collect::<Vec<_>>());
    many.sort();
    assert_eq!(many, all(&(0..100).collect::<Vec<_>>()));
    assert_eq!(claimed(4, 2, &[5, 5, 5, 5]), all(&[2, 3, 1, 0]));
}

/// A worker claims a task and loses its core. The caller then sleeps until the task is done.
#[test]
fn the_caller_waits_for_claimed_tasks() {
    let shared = Shared::new(2);
    let (begun, may_end) = (AtomicBool::new(false), AtomicBool::new(false));
    let caller = std::thread::current().id();
    let done = AtomicU32::new(0);
    let job = |index: usize| {
        if std::thread::current().id() == caller {
            // The caller's first task waits until the worker has claimed a task.
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        } else {
            begun.store(true, Ordering::SeqCst);
            while !may_end.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        done.fetch_add(1 << index, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while shared.caller.asleep() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(
                done.load(Ordering::Relaxed).count_ones(),
                2,
                "the caller must sleep while it waits for the worker"
            );
            may_end.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| {
            let claim = loop {
                if let Some(claim) = shared.region.claim(1) {
                    break claim;
                }
                std::thread::yield_now();
            };
            // SAFETY: the closure outlives the region.
            unsafe { claim.run() };
            claim.done();
            shared.caller.call(1);
        });
        // SAFETY: the closure is `Sync` and outlives the region.
        unsafe { shared.region(3, &Job::new(&job)) };
        assert_eq!(done.load(Ordering::Relaxed), 0b111);
    });
}

/// Tasks that open another region in the same pool.
struct Nested<'a>(&'a Pool);

impl Tasks for Nested<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, _index: usize, _scratch: &mut Scratch) {
        self.0.run(Isa::PORTABLE, 2, &PanicAt(9));
    }
}

#[test]
fn a_region_inside_a_task_is_refused_and_does_not_hang() {
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let run = AssertUnwindSafe(|| pool.run(Isa::PORTABLE, 4, &Nested(&pool)));
        assert!(catch_unwind(run).is_err(), "{threads} threads");
        let counters = counters(4);
        pool.run(Isa::PORTABLE, 4, &Count(&counters));
        assert!(counters.iter().all(|c| c.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn callers_on_several_threads_take_turns() {
    const CALLS: u32 = if cfg!(miri) { 3 } else { 100 };
    let pool = Pool::new(3).unwrap();
    let counters = counters(50);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..CALLS).for_each(|_| pool.run(Isa::PORTABLE, 50, &Count(&counters))));
        }
    });
    assert!(counters.iter().all(|c| c.load(Ordering::Relaxed) == 4 * CALLS));
}

struct PanicAt(usize);

impl Tasks for PanicAt {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        assert!(index != self.0, "task {index} fails");
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
    const TASKS: usize = if cfg!(miri) { 6 } else { 100 };
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        for at in [0, 5, TASKS - 1] {
            let run = std::panic::AssertUnwindSafe(|| pool.run(Isa::PORTABLE, TASKS, &PanicAt(at)));
            assert!(std::panic::catch_unwind(run).is_err(), "{threads} threads, task {at}");
            let counters = counters(TASKS);
            pool.run(Isa::PORTABLE, TASKS, &Count(&counters));
            assert!(counters.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }
}

#[cfg_attr(miri, allow(dead_code))]
/// Tasks that multiply two numbers whose product is denormal.
struct Tiny<'a>(Disjoint<'a, f32>);

impl Tasks for Tiny<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        // SAFETY: no other task accesses this range.
        let out = unsafe { self.0.slice(index * LANES..(index + 1) * LANES) };
        V::splat(1e-30).mul(V::splat(std::hint::black_box(1e-12))).store(out);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn the_callers_float_settings_change_no_bit_and_are_restored() {
    fn control() -> u32 {
        let mut word = 0u32;
        // SAFETY: this stores the control word of this thread in `word`.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack)) };
        word
    }
    /// A control word that other libraries may leave behind: flush to zero, denormals are zero, round towards zero.
    const FOREIGN: u32 = 0x1f80 | 0x8000 | 0x0040 | 0x6000;
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        for isa in Isa::present() {
            let mut out = vec![f32::NAN; 20 * LANES];
            let before = control();
            // SAFETY: the control word is valid, and the caller's word is restored below. Only the pool's
            // floating-point code runs in between.
            unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &FOREIGN, options(nostack)) };
            pool.run(isa, 20, &Tiny(Disjoint::new(&mut out)));
            let after = control();
            // SAFETY: this restores the caller's word, which was saved above.
            unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &before, options(nostack)) };
            // The low six bits are sticky exception flags.
            assert_eq!(after & !0x3f, FOREIGN, "the caller's control word must be restored");
            assert!(out.iter().all(|x| x.to_bits() == 714), "{isa:?}: {}", out[0].to_bits());
        }
    }
}

#[test]
fn scratch_grows_and_out_of_range_slices_panic() {
    let mut scratch = Scratch::default();
    assert_eq!(scratch.f32(5).len(), 5);
    scratch.f32(100)[99] = 1.0;
    assert_eq!(scratch.f32(3).len(), 3);
    let mut data = [0u8; 4];
    let shared = Disjoint::new(&mut data);
    // SAFETY: no other code holds a range.
    let past = std::panic::AssertUnwindSafe(|| unsafe { shared.slice(2..5) }.len());
    assert!(std::panic::catch_unwind(past).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no thread clocks for the governor")]
fn a_limited_pool_computes_with_fewer_threads_and_the_same_results() {
    use std::collections::HashSet;
    struct Who<'a>(&'a Mutex<HashSet<std::thread::ThreadId>>, Disjoint<'a, u32>);
    impl Tasks for Who<'_> {
        #[inline(always)]
        fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
            self.0.lock().unwrap().insert(std::thread::current().id());
            // SAFETY: no other task accesses this element.
            let out = unsafe { self.1.slice(index..index + 1) };
            out[0] = index as u32;
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    let pool = Pool::new(4).unwrap();
    for most in [1, 2, 4, 1, 9, 0] {
        pool.limit(most);
        let (who, mut out) = (Mutex::default(), vec![0; 64]);
        pool.run(Isa::PORTABLE, 64, &Who(&who, Disjoint::new(&mut out)));
        assert_eq!(out, (0..64).collect::<Vec<u32>>());
        let threads = who.into_inner().unwrap().len();
        assert!((1..=most.clamp(1, 4)).contains(&threads), "{threads} threads of {most}");
    }
}

#[test]
fn scratch_is_kept_between_tasks_and_its_parts_do_not_overlap() {
    let mut scratch = Scratch::default();
    let (memory, ids) = scratch.with_ids(5);
    assert_eq!((memory.len(), ids.len()), (5, 0));
    memory[4] = 4.0;
    ids.extend([7, 8]);
    let (memory, ids) = scratch.with_ids(9);
    assert_eq!((memory.len(), memory[4], ids.as_slice()), (9, 4.0, &[7, 8][..]));
    let (memory, inner) = scratch.split(12);
    memory[11] = 1.0;
    inner.f32(3)[2] = 2.0;
    assert_eq!(memory.len(), 12);
    let (memory, inner) = scratch.split(12);
    assert_eq!((memory[11], inner.f32(3)[2]), (1.0, 2.0), "scratch memory must be kept from task to task");
    assert_eq!((scratch.f32(4).len(), scratch.with_ids(4).0.len(), scratch.split(4).0.len()), (4, 4, 4));
    assert_eq!(scratch.f32(12)[11], 1.0);
}

#[test]
fn a_range_outside_a_shared_slice_panics() {
    let mut data = [1u8, 2, 3, 4];
    let shared = Disjoint::new(&mut data);
    #[allow(clippy::reversed_empty_ranges)]
    for (range, inside) in [(0..4, true), (4..4, true), (1..3, true), (0..5, false), (5..5, false), (3..2, false)] {
        // SAFETY: no other code holds a range.
        let slice = std::panic::AssertUnwindSafe(|| unsafe { shared.slice(range.clone()) }.to_vec());
        let found = std::panic::catch_unwind(slice).ok();
        assert_eq!(found, inside.then(|| [1, 2, 3, 4][range.clone()].to_vec()), "{range:?}");
    }
}
