//! The measured peaks of this machine: FLOP/s of multiply-adds that do not access memory, and bytes per second read
//! from memory beyond the caches. Benchmarks report their results as fractions of these peaks.

mod cuda;

use crate::device::{Backend, Cpu};
use crate::pool::{Scratch, Tasks};
use crate::simd::dots::Spin;
use crate::simd::{LANES, Simd};
use crate::{Context, DType, Isa, Result};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The measured peaks of a context's instruction set and threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// f32 operations per second. A fused multiply-add counts as two operations.
    pub flops_per_s: f64,
    /// bf16 operations per second on AMX tiles; `None` if the instruction set has no tiles.
    pub tile_flops_per_s: Option<f64>,
    /// bf16 operations per second in dot products of pairs (AVX-512 BF16); `None` if the instruction set
    /// lacks these instructions.
    pub pair_flops_per_s: Option<f64>,
    /// Bytes per second read from memory; on a GPU, bytes that a copy reads and writes.
    pub read_bytes_per_s: f64,
}

impl Ceilings {
    /// The peaks for matmuls of `dtype`. If bf16 matmuls run on tiles or on dot products of pairs, `flops_per_s` is the
    /// peak of these.
    pub fn for_dtype(self, dtype: DType) -> Ceilings {
        let own = self.tile_flops_per_s.or(self.pair_flops_per_s).filter(|_| dtype == DType::Bf16);
        Ceilings { flops_per_s: own.unwrap_or(self.flops_per_s), ..self }
    }
}

/// Number of elements read to measure the memory: 256 MiB, more than most caches hold.
const ELEMENTS: usize = 64 << 20;
/// Elements that one task reads: 1 MiB.
const PIECE: usize = 1 << 18;

/// Measures the peaks for about `time`. Half of the time is spent on arithmetic. Needs 256 MiB of memory. The result is
/// the fastest of several passes, because a busy machine only makes passes slower.
pub fn measure(ctx: &Context, time: Duration) -> Result<Ceilings> {
    let cpu = match ctx.backend() {
        Backend::Cpu(cpu) => cpu,
        Backend::Cuda(cuda) => return cuda::measure(cuda, time),
    };
    let rounds = 1 << 14;
    let tasks = cpu.threads() * 8;
    let vector_time = if cpu.isa().is_amx() || cpu.isa().has_dots() { time / 4 } else { time / 2 };
    let per_pass = best(vector_time, || cpu.run(tasks, &Chains { rounds }));
    let flops = cpu.isa().run(FlopsPerRound) * (rounds * tasks) as f64;
    let tile_flops_per_s = tile_flops(cpu, time / 4);
    let pair_flops_per_s = cpu.isa().has_dots().then(|| {
        let per_pass = best(time / 4, || cpu.run(tasks, &Pairs { isa: cpu.isa(), rounds }));
        Spin::<true> { rounds }.flops() * tasks as f64 / per_pass
    });
    // The data is written first, because Linux maps all untouched pages to one page of zeros.
    let data = vec![1.0f32; ELEMENTS];
    let per_read = best(time / 2, || cpu.run(ELEMENTS / PIECE, &Reads { data: &data }));
    let read_bytes_per_s = (ELEMENTS * 4) as f64 / per_read;
    Ok(Ceilings { flops_per_s: flops / per_pass, tile_flops_per_s, pair_flops_per_s, read_bytes_per_s })
}

/// bf16 operations per second of the AMX tiles of all threads together.
#[cfg(target_arch = "x86_64")]
fn tile_flops(cpu: &Cpu, time: Duration) -> Option<f64> {
    use crate::simd::amx;
    struct Spin(usize);
    impl Tasks for Spin {
        #[inline(always)]
        fn task<V: Simd>(&self, _index: usize, _scratch: &mut Scratch) {
            // SAFETY: this value is only created from an `Isa` with AMX, which exists only if AMX may be used.
            unsafe { amx::spin(self.0) };
        }
    }
    if !cpu.isa().is_amx() {
        return None;
    }
    let (rounds, tasks) = (1 << 12, cpu.threads() * 8);
    let per_pass = best(time, || cpu.run(tasks, &Spin(rounds)));
    Some(amx::spin_flops(rounds) * tasks as f64 / per_pass)
}

