//! Assigns KV-cache pages to sequences, shares them, and takes them away when they run out.
//!
//! When pages run out, they are taken first from sequences that are not running: paused ones, then waiting ones that
//! were extended. Then the youngest running sequence is preempted. All of these are recomputed later with the same
//! bits, or found in the prefix cache.

use super::{Chunk, Scheduler};
use crate::prefix::ROOT;
use crate::sequence::{Role, State};
use model::kv::BLOCK;

impl Scheduler {
    /// Gives the running sequence `id` pages for `tokens` tokens, taking pages from other sequences until there are
    /// enough. Returns false if `id` itself was preempted.
    pub(super) fn make_room(&mut self, id: usize, tokens: usize) -> bool {
        loop {
            if self.grow(id, tokens) {
                return true;
            }
            if self.evict_idle(id) {
                continue;
            }
            let youngest = self.running.pop().expect("`id` must be running");
            self.preempt(youngest);
            self.counters.preemptions += 1;
            if youngest == id {
                return false;
            }
        }
    }

    /// Gives sequence `id` pages for `tokens` tokens, if enough are free.
    fn grow(&mut self, id: usize, tokens: usize) -> bool {
        let s = &mut self.sequences[id];
        let missing = tokens.div_ceil(BLOCK).saturating_sub(s.blocks.len());
        if missing > self.blocks.available() {
            return false;
        }
        s.blocks.extend((0..missing).filter_map(|_| self.blocks.take()));
        true
    }

    /// Frees the pages of sequence `id`.
    pub(super) fn drop_pages(&mut self, id: usize) {
        let s = &mut self.sequences[id];
        self.blocks.release(&mut s.blocks);
        s.forget_pages();
    }

    /// Removes sequence `id` from the batch and puts it at the front of the queue, to be recomputed.
    pub(super) fn preempt(&mut self, id: usize) {
        self.drop_pages(id);
        self.sequences[id].state = State::Waiting;
        self.waiting.push_front(id);
    }

    /// Assigns pages and rows to the waiting sequence `id`: pages that it has kept, pages that other sequences have
    /// computed for the same tokens, and new ones. If there are too few, returns `None` and changes nothing.
    pub(super) fn admit(&mut self, id: usize, budget: usize, copies: &mut Vec<(u32, u32)>) -> Option<Chunk> {
        let (kept, before) = (!self.sequences[id].blocks.is_empty(), copies.len());
        let cached = if kept { Some(0) } else { self.share_prefix(id, copies) };
        if let Some(cached) = cached
            && let Some(chunk) = self.chunk(id, budget)
            && self.grow(id, chunk.to)
        {
            self.counters.cached_tokens += cached as u64;
            // Later, the group finds its own pages, too.
            let s = &self.sequences[id];
            self.groups[s.group].cached_tokens.get_or_insert(cached.min(s.prompt_len));
            return Some(chunk);
        }
        if !kept {
            self.drop_pages(id);
            copies.truncate(before);
        }
        None
    }

    /// The computed prompt whose pages completion `id` may share, if any.
    fn held_prompt(&self, id: usize) -> Option<usize> {
        let s = &self.sequences[id];
        let prompt = self.groups[s.group].prompt.filter(|&p| p != id)?;
        let held = &self.sequences[prompt];
        (held.state == State::Held && held.model == s.model).then_some(prompt)
    }

    /// Gives sequence `id`, which has no pages, existing pages for the beginning of its tokens: either full pages of
    /// the prefix cache, or the pages of its group's computed prompt with a copy of the last one, whichever covers more
    /// tokens. Returns the number of tokens from the cache; `None` without a free page for the copy.
    fn share_prefix(&mut self, id: usize, copies: &mut Vec<(u32, u32)>) -> Option<usize> {
        let held = self.held_prompt(id);
        let shared = held.map_or(0, |p| self.sequences[p].tokens.len());
        if self.blocks.prefix.is_on() {
            self.share_cached(id);
            let cached = self.sequences[id].computed;
            if cached >= shared {
                return Some(cached);
            }
            self.drop_pages(id);
        }
        let Some(prompt) = held else { return Some(0) };
        let full = shared / BLOCK;
        let (source, s) = self.sequences.get2_mut(prompt, id).expect("two sequences");
        s.blocks.extend(source.blocks[..full].iter().map(|&block| self.blocks.share(block)));
        (s.computed, s.cached, s.node) = (shared, source.cached.min(full), source.node);
        if !shared.is_multiple_of(BLOCK) {
            let own = self.blocks.take()?;
            copies.push((source.blocks[full], own));
            s.blocks.push(own);
        }
        Some(0)
    }

