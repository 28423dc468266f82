//! Which rows a step computes. All that the device must be told of a step is one tensor and goes there in one copy;
//! where each list lies depends on the step's sizes alone, so that a decode step can be captured and replayed.

use kernels::ops::attention::{self, BLOCK};
use kernels::ops::sample;
use kernels::{DType, Memory, Tensor, View};
use std::ops::Range;

/// The rows of a step: T rows of S sequences, W writes, D rows that a token is sampled from.
#[derive(Debug)]
pub struct InferRows {
    /// One list after the other, in the order of [`Lists`], with room for more.
    device: Tensor,
    /// The host's copy, from which the device's is written.
    staging: Vec<u32>,
    /// Block tables as they were last set, `[tables][table_len]`.
    tables: Vec<u32>,
    table_len: usize,
    lists: Lists,
    /// Room for so many of D.
    max_sampled: usize,
}

/// Where each list lies.
#[derive(Clone, Debug, Default)]
struct Lists {
    ids: Range<usize>,
    positions: Range<usize>,
    tables_of_rows: Range<usize>,
    write_rows: Range<usize>,
    write_slots: Range<usize>,
    tables: Range<usize>,
    /// This one and the next are the last, so that they can be copied alone and be longer.
    sampled: Range<usize>,
    draws: Range<usize>,
}

/// The rows of a step, on the host.
#[derive(Clone, Copy, Default)]
pub struct StepRows<'a> {
    /// Token of each row.
    pub ids: &'a [u32],
    /// Each row's position in its sequence; rows of a sequence are in ascending order.
    pub positions: &'a [u32],
    /// Each row's block table.
    pub tables_of_rows: &'a [u32],
    /// Row `write_rows[i]` goes to slot (page · 64 + place) `write_slots[i]`; every row is written at least once.
    pub write_rows: &'a [u32],
    /// The slot of the KV cache that each row writes, as many as rows.
    pub write_slots: &'a [u32],
    /// Rows that a token is sampled from.
    pub sampled: &'a [u32],
    /// How: what [`sample::pack`] makes of them.
    pub draws: &'a [u32],
}

impl InferRows {
    /// Room for `max_rows` rows and as many writes, `max_sequences` block tables of `table_len` pages, and as many rows
    /// to sample from, with histories as long as their tables reach. Booked under "workspace".
    pub fn new(memory: &Memory, max_rows: usize, max_sequences: usize, table_len: usize) -> InferRows {
        InferRows::with_room(memory, [max_rows, max_rows, max_sequences], max_sequences, table_len)
    }
    /// Room for rows, writes, and rows to sample from, and for block tables.
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
    /// Sets the first pages of block table `table`; [`set`](Self::set) copies it.
    pub fn set_table(&mut self, table: usize, blocks: &[u32]) {
        self.tables[table * self.table_len..(table + 1) * self.table_len][..blocks.len()].copy_from_slice(blocks);
    }
    /// Sets the rows of a step, in one copy.
    pub fn set(&mut self, step: StepRows<'_>) {
        assert!(step.sampled.len() <= self.max_sampled, "{} rows to sample from", step.sampled.len());
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
    /// Sets other rows to sample from, in one copy: of a step that has more of them than there is room for at once.
    pub fn set_sampled(&mut self, rows: &[u32], draws: &[u32]) {
        assert!(rows.len() <= self.max_sampled, "{} rows to sample from", rows.len());
        let start = self.lists.sampled.start;
        self.staging.truncate(start);
        self.staging.extend_from_slice(rows);
        self.staging.extend_from_slice(draws);
        self.lists.sampled = start..start + rows.len();
        self.lists.draws = self.lists.sampled.end..self.staging.len();
        self.device.rows_mut(start..self.staging.len()).copy_from_u32(&self.staging[start..]);
    }
    /// D of them are set at most.
    pub fn max_sampled(&self) -> usize {
        self.max_sampled
    }
    /// The rows to sample from, u32 `[D]`.
    pub fn sampled(&self) -> View<'_> {
        self.device.rows(self.lists.sampled.clone())
    }
    /// How to sample from them.
    pub fn draws(&self) -> View<'_> {
        self.device.rows(self.lists.draws.clone())
    }
    /// T, the rows set.
    pub fn rows(&self) -> usize {
        self.lists.ids.len()
    }

    /// Runs of rows of one block table each, and that table: the sequences of a step.
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

/// The rows set, as operations read them.
#[derive(Clone, Copy)]
pub(crate) struct RowViews<'a> {
    /// `[T]`
    pub ids: View<'a>,
    /// `[T]`
    pub positions: View<'a>,
    /// `[T]`
    tables_of_rows: View<'a>,
    /// `[S, table_len]`
    tables: View<'a>,
    /// `[W]`
    pub write_rows: View<'a>,
    /// `[W]`
    pub write_slots: View<'a>,
}

impl<'a> RowViews<'a> {
    /// T
    pub fn len(&self) -> usize {
        self.ids.shape()[0]
    }
    /// What attention reads.
    pub fn attention(&self) -> attention::Rows<'a> {
        attention::Rows { positions: self.positions, tables_of_rows: self.tables_of_rows, tables: self.tables }
    }
}
