//! An upper bound on the scratch memory that operations take on a CUDA device: the memory plan adds it to the tensors.

use super::lm_head::cpu::KEPT;
use super::lm_head::cuda::WINDOW;
use super::lm_head::{BLOCK_ROWS, CHUNK};
use super::sample::cuda::{self, COLUMNS};
use crate::device::cuda::stream::STAGING;

const WORD: usize = 4;

/// The sizes of the largest passes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// Tokens that go through the model together.
    pub tokens: usize,
    /// Sequences that are sampled together.
    pub sequences: usize,
    /// Whether they are drawn from whole rows: truncated, or with a penalty.
    pub whole: bool,
    /// Positions of the longest sequence.
    pub positions: usize,
    /// Pages of keys and values that a training pass holds.
    pub pages: usize,
    /// Entries of the vocabulary.
    pub vocab: usize,
    /// Attention's heads.
    pub heads: usize,
    /// The adapter's rank; 0: none.
    pub rank: usize,
    /// Inputs of the widest matrix with an adapter whose inputs are dropped; 0: none are.
    pub dropped: usize,
}

impl Passes {
    /// Bytes that one operation holds beside its tensors, the largest of all: they go back when it has been launched.
    pub fn scratch_bytes(&self) -> u64 {
        let chunks = self.vocab.div_ceil(CHUNK);
        let rows = self.tokens.min(BLOCK_ROWS);
        let scored = rows * self.vocab.min(WINDOW) + rows * chunks * KEPT;
        let (_, drawn) = cuda::block(self.sequences, self.vocab, self.whole);
        // Per row its parameters, and the tokens so far where repetitions are made less likely.
        let sampled = drawn + self.sequences * (COLUMNS + self.positions);
        let looks = self.tokens * self.positions.div_ceil(64);
        let attended = self.tokens * (self.heads + 2) + 2 * looks + 2 * (self.pages + 1);
        let adapted = self.tokens * (2 * self.rank + self.dropped);
        (WORD * scored.max(sampled).max(attended).max(adapted)) as u64
    }

    /// Pinned memory of the host.
    pub fn staging_bytes() -> u64 {
        STAGING as u64
    }
}
