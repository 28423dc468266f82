//! Masked softmax on the CPU. The sums of a row have 16 lanes: lane i adds the columns first + i, first + i + 16, …
//! ascending.

use super::{Backward, Forward};
use crate::device::Cpu;
use crate::math::exp_finite;
use crate::ops::lanes::{dot, load, rows, rows_of_task, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};
use std::ops::Range;

#[inline(always)]
fn seen(first: u32, end: u32) -> Range<usize> {
    (first.min(end)) as usize..end as usize
}

struct ForwardTasks<'a> {
    x: &'a [f32],
    scale: f32,
    first: &'a [u32],
    end: &'a [u32],
    y: Disjoint<'a, f32>,
    columns: usize,
}

impl Tasks for ForwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let c = self.columns;
        for r in rows(index, rows_of_task(c), self.first.len()) {
            let seen = seen(self.first[r], self.end[r]);
            // SAFETY: no other task accesses row r.
            let y = unsafe { self.y.slice(r * c..(r + 1) * c) };
            y[..seen.start].fill(0.0);
            y[seen.end..].fill(0.0);
            let (x, y) = (&self.x[r * c + seen.start..r * c + seen.end], &mut y[seen]);
            let (scale, minus_infinity) = (V::splat(self.scale), V::splat(f32::NEG_INFINITY));
            let mut largest = minus_infinity;
            for at in (0..x.len()).step_by(LANES) {
                let z = load::<V>(x, at).mul(scale);
                largest = largest.max(V::select(V::first(x.len() - at), z, minus_infinity));
            }
            let m = V::splat(largest.max_lane());
            let mut sum = V::splat(0.0);
            for at in (0..x.len()).step_by(LANES) {
                let z = V::select(V::first(x.len() - at), load::<V>(x, at).mul(scale), minus_infinity);
                let e = exp_finite(z.sub(m));
                store(e, y, at);
                sum = sum.add(e);
            }
            let sum = V::splat(sum.sum());
            for at in (0..y.len()).step_by(LANES) {
                store(load::<V>(y, at).div(sum), y, at);
            }
        }
    }
}

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let (rows, columns) = (args.x.shape()[0], args.x.shape()[1]);
    let (x, first, end) = (args.x.f32(cpu), args.first.u32(cpu), args.end.u32(cpu));
    let tasks = ForwardTasks { x, scale: args.scale, first, end, y: Disjoint::new(args.y.f32(cpu)), columns };
    cpu.run(rows.div_ceil(rows_of_task(columns)), &tasks);
}

struct BackwardTasks<'a> {
    y: &'a [f32],
    scale: f32,
    first: &'a [u32],
    end: &'a [u32],
    d_y: &'a [f32],
    d_x: Disjoint<'a, f32>,
    columns: usize,
}

impl Tasks for BackwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let c = self.columns;
        for r in rows(index, rows_of_task(c), self.first.len()) {
            let seen = seen(self.first[r], self.end[r]);
            // SAFETY: no other task accesses row r.
            let d_x = unsafe { self.d_x.slice(r * c..(r + 1) * c) };
            d_x[..seen.start].fill(0.0);
            d_x[seen.end..].fill(0.0);
            let here = r * c + seen.start..r * c + seen.end;
            let (y, d_y, d_x) = (&self.y[here.clone()], &self.d_y[here], &mut d_x[seen]);
            let (mean, scale) = (V::splat(dot::<V>(d_y, y)), V::splat(self.scale));
            for at in (0..y.len()).step_by(LANES) {
                let centred = load::<V>(d_y, at).sub(mean);
                store(load::<V>(y, at).mul(centred).mul(scale), d_x, at);
            }
        }
    }
}

pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    let (rows, columns) = (args.y.shape()[0], args.y.shape()[1]);
    let (y, d_y, first, end) = (args.y.f32(cpu), args.d_y.f32(cpu), args.first.u32(cpu), args.end.u32(cpu));
    let tasks = BackwardTasks { y, scale: args.scale, first, end, d_y, d_x: Disjoint::new(args.d_x.f32(cpu)), columns };
    cpu.run(rows.div_ceil(rows_of_task(columns)), &tasks);
}
