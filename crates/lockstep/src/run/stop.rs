//! SIGINT, SIGTERM, SIGUSR1, or a program's own wish: finish the step, write a checkpoint, end. A second signal exits at once.

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a run is asked to stop; a clone is another handle to the same wish.
#[derive(Clone, Debug, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// One that only [`request`](Self::request) gives.
    pub fn new() -> StopSignal {
        StopSignal::default()
    }

    /// One that this process's signals give, from now on.
    pub fn from_signals() -> anyhow::Result<StopSignal> {
        let requested = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGUSR1] {
            // In this order: the first signal finds the flag unset, passes the shutdown by, and sets it; the second exits.
            signal_hook::flag::register_conditional_shutdown(signal, 1, requested.clone())?;
            signal_hook::flag::register(signal, requested.clone())?;
        }
        Ok(StopSignal(requested))
    }

    /// Asks the run to stop after its step.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to stop after its step.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
