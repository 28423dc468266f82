//! Rotation on the CPU, a row at a time.

use super::Rotate;
use crate::Context;
use crate::ops::lanes::{load, rows, rows_of_task, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{LANES, Simd};

struct RotateTasks<'a> {
    x: Disjoint<'a, f32>,
    width: usize,
    heads: usize,
    head_dim: usize,
    positions: &'a [u32],
    cos: &'a [f32],
    sin: &'a [f32],
    /// 1, or −1 to rotate back.
    sign: f32,
}

impl Tasks for RotateTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let (hd, half, sign) = (self.head_dim, self.head_dim / 2, V::splat(self.sign));
        for t in rows(index, rows_of_task(self.width), self.positions.len()) {
            let p = self.positions[t] as usize;
            let (cos, sin) = (&self.cos[p * half..(p + 1) * half], &self.sin[p * half..(p + 1) * half]);
            // SAFETY: row t is this task's alone.
            let row = unsafe { self.x.slice(t * self.width..(t + 1) * self.width) };
            for at in (0..half).step_by(LANES) {
                let (c, s): (V, V) = (load(cos, at), load::<V>(sin, at).mul(sign));
                let minus_s = V::splat(0.0).sub(s);
                for head in row.chunks_exact_mut(hd).take(self.heads) {
                    let (low, high) = head.split_at_mut(half);
                    let (a, b): (V, V) = (load(low, at), load(high, at));
                    store(b.fma(minus_s, a.mul(c)), low, at);
                    store(a.fma(s, b.mul(c)), high, at);
                }
            }
        }
    }
}

pub(super) fn rotate(ctx: &Context, args: Rotate<'_>, sign: f32) {
    let (rows, width) = (args.x.shape()[0], args.x.shape()[1]);
    let tasks = RotateTasks {
        x: Disjoint::new(args.x.f32()),
        width,
        heads: args.heads,
        head_dim: args.head_dim,
        positions: args.positions.u32(),
        cos: args.table.cos.view().f32(),
        sin: args.table.sin.view().f32(),
        sign,
    };
    ctx.run(rows.div_ceil(rows_of_task(width)), &tasks);
}
