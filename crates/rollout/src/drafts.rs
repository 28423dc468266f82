//! Draft tokens for speculative decoding. The next tokens of a sequence are guessed from existing tokens: its prompt,
//! its own completion, and the other completions of its group.
//!
//! An index of fixed size maps three consecutive tokens to the places right after them in the texts (as in LZ77). The
//! oldest places are dropped first. This file also decides how many tokens to guess.

/// The number of consecutive tokens that must match before a guess.
pub(crate) const GRAM: usize = 3;
/// The maximum number of rows, and of sequences, in a step with draft tokens. With more rows the time per row rises on
/// every processor that was measured.
pub(crate) const ROWS: usize = 16;
pub(crate) const SEQUENCES: usize = 8;
/// The number of places in the index.
const PLACES: usize = 1 << 16;
/// The maximum number of places that are compared for one guess.
const LOOKED_AT: usize = 16;
/// The maximum number of tokens before a place that are compared.
pub(crate) const BEFORE: usize = 32;
/// A match of at least this many tokens is long. The success rate of guesses after long matches is tracked separately.
const LONG: usize = 8;
/// The speedup in tokens per second that a guess must promise.
const WORTHWHILE: f32 = 1.05;
/// After this many times without a worthwhile guess, one token is guessed as a trial.
const UNTIL_NEXT_TRIAL: u32 = 32;
/// The effective number of guesses in the success rate. Older guesses have less weight.
const REMEMBERED: f32 = 32.0;

/// The value of [`Place::sequence`] that means the completion of an earlier request with the same prompt.
pub(crate) const EARLIER: u32 = u32::MAX;

/// The position of a token in a text. The tokens before it are compared with the end of the sequence that needs a
/// guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The index of the sequence in the scheduler's slab (with the low half of its serial number), or [`EARLIER`].
    pub(crate) sequence: u32,
    pub(crate) serial: u32,
    pub(crate) at: u32,
    /// The number of the previous place with the same hash.
    older: u32,
}

/// The index of places, shared by all groups that use draft tokens.
#[derive(Debug)]
pub(crate) struct Drafts {
    /// The number of the newest place for each hash.
    heads: Vec<u32>,
    places: Vec<Place>,
    next: u32,
    /// The draft tokens of the current guess. The buffer is reused.
    pub(crate) guess: Vec<u32>,
}

impl Drafts {
    /// The size of the index in bytes.
    pub(crate) const BYTES: usize = PLACES * (size_of::<Place>() + size_of::<u32>());

    pub(crate) fn new() -> Drafts {
        let places = vec![Place::default(); PLACES];
        // Initially every head is further back than the length of the ring, so no head points to a place.
        Drafts { heads: vec![0; PLACES], places, next: PLACES as u32 + 1, guess: Vec::with_capacity(ROWS) }
    }

    /// Adds the places `from..` of `tokens`, the text of a sequence in this group.
    pub(crate) fn add(&mut self, group: u64, (sequence, serial): (usize, u64), tokens: &[u32], from: usize) {
        for at in from.max(GRAM)..tokens.len() {
            let head = &mut self.heads[hash(group, &tokens[at - GRAM..at])];
            let place = Place { sequence: sequence as u32, serial: serial as u32, at: at as u32, older: *head };
            self.places[self.next as usize % PLACES] = place;
            *head = self.next;
            self.next = self.next.wrapping_add(1);
        }
    }

    /// The places in this group's texts that follow the last three tokens of `tokens`, newest first. Hashes collide, so
    /// the caller must compare the tokens.
    pub(crate) fn places(&self, group: u64, tokens: &[u32]) -> impl Iterator<Item = Place> {
        let gram = tokens.len().checked_sub(GRAM).map(|from| hash(group, &tokens[from..]));
        let (mut number, mut age) = (gram.map_or(self.next, |hash| self.heads[hash]), 0);
        std::iter::from_fn(move || {
            // Places further back than the length of the ring have been overwritten.
            let is = self.next.wrapping_sub(number) as usize;
            if is <= age || is > PLACES {
                return None;
            }
            age = is;
            let place = self.places[number as usize % PLACES];
            number = place.older;
            Some(place)
        })
        .take(LOOKED_AT)
    }
}

fn hash(group: u64, gram: &[u32]) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = gram.iter().fold(group.wrapping_mul(ODD), |h, &id| (h ^ u64::from(id)).wrapping_mul(ODD).rotate_left(29));
    (mix.wrapping_mul(ODD) >> 48) as usize % PLACES
}

