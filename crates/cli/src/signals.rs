//! Handles SIGINT, SIGTERM, SIGHUP and SIGUSR1, by the same [rules](Rules) in every command and every process of a run:
//! - The first signal requests a stop. A message acknowledges it at once.
//! - A second SIGINT or SIGTERM ends the program immediately, together with its reward programs.
//! - A second SIGHUP or SIGUSR1 is ignored, since closing a terminal sends SIGHUP twice.
//! - A signal that arrives twice within [`SAME`] is handled once: `timeout` and batch systems signal both the process
//!   and its process group.
//! - SIGHUP stays ignored if the parent ignored it (`nohup`): the run must survive the end of its terminal.
//! - A learner and its workers ignore a second signal, since the supervisor may have passed on the first one again. The
//!   supervisor kills them if they must end at once.
//!
//! While there is nothing to save, the program also exits if it does not stop within [`STOP_TIMEOUT`]: loading,
//! tokenising and hashing check for a stop request only between units of work, and one unit may take a long time.

use fleet::supervisor::{Asked, SUPERVISED};
use lockstep::StopSignal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use telemetry::Console;

/// How long the program may take to stop while there is nothing to save.
const STOP_TIMEOUT: Duration = Duration::from_millis(1000);

/// A signal repeated within this time is treated as the same signal. The message is printed after this time, so that a
/// signal that the user sends in response to it counts as the second one.
const SAME: Duration = Duration::from_millis(50);

/// The number of the first signal; 0 if none has arrived.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// Whether the program may exit at any time, because there is nothing to save.
static NOTHING_TO_SAVE: AtomicBool = AtomicBool::new(false);
/// Number of completed training steps.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// A channel that disconnects once the message about the first signal has been written.
static ACKNOWLEDGED: Mutex<Option<Receiver<()>>> = Mutex::new(None);
/// An incomplete directory, which is removed if the program must exit at once.
static PARTIAL: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The promise in the message about the first signal.
#[derive(Clone, Copy, Debug)]
pub enum Promise {
    /// The command stops its work on a stop request.
    Stops(&'static str),
    /// The command saves nothing and exits within a second.
    Ends(&'static str),
    /// A training run: it saves nothing before [`run_begins`]; after that it writes a checkpoint if at least one step
    /// is complete.
    Run,
}

impl Promise {
    fn text(self) -> &'static str {
        match self {
            Promise::Stops(text) | Promise::Ends(text) => text,
            Promise::Run if NOTHING_TO_SAVE.load(Ordering::Relaxed) => "the run stops before training begins",
            Promise::Run if STEPS.load(Ordering::Relaxed) == 0 => "the run stops before the first step is complete",
            Promise::Run => "the run writes a checkpoint and stops",
        }
    }
}

/// From now on, the run saves its work on a stop request. `steps` steps are already complete.
pub fn run_begins(steps: u64) {
    steps_done(steps);
    NOTHING_TO_SAVE.store(false, Ordering::Relaxed);
}

/// Stores the number of completed steps, for the message about a signal.
pub fn steps_done(steps: u64) {
    STEPS.store(steps, Ordering::Relaxed);
}

/// Sets the incomplete directory that is removed if the program must exit at once.
pub fn set_partial(path: Option<PathBuf>) {
    *PARTIAL.lock().unwrap_or_else(PoisonError::into_inner) = path;
}

/// Maps each signal to a request, depending on the signals before it.
#[derive(Debug, Default)]
struct Rules {
    first: Option<(i32, Instant)>,
    is_supervised: bool,
}

impl Rules {
    fn read(&mut self, signal: i32, now: Instant) -> Option<Asked> {
        let Some((first, at)) = self.first else {
            self.first = Some((signal, now));
            return Some(Asked::Stop(signal));
        };
        let is_same = signal == first && now.duration_since(at) < SAME;
        let is_urgent = matches!(signal, SIGINT | SIGTERM) && !is_same && !self.is_supervised;
        is_urgent.then_some(Asked::AtOnce(signal))
    }
}

/// Calls `hear` with the request of each signal that this process receives from now on. `is_supervised` is set in a
/// process whose supervisor decides when to exit at once.
fn listen(is_supervised: bool, mut hear: impl FnMut(Asked) + Send + 'static) -> std::io::Result<()> {
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1].into_iter().chain(hang_up))?;
    let mut rules = Rules { is_supervised, ..Rules::default() };
    let heard = move || signals.forever().filter_map(|signal| rules.read(signal, Instant::now())).for_each(&mut hear);
    std::thread::Builder::new().name("signals".to_owned()).spawn(heard).map(drop)
}

