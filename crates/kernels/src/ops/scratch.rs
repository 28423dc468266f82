//! An upper bound on the scratch memory that operations allocate on a CUDA device. The memory plan adds it to the
//! memory of the tensors.

use super::lm_head::cpu::KEPT;
use super::lm_head::cuda::WINDOW;
use super::lm_head::{BLOCK_ROWS, CHUNK};
use super::lora::cuda::DROPPED;
use super::sample::cuda::{self, COLUMNS};
use crate::device::cuda::stream::STAGING;

const WORD: usize = 4;

/// Largest sizes of the forward and backward passes in a training run, which determine the scratch memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// Largest number of tokens in one forward pass.
    pub tokens: usize,
    /// Largest number of sequences for which tokens are sampled in one step.
    pub sequences: usize,
    /// Whether sampling reads whole rows of logits: for top-k, top-p or min-p, or for a penalty.
    pub whole: bool,
    /// Length of the longest sequence, in tokens.
    pub positions: usize,
    /// Number of KV-cache pages that a training pass uses.
    pub pages: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Rank of the LoRA adapter; 0 without one.
    pub rank: usize,
    /// Inputs of the widest matrix that has a LoRA adapter with dropout; 0 without dropout.
    pub dropped: usize,
}

impl Passes {
    /// Bytes of scratch memory of the operation that needs the most, not counting tensors. An operation releases its
    /// scratch memory after it has been launched.
    pub fn scratch_bytes(&self) -> u64 {
        let chunks = self.vocab.div_ceil(CHUNK);
        let rows = self.tokens.min(BLOCK_ROWS);
        let scored = rows * self.vocab.min(WINDOW) + rows * chunks * KEPT;
        let (_, drawn) = cuda::block(self.sequences, self.vocab, self.whole);
        // Each row has sampling parameters and, for the repetition penalty, its tokens so far.
        let sampled = drawn + self.sequences * (COLUMNS + self.positions);
        let looks = self.tokens * self.positions.div_ceil(64);
        let attended = self.tokens * (self.heads + 2) + 2 * looks + 2 * (self.pages + 1);
        // Dropout needs the dropped-out inputs and the dropout factors of some rows.
        let dropped = (self.tokens * self.dropped).min(DROPPED.max(self.dropped));
        let adapted = 2 * (self.tokens * self.rank + dropped);
        (WORD * scored.max(sampled).max(attended).max(adapted)) as u64
    }

    /// Bytes of pinned host memory for copies to and from the device.
    pub fn staging_bytes() -> u64 {
        STAGING as u64
    }
}
