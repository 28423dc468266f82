//! A prepared step collects the changes to a run that follow from making the step's batch. It is not part of the run.
//!
//! While a task makes a batch, it can only read the run. The rows of the batch, its metrics and its observations are
//! recorded here, and applied to the run when the step is taken. If the value is dropped instead (after a stop request
//! or a failed reward), the run is unchanged.

use super::alarms::Observations;
use super::data_position::DataPosition;
use super::profile::Measured;
use super::reward_notes::RewardNotes;
use super::training::TrainingRun;

/// The changes to the run from making a batch, applied when the step is taken.
pub struct PreparedStep {
    /// The position in the training data after the batch.
    pub data: DataPosition,
    /// Observations for the alarms.
    pub observed: Observations,
    /// Remarks about rewards for the progress lines after this step.
    pub notes: RewardNotes,
    /// Measurements for the profile.
    pub measured: Measured,
    /// Metrics in the order in which they were measured. They are summed in the same order, so that the sums always
    /// have the same bits.
    metrics: Vec<(String, f64)>,
}

impl PreparedStep {
    /// A prepared step for the next step of `run`, before its batch is made.
    pub fn after(run: &TrainingRun) -> PreparedStep {
        let (data, notes) = (run.data.clone(), run.log.notes.clone());
        let (observed, measured) = (Observations::default(), Measured::default());
        PreparedStep { data, observed, notes, measured, metrics: Vec::new() }
    }

    /// Adds a value to the metric `name`, whose mean is logged at the next logging step.
    pub fn add(&mut self, name: &str, value: f64) {
        self.metrics.push((name.to_owned(), value));
    }
}

impl TrainingRun {
    /// With other ranks, fails if one is lost, before anything of the step is written: an optimizer step that fails
    /// would leave weights that cannot be saved.
    pub fn check_ranks(&mut self) -> anyhow::Result<()> {
        if self.learner.trainer.has_ranks() {
            self.finish_checkpoint()?; // during which ranks are often lost, since it takes long
            self.learner.trainer.check_ranks()?;
        }
        Ok(())
    }

    /// Applies a prepared step to the run; from here on the step is not rolled back. Before that, this method waits
    /// until the checkpoint of the previous step is written.
    pub fn commit(&mut self, step: PreparedStep) -> anyhow::Result<()> {
        self.finish_checkpoint()?;
        let PreparedStep { data, observed, notes, measured, metrics } = step;
        self.data = data;
        self.log.profile.take(&measured);
        self.log.alarms.take(observed);
        self.log.notes = notes;
        for (name, value) in &metrics {
            self.log.add(name, *value);
        }
        Ok(())
    }
}
