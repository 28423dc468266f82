//! A training run in user code: built from a configuration, and driven step by step or to its end.

mod evaluator;
mod options;
mod plan;
mod score_file;
mod worker;

pub use evaluator::Evaluator;
pub use options::RunOptions;
pub use plan::{PlannedRun, plan};
pub use score_file::{ScoredFile, ScoredRow, score_file};
pub use worker::{Expelled, MakeFunctions, WorkerOptions, work};

use crate::config::{Config, Layers, Purpose, Resolved, Strategy};
use crate::models::Policy;
use crate::rollouts::function::RolloutFailed;
use crate::rollouts::health::RewardFailed;
use crate::run::eval_metrics::MetricsFailed;
use crate::run::inputs::{Follow, ResumeFrom, RunEvent, RunInputs};
use crate::run::log::StepClock;
use crate::run::profile::ProfileRecord;
use crate::run::provenance;
use crate::run::resume::{find_run, or_earlier};
use crate::run::task::TakeStep;
use crate::run::training::TrainingRun;
use crate::run::{self, RunDir, StopReason, checkpoint};
use crate::stop::{Stopped, is_stopped};
use crate::{BadInput, trainers};
use anyhow::Context as _;
use model::chat::PromptTime;
use rewards::RewardSpec;
use std::path::Path;
use telemetry::{Alarm, Console, ConsoleOptions, ConsoleSink, Sinks, Step, Summary};

/// The dataset name of rows in the caller's memory.
const IN_MEMORY: &str = "memory";

/// A training run, driven by its caller.
pub struct Run {
    task: Box<dyn TakeStep>,
    training: TrainingRun,
    has_begun: bool,
    ended: Option<StopReason>,
    only_evaluates: bool,
}

/// The result of a run.
pub struct RunResult {
    /// The reason why the run ended.
    pub stop_reason: StopReason,
    /// The last optimizer step that is done; step 0 before the first.
    pub step: Step,
    /// Tokens that the run has seen.
    pub num_tokens: u64,
    /// The metrics of the last logged step.
    pub metrics: Vec<(String, f64)>,
    /// Step and metric of the best evaluation, if `metric_for_best_model` is set.
    pub best: Option<(Step, f64)>,
    /// The coefficient of the entropy bonus at the end, if the loss has one.
    pub entropy_coef: Option<f64>,
    /// The run's directory.
    pub dir: RunDir,
    /// The model with its weights at the end.
    pub policy: Policy,
    /// The time per stage.
    pub summary: Summary,
    /// The alarms of the run. Alarms without an end were still active at the end of the run.
    pub alarms: Vec<Alarm>,
    /// The profile since the last start: time, memory and findings.
    pub profile: ProfileRecord,
}

impl RunResult {
    /// The last logged value of the metric `name`.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }
}

impl Run {
    /// A new run of `config` in its `output_dir`. `purpose` is the kind of training, such as GRPO or SFT. Invalid input
    /// is reported as a [`BadInput`] before anything is written.
    pub fn new(purpose: Purpose, mut config: Config, options: RunOptions) -> anyhow::Result<Run> {
        let injected = &options.injected;
        if injected.train_rows.is_some() {
            config.dataset_name.get_or_insert_with(|| IN_MEMORY.to_owned());
        }
        if injected.eval_rows.is_some() {
            config.eval_dataset_name.get_or_insert_with(|| IN_MEMORY.to_owned());
        }
        for (name, _) in &injected.eval_sets {
            config.eval_datasets.entry(name.as_str()).or_insert_with(|| IN_MEMORY.into());
        }
        for reward in &injected.rewards {
            let spec = RewardSpec::from(format!("function:{}", reward.name()).as_str());
            if !config.reward_funcs.contains(&spec) {
                config.reward_funcs.push(spec);
            }
        }
        let resolved = Layers { purpose, config: Some(config), ..Layers::default() }.resolve()?;
        let Some(out) = resolved.config.output_dir.clone() else {
            return Err(BadInput::new("`output_dir` is missing: set it to the run's directory"));
        };
        let dir = RunDir::fresh(&out)?;
        Run::resolved(purpose, resolved, dir, ResumeFrom::Nothing, options)
    }

    /// Resumes the run in `dir`, or from `dir` if it is a checkpoint. Injected objects must be injected again.
    pub fn resume(purpose: Purpose, dir: &Path, options: RunOptions) -> anyhow::Result<Run> {
        let (run, resume_from) = find_run(&dir.to_string_lossy(), None)?;
        provenance::check_command(&run, purpose.command())?;
        let resolved = Layers { purpose, file: Some(run.config()), ..Layers::default() }.resolve()?;
        Run::resolved(purpose, resolved, run, resume_from, options)
    }

