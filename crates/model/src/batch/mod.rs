//! A batch of whole sequences, packed without padding: a prefix once, then the branches that continue from it.
//!
//! Rows are laid out `[prefix][branch 0][branch 1]…`, group after group. Every branch attends the prefix and itself. A
//! row is the token that goes in; it predicts the one that follows. The last token of a branch predicts nothing and is
//! attended by nobody, so it has no row.
//!
//! Keys and values lie in pages of [`BLOCK`] positions. The prefix's full pages are shared by the branches; the page
//! that the prefix ends in the middle of is each branch's own, and the prefix's rows are written into all of them, so
//! that every branch sees the same pages as if it were alone: the same bits, packed or not, shared or not.
//!
//! It does not know where a token came from, nor what is done with its score.

mod dropout;
mod pieces;
mod rows;

pub use dropout::Dropout;
pub(crate) use rows::RowViews;
pub use rows::{InferRows, StepRows};

use crate::kv::BLOCK;
use kernels::{Memory, Tensor, View};
use pieces::head_pieces;
use std::ops::Range;

/// A prefix and the branches that continue it: a prompt and its completions.
///
/// A branch's tokens are the ones scored, each given all before it; a token with nothing before it (the first of a
/// branch with an empty prefix) is not. A prefix with no branch is computed whole and scores nothing.
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
        if !sharing && branches.len() > 1 {
            return branches
                .iter()
                .map(|&b| Capacity::of_group(prefix, &[b], true))
                .fold(Capacity::default(), |a, b| a + b);
        }
        let rows = |tokens: usize| tokens.saturating_sub(1);
        let pages = |positions: usize| positions.div_ceil(BLOCK);
        // The first branch continues in the prefix's pages; the others share the full ones.
        let first = pages(prefix + branches.first().map_or(0, |&b| rows(b)));
        let own = |b: usize| if rows(b) == 0 { 0 } else { pages(prefix + rows(b)) - prefix / BLOCK };
        Capacity {
            tokens: prefix + branches.iter().map(|&b| rows(b)).sum::<usize>(),
            blocks: first + branches.iter().skip(1).map(|&b| own(b)).sum::<usize>(),
            score_rows: branches.iter().map(|&b| if prefix == 0 { rows(b) } else { b }).sum(),
        }
    }
    /// The largest micro-batch of up to `max_tokens` tokens that `groups` groups, each as large as `one`, of
    /// `completions` completions in all can be cut into.
    pub fn of_micro_batch(one: Capacity, groups: usize, completions: usize, max_tokens: usize) -> Capacity {
        // A group is never cut, so one that is larger than the budget is a micro-batch of its own. Shorter groups share
        // a micro-batch up to the budget; each of their sequences may leave its own last page unfilled, and the
        // prompt's.
        let tokens = one.tokens.max(max_tokens.min(groups * one.tokens));
        let blocks = tokens.div_ceil(BLOCK) + 2 * completions;
        Capacity {
            tokens,
            blocks: one.blocks.max(blocks.min(groups * one.blocks)),
            score_rows: one.score_rows.max((tokens + completions).min(groups * one.score_rows)),
        }
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
    /// First score of each of these groups, and R at last.
    pub score_groups: Vec<u32>,
    /// First branch of each of these groups, counted over all groups, and their number at last.
    pub branch_groups: Vec<u32>,
    /// The row that predicts each scored token `[R]`, in the order of branches and tokens.
    pub score_rows: Vec<u32>,
    /// Each scored token `[R]`.
    pub targets: Vec<u32>,
    /// The scores of each branch of each group, in the order given.
    pub scores_of_branches: Vec<Range<usize>>,
    /// The branch that each row belongs to, counted over all groups `[T]`; of a prefix's rows the first of its group as
    /// it was given, whether the prefix is shared or not.
    pub branches_of_rows: Vec<u32>,
}

