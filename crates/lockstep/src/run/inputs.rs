//! The inputs of a training run: its configuration, its directory, and the objects that the caller injects.

use super::RunDir;
use super::eval_metrics::EvalMetrics;
use crate::config::{Config, Layers, Purpose, Resolved};
use crate::data::{DatasetSpec, Rows};
use crate::models::{Builder, Policy};
use crate::ranks::RankOptions;
use crate::rollouts::collector::PlaceCollector;
use crate::rollouts::function::RolloutFunction;
#[cfg(test)]
use crate::sources::BatchSource;
use crate::sources::workers::Network;
use crate::stop::StopSignal;
use kernels::Context;
use model::Sharing;
use model::chat::PromptTime;
use rewards::Reward;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use telemetry::{Console, Sinks, Step};

/// The inputs of every task.
pub struct RunInputs {
    /// The configuration, with the origin of each value.
    pub resolved: Resolved,
    /// The directory that the run writes into.
    pub dir: RunDir,
    /// Whether the run starts from step 0 or from a checkpoint.
    pub resume_from: ResumeFrom,
    /// The time that chat templates use as the current time: the time of the run's first start.
    pub prompt_time: PromptTime,
    /// The device and threads of the run.
    pub ctx: Context,
    /// The console, whose log file is in the run's directory.
    pub console: Console,
    /// Receivers of the run's events: the console and the caller's sinks. The sinks of the run's directory are added
    /// when the run begins.
    pub sinks: Sinks,
    /// Tells the run to stop.
    pub stop: StopSignal,
    /// Objects that the caller injects.
    pub injected: Injected,
}

/// The point from which a run starts.
#[derive(Clone, Debug)]
pub enum ResumeFrom {
    /// A new run in a new directory.
    Nothing,
    /// After the step of this checkpoint.
    Checkpoint(PathBuf),
    /// From step 0 again, in the directory of a run that was killed before its first checkpoint.
    Beginning,
}

impl ResumeFrom {
    /// The directory of the checkpoint, if the run begins from one.
    pub fn checkpoint(&self) -> Option<&Path> {
        match self {
            ResumeFrom::Checkpoint(dir) => Some(dir),
            _ => None,
        }
    }

    /// The configuration of the last start of the run in `dir`; `None` for a new run.
    pub(super) fn configuration(&self, dir: &RunDir, purpose: Purpose) -> anyhow::Result<Option<Config>> {
        if matches!(self, ResumeFrom::Nothing) || !dir.config().exists() {
            return Ok(None);
        }
        let layers = Layers { purpose, file: Some(dir.config()), ..Layers::default() };
        Ok(Some(layers.resolve()?.config))
    }
}

/// Wraps the run's source of batches, in tests.
#[cfg(test)]
pub type WrapSource = Box<dyn FnOnce(Box<dyn BatchSource>) -> Box<dyn BatchSource>>;

/// Objects that the caller injects in addition to the configuration; none by default. Injected objects are moved from
/// [`RunOptions`](crate::RunOptions) to [`RunInputs`], from which each part of the run takes the objects that it needs.
#[derive(Default)]
pub struct Injected {
    /// Functions of the caller that are called after steps, logs and checkpoints.
    pub callbacks: Callbacks,
    /// Training rows that replace those of `dataset_name`.
    pub train_rows: Option<Rows>,
    /// Held-out rows that replace those of `eval_dataset_name`.
    pub eval_rows: Option<Rows>,
    /// Rows that replace the evaluation sets of `eval_datasets`, each with the set's name.
    pub eval_sets: Vec<(String, Rows)>,
    /// The reward functions that `reward_funcs` refers to as `function:NAME`.
    pub rewards: Vec<Box<dyn Reward>>,
    /// A function that generates the completions instead of the engine.
    pub rollout_function: Option<Box<dyn RolloutFunction>>,
    /// Moves the collector, which generates and scores completions, to another thread or process. By default the
    /// collector runs on the run's own thread.
    pub collect_with: Option<PlaceCollector>,
    /// Replaces the run's source of batches.
    #[cfg(test)]
    pub wrap_source: Option<WrapSource>,
    /// True if `collect_with` replays the recorded scores of nondeterministic rewards, so that these rewards are not
    /// called.
    pub recorded_scores: bool,
    /// User code that computes additional metrics of held-out rows.
    pub eval_metrics: Option<Box<dyn EvalMetrics>>,
    /// The time with which prompts are rendered, if it comes from a recorded run.
    pub prompt_time: Option<PromptTime>,
    /// True if the run takes no training steps; then no training data is read.
    pub only_evaluates: bool,
    /// True if the purpose of the run is to measure where its time goes.
    pub profiled: bool,
    /// If set, workers generate the completions in other processes, which read the weights from shared memory.
    pub sharing: Option<Sharing>,
    /// If set, other ranks compute a part of each step.
    pub ranks: Option<RankOptions>,
    /// If set, the network address where workers on other machines join.
    pub network: Option<Network>,
    /// True if workers can call the user's reward functions themselves.
    pub functions_of_workers: bool,
}

impl RunInputs {
    /// The configuration of the run.
    pub fn config(&self) -> &Config {
        &self.resolved.config
    }

