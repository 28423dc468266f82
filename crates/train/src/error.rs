//! Errors of training.

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the `train` crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the `kernels` crate.
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
    /// An error of the `model` crate.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// An invalid configuration or use of the trainer.
    #[error("{0}")]
    Config(String),
    /// A sample is incomplete or inconsistent.
    #[error("sample {index}: {message}")]
    Sample {
        /// The index of the sample (or pair) in the optimizer batch.
        index: usize,
        /// A description of the problem.
        message: String,
    },
    /// An optimizer step was requested while a checkpoint is still using the optimizer's state.
    #[error(
        "cannot take an optimizer step while a checkpoint is still being written from the optimizer's state: wait for \
         the checkpoint to finish"
    )]
    Held,
    /// Another rank of the run failed or was lost. The text names it.
    #[error("{0}")]
    Rank(String),
    /// Three consecutive optimizer steps had a non-finite loss or gradient.
    #[error(
        "{count} optimizer steps in a row were skipped because {what} was not finite (last value: {value}), so \
         training stopped. Lower learning_rate, or check the last completions and rewards for values that overflow"
    )]
    NonFinite {
        /// The number of consecutive steps that were skipped.
        count: u32,
        /// The quantity that was not finite: "the loss" or "the gradient norm".
        what: &'static str,
        /// The non-finite value.
        value: f64,
    },
}

impl From<ranks::Error> for Error {
    fn from(error: ranks::Error) -> Error {
        match error {
            ranks::Error::Lost(why) | ranks::Error::Refused(why) => Error::Rank(why),
            ranks::Error::Cancelled => Error::Model(model::Error::Stopped),
            error @ ranks::Error::Unreadable(_) => Error::Rank(error.to_string()),
        }
    }
}