impl Batch {
    /// Packs groups. Without `sharing` every branch gets a copy of its prefix: a group of its own.
    pub fn new(groups: &[GroupSegment<'_>], sharing: bool) -> Batch {
        let mut batch = Packer::default();
        for group in groups {
            let first = batch.batch.scores_of_branches.len() as u32;
            if sharing || group.branches.len() <= 1 {
                batch.group(group, first);
            } else {
                for branch in group.branches {
                    batch.group(&GroupSegment { prefix: group.prefix, branches: std::slice::from_ref(branch) }, first);
                }
            }
        }
        batch.finish()
    }
    /// The room that the batch takes.
    pub fn capacity(&self) -> Capacity {
        Capacity { tokens: self.ids.len(), blocks: self.blocks, score_rows: self.targets.len() }
    }
}

/// A batch being built: block tables of their own lengths.
#[derive(Default)]
struct Packer {
    batch: Batch,
    tables: Vec<Vec<u32>>,
}

impl Packer {
    /// `owner`: the branch that the prefix's rows belong to.
    fn group(&mut self, group: &GroupSegment<'_>, owner: u32) {
        let prefix = group.prefix;
        let first_row = self.batch.ids.len() as u32;
        self.batch.groups.push(first_row);
        self.batch.score_groups.push(self.batch.targets.len() as u32);
        self.batch.branch_groups.push(self.batch.scores_of_branches.len() as u32);

        // Tables: the prefix's, in which the first branch continues, then one for each other branch that has rows.
        let rows_of = |branch: &[u32]| branch.len().saturating_sub(1);
        let first_table = self.tables.len();
        let first = self.table(&[], prefix.len() + group.branches.first().map_or(0, |b| rows_of(b)));
        let shared = first[..prefix.len() / BLOCK].to_vec();
        self.tables.push(first);
        let mut table_of_branch = vec![first_table; group.branches.len()];
        for (branch, tokens) in group.branches.iter().enumerate().skip(1).filter(|(_, b)| rows_of(b) > 0) {
            table_of_branch[branch] = self.tables.len();
            let table = self.table(&shared, prefix.len() + rows_of(tokens));
            self.tables.push(table);
        }

        for (position, &id) in prefix.iter().enumerate() {
            // A row of the page that the prefix ends in the middle of is written for every branch.
            let straddles = position >= prefix.len() / BLOCK * BLOCK;
            let tables = first_table..if straddles { self.tables.len() } else { first_table + 1 };
            self.row(id, position, first_table, tables);
            self.batch.branches_of_rows.push(owner);
        }
        for (&tokens, table) in group.branches.iter().zip(table_of_branch) {
            let before = self.batch.ids.len();
            for (i, &id) in tokens[..rows_of(tokens)].iter().enumerate() {
                self.row(id, prefix.len() + i, table, table..table + 1);
                self.batch.branches_of_rows.push(self.batch.scores_of_branches.len() as u32);
            }
            // Token i is predicted by the row before it: the prefix's last for the first.
            let scored = usize::from(prefix.is_empty())..tokens.len();
            let start = self.batch.targets.len();
            for i in scored {
                let row = if i == 0 { first_row as usize + prefix.len() - 1 } else { before + i - 1 };
                self.batch.score_rows.push(row as u32);
                self.batch.targets.push(tokens[i]);
            }
            self.batch.scores_of_branches.push(start..self.batch.targets.len());
        }
    }

    /// A table for `positions` positions that begins with `shared` pages and continues with new ones.
    fn table(&mut self, shared: &[u32], positions: usize) -> Vec<u32> {
        let mut table = shared.to_vec();
        while table.len() * BLOCK < positions {
            table.push(self.batch.blocks as u32);
            self.batch.blocks += 1;
        }
        table
    }

    fn row(&mut self, id: u32, position: usize, table: usize, written: Range<usize>) {
        let row = self.batch.ids.len() as u32;
        self.batch.ids.push(id);
        self.batch.positions.push(position as u32);
        self.batch.tables_of_rows.push(table as u32);
        for table in &self.tables[written] {
            self.batch.write_rows.push(row);
            self.batch.write_slots.push(table[position / BLOCK] * BLOCK as u32 + (position % BLOCK) as u32);
        }
    }

