//! The configuration of the rollout engine: sizes and switches.

use crate::drafts::{self, Drafts};
use crate::earlier::Earlier;
use model::kv::BLOCK;
use serde::{Deserialize, Serialize};

/// Sizes and switches of a rollout engine. They do not affect the bits of completions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// The maximum number of sequences in one step.
    pub max_num_seqs: usize,
    /// The number of KV-cache pages, each for 64 tokens.
    pub kv_blocks: usize,
    /// The maximum number of tokens of a sequence, including the prompt.
    pub max_model_len: usize,
    /// The maximum number of rows (tokens) in one step. Longer prompts are computed in chunks.
    pub max_batched_tokens: usize,
    /// Whether a prompt may be computed over several steps.
    pub chunked_prefill: bool,
    /// Whether the prompt of a group is computed once, and its KV-cache pages are shared by the group's completions.
    pub prefix_sharing: bool,
    /// Whether full KV-cache pages are reused across requests and turns if their tokens are the same. This helps if
    /// requests share prefixes. In training, each new version of the weights invalidates the cached pages.
    pub prefix_caching: bool,
    /// Whether draft tokens are guessed and verified (speculative decoding).
    pub speculative: Speculative,
}

/// The policy for guessing draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Speculative {
    /// Draft tokens are never guessed.
    Off,
    /// While few sequences are running, guess as many draft tokens as are likely to be right.
    Auto,
    /// Guess this many draft tokens for every sequence in every step, even if they are unlikely to be right. For tests.
    Always(usize),
}

/// The default number of rows of a step: prompts are computed in chunks of this many tokens.
const PREFILL_ROWS: usize = 1024;

impl EngineConfig {
    /// The configuration for up to `max_num_seqs` concurrent sequences of up to `max_model_len` tokens, including the
    /// prompt. Prompts are shared and computed in chunks, and no sequence is ever preempted.
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

    /// The number of KV-cache pages for `max_num_seqs` sequences of `max_model_len` tokens and their prompts, such that
    /// no sequence is ever preempted.
    pub fn blocks_for(max_num_seqs: usize, max_model_len: usize) -> usize {
        (max_num_seqs + 1) * max_model_len.div_ceil(BLOCK)
    }

    /// The number of KV-cache pages without which the engine cannot compute one sequence of `max_model_len` tokens.
    pub fn least_blocks(max_model_len: usize) -> usize {
        max_model_len.div_ceil(BLOCK) + 1
    }

    /// The number of rows (tokens) that one step can compute.
    pub fn rows(&self) -> usize {
        if self.chunked_prefill {
            self.max_batched_tokens.max(self.max_num_seqs)
        } else {
            self.max_batched_tokens.max(self.max_num_seqs).max(self.max_model_len)
        }
    }

    /// The maximum number of bytes of host memory for the texts from which draft tokens are guessed.
    pub fn draft_bytes(&self) -> usize {
        if self.speculative == Speculative::Off { 0 } else { Drafts::BYTES + Earlier::BYTES }
    }

    /// The maximum number of tokens that one step samples.
    pub fn draws(&self) -> usize {
        match self.speculative {
            Speculative::Off => self.max_num_seqs,
            Speculative::Auto | Speculative::Always(_) => self.max_num_seqs.max(drafts::ROWS.min(self.rows())),
        }
    }
}
