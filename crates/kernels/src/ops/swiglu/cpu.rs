//! SwiGLU on the CPU, element by element.

use super::{Backward, Forward};
use crate::DType;
use crate::device::Cpu;
use crate::math::sigmoid;
use crate::ops::lanes::{load, rows, rows_of_task, store, store_rounded};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;

struct ForwardTasks<'a, G, E> {
    gate_up: &'a [G],
    kept: Option<Disjoint<'a, E>>,
    y: Disjoint<'a, E>,
    rows: usize,
    f: usize,
}

impl<G: Element, E: Element> Tasks for ForwardTasks<'_, G, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let f = self.f;
        for t in rows(index, rows_of_task(2 * f), self.rows) {
            let (gate, up) = self.gate_up[t * 2 * f..(t + 1) * 2 * f].split_at(f);
            // SAFETY: row t is this task's alone.
            let y = unsafe { self.y.slice(t * f..(t + 1) * f) };
            let kept = self.kept.as_ref().map(|kept| {
                // SAFETY: row t is this task's alone.
                unsafe { kept.slice(t * 2 * f..(t + 1) * 2 * f) }.split_at_mut(f)
            });
            gated::<V, G, E>([gate, up], kept, y);
        }
    }
}

/// Some columns of a row: `y`, and gate and up as they were rounded.
#[inline(always)]
pub(super) fn gated<V: Simd, G: Element, E: Element>(
    [gate, up]: [&[G]; 2],
    mut kept: Option<(&mut [E], &mut [E])>,
    y: &mut [E],
) {
    for at in (0..y.len()).step_by(LANES) {
        let (g, u): (V, V) = (E::rounded(load(gate, at)), E::rounded(load(up, at)));
        store(g.mul(sigmoid(g)).mul(u), y, at);
        if let Some((gate, up)) = &mut kept {
            store_rounded(g, gate, at);
            store_rounded(u, up, at);
        }
    }
}

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let (rows, f) = (args.y.shape()[0], args.y.shape()[1]);
    let tasks = rows.div_ceil(rows_of_task(2 * f));
    match (args.gate_up.elements(cpu), args.y.dtype()) {
        (Elements::F32(gate_up), DType::Bf16) => {
            let (kept, y) = (args.kept.map(|k| Disjoint::new(k.bf16(cpu))), Disjoint::new(args.y.bf16(cpu)));
            cpu.run(tasks, &ForwardTasks { gate_up, kept, y, rows, f });
        }
        (Elements::F32(gate_up), _) => {
            let (kept, y) = (args.kept.map(|k| Disjoint::new(k.f32(cpu))), Disjoint::new(args.y.f32(cpu)));
            cpu.run(tasks, &ForwardTasks { gate_up, kept, y, rows, f });
        }
        (Elements::Bf16(gate_up), _) => {
            let (kept, y) = (args.kept.map(|k| Disjoint::new(k.bf16(cpu))), Disjoint::new(args.y.bf16(cpu)));
            cpu.run(tasks, &ForwardTasks { gate_up, kept, y, rows, f });
        }
    }
}

struct BackwardTasks<'a, E, D> {
    gate_up: &'a [E],
    d_y: &'a [f32],
    d_gate_up: Disjoint<'a, D>,
    y: Option<Disjoint<'a, E>>,
    rows: usize,
    f: usize,
}

impl<E: Element, D: Element> Tasks for BackwardTasks<'_, E, D> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let f = self.f;
        for t in rows(index, rows_of_task(2 * f), self.rows) {
            let (gate, up) = self.gate_up[t * 2 * f..(t + 1) * 2 * f].split_at(f);
            let d_y = &self.d_y[t * f..(t + 1) * f];
            // SAFETY: row t is this task's alone.
            let (d_gate, d_up) = unsafe { self.d_gate_up.slice(t * 2 * f..(t + 1) * 2 * f) }.split_at_mut(f);
            // SAFETY: row t is this task's alone.
            let mut y = self.y.as_ref().map(|y| unsafe { y.slice(t * f..(t + 1) * f) });
            let one = V::splat(1.0);
            for at in (0..f).step_by(LANES) {
                let (g, u, d): (V, V, V) = (load(gate, at), load(up, at), load(d_y, at));
                let s = sigmoid(g);
                let (silu, slope) = (g.mul(s), s.mul(g.fma(one.sub(s), one)));
                store(d.mul(u).mul(slope), d_gate, at);
                store(d.mul(silu), d_up, at);
                if let Some(y) = &mut y {
                    store(silu.mul(u), y, at);
                }
            }
        }
    }
}

pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    let (rows, f) = (args.d_y.shape()[0], args.d_y.shape()[1]);
    let (d_y, tasks) = (args.d_y.f32(cpu), rows.div_ceil(rows_of_task(2 * f)));
    match (args.gate_up.elements(cpu), args.d_gate_up.dtype()) {
        (Elements::F32(gate_up), _) => {
            let (d_gate_up, y) = (Disjoint::new(args.d_gate_up.f32(cpu)), args.y.map(|y| Disjoint::new(y.f32(cpu))));
            cpu.run(tasks, &BackwardTasks { gate_up, d_y, d_gate_up, y, rows, f });
        }
        (Elements::Bf16(gate_up), DType::Bf16) => {
            let (d_gate_up, y) = (Disjoint::new(args.d_gate_up.bf16(cpu)), args.y.map(|y| Disjoint::new(y.bf16(cpu))));
            cpu.run(tasks, &BackwardTasks { gate_up, d_y, d_gate_up, y, rows, f });
        }
        (Elements::Bf16(gate_up), _) => {
            let (d_gate_up, y) = (Disjoint::new(args.d_gate_up.f32(cpu)), args.y.map(|y| Disjoint::new(y.bf16(cpu))));
            cpu.run(tasks, &BackwardTasks { gate_up, d_y, d_gate_up, y, rows, f });
        }
    }
}
