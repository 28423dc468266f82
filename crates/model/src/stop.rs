//! Cancels a pass between two layers, once nobody waits for its result.

use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a pass asks before each layer and each piece of the head: whether it is still wanted. The default always wants
/// it.
#[derive(Clone, Default)]
pub struct StopCheck(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl StopCheck {
    /// Asks `is_requested`, which gives true from some time on.
    pub fn new(is_requested: impl Fn() -> bool + Send + Sync + 'static) -> StopCheck {
        StopCheck(Some(Arc::new(is_requested)))
    }

    /// [`Error::Stopped`] once that is so.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Some(is_requested) if is_requested() => Err(Error::Stopped),
            _ => Ok(()),
        }
    }
}

impl From<Arc<AtomicBool>> for StopCheck {
    fn from(flag: Arc<AtomicBool>) -> StopCheck {
        StopCheck::new(move || flag.load(Ordering::Relaxed))
    }
}
