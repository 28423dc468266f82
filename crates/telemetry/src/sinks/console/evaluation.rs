//! Shows an evaluation as a line and as a table. The line has the main metric and its change since the first
//! evaluation. The table has a row for each metric and a column for each evaluation set, next to the values of the
//! previous evaluation.

use super::duration;
use super::step_table::{number, short_name};
use crate::Step;
use crate::outputs::evaluated;
use crate::table::{Align, Table};

/// Remembers the first value of each metric that a line has shown, and the values of the previous evaluation.
#[derive(Debug, Default)]
pub(super) struct Evaluations {
    /// Each metric's name, the step after which it was measured, and its value.
    first: Vec<(String, Step, f64)>,
    before: Vec<(String, f64)>,
}

/// The candidates for an evaluation's main metric, in order of preference. The line shows the first that the evaluation
/// has. An evaluation without any of them has only metrics of user code.
const JUDGED: [&str; 4] = ["reward", "rewards/accuracies", "accuracy", "loss"];

/// Metrics without a row in the table: they are in its heading, or not shown at all.
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

/// The metrics of an evaluation that are shown: for each the evaluation set, the metric's name without the set, and the
/// value.
fn shown(values: &[(String, f64)]) -> impl Iterator<Item = (&str, &str, f64)> {
    let eval_values = values.iter().filter(|(name, _)| name.starts_with("eval_"));
    let split = eval_values.map(|(name, value)| {
        let (set, metric) = evaluated(name);
        (set, metric, *value)
    });
    split.filter(|(_, metric, _)| !ELSEWHERE.contains(metric))
}

