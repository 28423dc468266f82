//! Text in, scores out: the rewards that a reinforcement-learning run maximises.
//!
//! A [`Reward`] sees a [`RewardBatch`] (prompts, completions, token ids, the dataset's other columns) and returns one
//! score for each completion, or none where it could not score it. **A reward that failed is never a zero**: it gives
//! `None` and a [`Problem`] that says why. Several rewards and their weights are combined by the trainer, not here.
//! Knows no trainer and no policy.
//!
//! Read first: [`RewardBatch`] and [`Scores`] (what goes in and out), then any file of `builtin/`, `command/` (a
//! reward in any language), `python/`, `http/`, `function` (a closure), `reward_model` and `registry` (names to
//! rewards); `manager` asks them all.

mod batch;
mod builtin;
mod command;
mod error;
mod function;
mod http;
mod manager;
mod protocol;
mod python;
mod registry;
mod reward_model;
mod steps;

pub use batch::{Columns, NO_ANSWER, Problem, ProblemKind, RewardBatch, Scores};
pub use command::end_programs;
pub use error::{Error, Result};
pub use function::{FunctionReward, RewardInput};
pub use manager::{
    Asked, CompletionScores, GivenScores, MakeInputs, RewardInputs, RewardJob, RewardManager, RewardOutput, score_group,
};
pub use model::chat::Content;
pub use registry::{RewardSpec, TABLE_COLUMNS, build, build_until, names};
pub use reward_model::RewardModel;
pub use steps::{StepEnd, StepScore};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One source of scores.
pub trait Reward: Send {
    /// The name under which its scores are logged (`rewards/<name>/mean`, a column of the completions table).
    fn name(&self) -> &str;

    /// The dataset columns that it reads, so that a run can be refused before it starts when one is missing.
    fn required_columns(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether it reads the token ids of completions: without them its scores would be wrong, not missing.
    fn reads_ids(&self) -> bool {
        false
    }

    /// Whether what it says of a group (the completions of one prompt) depends on that group alone. Then it may be
    /// asked about one group at a time, in any order, while others are still generated, and what it said is put
    /// together by [`Scores::of_groups`]. Otherwise it is asked once, about the whole batch.
    fn scores_by_group(&self) -> bool {
        false
    }

    /// Shares a flag that says, once set, that nobody waits for scores any more: a long wait may then end early, with
    /// any answer.
    fn stop_with(&mut self, _stop: Arc<AtomicBool>) {}

    /// One score for each completion of the batch, in its order, or one for each of its steps. A failure gives `None`
    /// and a [`Problem`], never 0.
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores;
}
