//! The table of logged steps: a line per step with aligned columns, and the column names repeated from time to time.
//!
//! The columns are the metrics that people watch most. A metric that a run lacks has no column, and a metric that a
//! step did not measure is shown as a dash.

use super::duration;
use crate::Step;
use crate::table::short_number;

/// Shown in place of a value that a step does not have.
const MISSING: &str = "–";
/// The number of rows after which the column names are printed again.
const ROWS: usize = 25;

/// How a column shows a step's metrics.
enum Shown {
    /// The value of a metric.
    Number(&'static str),
    /// The value of a metric, followed by ± and the value of a second metric.
    WithDeviation(&'static str, &'static str),
    /// The value of a metric that is a share, in percent.
    Percent(&'static str),
    /// The value of a metric in seconds.
    Seconds(&'static str),
}

/// The columns in order: the name, and the value shown. With several rewards, a column for each reward follows the
/// first column.
const COLUMNS: [(&str, Shown); 18] = [
    ("reward", Shown::WithDeviation("reward", "reward_std")),
    ("loss", Shown::Number("loss")),
    ("accuracy", Shown::Percent("mean_token_accuracy")),
    ("accuracy", Shown::Percent("rewards/accuracies")),
    ("accuracy", Shown::Percent("accuracy")),
    ("margin", Shown::Number("rewards/margins")),
    ("kl", Shown::Number("kl")),
    ("kl", Shown::Number("objective/kl")),
    ("entropy", Shown::Number("entropy")),
    ("clip", Shown::Percent("clip_ratio/region_mean")),
    ("length", Shown::Number("completions/mean_length")),
    ("cut", Shown::Percent("completions/clipped_ratio")),
    ("grad", Shown::Number("grad_norm")),
    ("tok/s", Shown::Number("rollout_tokens_per_s")),
    ("rollout", Shown::Seconds("rollout_time_s")),
    ("rewards", Shown::Seconds("reward_time_s")),
    ("update", Shown::Seconds("update_time_s")),
    ("step s", Shown::Seconds("step_time")),
];

/// The columns that a narrow terminal omits, in the order in which they are dropped. No other columns are dropped.
const SPARE: [&str; 12] =
    ["clip", "tok/s", "rewards", "rollout", "update", "grad", "cut", "margin", "entropy", "length", "kl", "loss"];

/// Short names of metrics that the table does not show.
const OTHERS: [(&str, &str); 3] = [
    ("value loss", "loss/value_avg"),
    ("explained variance", "val/explained_variance"),
    ("reverse kl", "distillation/reverse_kl"),
];

/// The column that shows the metric, if there is one.
fn column(metric: &str) -> Option<&'static (&'static str, Shown)> {
    COLUMNS.iter().find(|(_, shown)| match shown {
        Shown::Number(key) | Shown::WithDeviation(key, _) | Shown::Percent(key) | Shown::Seconds(key) => *key == metric,
    })
}

/// The name of a metric for people: the name of its column, or the last part of its own name.
pub(super) fn short_name(metric: &str) -> String {
    let other = || OTHERS.iter().find(|(_, key)| *key == metric).map(|(name, _)| *name);
    let known = column(metric).map(|(name, _)| *name).or_else(other);
    let last = || metric.rsplit('/').next().unwrap_or(metric).replace('_', " ");
    known.map_or_else(last, str::to_owned)
}

/// A metric in few characters, for a progress line: its short name, and its value as in the table of steps.
pub fn brief(metric: &str, value: f64) -> String {
    let value = match column(metric) {
        Some((_, Shown::Percent(_))) => format!("{:.0} %", value * 100.0),
        _ => number(value),
    };
    format!("{} {value}", short_name(metric))
}

/// The state of the table.
#[derive(Debug, Default)]
pub(super) struct StepTable {
    names: Vec<String>,
    widths: Vec<usize>,
    rows: usize,
    /// Columns that once did not fit. They stay hidden, so that the other columns keep their positions.
    dropped: Vec<String>,
}

impl StepTable {
    /// The lines for a step: its row, after the column names if it is time to print them again. `left_s` is the number
    /// of seconds until the end of the run, and `room` the width of a line in characters.
    pub(super) fn lines(
        &mut self,
        step: Step,
        values: &[(String, f64)],
        left_s: Option<f64>,
        room: usize,
    ) -> Vec<String> {
        let mut cells = vec![("step".to_owned(), step.to_string())];
        let value = |name: &str| values.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
        for (name, shown) in &COLUMNS {
            let text = match shown {
                Shown::Number(key) => value(key).map(number),
                Shown::WithDeviation(key, deviation) => value(key).map(|mean| match value(deviation) {
                    Some(deviation) => format!("{} ±{}", number(mean), number(deviation)),
                    None => number(mean),
                }),
                Shown::Percent(key) => value(key).map(|share| format!("{:.0} %", share * 100.0)),
                Shown::Seconds(key) => value(key).map(|seconds| format!("{seconds:.2}")),
            };
            cells.extend(text.map(|text| ((*name).to_owned(), text)));
            if *name == "reward" {
                let of = |(own, mean): &(String, f64)| {
                    let name = own.strip_prefix("rewards/")?.strip_suffix("/mean")?;
                    let name: String = name.chars().take(16).collect();
                    Some((name, number(*mean)))
                };
                let each: Vec<_> = values.iter().filter_map(of).collect();
                if each.len() > 1 {
                    cells.extend(each);
                }
            }
        }
        cells.push(("left".to_owned(), left_s.map_or_else(|| MISSING.to_owned(), duration)));
        let cells = self.with_known(cells);
        self.rows_of(cells, room)
    }

    /// The cells of the known columns and of the columns that are new in this step, in order. A column without a value
    /// gets a dash: with two steps per generation, every second step has no rewards.
    fn with_known(&self, cells: Vec<(String, String)>) -> Vec<(String, String)> {
        let mut names = self.names.clone();
        let new = cells.iter().filter(|(name, _)| !self.dropped.contains(name) && !self.names.contains(name));
        names.extend(new.map(|(name, _)| name.clone()));
        names.sort_by_key(|name| rank(name));
        let of = |name: &String| cells.iter().find(|(own, _)| own == name).map(|(_, text)| text.clone());
        let cell = |name: String| {
            let text = of(&name).unwrap_or_else(|| MISSING.to_owned());
            (name, text)
        };
        names.into_iter().map(cell).collect()
    }

    fn rows_of(&mut self, mut cells: Vec<(String, String)>, room: usize) -> Vec<String> {
        let width = |(name, text): &(String, String)| {
            let known = self.names.iter().position(|known| known == name).map_or(0, |place| self.widths[place]);
            known.max(name.chars().count()).max(text.chars().count())
        };
        let mut widths: Vec<usize> = cells.iter().map(width).collect();
        let mut spare = SPARE.iter();
        while widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1) > room
            && let Some(next) = spare.next()
        {
            if let Some(place) = cells.iter().position(|(name, _)| name == next) {
                self.dropped.push(cells.remove(place).0);
                widths.remove(place);
            }
        }
        let names: Vec<String> = cells.iter().map(|(name, _)| name.clone()).collect();
        let begins = self.names != names || self.rows >= ROWS;
        (self.names, self.widths) = (names, widths);
        self.rows = if begins { 1 } else { self.rows + 1 };
        let line = |of: fn(&(String, String)) -> &String| {
            let aligned = cells.iter().zip(&self.widths).map(|(cell, &width)| format!("{:>width$}", of(cell)));
            let line = aligned.collect::<Vec<_>>().join("  ");
            // A line wider than the terminal is truncated.
            line.chars().take(room).collect::<String>()
        };
        let head = begins.then(|| line(|(name, _)| name));
        head.into_iter().chain([line(|(_, text)| text)]).collect()
    }
}

/// The sort key of a column. The columns of single rewards come after the column of their sum.
fn rank(name: &str) -> usize {
    match COLUMNS.iter().position(|(known, _)| *known == name) {
        Some(place) => 2 * place + 1,
        None if name == "step" => 0,
        None if name == "left" => usize::MAX,
        None => 2,
    }
}

/// A number for people, with at most four digits.
pub(super) fn number(x: f64) -> String {
    short_number(x, 1e5, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(of: &[(&str, f64)]) -> Vec<(String, f64)> {
        of.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn columns_are_aligned_and_absent_metrics_get_no_column() {
        let mut table = StepTable::default();
        let of = |reward: f64| values(&[("reward", reward), ("reward_std", 0.25), ("kl", 1e-5), ("step_time", 1.5)]);
        let first = table.lines(Step(10), &of(0.5), None, 200);
        assert_eq!(first, ["step        reward      kl  step s  left", "  10  0.500 ±0.250  1.0e-5    1.50     –"]);
        let second = table.lines(Step(1000), &of(-12.25), Some(61.0), 200);
        assert_eq!(second, ["1000  -12.2 ±0.250  1.0e-5    1.50  1 min 01 s"]);
        // The column names are printed again after some rows, and whenever the columns change.
        let lines: Vec<usize> = (0..30).map(|step| table.lines(Step(step), &of(0.5), None, 200).len()).collect();
        assert_eq!((lines.iter().sum::<usize>(), lines[ROWS - 2]), (31, 2));
        assert_eq!(table.lines(Step(3), &values(&[("loss", 2.0)]), None, 200).len(), 2);
        // A row that does not fit even with all spare columns dropped is truncated.
        assert_eq!(StepTable::default().lines(Step(3), &values(&[("reward", 2.0)]), None, 9)[1], "   3    2");
    }

    /// The widths are those of terminals with 80 and 120 columns, minus the 12 columns of the time before a line.
    #[test]
    fn a_narrow_terminal_omits_spare_columns() {
        let all: Vec<(String, f64)> = COLUMNS
            .iter()
            .filter(|(name, _)| !["accuracy", "margin"].contains(name))
            .flat_map(|(_, shown)| match shown {
                Shown::WithDeviation(a, b) => vec![(*a).to_owned(), (*b).to_owned()],
                Shown::Number(key) | Shown::Percent(key) | Shown::Seconds(key) => vec![(*key).to_owned()],
            })
            .filter(|key| key != "objective/kl")
            .map(|key| (key, 0.12345))
            .collect();
        for (room, heads) in [
            (68, "step reward loss kl entropy length step s left"),
            (108, "step reward loss kl entropy length cut grad rollout rewards update step s left"),
        ] {
            let mut table = StepTable::default();
            let lines = table.lines(Step(7), &all, Some(12.0), room);
            assert!(lines.iter().all(|line| line.chars().count() <= room), "{lines:?}");
            assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), heads.split_whitespace().collect::<Vec<_>>());
            // Dropped columns stay hidden, even if they would fit later.
            assert_eq!(
                table.lines(Step(8), &values(&[("reward", 1.0), ("clip_ratio/region_mean", 0.5)]), None, 200).len(),
                1
            );
        }
    }

    #[test]
    fn progress_lines_have_short_names_and_few_digits() {
        for (metric, value, expected) in [
            ("reward", 0.98765, "reward 0.988"),
            ("loss", -0.0, "loss 0.000"),
            ("completions/mean_length", 64.0, "length 64.0"),
            ("objective/kl", 1e-5, "kl 1.0e-5"),
            ("rewards/accuracies", 0.625, "accuracy 62 %"),
            ("grad_norm", 12.345, "grad 12.3"),
            ("loss/value_avg", 0.5, "value loss 0.500"),
            ("val/explained_variance", -0.25, "explained variance -0.250"),
            ("of/my_own", 3.0, "my own 3.00"),
        ] {
            assert_eq!(brief(metric, value), expected);
        }
    }

    #[test]
    fn a_missing_metric_is_shown_as_a_dash() {
        let mut table = StepTable::default();
        let of = |entropy: Option<f64>, kl: Option<f64>| {
            let all = [("reward", Some(0.5)), ("kl", kl), ("entropy", entropy), ("grad_norm", Some(0.0))];
            all.into_iter().filter_map(|(name, x)| Some((name.to_owned(), x?))).collect::<Vec<_>>()
        };
        let first = table.lines(Step(1), &of(Some(2.0), Some(0.25)), None, 200);
        assert_eq!(first, ["step  reward     kl  entropy   grad  left", "   1   0.500  0.250     2.00  0.000     –"]);
        assert_eq!(
            table.lines(Step(2), &of(None, Some(0.25)), None, 200),
            ["   2   0.500  0.250        –  0.000     –"]
        );
        assert_eq!(table.lines(Step(3), &of(None, None), None, 200), ["   3   0.500      –        –  0.000     –"]);
        assert_eq!(
            table.lines(Step(4), &of(Some(1.0), None), None, 200),
            ["   4   0.500      –     1.00  0.000     –"]
        );
        // A column is added when its metric is measured for the first time.
        let mut table = StepTable::default();
        assert_eq!(table.lines(Step(1), &of(None, Some(0.25)), None, 200).len(), 2);
        let begun = table.lines(Step(2), &of(Some(2.0), None), None, 200);
        assert_eq!(begun, ["step  reward     kl  entropy   grad  left", "   2   0.500      –     2.00  0.000     –"]);
        assert_eq!(
            table.lines(Step(3), &of(None, Some(0.25)), None, 200),
            ["   3   0.500  0.250        –  0.000     –"]
        );
        assert_eq!(
            table.lines(Step(4), &of(Some(2.0), None), None, 200).len(),
            1,
            "the columns of known metrics must not change"
        );
    }

    #[test]
    fn each_reward_has_a_column_if_there_are_several() {
        let mut table = StepTable::default();
        let one = values(&[("reward", 1.0), ("rewards/gsm8k/mean", 1.0)]);
        assert_eq!(table.lines(Step(1), &one, None, 200)[0], "step  reward  left");
        let two = values(&[("reward", 1.5), ("rewards/gsm8k/mean", 1.0), ("rewards/format/mean", f64::NAN)]);
        let lines = table.lines(Step(1), &two, None, 200);
        assert_eq!(lines, ["step  reward  gsm8k  format  left", "   1    1.50   1.00     NaN     –"]);
    }

    #[test]
    fn column_widths_stay_until_the_columns_change() {
        let mut table = StepTable::default();
        table.lines(Step(1), &values(&[("loss", 1234.5)]), Some(7380.0), 200);
        assert_eq!(table.lines(Step(2), &values(&[("loss", 1.0)]), None, 200), ["   2  1.00           –"]);
        let both = ["step  loss    kl        left", "   3     –  1.00           –"];
        assert_eq!(table.lines(Step(3), &values(&[("kl", 1.0)]), None, 200), both);
        let heads = (0..60).map(|step| table.lines(Step(step), &values(&[("kl", 1.0)]), None, 200).len() - 1);
        let at: Vec<usize> = heads.enumerate().filter(|(_, head)| *head == 1).map(|(at, _)| at).collect();
        assert_eq!(at, [ROWS - 1, 2 * ROWS - 1]);
    }
}
