//! Dropout of a LoRA adapter's input: inverted dropout (Srivastava et al. 2014, JMLR 15), as PEFT does it.
//!
//! `M` rows, `K` inputs, `p` the dropout probability. Each block `i` of a fused adapter has a separate mask, like
//! PEFT's modules. The factor f of the input in row m and column k is:
//!
//! ```text
//! c = 16 ⌊k/64⌋ + k mod 16                               counter; its four words serve columns 16 apart
//! u = philox(key, [c, position[m], sample[m], i])[⌊k/16⌋ mod 4]
//! f = u < p · 2³² ? 0 : 1/(1 − p)                        rounded to f32
//! ```
//!
//! So a factor depends on the key and on the row's sequence and position, and not on the row's index in the batch. The
//! factors are the same for any split and any order of a batch, and in the backward pass.

use super::Adapter;
use crate::context::count_matmul;
use crate::device::Cpu;
use crate::gemm::{Left, Matmul, MatmulDType, Operands, Order, Right};
use crate::matrix::PANEL;
use crate::ops::args::expect;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::rng::philox_lanes;
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use crate::{DType, Error, Result, View};
use std::ops::Range;

/// Dropout of the adapter's input in one pass: its probability, and the random numbers.
#[derive(Clone, Copy)]
pub struct Dropout<'a> {
    /// The probability that an input is dropped, in [0, 1).
    pub p: f64,
    /// Key of the random generator, unique to this matmul in this pass.
    pub key: u64,
    /// Index of each row's sequence: `[M]` u32.
    pub samples: View<'a>,
    /// Position of each row in its sequence: `[M]` u32. Rows of the same sequence and position drop the same inputs.
    pub positions: View<'a>,
}

/// Number of rows whose dropout factors are in memory at once.
const ROWS: usize = 128;
/// Rows per task that computes dropout factors.
const TASK_ROWS: usize = 4;
/// Number of columns that 16 counters of the random generator cover.
const GROUP: usize = 4 * LANES;

impl<'a> Dropout<'a> {
    /// The same dropout, for a range of the rows.
    pub fn rows(self, rows: Range<usize>) -> Dropout<'a> {
        Dropout { samples: self.samples.rows(rows.clone()), positions: self.positions.rows(rows), ..self }
    }
}

impl Dropout<'_> {
    /// Checks that the probability is in [0, 1) and that samples and positions have `m` rows.
    pub(super) fn check(&self, op: &'static str, m: usize) -> Result<()> {
        if !(0.0..1.0).contains(&self.p) {
            return Err(Error::Value { op, message: format!("dropout p must be in [0, 1), got {}", self.p) });
        }
        expect(op, "dropout.samples", self.samples, DType::U32, &[m])?;
        expect(op, "dropout.positions", self.positions, DType::U32, &[m])
    }
    /// Inputs whose random word is below this threshold are dropped.
    pub(super) fn threshold(&self) -> u32 {
        (self.p * (u64::from(u32::MAX) + 1) as f64).round() as u32
    }
    /// The factor 1/(1 − p) of inputs that are not dropped.
    pub(super) fn kept(&self) -> f32 {
        (1.0 / (1.0 - self.p)) as f32
    }
    /// Computes the dropout factors of the rows from `first` on for block `block`: `[rows, k]`, *overwrites*.
    pub(super) fn factors(&self, cpu: &Cpu, first: usize, block: usize, k: usize, factors: &mut [f32]) {
        let rows = factors.len() / k.max(1);
        let tasks = Factors {
            key: self.key,
            threshold: self.threshold(),
            kept: self.kept(),
            samples: &self.samples.u32(cpu)[first..first + rows],
            positions: &self.positions.u32(cpu)[first..first + rows],
            block: block as u32,
            k,
            factors: Disjoint::new(factors),
        };
        cpu.run(rows.div_ceil(TASK_ROWS), &tasks);
    }
}

/// Gradients that the backward pass computes from the adapter's matrix A.
pub(super) struct Back<'a> {
    /// Gradient of `xa`, `[M, R]`, including the scale.
    pub d_xa: &'a [f32],
    /// Gradient of A, in panels: *accumulates into*.
    pub d_a: &'a mut [f32],
    /// Gradient of the input, `[M, K]`: *accumulates into*.
    pub d_x: &'a mut [f32],
}

