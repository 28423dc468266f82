//! The position of a training run in its training data.

use crate::config::Config;
use crate::data::Sampler;
use crate::error::BadInput;
use crate::run::state::RunState;
use telemetry::Step;

/// How much of the training data a run has used.
#[derive(Clone, Debug)]
pub struct DataPosition {
    /// SHA-256 of the training data.
    pub hash: String,
    /// Draws the rows of the data in a seeded order, and counts how many were drawn.
    pub sampler: Sampler,
    /// Optimizer steps in one epoch.
    pub steps_per_epoch: u64,
    /// Tokens that the run has seen so far.
    pub num_tokens: u64,
}

impl DataPosition {
    /// The position at the start of the data with this hash.
    pub fn new(hash: String, sampler: Sampler, steps_per_epoch: u64) -> DataPosition {
        DataPosition { hash, sampler, steps_per_epoch: steps_per_epoch.max(1), num_tokens: 0 }
    }

    /// The number of epochs read after `step`, by steps and by prompts drawn as replacements. An epoch that ended early
    /// counts as a full epoch.
    pub fn epoch(&self, step: Step) -> f64 {
        self.steps_of_epochs(step) as f64 / self.steps_per_epoch as f64 + self.sampler.extra_epochs()
    }

    /// Whether `step` is the last step of an epoch.
    pub fn ends_epoch(&self, step: Step) -> bool {
        self.steps_of_epochs(step).is_multiple_of(self.steps_per_epoch)
    }

    /// Ends the epoch after `step`; its remaining steps are skipped.
    pub fn end_epoch(&mut self, step: Step) {
        let done = self.steps_of_epochs(step) % self.steps_per_epoch;
        self.sampler.end_epoch(if done == 0 { 0 } else { self.steps_per_epoch - done });
    }

    /// The number of steps up to `step`, including skipped steps.
    fn steps_of_epochs(&self, step: Step) -> u64 {
        step.0.saturating_add(self.sampler.state().skipped_steps)
    }

    /// Restores the position from a checkpoint.
    pub fn restore(&mut self, state: &RunState) {
        self.sampler.restore(state.sampler);
        self.num_tokens = state.num_tokens;
    }
}

/// A sampler of `rows` rows that draws `chunk` at a time. A `chunk` larger than `rows` is refused.
pub fn sampler(rows: usize, chunk: usize, config: &Config) -> anyhow::Result<Sampler> {
    checked(Sampler::new(rows, chunk, config.shuffle_seed()), rows, chunk)
}

/// A sampler of rows that also draws the incomplete last chunk of an epoch, unless `dataloader_drop_last` is set.
pub fn sampler_of_rows(rows: usize, chunk: usize, config: &Config) -> anyhow::Result<Sampler> {
    if config.dataloader_drop_last {
        sampler(rows, chunk, config)
    } else {
        checked(Sampler::keeping_last(rows, chunk, config.shuffle_seed()), rows, chunk)
    }
}

fn checked(sampler: Option<Sampler>, rows: usize, chunk: usize) -> anyhow::Result<Sampler> {
    sampler.ok_or_else(|| {
        BadInput::new(format!(
            "one step takes {chunk} rows, but the training data has only {rows}: lower per_device_train_batch_size (or \
             generation_batch_size), or use more data"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_takes_more_rows_than_the_data_has_is_refused() {
        let config = Config { shuffle_dataset: false, ..Config::default() };
        let mut whole = sampler(4, 4, &config).unwrap();
        assert_eq!((whole.chunks_per_epoch(), whole.next_batch()), (1, vec![0, 1, 2, 3]));
        let error = sampler(3, 4, &config).unwrap_err();
        assert!(crate::error::is_bad_input(&error));
        assert_eq!(
            error.to_string(),
            "one step takes 4 rows, but the training data has only 3: lower per_device_train_batch_size (or \
             generation_batch_size), or use more data"
        );
        let keeping = |rows| sampler_of_rows(rows, 4, &Config { dataloader_drop_last: false, ..config.clone() });
        assert_eq!(keeping(3).unwrap().next_batch(), [0, 1, 2]);
        assert!(keeping(0).is_err() && sampler_of_rows(3, 4, &config).is_err());
        let shuffled = |seed| sampler(50, 50, &Config { seed, ..Config::default() }).unwrap().next_batch();
        assert_ne!(shuffled(1), shuffled(2));
        // An epoch has at least one step.
        let position = |steps| DataPosition::new("h".into(), sampler(4, 2, &config).unwrap(), steps).steps_per_epoch;
        assert_eq!((position(0), position(5)), (1, 5));
        // Replacement prompts count as read data.
        let mut position = DataPosition::new("h".into(), sampler(4, 2, &config).unwrap(), 2);
        assert_eq!(position.epoch(Step(3)), 1.5);
        (0..5).for_each(|_| drop(position.sampler.take_extra(2)));
        assert_eq!(position.epoch(Step(3)), 4.0);
    }

    #[test]
    fn an_epoch_that_ended_early_counts_as_one() {
        let config = Config { shuffle_dataset: false, ..Config::default() };
        let mut position = DataPosition::new("h".into(), sampler(8, 2, &config).unwrap(), 4);
        position.end_epoch(Step(1));
        assert_eq!((position.epoch(Step(1)), position.epoch(Step(2))), (1.0, 1.25));
        assert_eq!([1, 2, 4, 5].map(|step| position.ends_epoch(Step(step))), [true, false, false, true]);
        position.end_epoch(Step(3));
        assert_eq!((position.epoch(Step(3)), position.epoch(Step(7))), (2.0, 3.0));
        position.end_epoch(Step(7));
        assert_eq!((position.epoch(Step(7)), position.sampler.state().skipped_steps), (3.0, 5));
    }
}
