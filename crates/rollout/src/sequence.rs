//! A sequence in the engine: its tokens, the KV-cache pages of their keys and values, and the records of each token.

use crate::drafts::Pace;
use crate::models::ModelVersion;
use crate::prefix::{Node, ROOT};
use crate::request::{Completion, FinishReason};
use model::columns::{Column, ENTROPIES, SAMPLER_LOGPS, TOP_IDS, TOP_LOGPS, Values};
use model::kv::BLOCK;
use model::net::HeadColumns;
use model::{Columns, Updates};

/// The role of a sequence in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The prompt of a group, computed once for all its completions. Its KV-cache pages are kept until the last
    /// completion ends.
    Prompt,
    /// The completion of the group with this index.
    Completion(u32),
}

/// The state of a sequence in the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Waiting for a slot in the batch. It has no KV-cache pages, unless it was paused and then extended.
    Waiting,
    /// Has a slot in the batch.
    Running,
    /// A computed prompt whose pages are shared by completions.
    Held,
    /// Paused until it is extended or finished. It keeps its KV-cache pages.
    Paused,
    /// Ended. It has no KV-cache pages.
    Finished(FinishReason),
}

#[derive(Debug)]
pub(crate) struct Sequence {
    /// The serial number of the sequence. It is never reused.
    pub(crate) serial: u64,
    pub(crate) group: usize,
    pub(crate) role: Role,
    pub(crate) state: State,
    /// The version of the weights to compute with; `None` means the current weights of each step.
    pub(crate) model: Option<ModelVersion>,
    /// The tokens of the prompt, then those that were sampled or inserted, then `drafted` draft tokens.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// The number of draft tokens at the end, which the next step verifies.
    pub(crate) drafted: usize,
    pub(crate) pace: Pace,
    /// The number of tokens that are in the index for draft tokens.
    pub(crate) indexed: usize,
    /// The number of tokens whose keys and values are in `blocks`.
    pub(crate) computed: usize,
    pub(crate) blocks: Vec<u32>,
    /// The number of pages of `blocks` that are in the prefix cache, and the node of the last one.
    pub(crate) cached: usize,
    pub(crate) node: Node,
    /// The lm head's results for each token after the prompt. A token that was not sampled has log-probability 0,
    /// entropy 0 and log-sum-exp NaN.
    pub(crate) head: HeadColumns,
    pub(crate) sampled: Vec<bool>,
    pub(crate) versions: Vec<Updates>,
    pub(crate) top: Alternatives,
}

/// The most likely tokens at each position, in descending order. All positions have the same number of them. Empty
/// unless requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Alternatives {
    pub(crate) width: usize,
    pub(crate) ids: Vec<u32>,
    pub(crate) logps: Vec<f32>,
}

impl Alternatives {
    /// Adds the most likely tokens at one position, and their log-probabilities.
    pub(crate) fn push(&mut self, ids: &[u32], logps: &[f32]) {
        self.width = ids.len();
        self.ids.extend_from_slice(ids);
        self.logps.extend_from_slice(logps);
    }
    /// The most likely tokens at position `index`, and their log-probabilities.
    pub(crate) fn at(&self, index: usize) -> (&[u32], &[f32]) {
        let range = index * self.width..(index + 1) * self.width;
        (self.ids.get(range.clone()).unwrap_or_default(), self.logps.get(range).unwrap_or_default())
    }
    /// Adds zeros for a token that was not sampled.
    fn pad(&mut self) {
        self.ids.resize(self.ids.len() + self.width, 0);
        self.logps.resize(self.logps.len() + self.width, 0.0);
    }
    pub(crate) fn into_columns(self, columns: &mut Columns) {
        if self.width > 0 {
            columns.insert(TOP_IDS, Column { width: self.width, values: Values::U32(self.ids) });
            columns.insert(TOP_LOGPS, Column { width: self.width, values: Values::F32(self.logps) });
        }
    }
}

