//! Sums up a training run in one sentence: whether it learns, and whether something is wrong.

use serde_json::{Value, json};
use telemetry::table::short_number;

/// The verdict on a training run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The state: `learning`, `level`, `falling`, `learned` (noise hides what follows), `not yet`, `worse`, or
    /// `nothing` if there are too few values.
    pub state: &'static str,
    /// The verdict as a sentence.
    pub says: String,
}

impl Verdict {
    /// The verdict as JSON for the page.
    pub fn to_json(&self) -> Value {
        json!({ "state": self.state, "says": self.says })
    }
}

/// Compares the first of a metric's values (one per step) with the mean of the last tenth. A change counts if it
/// exceeds three standard errors. One step's value is noisy, so if that change does not count, the mean of the first
/// tenth takes the place of the first value. What follows an improvement is said by a line fitted to the last third of
/// the values.
pub fn verdict(name: &str, values: &[f64], higher_is_better: bool) -> Verdict {
    let values: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    if values.len() < 4 {
        let says = format!("Too early to tell: {} of {name}, and 4 are needed.", counted(values.len(), "value"));
        return Verdict { state: "nothing", says };
    }
    let change = Some(Change::of(&values)).filter(Change::counts).unwrap_or_else(|| Change::of_tenths(&values));
    let sign = if higher_is_better { 1.0 } else { -1.0 };
    let (from, to) = (number(change.from), number(change.to));
    let went = format!("{name} went from {from} to {to}");
    if !change.counts() {
        let says = format!("Not learning yet: {name} began at {from} and is {to}, which may be chance.");
        return Verdict { state: "not yet", says };
    }
    if sign * (change.to - change.from) < 0.0 {
        return Verdict { state: "worse", says: format!("Worse: {went}.") };
    }
    let (state, says) = match Tail::of(&values, change.to - change.from) {
        Tail::Improves => ("learning", format!("Learning: {went}, and it still improves.")),
        Tail::Level => ("level", format!("Learned: {went}, and is level now.")),
        Tail::Falls => ("falling", format!("Learned: {went}, but it became worse in the last third of the steps.")),
        Tail::Unknown => ("learned", format!("Learned: {went}; it may still improve, which the noise hides.")),
    };
    Verdict { state, says }
}

/// The standard deviation of the noise in a metric's values, from the differences between neighbouring values, less
/// their mean, so that a trend does not count as noise.
fn deviation(values: &[f64]) -> f64 {
    let trend = (values[values.len() - 1] - values[0]) / (values.len() - 1) as f64;
    let squares = values.windows(2).map(|pair| (pair[1] - pair[0] - trend).powi(2)).sum::<f64>();
    // The variance of a difference is twice that of a value.
    (squares / (values.len() - 1) as f64 / 2.0).sqrt()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// From a metric's first value to the mean of the last tenth.
struct Change {
    from: f64,
    to: f64,
    /// Three standard errors of the difference.
    noise: f64,
}

impl Change {
    /// Of at least two values.
    fn of(values: &[f64]) -> Change {
        let tenth = values.len().div_ceil(10).max(2);
        let variance = deviation(values).powi(2);
        // A first value is one value: its own error is in it.
        let to = mean(&values[values.len() - tenth..]);
        // Means of equal values differ by rounding.
        let noise = (3.0 * (variance + variance / tenth as f64).sqrt()).max(1e-9 * to.abs());
        Change { from: values[0], to, noise }
    }

    /// From the mean of the first tenth, if that has two values at least: else from the first value.
    fn of_tenths(values: &[f64]) -> Change {
        let (tenth, of_first) = (values.len() / 10, Change::of(values));
        if tenth < 2 {
            return of_first;
        }
        let (from, to) = (mean(&values[..tenth]), of_first.to);
        let last = values.len().div_ceil(10);
        let noise = 3.0 * deviation(values) * (1.0 / tenth as f64 + 1.0 / last as f64).sqrt();
        Change { from, to, noise: noise.max(1e-9 * to.abs()) }
    }

    fn counts(&self) -> bool {
        (self.to - self.from).abs() > self.noise
    }
}

/// How a metric changed, for the question which of several moved first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// The mean of the first values, the neighbourhood of the first one.
    pub from: f64,
    /// The mean of the last tenth.
    pub to: f64,
    /// The step at which half of the way was reached; `None` if the metric did not move by more than noise. It is the
    /// first whose neighbourhood has the mean (five values; in long runs a twentieth of all).
    pub half: Option<u64>,
}

