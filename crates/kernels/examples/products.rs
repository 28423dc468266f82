//! GFLOP/s of the three products of a linear layer, beside what this machine's multiply-adds reach.
//!
//! `cargo run --release -p lockstep-kernels --example products [THREADS]`

use kernels::ops::linear::{BackwardInput, BackwardWeight, Forward, backward_input, backward_weight, forward};
use kernels::pool::{Scratch, Tasks};
use kernels::simd::Simd;
use kernels::{Context, DType, Isa, Layout, Matrix, Tensor};
use std::time::Instant;

fn main() {
    let threads = threads();
    let ctx = Context::cpu(Isa::from_env().expect("LOCKSTEP_ISA"), threads);
    let peak = best(&mut || ctx.run(threads, &Peak), 2e-9 * (threads * STEPS * 24 * 16) as f64);
    println!("{:?}, {threads} threads, multiply-adds alone: {peak:.1} GFLOP/s", ctx.isa());
    println!("{:>18} {:>9} {:>9} {:>9} {:>9}", "M × K × N", "forward", "GB/s", "d_x", "d_W");
    for [m, k, n] in [
        [1, 896, 4864],
        [4, 896, 4864],
        [16, 896, 4864],
        [1, 4096, 4096],
        [64, 896, 4864],
        [512, 896, 4864],
        [2048, 896, 896],
        [512, 4864, 896],
        [512, 1024, 1024],
        [512, 128, 384],
        [64, 64, 64],
        [1, 64, 192],
    ] {
        let memory = ctx.memory();
        let numbers = |len: usize| (0..len).map(|i| (i % 13) as f32 - 6.0).collect::<Vec<_>>();
        let x = Tensor::from_f32(memory, &[m, k], &numbers(m * k));
        let w = Matrix::from_f32(memory, n, k, &numbers(n * k));
        let d_y = Tensor::from_f32(memory, &[m, n], &numbers(m * n));
        let mut y = Tensor::zeros(memory, &[m, n], DType::F32);
        let mut d_x = Tensor::zeros(memory, &[m, k], DType::F32);
        let mut d_w = Matrix::zeros(memory, n, k, Layout::Panels);
        let work = 2e-9 * (m * n * k) as f64;
        let f = best(
            &mut || {
                let args = Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: false };
                forward(&ctx, args).expect("forward");
            },
            work,
        );
        let i = best(
            &mut || {
                let args = BackwardInput { d_y: d_y.view(), w: &w, d_x: d_x.view_mut(), accumulate: false };
                backward_input(&ctx, args).expect("backward_input");
            },
            work,
        );
        let b = best(
            &mut || {
                let args = BackwardWeight { x: x.view(), d_y: d_y.view(), d_w: &mut d_w, d_bias: None };
                backward_weight(&ctx, args).expect("backward_weight");
            },
            work,
        );
        let stream = f / work * (n * k * 4) as f64 * 1e-9;
        println!("{:>18} {f:>9.1} {stream:>9.1} {i:>9.1} {b:>9.1}", format!("{m} × {k} × {n}"));
    }
}

/// The best rate of several runs: other work on the machine disturbs the mean.
fn best(run: &mut dyn FnMut(), work: f64) -> f64 {
    let (start, mut best, mut runs) = (Instant::now(), f64::INFINITY, 0);
    while runs < 5 || (start.elapsed().as_secs_f64() < 0.5 && runs < 5000) {
        let one = Instant::now();
        run();
        best = best.min(one.elapsed().as_secs_f64());
        runs += 1;
    }
    work / best
}

fn threads() -> usize {
    std::env::args().nth(1).map_or(1, |n| n.parse().expect("a number of threads"))
}

const STEPS: usize = 1 << 18;

/// Independent chains, nothing else.
struct Peak;

impl Tasks for Peak {
    #[inline(always)]
    fn task<V: Simd>(&self, _index: usize, scratch: &mut Scratch) {
        let mut chains = [V::splat(1.0); 24];
        let (a, b) = (V::splat(std::hint::black_box(0.999)), V::splat(std::hint::black_box(1e-3)));
        for _ in 0..STEPS {
            for chain in &mut chains {
                *chain = chain.fma(a, b);
            }
        }
        let out = scratch.f32(16);
        for chain in chains {
            chain.add(V::load(out)).store(out);
        }
    }
}
