//! Waits for the learner of a run that a worker joins, or detects that no learner will start.

use crate::error::BadInput;
use crate::run::{RunDir, RunLock};
use crate::sources::workers::fleet_error;
use crate::stop::StopSignal;
use fleet::exchange::spool::Layout;
use fleet::exchange::{LearnerState, WorkerExchange};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the worker checks.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a process that writes to the run's directory may take to become the learner.
const START: Duration = Duration::from_secs(60);

/// A run that a worker joins.
pub(super) struct Awaited<'a> {
    /// The worker's name.
    pub name: &'a str,
    /// The run's directory, or the address of a server.
    pub run: &'a Path,
    /// Whether `run` is a server, which reports its learner.
    pub is_server: bool,
    /// Whether to wait for a learner even if the run has ended, or had no learner.
    pub waits: bool,
    pub stop: &'a StopSignal,
    pub say: &'a dyn Fn(&str),
}

impl Awaited<'_> {
    /// Waits for a learner. `None` if the run ends before the worker has started.
    pub fn learner(&self, exchange: &mut dyn WorkerExchange) -> anyhow::Result<Option<LearnerState>> {
        let since = Instant::now();
        let mut has_waited = false;
        loop {
            self.stop.check()?;
            match exchange.learner().map_err(fleet_error)? {
                // The exchange does not report the previous learner.
                Some(state) if state.ended => return Ok(None),
                Some(state) if self.is_of_learner(&state)? => return Ok(Some(state)),
                _ => self.refuse_a_run_without_learner(since)?,
            }
            if !std::mem::replace(&mut has_waited, true) {
                (self.say)(&format!("{} waits for a learner of {}", self.name, self.run.display()));
            }
            exchange.wait(POLL_INTERVAL);
        }
    }

    /// Whether the learner that wrote this state is still running. The next learner's configuration may differ from
    /// that of a killed learner.
    pub fn is_of_learner(&self, state: &LearnerState) -> anyhow::Result<bool> {
        Ok(self.is_server || Layout::in_run(self.run).is_of_learner(state).map_err(fleet_error)?)
    }

    /// Fails if the run has begun and no file shows that it will have a learner (again). `since` is the start of the
    /// wait.
    pub fn refuse_a_run_without_learner(&self, since: Instant) -> anyhow::Result<()> {
        if self.is_server || self.waits {
            return Ok(());
        }
        // A run that has not begun may get a learner. A killed or stopped run may be resumed.
        let Ok(run) = RunDir::open(self.run) else { return Ok(()) };
        let why = match last_learner(self.run) {
            Some(state) if !state.ended => return Ok(()),
            Some(LearnerState { batch, batches, .. }) => {
                format!("the run has ended after {batch} of {batches} batches, so there is nothing left to do")
            }
            None => "the run has no workers: a single process generates its completions".to_owned(),
        };
        // The process may be the next learner, still loading its model.
        if RunLock::is_held(run.root()) && since.elapsed() < START {
            return Ok(());
        }
        let dir = self.run.display();
        Err(BadInput::new(format!(
            "{} cannot work for {dir}: {why}. To continue the run, use `lockstep learner --resume {dir}` (with a \
             larger max_steps, if all steps are done); with --wait the worker waits for that",
            self.name
        )))
    }
}

/// The last learner's message to its workers.
fn last_learner(run: &Path) -> Option<LearnerState> {
    serde_json::from_slice(&disk::read(Layout::in_run(run).learner(), disk::most::STATE).ok()?).ok()
}
