//! Ranks: processes of one machine that divide the steps of one training run.
//!
//! Rank 0 is the process that the user starts. It starts the other ranks as child processes ([`Peers`]), each with a
//! socket as its standard input, over which both sides send [`Message`]s. A rank other than 0 works as long as its
//! [`Link`] to rank 0 exists, and ends with it, however rank 0 ends. A rank that dies, or sends no heartbeat for a
//! while because it is stopped, is lost: rank 0 kills it, and every exchange with any rank then fails with one sentence
//! that names the lost rank.
//!
//! This crate knows nothing of models and training, and what the messages mean.

mod link;
mod message;
mod peers;

pub use link::Link;
pub use message::Message;
pub use peers::{Limits, Lost, Peers};

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an exchange between ranks.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A rank was lost, or could not be started. The text names it.
    #[error("{0}")]
    Lost(String),
    /// The caller no longer waits for the message.
    #[error("the exchange with the other ranks was cancelled")]
    Cancelled,
}
