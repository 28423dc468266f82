//! Which reward a run waits for, in its line of progress.

use crate::run::training::TrainingRun;
use rewards::Asked;
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Scope;
use std::time::Duration;
use telemetry::{EventKind, Sinks};

/// A wait that is longer is said, and then again each time that it has passed.
const LONG: Duration = Duration::from_secs(10);

/// Rewards that take less than this many seconds of a step are not slow, whatever their share.
const SLOW_S: f64 = 1.0;

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

/// The reward that took most, if the run waited longer for rewards than for completions.
pub fn slow_reward(rollout_s: f64, waited_s: f64, of_rewards: &BTreeMap<String, f64>) -> Option<String> {
    let (name, seconds) = of_rewards.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    (waited_s > SLOW_S && waited_s > rollout_s).then(|| format!("slow reward {name} {seconds:.1} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_named_where_it_is_waited_for() {
        let times = BTreeMap::from([("a".to_owned(), 3.0), ("b".to_owned(), 9.25)]);
        assert_eq!(slow_reward(1.0, 12.0, &times).unwrap(), "slow reward b 9.2 s");
        assert_eq!(slow_reward(13.0, 12.0, &times), None);
        assert_eq!(slow_reward(0.1, 0.9, &times), None);
        assert_eq!(slow_reward(1.0, 12.0, &BTreeMap::new()), None);
    }
}
