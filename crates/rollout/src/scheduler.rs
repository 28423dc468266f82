//! Who runs in a step: running sequences first, then waiting ones while rows, seats and pages last; the youngest is
//! preempted when pages run out.
//!
//! A sequence's bits do not depend on any of this. It knows no weights and no tensor: copies of pages that a fork asks
//! for are listed for the engine to make.

use crate::blocks::BlockPool;
use crate::request::{FinishReason, RolloutGroup};
use crate::sequence::{Draw, Role, Sequence, State};
use crate::stop::StopCheck;
use model::kv::BLOCK;
use std::collections::VecDeque;
use std::sync::Arc;

/// A prompt and its completions.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) request: Arc<crate::Request>,
    /// The sequence that computes the prompt once, if prompts are shared.
    pub(crate) prompt: Option<usize>,
    /// Its completions.
    pub(crate) members: Vec<usize>,
    /// Completions that have not ended.
    pub(crate) unfinished: usize,
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

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) groups: Vec<Group>,
    pub(crate) blocks: BlockPool,
    running: Vec<usize>,
    waiting: VecDeque<usize>,
    /// Groups that ended and were not yet given away.
    finished: Vec<usize>,
    limits: Limits,
    /// Sequences preempted so far because pages ran out.
    pub(crate) preemptions: u64,
}

impl Scheduler {
    pub(crate) fn new(blocks: usize, limits: Limits) -> Scheduler {
        Scheduler {
            sequences: Vec::new(),
            groups: Vec::new(),
            blocks: BlockPool::new(blocks),
            running: Vec::new(),
            waiting: VecDeque::new(),
            finished: Vec::new(),
            limits,
            preemptions: 0,
        }
    }

    /// Takes a group in: its prompt first if it is shared, else all completions by themselves.
    pub(crate) fn submit(&mut self, request: Arc<crate::Request>, sharing: bool) {
        let group = self.groups.len();
        let room = self.limits.max_model_len.saturating_sub(request.prompt.ids.len());
        let room = request.sampling.max_new_tokens.min(room);
        let first = self.sequences.len();
        let prompt = &request.prompt.ids;
        let completion = |g| Sequence::new(group, Role::Completion(g as u32), prompt, room);
        self.sequences.extend((0..request.num_generations).map(completion));
        let members: Vec<usize> = (first..self.sequences.len()).collect();
        let prompt = (sharing && members.len() > 1).then(|| {
            self.sequences.push(Sequence::new(group, Role::Prompt, prompt, 0));
            self.sequences.len() - 1
        });
        match prompt {
            Some(prompt) => self.waiting.push_back(prompt),
            None => self.waiting.extend(&members),
        }
        let unfinished = members.len();
        self.groups.push(Group { request, prompt, members, unfinished });
    }

    /// Whether nothing runs and nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Forgets all sequences and groups, finished or not, and takes their pages back.
    pub(crate) fn clear(&mut self) {
        for s in &mut self.sequences {
            self.blocks.release(&mut s.blocks);
        }
        self.sequences.clear();
        self.groups.clear();
        self.running.clear();
        self.waiting.clear();
        self.finished.clear();
    }

