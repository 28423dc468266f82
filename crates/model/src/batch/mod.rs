//! A batch of complete sequences, packed without padding. Each prefix (prompt) appears once, followed by the branches
//! (completions) that continue it.
//!
//! Rows are laid out as `[prefix][branch 0][branch 1]…`, group after group. Each branch attends to the prefix and to
//! itself. A row is an input token; it predicts the next token. The last token of a branch predicts nothing that is
//! scored, and no row attends to it, so it has no row.
//!
//! Keys and values are in KV-cache pages of [`BLOCK`] positions. Branches share the pages that the prefix fills
//! completely. A page that the prefix fills partly is copied for each branch: the prefix's rows are written into all
//! copies. So each branch reads the same pages, and gets the same bits, as if it were computed alone, however sequences
//! are packed and whether or not prefixes are shared.
//!
//! This module depends neither on the source of the tokens nor on the use of the scores.

mod dropout;
mod pieces;
mod rows;
mod targets;

pub use dropout::Dropout;
pub(crate) use rows::RowViews;
pub use rows::{InferRows, StepRows};
pub use targets::Targets;

use crate::kv::BLOCK;
use kernels::{Memory, Tensor, View};
use pieces::head_pieces;
use std::ops::Range;

/// A group: a prefix and the branches that continue it, such as a prompt and its completions.
///
/// The tokens of branches are scored, each conditioned on all tokens before it. The first token of a branch with an
/// empty prefix has nothing before it and is not scored. A prefix without branches is computed, but nothing is scored.
#[derive(Clone, Copy, Debug)]
pub struct GroupSegment<'a> {
    /// Token ids of the prefix.
    pub prefix: &'a [u32],
    /// Token ids of each branch (completion).
    pub branches: &'a [&'a [u32]],
}

/// The size of a batch, or of the largest batch that buffers have room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of rows (input tokens).
    pub tokens: usize,
    /// Number of KV-cache pages.
    pub blocks: usize,
    /// Number of scored tokens.
    pub score_rows: usize,
}

impl Capacity {
    /// Size of a group, given the lengths of its prefix and branches and whether branches share the prefix.
    pub fn for_group(prefix: usize, branches: &[usize], sharing: bool) -> Capacity {
        if !sharing && branches.len() > 1 {
            return branches
                .iter()
                .map(|&b| Capacity::for_group(prefix, &[b], true))
                .fold(Capacity::default(), |a, b| a + b);
        }
        let rows = |tokens: usize| tokens.saturating_sub(1);
        let pages = |positions: usize| positions.div_ceil(BLOCK);
        // The first branch continues in the prefix's pages; the other branches share only the full pages.
        let first = pages(prefix + branches.first().map_or(0, |&b| rows(b)));
        let own = |b: usize| if rows(b) == 0 { 0 } else { pages(prefix + rows(b)) - prefix / BLOCK };
        Capacity {
            tokens: prefix + branches.iter().map(|&b| rows(b)).sum::<usize>(),
            blocks: first + branches.iter().skip(1).map(|&b| own(b)).sum::<usize>(),
            score_rows: branches.iter().map(|&b| if prefix == 0 { rows(b) } else { b }).sum(),
        }
    }
    /// Upper bound on the size of a micro-batch of up to `max_tokens` tokens that is taken from `groups` groups with
    /// `completions` completions in total. Each group is at most as large as `one`.
    pub fn for_micro_batch(one: Capacity, groups: usize, completions: usize, max_tokens: usize) -> Capacity {
        // A group larger than the budget gets a separate micro-batch, since groups are never split. Smaller groups
        // share a micro-batch up to the budget. Each sequence may leave two pages partly unused: its own last page and
        // the prompt's last page.
        let tokens = one.tokens.max(max_tokens.min(groups * one.tokens));
        let blocks = tokens.div_ceil(BLOCK) + 2 * completions;
        Capacity {
            tokens,
            blocks: one.blocks.max(blocks.min(groups * one.blocks)),
            score_rows: one.score_rows.max((tokens + completions).min(groups * one.score_rows)),
        }
    }
    /// The elementwise maximum: room for either batch.
    pub fn max(self, other: Capacity) -> Capacity {
        Capacity {
            tokens: self.tokens.max(other.tokens),
            blocks: self.blocks.max(other.blocks),
            score_rows: self.score_rows.max(other.score_rows),
        }
    }
    /// Whether a batch of size `other` fits.
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

/// A packed batch in host memory. In the shapes, T is the number of rows, S of block tables (one per sequence), W of
/// writes to the KV cache, and R of scored tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token id of each row `[T]`.
    pub ids: Vec<u32>,
    /// Position of each row in its sequence `[T]`.
    pub positions: Vec<u32>,
    /// Index of the block table of each row `[T]`.
    pub tables_of_rows: Vec<u32>,
    /// Block tables `[S, table_len]`: the KV-cache pages of each sequence, padded with 0.
    pub tables: Vec<u32>,
    /// Number of pages in the longest sequence.
    pub table_len: usize,
    /// Total number of pages.
    pub blocks: usize,
    /// Source row of each key/value write, in ascending order `[W]`.
    pub write_rows: Vec<u32>,
    /// KV-cache slot of each key/value write: page · 64 + position in the page `[W]`.
    pub write_slots: Vec<u32>,
    /// First row of each independent group, followed by T. Groups share no pages.
    pub groups: Vec<u32>,
    /// Index of the first scored token of each group, followed by R.
    pub score_groups: Vec<u32>,
    /// Index of the first branch of each group, counted over all groups, followed by the number of branches.
    pub branch_groups: Vec<u32>,
    /// The row that predicts each scored token `[R]`, in the order of branches and of their tokens.
    pub score_rows: Vec<u32>,
    /// Token id of each scored token `[R]`.
    pub targets: Vec<u32>,
    /// The range of scored tokens of each branch, in the order in which groups and branches were given.
    pub scores_of_branches: Vec<Range<usize>>,
    /// Index of the branch to which each row belongs `[T]`, counted over all groups. A prefix's rows belong to the
    /// first branch in the order given, whether the prefix is shared or not.
    pub branches_of_rows: Vec<u32>,
}

