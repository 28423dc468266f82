//! Who runs in a step: running sequences first, then waiting ones while rows, slots and pages last; the youngest is
//! preempted when pages run out.
//!
//! A step computes with one base: that of the oldest running sequence, or of the first that waits. Adapters may differ
//! from sequence to sequence. A sequence's bits do not depend on any of this. The scheduler knows no weights and no
//! tensor: copies of pages that a fork needs are listed for the engine to make.
//!
//! `pages.rs` gives and takes pages, `speculate.rs` guesses tokens, `outcome.rs` appends what was drawn and ends,
//! pauses and removes sequences.

mod outcome;
mod pages;
mod speculate;
#[cfg(test)]
mod tests;

use crate::blocks::BlockPool;
use crate::config::Speculative;
use crate::cost::{Balance, StepCost};
use crate::drafts::Drafts;
use crate::earlier::Earlier;
use crate::models::ModelVersion;
use crate::request::{Drawn, RequestId, SequenceId};
use crate::sequence::{Alternatives, Role, Sequence, State};
use slab::Slab;
use std::collections::VecDeque;
use std::ops::Sub;
use std::sync::Arc;
use std::time::Duration;

/// A prompt and its completions.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its number, which no other group ever has.
    pub(crate) serial: u64,
    pub(crate) request: Arc<crate::Request>,
    /// The sequence that computes the prompt once, if prompts are shared, for as long as it is of use.
    pub(crate) prompt: Option<usize>,
    /// Its completions.
    pub(crate) members: Vec<usize>,
    /// Completions that have not ended.
    pub(crate) unfinished: usize,
    /// Of the prompt's tokens but the first, as far as they are wanted and computed.
    pub(crate) prompt_logps: Vec<f32>,
    pub(crate) prompt_top: Alternatives,
    /// What an earlier request said after this prompt, to guess from.
    pub(crate) earlier: Option<Arc<[u32]>>,
}

/// Rows of one sequence in a step: tokens `from..to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) sequence: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// What a step, and a sequence, may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_num_seqs: usize,
    /// Rows of a step.
    pub(crate) max_rows: usize,
    /// Tokens of a sequence.
    pub(crate) max_model_len: usize,
    /// Whether a prompt may be computed in several steps.
    pub(crate) chunked_prefill: bool,
}

/// What the engine has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens computed: rows of all steps.
    pub computed_tokens: u64,
    /// Tokens found in the prefix cache instead.
    pub cached_tokens: u64,
    /// Sequences preempted because pages ran out.
    pub preemptions: u64,
    /// Steps that computed part of a prompt, which a preempted sequence does again.
    pub prefill_steps: u64,
    /// How long their models took.
    pub prefill_time: Duration,
    /// All other steps: they compute what each sequence drew last.
    pub decode_steps: u64,
    /// How long their models took.
    pub decode_time: Duration,
    /// Their forward passes of one sequence each.
    pub decode_passes: u64,
    /// Tokens that those drew.
    pub decoded_tokens: u64,
    /// How long drawing tokens took, in steps of both kinds.
    pub sampling_time: Duration,
    /// Tokens that were guessed and verified.
    pub drafted_tokens: u64,
    /// Those of them that were right.
    pub accepted_tokens: u64,
    /// Forward passes of one sequence each that verified guesses.
    pub draft_passes: u64,
    /// How long decode steps with guesses took, models and drawing.
    pub draft_time: Duration,
    /// How long steps without would have taken for the same tokens, by what such steps were measured to take.
    pub undrafted_time: Duration,
}

