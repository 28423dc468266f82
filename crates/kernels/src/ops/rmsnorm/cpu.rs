//! RMS norm on the CPU. The sum of squares of a row has 16 partial sums, one for each vector lane, added in a fixed
//! tree.

use super::{Backward, Forward, Recompute};
use crate::DType;
use crate::device::Cpu;
use crate::ops::lanes::{chunks, dot, load, rows, rows_of_task, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};

/// Reciprocal root mean square of a row, 1 / √(mean square + eps).
#[inline(always)]
pub(crate) fn rstd_of<V: Simd>(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot::<V>(x, x) / x.len() as f32 + eps).sqrt()
}

/// Weight of a norm, and the offset that is added to it.
#[derive(Clone, Copy)]
pub(crate) struct Weight<'a> {
    pub weight: &'a [f32],
    pub offset: f32,
}

impl Weight<'_> {
    /// Loads 16 elements of weight + offset. An offset of 0 is not added, because −0 + 0 would not be −0.
    #[inline(always)]
    fn load<V: Simd>(self, at: usize) -> V {
        let weight = load::<V>(self.weight, at);
        if self.offset == 0.0 { weight } else { weight.add(V::splat(self.offset)) }
    }
}

/// Normalises a row: y = w · (x · rstd).
#[inline(always)]
pub(crate) fn scale_row<V: Simd>(x: &[f32], w: Weight<'_>, rstd: f32, y: &mut [impl Element]) {
    let rstd = V::splat(rstd);
    for at in (0..x.len()).step_by(LANES) {
        store(w.load::<V>(at).mul(load::<V>(x, at).mul(rstd)), y, at);
    }
}

/// Gradient of a row's input: d_x = g · rstd − c · x with g = d_y · w, added to `d_x` if `ACCUMULATE`.
#[inline(always)]
pub(crate) fn backward_row<V: Simd, const ACCUMULATE: bool>(
    x: &[f32],
    w: Weight<'_>,
    rstd: f32,
    d_y: &[f32],
    d_x: &mut [f32],
) {
    let mut sum = V::splat(0.0);
    for at in (0..x.len()).step_by(LANES) {
        let g = load::<V>(d_y, at).mul(w.load(at));
        sum = g.fma(load(x, at), sum);
    }
    let c = sum.sum() * rstd * rstd * rstd / x.len() as f32;
    let (rstd, minus_c) = (V::splat(rstd), V::splat(-c));
    for at in (0..x.len()).step_by(LANES) {
        let g = load::<V>(d_y, at).mul(w.load(at));
        let start = if ACCUMULATE { load::<V>(d_x, at) } else { V::splat(0.0) };
        store(minus_c.fma(load(x, at), g.fma(rstd, start)), d_x, at);
    }
}

struct ForwardTasks<'a, E> {
    x: &'a [f32],
    delta: Option<(&'a [f32], Disjoint<'a, f32>)>,
    weight: Weight<'a>,
    eps: f32,
    y: Disjoint<'a, E>,
    rstd: Disjoint<'a, f32>,
    rows: usize,
}

impl<E: Element> Tasks for ForwardTasks<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let h = self.weight.weight.len();
        for t in rows(index, rows_of_task(h), self.rows) {
            let row = t * h..(t + 1) * h;
            let mut x = &self.x[row.clone()];
            if let Some((delta, sum)) = &self.delta {
                // SAFETY: no other task accesses row t.
                let sum = unsafe { sum.slice(row.clone()) };
                let delta = &delta[row.clone()];
                for at in (0..h).step_by(LANES) {
                    store(load::<V>(x, at).add(load(delta, at)), sum, at);
                }
                x = sum;
            }
            // SAFETY: no other task accesses row t.
            let (y, r) = unsafe { (self.y.slice(row), self.rstd.slice(t..t + 1)) };
            r[0] = rstd_of::<V>(x, self.eps);
            scale_row::<V>(x, self.weight, r[0], y);
        }
    }
}

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let (rows, h) = (args.x.shape()[0], args.weight.shape()[0]);
    let sum = args.sum.map(|sum| Disjoint::new(sum.f32(cpu)));
    let (x, delta) = (args.x.f32(cpu), args.delta.map(|d| d.f32(cpu)).zip(sum));
    let weight = Weight { weight: args.weight.f32(cpu), offset: args.offset };
    let (eps, rstd, tasks) = (args.eps, Disjoint::new(args.rstd.f32(cpu)), rows.div_ceil(rows_of_task(h)));
    if args.y.dtype() == DType::Bf16 {
        let y = Disjoint::new(args.y.bf16(cpu));
        cpu.run(tasks, &ForwardTasks { x, delta, weight, eps, y, rstd, rows });
    } else {
        let y = Disjoint::new(args.y.f32(cpu));
        cpu.run(tasks, &ForwardTasks { x, delta, weight, eps, y, rstd, rows });
    }
}

