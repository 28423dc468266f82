//! The evaluations of a training run: whether one is due, which was the best, and how many in a row since then were no
//! better.

use super::checkpoint::state::{Best, RunState};
use super::eval_metrics::{MetricsFailed, check_best_metric, no_such_metric};
use crate::config::Config;
use crate::rollouts::evaluate::find;
use anyhow::Context as _;
use telemetry::Sinks;

/// The state of a run's evaluations so far.
pub struct Evaluations {
    /// True when a step is done and its evaluation has not run yet.
    pub due: bool,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// How many evaluations in a row have not improved on the best.
    pub without_improvement: u32,
    /// True if evaluations may give metrics whose names are not known before the first evaluation.
    has_other_metrics: bool,
}

impl Evaluations {
    /// The state before the first evaluation. `names` are the metrics that evaluations will give, each with the prefix
    /// `eval_`; user code may add others if `has_other_metrics`. An unknown `metric_for_best_model` is refused.
    pub fn new(config: &Config, names: &[String], has_other_metrics: bool) -> anyhow::Result<Evaluations> {
        if !has_other_metrics {
            check_best_metric(config, names)?;
        }
        Ok(Evaluations { due: false, best: None, without_improvement: 0, has_other_metrics })
    }

    /// Restores the state that a checkpoint has saved.
    pub fn restore(&mut self, state: &RunState) {
        self.due = state.evaluation_due;
        self.best.clone_from(&state.best);
        self.without_improvement = state.evaluations_without_improvement;
    }

    /// Takes the metrics of the evaluation after `step`, and records it if it is the best so far; the weights of the
    /// best evaluation can become the run's result. Returns whether the run stops early.
    pub fn take(
        &mut self,
        config: &Config,
        step: u64,
        metrics: &[(String, f64)],
        sinks: &Sinks,
    ) -> anyhow::Result<bool> {
        let Some(name) = config.metric_for_best_model.as_ref().filter(|_| step > 0) else {
            // Before the first step there is no checkpoint that could be the best.
            return Ok(false);
        };
        let Some(value) = find(metrics, name) else {
            if self.has_other_metrics {
                let names: Vec<&str> = metrics.iter().map(|(name, _)| name.as_str()).collect();
                return Err(no_such_metric(name, &names)).context(MetricsFailed);
            }
            // The name is a known one: nothing was scored.
            sinks.warn(&format!("step {step}: this evaluation has no {name}, and does not count"));
            return Ok(false);
        };
        if !value.is_finite() {
            // As the best it would stay so: nothing is more than NaN.
            sinks.warn(&format!("step {step}: {name} of this evaluation is {value}, and does not count"));
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

    /// Whether so many evaluations in a row brought no improvement that the run stops early.
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
            evaluations.take(&config, step, &metrics, &Sinks::new()).unwrap()
        });
        assert_eq!(ended.collect::<Vec<_>>(), [false; 5]);
        assert_eq!(evaluations.best, Some(Best { step: 5, metric: 2.0 }));
        assert_eq!(evaluations.without_improvement, 0);
    }
}
