//! The evaluations of a training run: whether one is due, which was the best, and how many in a row brought no
//! improvement.

use super::eval_metrics::{MetricsFailed, check_best_metric, no_such_metric};
use super::state::{Best, RunState};
use crate::config::Config;
use crate::rollouts::evaluate::find;
use anyhow::Context as _;
use telemetry::{Sinks, Step};

/// The state of a run's evaluations so far.
pub struct Evaluations {
    /// True if a step is done and its evaluation has not run yet.
    pub due: bool,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// How many evaluations in a row did not improve on the best.
    pub without_improvement: u32,
    /// True if evaluations may return metrics whose names are unknown before the first evaluation.
    has_other_metrics: bool,
}

impl Evaluations {
    /// The state before the first evaluation. `names` are the evaluations' metrics, each with the prefix `eval_`; user
    /// code may add further metrics if `has_other_metrics`. An unknown `metric_for_best_model` is refused.
    pub fn new(config: &Config, names: &[String], has_other_metrics: bool) -> anyhow::Result<Evaluations> {
        if !has_other_metrics {
            check_best_metric(config, names)?;
        }
        Ok(Evaluations { due: false, best: None, without_improvement: 0, has_other_metrics })
    }

    /// Restores the state from a checkpoint.
    pub fn restore(&mut self, state: &RunState) {
        self.due = state.evaluation_due;
        self.best.clone_from(&state.best);
        self.without_improvement = state.evaluations_without_improvement;
    }

    /// Takes the metrics of the evaluation after `step`, and records the evaluation if it is the best so far; its
    /// weights can become the run's result. Returns whether the run stops early.
    pub fn take(
        &mut self,
        config: &Config,
        step: Step,
        metrics: &[(String, f64)],
        sinks: &Sinks,
    ) -> anyhow::Result<bool> {
        let Some(name) = config.metric_for_best_model.as_ref().filter(|_| step > Step::START) else {
            // Before its first step, a run has no checkpoint that could be the best.
            return Ok(false);
        };
        let Some(value) = find(metrics, name) else {
            if self.has_other_metrics {
                let names: Vec<&str> = metrics.iter().map(|(name, _)| name.as_str()).collect();
                return Err(no_such_metric(name, &names)).context(MetricsFailed);
            }
            // The metric exists, so it is missing only because nothing was scored.
            sinks.warn(&format!("step {step}: this evaluation has no {name} and does not count"));
            return Ok(false);
        };
        if !value.is_finite() {
            // NaN would stay the best forever, since comparisons with NaN are false.
            sinks.warn(&format!("step {step}: {name} of this evaluation is {value}, so it does not count"));
            return Ok(false);
        }
        let more_is_better = config.greater_is_better.unwrap_or(!name.ends_with("loss"));
        let threshold = config.early_stopping_threshold;
        let gain = |best: &Best| if more_is_better { value - best.metric } else { best.metric - value };
        let better = self.best.as_ref().is_none_or(|best| gain(best) > 0.0);
        let counts = self.best.as_ref().is_none_or(|best| gain(best) > threshold);
        self.without_improvement = if counts { 0 } else { self.without_improvement + 1 };
        if better {
            self.best = Some(Best { step, metric: value });
        }
        Ok(self.out_of_patience(config))
    }

