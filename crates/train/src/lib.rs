//! Samples in, new weights out: advantages, losses, the optimizer, and one update step.
//!
//! Knows token ids, log-probabilities and numbers called advantages. Does not know prompt text, rewards' meaning, files,
//! or how the samples were made.
//!
//! Read first: [`sample`] (what comes in), [`advantages`] and [`gae`] (rewards to advantages), [`loss`] (value and gradient of each
//! loss, one file each), [`objective`] (which loss, on what), [`update`] (one optimizer step), [`optimizer`] and [`schedule`].

#![cfg_attr(test, allow(clippy::disallowed_methods))] // expectations may come from std's functions

pub mod advantages;
pub mod error;
pub mod gae;
pub mod loss;
pub mod metrics;
pub mod objective;
pub mod optimizer;
pub mod sample;
pub mod schedule;
pub mod update;

pub use advantages::{Advantages, MultiObjectiveAggregation, RewardMatrix, ScaleRewards};
pub use error::{Error, Result};
pub use gae::KlEstimator;
pub use loss::bradley_terry::RankingConfig;
pub use loss::{ImportanceSamplingLevel, LossConfig, LossType};
pub use metrics::{ClipRatios, Means, UpdateMetrics};
pub use objective::Objective;
pub use optimizer::{MomentsDType, Optimizer, OptimizerConfig};
pub use sample::{Advantage, Sample, StateValues};
pub use schedule::{Schedule, ScheduleKind};
pub use update::{Trainer, TrainerConfig, TrainerState};
