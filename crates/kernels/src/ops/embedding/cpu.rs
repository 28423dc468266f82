//! Token embedding on the CPU: gathers rows from the packed layouts of [`crate::matrix`]; the backward pass adds
//! gradients to them in a fixed order.

use super::{Backward, Forward};
use crate::device::Cpu;
use crate::matrix::{Layout, PANEL};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, Simd};
use crate::tensor::Elements;

/// Number of tokens in a forward task. It is small, because each element of a table row is on a separate cache line.
const TOKENS: usize = 8;
/// Hidden columns per backward task.
const COLUMNS: usize = 64;

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let (ids, out, layout, hidden) = (args.ids.u32(cpu), args.out.f32(cpu), args.table.layout(), args.table.cols());
    let (out, scale, count) = (Disjoint::new(out), args.scale, ids.len().div_ceil(TOKENS));
    match args.table.elements(cpu) {
        Elements::F32(table) => cpu.run(count, &ForwardTasks { ids, table, layout, hidden, scale, out }),
        Elements::Bf16(table) => cpu.run(count, &ForwardTasks { ids, table, layout, hidden, scale, out }),
    }
}

struct ForwardTasks<'a, E> {
    ids: &'a [u32],
    table: &'a [E],
    layout: Layout,
    hidden: usize,
    scale: f32,
    out: Disjoint<'a, f32>,
}

impl<E: Element> Tasks for ForwardTasks<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        for token in index * TOKENS..self.ids.len().min((index + 1) * TOKENS) {
            let (id, hidden) = (self.ids[token] as usize, self.hidden);
            // SAFETY: no other task accesses this token's row.
            let out = unsafe { self.out.slice(token * hidden..(token + 1) * hidden) };
            for (h, out) in out.iter_mut().enumerate() {
                *out = self.scale * self.table[self.layout.at(hidden, id, h)].widen();
            }
        }
    }
}

pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    let hidden = args.d_table.cols();
    let d_table = Disjoint::new(args.d_table.data_mut().view_mut().f32(cpu));
    let tasks =
        BackwardTasks { ids: args.ids.u32(cpu), d_out: args.d_out.f32(cpu), scale: args.scale, hidden, d_table };
    cpu.run(hidden.div_ceil(COLUMNS), &tasks);
}

struct BackwardTasks<'a> {
    ids: &'a [u32],
    d_out: &'a [f32],
    scale: f32,
    hidden: usize,
    d_table: Disjoint<'a, f32>,
}

impl Tasks for BackwardTasks<'_> {
    /// Adds the gradients of all tokens, in order, for some columns. Tasks write disjoint columns, so each sum has one
    /// fixed order.
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let hidden = self.hidden;
        let columns = index * COLUMNS..hidden.min((index + 1) * COLUMNS);
        for (&id, d_out) in self.ids.iter().zip(self.d_out.chunks_exact(hidden)) {
            let id = id as usize;
            let panel = id / PANEL * hidden;
            // SAFETY: no other task accesses these columns of any panel.
            let d_table = unsafe { self.d_table.slice((panel + columns.start) * PANEL..(panel + columns.end) * PANEL) };
            for (sums, &d) in d_table.chunks_exact_mut(PANEL).zip(&d_out[columns.clone()]) {
                sums[id % PANEL] += self.scale * d;
            }
        }
    }
}
