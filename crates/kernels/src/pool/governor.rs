//! The governor chooses how many threads of the pool take tasks when other processes need cores too.
//!
//! With other processes on the machine, a pool thread may have to share its core. The scheduler then preempts the
//! thread in the middle of a task for some milliseconds while the caller waits for that task, or wakes the thread on
//! the caller's own core and preempts the caller. So every few milliseconds the governor compares the work done by the
//! workers with the time that they cost the caller. If the cost is higher, the governor parks the workers that had to
//! wait for a core, and from time to time it tries one more thread.
//!
//! In a window of length w, let u be the time that workers spent running tasks, and d the time that the caller spent
//! off its core or waiting for a worker's task. The pool did w − d + u of work, and the caller alone would have done w,
//! so workers pay off while u > d.

use super::sleep::Sleepers;
use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Time between two comparisons of gain and cost: two or three time slices of the scheduler. A comparison takes a few
/// microseconds.
const WINDOW: Duration = Duration::from_millis(8);
/// A thread is assumed to share its core if it waited for a core for more than one part in `WAITED_PART` of the time.
const WAITED_PART: u32 = 8;
/// Delay before one more thread is tried. The delay doubles with every failure; these are its initial value and
/// maximum.
const REST: Duration = Duration::from_millis(16);
const LONGEST_REST: Duration = Duration::from_millis(640);

/// The number of threads that take tasks, and the clocks of the workers: the state that the caller and the workers
/// share.
pub(super) struct Governor {
    /// Number of threads that take tasks, including the caller's: at least 1.
    limit: AtomicUsize,
    /// Upper bound of `limit`: the number of threads, or of cores if the process currently has fewer cores.
    most: AtomicUsize,
    /// Worker threads that sleep because they are beyond the limit.
    resting: Sleepers,
    workers: Box<[Worker]>,
}

/// Measurements of one worker thread, on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Worker {
    /// Nanoseconds that the worker spent in tasks, including time preempted in the middle of one.
    busy: AtomicU64,
    clock: OnceLock<Clock>,
}

impl Governor {
    pub fn new(threads: usize) -> Governor {
        let workers = (1..threads).map(|_| Worker::default()).collect();
        let [limit, most] = [threads; 2].map(AtomicUsize::new);
        Governor { limit, most, resting: Sleepers::default(), workers }
    }

    /// Number of threads that take tasks, including the caller's.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::SeqCst)
    }

    /// Worker `i` ≥ 1 has started: opens the clock of the calling thread for it.
    pub fn enter(&self, i: usize) {
        if let Some(clock) = Clock::current() {
            let _ = self.workers[i - 1].clock.set(clock);
        }
    }

    /// Adds `time` to the time that worker `i` spent in tasks.
    pub fn worked(&self, i: usize, time: Duration) {
        self.workers[i - 1].busy.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Puts worker `i` to sleep while its index is beyond the limit and `stop` is false.
    pub fn rest(&self, i: usize, stop: impl Fn() -> bool) {
        self.resting.sleep(|| i < self.limit() || stop());
    }

    /// Sets the number of threads that take tasks to `limit`. Threads beyond the limit finish their current task.
    pub fn set_limit(&self, limit: usize) {
        if self.limit.swap(limit, Ordering::SeqCst) < limit {
            self.call_all();
        }
    }

    /// Lets at most `threads` threads take tasks from now on; initially all of them do.
    pub fn set_most(&self, threads: usize) {
        let most = threads.clamp(1, self.workers.len() + 1);
        if self.most.swap(most, Ordering::SeqCst) != most {
            self.set_limit(most);
        }
    }

    #[cfg(test)]
    pub fn resting(&self) -> usize {
        self.resting.asleep()
    }

    /// Wakes the parked workers, so that they check the limit again.
    pub fn call_all(&self) {
        self.resting.call(usize::MAX);
    }
}

/// The measurements of the caller of parallel regions, from which it sets the governor's limit.
pub(super) struct Watch {
    /// The calling thread of the last window, and its clock.
    caller: Option<(ThreadId, Clock)>,
    caller_delay: Duration,
    /// How long the caller waited for workers since the last comparison.
    waited: Duration,
    /// For each worker, the readings at the last comparison: the time in which it ran tasks, and the time in which it
    /// was ready to run but had no core.
    readings: Vec<(Duration, Duration)>,
    since: Instant,
    /// The gain and cost of workers over the last windows.
    balance: Balance,
    /// The time of the next trial with one more thread, and the delay until another trial if that one fails.
    again: Instant,
    rest: Duration,
}

/// The gain and cost of workers in one window, or an exponentially weighted sum over windows in which each window
/// weighs three quarters of the next.
#[derive(Clone, Copy, Default)]
struct Balance {
    /// Number of threads that shared a core with other processes.
    sharing: usize,
    gain: Duration,
    cost: Duration,
}

