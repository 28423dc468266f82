//! SIGINT, SIGTERM, SIGHUP and SIGUSR1. The first asks for a stop and says so at once; a second SIGINT or SIGTERM ends
//! the program at once, and its reward programs with it.

use lockstep::StopSignal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use std::sync::atomic::{AtomicI32, Ordering};
use telemetry::Console;

/// The first signal; 0 if none came.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// A stop request that signals to this process make from now on; the first one prints `promise` on the console.
pub fn stop_on_signals(console: &Console, promise: &'static str) -> anyhow::Result<StopSignal> {
    let (stop, console) = (StopSignal::new(), console.clone());
    // Under nohup: a run that is to outlive its terminal.
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1].into_iter().chain(hang_up))?;
    let asked = stop.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            let name = low_level::signal_name(signal).unwrap_or("a signal");
            if FIRST.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                asked.request();
                let console = console.clone();
                // On a thread of its own: a console that nobody reads must not hold up the second signal.
                std::thread::spawn(move || console.warn(&format!("{name}: {promise}; a second one ends it at once")));
            } else if matches!(signal, SIGINT | SIGTERM) {
                // (A terminal that is closed sends SIGHUP twice.)
                rewards::end_programs();
                low_level::exit(code(signal));
            }
        }
    })?;
    Ok(stop)
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
