//! The rows that an inference step computes. All index lists of a step are in one tensor, so that one copy transfers
//! them to the device. The offset of each list depends only on the step's sizes, so that a decode step can be captured
//! and replayed.

use kernels::ops::attention::{self, BLOCK};
use kernels::ops::sample;
use kernels::{DType, Memory, Tensor, View};
use std::ops::Range;

/// The rows of an inference step, on the device. In the shapes, T is the number of rows, S of sequences, W of writes to
/// the KV cache, and D of rows from which a token is sampled.
#[derive(Debug)]
pub struct InferRows {
    /// All lists, concatenated in the order of [`Lists`]; the tensor has room for more.
    device: Tensor,
    /// Copy of the lists in host memory.
    staging: Vec<u32>,
    /// Block tables as they were last set `[tables, table_len]`.
    tables: Vec<u32>,
    table_len: usize,
    lists: Lists,
    /// Largest D (rows to sample from) for which there is room.
    max_sampled: usize,
}

/// The range of each list in the tensor.
#[derive(Clone, Debug, Default)]
struct Lists {
    ids: Range<usize>,
    positions: Range<usize>,
    tables_of_rows: Range<usize>,
    write_rows: Range<usize>,
    write_slots: Range<usize>,
    tables: Range<usize>,
    /// `sampled` and `draws` come last, so that they can be copied separately and can grow.
    sampled: Range<usize>,
    draws: Range<usize>,
}

/// The rows of an inference step, in host memory.
#[derive(Clone, Copy, Default)]
pub struct StepRows<'a> {
    /// Token id of each row.
    pub ids: &'a [u32],
    /// Position of each row in its sequence; ascending within a sequence.
    pub positions: &'a [u32],
    /// Index of the block table of each row.
    pub tables_of_rows: &'a [u32],
    /// Rows to write to the KV cache: row `write_rows[i]` goes to slot `write_slots[i]`. Every row is written at least
    /// once.
    pub write_rows: &'a [u32],
    /// Slots in the KV cache to write to: page · 64 + position in the page. The list is as long as `write_rows`.
    pub write_slots: &'a [u32],
    /// Rows from which a token is sampled.
    pub sampled: &'a [u32],
    /// Sampling parameters of these rows, as [`sample::pack`] packs them.
    pub draws: &'a [u32],
}

