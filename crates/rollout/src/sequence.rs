//! A sequence in the engine: tokens, the pages that hold their keys and values, and what was recorded of each.

use crate::request::{Completion, FinishReason};
use model::Columns;
use model::columns::SAMPLER_LOGPS;
use model::kv::BLOCK;

/// What a sequence is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The prompt of a group, computed once for all its completions; its pages stay until the last of them ends.
    Prompt,
    /// This completion of the group.
    Completion(u32),
}

/// Where a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not in the batch; it holds no pages.
    Waiting,
    /// In the batch.
    Running,
    /// A computed prompt that completions share.
    Held,
    /// Stopped, and waiting to be extended or finished; it keeps its pages.
    Paused,
    /// Done; it holds no pages.
    Finished(FinishReason),
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) group: usize,
    pub(crate) role: Role,
    pub(crate) state: State,
    /// The prompt, then what was sampled or inserted.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// How many tokens have their keys and values in `blocks`.
    pub(crate) computed: usize,
    pub(crate) blocks: Vec<u32>,
    /// One per token after the prompt.
    pub(crate) logps: Vec<f32>,
    pub(crate) mask: Vec<bool>,
    pub(crate) versions: Vec<u64>,
}

impl Sequence {
    pub(crate) fn new(group: usize, role: Role, prompt: &[u32], room: usize) -> Sequence {
        let mut tokens = Vec::with_capacity(prompt.len() + room);
        tokens.extend_from_slice(prompt);
        Sequence {
            group,
            role,
            state: State::Waiting,
            tokens,
            prompt_len: prompt.len(),
            computed: 0,
            blocks: Vec::with_capacity((prompt.len() + room).div_ceil(BLOCK)),
            logps: Vec::with_capacity(room),
            mask: Vec::with_capacity(room),
            versions: Vec::with_capacity(room),
        }
    }
    /// The tokens after the prompt.
    pub(crate) fn completion(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }
    /// Tokens still to be computed.
    pub(crate) fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }
    /// Its tokens and their record, once it has ended.
    pub(crate) fn take_completion(&mut self) -> Completion {
        let (State::Finished(finish_reason), Role::Completion(generation)) = (self.state, self.role) else {
            unreachable!("only ended completions are given away")
        };
        Completion {
            generation: generation as usize,
            ids: self.tokens.split_off(self.prompt_len),
            columns: Columns::of([(SAMPLER_LOGPS, std::mem::take(&mut self.logps))]),
            mask: std::mem::take(&mut self.mask),
            versions: std::mem::take(&mut self.versions),
            finish_reason,
        }
    }
    /// Records a token after the prompt.
    pub(crate) fn push(&mut self, id: u32, logp: f32, sampled: bool, version: u64) {
        self.tokens.push(id);
        self.logps.push(logp);
        self.mask.push(sampled);
        self.versions.push(version);
    }
}

/// A token to draw: the row of the step that it is drawn from, and the sequence that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draw {
    pub(crate) row: u32,
    pub(crate) sequence: usize,
}