impl Counters {
    /// A step has run its model.
    pub(crate) fn ran(&mut self, is_prefill: bool, time: Duration) {
        let (steps, total) = match is_prefill {
            true => (&mut self.prefill_steps, &mut self.prefill_time),
            false => (&mut self.decode_steps, &mut self.decode_time),
        };
        *steps += 1;
        *total += time;
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        Counters {
            computed_tokens: self.computed_tokens - before.computed_tokens,
            cached_tokens: self.cached_tokens - before.cached_tokens,
            preemptions: self.preemptions - before.preemptions,
            prefill_steps: self.prefill_steps - before.prefill_steps,
            prefill_time: self.prefill_time - before.prefill_time,
            decode_steps: self.decode_steps - before.decode_steps,
            decode_time: self.decode_time - before.decode_time,
            decode_passes: self.decode_passes - before.decode_passes,
            decoded_tokens: self.decoded_tokens - before.decoded_tokens,
            sampling_time: self.sampling_time - before.sampling_time,
            drafted_tokens: self.drafted_tokens - before.drafted_tokens,
            accepted_tokens: self.accepted_tokens - before.accepted_tokens,
            draft_passes: self.draft_passes - before.draft_passes,
            draft_time: self.draft_time - before.draft_time,
            undrafted_time: self.undrafted_time - before.undrafted_time,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) sequences: Slab<Sequence>,
    pub(crate) groups: Slab<Group>,
    pub(crate) blocks: BlockPool,
    /// The weights of sequences that name none.
    pub(crate) current: Option<ModelVersion>,
    running: Vec<usize>,
    /// Extended ones, which may still have their pages; they come before those that wait.
    extended: VecDeque<usize>,
    waiting: VecDeque<usize>,
    /// Prompts whose pages completions share.
    held: Vec<usize>,
    /// In the order in which they were paused.
    paused: Vec<usize>,
    /// Groups that ended and were not yet given away.
    finished: Vec<usize>,
    serial: u64,
    limits: Limits,
    pub(crate) counters: Counters,
    speculative: Speculative,
    /// None if nothing is guessed.
    drafts: Option<Box<Drafts>>,
    /// What decode steps take; how much is guessed depends on it.
    cost: StepCost,
    balance: Balance,
    /// To guess from.
    pub(crate) earlier: Earlier,
    /// What the last step drew.
    pub(crate) drawn: Vec<Drawn>,
}

impl Scheduler {
    pub(crate) fn new(blocks: BlockPool, limits: Limits, speculative: Speculative) -> Scheduler {
        Scheduler {
            sequences: Slab::new(),
            groups: Slab::new(),
            blocks,
            current: None,
            running: Vec::new(),
            extended: VecDeque::new(),
            waiting: VecDeque::new(),
            held: Vec::new(),
            paused: Vec::new(),
            finished: Vec::new(),
            serial: 0,
            limits,
            counters: Counters::default(),
            speculative,
            drafts: (speculative != Speculative::Off).then(|| Box::new(Drafts::new())),
            cost: StepCost::default(),
            balance: Balance::default(),
            earlier: Earlier::default(),
            drawn: Vec::new(),
        }
    }

    /// Takes a group in: its prompt first if it is shared, else all completions by themselves.
    pub(crate) fn submit(&mut self, request: Arc<crate::Request>, sharing: bool) -> RequestId {
        let group = self.groups.vacant_key();
        let room = self.limits.max_model_len.saturating_sub(request.prompt.ids.len());
        let room = request.sampling.max_new_tokens.min(room);
        let mut add = |role, room| {
            self.serial += 1;
            let (prompt, model) = (&request.prompt.ids, request.model);
            self.sequences.insert(Sequence::new(self.serial, group, role, model, prompt, room))
        };
        let members: Vec<usize> = (0..request.num_generations).map(|g| add(Role::Completion(g as u32), room)).collect();
        let ended = request.so_far.iter().filter(|so_far| !so_far.is_unfinished()).count();
        let unfinished = members.len() - ended;
        let prompt = (sharing && unfinished > 1).then(|| add(Role::Prompt, 0));
        for (&member, so_far) in members.iter().zip(&request.so_far) {
            self.sequences[member].continue_from(so_far);
        }
        let waits = |member: &&usize| self.sequences[**member].state == State::Waiting;
        match prompt {
            Some(prompt) => self.waiting.push_back(prompt),
            None => self.waiting.extend(members.iter().filter(waits)),
        }
        self.serial += 1;
        let id = RequestId { index: group, serial: self.serial };
        let serial = self.serial;
        let (prompt_logps, prompt_top) = (Vec::new(), Alternatives::default());
        let earlier = self.earlier.get(&request.prompt.ids).cloned();
        self.groups.insert(Group { serial, request, prompt, members, unfinished, prompt_logps, prompt_top, earlier });
        id
    }

