//! Numbers that identify parts of a training run. Each kind has its own type, so that they cannot be confused.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    /// The index of a group (the completions of one prompt) in its training run. Groups are counted from 0, in the
    /// order of the prompts. Together with the seed, the index selects the random numbers for sampling the group.
    GroupId
    /// A step of the training run: the number of optimizer steps done, including steps that changed nothing because
    /// their loss was not finite. Telemetry, which this crate does not import, has its own type for steps;
    /// `lockstep/src/step.rs` converts.
    Step
    /// A version of the weights: the number of optimizer updates applied to them. (The number of batches that they were
    /// trained on is a different count, which other crates keep.)
    Updates
}

impl GroupId {
    /// The group `groups` places after this one.
    pub fn after(self, groups: usize) -> GroupId {
        GroupId(self.0 + groups as u64)
    }

    /// This group and all after it.
    pub fn and_after(self) -> impl Iterator<Item = GroupId> {
        (self.0..).map(GroupId)
    }
}

impl Updates {
    /// The version after one more update.
    pub fn next(self) -> Updates {
        Updates(self.0 + 1)
    }
}
