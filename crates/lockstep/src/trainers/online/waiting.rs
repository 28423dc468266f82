//! Which reward a run waits for, in its line of progress.

use crate::run::learner::Learner;
use crate::run::log::RunLog;
use rewards::Asked;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Scope;
use std::time::Duration;
use telemetry::{EventKind, Sinks};

/// A wait that is longer is said, and then again each time that it has passed.
const LONG: Duration = Duration::from_secs(10);

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

    fn waits(&self, (reward, time): (String, Duration)) {
        let mut event = self.event.clone();
        if let EventKind::Progress { note, .. } = &mut event {
            *note = format!("waits for reward {reward} since {} s", time.as_secs());
        }
        // The next event reports what is wrong with a sink.
        let _ = self.sinks.emit(event);
    }
}

/// What `wait` gives, which waits for rewards; while it takes long, progress names the one that is asked.
pub fn watched<'scope, T>(
    scope: &'scope Scope<'scope, '_>,
    progress: Progress,
    asked: Asked,
    wait: impl FnOnce() -> T,
) -> T {
    let (done, ended) = channel::<()>();
    scope.spawn(move || {
        while ended.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
            asked.longest().into_iter().for_each(|asked| progress.waits(asked));
        }
    });
    let given = wait();
    drop(done);
    given
}