    /// Whether nothing runs and nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.extended.is_empty() && self.waiting.is_empty()
    }

    /// Removes all sequences and groups, finished or not, and takes their pages back.
    pub(crate) fn clear(&mut self) {
        for (_, s) in &mut self.sequences {
            self.blocks.release(&mut s.blocks);
        }
        self.sequences.clear();
        self.groups.clear();
        self.running.clear();
        self.extended.clear();
        self.waiting.clear();
        self.held.clear();
        self.paused.clear();
        self.finished.clear();
        self.drawn.clear();
    }

    /// Chooses the rows of the next step into `chunks`, and lists in `copies` the pages to copy before it (from, to).
    /// Returns the version of the base that computes them; none where sequences follow the current weights and there
    /// are none.
    pub(crate) fn schedule(&mut self, chunks: &mut Vec<Chunk>, copies: &mut Vec<(u32, u32)>) -> Option<u64> {
        chunks.clear();
        copies.clear();
        let oldest = self.running.first().or(self.extended.front()).or(self.waiting.front()).copied()?;
        let base = self.base_of(oldest)?;
        let mut rows = 0;
        let mut next = 0;
        while next < self.running.len() {
            let id = self.running[next];
            let wanted = self.chunk(id, self.limits.max_rows - rows).filter(|_| self.base_of(id) == Some(base));
            let Some(chunk) = wanted else {
                next += 1;
                continue;
            };
            if self.make_room(id, chunk.to) {
                rows += chunk.to - chunk.from;
                chunks.push(chunk);
                next += 1;
            }
        }
        while self.running.len() < self.limits.max_num_seqs && rows < self.limits.max_rows {
            let mut queue = self.extended.iter().chain(&self.waiting).copied();
            let Some((at, id)) = queue.by_ref().enumerate().find(|&(_, id)| self.base_of(id) == Some(base)) else {
                break;
            };
            drop(queue);
            let Some(chunk) = self.admit(id, self.limits.max_rows - rows, copies) else {
                if self.running.is_empty() && (self.evict_prompts() || self.evict_idle(id)) {
                    continue;
                }
                break;
            };
            match at.checked_sub(self.extended.len()) {
                Some(at) => self.waiting.remove(at),
                None => self.extended.remove(at),
            };
            self.sequences[id].state = State::Running;
            self.running.push(id);
            rows += chunk.to - chunk.from;
            chunks.push(chunk);
        }
        debug_assert!(!chunks.is_empty(), "no progress");
        Some(base)
    }

    /// How tokens of a sequence are drawn.
    pub(crate) fn sampling(&self, id: usize) -> &crate::SamplingParams {
        &self.groups[self.sequences[id].group].request.sampling
    }

    /// The weights of a sequence.
    pub(crate) fn model_of(&self, id: usize) -> Option<ModelVersion> {
        self.sequences[id].model.or(self.current)
    }

    fn base_of(&self, id: usize) -> Option<u64> {
        self.model_of(id).map(|model| model.base)
    }

    /// The rows that `id` may have of `budget`.
    fn chunk(&self, id: usize, budget: usize) -> Option<Chunk> {
        let s = &self.sequences[id];
        let wanted = s.uncomputed();
        let given = wanted.min(budget);
        (given > 0 && (self.limits.chunked_prefill || given == wanted)).then_some(Chunk {
            sequence: id,
            from: s.computed,
            to: s.computed + given,
        })
    }

    /// The completions of a group that wait for their first token: the row that ends their prompt gives it to all of
    /// them. A prompt that is computed a second time gives nothing to completions that have begun.
    pub(crate) fn not_begun(&self, group: usize) -> impl Iterator<Item = usize> {
        let waits =
            |id: usize| self.sequences[id].state == State::Waiting && self.sequences[id].completion().is_empty();
        self.groups[group].members.iter().copied().filter(move |&member| waits(member))
    }

    /// The sequence that is meant, unless it has left.
    pub(crate) fn find(&self, id: SequenceId) -> Option<usize> {
        self.sequences.get(id.index).filter(|s| s.serial == id.serial).map(|_| id.index)
    }

    /// The paused completions, the one that waits longest first.
    pub(crate) fn paused(&self) -> &[usize] {
        &self.paused
    }
}
