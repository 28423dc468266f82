//! Cancels a forward or backward pass between two layers, once its result is no longer needed.

use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Decides whether a pass should stop. It is called before each layer and each piece of the head. The default never
/// stops.
#[derive(Clone, Default)]
pub struct StopCheck(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl StopCheck {
    /// A check that calls `is_requested`, which returns true once the pass should stop.
    pub fn new(is_requested: impl Fn() -> bool + Send + Sync + 'static) -> StopCheck {
        StopCheck(Some(Arc::new(is_requested)))
    }

    /// Whether the pass should stop.
    pub fn is_requested(&self) -> bool {
        self.0.as_ref().is_some_and(|is_requested| is_requested())
    }

    /// Returns [`Error::Stopped`] if the pass should stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_requested() { Err(Error::Stopped) } else { Ok(()) }
    }
}

impl From<Arc<AtomicBool>> for StopCheck {
    fn from(flag: Arc<AtomicBool>) -> StopCheck {
        StopCheck::new(move || flag.load(Ordering::Relaxed))
    }
}
