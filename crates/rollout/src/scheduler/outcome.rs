//! Appends drawn tokens to sequences, and ends, pauses, extends and removes them.

use super::{Chunk, Finished, Group, Scheduler};
use crate::models::ModelVersion;
use crate::request::{Completion, Drawn, FinishReason, RequestId, RolloutGroup, SequenceId};
use crate::sequence::{Draw, Sampled, State};
use crate::stop::StopCheck;
use model::columns::SAMPLER_LOGPS;
use model::{Columns, Updates};

impl Scheduler {
    /// Records that the keys and values of `chunks` were written to their pages.
    pub(crate) fn mark_computed(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            self.sequences[chunk.sequence].computed = chunk.to;
            self.counters.computed_tokens += (chunk.to - chunk.from) as u64;
            self.cache_pages(chunk.sequence);
        }
    }

    /// Counts the draft tokens that `draws` verify, and returns their number.
    pub(crate) fn count_drafts(&mut self, draws: &[Draw]) -> u64 {
        let before = self.counters.drafted_tokens;
        for draw in draws {
            let s = &self.sequences[draw.sequence];
            self.counters.drafted_tokens += u64::from(draw.at < s.tokens.len());
            self.counters.draft_passes += u64::from(s.drafted > 0 && draw.at == s.known().len());
        }
        self.counters.drafted_tokens - before
    }

    /// Appends the drawn tokens, and ends or pauses completions that are done. Tokens drawn after a wrong draft token,
    /// or after the end of a completion, are dropped.
    pub(crate) fn postprocess(&mut self, draws: &[Draw], sampled: Sampled<'_>, stop: &StopCheck) {
        let Sampled { ids, records, alternatives } = sampled;
        for (i, (draw, (&token, &record))) in draws.iter().zip(ids.iter().zip(records)).enumerate() {
            let id = draw.sequence;
            let version = self.model_of(id).map_or(Updates(0), ModelVersion::trained);
            let s = &mut self.sequences[id];
            let over = matches!(s.state, State::Paused | State::Finished(_));
            // For a running sequence, the draw comes from the row of a known token; other sequences draw from the last
            // row of their group's prompt.
            let known = draw.at == s.known().len() && (s.state != State::Running || draw.at <= s.computed);
            if over || !known {
                continue;
            }
            let guessed = s.push(token, Some(record), version);
            self.counters.accepted_tokens += u64::from(guessed);
            if let Some((ids, logps)) = alternatives.get(i) {
                s.top.push(ids, logps);
            }
            let group = &self.groups[s.group];
            let mut drawn = Drawn {
                request: RequestId { index: s.group, serial: group.serial },
                sequence: SequenceId { index: id, serial: s.serial },
                group: group.request.group,
                generation: s.generation(),
                index: draw.at - s.prompt_len,
                id: token,
                logp: record.logp,
                finish_reason: None,
            };
            if stop.stops(&group.request.sampling, s.known()) {
                if group.request.pause_on_stop { self.pause(id) } else { self.finish(id, FinishReason::Stop) }
            } else if self.is_full(id) {
                self.finish(id, FinishReason::Length);
            } else if self.tokens_wanted(id) == 0 {
                self.finish(id, FinishReason::Unfinished);
            }
            if let State::Finished(reason) = self.sequences[id].state {
                drawn.finish_reason = Some(reason);
            }
            self.drawn.push(drawn);
        }
    }

    fn is_full(&self, id: usize) -> bool {
        let s = &self.sequences[id];
        let most = self.groups[s.group].request.sampling.max_new_tokens;
        s.completion().len() >= most || s.known().len() >= self.limits.max_model_len
    }

    /// The number of tokens at which the request returns completion `id` as unfinished.
    fn tokens_wanted(&self, id: usize) -> usize {
        let s = &self.sequences[id];
        let until = self.groups[s.group].request.until;
        until.map_or(usize::MAX, |until| until.saturating_sub(s.completion().len()))
    }

    pub(super) fn pause(&mut self, id: usize) {
        self.sequences[id].reject_drafts();
        self.cache_pages(id);
        self.leave(id, State::Paused);
        self.paused.push(id);
    }

    pub(super) fn finish(&mut self, id: usize, reason: FinishReason) {
        self.sequences[id].reject_drafts();
        self.cache_pages(id);
        self.leave(id, State::Finished(reason));
        self.blocks.release(&mut self.sequences[id].blocks);
        let group = self.sequences[id].group;
        self.groups[group].unfinished -= 1;
        if self.groups[group].unfinished == 0 {
            self.finished.push(group);
            if self.groups[group].prompt.is_some_and(|prompt| self.sequences[prompt].state == State::Held) {
                self.remove_prompt(group);
            }
        }
    }

    /// Appends `tokens`, which were not sampled, to a paused completion, and resumes it, or ends it if it is then full.
    /// A completion that waits for a slot keeps its KV-cache pages unless other sequences need them.
    pub(crate) fn extend(&mut self, id: usize, tokens: &[u32]) {
        let version = self.model_of(id).map_or(Updates(0), ModelVersion::trained);
        let s = &mut self.sequences[id];
        assert_eq!(s.state, State::Paused, "only a paused completion can be extended");
        for &token in tokens {
            s.push(token, None, version);
        }
        if self.is_full(id) {
            self.finish(id, FinishReason::Length)
        } else {
            self.leave(id, State::Waiting);
            self.extended.push_back(id);
        }
    }

    pub(crate) fn finish_paused(&mut self, id: usize) {
        assert_eq!(self.sequences[id].state, State::Paused, "only a paused completion can be finished");
        self.finish(id, FinishReason::Stop);
    }

    /// Switches a completion to the weights of version `model` from its next token on.
    pub(crate) fn set_model(&mut self, id: usize, model: ModelVersion) {
        if self.sequences[id].model == Some(model) {
            return;
        }
        self.sequences[id].model = Some(model);
        match self.sequences[id].state {
            State::Running => {
                self.running.retain(|&r| r != id);
                self.preempt(id);
            }
            _ => self.drop_pages(id),
        }
    }

    /// Sets draft tokens, which the next step verifies, for a completion that is running or waiting. Tokens beyond the
    /// available room are dropped.
    pub(crate) fn draft(&mut self, id: usize, tokens: &[u32]) {
        let wanted = self.tokens_wanted(id);
        let s = &mut self.sequences[id];
        if !matches!(s.state, State::Running | State::Waiting) || s.completion().is_empty() {
            return;
        }
        s.reject_drafts();
        let sampling = &self.groups[s.group].request.sampling;
        let room = (sampling.max_new_tokens - s.completion().len()).min(self.limits.max_model_len - s.known().len());
        let room = room.min(wanted);
        // The last token of a completion is always drawn.
        let tokens = &tokens[..tokens.len().min(room.saturating_sub(1))];
        s.tokens.extend_from_slice(tokens);
        s.drafted = tokens.len();
    }

    /// The groups that have ended since the last call, for requests that `takes` accepts.
    pub(crate) fn take_finished(&mut self, takes: impl Fn(RequestId) -> bool) -> Vec<Finished> {
        let Scheduler { finished, groups, .. } = self;
        let id = |index: usize| RequestId { index, serial: groups[index].serial };
        // If no group has ended, this allocates nothing.
        let taken: Vec<RequestId> = finished.extract_if(.., |index| takes(id(*index))).map(id).collect();
        taken.into_iter().map(|id| self.take_group(id)).collect()
    }

    fn take_group(&mut self, id: RequestId) -> Finished {
        self.remove_prompt(id.index);
        let Group { request, members, prompt_logps, prompt_top, cached_tokens, .. } = self.groups.remove(id.index);
        let entropies = request.sampling.entropies;
        let completions: Vec<Completion> =
            members.iter().map(|&id| self.sequences.remove(id).into_completion(entropies)).collect();
        if self.drafts.is_some() {
            self.earlier.remember(&request.prompt.ids, completions.iter().map(|completion| &completion.ids[..]));
        }
        let mut prompt_columns = Columns::default();
        if request.sampling.prompt_logprobs {
            prompt_columns.set(SAMPLER_LOGPS, prompt_logps);
            prompt_top.into_columns(&mut prompt_columns);
        }
        let group = RolloutGroup { group: request.group, prompt: request.prompt.clone(), completions, prompt_columns };
        Finished { request: id, group, cached_tokens: cached_tokens.unwrap_or(0) }
    }

    /// Removes a request in any state, with its sequences and their pages. Returns false if it has already ended.
    pub(crate) fn cancel(&mut self, id: RequestId) -> bool {
        if self.groups.get(id.index).is_none_or(|group| group.serial != id.serial) {
            return false;
        }
        self.remove_prompt(id.index);
        let group = self.groups.remove(id.index);
        for member in group.members {
            self.blocks.release(&mut self.sequences[member].blocks);
            self.remove(member);
        }
        self.finished.retain(|&finished| finished != id.index);
        true
    }

    /// Removes a sequence from the list that belongs to its state.
    fn leave(&mut self, id: usize, state: State) {
        match std::mem::replace(&mut self.sequences[id].state, state) {
            State::Running => self.running.retain(|&other| other != id),
            State::Waiting => {
                self.extended.retain(|&other| other != id);
                self.waiting.retain(|&other| other != id);
            }
            State::Held => self.held.retain(|&other| other != id),
            State::Paused => self.paused.retain(|&other| other != id),
            State::Finished(_) => {}
        }
    }

    /// Removes a sequence that has no KV-cache pages.
    pub(super) fn remove(&mut self, id: usize) {
        self.leave(id, State::Finished(FinishReason::Stop));
        debug_assert!(self.sequences[id].blocks.is_empty());
        self.sequences.remove(id);
    }
}
