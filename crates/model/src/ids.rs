//! Numbers that name parts of a training run. Each has a type of its own, so that one cannot be taken for another.

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
    /// The number of a group (the completions of one prompt) in its training run. Groups are counted from 0, in the
    /// order of the prompts. With the seed it selects the random numbers of the group's draws.
    GroupId
    /// A version of weights: how many updates of an optimizer they have had. (How many batches they were trained on is
    /// another number, which this crate does not know.)
    Updates
}

impl GroupId {
    /// The group this many places after this one.
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