    fn finish(mut self) -> Batch {
        self.batch.groups.push(self.batch.ids.len() as u32);
        self.batch.score_groups.push(self.batch.targets.len() as u32);
        self.batch.branch_groups.push(self.batch.scores_of_branches.len() as u32);
        self.batch.table_len = self.tables.iter().map(Vec::len).max().unwrap_or(0);
        for mut table in self.tables {
            table.resize(self.batch.table_len, 0);
            self.batch.tables.extend(table);
        }
        self.batch
    }
}

/// A [`Batch`] on the device.
#[derive(Debug)]
pub struct BatchTensors {
    pub(crate) capacity: Capacity,
    pub(crate) rows: InferRows,
    /// Token of each row `[T]`, on the host.
    pub(crate) ids: Vec<u32>,
    /// First row and first branch of each independent group `[G + 1]`, on the host.
    group_starts: Vec<(u32, u32)>,
    /// The other indices that a forward or backward pass reads, one list after the other, to be copied at once: groups
    /// and score groups `[G + 1]`, score rows and targets `[R]`, and the groups of each of the head's pieces.
    lists: Tensor,
    /// Where each of the lists ends, but those of pieces.
    ends: [usize; 4],
    /// Scored rows that the head computes at once, and where the list of their groups is.
    head_pieces: Vec<(Range<usize>, Range<usize>)>,
    pub(crate) dropout: Option<Dropout>,
}

impl BatchTensors {
    /// Copies a batch to the device. Booked under "workspace".
    pub fn new(memory: &Memory, batch: &Batch) -> BatchTensors {
        let tables = batch.tables.len().checked_div(batch.table_len).unwrap_or(0);
        let room = [batch.ids.len(), batch.write_rows.len(), 0];
        let mut rows = InferRows::with_room(memory, room, tables, batch.table_len);
        for (i, table) in batch.tables.chunks_exact(batch.table_len.max(1)).enumerate() {
            rows.set_table(i, table);
        }
        rows.set(StepRows {
            ids: &batch.ids,
            positions: &batch.positions,
            tables_of_rows: &batch.tables_of_rows,
            write_rows: &batch.write_rows,
            write_slots: &batch.write_slots,
            sampled: &[],
            draws: &[],
        });
        let lists = [&batch.groups[..], &batch.score_groups, &batch.score_rows, &batch.targets];
        let (mut all, mut end) = (lists.concat(), 0);
        let list = |(piece, groups): (Range<usize>, Vec<u32>)| {
            all.extend_from_slice(&groups);
            (piece, all.len() - groups.len()..all.len())
        };
        let head_pieces = head_pieces(&batch.score_groups).into_iter().map(list).collect();
        BatchTensors {
            capacity: batch.capacity(),
            rows,
            ids: batch.ids.clone(),
            group_starts: batch.groups.iter().copied().zip(batch.branch_groups.iter().copied()).collect(),
            lists: Tensor::from_u32(&memory.part("workspace"), &[all.len()], &all),
            ends: lists.map(|list| {
                end += list.len();
                end
            }),
            head_pieces,
            dropout: None,
        }
    }
    /// What adapters do not see from the next [`forward`](crate::net::forward) on, whose backward pass does the same;
    /// at first they see everything.
    pub fn set_dropout(&mut self, dropout: Option<Dropout>) {
        self.dropout = dropout;
    }
    /// The rows of each independent group, and the branches that it has.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let range = |from: u32, to: u32| from as usize..to as usize;
        self.group_starts.windows(2).map(move |g| (range(g[0].0, g[1].0), range(g[0].1, g[1].1)))
    }
    /// The room that the batch takes.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }
    /// `[G + 1]`
    pub(crate) fn groups(&self) -> View<'_> {
        self.lists.rows(0..self.ends[0])
    }
    /// `[G + 1]`
    pub(crate) fn score_groups(&self) -> View<'_> {
        self.lists.rows(self.ends[0]..self.ends[1])
    }
    /// The scored rows in pieces that the head computes one after the other, with the offsets of the groups of each,
    /// counted from its first row.
    pub(crate) fn head_pieces(&self) -> impl Iterator<Item = (Range<usize>, View<'_>)> {
        self.head_pieces.iter().map(|(piece, groups)| (piece.clone(), self.lists.rows(groups.clone())))
    }
    /// `[R]`
    pub(crate) fn score_rows(&self) -> View<'_> {
        self.lists.rows(self.ends[1]..self.ends[2])
    }
    /// `[R]`
    pub(crate) fn targets(&self) -> View<'_> {
        self.lists.rows(self.ends[2]..self.ends[3])
    }
}

#[cfg(test)]
mod tests;
