//! The residual addition on the CPU: one pass over the rows.

use super::{Backward, Forward};
use crate::DType;
use crate::device::Cpu;
use crate::ops::lanes::{load, rows, rows_of_task, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};

struct ForwardTasks<'a, E> {
    x: &'a [f32],
    delta: Option<(&'a [f32], Disjoint<'a, f32>)>,
    y: Disjoint<'a, E>,
}

impl<E: Element> Tasks for ForwardTasks<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let part = rows(index, rows_of_task(1), self.x.len());
        // SAFETY: no other task accesses these elements.
        let y = unsafe { self.y.slice(part.clone()) };
        let x = &self.x[part.clone()];
        match &self.delta {
            None => (0..x.len()).step_by(LANES).for_each(|at| store(load::<V>(x, at), y, at)),
            Some((delta, sum)) => {
                // SAFETY: no other task accesses these elements.
                let (delta, sum) = (&delta[part.clone()], unsafe { sum.slice(part) });
                for at in (0..x.len()).step_by(LANES) {
                    let s = load::<V>(x, at).add(load(delta, at));
                    store(s, sum, at);
                    store(s, y, at);
                }
            }
        }
    }
}

pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let sum = args.sum.map(|sum| Disjoint::new(sum.f32(cpu)));
    let (x, delta) = (args.x.f32(cpu), args.delta.map(|d| d.f32(cpu)).zip(sum));
    let tasks = x.len().div_ceil(rows_of_task(1));
    if args.y.dtype() == DType::Bf16 {
        cpu.run(tasks, &ForwardTasks { x, delta, y: Disjoint::new(args.y.bf16(cpu)) });
    } else {
        cpu.run(tasks, &ForwardTasks { x, delta, y: Disjoint::new(args.y.f32(cpu)) });
    }
}

struct BackwardTasks<'a> {
    d_y: &'a [f32],
    d_x: Disjoint<'a, f32>,
}

impl Tasks for BackwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let part = rows(index, rows_of_task(1), self.d_y.len());
        // SAFETY: no other task accesses these elements.
        let (d_y, d_x) = (&self.d_y[part.clone()], unsafe { self.d_x.slice(part) });
        (0..d_y.len()).step_by(LANES).for_each(|at| store(load::<V>(d_x, at).add(load(d_y, at)), d_x, at));
    }
}

pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    let tasks = BackwardTasks { d_y: args.d_y.f32(cpu), d_x: Disjoint::new(args.d_x.f32(cpu)) };
    cpu.run(tasks.d_y.len().div_ceil(rows_of_task(1)), &tasks);
}