    /// The builder of the run's parts.
    pub fn builder(&self) -> Builder<'_> {
        let from = self.resume_from.checkpoint();
        let mut builder = Builder::new(&self.ctx, self.config(), from, &self.sinks, &self.stop);
        builder.sharing = self.injected.sharing.clone();
        builder.ranks = self.injected.ranks.as_ref().map(|ranks| (ranks.world_size, ranks.sharing.clone()));
        builder
    }

    /// The training dataset, from the configuration or the caller.
    pub fn train_data(&self) -> Option<DatasetSpec> {
        DatasetSpec::train(self.config()).map(|spec| DatasetSpec {
            rows: self.injected.train_rows.clone(),
            stop: self.stop.clone(),
            ..spec
        })
    }

    /// The held-out datasets with their names; the set of `eval_dataset_name` has an empty name.
    pub fn eval_sets(&self) -> Vec<(String, DatasetSpec)> {
        let (injected, mut sets) = (&self.injected, DatasetSpec::eval_sets(self.config()));
        for (name, spec) in &mut sets {
            spec.stop = self.stop.clone();
            spec.rows = if name.is_empty() {
                injected.eval_rows.clone()
            } else {
                injected.eval_sets.iter().find(|(own, _)| own == name).map(|(_, rows)| rows.clone())
            };
        }
        sets
    }
}

/// The return value of a callback: continue, or end the run after this step.
pub type Flow = ControlFlow<()>;

/// The metrics of a logged step (means since the last log), or of an evaluation.
pub struct LogRecord<'a> {
    /// Optimizer steps done so far.
    pub step: Step,
    /// Names and values of the metrics, with TRL's names.
    pub metrics: &'a [(String, f64)],
}

impl LogRecord<'_> {
    /// The value of the metric `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }
}

/// An event that is reported to callbacks.
pub enum RunEvent<'a> {
    /// An optimizer step begins; the number counts the steps done before it. A callback that breaks ends the run before
    /// this step.
    Begin(Step),
    /// An optimizer step has ended; the number counts the steps done so far.
    Step(Step),
    /// An epoch or the run has ended with the step of this number, and all actions after this step are done. Reported
    /// only to callers that [decide](crate::RunOptions::decide).
    Epoch(Step),
    /// Metrics of a logged step or an evaluation are available.
    Log(LogRecord<'a>),
    /// A checkpoint is complete, with its step and directory.
    Checkpoint(Step, &'a Path),
}

/// An action after an optimizer step or an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The metrics since the last log are logged.
    Log,
    /// The model is evaluated.
    Evaluate,
    /// A checkpoint is saved.
    Save,
    /// The run waits until the checkpoint that it has begun is complete. Otherwise the next step is prepared meanwhile.
    Complete,
    /// The epoch ends, and its remaining rows are skipped. (The epoch's last step always ends it.)
    EndEpoch,
}

type Decide = Box<dyn FnMut(Follow, bool) -> bool>;
type OnEvent = Box<dyn FnMut(&RunEvent<'_>, &Policy) -> Flow>;
type OnStep = Box<dyn FnMut(Step) -> Flow>;
type OnLog = Box<dyn FnMut(&LogRecord<'_>) -> Flow>;
type OnCheckpoint = Box<dyn FnMut(Step, &Path) -> Flow>;

/// The caller's callbacks, in the order in which they were added.
#[derive(Default)]
pub struct Callbacks {
    pub(crate) on_step: Vec<OnStep>,
    pub(crate) on_log: Vec<OnLog>,
    pub(crate) on_checkpoint: Vec<OnCheckpoint>,
    pub(crate) on_event: Vec<OnEvent>,
    /// Decides the actions after a step, instead of the configuration.
    pub(crate) decide: Option<Decide>,
    /// True if a callback has asked the run to stop.
    pub(crate) stops: bool,
}

impl Callbacks {
    /// Whether the action `what` happens now. `is_due` is the configuration's decision.
    pub(crate) fn follows(&mut self, what: Follow, is_due: bool) -> bool {
        self.decide.as_mut().map_or(is_due, |decide| decide(what, is_due))
    }

    pub(crate) fn step(&mut self, step: Step, policy: &Policy) {
        let flows = self.on_step.iter_mut().map(|call| call(step));
        self.stops |= flows.filter(Flow::is_break).count() > 0;
        self.event(&RunEvent::Step(step), policy);
    }

    pub(crate) fn event(&mut self, event: &RunEvent<'_>, policy: &Policy) {
        let flows = self.on_event.iter_mut().map(|call| call(event, policy));
        self.stops |= flows.filter(Flow::is_break).count() > 0;
    }

    pub(crate) fn log(&mut self, step: Step, metrics: &[(String, f64)], policy: &Policy) {
        let record = LogRecord { step, metrics };
        let flows = self.on_log.iter_mut().map(|call| call(&record));
        self.stops |= flows.filter(Flow::is_break).count() > 0;
        self.event(&RunEvent::Log(record), policy);
    }

    pub(crate) fn checkpoint(&mut self, step: Step, dir: &Path, policy: &Policy) {
        let flows = self.on_checkpoint.iter_mut().map(|call| call(step, dir));
        self.stops |= flows.filter(Flow::is_break).count() > 0;
        self.event(&RunEvent::Checkpoint(step, dir), policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_a_record_are_found_by_name() {
        let metrics = [("loss".to_owned(), 1.5), ("reward".to_owned(), 2.5)];
        let record = LogRecord { step: Step(3), metrics: &metrics };
        assert_eq!((record.get("loss"), record.get("reward"), record.get("kl")), (Some(1.5), Some(2.5), None));
    }
}
