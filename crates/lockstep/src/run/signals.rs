//! SIGINT, SIGTERM, SIGUSR1: finish the step, write a checkpoint, exit. A second one exits at once.

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody asked the run to stop.
#[derive(Clone)]
pub struct StopRequest(Arc<AtomicBool>);

impl StopRequest {
    /// Listens from now on.
    pub fn listen() -> anyhow::Result<StopRequest> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGUSR1] {
            // In this order: the first signal finds the flag unset, passes the shutdown by, and sets it; the second exits.
            signal_hook::flag::register_conditional_shutdown(signal, 1, asked.clone())?;
            signal_hook::flag::register(signal, asked.clone())?;
        }
        Ok(StopRequest(asked))
    }

    /// One that nobody will ever ask.
    pub fn never() -> StopRequest {
        StopRequest(Arc::default())
    }

    /// Whether to stop after this step.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
