//! The application: configuration, data, the loop, checkpoints, and the command line.
//!
//! Everything below this crate knows one thing; here they meet. Read first: [`config`] (every key, in one table),
//! [`data`] (prompts and the order they are drawn in), then [`cli`].

#![cfg_attr(test, allow(clippy::disallowed_methods))] // expectations may come from std's functions

pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod completion_log;
pub mod config;
pub mod course;
pub mod data;
pub mod demo;
pub mod dpo;
pub mod error;
pub mod evaluate;
pub mod grpo;
pub mod grpo_loop;
pub mod judge;
pub mod memory_plan;
pub mod policy;
pub mod ppo;
pub mod ppo_loop;
pub mod provenance;
pub mod questions;
pub mod replay;
pub mod reporter;
pub mod reward_model;
pub mod rollouts;
pub mod run_dir;
pub mod samples;
pub mod session;
pub mod sft;
pub mod signals;

pub use config::Config;
pub use error::BadInput;
