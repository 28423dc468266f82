//! Which reward a run waits for, in its line of progress.

use crate::run::training::TrainingRun;
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
    label: String,
    done: u64,
    total: u64,
}

impl Progress {
    /// Of a run between two steps.
    pub fn of(run: &TrainingRun) -> Progress {
        let (sinks, label) = (run.reporter.sinks().clone(), run.label.to_owned());
        Progress { sinks, label, done: run.step, total: run.schedule.total_steps }
    }

    fn waits(&self, (reward, time): (String, Duration)) {
        let Progress { sinks, label, done, total } = self;
        let note = format!("waits for reward {reward} since {} s", time.as_secs());
        // The next event reports what is wrong with a sink.
        let _ = sinks.emit(EventKind::Progress { label: label.clone(), done: *done, total: *total, note });
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