    /// Gives sequence `id` the cached pages of its tokens. The last token is always computed, because its row gives the
    /// next token.
    fn share_cached(&mut self, id: usize) {
        let Some(model) = self.model_of(id) else { return };
        let s = &mut self.sequences[id];
        let group = &self.groups[s.group];
        // The log-probability of a prompt token needs the row before it, so the prompt must be computed.
        if group.request.sampling.prompt_logprobs && group.prompt_logps.len() + 1 < s.prompt_len {
            return;
        }
        let most = s.known().len().saturating_sub(1) / BLOCK;
        let mut node = ROOT;
        while s.blocks.len() < most {
            let at = s.blocks.len() * BLOCK;
            let Some((page, next)) = self.blocks.prefix.find(node, model, &s.tokens[at..at + BLOCK]) else { break };
            s.blocks.push(self.blocks.share(page));
            node = next;
        }
        (s.computed, s.cached, s.node) = (s.blocks.len() * BLOCK, s.blocks.len(), node);
    }

    /// Adds the full pages of sequence `id` to the prefix cache.
    pub(super) fn cache_pages(&mut self, id: usize) {
        let Some(model) = self.model_of(id).filter(|_| self.blocks.prefix.is_on()) else { return };
        let s = &mut self.sequences[id];
        let full = s.computed.min(s.known().len()) / BLOCK;
        while s.cached < full {
            let at = s.cached * BLOCK;
            s.node = self.blocks.prefix.insert(s.blocks[s.cached], s.node, model, &s.tokens[at..at + BLOCK]);
            s.cached += 1;
        }
    }

    /// Frees the pages of computed prompts, whose completions then compute the prompt themselves. Returns false if
    /// there were none.
    pub(super) fn evict_prompts(&mut self) -> bool {
        let any = !self.held.is_empty();
        while let Some(&prompt) = self.held.last() {
            self.remove_prompt(self.sequences[prompt].group);
        }
        any
    }

    /// Frees the pages of one sequence other than `id` that is not running: the sequence that has been paused longest,
    /// or else the last waiting one that was extended. Returns false if there is none.
    pub(super) fn evict_idle(&mut self, id: usize) -> bool {
        let with_pages = |s: &usize| *s != id && !self.sequences[*s].blocks.is_empty();
        let paused = self.paused.iter().copied().find(with_pages);
        let idle = paused.or_else(|| self.extended.iter().rev().copied().find(with_pages));
        if let Some(idle) = idle {
            self.drop_pages(idle);
        }
        idle.is_some()
    }

    /// Called when the current weights change. Drops the stale keys and values of all sequences that use them.
    pub(crate) fn invalidate(&mut self) {
        for at in (0..self.running.len()).rev() {
            if self.sequences[self.running[at]].model.is_none() {
                let id = self.running.remove(at);
                self.preempt(id);
            }
        }
        for at in 0..self.paused.len() + self.extended.len() {
            let id = self.paused.get(at).copied().unwrap_or_else(|| self.extended[at - self.paused.len()]);
            if self.sequences[id].model.is_none() {
                self.drop_pages(id);
            }
        }
        for at in (0..self.held.len()).rev() {
            if self.sequences[self.held[at]].model.is_none() {
                self.remove_prompt(self.sequences[self.held[at]].group);
            }
        }
    }

    /// Handles prompts in `chunks` that are now completely computed: their pages are kept for sharing, and their
    /// completions, whose first tokens were drawn, move to the front of the queue.
    pub(crate) fn share_prompts(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            let Some(s) = self.sequences.get(chunk.sequence) else { continue };
            if s.role == Role::Prompt && s.uncomputed() == 0 {
                self.hold(chunk.sequence);
            }
        }
    }

    fn hold(&mut self, id: usize) {
        self.running.retain(|&r| r != id);
        self.sequences[id].state = State::Held;
        self.held.push(id);
        let group = &self.groups[self.sequences[id].group];
        for &member in group.members.iter().rev() {
            if self.sequences[member].state == State::Waiting {
                self.waiting.push_front(member);
            }
        }
        if group.unfinished == 0 {
            self.remove_prompt(self.sequences[id].group);
        }
    }

    /// Removes the sequence that computes a group's prompt, and frees its pages.
    pub(super) fn remove_prompt(&mut self, group: usize) {
        if let Some(prompt) = self.groups[group].prompt.take() {
            self.blocks.release(&mut self.sequences[prompt].blocks);
            self.remove(prompt);
        }
    }
}