    /// Chooses the rows of the next step into `chunks`, and lists in `copies` the pages to copy before it (from, to).
    pub(crate) fn schedule(&mut self, chunks: &mut Vec<Chunk>, copies: &mut Vec<(u32, u32)>) {
        chunks.clear();
        copies.clear();
        let mut rows = 0;
        let mut next = 0;
        while next < self.running.len() {
            let id = self.running[next];
            let Some(chunk) = self.chunk(id, self.limits.max_rows - rows) else {
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
            let Some(&id) = self.waiting.front() else { break };
            let Some(chunk) = self.admit(id, self.limits.max_rows - rows, copies) else {
                if self.running.is_empty() && (self.evict_prompts() || self.evict_paused()) {
                    continue;
                }
                break;
            };
            self.waiting.pop_front();
            self.sequences[id].state = State::Running;
            self.running.push(id);
            rows += chunk.to - chunk.from;
            chunks.push(chunk);
        }
        debug_assert!(!chunks.is_empty() || self.is_idle(), "no progress");
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

    /// Gives `id`, which runs, pages for `tokens` tokens, preempting the youngest until there are enough. False if it
    /// was preempted itself.
    fn make_room(&mut self, id: usize, tokens: usize) -> bool {
        loop {
            if self.grow(id, tokens) {
                return true;
            }
            let youngest = self.running.pop().expect("`id` runs");
            self.preempt(youngest);
            self.preemptions += 1;
            if youngest == id {
                return false;
            }
        }
    }

    /// Pages for `tokens` tokens, if there are enough.
    fn grow(&mut self, id: usize, tokens: usize) -> bool {
        let s = &mut self.sequences[id];
        let missing = tokens.div_ceil(BLOCK).saturating_sub(s.blocks.len());
        if missing > self.blocks.available() {
            return false;
        }
        s.blocks.extend((0..missing).filter_map(|_| self.blocks.take()));
        true
    }

    /// Out of the batch, to be computed again: first in the queue.
    fn preempt(&mut self, id: usize) {
        let s = &mut self.sequences[id];
        self.blocks.release(&mut s.blocks);
        s.computed = 0;
        s.state = State::Waiting;
        self.waiting.push_front(id);
    }

    /// Pages and rows for `id`, which waits: the shared ones of its computed prompt, a copy of the one that the prompt
    /// ends in, and new ones. `None`, and nothing changed, if there are too few.
    fn admit(&mut self, id: usize, budget: usize, copies: &mut Vec<(u32, u32)>) -> Option<Chunk> {
        let prompt = self.groups[self.sequences[id].group].prompt;
        let held = prompt.filter(|&p| p != id && self.sequences[p].state == State::Held);
        let shared = held.map_or(0, |p| self.sequences[p].tokens.len());
        self.sequences[id].computed = shared;
        let chunk = self.chunk(id, budget);
        let needed = chunk.map_or(0, |c| c.to.div_ceil(BLOCK) - shared / BLOCK);
        let Some(chunk) = chunk.filter(|_| needed <= self.blocks.available()) else {
            self.sequences[id].computed = 0;
            return None;
        };
        if let Some(prompt) = held {
            for i in 0..shared.div_ceil(BLOCK) {
                let from = self.sequences[prompt].blocks[i];
                let own = if (i + 1) * BLOCK <= shared {
                    self.blocks.share(from)
                } else {
                    let to = self.blocks.take().expect("counted above");
                    copies.push((from, to));
                    to
                };
                self.sequences[id].blocks.push(own);
            }
        }
        let grown = self.grow(id, chunk.to);
        debug_assert!(grown);
        Some(chunk)
    }

    /// Gives back the pages of computed prompts; their completions compute the prompt for themselves from now on. False
    /// if there were none.
    fn evict_prompts(&mut self) -> bool {
        let mut any = false;
        for group in &mut self.groups {
            if let Some(prompt) = group.prompt
                && self.sequences[prompt].state == State::Held
            {
                self.blocks.release(&mut self.sequences[prompt].blocks);
                self.sequences[prompt].state = State::Finished(FinishReason::Stop);
                group.prompt = None;
                any = true;
            }
        }
        any
    }

    /// Gives back the pages of paused completions, which are computed again when they go on. False if there were none.
    fn evict_paused(&mut self) -> bool {
        let mut any = false;
        for s in self.sequences.iter_mut().filter(|s| s.state == State::Paused && !s.blocks.is_empty()) {
            self.blocks.release(&mut s.blocks);
            s.computed = 0;
            any = true;
        }
        any
    }

    /// Every key and value is stale: all sequences are computed again.
    pub(crate) fn invalidate(&mut self) {
        while let Some(id) = self.running.pop() {
            self.preempt(id);
        }
        self.evict_paused();
        self.evict_prompts();
    }

    /// The completions of a group that wait for their first token: the row that ends their prompt gives it to all of
    /// them. A prompt that is computed a second time gives nothing to completions that have begun.
    pub(crate) fn not_begun(&self, group: usize) -> impl Iterator<Item = usize> {
        let waits =
            |id: usize| self.sequences[id].state == State::Waiting && self.sequences[id].completion().is_empty();
        self.groups[group].members.iter().copied().filter(move |&member| waits(member))
    }

    /// The keys and values of `chunks` are in their pages.
    pub(crate) fn mark_computed(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            self.sequences[chunk.sequence].computed = chunk.to;
        }
    }

    /// Appends the tokens that were drawn; ends or pauses the completions that are done with them.
    pub(crate) fn postprocess(&mut self, draws: &[Draw], ids: &[u32], logps: &[f32], version: u64, stop: &StopCheck) {
        for (draw, (&token, &logp)) in draws.iter().zip(ids.iter().zip(logps)) {
            let id = draw.sequence;
            let s = &mut self.sequences[id];
            s.push(token, logp, true, version);
            let request = &self.groups[s.group].request;
            if stop.stops(&request.sampling, &s.tokens) {
                match request.pause_on_stop {
                    true => self.leave(id, State::Paused),
                    false => self.finish(id, FinishReason::Stop),
                }
            } else if self.is_full(id) {
                self.finish(id, FinishReason::Length);
            }
        }
    }

    fn is_full(&self, id: usize) -> bool {
        let s = &self.sequences[id];
        let most = self.groups[s.group].request.sampling.max_new_tokens;
        s.completion().len() >= most || s.tokens.len() >= self.limits.max_model_len
    }

    /// Prompts among `chunks` that are whole now: their pages are held, and their completions, whose first tokens were
    /// drawn, wait next.
    pub(crate) fn share_prompts(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            let s = &self.sequences[chunk.sequence];
            if s.role == Role::Prompt && s.uncomputed() == 0 {
                self.hold(chunk.sequence);
            }
        }
    }

