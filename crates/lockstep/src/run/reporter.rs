//! Where a run's numbers go, step by step: `metrics.jsonl`, TensorBoard, the console; and how the logs are cut back on resume.
//!
//! Values are summed over optimizer steps and logged as means every `logging_steps`, as TRL does. It does not know what a
//! metric means.

use crate::config::Config;
use crate::run::checkpoint::state::MetricSums;
use crate::run::run_dir::RunDir;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use telemetry::{Console, EventWriter, MetricsLog, Record};

/// The open logs of a run.
pub struct Reporter {
    console: Console,
    metrics: MetricsLog,
    /// None if nobody wants TensorBoard's files.
    events: Option<EventWriter>,
    /// None unless rollouts are recorded: a log of JSON lines, like the metrics.
    rollouts: Option<MetricsLog>,
    logging_steps: u64,
    first_step: bool,
    sums: MetricSums,
}

/// File names under which byte lengths are kept in a checkpoint.
const METRICS: &str = "metrics.jsonl";
const EVENTS: &str = "tensorboard";
const ROLLOUTS: &str = "rollouts.jsonl";

impl Reporter {
    /// Opens the logs of `run`.
    pub fn open(run: &RunDir, console: Console, config: &Config) -> anyhow::Result<Reporter> {
        Ok(Reporter {
            console,
            metrics: MetricsLog::open(run.metrics())?,
            events: config.tensorboard.then(|| EventWriter::open(&run.tensorboard())).transpose()?,
            rollouts: config.record_rollouts.then(|| MetricsLog::open(run.rollouts())).transpose()?,
            logging_steps: config.logging_steps,
            first_step: config.logging_first_step,
            sums: MetricSums::default(),
        })
    }

    /// Cuts the logs back to what they were at a checkpoint, and takes up its unlogged sums.
    pub fn resume(&mut self, log_bytes: &BTreeMap<String, u64>, sums: MetricSums) -> anyhow::Result<()> {
        self.metrics.truncate_to(log_bytes.get(METRICS).copied().unwrap_or(0))?;
        if let Some(events) = &mut self.events {
            events.truncate_to(log_bytes.get(EVENTS).copied().unwrap_or(0))?;
        }
        if let Some(rollouts) = &mut self.rollouts {
            rollouts.truncate_to(log_bytes.get(ROLLOUTS).copied().unwrap_or(0))?;
        }
        self.sums = sums;
        Ok(())
    }

    /// Lengths of the logs, everything in them on disk: for a checkpoint.
    pub fn lengths(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        self.metrics.sync()?;
        let mut lengths = BTreeMap::from([(METRICS.to_owned(), self.metrics.len())]);
        if let Some(events) = &mut self.events {
            events.sync()?;
            lengths.insert(EVENTS.to_owned(), events.len());
        }
        if let Some(rollouts) = &mut self.rollouts {
            rollouts.sync()?;
            lengths.insert(ROLLOUTS.to_owned(), rollouts.len());
        }
        Ok(lengths)
    }

    /// Appends a line to the rollouts, if they are recorded.
    pub fn record_rollout(&mut self, line: impl FnOnce() -> Map<String, Value>) -> anyhow::Result<()> {
        match &mut self.rollouts {
            Some(rollouts) => Ok(rollouts.append(&Record(line()))?),
            None => Ok(()),
        }
    }

    /// The sums not yet logged: for a checkpoint.
    pub fn unlogged(&self) -> &MetricSums {
        &self.sums
    }

    /// Adds a value to the mean that is logged next.
    pub fn add(&mut self, name: &str, value: f64) {
        self.sums.add(name, value);
    }

    /// Sets a value that is logged next as it is.
    pub fn set(&mut self, name: &str, value: f64) {
        self.sums.set(name, value);
    }

    /// Whether step `step` is logged.
    pub fn logs_at(&self, step: u64, last: bool) -> bool {
        step.is_multiple_of(self.logging_steps) || last || (step == 1 && self.first_step)
    }

    /// Ends optimizer step `step`: on a logging step, writes the means.
    pub fn end_step(&mut self, step: u64, last: bool) -> anyhow::Result<Option<Record>> {
        if !self.logs_at(step, last) {
            return Ok(None);
        }
        let means = self.sums.take_means();
        self.write(step, means.iter().map(|(name, &value)| (name.as_str(), value))).map(Some)
    }

    /// Writes values of `step` at once: an evaluation.
    pub fn write<'a>(&mut self, step: u64, values: impl Iterator<Item = (&'a str, f64)>) -> anyhow::Result<Record> {
        let mut record = Record::new();
        record.set("step", step);
        for (name, value) in values {
            record.set(name, value);
            if let Some(events) = &mut self.events {
                events.scalar(step, name, value)?;
            }
        }
        self.metrics.append(&record)?;
        Ok(record)
    }

    /// The console.
    pub fn console(&self) -> &Console {
        &self.console
    }
}
