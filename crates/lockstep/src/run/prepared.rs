//! A step that is prepared: what making its batch changes of the run, as a value beside the run.
//!
//! A task makes a batch with the run before it, which it cannot change. What the batch takes of the data, what it
//! measures and observes is written here, and enters the run when the step is taken. If the value is dropped instead (a
//! stop request, a reward that fails), nothing has happened.

use super::alarms::Observations;
use super::data_position::DataPosition;
use super::profile::Measured;
use super::reward_notes::RewardNotes;
use super::training::TrainingRun;

/// What making a batch changes of its run once the step on it is taken.
pub struct PreparedStep {
    /// After the rows of the batch.
    pub data: DataPosition,
    /// What alarms look at.
    pub observed: Observations,
    /// What lines of progress say of rewards from then on.
    pub notes: RewardNotes,
    /// What a profile has of it.
    pub measured: Measured,
    /// In the order in which they were measured: sums have the bits of that order.
    metrics: Vec<(String, f64)>,
}

impl PreparedStep {
    /// The next step of `run`, so far without a batch.
    pub fn after(run: &TrainingRun) -> PreparedStep {
        let (data, notes) = (run.data.clone(), run.log.notes.clone());
        let (observed, measured) = (Observations::default(), Measured::default());
        PreparedStep { data, observed, notes, measured, metrics: Vec::new() }
    }

    /// Adds a value to the mean that is logged next.
    pub fn add(&mut self, name: &str, value: f64) {
        self.metrics.push((name.to_owned(), value));
    }
}

impl TrainingRun {
    /// The step on a prepared batch is taken: what follows is not rolled back. The checkpoint of the step before is
    /// written then.
    pub fn commit(&mut self, step: PreparedStep) -> anyhow::Result<()> {
        self.finish_checkpoint()?;
        let PreparedStep { data, observed, notes, measured, metrics } = step;
        self.data = data;
        self.log.profile.take(&measured);
        self.log.alarms.take(observed);
        self.log.notes = notes;
        metrics.iter().for_each(|(name, value)| self.log.add(name, *value));
        Ok(())
    }
}
