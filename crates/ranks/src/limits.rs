//! How long ranks wait for each other.

use std::time::Duration;

/// How often ranks send heartbeats, and how long ranks wait for each other.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The time between two heartbeats.
    pub heartbeat: Duration,
    /// The time without a sign of life after which a rank is lost.
    pub silence: Duration,
    /// The time within which all ranks of a launch must have started.
    pub join: Duration,
    /// The time after which a rank that waits for another one to start prints a note.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        let [heartbeat, silence, join, patience] = [1, 15, 300, 10].map(Duration::from_secs);
        Limits { heartbeat, silence, join, patience }
    }
}
