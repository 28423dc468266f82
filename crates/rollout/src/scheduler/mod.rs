//! The scheduler chooses the sequences of a step: first running ones, then waiting ones, as long as there are free
//! rows, batch slots and KV-cache pages. When the pages run out, the youngest sequence is preempted.
//!
//! All sequences of a step use one version of the base weights: that of the oldest running sequence, or of the first
//! waiting one. Adapters may differ between sequences. The bits of a sequence do not depend on any of these choices.
//! The scheduler handles neither weights nor tensors: it lists the KV-cache pages that the engine must copy.
//!
//! `pages.rs` assigns and takes pages, `speculate.rs` guesses draft tokens, `outcome.rs` appends the drawn tokens and
//! ends, pauses and removes sequences.

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
use crate::request::{Drawn, Request, RequestId, RolloutGroup, SequenceId};
use crate::sequence::{Alternatives, Role, Sequence, State};
use model::{Capacity, Updates};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::collections::VecDeque;
use std::ops::Sub;
use std::sync::Arc;
use std::time::Duration;

/// A group in the scheduler: a prompt and its completions.
#[derive(Debug)]
pub(crate) struct Group {
    /// The serial number of the group. It is never reused.
    pub(crate) serial: u64,
    pub(crate) request: Arc<Request>,
    /// The sequence that computes the prompt once, while needed; `None` if prompts are not shared.
    pub(crate) prompt: Option<usize>,
    /// The sequences of the group's completions.
    pub(crate) members: Vec<usize>,
    /// The number of completions that have not ended.
    pub(crate) unfinished: usize,
    /// The log-probabilities computed so far for the prompt's tokens, except the first. Empty unless requested.
    pub(crate) prompt_logps: Vec<f32>,
    pub(crate) prompt_top: Alternatives,
    /// The completion of an earlier request with this prompt, from which draft tokens are guessed.
    pub(crate) earlier: Option<Arc<[u32]>>,
    /// The number of the prompt's tokens that were in the prefix cache when the group began; `None` before.
    pub(crate) cached_tokens: Option<usize>,
}

/// A group whose completions have all ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) request: RequestId,
    pub(crate) group: RolloutGroup,
    /// The number of the prompt's tokens that were in the prefix cache.
    pub(crate) cached_tokens: usize,
}

impl Group {
    /// The largest number of rows that the group needs.
    pub(crate) fn rows_needed(&self, max_model_len: usize) -> usize {
        let lengths = vec![self.request.most_new_tokens(max_model_len); self.members.len()];
        Capacity::for_group(self.request.prompt.ids.len(), &lengths, self.prompt.is_some()).tokens
    }
}

/// The rows of one sequence in a step: its tokens `from..to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) sequence: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Chunk {
    pub(crate) fn rows(&self) -> usize {
        self.to - self.from
    }
}

/// The maximum sizes of a step and of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_num_seqs: usize,
    /// The maximum number of rows (tokens) in a step.
    pub(crate) max_rows: usize,
    /// The maximum number of tokens of a sequence.
    pub(crate) max_model_len: usize,
    /// Whether a prompt may be computed over several steps.
    pub(crate) chunked_prefill: bool,
}

/// Counts and times of the engine's work so far.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of computed tokens: the rows of all steps.
    pub computed_tokens: u64,
    /// The number of tokens whose keys and values came from the prefix cache.
    pub cached_tokens: u64,
    /// The number of times that a sequence was preempted because the KV cache was full.
    pub preemptions: u64,
    /// The number of prefill steps: those that computed part of a prompt, or recomputed a preempted sequence.
    pub prefill_steps: u64,
    /// Time of the model's forward passes in prefill steps.
    pub prefill_time: Duration,
    /// The number of decode steps: all other steps, which compute the last token of each sequence.
    pub decode_steps: u64,
    /// Time of the model's forward passes in decode steps.
    pub decode_time: Duration,
    /// The number of sequences, summed over all decode steps.
    pub decode_passes: u64,
    /// The number of tokens drawn in decode steps.
    pub decoded_tokens: u64,
    /// Time of sampling, in both kinds of steps.
    pub sampling_time: Duration,
    /// The number of draft tokens that were verified.
    pub drafted_tokens: u64,
    /// The number of draft tokens that were accepted.
    pub accepted_tokens: u64,
    /// The number of times that a sequence verified draft tokens in a step.
    pub draft_passes: u64,
    /// Time of decode steps with draft tokens: forward passes and sampling.
    pub draft_time: Duration,
    /// The estimated time of drawing the same tokens without draft tokens, from measured steps without them.
    pub undrafted_time: Duration,
}

