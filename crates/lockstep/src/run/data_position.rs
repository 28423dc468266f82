//! How far a run is in its data.

use crate::config::Config;
use crate::data::Sampler;
use crate::error::BadInput;
use crate::run::checkpoint::state::RunState;

/// How far a run is in its data.
#[derive(Clone, Debug)]
pub struct DataPosition {
    /// SHA-256 of the data.
    pub hash: String,
    /// The order of rows, and how many of them were drawn.
    pub sampler: Sampler,
    /// Optimizer steps of an epoch.
    pub steps_per_epoch: u64,
    /// Tokens seen.
    pub num_tokens: u64,
}

impl DataPosition {
    /// At the beginning of data with this hash.
    pub fn new(hash: String, sampler: Sampler, steps_per_epoch: u64) -> DataPosition {
        DataPosition { hash, sampler, steps_per_epoch: steps_per_epoch.max(1), num_tokens: 0 }
    }

    /// Takes up the place of a checkpoint.
    pub fn restore(&mut self, state: &RunState) {
        self.sampler.restore(state.sampler);
        self.num_tokens = state.num_tokens;
    }
}

/// A sampler of `rows` rows, `chunk` at a time; a batch larger than the data is refused.
pub fn sampler(rows: usize, chunk: usize, config: &Config) -> anyhow::Result<Sampler> {
    Sampler::new(rows, chunk, config.shuffle_seed()).ok_or_else(|| {
        BadInput::new(format!(
            "one step takes {chunk} rows of the training data, which has {rows}: lower per_device_train_batch_size (or \
             generation_batch_size), or give more data"
        ))
    })
}
