//! Tests of a small run, whose weights are one number, over the real exchanges: in threads, and in processes that are
//! killed.

#[cfg(feature = "nats")]
mod deaf;
mod fake;
#[cfg(feature = "nats")]
mod nats;
mod processes;
mod threads;
