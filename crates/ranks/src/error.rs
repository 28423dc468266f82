//! Errors of exchanges between ranks.

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an exchange between ranks.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A rank was lost, or could not be started. The text names it.
    #[error("{0}")]
    Lost(String),
    /// The processes that a launcher has started cannot be the ranks of a run, by its variables. The user can fix it.
    #[error("{0}")]
    Refused(String),
    /// A message cannot be written or read, for example because it is of another build.
    #[error("a message cannot be read: {0}")]
    Unreadable(String),
    /// The caller no longer waits for the message.
    #[error("the exchange with the other ranks was cancelled")]
    Cancelled,
}
