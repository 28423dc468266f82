//! SwiGLU on the CPU, element by element.

use super::{Backward, Forward};
use crate::Context;
use crate::math::sigmoid;
use crate::ops::lanes::{load, rows, rows_of_task, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};

struct ForwardTasks<'a> {
    gate_up: &'a [f32],
    y: Disjoint<'a, f32>,
    rows: usize,
    f: usize,
}

impl Tasks for ForwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let f = self.f;
        for t in rows(index, rows_of_task(2 * f), self.rows) {
            let (gate, up) = self.gate_up[t * 2 * f..(t + 1) * 2 * f].split_at(f);
            // SAFETY: row t is this task's alone.
            let y = unsafe { self.y.slice(t * f..(t + 1) * f) };
            for at in (0..f).step_by(LANES) {
                let g: V = load(gate, at);
                store(g.mul(sigmoid(g)).mul(load(up, at)), y, at);
            }
        }
    }
}

pub(super) fn forward(ctx: &Context, args: Forward<'_>) {
    let (rows, f) = (args.y.shape()[0], args.y.shape()[1]);
    let tasks = ForwardTasks { gate_up: args.gate_up.f32(), y: Disjoint::new(args.y.f32()), rows, f };
    ctx.run(rows.div_ceil(rows_of_task(2 * f)), &tasks);
}

struct BackwardTasks<'a> {
    gate_up: &'a [f32],
    d_y: &'a [f32],
    d_gate_up: Disjoint<'a, f32>,
    rows: usize,
    f: usize,
}

impl Tasks for BackwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let f = self.f;
        for t in rows(index, rows_of_task(2 * f), self.rows) {
            let (gate, up) = self.gate_up[t * 2 * f..(t + 1) * 2 * f].split_at(f);
            let d_y = &self.d_y[t * f..(t + 1) * f];
            // SAFETY: row t is this task's alone.
            let (d_gate, d_up) = unsafe { self.d_gate_up.slice(t * 2 * f..(t + 1) * 2 * f) }.split_at_mut(f);
            let one = V::splat(1.0);
            for at in (0..f).step_by(LANES) {
                let (g, u, d): (V, V, V) = (load(gate, at), load(up, at), load(d_y, at));
                let s = sigmoid(g);
                let slope = s.mul(g.fma(one.sub(s), one));
                store(d.mul(u).mul(slope), d_gate, at);
                store(d.mul(g.mul(s)), d_up, at);
            }
        }
    }
}

pub(super) fn backward(ctx: &Context, args: Backward<'_>) {
    let (rows, f) = (args.d_y.shape()[0], args.d_y.shape()[1]);
    let d_gate_up = Disjoint::new(args.d_gate_up.f32());
    let tasks = BackwardTasks { gate_up: args.gate_up.f32(), d_y: args.d_y.f32(), d_gate_up, rows, f };
    ctx.run(rows.div_ceil(rows_of_task(2 * f)), &tasks);
}
