//! Gated linear units fused into the matmul of the gate and up projections, on the CPU. A task computes a block of gate
//! and a block of up, and combines them while both are in the cache.

use super::cpu::{Gate, GeluTanh, Silu, gated};
use super::{Activation, Fused};
use crate::device::Cpu;
use crate::gemm::{Matmul, Operands};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, Simd};
use crate::tensor::Elements;
use crate::{DType, Isa};
use std::marker::PhantomData;
use std::ops::Range;

/// Numbers of rows and columns of a task's blocks: few enough that both blocks stay in the second-level cache.
const BLOCK: [usize; 2] = [256, 128];

struct FusedTasks<'a, A, E> {
    gate: PhantomData<A>,
    isa: Isa,
    x: Elements<'a>,
    w: Elements<'a>,
    bias: Option<&'a [f32]>,
    kept: Option<Disjoint<'a, E>>,
    y: Disjoint<'a, E>,
    /// `[T, K, F]`: tokens, inputs, and outputs of the layer.
    shape: [usize; 3],
    row_blocks: usize,
    columns: usize,
}

impl<A, E> FusedTasks<'_, A, E> {
    /// Computes `to = x[rows] wᵀ + bias` for the outputs `columns`, which start at a panel of the weight.
    fn matmul(&self, rows: &Range<usize>, columns: Range<usize>, to: &mut [f32], scratch: &mut Scratch) {
        let [_, k, _] = self.shape;
        let bias = self.bias.map(|bias| &bias[columns.clone()]);
        let operands = Operands::for_outputs((self.x, self.w), k, rows.clone(), columns.clone(), bias, to);
        let panels = columns.len() / crate::matrix::PANEL;
        // SAFETY: `to` is borrowed exclusively, and only this thread writes to it.
        unsafe { Matmul::new(self.isa, operands).block(0..rows.len(), 0..panels, scratch) };
    }
}

impl<A: Gate, E: Element> Tasks for FusedTasks<'_, A, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let [t, _, f] = self.shape;
        // Columns change slowest, so that threads read the same weights at the same time.
        let (block, start) = (index % self.row_blocks, index / self.row_blocks * self.columns);
        let rows = block * t / self.row_blocks..(block + 1) * t / self.row_blocks;
        let columns = start..f.min(start + self.columns);
        let width = columns.len();

        let (both, scratch) = scratch.split(2 * rows.len() * width);
        let (gate, up) = both.split_at_mut(rows.len() * width);
        self.matmul(&rows, columns.clone(), gate, scratch);
        self.matmul(&rows, f + columns.start..f + columns.end, up, scratch);
        for (row, (gate, up)) in rows.zip(gate.chunks_exact(width).zip(up.chunks_exact(width))) {
            // SAFETY: no other task accesses these rows and columns.
            let y = unsafe { self.y.slice(row * f + columns.start..row * f + columns.end) };
            let kept = self.kept.as_ref().map(|kept| {
                let at = 2 * row * f + columns.start;
                // SAFETY: no other task accesses these rows and columns, and gate and up of a row do not overlap.
                unsafe { (kept.slice(at..at + width), kept.slice(at + f..at + f + width)) }
            });
            gated::<V, A, f32, E>([gate, up], kept, y);
        }
    }
}

pub(super) fn forward(cpu: &Cpu, args: Fused<'_>) {
    match args.activation {
        Activation::Silu => forward_of::<Silu>(cpu, args),
        Activation::GeluTanh => forward_of::<GeluTanh>(cpu, args),
    }
}

fn forward_of<A: Gate>(cpu: &Cpu, args: Fused<'_>) {
    let gate = PhantomData::<A>;
    let Fused { x, w, bias, kept, y, .. } = args;
    let shape @ [t, _, f] = [y.shape()[0], w.cols(), y.shape()[1]];
    let (x, w, isa, bias) = (x.elements(cpu), w.elements(cpu), cpu.isa(), bias.map(|b| b.f32(cpu)));
    let [rows, columns] = BLOCK;
    let (row_blocks, tasks) = (t.div_ceil(rows), t.div_ceil(rows) * f.div_ceil(columns));
    if y.dtype() == DType::Bf16 {
        let (kept, y) = (kept.map(|k| Disjoint::new(k.bf16(cpu))), Disjoint::new(y.bf16(cpu)));
        cpu.run(tasks, &FusedTasks { gate, isa, x, w, bias, kept, y, shape, row_blocks, columns });
    } else {
        let (kept, y) = (kept.map(|k| Disjoint::new(k.f32(cpu))), Disjoint::new(y.f32(cpu)));
        cpu.run(tasks, &FusedTasks { gate, isa, x, w, bias, kept, y, shape, row_blocks, columns });
    }
}
