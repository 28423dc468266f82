//! The measured time of a decode step as a linear function of its rows: a constant part (reading the weights) plus a
//! part per row. The fit decides whether draft tokens are worth the rows that verify them. It does not affect results.

use crate::drafts::{ROWS, SEQUENCES};

/// An initial estimate: the fraction by which a second row lengthens a step of one row. (Measured values were 0.06 to
/// 0.2 for models of 7 M to 92 M parameters in f32 on two cores.)
const ROW: f64 = 0.125;
/// The effective number of steps in the fit. Older steps have less weight.
const REMEMBERED: f64 = 64.0;
/// The variance of the number of rows, and the number of steps, that are needed to fit a line.
const VARIANCE: f64 = 0.25;
const STEPS: f64 = 8.0;
/// A step that takes more than this many times the expected time was probably interrupted, and is counted as this many
/// times the expected time.
const INTERRUPTED: f64 = 2.0;

/// A line fitted through the last decode steps: weighted sums of rows and seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepCost {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    /// The constant seconds of a step and the seconds per row, once known.
    line: Option<(f64, f64)>,
}

impl StepCost {
    /// Adds a decode step of `rows` rows that took `seconds` to the fit.
    pub(crate) fn observe(&mut self, rows: usize, seconds: f64) {
        if rows == 0 || rows > ROWS {
            return;
        }
        let x = rows as f64;
        let y = self.seconds(rows).map_or(seconds, |expected| seconds.min(INTERRUPTED * expected));
        let kept = 1.0 - 1.0 / REMEMBERED;
        let sums =
            [(&mut self.n, 1.0), (&mut self.x, x), (&mut self.y, y), (&mut self.xx, x * x), (&mut self.xy, x * y)];
        for (sum, value) in sums {
            *sum = *sum * kept + value;
        }
        let (x, y) = (self.x / self.n, self.y / self.n);
        let variance = self.xx / self.n - x * x;
        if self.n >= STEPS && variance >= VARIANCE {
            let row = ((self.xy / self.n - x * y) / variance).max(0.0);
            self.line = Some(((y - row * x).max(0.0), row));
        }
    }

    /// Expected seconds of a decode step of `rows` rows, if known.
    pub(crate) fn seconds(&self, rows: usize) -> Option<f64> {
        self.line.map(|(step, row)| step + rows as f64 * row)
    }

    /// The fraction by which one more row lengthens a step of `rows` rows.
    pub(crate) fn row_fraction(&self, rows: usize) -> f32 {
        let one = match self.line {
            Some((step, row)) if step + row > 0.0 => row / (step + row),
            _ => ROW,
        };
        (one / (1.0 + (rows - 1) as f64 * one)) as f32
    }
}

/// The effective number of steps over which the time of steps without draft tokens is averaged.
const LAST: f64 = 16.0;
/// `ALLOWED`: the fraction of the decode time that draft tokens may lose. `AT_ONCE`: the maximum credit for later
/// losses, in steps.
const ALLOWED: f64 = 0.015;
const AT_ONCE: f64 = 0.5;

/// The time that draft tokens have gained and lost. It bounds the loss to a small fraction of the decode time, however
/// draft tokens are chosen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Balance {
    /// The seconds of a step without draft tokens, by number of sequences, where measured.
    without: [Option<f64>; SEQUENCES + 1],
    /// The seconds that draft tokens may still lose.
    credit: f64,
}

impl Balance {
    /// Whether draft tokens may be guessed for this many sequences. This needs a measured step of as many sequences
    /// without draft tokens.
    pub(crate) fn allows(&self, sequences: usize) -> bool {
        self.credit >= 0.0 && self.without(sequences).is_some()
    }

    /// The expected seconds of a step of this many sequences without draft tokens, if known.
    pub(crate) fn without(&self, sequences: usize) -> Option<f64> {
        self.without.get(sequences).copied().flatten()
    }

    /// Records a decode step that took `seconds`. If the step verified draft tokens, `drawn_with_guesses` is the number
    /// of tokens that it drew.
    pub(crate) fn observe(&mut self, sequences: usize, drawn_with_guesses: Option<usize>, seconds: f64) {
        let Some(without) = self.without.get_mut(sequences) else { return };
        let expected = match (*without, drawn_with_guesses) {
            (Some(expected), _) => expected,
            (None, None) => *without.insert(seconds),
            // No step without draft tokens was measured, so the gain is unknown.
            (None, Some(_)) => return,
        };
        let seconds = seconds.min(2.0 * INTERRUPTED * expected);
        match drawn_with_guesses {
            None => {
                *without = Some(expected + (seconds.min(INTERRUPTED * expected) - expected) / LAST);
                self.credit += ALLOWED * seconds;
            }
            Some(tokens) => self.credit += expected * tokens as f64 / sequences as f64 - seconds,
        }
        self.credit = self.credit.min(AT_ONCE * without.unwrap_or(expected));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draft tokens that are never right must lose only the allowed fraction of the time; draft tokens that are right
    /// must stay in use.
    #[test]
    fn guesses_lose_at_most_a_small_share_of_the_time() {
        for (drawn, guessed) in [(4, 0..40), (8, 990..1000)] {
            let (mut balance, mut time, mut with) = (Balance::default(), 0.0, 0);
            assert!(!balance.allows(4), "no step was measured yet");
            for _ in 0..1000 {
                let guesses = balance.allows(4);
                let seconds = if guesses { 1.5 } else { 1.0 };
                time += seconds - if guesses { drawn as f64 / 4.0 } else { 1.0 };
                with += usize::from(guesses);
                balance.observe(4, guesses.then_some(drawn), seconds);
            }
            assert!(guessed.contains(&with), "{with}");
            assert!(time < 0.025 * 1000.0, "{time}");
        }
        assert!(!Balance::default().allows(SEQUENCES + 1));
    }

    #[test]
    fn the_fit_recovers_a_line_and_follows_changes() {
        let mut cost = StepCost::default();
        assert_eq!((cost.seconds(1), cost.row_fraction(1)), (None, ROW as f32));
        // Steps with the same number of rows do not reveal the cost per row.
        (0..100).for_each(|_| cost.observe(1, 10.0));
        assert_eq!(cost.seconds(1), None);
        let mut play = |step: f64, row: f64, n: usize| {
            for i in 0..n {
                let rows = 1 + i % 5 * 3;
                cost.observe(rows, step + row * rows as f64);
            }
            cost
        };
        let near = |cost: StepCost, step: f64, row: f64| {
            let (found, expected) = (cost.seconds(4).unwrap(), step + 4.0 * row);
            assert!((found / expected - 1.0).abs() < 0.02, "{found}, {expected}");
            assert!((cost.row_fraction(1) - (row / (step + row)) as f32).abs() < 0.01, "{cost:?}");
        };
        near(play(9.0, 1.0, 600), 9.0, 1.0);
        near(play(0.5, 0.5, 600), 0.5, 0.5);
        near(play(0.9, 0.0, 600), 0.9, 0.0);
        // One interrupted step must change the estimate only slightly.
        let mut cost = play(0.9, 0.1, 600);
        let before = cost.seconds(1).unwrap();
        cost.observe(1, 50.0);
        assert!((cost.seconds(1).unwrap() / before - 1.0).abs() < 0.1, "{cost:?}");
        // Steps with more rows than draft tokens may use are ignored.
        cost.observe(ROWS + 1, 1e9);
        assert!(cost.seconds(1).unwrap() < 2.0 * before);
        assert!(cost.row_fraction(8) < cost.row_fraction(1));
    }
}
