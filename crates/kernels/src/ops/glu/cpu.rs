//! Gated linear units on the CPU, element by element.

use super::{Activation, Backward, Forward};
use crate::DType;
use crate::device::Cpu;
use crate::math::sigmoid;
use crate::ops::lanes::{load, rows, rows_of_task, store, store_rounded};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use std::marker::PhantomData;

/// Activation function of a gate g, of the form g · σ(z(g)).
pub(super) trait Gate: Send + Sync {
    /// Computes σ(z(g)) for 16 gates.
    fn sigmoid<V: Simd>(g: V) -> V;
    /// Computes the derivative of the activation at g, where `s` is σ(z(g)).
    fn slope<V: Simd>(g: V, s: V) -> V;
}

pub(super) struct Silu;

impl Gate for Silu {
    #[inline(always)]
    fn sigmoid<V: Simd>(g: V) -> V {
        sigmoid(g)
    }
    #[inline(always)]
    fn slope<V: Simd>(g: V, s: V) -> V {
        let one = V::splat(1.0);
        s.mul(g.fma(one.sub(s), one))
    }
}

pub(super) struct GeluTanh;

impl GeluTanh {
    /// 2 √(2/π), the slope of z at 0.
    const STEEPNESS: f32 = 1.595_769_2;
    const CUBIC: f32 = 0.044715;

    /// Clamps g to ±16: beyond these bounds σ is 0 or 1, and squares could overflow.
    #[inline(always)]
    fn bounded<V: Simd>(g: V) -> V {
        g.max(V::splat(-16.0)).min(V::splat(16.0))
    }
}

impl Gate for GeluTanh {
    #[inline(always)]
    fn sigmoid<V: Simd>(g: V) -> V {
        let g = Self::bounded(g);
        let growth = g.mul(g).fma(V::splat(Self::CUBIC), V::splat(1.0));
        sigmoid(g.mul(V::splat(Self::STEEPNESS)).mul(growth))
    }
    #[inline(always)]
    fn slope<V: Simd>(g: V, s: V) -> V {
        let (g, one) = (Self::bounded(g), V::splat(1.0));
        let growth = g.mul(g).fma(V::splat(3.0 * Self::CUBIC), one);
        let steepness = V::splat(Self::STEEPNESS).mul(growth);
        s.mul(g.fma(one.sub(s).mul(steepness), one))
    }
}

struct ForwardTasks<'a, A, G, E> {
    gate: PhantomData<A>,
    gate_up: &'a [G],
    kept: Option<Disjoint<'a, E>>,
    y: Disjoint<'a, E>,
    rows: usize,
    f: usize,
}

impl<A: Gate, G: Element, E: Element> Tasks for ForwardTasks<'_, A, G, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let f = self.f;
        for t in rows(index, rows_of_task(2 * f), self.rows) {
            let (gate, up) = self.gate_up[t * 2 * f..(t + 1) * 2 * f].split_at(f);
            // SAFETY: no other task accesses row t.
            let y = unsafe { self.y.slice(t * f..(t + 1) * f) };
            let kept = self.kept.as_ref().map(|kept| {
                // SAFETY: no other task accesses row t.
                unsafe { kept.slice(t * 2 * f..(t + 1) * 2 * f) }.split_at_mut(f)
            });
            gated::<V, A, G, E>([gate, up], kept, y);
        }
    }
}

/// Computes the gated output `y` of some columns of a row, and stores the rounded gate and up in `kept`.
#[inline(always)]
pub(super) fn gated<V: Simd, A: Gate, G: Element, E: Element>(
    [gate, up]: [&[G]; 2],
    mut kept: Option<(&mut [E], &mut [E])>,
    y: &mut [E],
) {
    for at in (0..y.len()).step_by(LANES) {
        let (g, u): (V, V) = (E::rounded(load(gate, at)), E::rounded(load(up, at)));
        store(g.mul(A::sigmoid(g)).mul(u), y, at);
        if let Some((gate, up)) = &mut kept {
            store_rounded(g, gate, at);
            store_rounded(u, up, at);
        }
    }
}

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    match args.activation {
        Activation::Silu => forward_of::<Silu>(cpu, args),
        Activation::GeluTanh => forward_of::<GeluTanh>(cpu, args),
    }
}

