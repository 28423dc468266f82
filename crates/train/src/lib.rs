//! Samples in, new weights out: advantages, losses, the optimizer, and one update step.
//!
//! Knows token ids, log-probabilities and numbers called advantages. Does not know prompt text, rewards' meaning, files,
//! or how the samples were made.
//!
//! Read first: [`sample`] (what comes in), [`advantages`] and [`gae`] (rewards to advantages), [`loss`] (value and gradient of each
//! loss, one file each), [`objective`] (which loss, on what), [`Trainer`] (accumulate, reduce, step), [`optimizer`] and [`schedule`].

#![cfg_attr(test, allow(clippy::disallowed_methods))] // expectations may come from std's functions

pub mod advantages;
pub mod error;
pub mod gae;
pub mod loss;
pub mod metrics;
pub mod objective;
pub mod optimizer;
mod optimizer_batch;
mod passes;
pub mod sample;
pub mod schedule;
mod trainer;

pub use advantages::{Advantages, MultiObjectiveAggregation, RewardMatrix, RewardRow, ScaleRewards};
pub use error::{Error, Result};
pub use gae::KlEstimator;
pub use loss::bradley_terry::RankingConfig;
pub use loss::{ImportanceSamplingLevel, LossConfig, LossType};
pub use metrics::{ClipRatios, Means, UpdateMetrics};
pub use objective::Objective;
pub use optimizer::{MomentsDType, Optimizer, OptimizerConfig};
pub use sample::{Advantage, PreferencePair, Response, Sample, Samples};
pub use schedule::{Schedule, ScheduleKind};
pub use trainer::{StepParams, Trainer, TrainerConfig, TrainerState};
