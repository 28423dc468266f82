//! A batch of whole sequences, packed without padding: a prefix once, then the branches that go on from it.
//!
//! Rows are laid out `[prefix][branch 0][branch 1]…`, group after group. Every branch attends the prefix and itself. A
//! row is the token that goes in; it predicts the one that follows. The last token of a branch predicts nothing and is
//! attended by nobody, so it has no row.
//!
//! Keys and values lie in pages of [`BLOCK`] positions. The prefix's full pages are shared by the branches; the page that
//! the prefix ends in the middle of is each branch's own, and the prefix's rows are written into all of them, so that every
//! branch sees the same pages as if it were alone: the same bits, packed or not, shared or not.
//!
//! It does not know where a token came from, nor what is done with its score.

use crate::kv::BLOCK;
use kernels::{Memory, Tensor};
use std::ops::Range;

/// A prefix and the branches that continue it: a prompt and its completions.
///
/// A branch's tokens are the ones scored, each given all before it; a token with nothing before it (the first of a branch
/// with an empty prefix) is not. A prefix with no branch is computed whole and scores nothing.
#[derive(Clone, Copy, Debug)]
pub struct GroupSegment<'a> {
    /// Token ids before every branch.
    pub prefix: &'a [u32],
    /// Token ids of each branch.
    pub branches: &'a [&'a [u32]],
}

/// Sizes of batches: what one holds, or what buffers have room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Rows: tokens that go in.
    pub tokens: usize,
    /// Pages of keys and values.
    pub blocks: usize,
    /// Tokens that are scored.
    pub score_rows: usize,
}

impl Capacity {
    /// What a group takes, by its lengths.
    pub fn of_group(prefix: usize, branches: &[usize], sharing: bool) -> Capacity {
        let _ = (prefix, branches, sharing);
        unimplemented!()
    }
    /// Room for either.
    pub fn max(self, other: Capacity) -> Capacity {
        Capacity {
            tokens: self.tokens.max(other.tokens),
            blocks: self.blocks.max(other.blocks),
            score_rows: self.score_rows.max(other.score_rows),
        }
    }
    /// Whether `other` fits in it.
    pub fn holds(self, other: Capacity) -> bool {
        self.max(other) == self
    }
}

impl std::ops::Add for Capacity {
    type Output = Capacity;
    fn add(self, other: Capacity) -> Capacity {
        Capacity {
            tokens: self.tokens + other.tokens,
            blocks: self.blocks + other.blocks,
            score_rows: self.score_rows + other.score_rows,
        }
    }
}

/// A packed batch, on the host. T rows, S block tables, W writes, R scores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token of each row `[T]`.
    pub ids: Vec<u32>,
    /// Position of each row in its sequence `[T]`.
    pub positions: Vec<u32>,
    /// Block table of each row `[T]`.
    pub tables_of_rows: Vec<u32>,
    /// Block tables `[S, table_len]`, padded with 0.
    pub tables: Vec<u32>,
    /// Pages that the longest sequence needs.
    pub table_len: usize,
    /// Pages that all need.
    pub blocks: usize,
    /// Row of each write of a key and a value, ascending `[W]`.
    pub write_rows: Vec<u32>,
    /// Slot (page · 64 + place) of each write `[W]`.
    pub write_slots: Vec<u32>,
    /// First row of each independent group, and T at last: no page is shared across groups.
    pub groups: Vec<u32>,
    /// The row that predicts each scored token `[R]`, in the order of branches and tokens.
    pub score_rows: Vec<u32>,
    /// Each scored token `[R]`.
    pub targets: Vec<u32>,
    /// The scores of each branch of each group, in the order given.
    pub scores_of_branches: Vec<Range<usize>>,
}

impl Batch {
    /// Packs groups. Without `sharing` every branch gets a copy of its prefix: a group of its own.
    pub fn new(groups: &[GroupSegment<'_>], sharing: bool) -> Batch {
        let _ = (groups, sharing);
        unimplemented!()
    }
    /// What it takes.
    pub fn capacity(&self) -> Capacity {
        Capacity { tokens: self.ids.len(), blocks: self.blocks, score_rows: self.targets.len() }
    }
}

/// A [`Batch`] on the device.
#[derive(Debug)]
pub struct BatchTensors {
    pub(crate) capacity: Capacity,
    pub(crate) rows: crate::net::InferRows,
    pub(crate) groups: Tensor,
    pub(crate) score_rows: Tensor,
    pub(crate) targets: Tensor,
}

impl BatchTensors {
    /// Copies a batch to the device.
    pub fn new(memory: &Memory, batch: &Batch) -> BatchTensors {
        let _ = (memory, batch);
        unimplemented!()
    }
    /// What it takes.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }
}
