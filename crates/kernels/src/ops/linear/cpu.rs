//! Linear layer on the CPU: its three matmuls, and the gradient of the bias, which is a sum over rows.

use super::{BackwardInput, BackwardWeight, Forward};
use crate::device::Cpu;
use crate::gemm::{Left, Matmul, MatmulDType, Operands, Order, Right};
use crate::ops::lanes::{chunks, load, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let Forward { x, w, bias, y, accumulate } = args;
    let ([m, k], n) = ([x.shape()[0], w.cols()], w.rows());
    let operands = Operands {
        m,
        n,
        depth: k,
        left: Left::Rows(x.elements(cpu), k),
        right: Right::Panels(w.elements(cpu)),
        c: y.f32(cpu),
        order: Order::Rows(n),
        accumulate,
        bias: bias.map(|b| b.f32(cpu)),
        dtype: MatmulDType::of(&[x.elements(cpu), w.elements(cpu)]),
        segments: None,
    };
    Matmul::new(cpu.isa(), operands).run(cpu);
}

pub(super) fn backward_input(cpu: &Cpu, args: BackwardInput<'_>) {
    let BackwardInput { d_y, w, d_x, accumulate } = args;
    let ([m, n], k) = ([d_y.shape()[0], w.rows()], w.cols());
    let operands = Operands {
        m,
        n: k,
        depth: n,
        left: Left::Rows(d_y.elements(cpu), n),
        right: Right::Transposed(w.elements(cpu)),
        c: d_x.f32(cpu),
        order: Order::Rows(k),
        accumulate,
        bias: None,
        dtype: MatmulDType::of(&[w.elements(cpu)]),
        segments: None,
    };
    Matmul::new(cpu.isa(), operands).run(cpu);
}

pub(super) fn backward_weight(cpu: &Cpu, args: BackwardWeight<'_>) {
    let BackwardWeight { x, d_y, d_w, d_bias, segments } = args;
    let ([m, k], n) = ([x.shape()[0], d_w.cols()], d_w.rows());
    let segments = segments.map(|s| s.u32(cpu));
    let operands = Operands {
        m: k,
        n,
        depth: m,
        left: Left::Columns(x.elements(cpu), k),
        right: Right::Rows(d_y.elements(cpu), n),
        c: d_w.data_mut().view_mut().f32(cpu),
        order: Order::Panels,
        accumulate: true,
        bias: None,
        dtype: MatmulDType::of(&[x.elements(cpu)]),
        segments,
    };
    Matmul::new(cpu.isa(), operands).run(cpu);
    if let Some(d_bias) = d_bias.filter(|_| n > 0) {
        let (d_bias, tasks) = (Disjoint::new(d_bias.f32(cpu)), n.div_ceil(BIAS_COLUMNS));
        match d_y.elements(cpu) {
            Elements::F32(d_y) => cpu.run(tasks, &Bias { d_y, n, segments, d_bias }),
            Elements::Bf16(d_y) => cpu.run(tasks, &Bias { d_y, n, segments, d_bias }),
        }
    }
}

/// Tasks that compute `d_bias[n] += Σ_m d_y[m, n]`. Each of the [`chunks`] of rows is summed from 0 in ascending order,
/// then added to `d_bias`.
struct Bias<'a, E> {
    d_y: &'a [E],
    n: usize,
    segments: Option<&'a [u32]>,
    d_bias: Disjoint<'a, f32>,
}

/// Columns per [`Bias`] task.
const BIAS_COLUMNS: usize = 64;

impl<E: Element> Tasks for Bias<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let columns = index * BIAS_COLUMNS..self.n.min((index + 1) * BIAS_COLUMNS);
        // SAFETY: no other task accesses these columns.
        let d_bias = unsafe { self.d_bias.slice(columns.clone()) };
        let vectors = columns.len().div_ceil(LANES);
        for chunk in chunks(self.segments, self.d_y.len() / self.n) {
            let mut sums = [V::splat(0.0); BIAS_COLUMNS / LANES];
            for m in chunk {
                let row = &self.d_y[m * self.n + columns.start..m * self.n + columns.end];
                for (v, sum) in sums[..vectors].iter_mut().enumerate() {
                    *sum = sum.add(load(row, v * LANES));
                }
            }
            for (v, sum) in sums[..vectors].iter().enumerate() {
                store(load::<V>(d_bias, v * LANES).add(*sum), d_bias, v * LANES);
            }
        }
    }
}