    /// A run of a resolved configuration in `dir`, new or resumed.
    pub fn resolved(
        purpose: Purpose,
        resolved: Resolved,
        dir: RunDir,
        resume_from: ResumeFrom,
        options: RunOptions,
    ) -> anyhow::Result<Run> {
        let RunOptions { ctx, console, stop, sinks: caller_sinks, mut injected } = options;
        let mut resolved = resolved;
        let Config { device, threads, dtype, .. } = resolved.config;
        let ctx = ctx.map_or_else(|| run::context(device, threads, dtype), Ok)?;
        run::context::check_dtype(&ctx, dtype)?;
        injected.ranks = injected.ranks.filter(|ranks| ranks.world_size != 1);
        let ranks = injected.ranks.as_ref().map(|ranks| ranks.prepare(&mut resolved, &ctx)).transpose()?;
        let console = match console {
            Some(console) => console,
            None => Console::new(ConsoleOptions { silent: true, ..ConsoleOptions::default() })?,
        };
        let sinks = Sinks::new();
        sinks.add(ConsoleSink::new(console.clone()));
        for sink in caller_sinks {
            sinks.add_boxed(sink);
        }
        for note in resolved.notes.iter().chain(&ranks) {
            sinks.info(note);
        }
        let (from, place) = (resume_from.clone(), dir.clone());
        let only_evaluates = injected.only_evaluates;
        let unlisted = or_earlier(from.checkpoint().map_or(Ok(None), checkpoint::check), &from, &place)?;
        if let Some(what) = &unlisted {
            sinks.info(what);
        }
        let prompt_time = injected.prompt_time.unwrap_or_else(|| match resume_from {
            ResumeFrom::Nothing => PromptTime::now(),
            _ => provenance::prompt_time(&dir).unwrap_or_else(PromptTime::now),
        });
        let inputs = RunInputs { resolved, dir, resume_from, prompt_time, ctx, console, sinks, stop, injected };
        let (task, training) = or_earlier(trainers::build(purpose, inputs), &from, &place)?;
        let ended = if only_evaluates { Some(StopReason::Requested) } else { training.ended_before() };
        Ok(Run { task, training, has_begun: false, ended, only_evaluates })
    }

    /// The last optimizer step that is done; step 0 before the first.
    pub fn last_step(&self) -> Step {
        self.training.learner.step
    }

    /// The number of optimizer steps in the whole run.
    pub fn total_steps(&self) -> u64 {
        self.training.learner.schedule.total_steps
    }

    /// The number of optimizer steps in one pass over the data.
    pub fn steps_per_epoch(&self) -> u64 {
        self.training.data.steps_per_epoch
    }

    /// Steps that were skipped because the caller ended epochs early.
    pub fn steps_skipped(&self) -> u64 {
        self.training.data.sampler.state().skipped_steps
    }

    /// The run's directory.
    pub fn dir(&self) -> &RunDir {
        &self.training.checkpoints.dir
    }

    /// The model with its current weights.
    pub fn policy(&self) -> &Policy {
        &self.training.learner.policy
    }

    /// Takes one optimizer step, and then does the logging, evaluation and checkpoint that are due. (The checkpoint is
    /// written while the next step is prepared.) Returns the stop reason once the run has ended. If the run cannot
    /// continue, the last step is saved, and the error tells how to resume.
    pub fn step(&mut self) -> anyhow::Result<Option<StopReason>> {
        if self.ended.is_none() {
            self.ended = match self.without_lost_ranks() {
                Err(error) if is_stopped(&error) => {
                    // If the data of a checkpoint can no longer be generated, a warning was printed: a resumed run
                    // starts from the previous checkpoint.
                    self.save_step().or_else(|error| if is_stopped(&error) { Ok(()) } else { Err(error) })?;
                    Some(StopReason::Interrupted)
                }
                outcome => self.saved_on_failure(outcome)?,
            };
        }
        Ok(self.ended)
    }