/// None: only x86-64 has AMX tiles.
#[cfg(not(target_arch = "x86_64"))]
fn tile_flops(_cpu: &Cpu, _time: Duration) -> Option<f64> {
    None
}

/// Calls `call` repeatedly for `time`, at least twice. Returns the seconds that the fastest call took.
fn best(time: Duration, mut call: impl FnMut()) -> f64 {
    call();
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    loop {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
        if begin.elapsed() >= time {
            return best.max(1e-9);
        }
    }
}

/// Number of independent chains of multiply-adds: enough to hide the latency, few enough to fit in registers.
const fn chains<V: Simd>() -> usize {
    if V::GEMM_ROWS * V::GEMM_VECTORS >= 16 { 12 } else { 5 }
}

struct FlopsPerRound;

impl crate::simd::Kernel for FlopsPerRound {
    type Output = f64;
    #[inline(always)]
    fn run<V: Simd>(self) -> f64 {
        (2 * LANES * chains::<V>()) as f64
    }
}

struct Chains {
    rounds: usize,
}

impl Tasks for Chains {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        if chains::<V>() == 12 { chain::<V, 12>(self.rounds, index) } else { chain::<V, 5>(self.rounds, index) }
    }
}

#[inline(always)]
fn chain<V: Simd, const N: usize>(rounds: usize, index: usize) {
    let start = black_box(index as f32);
    let mut acc = [V::splat(0.0); N];
    for (i, x) in acc.iter_mut().enumerate() {
        *x = V::splat(start + i as f32);
    }
    // The chain converges to 1, so no denormal or infinity slows it down.
    let (a, b) = (V::splat(black_box(0.5)), V::splat(black_box(0.5)));
    for _ in 0..rounds {
        for x in &mut acc {
            *x = x.fma(a, b);
        }
    }
    let mut sum = acc[0];
    for x in &acc[1..] {
        sum = sum.add(*x);
    }
    black_box(sum.sum());
}

/// Tasks that run chains of dot products of pairs of bf16.
struct Pairs {
    isa: Isa,
    rounds: usize,
}

impl Tasks for Pairs {
    #[inline(always)]
    fn task<V: Simd>(&self, _index: usize, _scratch: &mut Scratch) {
        self.isa.run_dots(Spin::<true> { rounds: self.rounds }, false);
    }
}

struct Reads<'a> {
    data: &'a [f32],
}

impl Tasks for Reads<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let mut acc = [V::splat(0.0); 4];
        for block in self.data[index * PIECE..][..PIECE].chunks_exact(4 * LANES) {
            for (i, x) in acc.iter_mut().enumerate() {
                *x = x.add(V::load(&block[i * LANES..]));
            }
        }
        black_box(acc[0].add(acc[1]).add(acc[2].add(acc[3])).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_positive_peaks() {
        for isa in Isa::present() {
            let measured = measure(&Context::cpu(isa, 1), Duration::from_millis(2)).unwrap();
            // Only facts that do not depend on the load of the machine are asserted.
            assert!(measured.flops_per_s.is_finite() && measured.flops_per_s > 1e5, "{isa:?} {measured:?}");
            assert_eq!(measured.tile_flops_per_s.is_some(), isa.is_amx());
            let bf16_flops = measured.for_dtype(DType::Bf16).flops_per_s;
            assert_eq!(measured.pair_flops_per_s.is_some(), isa.has_dots());
            let matmul_flops = measured.tile_flops_per_s.or(measured.pair_flops_per_s);
            assert_eq!(bf16_flops, matmul_flops.unwrap_or(measured.flops_per_s));
            assert!(matmul_flops.is_none_or(|flops| flops.is_finite() && flops > 1e5));
            assert!(measured.read_bytes_per_s.is_finite() && measured.read_bytes_per_s > 1e5, "{isa:?} {measured:?}");
        }
    }

    #[test]
    fn best_makes_at_least_two_calls() {
        let mut calls = 0;
        let seconds = best(Duration::ZERO, || calls += 1);
        assert!(calls == 2 && seconds > 0.0, "{calls} {seconds}");
        // The panic ends the call to `best` before its time is over.
        let mut calls = 0;
        let until_twenty = || {
            calls += 1;
            assert!(calls < 20);
        };
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| best(testing::HANG, until_twenty)));
        assert!(called.is_err() && calls == 20, "{calls}");
    }
}
