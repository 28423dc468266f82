//! Ranks: processes of one machine that divide the steps of one training run.
//!
//! Rank 0 is the process that the user starts. It starts the other ranks as child processes ([`Peers`]), each with a
//! socket as its standard input, over which both sides send [`Message`]s. A rank other than 0 works as long as its
//! [`Link`] to rank 0 exists, and ends with it, however rank 0 ends. A rank that dies, or sends no heartbeat for a
//! while because it is stopped, is lost: rank 0 kills it, and every exchange with any rank then fails with one sentence
//! that names the lost rank.
//!
//! This crate knows neither models nor training, nor the meaning of the messages.

mod error;
mod link;
mod message;
mod peers;

pub use error::{Error, Result};
pub use link::Link;
pub use message::Message;
pub use peers::{Limits, Lost, Peers};
