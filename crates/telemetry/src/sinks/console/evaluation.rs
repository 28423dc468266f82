//! An evaluation as a table: a row for each metric and a column for each evaluation set, with the values of the
//! evaluation before.

use super::duration;
use super::step_table::number;
use crate::outputs::evaluated;
use crate::table::{Align, Table};

/// Remembers the values of the last evaluation.
#[derive(Debug, Default)]
pub(super) struct Evaluations {
    before: Vec<(String, f64)>,
}

/// Metrics that have no row in the table: they are in its headline, or not shown.
const ELSEWHERE: [&str; 9] = [
    "runtime",
    "num_tokens",
    "samples_per_second",
    "frac_reward_zero_std",
    "completions/min_length",
    "completions/max_length",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
];

impl Evaluations {
    /// The text of the table of an evaluation after `step`.
    pub(super) fn table(&mut self, step: u64, values: &[(String, f64)], width: usize) -> String {
        let before = std::mem::replace(&mut self.before, values.to_vec());
        let value = |all: &[(String, f64)], name: &str| all.iter().find(|(own, _)| own == name).map(|(_, x)| *x);
        let (mut sets, mut metrics): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for (name, _) in values {
            let (set, metric) = evaluated(name);
            if ELSEWHERE.contains(&metric) {
                continue;
            }
            if !sets.contains(&set) {
                sets.push(set);
            }
            if !metrics.contains(&metric) {
                metrics.push(metric);
            }
        }
        let head = |set: &&str| [if set.is_empty() { "value" } else { set }.to_owned(), "before".to_owned()];
        let columns = sets.iter().flat_map(head).map(|name| (name, Align::Right));
        let mut table = Table::new([("metric".to_owned(), Align::Left)].into_iter().chain(columns));
        for metric in metrics {
            let cells = sets.iter().flat_map(|set| {
                let name = if set.is_empty() { format!("eval_{metric}") } else { format!("eval_{set}_{metric}") };
                [value(values, &name), value(&before, &name)].map(|x| x.map_or_else(String::new, number))
            });
            table.row([metric.to_owned()].into_iter().chain(cells));
        }
        let took = value(values, "eval_runtime").map(|s| format!(" ({})", duration(s))).unwrap_or_default();
        format!("evaluation after step {step}{took}\n{}", table.render(width).trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_rows_and_sets_are_columns() {
        let of = |reward: f64| {
            let all = [("eval_reward", reward), ("eval_my_set_reward", 0.25), ("eval_my_set_pass@4", 1.0)];
            let all = all.into_iter().chain([("eval_runtime", 1.5), ("eval_odd", 7.0)]);
            all.map(|(name, x)| (name.to_owned(), x)).collect::<Vec<_>>()
        };
        let mut evaluations = Evaluations::default();
        let first = evaluations.table(4, &of(0.5), 80);
        assert_eq!(
            first.lines().collect::<Vec<_>>(),
            [
                "evaluation after step 4 (1.50 s)",
                "metric  value  before  my_set  before",
                "──────  ─────  ──────  ──────  ──────",
                "reward  0.500           0.250",
                "pass@4                   1.00",
                "odd      7.00",
            ]
        );
        let second = evaluations.table(8, &of(0.75), 80);
        assert!(second.contains("reward  0.750   0.500   0.250   0.250"), "{second}");
    }

    #[test]
    fn what_has_no_row_and_what_is_new() {
        let of = |all: &[(&str, f64)]| all.iter().map(|&(name, x)| (name.to_owned(), x)).collect::<Vec<_>>();
        let mut evaluations = Evaluations::default();
        evaluations.table(1, &of(&[("eval_loss", 3.0), ("eval_reward", 0.5)]), 80);
        let all =
            [("eval_loss", 2.0), ("eval_runtime", 125.0), ("eval_num_tokens", 7.0), ("eval_samples_per_second", 8.0)];
        let text = evaluations.table(30, &of(&[&all[..], &[("eval_entropy", 1.0)]].concat()), 80);
        let expected = [
            "evaluation after step 30 (2 min 05 s)",
            "metric   value  before",
            "───────  ─────  ──────",
            "loss      2.00    3.00",
            "entropy   1.00",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let text = evaluations.table(31, &of(&[("eval_entropy", 0.5), ("eval_reward", 1.0)]), 80);
        let expected = [
            "evaluation after step 31",
            "metric   value  before",
            "───────  ─────  ──────",
            "entropy  0.500    1.00",
            "reward    1.00",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "before is the evaluation before");
    }
}
