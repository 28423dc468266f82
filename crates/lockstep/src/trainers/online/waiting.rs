//! Which reward a run waits for, in its line of progress.

use crate::run::learner::Learner;
use crate::run::log::RunLog;
use std::time::Duration;
use telemetry::{EventKind, Sinks};

/// Where a run stands, as its progress says.
pub struct Progress {
    sinks: Sinks,
    /// With an empty note.
    event: EventKind,
}

impl Progress {
    /// Of a run between two steps.
    pub fn of(log: &RunLog, learner: &Learner) -> Progress {
        Progress { sinks: log.sinks().clone(), event: log.progress_event(learner, String::new()) }
    }

    /// The run waits for this reward since so long.
    pub fn waits(&self, reward: &str, time: Duration) {
        let mut event = self.event.clone();
        if let EventKind::Progress { note, .. } = &mut event {
            *note = format!("waits for reward {reward} since {} s", time.as_secs());
        }
        // The next event reports what is wrong with a sink.
        let _ = self.sinks.emit(event);
    }
}