impl Counters {
    /// Counts a step whose forward pass took `time`.
    pub(crate) fn ran(&mut self, is_prefill: bool, time: Duration) {
        let (steps, total) = if is_prefill {
            (&mut self.prefill_steps, &mut self.prefill_time)
        } else {
            (&mut self.decode_steps, &mut self.decode_time)
        };
        *steps += 1;
        *total += time;
    }
}

impl Counters {
    /// Adds the counts, but not the times, of an engine that ran at the same time.
    pub fn add_counts(&mut self, other: &Counters) {
        self.computed_tokens += other.computed_tokens;
        self.cached_tokens += other.cached_tokens;
        self.preemptions += other.preemptions;
        self.prefill_steps += other.prefill_steps;
        self.decode_steps += other.decode_steps;
        self.decode_passes += other.decode_passes;
        self.decoded_tokens += other.decoded_tokens;
        self.drafted_tokens += other.drafted_tokens;
        self.accepted_tokens += other.accepted_tokens;
        self.draft_passes += other.draft_passes;
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
    /// The version of the current weights, for sequences that name no version.
    pub(crate) current: Option<ModelVersion>,
    running: Vec<usize>,
    /// Sequences that were paused and then extended, and may still have their KV-cache pages. They precede the waiting
    /// sequences.
    extended: VecDeque<usize>,
    waiting: VecDeque<usize>,
    /// Computed prompts whose pages are shared by completions.
    held: Vec<usize>,
    /// Paused sequences, in the order in which they were paused.
    paused: Vec<usize>,
    /// Groups that have ended but have not been returned yet.
    finished: Vec<usize>,
    serial: u64,
    limits: Limits,
    pub(crate) counters: Counters,
    speculative: Speculative,
    /// The index for draft tokens; `None` if speculative decoding is off.
    drafts: Option<Box<Drafts>>,
    /// The measured time of decode steps, which decides how many draft tokens are guessed.
    cost: StepCost,
    balance: Balance,
    /// Completions of earlier requests, from which draft tokens are guessed.
    pub(crate) earlier: Earlier,
    /// The tokens that the last step drew.
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

    /// Adds a group to the queue: with `sharing` its prompt first, otherwise each completion with the prompt.
    pub(crate) fn submit(&mut self, request: Arc<Request>, sharing: bool) -> RequestId {
        let group = self.groups.vacant_key();
        let room = request.most_new_tokens(self.limits.max_model_len);
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
        let cached_tokens = None;
        let group =
            Group { serial, request, prompt, members, unfinished, prompt_logps, prompt_top, earlier, cached_tokens };
        self.groups.insert(group);
        id
    }

    /// Whether no sequence is running or waiting.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.extended.is_empty() && self.waiting.is_empty()
    }

    /// Fills `chunks` with the rows of the next step, and `copies` with the pages (from, to) to copy before it. Returns
    /// the version of the base weights for the step; `None` if the sequences use the current weights but there are
    /// none.
    pub(crate) fn schedule(&mut self, chunks: &mut Vec<Chunk>, copies: &mut Vec<(u32, u32)>) -> Option<Updates> {
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
        debug_assert!(!chunks.is_empty(), "a step must have at least one row");
        Some(base)
    }

    /// The sampling parameters of a sequence.
    pub(crate) fn sampling(&self, id: usize) -> &crate::SamplingParams {
        &self.groups[self.sequences[id].group].request.sampling
    }

    /// The version of the weights of a sequence.
    pub(crate) fn model_of(&self, id: usize) -> Option<ModelVersion> {
        self.sequences[id].model.or(self.current)
    }

    fn base_of(&self, id: usize) -> Option<Updates> {
        self.model_of(id).map(|model| model.base)
    }

    /// The rows of sequence `id`, if `budget` rows are left in the step.
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

    /// The completions of a group that have no token yet. Their first tokens are all drawn from the last row of the
    /// prompt. If a prompt is computed a second time, completions that have begun are skipped.
    pub(crate) fn not_begun(&self, group: usize) -> impl Iterator<Item = usize> {
        let waits =
            |id: usize| self.sequences[id].state == State::Waiting && self.sequences[id].completion().is_empty();
        self.groups[group].members.iter().copied().filter(move |&member| waits(member))
    }

    /// The index of the sequence with this id, unless it was removed.
    pub(crate) fn find(&self, id: SequenceId) -> Option<usize> {
        self.sequences.get(id.index).filter(|s| s.serial == id.serial).map(|_| id.index)
    }

    /// The groups that have ended but have not been returned yet.
    pub(crate) fn finished(&self) -> &[usize] {
        &self.finished
    }

    /// The maximum number of tokens of a sequence.
    pub(crate) fn max_model_len(&self) -> usize {
        self.limits.max_model_len
    }

    /// The paused completions, in the order in which they were paused.
    pub(crate) fn paused(&self) -> &[usize] {
        &self.paused
    }
}
