//! Text in, scores out: the rewards that a reinforcement-learning run maximises.
//!
//! A [`Reward`] sees a [`RewardBatch`] (prompts, completions, token ids, the dataset's other columns) and returns one
//! score for each completion, or none where it could not judge it. **A reward that failed is never a zero**: it gives
//! `None` and a [`Problem`] that says why. Several rewards and their weights are combined by the trainer, not here.
//! Knows no trainer, no model, no token ids' meaning.
//!
//! Read first: [`batch`] (what goes in and out), then any built-in ([`gsm8k`], [`mod@format`], [`length`],
//! [`unique_chars`], [`exact_match`]), [`command`] (a reward in any language), and [`registry`] (names to rewards).

pub mod batch;
pub mod command;
pub mod error;
pub mod exact_match;
pub mod format;
pub mod gsm8k;
pub mod length;
pub mod registry;
pub mod unique_chars;

pub use batch::{Columns, Content, Problem, RewardBatch, Scores};
pub use error::{Error, Result};
pub use registry::{RewardSpec, build};

/// One source of scores.
pub trait Reward: Send {
    /// The name under which its scores are logged (`rewards/<name>/mean`, a column of the completions table).
    fn name(&self) -> &str;

    /// The dataset columns that it reads, so that a run can be refused before it starts when one is missing.
    fn required_columns(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether what it says of a group (the completions of one prompt) depends on that group alone. Then it may be asked about
    /// one group at a time, in any order, while others are still generated, and what it said is put together by
    /// [`Scores::of_groups`]. Otherwise it is asked once, about the whole batch.
    fn judges_by_group(&self) -> bool {
        false
    }

    /// One score for each completion of the batch, in its order. A failure gives `None` and a [`Problem`], never 0.
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores;
}