struct AgainTasks<'a, E> {
    x: &'a [f32],
    weight: Weight<'a>,
    rstd: &'a [f32],
    y: Disjoint<'a, E>,
}

impl<E: Element> Tasks for AgainTasks<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let h = self.weight.weight.len();
        for t in rows(index, rows_of_task(h), self.rstd.len()) {
            let row = t * h..(t + 1) * h;
            // SAFETY: no other task accesses row t.
            let y = unsafe { self.y.slice(row.clone()) };
            scale_row::<V>(&self.x[row], self.weight, self.rstd[t], y);
        }
    }
}

pub(super) fn recompute(cpu: &Cpu, args: Recompute<'_>) {
    let (x, rstd) = (args.x.f32(cpu), args.rstd.f32(cpu));
    let weight = Weight { weight: args.weight.f32(cpu), offset: args.offset };
    let tasks = rstd.len().div_ceil(rows_of_task(weight.weight.len()));
    if args.y.dtype() == DType::Bf16 {
        let y = Disjoint::new(args.y.bf16(cpu));
        cpu.run(tasks, &AgainTasks { x, weight, rstd, y });
    } else {
        let y = Disjoint::new(args.y.f32(cpu));
        cpu.run(tasks, &AgainTasks { x, weight, rstd, y });
    }
}

struct BackwardTasks<'a> {
    x: &'a [f32],
    weight: Weight<'a>,
    rstd: &'a [f32],
    d_y: &'a [f32],
    d_x: Disjoint<'a, f32>,
}

impl Tasks for BackwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let h = self.weight.weight.len();
        for t in rows(index, rows_of_task(h), self.rstd.len()) {
            let row = t * h..(t + 1) * h;
            // SAFETY: no other task accesses row t.
            let d_x = unsafe { self.d_x.slice(row.clone()) };
            backward_row::<V, true>(&self.x[row.clone()], self.weight, self.rstd[t], &self.d_y[row], d_x);
        }
    }
}

/// Columns per task that computes the gradient of the weight.
const COLUMNS: usize = 4 * LANES;

struct WeightTasks<'a> {
    x: &'a [f32],
    rstd: &'a [f32],
    d_y: &'a [f32],
    d_weight: Disjoint<'a, f32>,
    segments: Option<&'a [u32]>,
    h: usize,
}

impl Tasks for WeightTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let columns = rows(index, COLUMNS, self.h);
        // SAFETY: no other task accesses these columns.
        let d_weight = unsafe { self.d_weight.slice(columns.clone()) };
        let vectors = columns.len().div_ceil(LANES);
        for chunk in chunks(self.segments, self.rstd.len()) {
            let mut sums = [V::splat(0.0); COLUMNS / LANES];
            for t in chunk {
                let row = t * self.h + columns.start..t * self.h + columns.end;
                let (x, d_y, rstd) = (&self.x[row.clone()], &self.d_y[row], V::splat(self.rstd[t]));
                for (v, sum) in sums[..vectors].iter_mut().enumerate() {
                    *sum = load::<V>(d_y, v * LANES).fma(load::<V>(x, v * LANES).mul(rstd), *sum);
                }
            }
            for (v, sum) in sums[..vectors].iter().enumerate() {
                store(load::<V>(d_weight, v * LANES).add(*sum), d_weight, v * LANES);
            }
        }
    }
}

pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    let (x, rstd, d_y) = (args.x.f32(cpu), args.rstd.f32(cpu), args.d_y.f32(cpu));
    let weight = Weight { weight: args.weight.f32(cpu), offset: args.offset };
    let h = weight.weight.len();
    let d_x = Disjoint::new(args.d_x.f32(cpu));
    cpu.run(rstd.len().div_ceil(rows_of_task(h)), &BackwardTasks { x, weight, rstd, d_y, d_x });
    let Some(d_weight) = args.d_weight else { return };
    let (d_weight, segments) = (Disjoint::new(d_weight.f32(cpu)), args.segments.map(|s| s.u32(cpu)));
    cpu.run(h.div_ceil(COLUMNS), &WeightTasks { x, rstd, d_y, d_weight, segments, h });
}
