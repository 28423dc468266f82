//! Errors of a training step.

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
    /// A sample is incomplete, or its parts do not fit together.
    #[error("sample {index}: {message}")]
    Sample {
        /// Index of the sample (or pair) in the optimizer batch.
        index: usize,
        /// Description of what does not fit.
        message: String,
    },
    /// An optimizer step was taken while a checkpoint still holds the optimizer's state.
    #[error("an optimizer step while its state is held, by a checkpoint that is still written: wait for that first")]
    Held,
    /// Three optimizer steps in a row had a loss or gradient that is not finite.
    #[error(
        "{count} optimizer steps in a row were skipped because {what} was not finite (now {value}): training cannot \
         continue. Lower learning_rate, or look at the last completions and rewards for values that overflow"
    )]
    NonFinite {
        /// Number of steps skipped in a row.
        count: u32,
        /// The quantity that was not finite: "the loss" or "the gradient norm".
        what: &'static str,
        /// The non-finite value.
        value: f64,
    },
}