impl Watch {
    pub fn new(threads: usize) -> Watch {
        let now = Instant::now();
        Watch {
            caller: None,
            caller_delay: Duration::ZERO,
            waited: Duration::ZERO,
            readings: vec![Default::default(); threads - 1],
            since: now,
            balance: Balance::default(),
            again: now,
            rest: REST,
        }
    }

    /// Adds the time that the caller waited for tasks that workers had begun.
    pub fn waited(&mut self, time: Duration) {
        self.waited += time;
    }

    /// Called between two regions: at the end of a window, compares gain and cost and sets the limit.
    pub fn look(&mut self, governor: &Governor) {
        let now = Instant::now();
        if now - self.since < WINDOW {
            return;
        }
        let here = std::thread::current().id();
        let anew = self.caller.as_ref().is_none_or(|(id, _)| *id != here);
        if anew {
            self.caller = Clock::current().map(|clock| (here, clock));
        }
        let (limit, window) = (governor.limit(), now - self.since);
        let balance = self.read(governor, limit, window);
        self.since = now;
        if !anew {
            let limit = self.next_limit(limit, governor.most.load(Ordering::SeqCst), balance, window, now);
            if limit != governor.limit() {
                governor.set_limit(limit);
            }
        }
    }

    /// Reads the clocks of all workers. Gain is the work that the workers among the first `limit` threads did since the
    /// last comparison. Only workers that shared a core count, or all of them if none did. Cost is the time that these
    /// workers cost the other threads.
    fn read(&mut self, governor: &Governor, limit: usize, window: Duration) -> Balance {
        let (mut sharing, mut delays, mut theirs, mut all) = (0, Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for (i, (worker, before)) in governor.workers.iter().zip(&mut self.readings).enumerate() {
            let busy = Duration::from_nanos(worker.busy.load(Ordering::Relaxed));
            let delay = worker.clock.get().and_then(Clock::read).unwrap_or_default();
            let (new_busy, new_delay) = (busy.saturating_sub(before.0), delay.saturating_sub(before.1));
            *before = (busy, delay);
            if i + 1 >= limit {
                continue;
            }
            let did = new_busy.saturating_sub(new_delay);
            all += did;
            if new_delay > window / WAITED_PART {
                (sharing, delays, theirs) = (sharing + 1, delays + new_delay, theirs + did);
            }
        }
        let delay = self.caller.as_ref().and_then(|(_, clock)| clock.read()).unwrap_or_default();
        let lost = delay.saturating_sub(self.caller_delay) + std::mem::take(&mut self.waited).min(delays);
        self.caller_delay = delay;
        let gain = if sharing == 0 { all } else { theirs };
        let others = if sharing == 0 { 1 } else { limit - sharing };
        Balance { sharing: sharing.max(1), gain, cost: lost * others as u32 }
    }

    /// The number of threads, at most `threads`, that take tasks after a window in which `limit` threads had the
    /// balance `new`.
    fn next_limit(&mut self, limit: usize, threads: usize, new: Balance, window: Duration, now: Instant) -> usize {
        let faded = |old: Duration, new: Duration| old - old / 4 + new;
        self.balance.gain = faded(self.balance.gain, new.gain);
        self.balance.cost = faded(self.balance.cost, new.cost);
        let Balance { gain, cost, .. } = self.balance;
        if limit > 1 && new.cost > window / WAITED_PART && cost > gain {
            // A region may last longer than the window, so the delay is at least 16 windows.
            self.again = now + self.rest.max(16 * window);
            self.rest = (2 * self.rest).min(LONGEST_REST);
            self.balance = Balance::default();
            return limit.saturating_sub(new.sharing).max(1);
        }
        if limit < threads && now >= self.again {
            self.balance = Balance::default();
            return limit + 1;
        }
        if limit == threads {
            // One good window may only mean that the scheduler favoured a thread because it had slept for a long time.
            self.rest = (self.rest - self.rest / 8).max(REST);
        }
        limit
    }
}

/// Reads a thread's run delay from Linux: how long it was ready to run but had no core. Other systems do not report it.
struct Clock(File);

impl Clock {
    fn current() -> Option<Clock> {
        let there = cfg!(all(target_os = "linux", not(miri)));
        there.then(|| File::open("/proc/thread-self/schedstat")).and_then(Result::ok).map(Clock)
    }