/// Returns a channel with the requests of all signals that this process receives from now on, for a supervisor.
pub fn requests() -> std::io::Result<Receiver<Asked>> {
    let (sender, requests) = channel();
    // An error means that the supervisor is exiting and no longer listens.
    listen(false, move |asked| sender.send(asked).unwrap_or_default())?;
    Ok(requests)
}

/// Returns a stop signal that is set as soon as a signal arrives at this process. The first signal prints the message
/// of `promise` on the console.
pub fn stop_on_signals(console: &Console, promise: Promise) -> anyhow::Result<StopSignal> {
    let (stop, console) = (StopSignal::new(), console.clone());
    NOTHING_TO_SAVE.store(!matches!(promise, Promise::Stops(_)), Ordering::Relaxed);
    let asked = stop.clone();
    let hear = move |request| match request {
        Asked::AtOnce(signal) => end_at_once(signal),
        Asked::Stop(signal) => {
            let (name, promise) = (low_level::signal_name(signal).unwrap_or("a signal"), promise.text());
            let line = format!("{name}: {promise}; a second signal stops it at once");
            FIRST.store(signal, Ordering::Relaxed);
            let (written, acknowledged) = channel();
            *ACKNOWLEDGED.lock().unwrap_or_else(PoisonError::into_inner) = Some(acknowledged);
            let (reported, message) = channel::<()>();
            asked.request();
            let console = console.clone();
            // Printed on a separate thread: a blocked console must not delay the second signal.
            std::thread::spawn(move || {
                std::thread::sleep(SAME);
                console.warn(&line);
                drop((written, reported));
            });
            std::thread::spawn(move || {
                std::thread::sleep(STOP_TIMEOUT);
                // The message may take longer on a busy machine. A blocked console delays the exit only once.
                let _ = message.recv_timeout(STOP_TIMEOUT);
                if NOTHING_TO_SAVE.load(Ordering::Relaxed) {
                    end_at_once(signal);
                }
            });
        }
    };
    listen(std::env::var_os(SUPERVISED).is_some(), hear)?;
    Ok(stop)
}

fn end_at_once(signal: i32) -> ! {
    rewards::end_programs();
    if let Some(partial) = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // It is too late to report an error.
        let _ = std::fs::remove_dir_all(partial);
    }
    low_level::exit(code(signal))
}

/// The exit code of a program that was stopped by a signal: 130 after Ctrl-C. Called at the end of the program; the
/// message of the signal may still be unwritten then.
pub fn exit_code() -> u8 {
    let acknowledged = ACKNOWLEDGED.lock().unwrap_or_else(PoisonError::into_inner).take();
    // A blocked console delays the exit by at most this time.
    acknowledged.map(|acknowledged| acknowledged.recv_timeout(STOP_TIMEOUT));
    code(FIRST.load(Ordering::Relaxed)) as u8
}

/// The exit code for a signal, as shells report it.
fn code(signal: i32) -> i32 {
    128 + signal
}

