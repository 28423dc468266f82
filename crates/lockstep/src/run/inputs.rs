//! What a run is built from: its configuration and directory, and what the caller injects.

use super::RunDir;
use super::eval_metrics::EvalMetrics;
use super::resume::ResumeFrom;
use crate::config::{Config, Resolved};
use crate::data::{DatasetSpec, Rows};
use crate::distributed::Network;
use crate::models::{Builder, Policy};
use crate::rollouts::collector::PlaceCollector;
use crate::rollouts::function::RolloutFunction;
use crate::stop::StopSignal;
use kernels::Context;
use model::Sharing;
use rewards::Reward;
use std::ops::ControlFlow;
use std::path::Path;
use telemetry::{Console, Sinks};

/// What every task is built from.
pub struct RunInputs {
    /// The configuration, and who set what.
    pub resolved: Resolved,
    /// Where the run writes.
    pub dir: RunDir,
    /// Where it begins.
    pub resume_from: ResumeFrom,
    /// The device and threads that the run computes with.
    pub ctx: Context,
    /// Whose log file is in the run's directory.
    pub console: Console,
    /// Where its events go, the console and the sinks of the caller; those of its directory are added when it begins.
    pub sinks: Sinks,
    /// Whether to stop.
    pub stop: StopSignal,
    /// What the caller injects.
    pub injected: Injected,
}

/// What the caller injects beside the configuration. It is moved whole from [`RunOptions`](crate::RunOptions) into
/// [`RunInputs`]; each part of the run takes from it what it uses. The default: nothing.
#[derive(Default)]
pub struct Injected {
    /// Called after steps, logs and checkpoints.
    pub callbacks: Callbacks,
    /// Training rows in the place of those that `dataset_name` names.
    pub train_rows: Option<Rows>,
    /// Held-out rows in the place of those that `eval_dataset_name` names.
    pub eval_rows: Option<Rows>,
    /// Rows in the place of the evaluation sets that `eval_datasets` names, by name.
    pub eval_sets: Vec<(String, Rows)>,
    /// The rewards that `reward_funcs` names `function:NAME`.
    pub rewards: Vec<Box<dyn Reward>>,
    /// Makes completions in the place of the engine.
    pub rollout_function: Option<Box<dyn RolloutFunction>>,
    /// Moves the collector somewhere else; without it, the collector runs on the run's own thread.
    pub collect_with: Option<PlaceCollector>,
    /// Rewards whose scores may differ from time to time are not asked: `collect_with` gives the scores of a record.
    pub recorded_scores: bool,
    /// Metrics of held-out rows, beside the run's own.
    pub eval_metrics: Option<Box<dyn EvalMetrics>>,
    /// No step will be taken: training data are not read.
    pub only_evaluates: bool,
    /// The run is made to see where its time goes.
    pub profiled: bool,
    /// Workers make the completions, in processes that read the weights.
    pub sharing: Option<Sharing>,
    /// Where workers join from other machines.
    pub network: Option<Network>,
    /// Workers have the functions among the rewards.
    pub functions_of_workers: bool,
}

impl RunInputs {
    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.resolved.config
    }

    /// What the parts of the run are built with.
    pub fn builder(&self) -> Builder<'_> {
        let from = self.resume_from.checkpoint();
        let mut builder = Builder::new(&self.ctx, self.config(), from, &self.sinks, &self.stop);
        builder.sharing = self.injected.sharing.clone();
        builder
    }

    /// The training data.
    pub fn train_data(&self) -> Option<DatasetSpec> {
        DatasetSpec::train(self.config()).map(|spec| DatasetSpec {
            rows: self.injected.train_rows.clone(),
            stop: self.stop.clone(),
            ..spec
        })
    }

    /// The held-out data, by name; that of `eval_dataset_name` has none.
    pub fn eval_sets(&self) -> Vec<(String, DatasetSpec)> {
        let (injected, mut sets) = (&self.injected, DatasetSpec::eval_sets(self.config()));
        for (name, spec) in &mut sets {
            spec.stop = self.stop.clone();
            spec.rows = match name.is_empty() {
                true => injected.eval_rows.clone(),
                false => injected.eval_sets.iter().find(|(own, _)| own == name).map(|(_, rows)| rows.clone()),
            };
        }
        sets
    }
}

/// What a callback returns: continue, or end the run after this step.
pub type Flow = ControlFlow<()>;

/// Means of metrics by name, of a logged step or an evaluation.
pub struct LogRecord<'a> {
    /// Optimizer steps done.
    pub step: u64,
    /// The metrics, TRL's names.
    pub metrics: &'a [(String, f64)],
}

impl LogRecord<'_> {
    /// The metric of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }
}

/// What a run reports to callbacks.
pub enum RunEvent<'a> {
    /// So many optimizer steps are done.
    Step(u64),
    /// Metrics of a logged step, or of an evaluation.
    Log(LogRecord<'a>),
    /// The checkpoint of a step is whole.
    Checkpoint(u64, &'a Path),
}

type OnEvent = Box<dyn FnMut(&RunEvent<'_>, &Policy) -> Flow>;
type OnStep = Box<dyn FnMut(u64) -> Flow>;
type OnLog = Box<dyn FnMut(&LogRecord<'_>) -> Flow>;
type OnCheckpoint = Box<dyn FnMut(u64, &Path) -> Flow>;

/// The caller's callbacks, in the order in which they were added.
#[derive(Default)]
pub struct Callbacks {
    pub(crate) on_step: Vec<OnStep>,
    pub(crate) on_log: Vec<OnLog>,
    pub(crate) on_checkpoint: Vec<OnCheckpoint>,
    pub(crate) on_event: Vec<OnEvent>,
    /// One of them asked to stop.
    pub(crate) stops: bool,
}

impl Callbacks {
    pub(crate) fn step(&mut self, step: u64, policy: &Policy) {
        let flows = self.on_step.iter_mut().map(|call| call(step));
        self.stops |= flows.filter(Flow::is_break).count() > 0;
        self.event(&RunEvent::Step(step), policy);
    }

    fn event(&mut self, event: &RunEvent<'_>, policy: &Policy) {
        let flows = self.on_event.iter_mut().map(|call| call(event, policy));
        self.stops |= flows.filter(Flow::is_break).count() > 0;
    }

    pub(crate) fn log(&mut self, step: u64, metrics: &[(String, f64)], policy: &Policy) {
        let record = LogRecord { step, metrics };
        let flows = self.on_log.iter_mut().map(|call| call(&record));
        self.stops |= flows.filter(Flow::is_break).count() > 0;
        self.event(&RunEvent::Log(record), policy);
    }

    pub(crate) fn checkpoint(&mut self, step: u64, dir: &Path, policy: &Policy) {
        let flows = self.on_checkpoint.iter_mut().map(|call| call(step, dir));
        self.stops |= flows.filter(Flow::is_break).count() > 0;
        self.event(&RunEvent::Checkpoint(step, dir), policy);
    }
}
