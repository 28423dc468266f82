//! The position of a training run in its training data.

use crate::config::Config;
use crate::data::Sampler;
use crate::error::BadInput;
use crate::run::checkpoint::state::RunState;

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
    /// The position at the beginning of the data with this hash.
    pub fn new(hash: String, sampler: Sampler, steps_per_epoch: u64) -> DataPosition {
        DataPosition { hash, sampler, steps_per_epoch: steps_per_epoch.max(1), num_tokens: 0 }
    }

    /// How often the data was read after `step`: by steps, and by prompts that were drawn in place of others.
    pub fn epoch(&self, step: u64) -> f64 {
        step as f64 / self.steps_per_epoch as f64 + self.sampler.extra_epochs()
    }

    /// Restores the position that a checkpoint has saved.
    pub fn restore(&mut self, state: &RunState) {
        self.sampler.restore(state.sampler);
        self.num_tokens = state.num_tokens;
    }
}

/// A sampler of a dataset of `rows` rows that draws `chunk` rows at a time. A `chunk` larger than the dataset is
/// refused.
pub fn sampler(rows: usize, chunk: usize, config: &Config) -> anyhow::Result<Sampler> {
    Sampler::new(rows, chunk, config.shuffle_seed()).ok_or_else(|| {
        BadInput::new(format!(
            "one step takes {chunk} rows of the training data, which has {rows}: lower per_device_train_batch_size (or \
             generation_batch_size), or give more data"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_no_more_rows_than_there_are() {
        let config = Config { shuffle_dataset: false, ..Config::default() };
        let mut whole = sampler(4, 4, &config).unwrap();
        assert_eq!((whole.chunks_per_epoch(), whole.next_batch()), (1, vec![0, 1, 2, 3]));
        let error = sampler(3, 4, &config).unwrap_err();
        assert!(crate::error::is_bad_input(&error));
        assert_eq!(
            error.to_string(),
            "one step takes 4 rows of the training data, which has 3: lower per_device_train_batch_size (or \
             generation_batch_size), or give more data"
        );
        let shuffled = |seed| sampler(50, 50, &Config { seed, ..Config::default() }).unwrap().next_batch();
        assert_ne!(shuffled(1), shuffled(2));
        // An epoch has a step at least.
        let position = |steps| DataPosition::new("h".into(), sampler(4, 2, &config).unwrap(), steps).steps_per_epoch;
        assert_eq!((position(0), position(5)), (1, 5));
        // With prompts in place of others the data was read more often than by steps.
        let mut position = DataPosition::new("h".into(), sampler(4, 2, &config).unwrap(), 2);
        assert_eq!(position.epoch(3), 1.5);
        (0..5).for_each(|_| drop(position.sampler.take_extra(2)));
        assert_eq!(position.epoch(3), 4.0);
    }
}