    /// Takes one step. If another rank has failed or was lost, the last step is saved, and the error names the rank.
    fn without_lost_ranks(&mut self) -> anyhow::Result<Option<StopReason>> {
        let outcome = self.advance();
        let Err(error) = &outcome else { return outcome };
        let why = match (error.downcast_ref(), self.training.learner.trainer.lost_rank()) {
            (Some(train::Error::Rank(why)), _) => why.clone(),
            (_, Some(why)) => why.to_owned(),
            (_, None) => return outcome,
        };
        let training = &self.training;
        let (dir, trainer) = (&training.checkpoints.dir, &training.learner.trainer);
        let root = dir.root().display().to_string();
        let log = trainer.failed_rank().map(|rank| format!(" (the log of the rank: {})", dir.log(rank).display()));
        let log = log.unwrap_or_default();
        if trainer.is_stepping() {
            // Other ranks have changed some of the weights and moments, so that no checkpoint can be written from them.
            self.finish_checkpoint().with_context(|| why.clone())?;
            let how = "resume the run from its last checkpoint";
            anyhow::bail!("{why}, during an optimizer step: {how} with --resume {root}{log}")
        }
        self.save_step().with_context(|| why.clone())?;
        let step = self.training.learner.step;
        anyhow::bail!("{why}; stopped after step {step}: resume the run with --resume {root}{log}")
    }

    /// Writes a checkpoint of the last step, even if none is due. Nothing is written before the first step.
    pub fn save_checkpoint(&mut self) -> anyhow::Result<()> {
        self.save_step()
    }

    /// Evaluates and logs the result, even if no evaluation is due. If the evaluation triggers early stopping, the run
    /// ends.
    pub fn evaluate_now(&mut self) -> anyhow::Result<()> {
        let early = self.evaluate();
        if self.saved_on_failure(early)? && self.ended.is_none() {
            self.ended = Some(StopReason::EarlyStopping);
        }
        Ok(())
    }

    /// Returns `outcome`. If a reward or other injected user code has failed, first saves the last step, and adds
    /// instructions for resuming the run to the error.
    fn saved_on_failure<T>(&mut self, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
        let Err(error) = outcome else { return outcome };
        let is_reward = error.is::<RewardFailed>();
        if !is_reward && !error.is::<RolloutFailed>() && !error.is::<MetricsFailed>() {
            return Err(error);
        }
        if !self.task.saves_on_failure() {
            let root = self.training.checkpoints.dir.root().display();
            return Err(error.context(format!("fix the reward and resume with --resume {root}")));
        }
        self.save_step()?;
        let (step, root) = (self.training.learner.step, self.training.checkpoints.dir.root().display());
        Err(error.context(if is_reward {
            format!(
                "stopped after step {step}; fix the reward and resume with --resume {root}, or continue without it \
             with reward_errors = \"continue\""
            )
        } else {
            format!("stopped after step {step}; resume the run in {root}")
        }))
    }

    /// Saves the last step. Before the first step there is nothing to save.
    fn save_step(&mut self) -> anyhow::Result<()> {
        if self.training.learner.step > Step::START {
            self.training.save(&mut *self.task)?;
        }
        self.finish_checkpoint()
    }

    /// Waits for the last checkpoint, and notifies the task that the checkpoint is complete, since no later step will.
    fn finish_checkpoint(&mut self) -> anyhow::Result<()> {
        self.training.finish_checkpoint()?;
        self.task.checkpoint_written()
    }

    fn advance(&mut self) -> anyhow::Result<Option<StopReason>> {
        self.training.stop.check()?;
        if !std::mem::replace(&mut self.has_begun, true)
            && self.training.learner.step == Step::START
            && self.training.config.eval_on_start
        {
            self.evaluate()?;
        }
        if self.training.evaluations.due {
            return self.end_step();
        }
        if self.training.learner.is_done() {
            return Ok(Some(StopReason::Completed));
        }
        let TrainingRun { learner, log, .. } = &mut self.training;
        log.callbacks.event(&RunEvent::Begin(learner.step), &learner.policy);
        self.training.stop.check()?;
        if self.training.log.callbacks.stops {
            self.save_step()?;
            return Ok(Some(StopReason::Requested));
        }
        self.task.take_step(&mut self.training)?;
        self.training.check_files()?;
        let TrainingRun { learner, data, log, .. } = &mut self.training;
        log.end_step(learner, data, self.task.shown_metrics())?;
        self.training.evaluations.due =
            self.training.evaluates_now() || (self.task.evaluates_at_end() && self.training.learner.is_done());
        self.end_step()
    }

