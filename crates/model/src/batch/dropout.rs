//! Dropout on the inputs of LoRA adapters, for one optimizer step.
//!
//! The noise of a row depends on the index of its sequence in the optimizer batch and on the token's position in the
//! sequence, but not on the row's index in the micro-batch. The backward pass and recomputed layers draw the same noise
//! again.

use super::Batch;
use kernels::ops::lora;
use kernels::rng::philox;
use kernels::{Memory, Tensor, View};

/// Random stream of dropout, distinct from other uses of the seed.
const STREAM: u32 = 0x6472_6f70;

/// Dropout on the inputs of LoRA adapters, for one training batch: see
/// [`BatchTensors::set_dropout`](crate::BatchTensors::set_dropout).
#[derive(Debug)]
pub struct Dropout {
    p: f64,
    seed: u64,
    step: u64,
    /// For each row, the index of its sequence in the optimizer batch `[rows]`.
    samples: Tensor,
}

impl Dropout {
    /// Each input is dropped with probability `p` in [0, 1). `seed` and `step` determine the noise. For each branch
    /// (completion) of `batch`, in the given order, `samples` contains its index in the optimizer batch. Memory is
    /// charged to "workspace".
    pub fn new(memory: &Memory, p: f64, seed: u64, step: u64, batch: &Batch, samples: &[u32]) -> Dropout {
        let row_samples: Vec<u32> = batch.branches_of_rows.iter().map(|&b| samples[b as usize]).collect();
        let samples = Tensor::from_u32(&memory.part("workspace"), &[row_samples.len()], &row_samples);
        Dropout { p, seed, step, samples }
    }

    /// The dropout for the model's linear layer with index `place`.
    pub(crate) fn of<'a>(&'a self, place: u32, positions: View<'a>) -> lora::Dropout<'a> {
        let [high, low, ..] = philox(self.seed, [self.step as u32, (self.step >> 32) as u32, place, STREAM]);
        let key = u64::from(high) << 32 | u64::from(low);
        lora::Dropout { p: self.p, key, samples: self.samples.view(), positions }
    }
}
