//! The application: configuration, data, the loop, checkpoints, and the command line.
//!
//! Everything below this crate knows one thing; here they meet. Read first: [`config`] (every key, in one table),
//! [`data`] (prompts and the order they are drawn in), then [`cli`].

pub mod cli;
pub mod config;
pub mod data;
pub mod error;
pub mod policy;

pub use config::Config;
pub use error::BadInput;
