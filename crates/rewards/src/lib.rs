//! Reward functions: scores of completions, which reinforcement learning maximises.
//!
//! A [`Reward`] receives a [`RewardBatch`] (prompts, completions, token ids, the dataset's other columns) and returns
//! one score for each completion, or no score if the computation failed. **A failed reward never scores 0**: it returns
//! `None` and a [`Problem`] with the reason. The trainer, not this crate, combines the scores of several rewards with
//! their weights. This crate does not depend on the trainer or the policy.
//!
//! Read first: [`RewardBatch`] and [`Scores`] (input and output), then any file of `builtin/`. Other kinds of rewards
//! are in `command/` (a program in any language), `python/`, `http/`, `function` (a closure) and `reward_model`.
//! `registry` builds rewards from their names, and `manager` calls them all.

mod batch;
mod builtin;
mod command;
mod error;
mod function;
mod http;
mod manager;
mod program;
mod protocol;
mod python;
mod registry;
mod reward_model;
mod steps;

pub use batch::{Columns, NO_ANSWER, Problem, ProblemKind, RewardBatch, Scores};
pub use error::{Error, Result};
pub use function::{FunctionReward, RewardInput};
pub use manager::{
    Asked, CompletionScores, GivenScores, MakeInputs, RewardInputs, RewardJob, RewardManager, RewardOutput, score_group,
};
pub use model::chat::Content;
pub use program::end_programs;
pub use registry::{RewardSpec, TABLE_COLUMNS, build, build_until, names};
pub use reward_model::RewardModel;
pub use sandbox::{Inexact, inexact};
pub use steps::{StepEnd, StepScore};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Starts programs and sends requests; also used outside of rewards.
pub mod outside {
    pub use crate::http::Address;
    pub use crate::program::{Program, absolute_line, explain, split_line};
}

/// A reward function: a source of scores.
pub trait Reward: Send {
    /// The name under which the scores are logged (`rewards/<name>/mean`, a column of the completions table).
    fn name(&self) -> &str;

    /// The dataset columns that this reward reads. A training run with a missing column is refused before it starts.
    fn required_columns(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether this reward reads token ids. If so, it cannot score completions that are given only as text.
    fn reads_ids(&self) -> bool {
        false
    }

    /// Whether the scores of a group (the completions of one prompt) depend only on that group. If so, `score` may be
    /// called for one group at a time, in any order, while other groups are still being generated.
    /// [`Scores::from_groups`] joins the results. Otherwise `score` is called once for the whole batch.
    fn scores_by_group(&self) -> bool {
        false
    }

    /// Passes a flag that is set once the scores are not needed any longer. `score` may then return early, with any
    /// result.
    fn stop_with(&mut self, _stop: Arc<AtomicBool>) {}

    /// Scores the completions of the batch, or their steps, in the order of the batch. A failure gives `None` and a
    /// [`Problem`], never 0.
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores;
}
