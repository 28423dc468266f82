//! Reports what a run does, as events for the run's sinks: means of metrics every `logging_steps`, as TRL logs them,
//! and everything else as it happens. It does not depend on the meaning of metrics or the destination of events.

use super::RunDir;
use super::rollout_log::{Recorded, RolloutLog};
use super::state::MetricSums;
use crate::config::{Config, hyperparameters};
use crate::rollouts::wire::{Group, records};
use std::collections::BTreeMap;
use telemetry::{
    ClosedLog, CompletionRows, CompletionsSink, EventKind, HParam, MetricsSink, Sinks, StepsSink, TensorBoardSink,
    TraceSink,
};

/// The metrics by which a run is judged (the first one that it has decides), and whether a higher value is better.
/// `steps.jsonl` has their value at every step, whatever is logged.
pub const JUDGED: [(&str, bool); 4] =
    [("reward", true), ("rewards/accuracies", true), ("accuracy", true), ("loss", false)];

/// The largest size of `trace.json`, in bytes.
const TRACE_BYTES: u64 = 32 << 20;

/// Metrics for which transformers logs the value of the last step, not a mean.
const LAST: [&str; 2] = ["learning_rate", "grad_norm"];

/// The sinks of a run, and the sums of the metrics that are logged next.
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
    /// True once a table of completions could not be written and the user was warned.
    lacks_tables: bool,
}

/// The hyperparameters that TensorBoard shows.
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

/// Prepares values for histograms: removes values that are not finite, and then lists that are empty.
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
        // A log that a resumed run no longer writes is still cut back and kept with its checkpoints.
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
        sinks.add(TraceSink::open(run.trace(), TRACE_BYTES)?.of_steps(config.traced_steps()?));
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

    /// Cuts the log files back to their lengths at the checkpoint after `step`, and restores the sums that were not
    /// logged yet.
    pub fn resume(&mut self, step: u64, log_bytes: &BTreeMap<String, u64>, sums: MetricSums) -> anyhow::Result<()> {
        self.sinks.resume(step, log_bytes)?.iter().for_each(|note| self.sinks.warn(note));
        self.sums = sums;
        Ok(())
    }

    /// Records the groups of a generation that the run trains on, given as their records.
    pub fn record_rollouts(&mut self, record: Vec<u8>) -> anyhow::Result<()> {
        Ok(self.sinks.emit(EventKind::Rollout { record })?)
    }

    /// Records the effect of a step on a group.
    pub fn record_update(&mut self, group: Group) -> anyhow::Result<()> {
        Ok(self.sinks.emit(EventKind::Update { record: records([group]) })?)
    }

    /// Records a group of an evaluation, given as its record.
    pub fn record_evaluation(&mut self, record: Vec<u8>) -> anyhow::Result<()> {
        Ok(self.sinks.emit(EventKind::Evaluated { record })?)
    }

    /// Reports histograms of the generation that the step after `step` learns from.
    pub fn distributions(&mut self, step: u64, values: Vec<(String, Vec<f64>)>) -> anyhow::Result<()> {
        if values.is_empty() {
            Ok(())
        } else {
            Ok(self.sinks.emit(EventKind::Distributions { step: step + 1, values })?)
        }
    }

    /// Reports the completions of a step; the console shows the first `shown`. If their table cannot be written, the
    /// run warns and continues.
    pub fn completions(&mut self, rows: CompletionRows, shown: usize) {
        if let Err(error) = self.sinks.emit(EventKind::Completions { rows, shown })
            && !std::mem::replace(&mut self.lacks_tables, true)
        {
            self.sinks.warn(&format!("{error}; the run continues without such tables"));
        }
    }

    /// The sums that are not logged yet, which a checkpoint saves.
    pub fn unlogged(&self) -> &MetricSums {
        &self.sums
    }

    /// Logs the last step's value of the metrics in [`LAST`] from now on, as transformers does.
    pub fn log_last_values(&mut self) {
        self.logs_last = true;
    }

    /// Adds a value to the metric `name`. The mean is logged at the next logging step.
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

    /// Takes the values added in this step; the next step begins with none.
    pub fn take_step_values(&mut self) -> BTreeMap<String, f64> {
        std::mem::take(&mut self.step_values)
    }

    /// Sets the value of a metric for the next log. It is not averaged.
    pub fn set(&mut self, name: &str, value: f64) {
        self.sums.set(name, value);
    }

    /// Whether the metrics of step `step` are logged.
    pub fn logs_at(&self, step: u64, last: bool) -> bool {
        step.is_multiple_of(self.logging_steps) || last || (step == 1 && self.first_step)
    }

    /// Ends optimizer step `step`: reports its own values of the metrics in [`JUDGED`].
    pub fn end_step(&mut self, step: u64) -> anyhow::Result<()> {
        let values: Vec<(String, f64)> = self.step_sums.take_means().into_iter().collect();
        if values.is_empty() { Ok(()) } else { Ok(self.sinks.emit(EventKind::StepValues { step, values })?) }
    }

    /// Reports the means of the metrics since the last log, as those of `step`, and returns them; `None` if there are
    /// none.
    pub fn log_now(&mut self, step: u64) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        let means: Vec<(String, f64)> = self.sums.take_means().into_iter().collect();
        if means.is_empty() {
            return Ok(None);
        }
        self.metrics(step, means.clone())?;
        Ok(Some(means))
    }

    /// Reports metrics of `step` at once, without means; used for evaluations.
    pub fn metrics(&mut self, step: u64, values: Vec<(String, f64)>) -> anyhow::Result<()> {
        Ok(self.sinks.emit(EventKind::Metrics { step, values })?)
    }
}

#[cfg(test)]
mod tests;
