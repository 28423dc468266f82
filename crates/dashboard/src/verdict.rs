//! Sums up a training run in one sentence: whether it learns, whether its reward is gamed, and whether something is
//! wrong. Page, report and terminal use this sentence and this order of alarms.

use serde_json::{Value, json};
use telemetry::table::short_number;
use telemetry::{Alarm, Step, Weight};

/// The verdict on a training run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The state: `learning`, `level`, `falling`, `learned` (noise hides the current trend), `not yet`, `worse`,
    /// `constant`, `gamed`, `broken`, or `nothing` if there are too few values.
    pub state: &'static str,
    /// The verdict as a sentence.
    pub says: String,
}

impl Verdict {
    /// The verdict as JSON for the page.
    pub fn to_json(&self) -> Value {
        json!({ "state": self.state, "says": self.says })
    }

    /// Whether the metric improved and is not falling now.
    pub fn has_learned(&self) -> bool {
        ["level", "learned"].contains(&self.state)
    }
}

/// The metric that determines a verdict.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// One value per step.
    pub values: &'a [f64],
    /// Whether higher values are better.
    pub higher_is_better: bool,
    /// Whether the run has ended.
    pub has_ended: bool,
}

/// The verdict on a run, from its curve, the active alarms, and the metric's values on held-out prompts.
pub fn verdict(judged: Judged<'_>, alarms: &[Alarm], held_out: &[f64]) -> Verdict {
    let (mut verdict, improvement) = of_curve(judged);
    if verdict.state == "nothing" {
        return verdict;
    }
    let mut open: Vec<&Alarm> = alarms.iter().filter(|alarm| alarm.until.is_none()).collect();
    open.sort_by_key(|alarm| alarm.place(verdict.has_learned()));
    let worst = open.first().filter(|alarm| alarm.weight(verdict.has_learned()) == Weight::Broken);
    if let Some(alarm) = worst {
        let since = |words: &str| format!("{words} (since step {})", alarm.since);
        verdict = match (alarm.gaming(), improvement) {
            // A gamed reward is not the goal of the run, so the sentence omits the trend.
            (Some(words), Some(went)) => {
                Verdict { state: "gamed", says: format!("Gamed: {went}, but {}.", since(words)) }
            }
            (Some(words), None) => Verdict { state: "gamed", says: format!("{} But {}.", verdict.says, since(words)) },
            (None, _) => {
                let words = since(alarm.broken().unwrap_or_default());
                Verdict { state: "broken", says: format!("{} But {words}.", verdict.says) }
            }
        };
    } else if verdict.has_learned() && open.iter().any(|alarm| alarm.id == "zero_variance") {
        verdict.says += " Nearly every group earns the same now: nothing is left to learn from these prompts.";
    }
    verdict.says += &of_held_out(held_out);
    verdict
}

/// A sentence about the metric's values on held-out prompts; empty if there are fewer than two.
fn of_held_out(values: &[f64]) -> String {
    let values: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    match values[..] {
        [first, .., last] => format!(" Held-out: {} to {}.", number(first), number(last)),
        _ => String::new(),
    }
}

/// Compares the first value of a metric with the mean of the last tenth; [`Change::judged`] replaces a first value that
/// may be noise. A change is significant if it exceeds three standard errors. After an improvement, a line fitted to
/// the last third of the values gives the trend. The second result describes the improvement; it is `None` if there is
/// none, or if the last value jumped away from the previous values and is not better than the first.
fn of_curve(Judged { name, values: all, higher_is_better, has_ended }: Judged<'_>) -> (Verdict, Option<String>) {
    let values: Vec<f64> = all.iter().copied().filter(|x| x.is_finite()).collect();
    if values.len() < 4 {
        let says = format!("Too early to tell: {} of {name}, and 4 are needed.", counted(values.len(), "value"));
        return (Verdict { state: "nothing", says }, None);
    }
    let last_tenth = &all[all.len() - tenth(all)..];
    if last_tenth.iter().all(|x| !x.is_finite()) {
        let (from, count) = (number(values[0]), last_tenth.len());
        let says = format!("Worse: {name} began at {from}, and its last {count} values are NaN or infinite.");
        return (Verdict { state: "worse", says }, None);
    }
    // The means of equal values differ by rounding.
    if values.iter().all(|x| (x - values[0]).abs() <= 1e-9 * values[0].abs()) {
        let says = format!("Nothing to learn from: {name} was {} in every step.", number(values[0]));
        return (Verdict { state: "constant", says }, None);
    }
    let sign = if higher_is_better { 1.0 } else { -1.0 };
    let not_learned = |from: f64, to: f64| {
        let (from, to) = (number(from), number(to));
        let says = if has_ended {
            format!("Not learned: {name} began at {from} and ended at {to}, which may be chance.")
        } else {
            format!("Not learning yet: {name} began at {from} and is {to}, which may be chance.")
        };
        (Verdict { state: "not yet", says }, None)
    };
    let change = Change::judged(&values, sign);
    let went = format!("{name} went from {} to {}", number(change.from), number(change.to));
    if !change.counts() {
        return not_learned(change.from, change.to);
    }
    if sign * (change.to - change.from) < 0.0 {
        return (Verdict { state: "worse", says: format!("Worse: {went}.") }, None);
    }
    let (first, last, end) = (values[0], values[values.len() - 1], last_third(&values));
    let others = &end[..end.len() - 1];
    if sign * (last - first) <= 0.0 && is_better_than_all(last, others, deviation(others), -sign) {
        return not_learned(first, last);
    }
    let (state, says) = match Tail::of(&values, change.to - change.from) {
        Tail::Improves if has_ended => ("learning", format!("Learned: {went}, and still improved at the end.")),
        Tail::Improves => ("learning", format!("Learning: {went}, and it still improves.")),
        Tail::Level => ("level", format!("Learned: {went}, and is level now.")),
        Tail::Falls => ("falling", format!("Learned: {went}, but it became worse in the last third of the steps.")),
        Tail::Unknown => ("learned", format!("Learned: {went}; it may still be improving, but the noise hides it.")),
    };
    (Verdict { state, says }, Some(went))
}