    /// Whether the run stops early, after enough evaluations in a row without improvement.
    pub fn out_of_patience(&self, config: &Config) -> bool {
        config.early_stopping_patience.is_some_and(|patience| self.without_improvement as usize >= patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: NaN was taken as the best metric and then stayed the best, since no number is greater than NaN.
    #[test]
    fn an_evaluation_that_is_not_finite_is_never_the_best() {
        let config = Config {
            metric_for_best_model: Some("eval_reward".into()),
            early_stopping_patience: Some(2),
            ..Config::default()
        };
        let names = ["eval_reward".to_owned()];
        let mut evaluations = Evaluations { due: false, best: None, without_improvement: 0, has_other_metrics: true };
        let values = [f64::NAN, 1.0, f64::INFINITY, f64::NAN, 2.0];
        let ended = (1..).zip(values).map(|(step, value)| {
            let metrics = [(names[0].clone(), value)];
            evaluations.take(&config, Step(step), &metrics, &Sinks::new()).unwrap()
        });
        assert_eq!(ended.collect::<Vec<_>>(), [false; 5]);
        assert_eq!(evaluations.best, Some(Best { step: Step(5), metric: 2.0 }));
        assert_eq!(evaluations.without_improvement, 0);
    }

    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config { metric_for_best_model: Some("reward".into()), ..Config::default() };
        change(&mut config);
        config
    }

    /// For each value: whether the run stops, the step of the best so far, and the number of evaluations since.
    fn course(config: &Config, name: &str, values: &[f64]) -> Vec<(bool, Option<u64>, u32)> {
        let mut evaluations = Evaluations::new(config, &[name.to_owned()], false).unwrap();
        let mut after = |(step, value): (u64, &f64)| {
            let ends = evaluations.take(config, Step(step), &[(name.to_owned(), *value)], &Sinks::new()).unwrap();
            (ends, evaluations.best.as_ref().map(|best| best.step.0), evaluations.without_improvement)
        };
        (1..).zip(values).map(&mut after).collect()
    }

    #[test]
    fn the_best_evaluation_and_those_without_improvement_are_counted() {
        let reward = config(|c| c.early_stopping_patience = Some(2));
        let found = course(&reward, "eval_reward", &[1.0, 1.0, 2.0, 0.5, 1.5, 3.0]);
        let expected = [(false, 1, 0), (false, 1, 1), (false, 3, 0), (false, 3, 1), (true, 3, 2), (false, 6, 0)];
        assert_eq!(found, expected.map(|(ends, best, count)| (ends, Some(best), count)));
        // Lower is better for a loss, unless `greater_is_better` is set.
        let loss = config(|c| c.metric_for_best_model = Some("eval_loss".into()));
        let best = |config: &Config| course(config, "eval_loss", &[2.0, 1.0, 3.0]).last().unwrap().1;
        assert_eq!(best(&loss), Some(2));
        assert_eq!(best(&Config { greater_is_better: Some(true), ..loss.clone() }), Some(3));
        // An improvement by exactly the threshold becomes the best, but does not reset the count.
        let by = config(|c| c.early_stopping_threshold = 0.5);
        let found = course(&by, "eval_reward", &[1.0, 1.5, 2.25]);
        assert_eq!(found, [(false, Some(1), 0), (false, Some(2), 1), (false, Some(3), 0)]);
        let none = config(|c| c.metric_for_best_model = None);
        assert_eq!(course(&none, "eval_reward", &[1.0]), [(false, None, 0)]);
    }

    #[test]
    fn missing_and_unknown_metrics_are_distinguished() {
        let config = config(|_| {});
        let new = |names: &[&str], other: bool| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Evaluations::new(&config, &names, other).map_err(|error| error.to_string())
        };
        let words = "`metric_for_best_model` = reward: no such evaluation metric; the metrics are eval_loss, eval_x";
        assert_eq!(new(&["eval_loss", "eval_x"], false).err().as_deref(), Some(words));
        assert!(new(&["eval_loss"], true).is_ok() && new(&["eval_reward"], false).is_ok());
        // A known metric may lack a value. An unknown name among the user's metrics ends the run.
        let mut known = new(&["reward"], false).unwrap();
        let other = [("eval_loss".to_owned(), 1.0)];
        assert!(!known.take(&config, Step(1), &other, &Sinks::new()).unwrap());
        assert_eq!((known.best, known.without_improvement), (None, 0));
        let mut unknown = new(&[], true).unwrap();
        let error = unknown.take(&config, Step(1), &other, &Sinks::new()).unwrap_err();
        assert!(error.is::<MetricsFailed>() && format!("{error:#}").contains("the metrics are eval_loss"), "{error:#}");
        // Before the first step, no checkpoint could be the best.
        let mut first = new(&["reward"], false).unwrap();
        assert!(!first.take(&config, Step(0), &[("eval_reward".to_owned(), 1.0)], &Sinks::new()).unwrap());
        assert_eq!(first.best, None);
    }
}