impl InferRows {
    /// Buffers for up to `max_rows` rows and as many writes, `max_sequences` block tables of `table_len` pages, and
    /// `max_sequences` rows to sample from, with token histories up to the length of a table. Memory is charged to
    /// "workspace".
    pub fn new(memory: &Memory, max_rows: usize, max_sequences: usize, table_len: usize) -> InferRows {
        InferRows::with_room(memory, [max_rows, max_rows, max_sequences], max_sequences, table_len)
    }
    /// Buffers for the given numbers of rows, writes, rows to sample from, and block tables of `table_len` pages.
    pub fn with_room(
        memory: &Memory,
        [rows, writes, max_sampled]: [usize; 3],
        tables: usize,
        table_len: usize,
    ) -> InferRows {
        let draws = sample::packed_len(memory.device(), max_sampled, table_len * BLOCK);
        let len = 3 * rows + 2 * writes + tables * table_len + max_sampled + draws;
        InferRows {
            device: Tensor::zeros(&memory.part("workspace"), &[len], DType::U32),
            staging: Vec::with_capacity(len),
            tables: vec![0; tables * table_len],
            table_len,
            lists: Lists::default(),
            max_sampled,
        }
    }
    /// Sets the first pages of block table `table`. The next [`set`](Self::set) copies it to the device.
    pub fn set_table(&mut self, table: usize, blocks: &[u32]) {
        self.tables[table * self.table_len..(table + 1) * self.table_len][..blocks.len()].copy_from_slice(blocks);
    }
    /// Sets the rows of a step, with one copy to the device.
    pub fn set(&mut self, step: StepRows<'_>) {
        assert!(step.sampled.len() <= self.max_sampled, "no room to sample from {} rows", step.sampled.len());
        let tables = step.tables_of_rows.iter().max().map_or(0, |&last| last as usize + 1);
        let tables = &self.tables[..tables * self.table_len];
        let staging = &mut self.staging;
        staging.clear();
        let mut put = |list: &[u32]| {
            staging.extend_from_slice(list);
            staging.len() - list.len()..staging.len()
        };
        self.lists = Lists {
            ids: put(step.ids),
            positions: put(step.positions),
            tables_of_rows: put(step.tables_of_rows),
            write_rows: put(step.write_rows),
            write_slots: put(step.write_slots),
            tables: put(tables),
            sampled: put(step.sampled),
            draws: put(step.draws),
        };
        self.device.rows_mut(0..staging.len()).copy_from_u32(staging);
    }
    /// Replaces the rows to sample from, with one copy to the device. Steps that sample from more rows than fit call
    /// this several times.
    pub fn set_sampled(&mut self, rows: &[u32], draws: &[u32]) {
        assert!(rows.len() <= self.max_sampled, "no room to sample from {} rows", rows.len());
        let start = self.lists.sampled.start;
        self.staging.truncate(start);
        self.staging.extend_from_slice(rows);
        self.staging.extend_from_slice(draws);
        self.lists.sampled = start..start + rows.len();
        self.lists.draws = self.lists.sampled.end..self.staging.len();
        self.device.rows_mut(start..self.staging.len()).copy_from_u32(&self.staging[start..]);
    }
    /// Largest number of rows to sample from.
    pub fn max_sampled(&self) -> usize {
        self.max_sampled
    }
    /// The D rows to sample from, u32 `[D]`.
    pub fn sampled(&self) -> View<'_> {
        self.device.rows(self.lists.sampled.clone())
    }
    /// Packed sampling parameters of the rows to sample from.
    pub fn draws(&self) -> View<'_> {
        self.device.rows(self.lists.draws.clone())
    }
    /// Number of rows of the step.
    pub fn rows(&self) -> usize {
        self.lists.ids.len()
    }

    /// The sequences of a step: ranges of consecutive rows with the same block table, and the index of that table.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut start = 0;
        self.staging[self.lists.tables_of_rows.clone()].chunk_by(|a, b| a == b).map(move |run| {
            let (rows, table) = (start..start + run.len(), run[0] as usize);
            start = rows.end;
            (rows, table..table + 1)
        })
    }

    pub(crate) fn views(&self) -> RowViews<'_> {
        let of = |list: &Range<usize>| self.device.rows(list.clone());
        let (lists, len) = (&self.lists, self.table_len);
        RowViews {
            ids: of(&lists.ids),
            positions: of(&lists.positions),
            tables_of_rows: of(&lists.tables_of_rows),
            tables: of(&lists.tables).reshape(&[lists.tables.len().checked_div(len).unwrap_or(0), len]),
            write_rows: of(&lists.write_rows),
            write_slots: of(&lists.write_slots),
        }
    }
}

/// The lists of a step in the form that operations read, for T rows, S sequences and W writes.
#[derive(Clone, Copy)]
pub(crate) struct RowViews<'a> {
    /// Token ids `[T]`.
    pub ids: View<'a>,
    /// Positions in the sequences `[T]`.
    pub positions: View<'a>,
    /// Index of the block table of each row `[T]`.
    tables_of_rows: View<'a>,
    /// Block tables `[S, table_len]`.
    tables: View<'a>,
    /// Row of each write to the KV cache `[W]`.
    pub write_rows: View<'a>,
    /// Slot of each write to the KV cache `[W]`.
    pub write_slots: View<'a>,
}

impl<'a> RowViews<'a> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ids.shape()[0]
    }
    /// The lists that attention reads.
    pub fn attention(&self) -> attention::Rows<'a> {
        attention::Rows { positions: self.positions, tables_of_rows: self.tables_of_rows, tables: self.tables }
    }
}
