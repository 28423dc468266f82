//! A sequence in the engine: tokens, the pages that hold their keys and values, and what was recorded of each.

use crate::drafts::Pace;
use crate::models::ModelVersion;
use crate::prefix::{Node, ROOT};
use crate::request::{Completion, FinishReason};
use model::Columns;
use model::columns::{Column, ENTROPIES, SAMPLER_LOGPS, TOP_IDS, TOP_LOGPS, Values};
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
    /// Not in the batch. It holds no pages, unless it was paused and is extended.
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
    /// Its number, which no other sequence ever has.
    pub(crate) serial: u64,
    pub(crate) group: usize,
    pub(crate) role: Role,
    pub(crate) state: State,
    /// The weights that it is computed with; none: those that each step is given.
    pub(crate) model: Option<ModelVersion>,
    /// The prompt, then what was sampled or inserted, then `drafted` guesses.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// How many of the last tokens are guesses that the next step verifies.
    pub(crate) drafted: usize,
    pub(crate) pace: Pace,
    /// How many tokens guesses can be made from.
    pub(crate) indexed: usize,
    /// How many tokens have their keys and values in `blocks`.
    pub(crate) computed: usize,
    pub(crate) blocks: Vec<u32>,
    /// How many of `blocks` the prefix cache knows, and the node of the last of them.
    pub(crate) cached: usize,
    pub(crate) node: Node,
    /// One per token after the prompt.
    pub(crate) logps: Vec<f32>,
    pub(crate) mask: Vec<bool>,
    pub(crate) versions: Vec<u64>,
    /// One per token up to the last that was sampled; none unless they are wanted.
    pub(crate) entropies: Vec<f32>,
    pub(crate) top: Alternatives,
}

/// The likeliest tokens beside each one, the likeliest first: as many for each, none unless they are wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Alternatives {
    pub(crate) width: usize,
    pub(crate) ids: Vec<u32>,
    pub(crate) logps: Vec<f32>,
}

impl Alternatives {
    /// Those of one token.
    pub(crate) fn push(&mut self, ids: &[u32], logps: &[f32]) {
        self.width = ids.len();
        self.ids.extend_from_slice(ids);
        self.logps.extend_from_slice(logps);
    }
    /// Of a token that was not sampled: zeros.
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
            logps: Vec::with_capacity(room),
            mask: Vec::with_capacity(room),
            versions: Vec::with_capacity(room),
            entropies: Vec::new(),
            top: Alternatives::default(),
        }
    }
    /// Takes up what a completion has so far.
    pub(crate) fn continue_from(&mut self, so_far: &Completion) {
        let Completion { ids, mask, versions, columns, finish_reason, .. } = so_far;
        self.tokens.extend_from_slice(ids);
        self.logps.extend_from_slice(so_far.logps());
        self.mask.extend_from_slice(mask);
        self.versions.extend_from_slice(versions);
        self.entropies.extend_from_slice(columns.f32(ENTROPIES).unwrap_or_default());
        if let (Some(ids), Some(logps)) = (columns.get(TOP_IDS), columns.get(TOP_LOGPS))
            && let (Values::U32(top_ids), Values::F32(top_logps)) = (&ids.values, &logps.values)
        {
            self.top = Alternatives { width: ids.width, ids: top_ids.clone(), logps: top_logps.clone() };
        }
        if !so_far.is_unfinished() {
            self.state = State::Finished(*finish_reason);
        }
    }
    /// Its tokens without guesses.
    pub(crate) fn known(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - self.drafted]
    }
    /// The tokens after the prompt.
    pub(crate) fn completion(&self) -> &[u32] {
        &self.known()[self.prompt_len..]
    }
    /// Tokens still to be computed, guesses included.
    pub(crate) fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }
    /// It has no pages any more.
    pub(crate) fn forget_pages(&mut self) {
        (self.computed, self.cached, self.node) = (0, 0, ROOT);
        self.reject_drafts();
        self.pace.forget();
    }
    /// Takes the guesses back, and what was computed of them.
    pub(crate) fn reject_drafts(&mut self) {
        self.tokens.truncate(self.tokens.len() - self.drafted);
        self.drafted = 0;
        self.computed = self.computed.min(self.tokens.len());
    }
    /// Which completion of its group it is.
    pub(crate) fn generation(&self) -> usize {
        match self.role {
            Role::Completion(generation) => generation as usize,
            Role::Prompt => unreachable!("prompts are not sampled for"),
        }
    }
    /// Its tokens and their record, once it has ended.
    pub(crate) fn into_completion(mut self) -> Completion {
        let State::Finished(finish_reason) = self.state else { unreachable!("only ended completions are given away") };
        let generation = self.generation();
        let tokens = self.logps.len();
        let mut columns = Columns::of([(SAMPLER_LOGPS, self.logps)]);
        if !self.entropies.is_empty() {
            self.entropies.resize(tokens, 0.0);
            columns.set(ENTROPIES, self.entropies);
        }
        self.top.into_columns(&mut columns);
        Completion {
            generation,
            ids: self.tokens.split_off(self.prompt_len),
            columns,
            mask: self.mask,
            versions: self.versions,
            finish_reason,
        }
    }
    /// Records a token after the prompt. Whether it is the one that was guessed, so that what was computed of it holds.
    pub(crate) fn push(&mut self, id: u32, logp: f32, sampled: bool, version: u64) -> bool {
        let guessed = self.drafted > 0 && self.tokens[self.tokens.len() - self.drafted] == id;
        if guessed {
            self.drafted -= 1;
            self.pace.right();
        } else {
            self.reject_drafts();
            self.tokens.push(id);
        }
        self.logps.push(logp);
        self.mask.push(sampled);
        if !sampled {
            self.top.pad();
        }
        self.versions.push(version);
        guessed
    }
}

/// A token to draw. A sequence with guesses has several in a step: one for each guess, which it verifies, and one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draw {
    /// The row of the step that it is drawn from.
    pub(crate) row: u32,
    /// The sequence that gets it.
    pub(crate) sequence: usize,
    /// Its place in the sequence: how many tokens are before it.
    pub(crate) at: usize,
}

/// What was drawn: a token, its log-probability and, if they are wanted, the likeliest tokens with theirs.
#[derive(Clone, Copy)]
pub(crate) struct Sampled<'a> {
    pub(crate) ids: &'a [u32],
    pub(crate) logps: &'a [f32],
    /// One for each draw, or none at all.
    pub(crate) alternatives: &'a [(Vec<u32>, Vec<f32>)],
    /// One for each draw, of those that want it, or none at all.
    pub(crate) entropies: &'a [Option<f32>],
}
