//! What the caller injects into a run.

use crate::data::Rows;
use crate::distributed::Network;
use crate::models::Policy;
use crate::rollouts::collector::PlaceCollector;
use crate::rollouts::function::RolloutFunction;
use crate::run::eval_metrics::EvalMetrics;
use crate::run::inputs::{Flow, Injected, LogRecord, RunEvent};
use crate::stop::StopSignal;
use kernels::Context;
use model::Sharing;
use rewards::{FunctionReward, Reward, RewardInput};
use std::path::{Path, PathBuf};
use telemetry::{Console, Sink};

/// What the caller injects into a run beside its configuration. The default: nothing, no console, all cores.
#[derive(Default)]
pub struct RunOptions {
    pub(super) ctx: Option<Context>,
    pub(super) console: Option<Console>,
    pub(super) stop: StopSignal,
    pub(super) sinks: Vec<Box<dyn Sink>>,
    pub(super) injected: Injected,
}

impl RunOptions {
    /// No injected rewards, sinks, callbacks or stop signal.
    pub fn new() -> RunOptions {
        RunOptions::default()
    }

    /// Computes on this context; without one, on the threads that the configuration or the environment say.
    pub fn context(mut self, ctx: Context) -> Self {
        self.ctx = Some(ctx);
        self
    }

    /// Talks here; without a console nothing is printed. The log file in the run's directory is written in either case.
    pub fn console(mut self, console: Console) -> Self {
        self.console = Some(console);
        self
    }

    /// Ends the run when this signal is given, with a checkpoint of the last step, from which it can be resumed.
    pub fn stop_signal(mut self, stop: StopSignal) -> Self {
        self.stop = stop;
        self
    }

    /// Hands every event of the run to this sink, too.
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.push(Box::new(sink));
        self
    }

    /// Called after each optimizer step with the number of steps done.
    pub fn on_step(mut self, call: impl FnMut(u64) -> Flow + 'static) -> Self {
        self.injected.callbacks.on_step.push(Box::new(call));
        self
    }

    /// Called with the metrics of each logged step and of each evaluation.
    pub fn on_log(mut self, call: impl FnMut(&LogRecord<'_>) -> Flow + 'static) -> Self {
        self.injected.callbacks.on_log.push(Box::new(call));
        self
    }

    /// Called with the step and the directory of each checkpoint, once it is whole: before the optimizer step that
    /// follows it, or at the end.
    pub fn on_checkpoint(mut self, call: impl FnMut(u64, &Path) -> Flow + 'static) -> Self {
        self.injected.callbacks.on_checkpoint.push(Box::new(call));
        self
    }

    /// Called with all of these, and the model as it is then.
    pub fn on_event(mut self, call: impl FnMut(&RunEvent<'_>, &Policy) -> Flow + 'static) -> Self {
        self.injected.callbacks.on_event.push(Box::new(call));
        self
    }

    /// Trains on these rows in the place of those that `dataset_name` names.
    pub fn train_rows(mut self, rows: Rows) -> Self {
        self.injected.train_rows = Some(rows);
        self
    }

    /// Evaluates on these rows in the place of those that `eval_dataset_name` names.
    pub fn eval_rows(mut self, rows: Rows) -> Self {
        self.injected.eval_rows = Some(rows);
        self
    }

    /// Evaluates on these rows, too: as the set `name` of `eval_datasets`, in the place of what that names.
    pub fn eval_set(mut self, name: impl Into<String>, rows: Rows) -> Self {
        self.injected.eval_sets.push((name.into(), rows));
        self
    }

    /// Adds a reward function: the score of one completion, or `None` where it gives none.
    pub fn reward(
        self,
        name: impl Into<String>,
        score: impl FnMut(&RewardInput<'_>) -> Option<f64> + Send + 'static,
    ) -> Self {
        self.reward_of_batch(FunctionReward::new(name, score))
    }

    /// Adds a reward that scores whole batches. It is logged and weighted under its own name, `function:NAME` in
    /// `reward_funcs`.
    pub fn reward_of_batch(mut self, reward: impl Reward + 'static) -> Self {
        self.injected.rewards.push(Box::new(reward));
        self
    }

    /// Completions come from this function in the place of the engine, which it may ask.
    pub fn rollout_function(mut self, function: impl RolloutFunction + 'static) -> Self {
        self.injected.rollout_function = Some(Box::new(function));
        self
    }

    /// Completions are collected where `place` takes the collector.
    #[cfg(test)]
    pub(crate) fn collect_with(mut self, place: PlaceCollector) -> Self {
        self.injected.collect_with = Some(place);
        self
    }

    /// Scores of rewards that may differ from time to time are those that `place` fills in; they are not asked.
    pub(crate) fn scores_of_record(mut self, place: PlaceCollector) -> Self {
        self.injected.collect_with = Some(place);
        self.injected.recorded_scores = true;
        self
    }

    /// Every evaluation of a supervised, DPO or reward-model run computes these metrics, too.
    pub fn eval_metrics(mut self, metrics: impl EvalMetrics + 'static) -> Self {
        self.injected.eval_metrics = Some(Box::new(metrics));
        self
    }

    /// Workers make the completions: processes that join the run's directory ([`work`](crate::work)). Weights are in
    /// shared memory, or, where processes do not see each other's `/proc`, in files of `weights_dir`.
    pub fn distributed(mut self, weights_dir: Option<PathBuf>) -> Self {
        let now = telemetry::system::since_1970().as_nanos() as u64;
        let mut run = [0; 16];
        run[..8].copy_from_slice(&now.to_le_bytes());
        run[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        self.injected.sharing = Some(Sharing { run, dir: weights_dir });
        self
    }

    /// Workers of a distributed run join from other machines.
    pub fn over_network(mut self, network: Network) -> Self {
        self.injected.network = Some(network);
        self
    }

    /// Workers of a distributed run have the functions among its rewards, too
    /// ([`WorkerOptions`](crate::WorkerOptions)), and are asked for those that score a group by itself.
    pub fn functions_of_workers(mut self) -> Self {
        self.injected.functions_of_workers = true;
        self
    }

    /// The run is made to see where its time goes: however short it is, the machine is measured at its end, and what is
    /// found is said.
    pub fn profiled(mut self) -> Self {
        self.injected.profiled = true;
        self
    }

    /// The run makes no step: [`evaluate_now`](super::Run::evaluate_now) is all that it is for. No training data are
    /// read.
    pub fn only_evaluates(mut self) -> Self {
        self.injected.only_evaluates = true;
        self
    }
}