impl Batch {
    /// Packs groups. Without `sharing` every branch becomes a group with its own copy of the prefix.
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
    /// Size of the batch.
    pub fn capacity(&self) -> Capacity {
        Capacity { tokens: self.ids.len(), blocks: self.blocks, score_rows: self.targets.len() }
    }
}

/// A batch under construction. Its block tables are not yet padded to one length.
#[derive(Default)]
struct Packer {
    batch: Batch,
    tables: Vec<Vec<u32>>,
}

impl Packer {
    /// Adds a group. `owner` is the index of the branch to which the prefix's rows belong.
    fn group(&mut self, group: &GroupSegment<'_>, owner: u32) {
        let prefix = group.prefix;
        let first_row = self.batch.ids.len() as u32;
        self.batch.groups.push(first_row);
        self.batch.score_groups.push(self.batch.targets.len() as u32);
        self.batch.branch_groups.push(self.batch.scores_of_branches.len() as u32);

        // Block tables: one for the prefix, which the first branch continues, then one for each other branch that has
        // rows.
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
            // A prefix row in a partly filled page is written to the copies of all branches.
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
            // Token i of a branch is predicted by the row before it. For i = 0 this is the prefix's last row.
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

    /// A block table for `positions` positions. It starts with the pages `shared` and continues with new pages.
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

/// A [`Batch`] in device memory.
#[derive(Debug)]
pub struct BatchTensors {
    pub(crate) capacity: Capacity,
    pub(crate) rows: InferRows,
    /// Token id of each row `[T]`, in host memory.
    pub(crate) ids: Vec<u32>,
    /// First row and first branch of each independent group `[G + 1]`, in host memory.
    group_starts: Vec<(u32, u32)>,
    /// Index lists that a forward or backward pass reads, concatenated so that one copy transfers them. They are the
    /// first rows and the first scored tokens of the G groups `[G + 1]`, the rows and ids of the R scored tokens `[R]`,
    /// and the group offsets of each piece of the head.
    lists: Tensor,
    /// End of each of the first four lists.
    ends: [usize; 4],
    /// The pieces of the head, each as the range of its scored rows and the range of its group offsets in `lists`.
    head_pieces: Vec<(Range<usize>, Range<usize>)>,
    pub(crate) dropout: Option<Dropout>,
}

impl BatchTensors {
    /// Copies a batch to the device. Memory is charged to "workspace".
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
    /// Sets the dropout on the inputs of LoRA adapters, for the next [`forward`](crate::net::forward) and its backward
    /// pass. A new batch has no dropout.
    pub fn set_dropout(&mut self, dropout: Option<Dropout>) {
        self.dropout = dropout;
    }
    /// The range of rows and the range of branches of each independent group.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let range = |from: u32, to: u32| from as usize..to as usize;
        self.group_starts.windows(2).map(move |g| (range(g[0].0, g[1].0), range(g[0].1, g[1].1)))
    }
    /// Size of the batch.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }
    /// First row of each of the G groups, then the number of rows `[G + 1]`.
    pub(crate) fn groups(&self) -> View<'_> {
        self.lists.rows(0..self.ends[0])
    }
    /// First scored token of each of the G groups, then the number of scored tokens `[G + 1]`.
    pub(crate) fn score_groups(&self) -> View<'_> {
        self.lists.rows(self.ends[0]..self.ends[1])
    }
    /// The pieces of scored rows that the head computes one after another, each with its group offsets, counted from
    /// the first row of the piece.
    pub(crate) fn head_pieces(&self) -> impl Iterator<Item = (Range<usize>, View<'_>)> {
        self.head_pieces.iter().map(|(piece, groups)| (piece.clone(), self.lists.rows(groups.clone())))
    }
    /// The rows that predict the R scored tokens `[R]`.
    pub(crate) fn score_rows(&self) -> View<'_> {
        self.lists.rows(self.ends[1]..self.ends[2])
    }
    /// Token ids of the R scored tokens `[R]`.
    pub(crate) fn targets(&self) -> View<'_> {
        self.lists.rows(self.ends[2]..self.ends[3])
    }
}

#[cfg(test)]
mod tests;