/// Whether the parent process made this process ignore `signal`; false where there is no /proc.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_signal_depends_on_the_state_of_the_run() {
        let words = [Promise::Stops("stops"), Promise::Ends("ends")].map(Promise::text);
        assert_eq!(words, ["stops", "ends"]);
        NOTHING_TO_SAVE.store(true, Ordering::Relaxed);
        assert_eq!(Promise::Run.text(), "the run stops before training begins");
        run_begins(0);
        assert_eq!(Promise::Run.text(), "the run stops before the first step is complete");
        steps_done(1);
        assert_eq!(Promise::Run.text(), "the run writes a checkpoint and stops");
        run_begins(0);
        assert_eq!(Promise::Run.text(), "the run stops before the first step is complete");
        run_begins(7);
        assert_eq!(Promise::Run.text(), "the run writes a checkpoint and stops");
    }

    #[test]
    fn every_sequence_of_signals_makes_the_expected_requests() {
        use Asked::{AtOnce, Stop};
        let (ms, none) = (|ms: u64| Duration::from_millis(ms), None);
        type Sent = &'static [(i32, u64)];
        // Signals with their time in milliseconds, and the request that each makes in a single process. In a supervised
        // process only the first signal makes a request.
        let table: [(Sent, &[Option<Asked>]); 24] = [
            (&[(SIGINT, 0)], &[Some(Stop(2))]),
            (&[(SIGTERM, 0)], &[Some(Stop(15))]),
            (&[(SIGHUP, 0)], &[Some(Stop(1))]),
            (&[(SIGUSR1, 0)], &[Some(Stop(10))]),
            (&[(SIGINT, 0), (SIGINT, 500)], &[Some(Stop(2)), Some(AtOnce(2))]),
            (&[(SIGINT, 0), (SIGINT, 50)], &[Some(Stop(2)), Some(AtOnce(2))]),
            (&[(SIGINT, 0), (SIGTERM, 500)], &[Some(Stop(2)), Some(AtOnce(15))]),
            (&[(SIGTERM, 0), (SIGTERM, 500)], &[Some(Stop(15)), Some(AtOnce(15))]),
            (&[(SIGTERM, 0), (SIGINT, 500)], &[Some(Stop(15)), Some(AtOnce(2))]),
            (&[(SIGTERM, 0), (SIGINT, 1)], &[Some(Stop(15)), Some(AtOnce(2))]),
            (&[(SIGHUP, 0), (SIGHUP, 0)], &[Some(Stop(1)), none]),
            (&[(SIGHUP, 0), (SIGHUP, 5000)], &[Some(Stop(1)), none]),
            (&[(SIGHUP, 0), (SIGHUP, 5), (SIGHUP, 10), (SIGINT, 15)], &[Some(Stop(1)), none, none, Some(AtOnce(2))]),
            (&[(SIGUSR1, 0), (SIGUSR1, 5000)], &[Some(Stop(10)), none]),
            (&[(SIGUSR1, 0), (SIGTERM, 5000)], &[Some(Stop(10)), Some(AtOnce(15))]),
            (&[(SIGUSR1, 0), (SIGHUP, 5000)], &[Some(Stop(10)), none]),
            (&[(SIGINT, 0), (SIGHUP, 5000), (SIGUSR1, 5000)], &[Some(Stop(2)), none, none]),
            (&[(SIGINT, 0), (SIGHUP, 100), (SIGINT, 200)], &[Some(Stop(2)), none, Some(AtOnce(2))]),
            (&[(SIGTERM, 0), (SIGTERM, 0)], &[Some(Stop(15)), none]),
            (&[(SIGTERM, 0), (SIGTERM, 49)], &[Some(Stop(15)), none]),
            (&[(SIGINT, 0), (SIGINT, 0)], &[Some(Stop(2)), none]),
            (&[(SIGTERM, 0), (SIGTERM, 1), (SIGTERM, 900)], &[Some(Stop(15)), none, Some(AtOnce(15))]),
            (&[(SIGHUP, 0), (SIGTERM, 1)], &[Some(Stop(1)), Some(AtOnce(15))]),
            (&[(SIGINT, 0), (SIGINT, 99), (SIGINT, 200)], &[Some(Stop(2)), Some(AtOnce(2)), Some(AtOnce(2))]),
        ];
        let begun = Instant::now();
        for (sent, asked) in table {
            for is_supervised in [false, true] {
                let mut rules = Rules { is_supervised, ..Rules::default() };
                let found: Vec<_> = sent.iter().map(|(signal, at)| rules.read(*signal, begun + ms(*at))).collect();
                let first_only: Vec<_> = asked.iter().map(|asked| asked.filter(|a| matches!(a, Stop(_)))).collect();
                assert_eq!(found, if is_supervised { &first_only[..] } else { asked }, "{sent:?} {is_supervised}");
            }
        }
    }

    #[test]
    fn exit_codes_match_shells_and_sigpipe_is_ignored() {
        assert_eq!([SIGINT, SIGTERM, SIGHUP].map(code), [130, 143, 129]);
        let sigpipe = signal_hook::consts::SIGPIPE;
        let ignored = [sigpipe - 1, sigpipe, sigpipe + 1].map(is_ignored);
        assert_eq!(ignored, [false, cfg!(target_os = "linux"), false]);
    }
}
