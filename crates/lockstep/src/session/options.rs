//! The objects that a caller injects into a run.

use crate::data::Rows;
use crate::models::Policy;
use crate::ranks::{RankOptions, RankProcesses, Rendezvous};
use crate::rollouts::collector::PlaceCollector;
use crate::rollouts::function::RolloutFunction;
use crate::run::eval_metrics::EvalMetrics;
use crate::run::inputs::{Flow, Follow, Injected, LogRecord, RunEvent};
#[cfg(test)]
use crate::sources::BatchSource;
use crate::sources::workers::Network;
use crate::stop::StopSignal;
use kernels::Context;
use model::Sharing;
use model::chat::PromptTime;
use rewards::{FunctionReward, Reward, RewardInput};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use telemetry::{Console, Sink, Step};

/// The objects that the caller injects into a run in addition to its configuration. By default nothing is injected,
/// nothing is printed, and all cores are used.
#[derive(Default)]
pub struct RunOptions {
    pub(super) ctx: Option<Context>,
    pub(super) console: Option<Console>,
    pub(super) stop: StopSignal,
    pub(super) sinks: Vec<Box<dyn Sink>>,
    pub(super) injected: Injected,
}

impl RunOptions {
    /// Options without injected objects.
    pub fn new() -> RunOptions {
        RunOptions::default()
    }

    /// Uses this compute context. By default, the configuration or the environment determines device and threads.
    pub fn context(mut self, ctx: Context) -> Self {
        self.ctx = Some(ctx);
        self
    }

    /// Prints to this console; without it, nothing is printed. The log file in the run's directory is always written.
    pub fn console(mut self, console: Console) -> Self {
        self.console = Some(console);
        self
    }

    /// Stops the run when this signal is set. The last step is saved in a checkpoint, from which the run can be
    /// resumed.
    pub fn stop_signal(mut self, stop: StopSignal) -> Self {
        self.stop = stop;
        self
    }

    /// Adds a sink that receives every event of the run.
    pub fn sink(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.push(Box::new(sink));
        self
    }

    /// Calls `call` after each optimizer step, with the number of steps so far.
    pub fn on_step(mut self, call: impl FnMut(Step) -> Flow + 'static) -> Self {
        self.injected.callbacks.on_step.push(Box::new(call));
        self
    }

