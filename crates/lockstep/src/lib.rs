//! Reinforcement-learning post-training for language models, as a library: configuration, data, rollouts and rewards,
//! trainers, run directories. It knows no command line and no terminal beyond the console that it is given.
//!
//! Rooms, from the ground up: [`source`] (names to files), [`config`] (every key), [`models`] (what a run trains), [`data`]
//! (prompts and pairs), [`rollouts`] (completions, judged), [`run`] (the directory, steps, logs, checkpoints) and
//! [`trainers`] (GRPO, PPO, supervised, DPO, reward models).

#![cfg_attr(test, allow(clippy::disallowed_methods))] // expectations may come from std's functions

pub mod config;
pub mod data;
pub mod error;
pub mod models;
pub mod rollouts;
pub mod run;
pub mod session;
pub mod source;
pub mod trainers;

pub use config::Config;
pub use error::BadInput;
pub use session::{Run, RunOptions, RunResult};