    #[cfg(unix)]
    fn read(&self) -> Option<Duration> {
        let mut text = [0; 80];
        let len = std::os::unix::fs::FileExt::read_at(&self.0, &mut text, 0).ok()?;
        run_delay(&text[..len])
    }
    #[cfg(not(unix))]
    fn read(&self) -> Option<Duration> {
        None
    }
}

/// Parses the run delay, the second number of a line of `schedstat`: time on a core, run delay (both in ns), time
/// slices.
fn run_delay(text: &[u8]) -> Option<Duration> {
    let mut numbers = str::from_utf8(text).ok()?.split_ascii_whitespace();
    numbers.nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(1);

    fn balance(sharing: usize, gain: u64, cost: u64) -> Balance {
        Balance { sharing, gain: Duration::from_millis(gain), cost: Duration::from_millis(cost) }
    }

    #[test]
    fn costly_workers_are_parked_and_retried_with_growing_delays() {
        let (mut watch, mut now) = (Watch::new(8), Instant::now());
        let (good, bad) = (balance(1, 12, 1), |sharing| balance(sharing, 1, 7));
        assert_eq!(watch.next_limit(8, 8, good, WINDOW, now), 8);
        assert_eq!(watch.next_limit(8, 8, bad(3), WINDOW, now), 8, "gains of earlier windows count, too");
        assert_eq!(watch.next_limit(8, 8, bad(3), WINDOW, now), 5);
        assert_eq!(watch.next_limit(5, 8, bad(5), WINDOW, now), 1, "the caller is never parked");
        assert_eq!(watch.next_limit(1, 8, bad(1), WINDOW, now), 1);
        let mut limit = 1;
        let mut rests = Vec::new();
        for _ in 0..8 {
            let start = now;
            while limit == 1 {
                now += WINDOW;
                limit = watch.next_limit(1, 8, balance(1, 0, 0), WINDOW, now);
            }
            assert_eq!(limit, 2, "one more worker is tried at a time");
            rests.push(now - start);
            limit = watch.next_limit(2, 8, bad(1), WINDOW, now);
        }
        assert!(rests.is_sorted(), "{rests:?}");
        assert!(rests[7] >= LONGEST_REST && rests[7] < LONGEST_REST + 2 * WINDOW, "{rests:?}");
        // If cores are free, all workers resume immediately. After some time, the retry delay is back at its initial
        // value.
        now += LATER;
        for limit in 1..8 {
            assert_eq!(watch.next_limit(limit, 8, good, WINDOW, now), limit + 1);
        }
        for _ in 0..100 {
            assert_eq!(watch.next_limit(8, 8, good, WINDOW, now), 8);
        }
        assert_eq!(watch.rest, REST);
    }

    #[test]
    fn small_delays_do_not_park_workers() {
        let (mut watch, now) = (Watch::new(2), Instant::now());
        for _ in 0..100 {
            let little = Balance { sharing: 1, gain: Duration::ZERO, cost: WINDOW / (WAITED_PART + 1) };
            assert_eq!(watch.next_limit(2, 2, little, WINDOW, now), 2);
        }
    }

    #[test]
    fn no_thread_is_tried_after_a_region_longer_than_the_window() {
        let (mut watch, now) = (Watch::new(2), Instant::now());
        assert_eq!(watch.next_limit(2, 2, balance(1, 0, 500), LATER, now), 1);
        assert_eq!(watch.next_limit(1, 2, balance(1, 0, 0), LATER, now + 15 * LATER), 1);
        assert_eq!(watch.next_limit(1, 2, balance(1, 0, 0), LATER, now + 16 * LATER), 2);
    }

    #[test]
    fn the_balance_counts_only_threads_that_shared_a_core() {
        let governor = Governor::new(4);
        let ms = Duration::from_millis;
        for i in 1..4 {
            governor.worked(i, ms(6));
        }
        let mut watch = Watch::new(4);
        watch.waited(ms(5));
        // No worker waited for a core, so the caller waited only for the end of the workers' tasks.
        let balance = watch.read(&governor, 3, WINDOW);
        assert_eq!((balance.sharing, balance.gain, balance.cost), (1, ms(12), ms(0)), "two workers within the limit");
        let balance = watch.read(&governor, 4, WINDOW);
        assert_eq!((balance.gain, balance.cost), (ms(0), ms(0)), "each comparison starts from the previous readings");
    }

    #[test]
    fn the_run_delay_is_parsed_from_schedstat() {
        assert_eq!(run_delay(b"1234 56789 3\n"), Some(Duration::from_nanos(56789)));
        assert_eq!(run_delay(b""), None);
        assert_eq!(run_delay(b"12 x 3"), None);
        let Some(clock) = Clock::current() else { return };
        let first = clock.read().unwrap();
        assert!(clock.read().unwrap() >= first);
    }

    #[test]
    fn the_thread_limit_stays_within_its_bounds() {
        let governor = Governor::new(4);
        assert_eq!(governor.limit(), 4);
        for (most, limit) in [(0, 1), (2, 2), (9, 4), (3, 3)] {
            governor.set_most(most);
            assert_eq!(governor.limit(), limit, "{most}");
        }
        governor.set_limit(2);
        governor.set_most(3);
        assert_eq!(governor.limit(), 2, "the same bound changes nothing");
        governor.set_most(4);
        assert_eq!(governor.limit(), 4);
    }
}