/// How a metric changed; `None` if there are too few values. The values are pairs of step and value.
pub fn moved(values: &[(u64, f64)]) -> Option<Moved> {
    let (steps, values): (Vec<u64>, Vec<f64>) = values.iter().filter(|(_, x)| x.is_finite()).copied().unzip();
    if values.len() < 4 {
        return None;
    }
    let (tenth, around) = (values.len().div_ceil(10).max(2), (values.len() / 40).max(2));
    let to = mean(&values[values.len() - tenth..]);
    // Sums up to each value, so that a long run's neighbourhoods, which grow with it, are not added up again and again.
    let mut sums = vec![0.0];
    sums.extend(values.iter().scan(0.0, |sum, x| {
        *sum += x;
        Some(*sum)
    }));
    let near = |i: usize| {
        let (begin, end) = (i.saturating_sub(around), (i + around + 1).min(values.len()));
        (sums[end] - sums[begin]) / (end - begin) as f64
    };
    let from = near(0);
    let is_half = |&i: &usize| (near(i) - (from + to) / 2.0) * (to - from) >= 0.0;
    let half = Change::of(&values).counts().then(|| (0..values.len()).find(is_half)).flatten();
    Some(Moved { from, to, half: half.map(|i| steps[i]) })
}

/// What the last third of the values does, after an improvement.
enum Tail {
    Improves,
    Level,
    Falls,
    Unknown,
}

