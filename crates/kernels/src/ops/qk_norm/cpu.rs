//! QK norm on the CPU: each head is normalised with the functions of `rmsnorm`.

use super::{Backward, Forward, Parts};
use crate::device::Cpu;
use crate::ops::lanes::{chunks, load, rows, rows_of_task, store};
use crate::ops::rmsnorm::cpu::{Weight, backward_row, rstd_of, scale_row};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};

struct ForwardTasks<'a> {
    parts: Parts,
    x: &'a [f32],
    q_weight: Weight<'a>,
    k_weight: Weight<'a>,
    eps: f32,
    y: Disjoint<'a, f32>,
    rstd: Disjoint<'a, f32>,
    rows: usize,
}

impl Tasks for ForwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let (width, normed) = (self.parts.width, self.parts.normed());
        for t in rows(index, rows_of_task(width), self.rows) {
            let x = &self.x[t * width..(t + 1) * width];
            // SAFETY: no other task accesses row t.
            let (y, rstd) =
                unsafe { (self.y.slice(t * width..(t + 1) * width), self.rstd.slice(t * normed..(t + 1) * normed)) };
            for (a, rstd) in rstd.iter_mut().enumerate() {
                let weight = if a < self.parts.q { self.q_weight } else { self.k_weight };
                let head = self.parts.part(a);
                *rstd = rstd_of::<V>(&x[head.clone()], self.eps);
                scale_row::<V>(&x[head.clone()], weight, *rstd, &mut y[head]);
            }
            let values = self.parts.values();
            y[values..].copy_from_slice(&x[values..]);
        }
    }
}

pub(super) fn forward(cpu: &Cpu, parts: Parts, args: Forward<'_>) {
    let rows = args.x.shape()[0];
    let [q_weight, k_weight] =
        [args.q_weight, args.k_weight].map(|weight| Weight { weight: weight.f32(cpu), offset: args.offset });
    let tasks = ForwardTasks {
        parts,
        x: args.x.f32(cpu),
        q_weight,
        k_weight,
        eps: args.eps,
        y: Disjoint::new(args.y.f32(cpu)),
        rstd: Disjoint::new(args.rstd.f32(cpu)),
        rows,
    };
    cpu.run(rows.div_ceil(rows_of_task(parts.width)), &tasks);
}

struct BackwardTasks<'a> {
    parts: Parts,
    x: &'a [f32],
    q_weight: Weight<'a>,
    k_weight: Weight<'a>,
    rstd: &'a [f32],
    d_y: &'a [f32],
    d_x: Disjoint<'a, f32>,
    rows: usize,
}

impl Tasks for BackwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let (width, normed) = (self.parts.width, self.parts.normed());
        for t in rows(index, rows_of_task(width), self.rows) {
            let row = t * width..(t + 1) * width;
            let (x, d_y) = (&self.x[row.clone()], &self.d_y[row.clone()]);
            // SAFETY: no other task accesses row t.
            let d_x = unsafe { self.d_x.slice(row) };
            for a in 0..normed {
                let weight = if a < self.parts.q { self.q_weight } else { self.k_weight };
                let head = self.parts.part(a);
                let rstd = self.rstd[t * normed + a];
                backward_row::<V, false>(&x[head.clone()], weight, rstd, &d_y[head.clone()], &mut d_x[head]);
            }
            let values = self.parts.values();
            d_x[values..].copy_from_slice(&d_y[values..]);
        }
    }
}

/// Tasks for the gradients of the weights. Task i computes vector i/2 (16 elements) of the query weight if i is even,
/// of the key weight if i is odd.
struct WeightTasks<'a> {
    parts: Parts,
    x: &'a [f32],
    rstd: &'a [f32],
    d_y: &'a [f32],
    d_q_weight: Disjoint<'a, f32>,
    d_k_weight: Disjoint<'a, f32>,
    segments: Option<&'a [u32]>,
    rows: usize,
}

impl Tasks for WeightTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let (width, normed) = (self.parts.width, self.parts.normed());
        let Parts { q, q_dim, k_dim, .. } = self.parts;
        let (parts, dim, d_weight) = match index % 2 {
            0 => (0..q, q_dim, &self.d_q_weight),
            _ => (q..normed, k_dim, &self.d_k_weight),
        };
        let columns = rows(index / 2, LANES, dim);
        if columns.is_empty() {
            return; // the other weight is longer
        }
        // SAFETY: no other task accesses this vector of this weight.
        let d_weight = unsafe { d_weight.slice(columns.clone()) };
        for chunk in chunks(self.segments, self.rows) {
            let mut sum = V::splat(0.0);
            for t in chunk {
                for a in parts.clone() {
                    let at = t * width + self.parts.part(a).start;
                    let here = at + columns.start..at + columns.end;
                    let rstd = V::splat(self.rstd[t * normed + a]);
                    sum = load::<V>(&self.d_y[here.clone()], 0).fma(load::<V>(&self.x[here], 0).mul(rstd), sum);
                }
            }
            store(load::<V>(d_weight, 0).add(sum), d_weight, 0);
        }
    }
}

pub(super) fn backward(cpu: &Cpu, parts: Parts, args: Backward<'_>) {
    let (x, rstd, d_y, rows) = (args.x.f32(cpu), args.rstd.f32(cpu), args.d_y.f32(cpu), args.x.shape()[0]);
    let [q_weight, k_weight] =
        [args.q_weight, args.k_weight].map(|weight| Weight { weight: weight.f32(cpu), offset: args.offset });
    let d_x = Disjoint::new(args.d_x.f32(cpu));
    let tasks = BackwardTasks { parts, x, q_weight, k_weight, rstd, d_y, d_x, rows };
    cpu.run(rows.div_ceil(rows_of_task(parts.width)), &tasks);
    let Some((d_q_weight, d_k_weight)) = args.d_weights else { return };
    let (d_q_weight, d_k_weight) = (Disjoint::new(d_q_weight.f32(cpu)), Disjoint::new(d_k_weight.f32(cpu)));
    let segments = args.segments.map(|s| s.u32(cpu));
    let tasks = WeightTasks { parts, x, rstd, d_y, d_q_weight, d_k_weight, segments, rows };
    cpu.run(2 * parts.q_dim.max(parts.k_dim).div_ceil(LANES), &tasks);
}