    fn hold(&mut self, id: usize) {
        self.running.retain(|&r| r != id);
        self.sequences[id].state = State::Held;
        let group = &self.groups[self.sequences[id].group];
        for &member in group.members.iter().rev() {
            if self.sequences[member].state == State::Waiting {
                self.waiting.push_front(member);
            }
        }
        self.release_prompt_if_done(self.sequences[id].group);
    }

    fn finish(&mut self, id: usize, reason: FinishReason) {
        self.leave(id, State::Finished(reason));
        self.blocks.release(&mut self.sequences[id].blocks);
        let group = self.sequences[id].group;
        self.groups[group].unfinished -= 1;
        if self.groups[group].unfinished == 0 {
            self.finished.push(group);
        }
        self.release_prompt_if_done(group);
    }

    /// A paused completion goes on after `tokens` that were not sampled, or ends if they fill it. It keeps no pages
    /// while it waits for a seat.
    pub(crate) fn extend(&mut self, id: usize, tokens: &[u32], version: u64) {
        let s = &mut self.sequences[id];
        assert_eq!(s.state, State::Paused, "only a paused completion can be extended");
        for &token in tokens {
            s.push(token, 0.0, false, version);
        }
        match self.is_full(id) {
            true => self.finish(id, FinishReason::Length),
            false => self.preempt(id),
        }
    }

    pub(crate) fn finish_paused(&mut self, id: usize) {
        assert_eq!(self.sequences[id].state, State::Paused, "only a paused completion waits to be ended");
        self.finish(id, FinishReason::Stop);
    }

    /// The groups that ended since the last call, each with its place among those submitted.
    pub(crate) fn take_finished(&mut self) -> Vec<(usize, RolloutGroup)> {
        let Scheduler { finished, sequences, groups, .. } = self;
        let take = |index: usize| {
            let Group { request, members, .. } = &groups[index];
            let completions = members.iter().map(|&id| sequences[id].take_completion()).collect();
            (index, RolloutGroup { id: request.id, prompt: request.prompt.clone(), completions })
        };
        finished.drain(..).map(take).collect()
    }

    fn leave(&mut self, id: usize, state: State) {
        self.running.retain(|&r| r != id);
        self.sequences[id].state = state;
    }

    fn release_prompt_if_done(&mut self, group: usize) {
        let group = &mut self.groups[group];
        if group.unfinished == 0
            && let Some(prompt) = group.prompt
            && self.sequences[prompt].state == State::Held
        {
            self.blocks.release(&mut self.sequences[prompt].blocks);
            self.sequences[prompt].state = State::Finished(FinishReason::Stop);
        }
    }
}

#[cfg(test)]
mod tests;
