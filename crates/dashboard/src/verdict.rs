//! Sums up a training run in one sentence: whether it learns, and whether something is wrong.

use serde_json::{Value, json};
use telemetry::table::short_number;

/// The verdict on a training run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The state: `learning`, `level`, `not yet`, `worse`, or `nothing` if there are too few values.
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

/// Compares the first of a metric's values (one per logged step) with the mean of the last tenth. A change counts if it
/// exceeds three standard errors. The noise is estimated from the differences between neighbouring values, less their
/// mean, so that a trend does not count as noise.
pub fn verdict(name: &str, values: &[f64], higher_is_better: bool) -> Verdict {
    let values: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    if values.len() < 4 {
        let says = format!("Too early to tell: {} of {name}.", counted(values.len(), "value"));
        return Verdict { state: "nothing", says };
    }
    let tenth = values.len().div_ceil(10).max(2);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (first, last) = (values[0], mean(&values[values.len() - tenth..]));
    let before = mean(&values[values.len() - (2 * tenth).min(values.len())..values.len() - tenth]);
    let trend = (values[values.len() - 1] - values[0]) / (values.len() - 1) as f64;
    let squares = values.windows(2).map(|pair| (pair[1] - pair[0] - trend).powi(2)).sum::<f64>();
    // The variance of a difference is twice that of a value.
    let deviation = (squares / (values.len() - 1) as f64 / 2.0).sqrt();
    let error = |n: usize| 3.0 * deviation / (n as f64).sqrt();
    let better = |a: f64, b: f64| if higher_is_better { b - a } else { a - b };
    let gain = better(first, last);
    // A first value is one value: its own error is in it.
    let noise = (error(1).powi(2) + error(tenth).powi(2)).sqrt();
    let still = better(before, last) > (2.0 * error(tenth).powi(2)).sqrt();
    let (from, to) = (number(first), number(last));
    let (state, says) = match () {
        () if gain > noise && still => {
            ("learning", format!("Learning: {name} went from {from} to {to}, and it still improves."))
        }
        () if gain > noise => ("level", format!("Learned: {name} went from {from} to {to}, and is level now.")),
        () if gain < -noise => ("worse", format!("Worse: {name} went from {from} to {to}.")),
        () => ("not yet", format!("Not learning yet: {name} began at {from} and is {to}, which may be chance.")),
    };
    Verdict { state, says }
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
}
