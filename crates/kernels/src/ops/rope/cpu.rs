//! Rotary position embedding on the CPU, row by row.

use super::{Rotate, RotateInto};
use crate::DType;
use crate::device::Cpu;
use crate::ops::lanes::{load, rows, rows_of_task, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};

struct RotateTasks<'a> {
    x: Disjoint<'a, f32>,
    width: usize,
    heads: usize,
    head_dim: usize,
    positions: &'a [u32],
    cos: &'a [f32],
    sin: &'a [f32],
    /// Sign of the angles: 1, or −1 for the backward pass.
    sign: f32,
}

impl Tasks for RotateTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let (hd, half, sign) = (self.head_dim, self.head_dim / 2, V::splat(self.sign));
        for t in rows(index, rows_of_task(self.width), self.positions.len()) {
            let p = self.positions[t] as usize;
            let (cos, sin) = (&self.cos[p * half..(p + 1) * half], &self.sin[p * half..(p + 1) * half]);
            // SAFETY: no other task accesses row t.
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

struct IntoTasks<'a, E> {
    x: &'a [f32],
    y: Disjoint<'a, E>,
    width: usize,
    heads: usize,
    head_dim: usize,
    positions: &'a [u32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl<E: Element> Tasks for IntoTasks<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let (hd, half) = (self.head_dim, self.head_dim / 2);
        for t in rows(index, rows_of_task(self.width), self.positions.len()) {
            let p = self.positions[t] as usize;
            let (cos, sin) = (&self.cos[p * half..(p + 1) * half], &self.sin[p * half..(p + 1) * half]);
            let row = t * self.width..(t + 1) * self.width;
            // SAFETY: no other task accesses row t.
            let (from, to) = (&self.x[row.clone()], unsafe { self.y.slice(row) });
            for (from, to) in from.chunks_exact(hd).zip(to.chunks_exact_mut(hd)).take(self.heads) {
                let ((x_low, x_high), (low, high)) = (from.split_at(half), to.split_at_mut(half));
                for at in (0..half).step_by(LANES) {
                    let (c, s): (V, V) = (load(cos, at), load(sin, at));
                    let (a, b): (V, V) = (load(x_low, at), load(x_high, at));
                    store(b.fma(V::splat(0.0).sub(s), a.mul(c)), low, at);
                    store(a.fma(s, b.mul(c)), high, at);
                }
            }
            let rest = self.heads * hd;
            for at in (rest..self.width).step_by(LANES) {
                store(load::<V>(from, at), to, at);
            }
        }
    }
}

pub(super) fn rotate_into(cpu: &Cpu, args: RotateInto<'_>) {
    let (rows, width) = (args.x.shape()[0], args.x.shape()[1]);
    let (x, positions, heads, head_dim) = (args.x.f32(cpu), args.positions.u32(cpu), args.heads, args.head_dim);
    let (cos, sin) = (args.table.cos.view().f32(cpu), args.table.sin.view().f32(cpu));
    let tasks = rows.div_ceil(rows_of_task(width));
    if args.y.dtype() == DType::Bf16 {
        let y = Disjoint::new(args.y.bf16(cpu));
        cpu.run(tasks, &IntoTasks { x, y, width, heads, head_dim, positions, cos, sin });
    } else {
        let y = Disjoint::new(args.y.f32(cpu));
        cpu.run(tasks, &IntoTasks { x, y, width, heads, head_dim, positions, cos, sin });
    }
}

pub(super) fn rotate(cpu: &Cpu, args: Rotate<'_>, sign: f32) {
    let (rows, width) = (args.x.shape()[0], args.x.shape()[1]);
    let tasks = RotateTasks {
        x: Disjoint::new(args.x.f32(cpu)),
        width,
        heads: args.heads,
        head_dim: args.head_dim,
        positions: args.positions.u32(cpu),
        cos: args.table.cos.view().f32(cpu),
        sin: args.table.sin.view().f32(cpu),
        sign,
    };
    cpu.run(rows.div_ceil(rows_of_task(width)), &tasks);
}
