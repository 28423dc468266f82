//! The result of a training run: its learning curve, read from the metrics, and its final evaluation. Also computes
//! statistics over seeds.

use serde::{Deserialize, Serialize};
use telemetry::Record;

/// One evaluation during training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Optimizer steps done so far.
    pub step: f64,
    /// Tokens generated so far, prompts included.
    pub tokens: f64,
    /// Seconds of training so far, without evaluations.
    pub seconds: f64,
    /// Share of held-out problems answered correctly, from 0 to 1, with one answer each at temperature 1.
    pub accuracy: f64,
}

/// The result of a finished training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The name of the arm.
    pub name: String,
    /// The run's seed.
    pub seed: u64,
    /// The configuration keys that were set. A stored result is reused only for equal keys and values.
    pub settings: Vec<(String, String)>,
    /// The learning curve from the start to the last evaluation.
    pub curve: Vec<Point>,
    /// Share of correct answers at the end, from 0 to 1, sampled at temperature 1.
    pub sampled: f64,
    /// Share of correct answers at the end, from 0 to 1, generated greedily.
    pub greedy: f64,
    /// Tokens generated in the whole run, prompts included.
    pub tokens: f64,
    /// Seconds of the whole run, without evaluations.
    pub seconds: f64,
}

/// The learning curve in a run's metrics. Its first point has the accuracy `start`.
pub fn curve(records: &[Record], start: f64) -> Vec<Point> {
    let mut now = Point { step: 0.0, tokens: 0.0, seconds: 0.0, accuracy: start };
    let mut points = vec![now];
    for record in records {
        let number = |name: &str| record.number(name);
        if let (Some(step), Some(seconds)) = (number("step"), number("step_time")) {
            // `step_time` leaves evaluations out.
            now.seconds += seconds * (step - now.step);
            now.step = step;
            now.tokens = number("num_tokens").unwrap_or(now.tokens);
        }
        if let Some(accuracy) = number("eval_reward") {
            now.accuracy = accuracy;
            points.push(now);
        }
    }
    points
}

impl Outcome {
    /// The first point of the curve with at least this accuracy, if any.
    pub fn reaches(&self, accuracy: f64) -> Option<Point> {
        self.curve.iter().find(|p| p.accuracy >= accuracy).copied()
    }
}

/// Mean and Bessel-corrected standard deviation (0 for a single value).
pub fn mean_std(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learning_curve_sums_step_times_without_evaluations() {
        let mut records = Vec::new();
        for (step, seconds, tokens, runtime) in [(2, 3.0, 100, 1.5), (4, 4.0, 200, 1.0)] {
            let mut line = Record::new();
            line.set("step", step).set("step_time", seconds).set("num_tokens", tokens);
            let mut evaluation = Record::new();
            evaluation.set("step", step).set("eval_reward", 0.25 * f64::from(step)).set("eval_runtime", runtime);
            records.extend([line, evaluation]);
        }
        let points = curve(&records, 0.1);
        let values: Vec<_> = points.iter().map(|p| (p.step, p.tokens, p.seconds, p.accuracy)).collect();
        // Two steps take 3 s each, then two take 4 s each.
        assert_eq!(values, [(0.0, 0.0, 0.0, 0.1), (2.0, 100.0, 6.0, 0.5), (4.0, 200.0, 14.0, 1.0)]);
        let outcome = Outcome {
            name: "a".into(),
            seed: 1,
            settings: Vec::new(),
            curve: points,
            sampled: 1.0,
            greedy: 1.0,
            tokens: 200.0,
            seconds: 14.0,
        };
        assert_eq!(outcome.reaches(0.5).map(|p| p.step), Some(2.0));
        assert_eq!(outcome.reaches(1.1), None);
    }

    #[test]
    fn mean_std_uses_bessels_correction() {
        assert_eq!(mean_std(&[1.0, 3.0]), (2.0, 2f64.sqrt()));
        assert_eq!(mean_std(&[5.0]), (5.0, 0.0));
    }
}
