//! A GPU's measured peaks: copies of memory larger than any cache, and chains of multiply-adds, timed by the device's
//! own events.

use super::Ceilings;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::{Device, Result};
use std::time::{Duration, Instant};

const SOURCE: Source = source!("ceilings");
/// Threads per block, and chains of multiply-adds per thread, as in `ceilings.cu`.
const THREADS: u32 = 256;
const CHAINS: f64 = 8.0;

/// The size of one measured pass.
struct Sizes {
    blocks: u32,
    /// Number of f32 elements to copy.
    count: usize,
    rounds: u32,
}

/// Like [`measure`](super::measure), but on a CUDA device. The emulator gets small sizes, so that it finishes soon; its
/// results mean nothing for a GPU.
pub(super) fn measure(cuda: &Cuda, time: Duration) -> Result<Ceilings> {
    let sizes = match cuda.device() {
        Device::CudaEmulated => Sizes { blocks: 2, count: 4096, rounds: 64 },
        // 256 MiB are read and 256 MiB written, by many more blocks than can be resident at once.
        _ => Sizes { blocks: 8192, count: 64 << 20, rounds: 1 << 12 },
    };
    let grid = Grid { blocks: [sizes.blocks, 1, 1], threads: THREADS };
    let threads = (sizes.blocks * THREADS) as usize;
    let bytes = sizes.count * size_of::<f32>();
    let (from, to) = (cuda.stream().scratch(bytes)?, cuda.stream().scratch(bytes.max(threads * size_of::<f32>()))?);
    // The memory is filled first, so that no uninitialised memory is read.
    let filled = |at: &crate::device::cuda::stream::Scratch<'_>| {
        let arguments = [at.at(0), Arg::F32(0.5), Arg::F32(0.5), Arg::U32(1)];
        cuda.launch(&SOURCE, "ceilings_chains", grid, &arguments)
    };
    filled(&to)?;
    let copy = [to.at(0), from.at(0), Arg::from(sizes.count.min(threads))];
    cuda.launch(&SOURCE, "ceilings_copy", grid, &copy)?;
    let copy = [from.at(0), to.at(0), Arg::from(sizes.count)];
    let per_copy = best(cuda, time / 2, || cuda.launch(&SOURCE, "ceilings_copy", grid, &copy))?;
    let chains = [to.at(0), Arg::F32(0.5), Arg::F32(0.5), Arg::U32(sizes.rounds)];
    let per_pass = best(cuda, time / 2, || cuda.launch(&SOURCE, "ceilings_chains", grid, &chains))?;
    Ok(Ceilings {
        flops_per_s: 2.0 * CHAINS * f64::from(sizes.rounds) * threads as f64 / per_pass,
        tile_flops_per_s: None,
        pair_flops_per_s: None,
        read_bytes_per_s: 2.0 * bytes as f64 / per_copy,
    })
}

/// Seconds of the fastest of several launches within `time`. The first launch compiles the kernel and is not counted.
fn best(cuda: &Cuda, time: Duration, launch: impl Fn() -> Result<()>) -> Result<f64> {
    launch()?;
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    loop {
        let start = cuda.record_event()?;
        launch()?;
        best = best.min(cuda.record_event()?.seconds_since(&start)?);
        if begin.elapsed() >= time {
            return Ok(best.max(1e-9));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Context;
    use crate::device::cuda::tests::emulated;
    use std::time::Duration;

    #[test]
    fn a_device_measures_its_peaks_with_its_own_kernels_and_events() {
        let Some(cuda) = emulated(0) else { return };
        let ctx = Context::cuda(cuda);
        let before = ctx.memory().copies();
        let found = super::super::measure(&ctx, Duration::from_millis(2)).unwrap();
        assert!(found.flops_per_s.is_finite() && found.flops_per_s > 0.0, "{found:?}");
        assert!(found.read_bytes_per_s.is_finite() && found.read_bytes_per_s > 0.0, "{found:?}");
        let did = ctx.memory().copies() - before;
        assert!(did.launches >= 6 && (did.to_device, did.to_host) == (0, 0), "{did:?}");
    }
}
