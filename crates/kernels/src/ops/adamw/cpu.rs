//! AdamW on the CPU: one pass over the parameter, its gradient and both moments.

use super::{Hyper, Rounding, Step};
use crate::DType;
use crate::device::Cpu;
use crate::matrix::PANEL;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::rng::philox;
use crate::simd::{Element, LANES, Simd};
use half::bf16;

/// Elements per task: a multiple of the 4 elements that share a Philox block, and of [`TWO_INPUTS`].
pub(super) const ELEMENTS: usize = 1 << 14;

pub(super) fn step(cpu: &Cpu, args: Step<'_>) {
    let Step { param, from, rounded, grad, m, v, hyper, norm, max_norm, rounding } = args;
    let len: usize = grad.shape().iter().product();
    let (norm, finite) = (norm.f32(cpu)[0], norm.f32(cpu)[1] != 0.0);
    if !finite {
        return;
    }
    let clip = if max_norm > 0.0 { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
    let (grad, param, factors) = (grad.f32(cpu), Disjoint::new(param.f32(cpu)), Factors::new(&hyper));
    let from = from.map(|from| from.f32(cpu));
    let rounded = rounded.map(|to| match to.dtype() {
        DType::Bf16 => Rounded::Bf16(Disjoint::new(to.bf16(cpu))),
        _ => Rounded::F32(Disjoint::new(to.f32(cpu))),
    });
    let count = len.div_ceil(ELEMENTS);
    if m.dtype() == DType::Bf16 {
        let (m, v) = (Disjoint::new(m.bf16(cpu)), Disjoint::new(v.bf16(cpu)));
        cpu.run(count, &StepBf16 { len, grad, param, from, rounded, m, v, clip, factors, rounding, step: hyper.step });
    } else {
        let (m, v) = (Disjoint::new(m.f32(cpu)), Disjoint::new(v.f32(cpu)));
        cpu.run(count, &StepF32 { len, grad, param, from, rounded, m, v, clip, factors });
    }
}

/// Factors of a step, each computed in f64 and rounded to f32 once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    /// `1 − lr · weight_decay`, the factor of the parameter.
    pub(super) decay: f32,
    /// `1 − β1`, the weight of the gradient in the first moment.
    pub(super) blend: f32,
    /// `β2`, the weight of the old second moment.
    pub(super) beta2: f32,
    /// `1 − β2`, the weight of the squared gradient in the second moment.
    pub(super) rest2: f32,
    /// `√(1 − β2^t)`, the bias correction of √v.
    pub(super) root: f32,
    pub(super) eps: f32,
    /// `lr / (1 − β1^t)`, the learning rate with the bias correction of m.
    pub(super) step: f32,
}

impl Factors {
    pub(super) fn new(h: &Hyper) -> Factors {
        // The step is an f64, as in Python's `beta ** step`.
        let t = h.step as f64;
        Factors {
            decay: (1.0 - h.lr * h.weight_decay) as f32,
            blend: (1.0 - h.beta1) as f32,
            beta2: h.beta2 as f32,
            rest2: (1.0 - h.beta2) as f32,
            root: (1.0 - libm::pow(h.beta2, t)).sqrt() as f32,
            eps: h.eps as f32,
            step: (h.lr / (1.0 - libm::pow(h.beta1, t))) as f32,
        }
    }
}

/// The bf16-rounded copy of the parameter that matmuls read.
enum Rounded<'a> {
    /// A matrix in bf16, whose panels become pairs (`matrix.rs`).
    Bf16(Disjoint<'a, bf16>),
    /// A vector rounded to bf16 but stored in f32, because operations read vectors as f32.
    F32(Disjoint<'a, f32>),
}

/// Elements of two inputs (rows) of a panel; in bf16 they become one line of pairs.
pub(super) const TWO_INPUTS: usize = 2 * PANEL;

impl Rounded<'_> {
    /// Writes the rounded parameters of a task, beginning at element `at`.
    ///
    /// # Safety
    /// No other task accesses these elements.
    #[inline(always)]
    unsafe fn write<V: Simd>(&self, at: usize, param: &[f32]) {
        match self {
            Rounded::Bf16(to) => {
                // SAFETY: the caller upholds this function's safety contract.
                let to = unsafe { to.slice(at..at + param.len()) };
                for (from, to) in param.chunks_exact(TWO_INPUTS).zip(to.chunks_exact_mut(TWO_INPUTS)) {
                    for row in [0, LANES] {
                        let (even, odd) = (V::load(&from[row..]), V::load(&from[PANEL + row..]));
                        V::store_pairs(even, odd, &mut to[2 * row..]);
                    }
                }
            }
            Rounded::F32(to) => {
                // SAFETY: the caller upholds this function's safety contract.
                let to = unsafe { to.slice(at..at + param.len()) };
                for (from, to) in param.chunks(LANES).zip(to.chunks_mut(LANES)) {
                    bf16::rounded(V::load_partial(from, from.len())).store_partial(to, from.len());
                }
            }
        }
    }
}

struct StepF32<'a> {
    len: usize,
    grad: &'a [f32],
    param: Disjoint<'a, f32>,
    from: Option<&'a [f32]>,
    rounded: Option<Rounded<'a>>,
    m: Disjoint<'a, f32>,
    v: Disjoint<'a, f32>,
    clip: f32,
    factors: Factors,
}