impl Evaluations {
    /// The line for an evaluation after `step`: the main metric of each evaluation set, and its change since the first
    /// evaluation.
    pub(super) fn line(&mut self, step: Step, values: &[(String, f64)]) -> String {
        let mut sets: Vec<&str> = Vec::new();
        for (set, _, _) in shown(values) {
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        let of = |set: &&str, name: &str| shown(values).find(|(own, metric, _)| own == set && *metric == name);
        let mut judged: Vec<_> = sets.iter().filter_map(|set| JUDGED.iter().find_map(|name| of(set, name))).collect();
        if judged.is_empty() {
            judged.extend(shown(values).next());
        }
        let parts: Vec<String> = judged.into_iter().map(|metric| self.part(step, metric)).collect();
        let took = values.iter().find(|(name, _)| name == "eval_runtime").map(|(_, s)| duration(*s));
        match (parts.is_empty(), took) {
            (false, Some(took)) => format!("step {step}: held-out {}; {took}", parts.join(", ")),
            (false, None) => format!("step {step}: held-out {}", parts.join(", ")),
            (true, Some(took)) => format!("step {step}: evaluated in {took}"),
            (true, None) => format!("step {step}: evaluated"),
        }
    }

    /// A metric of an evaluation set, with its value and its change.
    fn part(&mut self, step: Step, (set, metric, value): (&str, &str, f64)) -> String {
        let of = if set.is_empty() { String::new() } else { format!("{set} ") };
        let text = format!("{of}{} {}", short_name(metric), number(value));
        if !value.is_finite() {
            return text;
        }
        let name = format!("{of}{metric}");
        let Some((_, since, first)) = self.first.iter().find(|(first, ..)| *first == name) else {
            self.first.push((name, step, value));
            return text;
        };
        let sign = if value < *first { '-' } else { '+' };
        format!("{text} ({sign}{} since step {since})", number((value - first).abs()))
    }

    /// The table of an evaluation after `step`, as text.
    pub(super) fn table(&mut self, step: Step, values: &[(String, f64)], width: usize) -> String {
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
    fn evaluation_tables_have_metrics_as_rows_and_sets_as_columns() {
        let of = |reward: f64| {
            let all = [("eval_reward", reward), ("eval_my_set_reward", 0.25), ("eval_my_set_pass@4", 1.0)];
            let all = all.into_iter().chain([("eval_runtime", 1.5), ("eval_odd", 7.0)]);
            all.map(|(name, x)| (name.to_owned(), x)).collect::<Vec<_>>()
        };
        let mut evaluations = Evaluations::default();
        let first = evaluations.table(Step(4), &of(0.5), 80);
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
        let second = evaluations.table(Step(8), &of(0.75), 80);
        assert!(second.contains("reward  0.750   0.500   0.250   0.250"), "{second}");
    }

    #[test]
    fn evaluation_lines_show_step_value_and_change_since_the_first() {
        let of = |all: &[(&str, f64)]| all.iter().map(|&(name, x)| (name.to_owned(), x)).collect::<Vec<_>>();
        let mut evaluations = Evaluations::default();
        let mut line = |step, all: &[(&str, f64)]| evaluations.line(Step(step), &of(all));
        let reward = |x| [("eval_loss", 3.0), ("eval_reward", x), ("eval_runtime", 1.5), ("epoch", 2.0)];
        assert_eq!(line(0, &reward(0.09)), "step 0: held-out reward 0.090; 1.50 s");
        assert_eq!(line(20, &reward(0.5)), "step 20: held-out reward 0.500 (+0.410 since step 0); 1.50 s");
        assert_eq!(line(40, &reward(-0.0)), "step 40: held-out reward 0.000 (-0.090 since step 0); 1.50 s");
        // If an evaluation has no reward, the next one is still compared with the first.
        assert_eq!(line(60, &[("eval_loss", 3.5), ("eval_runtime", 70.0)]), "step 60: held-out loss 3.50; 1 min 10 s");
        assert_eq!(line(80, &[("eval_reward", 0.09)]), "step 80: held-out reward 0.090 (+0.000 since step 0)");
        assert_eq!(line(90, &[("eval_reward", f64::NAN)]), "step 90: held-out reward NaN");
        assert_eq!(line(99, &[("eval_runtime", 2.0)]), "step 99: evaluated in 2.00 s");
    }

    #[test]
    fn evaluation_lines_show_the_main_metric_of_each_set() {
        let line = |all: &[(&str, f64)]| {
            let all = all.iter().map(|&(name, x)| (name.to_owned(), x)).collect::<Vec<_>>();
            Evaluations::default().line(Step(7), &all)
        };
        let pairs = [("eval_loss", 0.7), ("eval_rewards/accuracies", 0.625), ("eval_rewards/margins", 1.0)];
        assert_eq!(line(&pairs), "step 7: held-out accuracy 0.625");
        assert_eq!(line(&[("eval_loss", 2.0), ("eval_mean_token_accuracy", 0.5)]), "step 7: held-out loss 2.00");
        let sets = [("eval_easy_reward", 0.5), ("eval_easy_loss", 1.0), ("eval_hard_reward", 0.25)];
        assert_eq!(line(&sets), "step 7: held-out easy reward 0.500, hard reward 0.250");
        assert_eq!(line(&[("eval_my_own", 3.0), ("eval_other", 4.0)]), "step 7: held-out my own 3.00");
        assert_eq!(line(&[("eval_hard_own", 3.0), ("eval_hard_reward", 4.0)]), "step 7: held-out hard reward 4.00");
    }

    #[test]
    fn evaluation_tables_omit_some_metrics_and_add_new_ones() {
        let of = |all: &[(&str, f64)]| all.iter().map(|&(name, x)| (name.to_owned(), x)).collect::<Vec<_>>();
        let mut evaluations = Evaluations::default();
        evaluations.table(Step(1), &of(&[("eval_loss", 3.0), ("eval_reward", 0.5)]), 80);
        let all =
            [("eval_loss", 2.0), ("eval_runtime", 125.0), ("eval_num_tokens", 7.0), ("eval_samples_per_second", 8.0)];
        let text = evaluations.table(Step(30), &of(&[&all[..], &[("eval_entropy", 1.0)]].concat()), 80);
        let expected = [
            "evaluation after step 30 (2 min 05 s)",
            "metric   value  before",
            "───────  ─────  ──────",
            "loss      2.00    3.00",
            "entropy   1.00",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let text = evaluations.table(Step(31), &of(&[("eval_entropy", 0.5), ("eval_reward", 1.0)]), 80);
        let expected = [
            "evaluation after step 31",
            "metric   value  before",
            "───────  ─────  ──────",
            "entropy  0.500    1.00",
            "reward    1.00",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "`before` has the values of the previous evaluation");
    }
}
