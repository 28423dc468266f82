//! Shows in the progress line which reward a run is waiting for.

use crate::run::learner::Learner;
use crate::run::log::RunLog;
use crate::run::training::TrainingRun;
use crate::sources::Watch;
use std::time::Duration;
use telemetry::{EventKind, Sinks};

/// The progress of a run, to which notes can be added.
pub struct Progress {
    sinks: Sinks,
    /// The progress event, with an empty note.
    event: EventKind,
}

impl Progress {
    /// The progress of a run between two steps.
    pub fn of(log: &RunLog, learner: &Learner) -> Progress {
        Progress { sinks: log.sinks().clone(), event: log.progress_event(learner, String::new()) }
    }

    /// Reports that the run has waited for `reward` for `time`.
    pub fn waits(&self, reward: &str, time: Duration) {
        let mut event = self.event.clone();
        if let EventKind::Progress { note, .. } = &mut event {
            *note = format!("waiting for reward {reward} for {} s", time.as_secs());
        }
        // The next event reports a sink's failure.
        let _ = self.sinks.emit(event);
    }
}

/// Calls `wait` with the checks and reports of a source of batches, while `run` waits for it.
pub fn watched<T>(run: &TrainingRun, wait: impl FnOnce(&Watch<'_>) -> T) -> T {
    let progress = Progress::of(&run.log, &run.learner);
    wait(&Watch {
        stop: &run.stop,
        stages: &run.log.stages,
        on_wait: &|reward, time| progress.waits(reward, time),
        warn: &|text| run.log.warn(text),
    })
}
