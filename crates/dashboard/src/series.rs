//! Metrics by step, stored in columns, and their aggregation into buckets for charts.
//!
//! A bucket covers 2^k steps on a grid that starts at step 0. k is the smallest number for which the number of buckets
//! with values does not exceed the chart's pixels, so a run that logs every 25th step is shown step by step. While a
//! run grows, only the last bucket changes, and all metrics and runs share the grid. Each bucket keeps its minimum and
//! maximum, so that a spike of one step stays visible.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use telemetry::{Step, system::since_1970};

/// The bits of the NaN that marks a line without the metric; no metric has these bits.
const MISSING: u64 = 0x7ff8_dead_beef_0001;

/// A horizontal axis of charts, other than the axis of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Minutes of training since the first logged step: the sum of `step_time`, without evaluations and without the
    /// time between a stop and a resume.
    Minutes,
    /// Tokens of training so far: `num_tokens`.
    Tokens,
}

/// The metrics of one training run, as read from `metrics.jsonl` line by line.
pub struct Series {
    steps: Vec<Step>,
    columns: BTreeMap<String, Vec<f64>>,
    edition: u64,
}

impl Default for Series {
    fn default() -> Series {
        Series { steps: Vec::new(), columns: BTreeMap::new(), edition: new_edition() }
    }
}

/// A number that is larger than all earlier ones, also those of an earlier process. It is exact in JavaScript.
fn new_edition() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_max(since_1970().as_micros() as u64, Ordering::Relaxed);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The buckets that a page has received before. Only the last of them may have changed, unless the edition of the
/// series or the width of the buckets is another one now.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// The [edition](Series::edition) of the series.
    pub edition: u64,
    /// The number of steps in a bucket.
    pub width: u64,
    /// The first step of the last bucket.
    pub last: Step,
}

/// The aggregate of one metric over the steps of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bucket {
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
    /// Number of NaN or infinite values, which the mean excludes.
    non_finite: u64,
}

impl Bucket {
    fn add(&mut self, x: f64) {
        if !x.is_finite() {
            self.non_finite += 1;
            return;
        }
        (self.min, self.max) = if self.count == 0 { (x, x) } else { (self.min.min(x), self.max.max(x)) };
        self.sum += x;
        self.count += 1;
    }
}

impl Series {
    /// Adds a line of metrics. Lines of the same step (a training step, and the evaluation after it) are merged.
    pub fn add(&mut self, step: Step, line: &Map<String, Value>) {
        if self.steps.last() != Some(&step) {
            if self.steps.last().is_some_and(|last| step < *last) {
                self.edition = new_edition();
            }
            self.steps.push(step);
        }
        let rows = self.steps.len();
        for (key, value) in line {
            let Some(x) = number(value).filter(|_| key != "step") else { continue };
            let column = self.columns.entry(key.clone()).or_default();
            column.resize(rows, f64::from_bits(MISSING));
            column[rows - 1] = x;
        }
    }

    /// A number that changes when a line does not belong to the last step or to a later one, as when a run is resumed
    /// from an earlier step.
    pub fn edition(&self) -> u64 {
        self.edition
    }

    /// The last step that was logged.
    pub fn last_step(&self) -> Option<Step> {
        self.steps.last().copied()
    }