impl Sequence {
    pub(crate) fn new(
        serial: u64,
        group: usize,
        role: Role,
        model: Option<ModelVersion>,
        prompt: &[u32],
        room: usize,
    ) -> Sequence {
        let mut tokens = Vec::with_capacity(prompt.len() + room);
        tokens.extend_from_slice(prompt);
        Sequence {
            serial,
            group,
            role,
            state: State::Waiting,
            model,
            tokens,
            prompt_len: prompt.len(),
            drafted: 0,
            pace: Pace::new(),
            indexed: 0,
            computed: 0,
            blocks: Vec::with_capacity((prompt.len() + room).div_ceil(BLOCK)),
            cached: 0,
            node: ROOT,
            head: HeadColumns::with_capacity(room),
            sampled: Vec::with_capacity(room),
            versions: Vec::with_capacity(room),
            top: Alternatives::default(),
        }
    }
    /// Restores the tokens and records of an unfinished completion.
    pub(crate) fn continue_from(&mut self, so_far: &Completion) {
        let Completion { ids, sampled, versions, columns, finish_reason, .. } = so_far;
        self.tokens.extend_from_slice(ids);
        self.head.logps.extend_from_slice(so_far.logps());
        self.sampled.extend_from_slice(sampled);
        self.versions.extend_from_slice(versions);
        self.head.lse.resize(ids.len(), f32::NAN);
        self.head.entropies.extend_from_slice(columns.f32(ENTROPIES).unwrap_or_default());
        self.head.entropies.resize(ids.len(), 0.0);
        if let (Some(ids), Some(logps)) = (columns.get(TOP_IDS), columns.get(TOP_LOGPS))
            && let (Values::U32(top_ids), Values::F32(top_logps)) = (&ids.values, &logps.values)
        {
            self.top = Alternatives { width: ids.width, ids: top_ids.clone(), logps: top_logps.clone() };
        }
        if !so_far.is_unfinished() {
            self.state = State::Finished(*finish_reason);
        }
    }
    /// The tokens without draft tokens.
    pub(crate) fn known(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - self.drafted]
    }
    /// The tokens after the prompt, without draft tokens.
    pub(crate) fn completion(&self) -> &[u32] {
        &self.known()[self.prompt_len..]
    }
    /// The number of tokens that must still be computed, including draft tokens.
    pub(crate) fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }
    /// Called when the sequence has lost its KV-cache pages: all its tokens must be recomputed.
    pub(crate) fn forget_pages(&mut self) {
        (self.computed, self.cached, self.node) = (0, 0, ROOT);
        self.reject_drafts();
        self.pace.forget();
    }
    /// Removes the draft tokens and their computed positions.
    pub(crate) fn reject_drafts(&mut self) {
        self.tokens.truncate(self.tokens.len() - self.drafted);
        self.drafted = 0;
        self.computed = self.computed.min(self.tokens.len());
    }
    /// Index of the completion in its group.
    pub(crate) fn generation(&self) -> usize {
        match self.role {
            Role::Completion(generation) => generation as usize,
            Role::Prompt => unreachable!("a prompt has no index in its group"),
        }
    }
    /// The completion with its records, once it has ended. It has entropies only if they are wanted.
    pub(crate) fn into_completion(mut self, wants_entropies: bool) -> Completion {
        let State::Finished(finish_reason) = self.state else { unreachable!("only finished completions are returned") };
        let generation = self.generation();
        let HeadColumns { logps, entropies, .. } = self.head;
        let mut columns = Columns::of([(SAMPLER_LOGPS, logps)]);
        if wants_entropies && !entropies.is_empty() {
            columns.set(ENTROPIES, entropies);
        }
        self.top.into_columns(&mut columns);
        Completion {
            generation,
            ids: self.tokens.split_off(self.prompt_len),
            columns,
            sampled: self.sampled,
            versions: self.versions,
            finish_reason,
        }
    }
    /// Appends a token, which was sampled if there is a `record`, and inserted otherwise. Returns whether the token
    /// equals the draft token at its position, so that the computed keys and values stay valid.
    pub(crate) fn push(&mut self, id: u32, record: Option<TokenRecord>, version: Updates) -> bool {
        let guessed = self.drafted > 0 && self.tokens[self.tokens.len() - self.drafted] == id;
        if guessed {
            self.drafted -= 1;
            self.pace.right();
        } else {
            self.reject_drafts();
            self.tokens.push(id);
        }
        let TokenRecord { logp, lse, entropy } = record.unwrap_or(TokenRecord::NOT_SAMPLED);
        self.head.logps.push(logp);
        self.head.lse.push(lse);
        self.head.entropies.push(entropy);
        self.sampled.push(record.is_some());
        if record.is_none() {
            self.top.pad();
        }
        self.versions.push(version);
        guessed
    }
}

/// A token to draw. A sequence with draft tokens has several draws in a step: one to verify each draft token, and one
/// for the token after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draw {
    /// The row of the step from which the token is drawn.
    pub(crate) row: u32,
    /// The sequence that gets the token.
    pub(crate) sequence: usize,
    /// The index of the token in the sequence: the number of tokens before it.
    pub(crate) at: usize,
}

/// The values that the sampler records for a drawn token, before penalty and truncation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TokenRecord {
    /// The log-probability of the token.
    pub(crate) logp: f32,
    /// The log-sum-exp of the logits / T.
    pub(crate) lse: f32,
    /// The entropy of the distribution, in nats.
    pub(crate) entropy: f32,
}

impl TokenRecord {
    /// The record of a token that was not sampled.
    const NOT_SAMPLED: TokenRecord = TokenRecord { logp: 0.0, lse: f32::NAN, entropy: 0.0 };
}

/// The results of sampling: tokens, their records and, if wanted, the most likely tokens.
#[derive(Clone, Copy)]
pub(crate) struct Sampled<'a> {
    pub(crate) ids: &'a [u32],
    pub(crate) records: &'a [TokenRecord],
    /// The most likely tokens of each draw and their log-probabilities, or empty.
    pub(crate) alternatives: &'a [(Vec<u32>, Vec<f32>)],
}

#[cfg(test)]
mod tests;
