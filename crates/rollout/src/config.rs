//! The configuration of the rollout engine: sizes and switches.

use crate::drafts::{self, Drafts};
use crate::earlier::Earlier;
use model::kv::BLOCK;

/// Sizes and switches of a rollout engine. None of them changes a bit of the completions.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Largest number of sequences in one step.
    pub max_num_seqs: usize,
    /// Pages of the KV cache, of 64 tokens each.
    pub kv_blocks: usize,
    /// Largest number of tokens of a sequence, prompt included.
    pub max_model_len: usize,
    /// Largest number of rows (tokens) computed in one step. Longer prompts are computed in chunks.
    pub max_batched_tokens: usize,
    /// Whether a prompt may be computed in several steps.
    pub chunked_prefill: bool,
    /// Whether the prompt of a group is computed once, and its KV-cache pages shared by the group's completions.
    pub prefix_sharing: bool,
    /// Whether full KV-cache pages are found again by their tokens, across requests and turns. This is useful if
    /// requests share their beginnings; a training run recomputes everything with each version of the weights.
    pub prefix_caching: bool,
    /// Whether draft tokens are guessed and verified (speculative decoding).
    pub speculative: Speculative,
}

/// When draft tokens are guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculative {
    /// Draft tokens are never guessed.
    Off,
    /// While few sequences are running, as many draft tokens as are likely to be right.
    Auto,
    /// This many draft tokens for every sequence in every step, even if they are unlikely to be right. For tests.
    Always(usize),
}

/// The default number of rows of a step: prompts are computed in chunks of this many tokens.
const PREFILL_ROWS: usize = 1024;

impl EngineConfig {
    /// The configuration for `max_num_seqs` sequences at once of up to `max_model_len` tokens each, prompt included.
    /// Prompts are shared and computed in chunks, and no sequence is ever preempted.
    pub fn new(max_num_seqs: usize, max_model_len: usize) -> EngineConfig {
        EngineConfig {
            max_num_seqs,
            kv_blocks: Self::blocks_for(max_num_seqs, max_model_len),
            max_model_len,
            max_batched_tokens: PREFILL_ROWS,
            chunked_prefill: true,
            prefix_sharing: true,
            prefix_caching: false,
            speculative: Speculative::Off,
        }
    }

    /// Number of KV-cache pages for `max_num_seqs` sequences of `max_model_len` tokens and their prompts, so that none
    /// is ever preempted.
    pub fn blocks_for(max_num_seqs: usize, max_model_len: usize) -> usize {
        (max_num_seqs + 1) * max_model_len.div_ceil(BLOCK)
    }

    /// Rows (tokens) that one step can compute.
    pub fn rows(&self) -> usize {
        if self.chunked_prefill {
            self.max_batched_tokens.max(self.max_num_seqs)
        } else {
            self.max_batched_tokens.max(self.max_num_seqs).max(self.max_model_len)
        }
    }

    /// Largest number of bytes of host memory for the text that draft tokens are guessed from.
    pub fn draft_bytes(&self) -> usize {
        if self.speculative == Speculative::Off { 0 } else { Drafts::BYTES + Earlier::BYTES }
    }

    /// Largest number of tokens that one step samples.
    pub fn draws(&self) -> usize {
        match self.speculative {
            Speculative::Off => self.max_num_seqs,
            Speculative::Auto | Speculative::Always(_) => self.max_num_seqs.max(drafts::ROWS.min(self.rows())),
        }
    }
}
