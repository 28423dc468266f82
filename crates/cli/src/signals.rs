//! Handles SIGINT, SIGTERM, SIGHUP and SIGUSR1. The first signal requests a stop, and a message says so at once. A
//! second SIGINT or SIGTERM ends the program immediately, together with its reward programs.
//!
//! While there is nothing to save, the program also ends if it does not stop within [`PATIENCE`]: loading, tokenising
//! and hashing check for a stop request only between pieces of work, and a piece may take long.

use lockstep::StopSignal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use telemetry::Console;

/// How long the program may take to stop while it has nothing to save.
const PATIENCE: Duration = Duration::from_millis(1000);

/// The number of the first signal; 0 if none has come.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// Whether the program may be ended at any moment, because it has nothing to save.
static NOTHING_TO_SAVE: AtomicBool = AtomicBool::new(false);
/// Number of steps that the training run has done.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// A half-written directory, which is removed if the program is ended at once.
static PARTIAL: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The message for the first signal.
#[derive(Clone, Copy, Debug)]
pub enum Promise {
    /// The command stops its work when a stop is requested.
    Stops(&'static str),
    /// The command saves nothing, and ends within a second.
    Ends(&'static str),
    /// A training run: it saves nothing until [`run_begins`]; later it writes a checkpoint if at least one step is
    /// done.
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

/// From now on a stop request makes the run save its work. `steps` steps are already done.
pub fn run_begins(steps: u64) {
    steps_done(steps);
    NOTHING_TO_SAVE.store(false, Ordering::Relaxed);
}

/// Stores how many steps the run has done, for the message that a signal prints.
pub fn steps_done(steps: u64) {
    STEPS.store(steps, Ordering::Relaxed);
}

/// Sets the half-written directory that is removed if the program is ended at once.
pub fn set_partial(path: Option<PathBuf>) {
    *PARTIAL.lock().unwrap_or_else(PoisonError::into_inner) = path;
}

/// A stop request that signals to this process set from now on. The first signal prints the message of `promise` on the
/// console.
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

/// The exit code for a signal, as shells report it.
fn code(signal: i32) -> i32 {
    128 + signal
}

/// Whether the parent of this process had `signal` ignored; false where there is no /proc.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_promises_what_is_saved_at_that_moment() {
        let words = [Promise::Stops("stops"), Promise::Ends("ends")].map(Promise::text);
        assert_eq!(words, ["stops", "ends"]);
        NOTHING_TO_SAVE.store(true, Ordering::Relaxed);
        assert_eq!(Promise::Run.text(), "the run stops before it has begun");
        run_begins(0);
        assert_eq!(Promise::Run.text(), "the run stops before its first step is done");
        steps_done(1);
        assert_eq!(Promise::Run.text(), "the run stops, with a checkpoint to resume from");
        run_begins(0);
        assert_eq!(Promise::Run.text(), "the run stops before its first step is done");
        run_begins(7);
        assert_eq!(Promise::Run.text(), "the run stops, with a checkpoint to resume from");
    }

    #[test]
    fn exit_codes_are_those_of_shells_and_rust_ignores_a_closed_pipe() {
        assert_eq!([SIGINT, SIGTERM, SIGHUP].map(code), [130, 143, 129]);
        let sigpipe = signal_hook::consts::SIGPIPE;
        let ignored = [sigpipe - 1, sigpipe, sigpipe + 1].map(is_ignored);
        assert_eq!(ignored, [false, cfg!(target_os = "linux"), false]);
    }
}
