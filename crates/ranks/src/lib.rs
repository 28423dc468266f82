//! Ranks: processes of one machine that divide the steps of one training run.
//!
//! Rank 0 is the process that the user starts. It starts the other ranks as child processes ([`Peers`]), each with a
//! socket as its standard input, over which both sides send [`Message`]s. Or a launcher such as torchrun starts all
//! ranks: each reads its [`Launch`] from its environment, and they meet at a [`Rendezvous`]. A rank other than 0 works
//! as long as its [`Link`] to rank 0 exists, and ends with it, however rank 0 ends. A rank that dies, or sends no
//! heartbeat for a while because it is stopped, is lost: every exchange with any rank then fails with one sentence that
//! names the lost rank.
//!
//! This crate knows neither models nor training, nor the meaning of the messages.

mod error;
mod launch;
mod limits;
mod link;
mod lock;
mod message;
mod peers;
mod rendezvous;

pub use error::{Error, Result};
pub use launch::Launch;
pub use limits::Limits;
pub use link::Link;
pub use message::Message;
pub use peers::{Lost, Peers};
pub use rendezvous::{Rendezvous, join};