    /// Calls `call` with the metrics of each logged step and of each evaluation.
    pub fn on_log(mut self, call: impl FnMut(&LogRecord<'_>) -> Flow + 'static) -> Self {
        self.injected.callbacks.on_log.push(Box::new(call));
        self
    }

    /// Calls `call` with the step and the directory of each checkpoint when it is complete: before the next optimizer
    /// step, or at the end.
    pub fn on_checkpoint(mut self, call: impl FnMut(Step, &Path) -> Flow + 'static) -> Self {
        self.injected.callbacks.on_checkpoint.push(Box::new(call));
        self
    }

    /// Calls `call` after each step, log and checkpoint, with the event and the current model.
    pub fn on_event(mut self, call: impl FnMut(&RunEvent<'_>, &Policy) -> Flow + 'static) -> Self {
        self.injected.callbacks.on_event.push(Box::new(call));
        self
    }

    /// Calls `call` to decide the actions after each step and epoch. The second argument of `call` is true if the
    /// action is due by the configuration. The run always logs and saves its last step, and saves the weights of the
    /// best evaluation if they will be its result.
    pub fn decide(mut self, call: impl FnMut(Follow, bool) -> bool + 'static) -> Self {
        self.injected.callbacks.decide = Some(Box::new(call));
        self
    }

    /// Trains on these rows instead of those of `dataset_name`.
    pub fn train_rows(mut self, rows: Rows) -> Self {
        self.injected.train_rows = Some(rows);
        self
    }

    /// Evaluates on these rows instead of those of `eval_dataset_name`.
    pub fn eval_rows(mut self, rows: Rows) -> Self {
        self.injected.eval_rows = Some(rows);
        self
    }

    /// Adds these rows as the evaluation set `name` of `eval_datasets`.
    pub fn eval_set(mut self, name: impl Into<String>, rows: Rows) -> Self {
        self.injected.eval_sets.push((name.into(), rows));
        self
    }

    /// Adds a reward function, which returns the score of one completion; `None` for no score.
    pub fn reward(
        self,
        name: impl Into<String>,
        score: impl FnMut(&RewardInput<'_>) -> Option<f64> + Send + 'static,
    ) -> Self {
        self.reward_of_batch(FunctionReward::new(name, score))
    }

    /// Adds a reward that scores whole batches. The reward is logged and weighted under its own name, and
    /// `reward_funcs` refers to it as `function:NAME`.
    pub fn reward_of_batch(mut self, reward: impl Reward + 'static) -> Self {
        self.injected.rewards.push(Box::new(reward));
        self
    }

    /// Generates completions with this function instead of the engine. The function may call the engine.
    pub fn rollout_function(mut self, function: impl RolloutFunction + 'static) -> Self {
        self.injected.rollout_function = Some(Box::new(function));
        self
    }

    /// Moves the collector to another thread or process with `place`.
    #[cfg(test)]
    pub(crate) fn collect_with(mut self, place: PlaceCollector) -> Self {
        self.injected.collect_with = Some(place);
        self
    }

    /// Replaces the run's source of batches by the source that `wrap` makes from it.
    #[cfg(test)]
    pub(crate) fn wrap_source(
        mut self,
        wrap: impl FnOnce(Box<dyn BatchSource>) -> Box<dyn BatchSource> + 'static,
    ) -> Self {
        self.injected.wrap_source = Some(Box::new(wrap));
        self
    }

    /// Takes the scores of nondeterministic rewards from the collector of `place`, and does not call these rewards.
    pub(crate) fn scores_of_record(mut self, place: PlaceCollector) -> Self {
        self.injected.collect_with = Some(place);
        self.injected.recorded_scores = true;
        self
    }

    /// Renders prompts with the time of a recorded run.
    pub(crate) fn prompt_time(mut self, time: PromptTime) -> Self {
        self.injected.prompt_time = Some(time);
        self
    }

    /// Adds metrics that are computed in every evaluation of an SFT, DPO or reward-model run.
    pub fn eval_metrics(mut self, metrics: impl EvalMetrics + 'static) -> Self {
        self.injected.eval_metrics = Some(Box::new(metrics));
        self
    }

    /// Lets workers generate the completions: processes that join the run's directory ([`work`](crate::workers::work)).
    /// Weights are in shared memory, or in files in `weights_dir` if processes cannot see each other's `/proc`.
    pub fn distributed(mut self, weights_dir: Option<PathBuf>) -> Self {
        self.injected.sharing = Some(Sharing { run: new_id(), dir: weights_dir, lent: false });
        self
    }

    /// Divides generation and the passes of each optimizer step among `world_size` processes of this machine, a power
    /// of two, with the bits of one process. `command` starts a process that calls [`serve`](crate::ranks::serve).
    pub fn ranks(self, world_size: usize, command: impl Fn() -> Command + 'static) -> Self {
        self.divided(world_size, RankProcesses::Started(Box::new(command)))
    }

    /// Like [`ranks`](Self::ranks), with the processes that a launcher has started, of which this one is rank 0. The
    /// caller [ends](Rendezvous::end) them after the run.
    pub fn launched_ranks(self, rendezvous: Arc<Rendezvous>) -> Self {
        self.divided(rendezvous.launch().world_size, RankProcesses::Launched(rendezvous))
    }

    fn divided(mut self, world_size: usize, processes: RankProcesses) -> Self {
        let sharing = Sharing { run: new_id(), dir: None, lent: true };
        self.injected.ranks = Some(RankOptions { world_size, processes, sharing });
        self
    }

    /// Allows workers on other machines to join a distributed run.
    pub fn over_network(mut self, network: Network) -> Self {
        self.injected.network = Some(network);
        self
    }

    /// Declares that the workers of a distributed run also have the user's reward functions
    /// ([`WorkerOptions`](crate::workers::WorkerOptions)). Workers then call those that score each group separately.
    pub fn functions_of_workers(mut self) -> Self {
        self.injected.functions_of_workers = true;
        self
    }

    /// Declares that the purpose of the run is to measure where its time goes. The machine's speed is measured at its
    /// end, and findings are reported, even if the run is short.
    pub fn profiled(mut self) -> Self {
        self.injected.profiled = true;
        self
    }

    /// Makes a run that takes no training steps and reads no training data, only for
    /// [`evaluate_now`](super::Run::evaluate_now).
    pub fn only_evaluates(mut self) -> Self {
        self.injected.only_evaluates = true;
        self
    }
}

/// A new id for the shared memory of a run.
fn new_id() -> [u8; 16] {
    let now = telemetry::system::since_1970().as_nanos() as u64;
    let mut id = [0; 16];
    id[..8].copy_from_slice(&now.to_le_bytes());
    id[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    id
}