impl Adapter<'_> {
    /// Elements of workspace that [`lower_dropped`](Self::lower_dropped) needs for `m` rows.
    pub(super) fn dropped_len(&self, m: usize) -> usize {
        m.min(ROWS) * (2 * self.a.cols() + self.a.rows())
    }

    /// Computes `xa = Σ_k f x A` (`[M, R]`, *overwrites*), not yet multiplied by the scale. If `back` is set (in the
    /// backward pass), this function also accumulates the gradients of A and `x`.
    pub(super) fn lower_dropped(
        &self,
        cpu: &Cpu,
        x: Elements<'_>,
        dropout: &Dropout<'_>,
        xa: &mut [f32],
        spare: &mut [f32],
        mut back: Option<Back<'_>>,
    ) {
        let (rank, k) = (self.a.rows(), self.a.cols());
        let m = xa.len() / rank;
        let a = self.a.elements(cpu);
        for first in (0..m).step_by(ROWS) {
            let rows = ROWS.min(m - first);
            let x = x.range(first * k..(first + rows) * k);
            let (f, rest) = spare.split_at_mut(rows * k);
            let (dropped, wide) = rest.split_at_mut(rows * k);
            for (i, (b, _, at)) in self.blocks().enumerate() {
                // A matmul starts at a panel of A: its first `skip` rows belong to other blocks.
                let (r, skip) = (b.cols(), at % PANEL);
                let (width, panels) = (skip + r, a.range((at - skip) * k..a.len()));
                let wide = &mut wide[..rows * width];
                dropout.factors(cpu, first, i, k, f);
                match x {
                    Elements::F32(x) => multiply(cpu, f, x, dropped),
                    Elements::Bf16(x) => multiply(cpu, f, x, dropped),
                }
                count_matmul(rows, width, k, size_of::<f32>() * width * k);
                let operands = Operands {
                    m: rows,
                    n: width,
                    depth: k,
                    left: Left::Rows((&*dropped).into(), k),
                    right: Right::Panels(panels),
                    c: wide,
                    order: Order::Rows(width),
                    accumulate: false,
                    bias: None,
                    dtype: MatmulDType::Stored,
                    segments: None,
                };
                Matmul::new(cpu.isa(), operands).run(cpu);
                for (wide, xa) in wide.chunks_exact(width).zip(xa[first * rank..].chunks_exact_mut(rank)) {
                    xa[at..at + r].copy_from_slice(&wide[skip..]);
                }
                let Some(Back { d_xa, d_a, d_x }) = &mut back else { continue };
                for (wide, d_xa) in wide.chunks_exact_mut(width).zip(d_xa[first * rank..].chunks_exact(rank)) {
                    // Zeros add nothing to the rows of other blocks.
                    wide[..skip].fill(0.0);
                    wide[skip..].copy_from_slice(&d_xa[at..at + r]);
                }
                count_matmul(rows, width, 2 * k, 3 * size_of::<f32>() * width * k);
                let operands = Operands {
                    m: k,
                    n: width,
                    depth: rows,
                    left: Left::Columns((&*dropped).into(), k),
                    right: Right::Rows((&*wide).into(), width),
                    c: &mut d_a[(at - skip) * k..],
                    order: Order::Panels,
                    accumulate: true,
                    bias: None,
                    dtype: MatmulDType::Stored,
                    segments: None,
                };
                Matmul::new(cpu.isa(), operands).run(cpu);
                let operands = Operands {
                    m: rows,
                    n: k,
                    depth: width,
                    left: Left::Rows((&*wide).into(), width),
                    right: Right::Transposed(panels),
                    c: dropped,
                    order: Order::Rows(k),
                    accumulate: false,
                    bias: None,
                    dtype: MatmulDType::Stored,
                    segments: None,
                };
                Matmul::new(cpu.isa(), operands).run(cpu);
                multiply_add(cpu, f, dropped, &mut d_x[first * k..(first + rows) * k]);
            }
        }
    }
}

struct Factors<'a> {
    key: u64,
    threshold: u32,
    kept: f32,
    samples: &'a [u32],
    positions: &'a [u32],
    block: u32,
    k: usize,
    factors: Disjoint<'a, f32>,
}

impl Tasks for Factors<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        for row in index * TASK_ROWS..self.samples.len().min((index + 1) * TASK_ROWS) {
            // SAFETY: no other task accesses this row.
            let factors = unsafe { self.factors.slice(row * self.k..(row + 1) * self.k) };
            for (group, factors) in factors.chunks_mut(GROUP).enumerate() {
                let first = (group * LANES) as u32;
                let counters = [
                    std::array::from_fn(|j| first + j as u32),
                    [self.positions[row]; LANES],
                    [self.samples[row]; LANES],
                    [self.block; LANES],
                ];
                for (words, factors) in philox_lanes(self.key, counters).iter().zip(factors.chunks_mut(LANES)) {
                    let f: [f32; LANES] = words.map(|u| if u < self.threshold { 0.0 } else { self.kept });
                    let n = factors.len();
                    V::load(&f).store_partial(factors, n);
                }
            }
        }
    }
}

/// Computes `y ← f x`, element by element.
pub(super) fn multiply(cpu: &Cpu, f: &[f32], x: &[impl Element], y: &mut [f32]) {
    each(cpu, f, x, y, false);
}

/// Computes `y ← y + f x`, element by element, with one rounding.
pub(super) fn multiply_add(cpu: &Cpu, f: &[f32], x: &[f32], y: &mut [f32]) {
    each(cpu, f, x, y, true);
}

fn each(cpu: &Cpu, f: &[f32], x: &[impl Element], y: &mut [f32], add: bool) {
    let len = y.len();
    assert!(f.len() == len && x.len() == len);
    cpu.run(len.div_ceil(ELEMENTS), &Each { f, x, len, y: Disjoint::new(y), add });
}

/// Elements per [`Each`] task.
const ELEMENTS: usize = 1 << 13;

struct Each<'a, E> {
    f: &'a [f32],
    x: &'a [E],
    len: usize,
    y: Disjoint<'a, f32>,
    add: bool,
}

impl<E: Element> Tasks for Each<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let range = index * ELEMENTS..self.len.min((index + 1) * ELEMENTS);
        // SAFETY: no other task accesses this range.
        let y = unsafe { self.y.slice(range.clone()) };
        let terms = self.f[range.clone()].chunks(LANES).zip(self.x[range].chunks(LANES));
        for (y, (f, x)) in y.chunks_mut(LANES).zip(terms) {
            let n = y.len();
            let (f, x) = (V::load_partial(f, n), E::load_partial::<V>(x, n));
            let product = if self.add { f.fma(x, V::load_partial(y, n)) } else { f.mul(x) };
            product.store_partial(y, n);
        }
    }
}