fn forward_of<A: Gate>(cpu: &Cpu, args: Forward<'_>) {
    let gate = PhantomData::<A>;
    let (rows, f) = (args.y.shape()[0], args.y.shape()[1]);
    let tasks = rows.div_ceil(rows_of_task(2 * f));
    match (args.gate_up.elements(cpu), args.y.dtype()) {
        (Elements::F32(gate_up), DType::Bf16) => {
            let (kept, y) = (args.kept.map(|k| Disjoint::new(k.bf16(cpu))), Disjoint::new(args.y.bf16(cpu)));
            cpu.run(tasks, &ForwardTasks { gate, gate_up, kept, y, rows, f });
        }
        (Elements::F32(gate_up), _) => {
            let (kept, y) = (args.kept.map(|k| Disjoint::new(k.f32(cpu))), Disjoint::new(args.y.f32(cpu)));
            cpu.run(tasks, &ForwardTasks { gate, gate_up, kept, y, rows, f });
        }
        (Elements::Bf16(gate_up), _) => {
            let (kept, y) = (args.kept.map(|k| Disjoint::new(k.bf16(cpu))), Disjoint::new(args.y.bf16(cpu)));
            cpu.run(tasks, &ForwardTasks { gate, gate_up, kept, y, rows, f });
        }
    }
}

struct BackwardTasks<'a, A, E, D> {
    gate: PhantomData<A>,
    gate_up: &'a [E],
    /// The row of `gate_up` for each row; if `None`, row t uses row t.
    from: Option<&'a [u32]>,
    d_y: &'a [f32],
    d_gate_up: Disjoint<'a, D>,
    y: Option<Disjoint<'a, E>>,
    rows: usize,
    f: usize,
}

impl<A: Gate, E: Element, D: Element> Tasks for BackwardTasks<'_, A, E, D> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let f = self.f;
        for t in rows(index, rows_of_task(2 * f), self.rows) {
            let row = self.from.map_or(t, |from| from[t] as usize);
            let (gate, up) = self.gate_up[row * 2 * f..(row + 1) * 2 * f].split_at(f);
            let d_y = &self.d_y[t * f..(t + 1) * f];
            // SAFETY: no other task accesses row t.
            let (d_gate, d_up) = unsafe { self.d_gate_up.slice(t * 2 * f..(t + 1) * 2 * f) }.split_at_mut(f);
            // SAFETY: no other task accesses row t.
            let mut y = self.y.as_ref().map(|y| unsafe { y.slice(t * f..(t + 1) * f) });
            for at in (0..f).step_by(LANES) {
                let (g, u, d): (V, V, V) = (load(gate, at), load(up, at), load(d_y, at));
                let s = A::sigmoid(g);
                let activated = g.mul(s);
                store(d.mul(u).mul(A::slope(g, s)), d_gate, at);
                store(d.mul(activated), d_up, at);
                if let Some(y) = &mut y {
                    store(activated.mul(u), y, at);
                }
            }
        }
    }
}

pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    match args.activation {
        Activation::Silu => backward_of::<Silu>(cpu, args),
        Activation::GeluTanh => backward_of::<GeluTanh>(cpu, args),
    }
}

fn backward_of<A: Gate>(cpu: &Cpu, args: Backward<'_>) {
    let gate = PhantomData::<A>;
    let (rows, f) = (args.d_y.shape()[0], args.d_y.shape()[1]);
    let (d_y, tasks) = (args.d_y.f32(cpu), rows.div_ceil(rows_of_task(2 * f)));
    let from = args.rows.map(|rows| rows.u32(cpu));
    match (args.gate_up.elements(cpu), args.d_gate_up.dtype()) {
        (Elements::F32(gate_up), _) => {
            let (d_gate_up, y) = (Disjoint::new(args.d_gate_up.f32(cpu)), args.y.map(|y| Disjoint::new(y.f32(cpu))));
            cpu.run(tasks, &BackwardTasks { gate, gate_up, from, d_y, d_gate_up, y, rows, f });
        }
        (Elements::Bf16(gate_up), DType::Bf16) => {
            let (d_gate_up, y) = (Disjoint::new(args.d_gate_up.bf16(cpu)), args.y.map(|y| Disjoint::new(y.bf16(cpu))));
            cpu.run(tasks, &BackwardTasks { gate, gate_up, from, d_y, d_gate_up, y, rows, f });
        }
        (Elements::Bf16(gate_up), _) => {
            let (d_gate_up, y) = (Disjoint::new(args.d_gate_up.f32(cpu)), args.y.map(|y| Disjoint::new(y.bf16(cpu))));
            cpu.run(tasks, &BackwardTasks { gate, gate_up, from, d_y, d_gate_up, y, rows, f });
        }
    }
}
