//! Gathering rows on the CPU. The gather is split over rows; the backward pass is split over columns, so that each sum
//! runs over the chosen rows in order.

use super::{Gather, ScatterAdd};
use crate::device::Cpu;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;

/// Rows per gather task.
const ROWS: usize = 32;
/// Number of rows by which a gather prefetches ahead.
const AHEAD: usize = 2;
/// Columns per scatter-add task.
const COLUMNS: usize = 128;

pub(super) fn gather(cpu: &Cpu, args: Gather<'_>) {
    let (rows, hidden) = (args.rows.u32(cpu), args.x.shape()[1]);
    let tasks = rows.len().div_ceil(ROWS);
    match args.x.elements(cpu) {
        Elements::F32(x) => cpu.run(tasks, &GatherTasks { x, rows, hidden, out: Disjoint::new(args.out.f32(cpu)) }),
        Elements::Bf16(x) => cpu.run(tasks, &GatherTasks { x, rows, hidden, out: Disjoint::new(args.out.bf16(cpu)) }),
    }
}

struct GatherTasks<'a, E> {
    x: &'a [E],
    rows: &'a [u32],
    hidden: usize,
    out: Disjoint<'a, E>,
}

impl<E: Element> Tasks for GatherTasks<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let hidden = self.hidden;
        for r in index * ROWS..self.rows.len().min((index + 1) * ROWS) {
            // The hardware prefetcher cannot predict the next row.
            if let Some(&next) = self.rows.get(r + AHEAD) {
                let next = &self.x[next as usize * hidden..][..hidden];
                next.chunks(64 / size_of::<E>()).for_each(|line| V::prefetch_near(line.as_ptr()));
            }
            let row = self.rows[r] as usize;
            // SAFETY: no other task accesses this output row.
            let out = unsafe { self.out.slice(r * hidden..(r + 1) * hidden) };
            out.copy_from_slice(&self.x[row * hidden..(row + 1) * hidden]);
        }
    }
}

pub(super) fn scatter_add(cpu: &Cpu, args: ScatterAdd<'_>) {
    let (hidden, d_x) = (args.d_x.shape()[1], Disjoint::new(args.d_x.f32(cpu)));
    let tasks = ScatterAddTasks { d_out: args.d_out.f32(cpu), rows: args.rows.u32(cpu), hidden, d_x };
    cpu.run(hidden.div_ceil(COLUMNS), &tasks);
}

struct ScatterAddTasks<'a> {
    d_out: &'a [f32],
    rows: &'a [u32],
    hidden: usize,
    d_x: Disjoint<'a, f32>,
}

impl Tasks for ScatterAddTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let hidden = self.hidden;
        let columns = index * COLUMNS..hidden.min((index + 1) * COLUMNS);
        for (&row, d_out) in self.rows.iter().zip(self.d_out.chunks_exact(hidden)) {
            let start = row as usize * hidden;
            // SAFETY: no other task accesses these columns of any row.
            let d_x = unsafe { self.d_x.slice(start + columns.start..start + columns.end) };
            for (sum, d) in d_x.chunks_mut(LANES).zip(d_out[columns.clone()].chunks(LANES)) {
                let n = d.len();
                V::load_partial(sum, n).add(V::load_partial(d, n)).store_partial(sum, n);
            }
        }
    }
}
