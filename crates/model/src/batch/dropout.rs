//! Dropout of the adapters' inputs, for one optimizer step.
//!
//! The noise of a row comes from which row it is: the sequence's place in the optimizer batch and the token's in the
//! sequence, not the row's place in a micro-batch. The backward pass, and layers that are recomputed, draw it
//! a second time.

use super::Batch;
use kernels::ops::lora;
use kernels::rng::philox;
use kernels::{Memory, Tensor, View};

/// Keeps the noise apart from other uses of a seed.
const STREAM: u32 = 0x6472_6f70;

/// Dropout of the inputs of a batch's adapters, in training alone:
/// [`BatchTensors::set_dropout`](crate::BatchTensors::set_dropout).
#[derive(Debug)]
pub struct Dropout {
    p: f64,
    seed: u64,
    step: u64,
    /// `[T]`
    samples: Tensor,
}

impl Dropout {
    /// Each input is dropped with chance `p` in [0, 1), by the noise of `seed` and `step`. `samples` has of each
    /// branch of `batch`, in the order given, its place in the optimizer batch. Booked under "workspace".
    pub fn new(memory: &Memory, p: f64, seed: u64, step: u64, batch: &Batch, samples: &[u32]) -> Dropout {
        let of_rows: Vec<u32> = batch.branches_of_rows.iter().map(|&b| samples[b as usize]).collect();
        let samples = Tensor::from_u32(&memory.part("workspace"), &[of_rows.len()], &of_rows);
        Dropout { p, seed, step, samples }
    }

    /// The dropout of linear layer number `place` of the model.
    pub(crate) fn of<'a>(&'a self, place: u32, positions: View<'a>) -> lora::Dropout<'a> {
        let [high, low, ..] = philox(self.seed, [self.step as u32, (self.step >> 32) as u32, place, STREAM]);
        let key = u64::from(high) << 32 | u64::from(low);
        lora::Dropout { p: self.p, key, samples: self.samples.view(), positions }
    }
}