    /// The names of all metrics.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.columns.keys().map(String::as_str)
    }

    /// The steps and values of the metric `key`.
    pub fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = (Step, f64)> + 'a {
        self.values_from(0, key)
    }

    /// Like [`values`](Self::values), without the rows before row `begin`.
    fn values_from<'a>(&'a self, begin: usize, key: &str) -> impl Iterator<Item = (Step, f64)> + 'a {
        let column = self.columns.get(key).and_then(|column| column.get(begin..)).unwrap_or_default();
        let there = |(&step, &x): (&Step, &f64)| (x.to_bits() != MISSING).then_some((step, x));
        self.steps.iter().skip(begin).zip(column).filter_map(there)
    }

    /// The value of the axis at each line of metrics; empty if the run does not log the metric for the axis.
    fn along(&self, axis: Axis) -> Vec<f64> {
        let key = if axis == Axis::Minutes { "step_time" } else { "num_tokens" };
        let Some(column) = self.columns.get(key) else { return Vec::new() };
        let (mut at, mut before) = (0.0, None);
        let rows = self.steps.iter().enumerate().map(|(row, &step)| {
            match column.get(row).copied().filter(|x| x.is_finite()) {
                Some(tokens) if axis == Axis::Tokens => at = tokens,
                // The logged time is the mean over the steps since the previous line.
                Some(seconds) => {
                    at += seconds * step.0.saturating_sub(before.unwrap_or(step).0) as f64 / 60.0;
                    before = Some(step);
                }
                // An evaluation is at the position of the step before it.
                None => {}
            }
            at
        });
        rows.collect()
    }

    /// The [`buckets`](Self::buckets) of the steps for which the axis is between `from` and `to`. The additional key
    /// `x` is the value of the axis at the first line of each bucket.
    pub fn buckets_along(&self, axis: Axis, keys: &[String], from: f64, to: f64, pixels: usize) -> Value {
        let places = self.along(axis);
        let inside: Vec<(Step, f64)> =
            self.steps.iter().copied().zip(places).filter(|(_, x)| (from..=to).contains(x)).collect();
        let steps = || inside.iter().map(|(step, _)| *step);
        // The default is the empty range of steps from 1 to 0.
        let (first, last) = (steps().min().unwrap_or(Step(1)), steps().max().unwrap_or_default());
        let mut buckets = self.buckets(keys, first, last, pixels);
        let width = buckets["width"].as_u64().unwrap_or(1);
        let mut x: BTreeMap<u64, f64> = BTreeMap::new();
        for (step, place) in inside {
            x.entry(step.0 / width * width).or_insert((place * 1e6).round() / 1e6);
        }
        let of_bucket = |step: &Value| x.get(&step.as_u64().unwrap_or_default()).copied();
        let places: Vec<Option<f64>> = buckets["steps"].as_array().into_iter().flatten().map(of_bucket).collect();
        buckets["x"] = json!(places);
        buckets
    }

    /// For each metric in `keys`, at most `pixels` buckets over the steps `from` to `to`: `{"width", "steps", "keys":
    /// {KEY: {"mean", "min", "max", "count", "non_finite", "gaps"}}}`. `min`, `max` and `count` are omitted if a bucket
    /// is one step. `gaps` (the indices of buckets with only NaN or infinite values) is omitted if it is empty.
    pub fn buckets(&self, keys: &[String], from: Step, to: Step, pixels: usize) -> Value {
        self.buckets_after(None, keys, from, to, pixels)
    }

    /// Like [`buckets`](Self::buckets), but only the buckets that may differ from the received ones: the last of these,
    /// and later ones. The key `since` then has the step at which they begin; it is missing if these are all buckets.
    pub fn buckets_after(
        &self,
        received: Option<Received>,
        keys: &[String],
        from: Step,
        to: Step,
        pixels: usize,
    ) -> Value {
        let to = to.min(self.last_step().unwrap_or_default());
        let mut grid: Vec<u64> =
            self.steps.iter().filter(|step| (from..=to).contains(step)).map(|step| step.0).collect();
        grid.sort_unstable();
        grid.dedup();
        let mut width = 1u64;
        while grid.len() > pixels.max(1) {
            width *= 2;
            for step in &mut grid {
                *step = *step / width * width;
            }
            grid.dedup();
        }
        let is_current = |received: &Received| (received.edition, received.width) == (self.edition, width);
        let since = received.filter(is_current).map(|received| received.last);
        let from = since.map_or(from, |since| from.max(since));
        let begin = self.steps.iter().position(|step| *step >= from).unwrap_or(self.steps.len());
        let mut all: BTreeMap<u64, Vec<Bucket>> = BTreeMap::new();
        for (place, key) in keys.iter().enumerate() {
            for (step, x) in self.values_from(begin, key).filter(|(step, _)| (from..=to).contains(step)) {
                all.entry(step.0 / width * width).or_insert_with(|| vec![Bucket::default(); keys.len()])[place].add(x);
            }
        }
        let column = |place: usize, of: &dyn Fn(&Bucket) -> f64| -> Vec<Value> {
            let value = |buckets: &Vec<Bucket>| {
                let bucket = buckets[place];
                if bucket.count == 0 { Value::Null } else { short(of(&bucket)) }
            };
            all.values().map(value).collect()
        };
        let mut of_keys = Map::new();
        for (place, key) in keys.iter().enumerate() {
            let mut of_key = Map::new();
            of_key.insert("mean".into(), column(place, &|b| b.sum / b.count as f64).into());
            if width > 1 {
                of_key.insert("min".into(), column(place, &|b| b.min).into());
                of_key.insert("max".into(), column(place, &|b| b.max).into());
                of_key.insert("count".into(), all.values().map(|buckets| buckets[place].count).collect());
            }
            let non_finite: u64 = all.values().map(|buckets| buckets[place].non_finite).sum();
            of_key.insert("non_finite".into(), non_finite.into());
            let is_gap = |buckets: &Vec<Bucket>| buckets[place].count == 0 && buckets[place].non_finite > 0;
            let gaps: Vec<usize> = (0..).zip(all.values()).filter(|(_, b)| is_gap(b)).map(|(i, _)| i).collect();
            if !gaps.is_empty() {
                of_key.insert("gaps".into(), gaps.into());
            }
            of_keys.insert(key.clone(), of_key.into());
        }
        let steps: Vec<u64> = all.keys().copied().collect();
        let mut answer = json!({ "width": width, "steps": steps, "keys": of_keys });
        if let Some(since) = since {
            answer["since"] = json!(since);
        }
        answer
    }
}

