//! Reports a run's progress to its sinks as events: means of metrics every `logging_steps`, as TRL logs them, and
//! everything else immediately. This module knows neither the meaning of metrics nor the destination of events.

use super::RunDir;
use super::rollout_log::{Recorded, RolloutLog};
use super::state::MetricSums;
use crate::config::{Config, hyperparameters};
use crate::rollouts::wire::{Group, records};
use std::collections::BTreeMap;
use telemetry::{
    ClosedLog, CompletionRows, CompletionsSink, EventKind, HParam, MetricsSink, Sinks, Step, StepsSink,
    TensorBoardSink, TraceSink,
};

/// The metrics by which a run is judged, and whether a higher value is better. The first of these metrics that the run
/// has is used. `steps.jsonl` has their values at every step, independent of logging.
pub const JUDGED: [(&str, bool); 4] =
    [("reward", true), ("rewards/accuracies", true), ("accuracy", true), ("loss", false)];

/// The largest size of `trace.json`, in bytes.
const TRACE_BYTES: u64 = 32 << 20;

/// Metrics for which transformers logs the last step's value, not a mean.
const LAST: [&str; 2] = ["learning_rate", "grad_norm"];

/// The sinks of a run, and the sums of the metrics for the next log.
pub struct Reporter {
    sinks: Sinks,
    logging_steps: u64,
    first_step: bool,
    logs_last: bool,
    sums: MetricSums,
    /// Values of the metrics in the current step.
    step_values: BTreeMap<String, f64>,
    /// Sums of the metrics in the current step.
    step_sums: MetricSums,
    /// True after a completions table could not be written and the user was warned.
    lacks_tables: bool,
}

/// The hyperparameters shown by TensorBoard.
pub(super) fn hparams(config: &Config) -> Vec<(String, HParam)> {
    let param = |value: toml::Value| match value {
        toml::Value::Integer(n) => HParam::Number(n as f64),
        toml::Value::Float(x) => HParam::Number(x),
        toml::Value::Boolean(yes) => HParam::Bool(yes),
        toml::Value::String(text) => HParam::Text(text),
        other => HParam::Text(other.to_string()),
    };
    hyperparameters(config).into_iter().map(|(name, value)| (name.to_owned(), param(value))).collect()
}

/// Prepares values for histograms: removes non-finite values, then empty lists.
pub fn finite<const N: usize>(all: [(&str, Vec<f64>); N]) -> Vec<(String, Vec<f64>)> {
    let finite = |(name, values): (&str, Vec<f64>)| {
        (name.to_owned(), values.into_iter().filter(|x| x.is_finite()).collect::<Vec<_>>())
    };
    all.map(finite).into_iter().filter(|(_, values)| !values.is_empty()).collect()
}

impl Reporter {
    /// Adds the files of the directory `run` to the caller's sinks.
    pub fn open(run: &RunDir, sinks: Sinks, config: &Config) -> anyhow::Result<Reporter> {
        sinks.add(MetricsSink::open(run.metrics())?);
        sinks.add(StepsSink::open(run.steps())?);
        // Logs that a resumed run no longer writes are still truncated, and kept with its checkpoints.
        let has_events = disk::read_dir(run.tensorboard()).is_ok_and(|files| !files.is_empty());
        if config.tensorboard || has_events {
            let hparams = if config.tensorboard { hparams(config) } else { Vec::new() };
            sinks.add(TensorBoardSink::open(&run.tensorboard(), hparams)?.writing(config.tensorboard));
        }
        let evaluates = config.record_rollouts && config.has_eval_data();
        for (kind, path, records) in [
            (Recorded::Rollouts, run.rollouts(), config.record_rollouts),
            (Recorded::Updates, run.updates(), config.records_updates()),
            (Recorded::Evaluations, run.evaluations(), evaluates),
        ] {
            if records || path.exists() {
                sinks.add(RolloutLog::open(kind, &path, config.max_rollouts_bytes)?);
            }
        }
        if run.older_rollouts().exists() {
            sinks.add(ClosedLog::open(run.older_rollouts(), "rollouts.jsonl")?);
        }
        sinks.add(CompletionsSink::new(run.completions()));
        sinks.add(TraceSink::open(run.trace(), TRACE_BYTES)?.with_steps(config.traced_steps()?));
        Ok(Reporter {
            sinks,
            logging_steps: config.logging_steps,
            first_step: config.logging_first_step,
            logs_last: false,
            sums: MetricSums::default(),
            step_values: BTreeMap::new(),
            step_sums: MetricSums::default(),
            lacks_tables: false,
        })
    }

