//! Which rows a step computes: fixed-address tensors, so that a decode step can be captured and replayed.

use kernels::ops::attention;
use kernels::{DType, Memory, Tensor, View};
use std::ops::Range;

/// The rows of a step: T rows of S sequences, W writes. The tensors have room for more and never move.
#[derive(Debug)]
pub struct InferRows {
    ids: Tensor,
    positions: Tensor,
    tables_of_rows: Tensor,
    tables: Tensor,
    write_rows: Tensor,
    write_slots: Tensor,
    /// `tables_of_rows` on the host.
    host_tables: Vec<u32>,
    rows: usize,
    writes: usize,
}

impl InferRows {
    /// Room for `max_rows` rows and as many writes, and `max_sequences` block tables of `table_len` pages. Booked
    /// under "workspace".
    pub fn new(memory: &Memory, max_rows: usize, max_sequences: usize, table_len: usize) -> InferRows {
        InferRows::with_writes(memory, max_rows, max_sequences, table_len, max_rows)
    }
    /// As [`InferRows::new`], with room for another number of writes.
    pub(crate) fn with_writes(
        memory: &Memory,
        rows: usize,
        tables: usize,
        table_len: usize,
        writes: usize,
    ) -> InferRows {
        let memory = memory.part("workspace");
        let zeros = |shape: &[usize]| Tensor::zeros(&memory, shape, DType::U32);
        InferRows {
            ids: zeros(&[rows]),
            positions: zeros(&[rows]),
            tables_of_rows: zeros(&[rows]),
            tables: zeros(&[tables, table_len]),
            write_rows: zeros(&[writes]),
            write_slots: zeros(&[writes]),
            host_tables: Vec::with_capacity(rows),
            rows: 0,
            writes: 0,
        }
    }
    /// Sets the rows: token, position and block table of each; then the writes: row `write_rows[i]` goes to slot
    /// (page · 64 + place) `write_slots[i]`. Rows of a sequence in ascending positions; every row is written at least
    /// once.
    pub fn set(
        &mut self,
        ids: &[u32],
        positions: &[u32],
        tables_of_rows: &[u32],
        write_rows: &[u32],
        write_slots: &[u32],
    ) {
        let put = |t: &mut Tensor, from: &[u32]| t.rows_mut(0..from.len()).copy_from_u32(from);
        put(&mut self.ids, ids);
        put(&mut self.positions, positions);
        put(&mut self.tables_of_rows, tables_of_rows);
        put(&mut self.write_rows, write_rows);
        put(&mut self.write_slots, write_slots);
        self.host_tables.clear();
        self.host_tables.extend_from_slice(tables_of_rows);
        (self.rows, self.writes) = (ids.len(), write_rows.len());
    }
    /// Sets the first pages of block table `table`.
    pub fn set_table(&mut self, table: usize, blocks: &[u32]) {
        let len = self.tables.shape()[1];
        self.tables.rows_mut(table..table + 1).reshape(&[len]).rows(0..blocks.len()).copy_from_u32(blocks);
    }
    /// T, the rows set.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Runs of rows of one block table each, and that table: the sequences of a step.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut start = 0;
        self.host_tables.chunk_by(|a, b| a == b).map(move |run| {
            let (rows, table) = (start..start + run.len(), run[0] as usize);
            start = rows.end;
            (rows, table..table + 1)
        })
    }

    pub(crate) fn views(&self) -> RowViews<'_> {
        RowViews {
            ids: self.ids.rows(0..self.rows),
            positions: self.positions.rows(0..self.rows),
            tables_of_rows: self.tables_of_rows.rows(0..self.rows),
            tables: self.tables.view(),
            write_rows: self.write_rows.rows(0..self.writes),
            write_slots: self.write_slots.rows(0..self.writes),
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
