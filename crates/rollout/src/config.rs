//! The sizes of an engine, and its switches.

use crate::drafts::{self, Drafts};
use crate::earlier::Earlier;
use model::kv::BLOCK;

/// Sizes and switches of an engine. None of them changes a bit of what it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Sequences of a step.
    pub max_num_seqs: usize,
    /// Pages of keys and values, of 64 tokens each.
    pub kv_blocks: usize,
    /// Tokens of the longest sequence, prompt included.
    pub max_model_len: usize,
    /// Rows of a step: prompts are computed in chunks that fit.
    pub max_batched_tokens: usize,
    /// Whether a prompt may be computed in several steps.
    pub chunked_prefill: bool,
    /// Whether a group's prompt is computed once and its pages shared.
    pub prefix_sharing: bool,
    /// Whether full pages are found again by what they contain, across requests and turns. Of use where requests repeat
    /// what others began with; a training run computes everything anew with each version of the weights.
    pub prefix_caching: bool,
    /// Whether the next tokens of sequences are guessed and verified together.
    pub speculative: Speculative,
}

/// When tokens are guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculative {
    /// Never.
    Off,
    /// While few sequences live, as many as are likely to be right.
    Auto,
    /// This many in every step of every sequence, likely or not: for tests.
    Always(usize),
}

/// Prompts are computed in chunks of this many rows, unless somebody says otherwise.
const PREFILL_ROWS: usize = 1024;

impl EngineConfig {
    /// `max_num_seqs` sequences at once of up to `max_model_len` tokens each, prompt included, none of which is ever
    /// preempted; prompts are shared, and computed in chunks.
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

    /// Pages that hold `max_num_seqs` sequences of `max_model_len` tokens and their prompts, so that none is ever
    /// preempted.
    pub fn blocks_for(max_num_seqs: usize, max_model_len: usize) -> usize {
        (max_num_seqs + 1) * max_model_len.div_ceil(BLOCK)
    }

    /// Rows of a step.
    pub fn rows(&self) -> usize {
        match self.chunked_prefill {
            true => self.max_batched_tokens.max(self.max_num_seqs),
            false => self.max_batched_tokens.max(self.max_num_seqs).max(self.max_model_len),
        }
    }

    /// Bytes of the host that guesses are made from, at most.
    pub fn draft_bytes(&self) -> usize {
        if self.speculative == Speculative::Off { 0 } else { Drafts::BYTES + Earlier::BYTES }
    }

    /// Tokens that are drawn together.
    pub fn draws(&self) -> usize {
        match self.speculative {
            Speculative::Off => self.max_num_seqs,
            Speculative::Auto | Speculative::Always(_) => self.max_num_seqs.max(drafts::ROWS.min(self.rows())),
        }
    }
}