    /// The receivers of events.
    pub fn sinks(&self) -> &Sinks {
        &self.sinks
    }

    /// Truncates the log files to their lengths at the checkpoint after `step`, and restores the sums not yet logged.
    pub fn resume(&mut self, step: Step, log_bytes: &BTreeMap<String, u64>, sums: MetricSums) -> anyhow::Result<()> {
        self.sinks.resume(step, log_bytes)?.iter().for_each(|note| self.sinks.warn(note));
        self.sums = sums;
        Ok(())
    }

    /// Records the groups of a generation batch, as bytes.
    pub fn record_rollouts(&mut self, record: Vec<u8>) -> anyhow::Result<()> {
        Ok(self.sinks.emit(EventKind::Rollout { record })?)
    }

    /// Records the effect of a step on a group.
    pub fn record_update(&mut self, group: Group) -> anyhow::Result<()> {
        Ok(self.sinks.emit(EventKind::Update { record: records([group]) })?)
    }

    /// Records a group of an evaluation, as bytes.
    pub fn record_evaluation(&mut self, record: Vec<u8>) -> anyhow::Result<()> {
        Ok(self.sinks.emit(EventKind::Evaluated { record })?)
    }

    /// Reports histograms of the generation for the step after `step`.
    pub fn distributions(&mut self, step: Step, values: Vec<(String, Vec<f64>)>) -> anyhow::Result<()> {
        if values.is_empty() {
            Ok(())
        } else {
            Ok(self.sinks.emit(EventKind::Distributions { step: step.next(), values })?)
        }
    }

    /// Reports the completions of a step; the console shows the first `shown`. If the table cannot be written, the run
    /// logs a warning and continues.
    pub fn completions(&mut self, rows: CompletionRows, shown: usize) {
        if let Err(error) = self.sinks.emit(EventKind::Completions { rows, shown })
            && !std::mem::replace(&mut self.lacks_tables, true)
        {
            self.sinks.warn(&format!("{error}; the run continues without such tables"));
        }
    }

    /// The sums not yet logged, for a checkpoint.
    pub fn unlogged(&self) -> &MetricSums {
        &self.sums
    }

    /// Makes later logs contain the last step's value of the metrics in [`LAST`], as in transformers.
    pub fn log_last_values(&mut self) {
        self.logs_last = true;
    }

    /// Adds a value to the metric `name`, whose mean is logged at the next logging step.
    pub fn add(&mut self, name: &str, value: f64) {
        if self.logs_last && LAST.contains(&name) {
            self.sums.set(name, value)
        } else {
            self.sums.add(name, value)
        }
        self.step_values.insert(name.to_owned(), value);
        if JUDGED.iter().any(|(judged, _)| *judged == name) {
            self.step_sums.add(name, value);
        }
    }

    /// Takes the values of this step; the next step starts empty.
    pub fn take_step_values(&mut self) -> BTreeMap<String, f64> {
        std::mem::take(&mut self.step_values)
    }

    /// Sets the next logged value of a metric, without averaging.
    pub fn set(&mut self, name: &str, value: f64) {
        self.sums.set(name, value);
    }

    /// Whether the metrics of step `step` are logged.
    pub fn logs_at(&self, step: Step, last: bool) -> bool {
        step.is_multiple_of(self.logging_steps) || last || (step == Step(1) && self.first_step)
    }

    /// Ends optimizer step `step`, and reports the step's values of the metrics in [`JUDGED`].
    pub fn end_step(&mut self, step: Step) -> anyhow::Result<()> {
        let values: Vec<(String, f64)> = self.step_sums.take_means().into_iter().collect();
        if values.is_empty() { Ok(()) } else { Ok(self.sinks.emit(EventKind::StepValues { step, values })?) }
    }

    /// Reports the means since the last log as the metrics of `step`, and returns them; `None` if there are none.
    pub fn log_now(&mut self, step: Step) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let means: Vec<(String, f64)> = self.sums.take_means().into_iter().collect();
        if means.is_empty() {
            return Ok(None);
        }
        self.metrics(step, means.clone())?;
        Ok(Some(means))
    }

    /// Reports metrics of `step` immediately, without averaging, for evaluations.
    pub fn metrics(&mut self, step: Step, values: Vec<(String, f64)>) -> anyhow::Result<()> {
        Ok(self.sinks.emit(EventKind::Metrics { step, values })?)
    }
}

#[cfg(test)]
mod tests;