/// The length of the common suffix of `a` and `b`, up to [`BEFORE`].
pub(crate) fn agreement(a: &[u32], b: &[u32]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(BEFORE).take_while(|(a, b)| a == b).count()
}

/// The success rate of draft tokens. Draft tokens after the first wrong one of a step do not count.
#[derive(Clone, Copy, Debug)]
struct Odds {
    right: f32,
    of: f32,
    /// The number of consecutive times that guessing did not seem worthwhile.
    silent: u32,
}

/// The success rates of a sequence's draft tokens, after short and after long matches. The rates decide how many tokens
/// to guess.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    odds: [Odds; 2],
    /// The number of draft tokens that are being verified.
    asked: usize,
    right: usize,
    long: bool,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        let odds = |right| Odds { right, of: 2.0, silent: 0 };
        Pace { odds: [odds(1.0), odds(1.5)], asked: 0, right: 0, long: false }
    }
    /// Counts a draft token that was right.
    pub(crate) fn right(&mut self) {
        self.right += 1;
    }
    /// Drops the draft tokens that are being verified, without updating the success rates.
    pub(crate) fn forget(&mut self) {
        (self.asked, self.right) = (0, 0);
    }
    /// Updates the success rates with the draft tokens that were verified.
    pub(crate) fn learn(&mut self) {
        if self.asked > 0 {
            let odds = &mut self.odds[usize::from(self.long)];
            // Tokens after the first wrong guess do not count.
            let seen = (self.right + 1).min(self.asked);
            let kept = 1.0 - seen as f32 / REMEMBERED;
            odds.right = odds.right * kept + self.right as f32;
            odds.of = odds.of * kept + seen as f32;
        }
        self.forget();
    }
    /// The number of tokens to guess after a match of `agreement` tokens, at most `most`. This is the number that
    /// promises the most tokens per second, if one more draft token for every sequence lengthens the step by the
    /// fraction `row`.
    pub(crate) fn length(&mut self, agreement: usize, row: f32, most: usize) -> usize {
        let odds = &mut self.odds[usize::from(agreement >= LONG)];
        let p = odds.right / odds.of;
        let (mut best, mut length) = (WORTHWHILE, 0);
        let (mut drawn, mut all_right) = (1.0, 1.0);
        for guessed in 1..=most {
            all_right *= p;
            drawn += all_right;
            let gain = drawn / (1.0 + guessed as f32 * row);
            if gain > best {
                (best, length) = (gain, guessed);
            }
        }
        odds.silent = if length == 0 { odds.silent + 1 } else { 0 };
        if odds.silent > UNTIL_NEXT_TRIAL {
            odds.silent = 0;
            length = most.min(1);
        }
        length
    }
    /// Records that `tokens` draft tokens are being verified, guessed after a match of `agreement` tokens.
    pub(crate) fn ask(&mut self, agreement: usize, tokens: usize) {
        (self.asked, self.right, self.long) = (tokens, 0, agreement >= LONG);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::StepCost;

    const OF: (usize, u64) = (3, 7);

    fn found(drafts: &Drafts, group: u64, tokens: &[u32]) -> Vec<u32> {
        drafts.places(group, tokens).map(|place| place.at).collect()
    }

    #[test]
    fn places_are_returned_newest_first() {
        let mut drafts = Drafts::new();
        let text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 1, 2, 3];
        drafts.add(0, OF, &text, 0);
        assert_eq!(found(&drafts, 0, &text), [8, 3]);
        assert_eq!(found(&drafts, 0, &[8, 1, 2, 3]), [8, 3]);
        assert!(found(&drafts, 1, &text).is_empty(), "the text belongs to another group");
        assert!(found(&drafts, 0, &[1, 2]).is_empty() && found(&drafts, 0, &[]).is_empty());
        let place = drafts.places(0, &text).next().unwrap();
        assert_eq!((place.sequence, place.serial), (3, 7));
        // Tokens that are already in the index are not added again.
        drafts.add(0, OF, &[&text[..], &[6]].concat(), text.len());
        assert_eq!(found(&drafts, 0, &text), [12, 8, 3]);
    }

    #[test]
    fn the_oldest_places_are_dropped() {
        let mut drafts = Drafts::new();
        drafts.next = u32::MAX - 1000;
        let text: Vec<u32> = (0..PLACES as u32 / 2).flat_map(|i| [i + 10, i]).collect();
        drafts.add(0, OF, &text, 0);
        // Places of other tokens with the same hash may also be returned.
        let has = |drafts: &Drafts, at: usize| found(drafts, 0, &text[..at]).contains(&(at as u32));
        assert!(has(&drafts, 3) && has(&drafts, 1000) && has(&drafts, PLACES - 1));
        drafts.add(0, (4, 8), &[5; 103], 0);
        assert!(!has(&drafts, 3) && has(&drafts, 1000) && has(&drafts, PLACES - 1));
        assert_eq!(found(&drafts, 0, &[5; 3]).len(), LOOKED_AT, "the number of compared positions is limited");
    }

    /// The fraction by which one more row for each sequence lengthens a step of `live` sequences.
    fn row(live: usize) -> f32 {
        live as f32 * StepCost::default().row_fraction(live)
    }

    fn learned(answers: &[(usize, usize)], live: usize) -> usize {
        let mut pace = Pace::new();
        for &(asked, right) in answers {
            pace.ask(GRAM, asked);
            (0..right).for_each(|_| pace.right());
            pace.learn();
        }
        pace.length(GRAM, row(live), ROWS / live - 1)
    }

    #[test]
    fn the_guess_length_depends_on_success_rate_and_number_of_sequences() {
        assert_eq!(learned(&[], 1), 2);
        assert_eq!(learned(&[(2, 2), (3, 3), (8, 8), (15, 15)], 1), 15);
        assert_eq!(learned(&[(2, 2), (3, 3), (3, 3)], 4), 3);
        assert_eq!(learned(&[(2, 0); 6], 1), 0, "guessing stops after wrong guesses");
        assert!(learned(&[(2, 1); 6], 1) > learned(&[(2, 1); 6], 4));
        // A guess that was not verified does not change the success rates.
        let mut pace = Pace::new();
        pace.ask(GRAM, 4);
        pace.forget();
        pace.learn();
        assert_eq!(pace.length(GRAM, row(1), 15), 2);
    }

    #[test]
    fn guessing_is_retried_after_a_pause() {
        let mut pace = Pace::new();
        for _ in 0..10 {
            pace.ask(GRAM, 2);
            pace.learn();
        }
        let steps = 2 * UNTIL_NEXT_TRIAL + 2;
        let lengths: Vec<usize> = (0..steps).map(|_| pace.length(GRAM, row(1), 15)).collect();
        let trials = lengths.iter().filter(|&&length| length == 1).count();
        assert_eq!(trials, 2, "trials in {steps} steps after ten wrong guesses: one after each pause");
        assert!(lengths.iter().all(|&length| length <= 1));
        assert!(pace.length(LONG, row(1), 15) > 2, "long matches have a separate success rate");
        assert_eq!(pace.length(LONG, row(1), 0), 0);
    }

    #[test]
    fn agreements_are_counted_from_the_end() {
        assert_eq!(agreement(&[9, 1, 2, 3], &[8, 1, 2, 3]), 3);
        assert_eq!(agreement(&[1, 2], &[0, 1, 2]), 2);
        assert_eq!((agreement(&[1], &[2]), agreement(&[], &[1])), (0, 0));
        assert_eq!(agreement(&[7; 50], &[7; 60]), BEFORE);
        assert_eq!(agreement(&[7; BEFORE], &[7; 60]), BEFORE);
    }

    #[test]
    fn an_empty_index_has_no_places_and_text_is_added_once() {
        let mut drafts = Drafts::new();
        assert!(found(&drafts, 0, &[1, 2, 3]).is_empty());
        drafts.add(0, OF, &[1, 2, 3], 0);
        assert!(found(&drafts, 0, &[1, 2, 3]).is_empty(), "no token follows 1, 2, 3 yet");
        drafts.add(0, OF, &[1, 2, 3, 4, 5], 3);
        assert_eq!((found(&drafts, 0, &[1, 2, 3]), found(&drafts, 0, &[2, 3, 4])), (vec![3], vec![4]));
        drafts.add(0, (5, 9), &[1, 2, 3, 4, 5], 4);
        assert_eq!((found(&drafts, 0, &[1, 2, 3]), found(&drafts, 0, &[2, 3, 4])), (vec![3], vec![4, 4]));
        let newest = drafts.places(0, &[2, 3, 4]).next().unwrap();
        assert_eq!((newest.sequence, newest.serial, newest.at), (5, 9, 4));
    }
}