impl Tail {
    /// Fits a line to the last third. Its rise is from the third's beginning to its end, towards the better if it has
    /// the sign of `gain`, the improvement of all steps. A rise of more than three standard errors and of more than a
    /// tenth of the gain is one. The values are level only if a rise as large as a tenth of the gain, up or down, is
    /// more than two standard errors away.
    fn of(values: &[f64], gain: f64) -> Tail {
        let third = &values[values.len() - values.len().div_ceil(3).max(4).min(values.len())..];
        let (middle, level) = ((third.len() - 1) as f64 / 2.0, mean(third));
        let places = || (0..third.len()).map(|i| i as f64 - middle);
        let squares = places().map(|x| x * x).sum::<f64>();
        let slope = places().zip(third).map(|(x, y)| x * (y - level)).sum::<f64>() / squares;
        let (rise, error) = (slope * 2.0 * middle * gain.signum(), deviation(third) / squares.sqrt() * 2.0 * middle);
        let little = 0.1 * gain.abs();
        match () {
            () if rise.abs() + 2.0 * error < little => Tail::Level,
            () if rise > little.max(3.0 * error) => Tail::Improves,
            () if -rise > little.max(3.0 * error) => Tail::Falls,
            () => Tail::Unknown,
        }
    }
}

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The number with three significant digits.
fn number(x: f64) -> String {
    short_number(x, 1e5, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the function `of` at 0 to n − 1, with noise of ±0.05 that repeats every seven values.
    fn noisy(n: usize, of: impl Fn(f64) -> f64) -> Vec<f64> {
        (0..n).map(|i| of(i as f64 / n as f64) + 0.05 * (((i * 5) % 7) as f64 / 3.0 - 1.0)).collect()
    }

    /// Rewards of 60 steps of GRPO on a story model, with a learning rate of 1e-4: means of ten steps are 0.97, 1.27,
    /// 1.67, 2.02, 2.19, 2.44.
    #[rustfmt::skip]
    const RISING: [f64; 60] = [
        0.863, 0.956, 0.956, 0.894, 0.988, 0.956, 1.05, 1.019, 1.019, 0.956, 1.144, 1.05, 1.331, 1.05, 1.237,
        1.238, 1.581, 1.3, 1.362, 1.425, 1.519, 1.581, 1.769, 1.487, 1.55, 1.612, 1.675, 1.8, 1.831, 1.831,
        2.05, 1.987, 2.019, 1.925, 2.112, 1.894, 2.112, 1.987, 2.175, 1.956, 2.144, 2.081, 2.237, 2.269,
        2.144, 2.237, 2.237, 2.112, 2.05, 2.394, 2.55, 2.55, 2.019, 2.456, 2.425, 2.456, 2.394, 2.581, 2.675,
        2.331,
    ];
    /// The same with 3e-4: 1.13, 2.04, 2.66, 2.79, 2.78, 2.79.
    #[rustfmt::skip]
    const LEVEL: [f64; 60] = [
        0.863, 0.956, 1.019, 0.956, 1.081, 1.394, 1.237, 1.144, 1.144, 1.487, 1.581, 1.581, 1.925, 1.862,
        2.081, 2.394, 2.206, 2.269, 2.237, 2.3, 2.519, 2.487, 2.737, 2.612, 2.706, 2.675, 2.769, 2.737, 2.675,
        2.675, 2.8, 2.8, 2.737, 2.8, 2.8, 2.8, 2.8, 2.8, 2.769, 2.8, 2.8, 2.769, 2.8, 2.8, 2.8, 2.769, 2.8,
        2.769, 2.737, 2.769, 2.769, 2.8, 2.8, 2.8, 2.8, 2.769, 2.8, 2.8, 2.8, 2.8,
    ];

    #[test]
    fn what_moved_first_is_found_by_half_of_its_way() {
        let of = |of: &dyn Fn(f64) -> f64| -> Option<Moved> {
            let values = noisy(60, of);
            moved(&(1..).zip(values).collect::<Vec<_>>())
        };
        let half = |middle: f64| of(&|t| (5.0 * (t - middle) + 0.5).clamp(0.0, 1.0)).unwrap().half.unwrap();
        assert!((16..=20).contains(&half(0.3)), "{}", half(0.3));
        assert!((40..=44).contains(&half(0.7)), "{}", half(0.7));
        assert_eq!(of(&|_| 0.8).unwrap().half, None, "noise alone");
        // What falls moves, too; what never changes has no noise and does not.
        assert_eq!(of(&|t| -t).unwrap().half.map(|step| step / 10), Some(3));
        assert_eq!(moved(&[(1, 0.8); 9]).unwrap().half, None);
        assert_eq!(moved(&[(1, 0.8); 3]), None);
    }

    #[test]
    fn level_is_said_only_of_a_last_third_that_is_level() {
        let of = |values: &[f64]| verdict("reward", values, true);
        assert_eq!(of(&RISING).says, "Learning: reward went from 0.863 to 2.48, and it still improves.");
        assert_eq!(of(&LEVEL).says, "Learned: reward went from 0.863 to 2.79, and is level now.");
        // The same run while it still rose.
        assert_eq!(of(&LEVEL[..24]).state, "learning");
        // Level on average, but so noisy that a rise cannot be told from none.
        let noisy: Vec<f64> = LEVEL.iter().enumerate().map(|(i, x)| x + [0.3, -0.3, -0.3, 0.3][i % 4]).collect();
        assert_eq!(of(&noisy).state, "learned");
        let fell: Vec<f64> = LEVEL.iter().enumerate().map(|(i, x)| x - 0.03 * i.saturating_sub(40) as f64).collect();
        assert_eq!(of(&fell).state, "falling");
        // A loss falls where a reward rises.
        let loss: Vec<f64> = RISING.iter().map(|x| 3.0 - x).collect();
        assert_eq!(verdict("loss", &loss, false).state, "learning");
    }

    #[test]
    fn what_a_curve_shows_is_said() {
        let state = |values: &[f64]| verdict("reward", values, true).state;
        assert_eq!(state(&noisy(200, |t| t)), "learning");
        assert_eq!(state(&noisy(200, |t| (4.0 * t).min(1.0))), "level");
        assert_eq!(state(&noisy(200, |_| 0.3)), "not yet");
        assert_eq!(state(&noisy(200, |t| 1.0 - t)), "worse");
        assert_eq!(state(&[1.0, 2.0]), "nothing");
        assert_eq!(state(&[f64::NAN; 9]), "nothing");
        assert_eq!(verdict("loss", &noisy(200, |t| 1.0 - t), false).state, "learning");
        let says = verdict("reward", &noisy(200, |t| (4.0 * t).min(1.0)), true).says;
        assert_eq!(says, "Learned: reward went from -0.050 to 0.997, and is level now.");
    }

    /// Rewards of 0.7 to 0.9 that one step's prompts change by 0.3: the first value is not enough, the first tenth is.
    #[test]
    fn a_noisy_first_step_does_not_hide_what_a_run_learns() {
        let of = |n: usize, gain: f64, first: f64| {
            let mut values: Vec<f64> = (0..n)
                .map(|i| 0.7 + gain * (2.0 * i as f64 / n as f64).min(1.0) + 0.15 * (((i * 5) % 7) as f64 / 3.0 - 1.0))
                .collect();
            values[0] = first;
            verdict("reward", &values, true)
        };
        let rows = [
            // (values, gain, the first value, the state)
            (100, 0.3, 0.95, true),
            (100, 0.2, 0.7, true),
            (100, 0.2, 0.5, true),
            (60, 0.4, 0.95, true),
            (30, 0.5, 0.95, true),
            (20, 0.6, 0.95, true),
            (200, 0.15, 0.95, true),
            (1000, 0.1, 0.95, true),
            // Of so few values a tenth is one value.
            (12, 0.2, 0.95, false),
            (4, 0.2, 0.95, false),
            // Nothing is learned.
            (20, 0.0, 0.95, false),
            (100, 0.0, 0.7, false),
            (100, 0.0, 0.95, false),
            (1000, 0.0, 0.95, false),
            (1000, 0.005, 0.95, false),
        ];
        for (n, gain, first, learns) in rows {
            let Verdict { state, says } = of(n, gain, first);
            assert_eq!(state != "not yet", learns, "{n} {gain} {first}: {says}");
            assert!(!learns || says.starts_with("Learn"), "{n} {gain} {first}: {says}");
        }
        assert_eq!(of(100, -0.2, 0.65).state, "worse");
        assert!(of(100, 0.3, 0.95).says.starts_with("Learned: reward went from 0.7"), "{}", of(100, 0.3, 0.95).says);
    }

    #[test]
    fn each_state_has_its_sentence() {
        let says = |values: &[f64], higher| verdict("loss", values, higher).says;
        assert_eq!(says(&[1.0], true), "Too early to tell: 1 value of loss, and 4 are needed.");
        assert_eq!(says(&[1.0, 2.0, 3.0], true), "Too early to tell: 3 values of loss, and 4 are needed.");
        assert_eq!(says(&[1.0; 4], true), "Not learning yet: loss began at 1.00 and is 1.00, which may be chance.");
        let line = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(says(&line, true), "Learning: loss went from 1.00 to 3.50, and it still improves.");
        assert_eq!(says(&line, false), "Worse: loss went from 1.00 to 3.50.");
        let falls = [&[0.0, 10.0][..], &[20.0; 8], &[20.0, 19.0, 18.0, 17.0, 16.0]].concat();
        let fell = verdict("loss", &falls, true);
        assert_eq!((fell.state, fell.to_json()), ("falling", json!({ "state": "falling", "says": fell.says })));
        assert_eq!(
            fell.says,
            "Learned: loss went from 0.000 to 16.5, but it became worse in the last third of the steps."
        );
    }
}
