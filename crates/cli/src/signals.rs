//! SIGINT, SIGTERM, SIGHUP and SIGUSR1. The first asks for a stop and says so at once; a second SIGINT or SIGTERM ends
//! the program at once, and its reward programs with it.
//!
//! As long as there is nothing to save, a stop that is not obeyed within [`PATIENCE`] ends the program, too: what reads
//! data, tokenises, hashes or loads looks at the request between its pieces, and a piece may be long.

use lockstep::StopSignal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use telemetry::Console;

/// How long what has nothing to save may take to obey.
const PATIENCE: Duration = Duration::from_millis(1000);

/// The first signal; 0 if none came.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// Whether the program may end at any moment: nothing that it has done is worth keeping.
static NOTHING_TO_SAVE: AtomicBool = AtomicBool::new(false);
/// Steps done by the run.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// What is half-written, and is removed if the program ends at once.
static PARTIAL: Mutex<Option<PathBuf>> = Mutex::new(None);

/// What is said when the first signal comes.
#[derive(Clone, Copy, Debug)]
pub enum Promise {
    /// The command stops its work when it is asked to.
    Stops(&'static str),
    /// The command keeps nothing, and ends within a second.
    Ends(&'static str),
    /// Of a run: until [`run_begins`] it keeps nothing, afterwards it has a checkpoint once a step is done.
    Run,
}

impl Promise {
    fn text(self) -> &'static str {
        match self {
            Promise::Stops(text) | Promise::Ends(text) => text,
            Promise::Run if NOTHING_TO_SAVE.load(Ordering::Relaxed) => "the run stops before it has begun",
            Promise::Run if STEPS.load(Ordering::Relaxed) == 0 => "the run stops before its first step is done",
            Promise::Run => "the run stops, with a checkpoint to resume from",
        }
    }
}

/// From now on the run saves what it has done when it is asked to stop: so many steps.
pub fn run_begins(steps: u64) {
    steps_done(steps);
    NOTHING_TO_SAVE.store(false, Ordering::Relaxed);
}

/// Takes note of the steps that the run has done.
pub fn steps_done(steps: u64) {
    STEPS.store(steps, Ordering::Relaxed);
}

/// What is to be removed if the program ends at once.
pub fn set_partial(path: Option<PathBuf>) {
    *PARTIAL.lock().unwrap_or_else(PoisonError::into_inner) = path;
}

/// A stop request that signals to this process make from now on; the first one says the promise on the console.
pub fn stop_on_signals(console: &Console, promise: Promise) -> anyhow::Result<StopSignal> {
    let (stop, console) = (StopSignal::new(), console.clone());
    NOTHING_TO_SAVE.store(!matches!(promise, Promise::Stops(_)), Ordering::Relaxed);
    // Under nohup: a run that is to outlive its terminal.
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1].into_iter().chain(hang_up))?;
    let asked = stop.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            let name = low_level::signal_name(signal).unwrap_or("a signal");
            if FIRST.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                let promise = promise.text();
                asked.request();
                let console = console.clone();
                // On threads of their own: a console that nobody reads must not hold up the second signal.
                std::thread::spawn(move || console.warn(&format!("{name}: {promise}; a second one ends it at once")));
                std::thread::spawn(move || {
                    std::thread::sleep(PATIENCE);
                    if NOTHING_TO_SAVE.load(Ordering::Relaxed) {
                        end_at_once(signal);
                    }
                });
            } else if matches!(signal, SIGINT | SIGTERM) {
                // (A terminal that is closed sends SIGHUP twice.)
                end_at_once(signal);
            }
        }
    })?;
    Ok(stop)
}

fn end_at_once(signal: i32) -> ! {
    rewards::end_programs();
    if let Some(partial) = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // Nothing can be said any more of what is left of it.
        let _ = std::fs::remove_dir_all(partial);
    }
    low_level::exit(code(signal))
}

/// The exit code of a program that a signal stopped: 130 after Ctrl-C.
pub fn exit_code() -> u8 {
    code(FIRST.load(Ordering::Relaxed)) as u8
}

/// As shells count.
fn code(signal: i32) -> i32 {
    128 + signal
}

/// Whether whoever started this process had `signal` ignored; where there is no /proc, nobody knows.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
