//! Errors of a training step.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kernel refused its arguments.
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
    /// The model refused a batch.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// A configuration that cannot be honoured.
    #[error("{0}")]
    Config(String),
    /// A sample whose parts do not fit together.
    #[error("sample {index}: {message}")]
    Sample {
        /// The sample's place in the optimizer batch.
        index: usize,
        /// What does not fit.
        message: String,
    },
    /// A step while somebody holds the optimizer's state.
    #[error("an optimizer step while its state is held, by a checkpoint that is still written: wait for that first")]
    Held,
    /// Three optimizer steps in a row had a loss or gradient that is not finite.
    #[error(
        "{count} optimizer steps in a row were skipped because {what} was not finite (now {value}): training cannot \
         continue. Lower learning_rate, or look at the last completions and rewards for values that overflow"
    )]
    NonFinite {
        /// Skipped steps in a row.
        count: u32,
        /// "the loss" or "the gradient norm".
        what: &'static str,
        /// The value found.
        value: f64,
    },
}