/// Computes the next parameter, first moment and second moment of 16 elements, in f32.
#[inline(always)]
fn advance<V: Simd>(f: &Factors, clip: f32, grad: V, param: V, m: V, v: V) -> (V, V, V) {
    let g = grad.mul(V::splat(clip));
    let p = param.mul(V::splat(f.decay));
    let m1 = g.sub(m).fma(V::splat(f.blend), m);
    let v1 = g.mul(V::splat(f.rest2)).fma(g, v.mul(V::splat(f.beta2)));
    let denominator = v1.sqrt().div(V::splat(f.root)).add(V::splat(f.eps));
    (p.add(m1.mul(V::splat(-f.step)).div(denominator)), m1, v1)
}

impl Tasks for StepF32<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let start = index * ELEMENTS;
        let range = start..self.len.min(start + ELEMENTS);
        let (grad, from) = (&self.grad[range.clone()], self.from.map(|from| &from[range.clone()]));
        // SAFETY: no other task accesses this range.
        let (param, m, v) =
            unsafe { (self.param.slice(range.clone()), self.m.slice(range.clone()), self.v.slice(range)) };
        match from {
            None => {
                for at in (0..grad.len()).step_by(LANES) {
                    let n = LANES.min(grad.len() - at);
                    let p = V::load_partial(&param[at..], n);
                    self.advance(at, n, grad, p, m, v).store_partial(&mut param[at..], n);
                }
            }
            Some(from) => {
                for at in (0..grad.len()).step_by(LANES) {
                    let n = LANES.min(grad.len() - at);
                    let p = V::load_partial(&from[at..], n);
                    self.advance(at, n, grad, p, m, v).store_partial(&mut param[at..], n);
                }
            }
        }
        if let Some(rounded) = &self.rounded {
            // SAFETY: no other task accesses this range.
            unsafe { rounded.write::<V>(start, param) };
        }
    }
}

impl StepF32<'_> {
    /// Updates the moments of `n` elements from `at` on, whose parameters are `param`. Returns the updated parameters.
    #[inline(always)]
    fn advance<V: Simd>(&self, at: usize, n: usize, grad: &[f32], param: V, m: &mut [f32], v: &mut [f32]) -> V {
        let load = |from: &[f32]| V::load_partial(&from[at..], n);
        let (p, m1, v1) = advance(&self.factors, self.clip, load(grad), param, load(m), load(v));
        m1.store_partial(&mut m[at..], n);
        v1.store_partial(&mut v[at..], n);
        p
    }
}

/// AdamW tasks with moments in bf16, rounded stochastically.
struct StepBf16<'a> {
    len: usize,
    grad: &'a [f32],
    param: Disjoint<'a, f32>,
    from: Option<&'a [f32]>,
    rounded: Option<Rounded<'a>>,
    m: Disjoint<'a, bf16>,
    v: Disjoint<'a, bf16>,
    clip: f32,
    factors: Factors,
    rounding: Rounding,
    step: u64,
}

impl Tasks for StepBf16<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let start = index * ELEMENTS;
        let range = start..self.len.min(start + ELEMENTS);
        let (grad, from) = (&self.grad[range.clone()], self.from.map(|from| &from[range.clone()]));
        // SAFETY: no other task accesses this range.
        let (param, m, v) =
            unsafe { (self.param.slice(range.clone()), self.m.slice(range.clone()), self.v.slice(range)) };
        for at in (0..grad.len()).step_by(LANES) {
            let n = LANES.min(grad.len() - at);
            let (m, v) = (&mut m[at..at + n], &mut v[at..at + n]);
            let wide = |from: &[bf16]| bf16::load_partial::<V>(from, n);
            let load = |from: &[f32]| V::load_partial(&from[at..], n);
            let before = load(from.unwrap_or(param));
            let (p, m1, v1) = advance(&self.factors, self.clip, load(grad), before, wide(m), wide(v));
            p.store_partial(&mut param[at..], n);
            let words = self.words(start + at);
            let (m1, v1) = (m1.to_array(), v1.to_array());
            for i in 0..n {
                m[i] = rounded(m1[i], words[i] & 0xffff);
                v[i] = rounded(v1[i], words[i] >> 16);
            }
        }
        if let Some(rounded) = &self.rounded {
            // SAFETY: no other task accesses this range.
            unsafe { rounded.write::<V>(start, param) };
        }
    }
}

impl StepBf16<'_> {
    /// A random 32-bit word for each of 16 elements, from `element` (a multiple of 16) on: 16 bits for each of the two
    /// moments.
    #[inline(always)]
    fn words(&self, element: usize) -> [u32; LANES] {
        let mut words = [0; LANES];
        for (four, block) in words.chunks_exact_mut(4).zip((element / 4) as u64..) {
            let (block, step) = (self.rounding.first_block + block, self.step);
            let counter = [block as u32, (block >> 32) as u32, step as u32, (step >> 32) as u32];
            four.copy_from_slice(&philox(self.rounding.key, counter));
        }
        words
    }
}

/// Rounds `x` to bf16 stochastically. Adding 16 random bits to the 16 discarded bits produces a carry, which rounds up,
/// with the right probability.
#[inline(always)]
pub(super) fn rounded(x: f32, random: u32) -> bf16 {
    let bits = x.to_bits();
    let up = bits.wrapping_add(random);
    bf16::from_bits((if x.is_finite() { up } else { bits } >> 16) as u16)
}
