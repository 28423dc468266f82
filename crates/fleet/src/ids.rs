//! Numbers of groups, batches and weight versions. Each has its own type, so that the compiler reports a mix-up.

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
    /// A group of completions of one prompt. With g groups in a batch, batch b has the groups b·g … b·g + g − 1.
    GroupId
    /// A batch of the run.
    BatchId
    /// A version of the weights: the number of batches that they were trained on. (The number of optimizer updates may
    /// differ, and is unknown to this crate.)
    Version
}

impl BatchId {
    /// The batch after this one.
    pub fn next(self) -> BatchId {
        BatchId(self.0 + 1)
    }

    /// The batch before this one. For batch 0, batch 0 itself.
    pub fn before(self) -> BatchId {
        BatchId(self.0.saturating_sub(1))
    }

    /// The version of the weights at the start of this batch. They were trained on all batches before it.
    pub fn version(self) -> Version {
        Version(self.0)
    }

    /// The batch this many batches after this one.
    pub fn after(self, batches: u64) -> BatchId {
        BatchId(self.0 + batches)
    }

    /// The batches from this one up to `end`, exclusive.
    pub fn up_to(self, end: BatchId) -> impl DoubleEndedIterator<Item = BatchId> + use<> {
        (self.0..end.0).map(BatchId)
    }
}

impl Version {
    /// The batch that these weights are trained on next.
    pub fn batch(self) -> BatchId {
        BatchId(self.0)
    }
}