/// The value of a metric. Values that are NaN or infinite are strings in the file.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(x) => x.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" | "nan" => Some(f64::NAN),
            "inf" | "Infinity" => Some(f64::INFINITY),
            "-inf" | "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// The number rounded to six significant digits, which exceeds the precision of a chart.
pub fn short(x: f64) -> Value {
    format!("{x:.5e}").parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(value: f64) -> Map<String, Value> {
        [("step".to_owned(), 1.into()), ("reward".to_owned(), value.into())].into_iter().collect()
    }

    #[test]
    fn a_spike_of_one_step_stays_visible_in_a_hundred_thousand_steps() {
        let mut series = Series::default();
        (1..=100_000).for_each(|step| series.add(Step(step), &line(if step == 77_777 { 9.0 } else { 1.0 })));
        let all = series.buckets(&["reward".into()], Step(0), Step(u64::MAX), 500);
        let of = |name: &str| all["keys"]["reward"][name].as_array().unwrap().clone();
        assert!(of("max").iter().any(|x| x == 9.0) && of("min").iter().all(|x| x == 1.0));
        let (width, steps) = (all["width"].as_u64().unwrap(), all["steps"].as_array().unwrap().len());
        assert!(width == 256 && steps <= 500 && all.to_string().len() < 50_000, "{width} {steps}");
        // One more step changes only the last bucket, and only this one is sent again.
        series.add(Step(100_001), &line(5.0));
        let after = series.buckets(&["reward".into()], Step(0), Step(u64::MAX), 500);
        let means = |value: &Value| value["keys"]["reward"]["mean"].as_array().unwrap().clone();
        assert_eq!(means(&all)[..steps - 1], means(&after)[..steps - 1]);
        let last = Step(all["steps"][steps - 1].as_u64().unwrap());
        let received = Received { edition: series.edition(), width, last };
        let part = |received, series: &Series| {
            series.buckets_after(Some(received), &["reward".into()], Step(0), Step(u64::MAX), 500)
        };
        let end = part(received, &series);
        assert_eq!((&end["since"], &end["steps"]), (&json!(last), &json!([last])));
        for name in ["mean", "min", "max", "count"] {
            assert_eq!(end["keys"]["reward"][name][0], after["keys"]["reward"][name][steps - 1], "{name}");
        }
        // Everything is sent if the width has changed, for another run, and after a resume from an earlier step.
        assert_eq!(part(Received { width: 128, ..received }, &series), after);
        assert_eq!(part(Received { edition: Series::default().edition(), ..received }, &series), after);
        series.add(Step(99_000), &line(7.0));
        let resumed = part(received, &series);
        assert_eq!((&resumed["since"], &resumed["steps"][0]), (&Value::Null, &json!(0)));
        assert!(means(&resumed)[..] != means(&after)[..means(&resumed).len()]);
    }

    /// Ten steps of 30 s and 100 tokens each; every second step is logged, and an evaluation follows step 6.
    fn with_times() -> Series {
        let mut series = Series::default();
        for step in (2..=10).step_by(2) {
            let line = json!({ "step_time": 30.0, "num_tokens": 100 * step, "reward": step });
            series.add(Step(step), line.as_object().unwrap());
            if step == 6 {
                series.add(Step(7), json!({ "eval_reward": 0.5 }).as_object().unwrap());
            }
        }
        series
    }

    #[test]
    fn a_chart_may_use_minutes_or_tokens_as_its_axis() {
        let series = with_times();
        let of = |axis, from, to, pixels| series.buckets_along(axis, &["reward".into()], from, to, pixels);
        let all = of(Axis::Minutes, 0.0, f64::MAX, 99);
        assert_eq!((&all["x"], &all["steps"]), (&json!([0.0, 1.0, 2.0, 3.0, 4.0]), &json!([2, 4, 6, 8, 10])));
        assert_eq!(of(Axis::Tokens, 0.0, f64::MAX, 99)["x"], json!([200.0, 400.0, 600.0, 800.0, 1000.0]));
        // Both ends are included, and a bucket is at the position of its first line.
        assert_eq!(of(Axis::Minutes, 1.0, 3.0, 99)["steps"], json!([4, 6, 8]));
        assert_eq!(of(Axis::Tokens, 201.0, 1e9, 2)["steps"], json!([4, 8]));
        assert_eq!(of(Axis::Tokens, 201.0, 1e9, 2)["x"], json!([400.0, 800.0]));
        assert_eq!(of(Axis::Tokens, 5000.0, 1e9, 2)["steps"], json!([]));
        let evaluated = series.buckets_along(Axis::Minutes, &["eval_reward".into()], 0.0, 9.0, 99);
        assert_eq!((&evaluated["steps"], &evaluated["x"]), (&json!([7]), &json!([2.0])));
    }

    #[test]
    fn a_run_without_times_or_tokens_has_no_such_axis() {
        let mut series = Series::default();
        series.add(Step(1), &line(1.0));
        for axis in [Axis::Minutes, Axis::Tokens] {
            let none = series.buckets_along(axis, &["reward".into()], 0.0, f64::MAX, 99);
            assert_eq!((&none["steps"], &none["x"]), (&json!([]), &json!([])));
        }
    }

    #[test]
    fn a_rarely_logged_metric_is_shown_step_by_step() {
        let mut series = Series::default();
        (1..=40).for_each(|i| series.add(Step(25 * i), &line(i as f64)));
        let all = series.buckets(&["reward".into()], Step(0), Step(u64::MAX), 500);
        assert_eq!((&all["width"], all["steps"].as_array().unwrap().len()), (&json!(1), 40));
        assert_eq!(series.buckets(&["reward".into()], Step(0), Step(u64::MAX), 20)["width"], 64);
    }

    #[test]
    fn missing_metrics_and_non_finite_values_are_distinguished() {
        let mut series = Series::default();
        series.add(Step(1), &line(1.0));
        series.add(Step(2), &[("loss".to_owned(), "NaN".into())].into_iter().collect());
        series.add(Step(2), &[("eval_loss".to_owned(), 3.into())].into_iter().collect());
        assert_eq!(series.values("reward").collect::<Vec<_>>(), [(Step(1), 1.0)]);
        assert_eq!(series.values("eval_loss").collect::<Vec<_>>(), [(Step(2), 3.0)]);
        let buckets = series.buckets(&["reward".into(), "loss".into()], Step(0), Step(9), 100);
        assert_eq!(buckets["keys"]["loss"], json!({ "mean": [null, null], "non_finite": 1, "gaps": [1] }));
        assert_eq!(buckets["keys"]["reward"]["mean"], json!([1.0, null]));
    }

    #[test]
    fn a_bucket_has_mean_minimum_maximum_count_and_gaps() {
        let mut series = Series::default();
        let values = [json!(1.0), json!(4.0), json!(-2.0), json!("NaN"), json!("inf"), json!(8.0)];
        for (step, value) in (2..).zip(values) {
            series.add(Step(step), &[("a".to_owned(), value), ("step".to_owned(), 9.into())].into_iter().collect());
        }
        assert_eq!((series.keys().collect::<Vec<_>>(), series.last_step()), (vec!["a"], Some(Step(7))));
        let buckets = |from, to, pixels| series.buckets(&["a".into(), "b".into()], Step(from), Step(to), pixels);
        let none = vec![Value::Null; 3];
        let b = json!({ "mean": none, "min": none, "max": none, "count": [0, 0, 0], "non_finite": 0 });
        let (least, most) = ([1.0, -2.0, 8.0], [4.0, -2.0, 8.0]);
        let a = json!({
            "mean": [2.5, -2.0, 8.0], "min": least, "max": most, "count": [2, 1, 1], "non_finite": 2,
        });
        assert_eq!(buckets(0, 99, 3), json!({ "width": 2, "steps": [2, 4, 6], "keys": { "a": a, "b": b } }));
        let a = json!({ "mean": [1.0, 4.0, -2.0, null, null, 8.0], "non_finite": 2, "gaps": [3, 4] });
        let none = json!({ "mean": vec![Value::Null; 6], "non_finite": 0 });
        assert_eq!(buckets(2, 7, 6), json!({ "width": 1, "steps": [2, 3, 4, 5, 6, 7], "keys": { "a": a, "b": none } }));
        assert_eq!([5, 2, 1, 0].map(|pixels| buckets(2, 7, pixels)["width"].as_u64().unwrap()), [2, 4, 8, 8]);
        assert_eq!(buckets(3, 4, 9)["steps"], json!([3, 4]), "both ends must be included");
        assert_eq!(Series::default().buckets(&["a".into()], Step(0), Step(9), 9)["steps"], json!([]));
    }

    #[test]
    fn numbers_are_parsed_from_file_notation_and_rounded() {
        let of = |value: Value| number(&value);
        assert!(["NaN", "nan"].into_iter().all(|text| of(json!(text)).is_some_and(f64::is_nan)));
        assert_eq!(["inf", "Infinity"].map(|text| of(json!(text))), [Some(f64::INFINITY); 2]);
        assert_eq!(["-inf", "-Infinity"].map(|text| of(json!(text))), [Some(f64::NEG_INFINITY); 2]);
        assert_eq!(
            [of(json!("1")), of(json!(true)), of(json!(-3)), of(json!(0.5))],
            [None, None, Some(-3.0), Some(0.5)]
        );
        assert_eq!(
            [short(0.123_456_78), short(1_234_567.0), short(-2.0)],
            [json!(0.123_457), json!(1_234_570.0), json!(-2.0)]
        );
        assert_eq!([short(f64::NAN), short(f64::INFINITY)], [Value::Null, Value::Null]);
    }
}
