//! Guesses draft tokens before a step: for which sequences, and how many. `outcome.rs` checks whether they are right.

use super::Scheduler;
use crate::config::Speculative;
use crate::drafts::{Drafts, EARLIER, GRAM, ROWS, SEQUENCES, agreement};
use crate::sequence::{Role, Sequence};
use model::kv::BLOCK;
use std::time::Duration;

impl Scheduler {
    /// Guesses draft tokens for the running sequences, if that is worthwhile.
    pub(crate) fn speculate(&mut self) {
        let Some(mut drafts) = self.drafts.take() else { return };
        self.speculate_with(&mut drafts);
        self.drafts = Some(drafts);
    }

    fn speculate_with(&mut self, drafts: &mut Drafts) {
        let free_slots = self.limits.max_num_seqs.saturating_sub(self.running.len());
        let live = self.running.len() + free_slots.min(self.extended.len() + self.waiting.len());
        let auto = self.speculative == Speculative::Auto;
        if self.running.is_empty() || auto && (live > SEQUENCES || !self.balance.allows(self.running.len())) {
            return;
        }
        for at in 0..self.running.len() {
            let id = self.running[at];
            let s = &self.sequences[id];
            // Only one token must still be computed, and no draft tokens were guessed yet.
            if s.role != Role::Prompt && s.drafted == 0 && s.uncomputed() == 1 && !s.completion().is_empty() {
                let agreeing = self.guess(id, live, drafts);
                self.draft(id, &drafts.guess);
                let s = &mut self.sequences[id];
                s.pace.ask(agreeing, s.drafted);
            }
        }
    }

    /// Records the time of a decode step of `sequences` sequences and `rows` rows. If the step had draft tokens,
    /// `drawn_with_guesses` is the number of tokens that it drew.
    pub(crate) fn measure(&mut self, sequences: usize, rows: usize, drawn_with_guesses: Option<usize>, time: Duration) {
        if self.drafts.is_none() {
            return;
        }
        self.cost.observe(rows, time.as_secs_f64());
        self.balance.observe(sequences, drawn_with_guesses, time.as_secs_f64());
        if let Some(tokens) = drawn_with_guesses
            && let Some(seconds) = self.balance.without(sequences).or_else(|| self.cost.seconds(sequences))
        {
            self.counters.draft_time += time;
            self.counters.undrafted_time += Duration::from_secs_f64(seconds * tokens as f64 / sequences as f64);
        }
    }

    /// Writes the draft tokens of sequence `id` to `drafts.guess`. Returns the length of the match before them.
    fn guess(&mut self, id: usize, live: usize, drafts: &mut Drafts) -> usize {
        self.sequences[id].pace.learn();
        self.index_group(self.sequences[id].group, drafts);
        drafts.guess.clear();
        let (agreeing, place) = self.best_place(id, drafts).unzip();
        let length = match self.speculative {
            Speculative::Off => 0,
            Speculative::Always(length) => length,
            Speculative::Auto => {
                let (most, row) = (self.rows_for(id, live), live as f32 * self.cost.row_fraction(live));
                agreeing.map_or(0, |agreeing| self.sequences[id].pace.length(agreeing, row, most))
            }
        };
        let s = &self.sequences[id];
        if let Some((of, from)) = place {
            let text = self.text(s.group, of).unwrap_or_default();
            for at in from..from + length {
                // A guess that reaches the end of its source continues with its own tokens, as in a repetition.
                let next = match text.get(at) {
                    Some(&next) => next,
                    None if of as usize == id => drafts.guess[at - text.len()],
                    None => break,
                };
                drafts.guess.push(next);
            }
        }
        if let Speculative::Always(length) = self.speculative {
            drafts.guess.resize(length, s.known()[s.known().len() - 1]);
        }
        agreeing.unwrap_or(0)
    }

    /// The number of rows of the step that sequence `id` may use for draft tokens. Draft tokens never evict pages of
    /// other sequences.
    fn rows_for(&self, id: usize, live: usize) -> usize {
        let most = (ROWS.min(self.limits.max_rows) / live).saturating_sub(1);
        let s = &self.sequences[id];
        if self.blocks.available() > self.running.len() {
            most
        } else {
            most.min((s.blocks.len() * BLOCK).saturating_sub(s.known().len()))
        }
    }

    /// Adds new tokens of a group's completions to the index; the first call also adds the prompt, and the completion
    /// of an earlier request with that prompt.
    fn index_group(&mut self, group: usize, drafts: &mut Drafts) {
        let Scheduler { groups, sequences, .. } = self;
        let serial = groups[group].serial;
        for (i, &member) in groups[group].members.iter().enumerate() {
            let s: &mut Sequence = &mut sequences[member];
            if i == 0
                && s.indexed == 0
                && let Some(text) = &groups[group].earlier
            {
                drafts.add(serial, (EARLIER as usize, serial), text, 0);
            }
            let from = if i == 0 { s.indexed } else { s.indexed.max(s.prompt_len) };
            drafts.add(serial, (member, s.serial), s.known(), from);
            s.indexed = s.known().len();
        }
    }

    /// The text of a group to which `of`, a `Place::sequence`, refers.
    fn text(&self, group: usize, of: u32) -> Option<&[u32]> {
        match of {
            EARLIER => self.groups[group].earlier.as_deref(),
            of => self.sequences.get(of as usize).filter(|s| s.group == group).map(Sequence::known),
        }
    }

    /// The place in the group's texts with the longest match before it (the newest if several tie), and the length of
    /// the match.
    fn best_place(&self, id: usize, drafts: &Drafts) -> Option<(usize, (u32, usize))> {
        let s = &self.sequences[id];
        let group_serial = self.groups[s.group].serial;
        let serial = |of: u32| match of {
            EARLIER => Some(group_serial),
            of => self.sequences.get(of as usize).map(|other| other.serial),
        };
        let mut best = None;
        for place in drafts.places(group_serial, s.known()) {
            let (of, at) = (place.sequence, place.at as usize);
            if serial(of).is_none_or(|serial| serial as u32 != place.serial) {
                continue;
            }
            let Some(before) = self.text(s.group, of).filter(|text| at < text.len()) else { continue };
            let agreeing = agreement(s.known(), &before[..at]);
            if agreeing >= GRAM && best.is_none_or(|(most, _)| agreeing > most) {
                best = Some((agreeing, (of, at)));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests;
