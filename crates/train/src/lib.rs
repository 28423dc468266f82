//! Training: advantages, losses, optimizers, and the trainer that takes one optimizer step on a batch of samples.
//!
//! This crate works on token ids, log-probabilities and advantages. It does not handle prompt text, reward functions,
//! files or sampling.
//!
//! Suggested reading order: `sample.rs` (the input), [`advantages`] and [`gae`] (from rewards to advantages), [`loss`]
//! (value and gradient of each loss, one file each), `objective.rs` (selects the loss), `trainer.rs` (accumulate
//! gradients, reduce, step) with `passes.rs`, `optimizer/mod.rs` and `schedule.rs`; then [`datums`], training with
//! advantages and weights that a client computes.

#![cfg_attr(test, allow(clippy::disallowed_methods))] // expectations may come from std's functions

pub mod advantages;
pub mod datums;
mod error;
pub mod evaluation;
pub mod gae;
pub mod loss;
mod means;
mod metrics;
mod objective;
mod optimizer;
mod optimizer_batch;
mod sample;
mod schedule;
mod step_rewards;
mod trainer;

pub use advantages::{Advantages, MultiObjectiveAggregation, RewardMatrix, RewardRow, ScaleRewards};
pub use error::{Error, Result};
pub use gae::KlEstimator;
pub use loss::bradley_terry::RankingConfig;
pub use loss::{ImportanceSamplingLevel, LossConfig, LossType};
pub use means::{ClipRatios, Means};
pub use metrics::{CLIP_RATIOS, UpdateMetrics};
pub use objective::{Objective, Scored, Source};
pub use optimizer::{MomentsDType, Optimizer, OptimizerConfig, OptimizerKind, SavedTree};
pub use sample::{Advantage, PreferencePair, Response, Sample, Samples};
pub use schedule::{Ramp, Schedule, ScheduleArguments, ScheduleKind};
pub use step_rewards::StepRewards;
pub use trainer::{
    HeldOut, OtherRanks, OtherWork, Passes, RankMemory, RankModel, SendReply, StepParams, TrainState, Trainer,
    TrainerConfig, TrainerState, World, serve_rank,
};
