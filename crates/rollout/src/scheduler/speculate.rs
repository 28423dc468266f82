//! Who guesses how many of its next tokens before a step. Whether they are right is seen in `outcome.rs`.

use super::Scheduler;
use crate::config::Speculative;
use crate::drafts::{Drafts, GRAM, ROWS, SEQUENCES, agreement};
use crate::sequence::{Role, Sequence};
use model::kv::BLOCK;

impl Scheduler {
    /// Guesses the next tokens of the sequences that run, if it is worth while.
    pub(crate) fn speculate(&mut self) {
        if self.speculative == Speculative::Off {
            return;
        }
        let free_seats = self.limits.max_num_seqs.saturating_sub(self.running.len());
        let live = self.running.len() + free_seats.min(self.extended.len() + self.waiting.len());
        if self.running.is_empty() || (self.speculative == Speculative::Auto && live > SEQUENCES) {
            return;
        }
        let mut drafts = self.drafts.take().unwrap_or_else(|| Box::new(Drafts::new()));
        for at in 0..self.running.len() {
            let id = self.running[at];
            let s = &self.sequences[id];
            // One row of it is computed next, and no guesses wait.
            if s.role != Role::Prompt && s.drafted == 0 && s.uncomputed() == 1 && !s.completion().is_empty() {
                let agreeing = self.guess(id, live, &mut drafts);
                self.draft(id, &drafts.guess);
                let s = &mut self.sequences[id];
                s.pace.ask(agreeing, s.drafted);
            }
        }
        self.drafts = Some(drafts);
    }

    /// Sets the guess of `drafts` to the one for `id`. Returns how many tokens agree before it.
    fn guess(&mut self, id: usize, live: usize, drafts: &mut Drafts) -> usize {
        self.sequences[id].pace.learn();
        self.index_group(self.sequences[id].group, drafts);
        drafts.guess.clear();
        let (agreeing, place) = self.best_place(id, drafts).unzip();
        let length = match self.speculative {
            Speculative::Off => 0,
            Speculative::Always(length) => length,
            Speculative::Auto => {
                let most = self.rows_for(id, live);
                agreeing.map_or(0, |agreeing| self.sequences[id].pace.length(agreeing, live, most))
            }
        };
        let s = &self.sequences[id];
        if let Some((of, from)) = place {
            let text = self.sequences[of].known();
            for at in from..from + length {
                // Of its own text a guess goes on in itself: what repeats goes on repeating.
                let next = match text.get(at) {
                    Some(&next) => next,
                    None if of == id => drafts.guess[at - text.len()],
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

    /// Rows of the step that `id` may have for guesses; no page is taken from others for them.
    fn rows_for(&self, id: usize, live: usize) -> usize {
        let most = (ROWS.min(self.limits.max_rows) / live).saturating_sub(1);
        let s = &self.sequences[id];
        match self.blocks.available() > self.running.len() {
            true => most,
            false => most.min((s.blocks.len() * BLOCK).saturating_sub(s.known().len())),
        }
    }

    /// Remembers what the completions of a group have got since the last time; their prompt with the first of them.
    fn index_group(&mut self, group: usize, drafts: &mut Drafts) {
        let Scheduler { groups, sequences, .. } = self;
        let serial = groups[group].serial;
        for (i, &member) in groups[group].members.iter().enumerate() {
            let s: &mut Sequence = &mut sequences[member];
            let from = if i == 0 { s.indexed } else { s.indexed.max(s.prompt_len) };
            drafts.add(serial, (member, s.serial), s.known(), from);
            s.indexed = s.known().len();
        }
    }

    /// The place in the text of the group with the longest agreement before it, the newest of them; and how long that
    /// is.
    fn best_place(&self, id: usize, drafts: &Drafts) -> Option<(usize, (usize, usize))> {
        let s = &self.sequences[id];
        let mut best = None;
        for place in drafts.places(self.groups[s.group].serial, s.known()) {
            let (of, at) = (place.sequence as usize, place.at as usize);
            let Some(other) = self.sequences.get(of) else { continue };
            if other.serial as u32 != place.serial || other.group != s.group || other.known().len() <= at {
                continue;
            }
            let agreeing = agreement(s.known(), &other.known()[..at]);
            if agreeing >= GRAM && best.is_none_or(|(most, _)| agreeing > most) {
                best = Some((agreeing, (of, at)));
            }
        }
        best
    }
}
