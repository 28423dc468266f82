//! What a decode step takes by its rows, measured: a part that every step has (weights are read), and a part for each
//! row. Whether guesses are worth their rows depends on it, and no bit does.

use crate::drafts::ROWS;

/// What one more row adds to a step of one row, until it is known. (7 M to 92 M parameters in f32 on two cores: 0.06 to
/// 0.2.)
const ROW: f64 = 0.125;
/// Earlier steps count for less: about this many are remembered.
const REMEMBERED: f64 = 64.0;
/// The variance of the number of rows from which on a line through the steps says something, and their number.
const VARIANCE: f64 = 0.25;
const STEPS: f64 = 8.0;
/// A step that takes so many times what was expected was interrupted: it counts as this much.
const INTERRUPTED: f64 = 2.0;

/// A line through the last steps: weighted sums of rows and seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepCost {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    /// Seconds of a step, and of each of its rows, once they are known.
    line: Option<(f64, f64)>,
}

impl StepCost {
    /// A decode step of `rows` rows has taken `seconds`.
    pub(crate) fn observe(&mut self, rows: usize, seconds: f64) {
        if rows == 0 || rows > ROWS {
            return;
        }
        let x = rows as f64;
        let y = self.seconds(rows).map_or(seconds, |expected| seconds.min(INTERRUPTED * expected));
        let kept = 1.0 - 1.0 / REMEMBERED;
        let sums =
            [(&mut self.n, 1.0), (&mut self.x, x), (&mut self.y, y), (&mut self.xx, x * x), (&mut self.xy, x * y)];
        sums.into_iter().for_each(|(sum, value)| *sum = *sum * kept + value);
        let (x, y) = (self.x / self.n, self.y / self.n);
        let variance = self.xx / self.n - x * x;
        if self.n >= STEPS && variance >= VARIANCE {
            let row = ((self.xy / self.n - x * y) / variance).max(0.0);
            self.line = Some(((y - row * x).max(0.0), row));
        }
    }

    /// What a step of `rows` rows takes, if that is known.
    pub(crate) fn seconds(&self, rows: usize) -> Option<f64> {
        self.line.map(|(step, row)| step + rows as f64 * row)
    }

    /// What one more row adds to a step of `rows` rows, in proportion.
    pub(crate) fn of_row(&self, rows: usize) -> f32 {
        let one = match self.line {
            Some((step, row)) if step + row > 0.0 => row / (step + row),
            _ => ROW,
        };
        (one / (1.0 + (rows - 1) as f64 * one)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_followed() {
        let mut cost = StepCost::default();
        assert_eq!((cost.seconds(1), cost.of_row(1)), (None, ROW as f32));
        // Steps of one size say nothing about rows.
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
            assert!((cost.of_row(1) - (row / (step + row)) as f32).abs() < 0.01, "{cost:?}");
        };
        near(play(9.0, 1.0, 600), 9.0, 1.0);
        near(play(0.5, 0.5, 600), 0.5, 0.5);
        near(play(0.9, 0.0, 600), 0.9, 0.0);
        // One interruption moves it a little.
        let mut cost = play(0.9, 0.1, 600);
        let before = cost.seconds(1).unwrap();
        cost.observe(1, 50.0);
        assert!((cost.seconds(1).unwrap() / before - 1.0).abs() < 0.1, "{cost:?}");
        // Rows of more sequences than guess anything are of no interest.
        cost.observe(ROWS + 1, 1e9);
        assert!(cost.seconds(1).unwrap() < 2.0 * before);
        assert!(cost.of_row(8) < cost.of_row(1));
    }
}