    /// Runs the evaluation and the checkpoint after a step, and after an epoch if the step is its last.
    fn end_step(&mut self) -> anyhow::Result<Option<StopReason>> {
        let decides = self.training.log.callbacks.decide.is_some();
        let by_epoch = decides && self.training.config.eval_strategy == Strategy::Epoch;
        let mut ended = self.follow(by_epoch, !decides, None)?;
        self.ask_for_the_end_of_the_epoch()?;
        if decides && (ended.is_some() || self.training.learner.is_done() || self.training.ends_epoch()) {
            self.training.log.end_epoch(&self.training.learner, self.task.shown_metrics())?;
            ended = self.follow(false, true, ended)?;
        }
        self.training.evaluations.due = false;
        let ended = ended.or(self.training.learner.is_done().then_some(StopReason::Completed));
        if ended.is_some() {
            self.finish_checkpoint()?;
            // The last step is always logged.
            let TrainingRun { learner, log, .. } = &mut self.training;
            log.log_now(learner, self.task.shown_metrics(), learner.is_done())?;
        }
        Ok(ended)
    }

    /// Runs the evaluation and the checkpoint that are due now, and returns the stop reason if the run ends, or
    /// `before` if it had already ended. A due evaluation that is not run now is dropped, unless it `waits` for the end
    /// of the epoch, which a checkpoint records. The checkpoint at the end of the run is written by the `last` call.
    fn follow(&mut self, waits: bool, last: bool, before: Option<StopReason>) -> anyhow::Result<Option<StopReason>> {
        let mut early = false;
        let is_due = self.training.evaluations.due;
        self.training.evaluations.due = self.training.log.callbacks.follows(Follow::Evaluate, is_due);
        if self.training.evaluations.due {
            early = self.evaluate()?;
        }
        self.training.evaluations.due = waits && is_due && !self.training.evaluations.due;
        let stops = |training: &TrainingRun| match training.stop_reason(early) {
            Some(StopReason::Interrupted) => Err(Stopped),
            ended => Ok(ended.or(before)),
        };
        let ended = stops(&self.training)?;
        // The evaluation comes before the checkpoint, from which a resumed run starts.
        self.ask_for_the_end_of_the_epoch()?;
        if self.training.saves_now(ended, last) {
            self.training.save(&mut *self.task)?;
            if self.training.log.callbacks.follows(Follow::Complete, false) {
                self.finish_checkpoint()?;
                return Ok(stops(&self.training)?);
            }
        }
        Ok(ended)
    }

    /// Ends the epoch early if the caller asks for it.
    fn ask_for_the_end_of_the_epoch(&mut self) -> anyhow::Result<()> {
        let step = self.training.learner.step;
        if !self.training.ends_epoch() && self.training.log.callbacks.follows(Follow::EndEpoch, false) {
            self.task.check_ends_epochs(&self.training)?;
            self.training.data.end_epoch(step);
        }
        Ok(())
    }

    /// Evaluates, and returns whether the run should stop early.
    fn evaluate(&mut self) -> anyhow::Result<bool> {
        let start = StepClock::now();
        let evaluated = self.task.evaluate(&mut self.training)?;
        let early = evaluated.map_or(Ok(false), |metrics| self.training.log_evaluation(&metrics));
        self.training.log.leave_out_since(start);
        early
    }

    /// Takes all remaining steps, and [finishes](Self::finish).
    pub fn run(mut self) -> anyhow::Result<RunResult> {
        while self.step()?.is_none() {}
        self.finish()
    }

    /// Writes the final model, unless the run was interrupted. A run that has not ended ends here, with a checkpoint.
    pub fn finish(mut self) -> anyhow::Result<RunResult> {
        let stop_reason = match self.ended {
            Some(reason) => reason,
            None => {
                self.training.save(&mut *self.task)?;
                StopReason::Requested
            }
        };
        if stop_reason != StopReason::Interrupted {
            self.finish_checkpoint()?;
            self.task.end()?;
        }
        let TrainingRun { learner, log, .. } = &mut self.training;
        let span = log.stages.span("profile");
        let found = log.profile.finish(&learner.ctx, stop_reason != StopReason::Interrupted);
        log.emit_findings(learner.step, found)?;
        span.end();
        // A run that only evaluates writes no model.
        self.training.write_result(if self.only_evaluates { StopReason::Interrupted } else { stop_reason })?;
        self.training.checkpoints.dir.unlock();
        let TrainingRun { learner, data, log, evaluations, checkpoints, .. } = self.training;
        Ok(RunResult {
            stop_reason,
            step: learner.step,
            num_tokens: data.num_tokens,
            metrics: log.last_logged().to_vec(),
            best: evaluations.best.map(|best| (best.step, best.metric)),
            entropy_coef: learner.trainer.entropy_coef(),
            dir: checkpoints.dir,
            policy: learner.policy,
            summary: log.stages.summary(),
            alarms: log.alarms.raised().to_vec(),
            profile: log.profile.record().clone(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
