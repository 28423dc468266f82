//! From a name or a table in a configuration to a reward. Knows the built-in rewards and nothing of what they judge.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result, Reward};

/// The built-in kinds, in the order of the documentation.
pub const KINDS: [&str; 6] = ["gsm8k", "format", "length", "unique_chars", "exact_match", "command"];

/// How a configuration names a reward: `"gsm8k"`, `"format:REGEX"`, `"command:./my_reward.py --fast"`, or a table
/// `{ kind = "format", name = "tags", pattern = "…" }`. What stands after the colon is the kind's main option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RewardSpec {
    /// `kind` or `kind:argument`.
    Short(String),
    /// `kind`, an optional `name`, and the kind's options.
    Table(Map<String, Value>),
}

impl From<&str> for RewardSpec {
    fn from(text: &str) -> Self {
        RewardSpec::Short(text.to_owned())
    }
}

/// Builds the reward that `spec` names; a `command` reward's program is started, so that a missing one is known here.
pub fn build(_spec: &RewardSpec) -> Result<Box<dyn Reward>> {
    Err(Error::options("", "not landed yet"))
}
