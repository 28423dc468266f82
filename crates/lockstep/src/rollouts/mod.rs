//! Scored completions, generated from prompts or read from a file. This module knows nothing of optimizers.

pub(crate) mod assembler;
pub(crate) mod audit;
pub mod collector;
pub mod divided;
pub mod evaluate;
pub mod function;
pub mod generation;
mod groups;
pub mod health;
pub(crate) mod jobs;
pub mod lineage;
pub mod notices;
pub mod older;
pub mod pieces;
pub mod replay;
pub mod reward_model;
pub mod rewards;
pub mod samples;
pub mod scoring;
mod versions;
pub mod wire;

pub use groups::{Rollouts, ScoredCompletion, ScoredGroup};
