//! The number of a training step.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A step of a training run. Steps are optimizer steps, counted from 1 (including steps that changed nothing because
/// their loss was not finite); step 0 is the start of the run. The type keeps steps from being confused with other
/// counts, such as updates of the weights, batches or tokens. A number of steps, such as the length of the run, is a
/// plain integer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Step(pub u64);

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Step> for Value {
    fn from(step: Step) -> Value {
        step.0.into()
    }
}

impl Step {
    /// The start of a run, before its first step.
    pub const START: Step = Step(0);

    /// The step after this one.
    pub fn next(self) -> Step {
        Step(self.0 + 1)
    }

    /// The number of steps from `earlier`, exclusive, to this step, inclusive.
    pub fn since(self, earlier: Step) -> u64 {
        self.0 - earlier.0
    }

    /// The number of steps that a run of `total` steps takes after this one.
    pub fn left_of(self, total: u64) -> u64 {
        total.saturating_sub(self.0)
    }

    /// Whether an action that is due every `every` steps, such as a checkpoint, is due after this step.
    pub fn is_multiple_of(self, every: u64) -> bool {
        self.0.is_multiple_of(every)
    }
}
