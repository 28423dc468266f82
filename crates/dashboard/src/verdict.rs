//! One sentence that says how a run is: whether it learns, and whether something is wrong.

use serde_json::{Value, json};
use telemetry::table::short_number;

/// How a run is.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// `learning`, `level`, `not yet`, `worse`, or `nothing` where there is nothing to tell by.
    pub state: &'static str,
    /// In words.
    pub says: String,
}

impl Verdict {
    /// As the page reads it.
    pub fn to_json(&self) -> Value {
        json!({ "state": self.state, "says": self.says })
    }
}

/// Of the values of a metric, one for each logged step: the first against the mean of the last tenth. What counts is
/// more than three standard errors, which the differences between neighbours tell: their mean, a trend, is no noise.
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

/// Three digits.
fn number(x: f64) -> String {
    short_number(x, 1e5, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line with noise of ±0.05 that repeats every seven values.
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