/// The standard deviation of the noise in a metric's values, computed from the differences between consecutive values.
/// The mean difference is subtracted, so that a trend is not mistaken for noise.
fn deviation(values: &[f64]) -> f64 {
    let trend = (values[values.len() - 1] - values[0]) / (values.len() - 1) as f64;
    let squares = values.windows(2).map(|pair| (pair[1] - pair[0] - trend).powi(2)).sum::<f64>();
    // The variance of a difference is twice that of a value.
    (squares / (values.len() - 1) as f64 / 2.0).sqrt()
}

/// The number of values in the last tenth, at least two.
fn tenth(values: &[f64]) -> usize {
    values.len().div_ceil(10).max(2)
}

/// The last third of the values, at least four of them.
fn last_third(values: &[f64]) -> &[f64] {
    &values[values.len() - values.len().div_ceil(3).max(4).min(values.len())..]
}

/// Whether `x` is better than each of the others by more than `margin`. `sign` is 1 if higher values are better, and −1
/// if lower values are better.
fn is_better_than_all(x: f64, others: &[f64], margin: f64, sign: f64) -> bool {
    others.iter().all(|other| sign * (x - other) > margin)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The change of a metric from its beginning to the mean of the last tenth.
struct Change {
    from: f64,
    to: f64,
    /// Three standard errors of the difference.
    noise: f64,
}

impl Change {
    /// The change from the first value. Needs at least two values.
    fn of(values: &[f64]) -> Change {
        let to = mean(&values[values.len() - tenth(values)..]);
        Change { from: values[0], to, noise: noise_of_first(deviation(values), tenth(values), to) }
    }

    /// The change that a verdict uses. It starts at the first value if that change is significant, or if there are too
    /// few values for a mean of the first tenth. Otherwise the first value, which comes from a single step, may be
    /// noise, and the mean of the first tenth replaces it. There are two exceptions:
    ///
    /// - The first value is better than each of the next values. Then the run lost its initial level immediately. This
    ///   jump is not noise, so the noise is estimated from the last third, and the change starts at the first value.
    /// - The first value is better than each value of the last third. Then the run has not improved on the first value,
    ///   and the change from that value is not significant.
    fn judged(values: &[f64], sign: f64) -> Change {
        let from_first = Change::of(values);
        let width = values.len() / 10;
        if from_first.counts() || width < 2 {
            return from_first;
        }
        let (first, soon, end) = (values[0], &values[1..width.max(7)], last_third(values));
        // A lucky first value does not make a run worse: the noise is then estimated from the next values.
        let margin = deviation(if sign * (from_first.to - first) > 0.0 { end } else { soon });
        if is_better_than_all(first, soon, margin, sign) {
            return Change { noise: noise_of_first(deviation(end), tenth(values), from_first.to), ..from_first };
        }
        if is_better_than_all(first, end, deviation(end), sign) {
            return from_first;
        }
        let last = values.len().div_ceil(10);
        let noise = 3.0 * deviation(values) * (1.0 / width as f64 + 1.0 / last as f64).sqrt();
        Change { from: mean(&values[..width]), noise: noise.max(1e-9 * from_first.to.abs()), ..from_first }
    }

    fn counts(&self) -> bool {
        (self.to - self.from).abs() > self.noise
    }
}

/// Three standard errors of the difference between a first value and the mean `to` of the `count` last values.
fn noise_of_first(deviation: f64, count: usize, to: f64) -> f64 {
    let variance = deviation.powi(2);
    // The first value is a single value, so its error is included. The means of equal values differ by rounding.
    (3.0 * (variance + variance / count as f64).sqrt()).max(1e-9 * to.abs())
}

/// The change of a metric, for deciding which of several metrics moved first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// The mean of the first value and its neighbours.
    pub from: f64,
    /// The mean of the last tenth.
    pub to: f64,
    /// The step at which half of the change was reached; `None` if the metric did not move significantly. It is the
    /// first step whose neighbourhood (five values; in long runs, a twentieth of all values) has a mean at least
    /// half-way from `from` to `to`.
    pub half: Option<Step>,
}

/// The change of a metric; `None` if there are too few values. `values` has pairs of step and value.
pub fn moved(values: &[(Step, f64)]) -> Option<Moved> {
    let (steps, values): (Vec<Step>, Vec<f64>) = values.iter().filter(|(_, x)| x.is_finite()).copied().unzip();
    if values.len() < 4 {
        return None;
    }
    let around = (values.len() / 40).max(2);
    let to = mean(&values[values.len() - tenth(&values)..]);
    // Prefix sums, so that the mean of a neighbourhood takes constant time.
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

/// The trend in the last third of the values, after an improvement.
enum Tail {
    Improves,
    Level,
    Falls,
    Unknown,
}

impl Tail {
    /// Fits a line to the last third; its rise is the difference between the ends of the line. A rise with the sign of
    /// `gain`, the improvement over all steps, is an improvement. A rise is significant if it exceeds three standard
    /// errors and a tenth of the gain. The values are level only if rises of plus and minus a tenth of the gain are
    /// both more than two standard errors away.
    fn of(values: &[f64], gain: f64) -> Tail {
        let third = last_third(values);
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
mod tests;
