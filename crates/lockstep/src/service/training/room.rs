//! The memory of requests that wait or are computed, bounded for each model and for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest number of bytes of one model's requests.
pub(super) const MOST_OF_MODEL: usize = 256 << 20;
/// The largest number of bytes of all requests.
pub(super) const MOST_OF_ALL: usize = 1 << 30;

/// The bytes of all requests.
#[derive(Clone, Debug)]
pub(super) struct Room {
    most_of_model: usize,
    most_of_all: usize,
    all: Arc<AtomicUsize>,
}

/// The bytes of one model's requests.
#[derive(Clone, Debug)]
pub(super) struct ModelRoom {
    room: Room,
    own: Arc<AtomicUsize>,
}

/// The bytes of a request, released when dropped.
#[derive(Debug)]
pub(super) struct Claim {
    of: ModelRoom,
    bytes: usize,
}

impl Room {
    pub fn new(most_of_model: usize, most_of_all: usize) -> Room {
        Room { most_of_model, most_of_all, all: Arc::default() }
    }

    /// The bytes now.
    pub fn bytes(&self) -> usize {
        self.all.load(Ordering::Acquire)
    }

    /// Room for a model without requests.
    pub fn for_model(&self) -> ModelRoom {
        ModelRoom { room: self.clone(), own: Arc::default() }
    }
}

impl ModelRoom {
    /// Claims the bytes of a request, if there is room. A request is always accepted if others of its model wait for it
    /// (`is_awaited`), because these cannot be computed, and keep their bytes, until it has arrived.
    pub fn claim(&self, bytes: usize, is_awaited: bool) -> Option<Claim> {
        // Requests are submitted one at a time, and other threads only release bytes.
        let fits = |count: &AtomicUsize, most: usize| count.load(Ordering::Acquire).saturating_add(bytes) <= most;
        let Room { most_of_model, most_of_all, all } = &self.room;
        let is_full = !fits(&self.own, *most_of_model) || !fits(all, *most_of_all);
        if is_full && !is_awaited {
            return None;
        }
        for count in [&self.own, all] {
            count.fetch_add(bytes, Ordering::AcqRel);
        }
        Some(Claim { of: self.clone(), bytes })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        for count in [&self.of.own, &self.of.room.all] {
            count.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}
