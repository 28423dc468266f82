//! A run between two steps: what every way to train shares. Steps, logs, checkpoints, the best evaluation, the end.
//!
//! It does not know where samples come from: a [`TrainingTask`](super::task::TrainingTask) does, whose own state goes
//! into the same checkpoint as a value that is opaque here.

use super::abandoned;
use super::alarms::Alarms;
use super::checkpoint::{self, CheckpointWriter, Kept, moments, state};
use super::device_meter;
use super::eval_metrics::{MetricsFailed, check_best_metric, no_such_metric};
use super::inputs::{Callbacks, RunInputs};
use super::provenance::{self, Models, RunMetadata};
use super::reporter::Reporter;
use super::resume::{ResumeFrom, check_resumable};
use super::reward_remarks::RewardRemarks;
use super::task::TrainingTask;
use super::update::StepBefore;
use super::{RunDir, StopReason};
use crate::bad_input;
use crate::config::{Config, Purpose, Strategy, changes};
use crate::data::Sampler;
use crate::error::{BadInput, OrBadInput};
use crate::models::{Policy, compare_base};
use crate::rollouts::evaluate::find;
use crate::stop::StopSignal;
use anyhow::Context as _;
use kernels::Context;
use serde_json::Value;
use state::{Best, RunState};
use std::path::Path;
use std::time::{Duration, Instant};
use telemetry::{Alarm, EventKind, Stages, stages::Span};
use train::{Schedule, Trainer, UpdateMetrics};

/// A run between two steps.
pub struct TrainingRun {
    /// The resolved configuration.
    pub config: Config,
    /// Where it writes.
    pub dir: RunDir,
    /// What it computes with.
    pub ctx: Context,
    /// The model that it trains.
    pub policy: Policy,
    /// Gradients, moments, buffers.
    pub trainer: Trainer,
    /// Learning rates.
    pub schedule: Schedule,
    /// The order of rows.
    pub sampler: Sampler,
    /// Optimizer steps of an epoch.
    pub steps_per_epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Tokens seen.
    pub num_tokens: u64,
    /// The best evaluation.
    pub best: Option<Best>,
    /// Metrics and events.
    pub reporter: Reporter,
    /// What usually means that a run goes wrong.
    pub alarms: Alarms,
    /// Timers.
    pub stages: Stages,
    /// What a program asks to be told.
    pub(crate) callbacks: Callbacks,
    /// What lines of progress say beside metrics.
    pub(crate) remarks: RewardRemarks,
    /// The metrics that were logged last.
    pub(crate) last_logged: Vec<(String, f64)>,
    pub(crate) label: &'static str,
    /// Whether to stop.
    pub stop: StopSignal,
    /// The step is done, and an evaluation of it is not.
    pub evaluation_due: bool,
    /// What a step that is given up takes the run back to; none between two steps.
    pub(super) before: Option<StepBefore>,
    /// Evaluations may have metrics of other names than those that are known before.
    has_other_metrics: bool,
    evaluations_without_improvement: u32,
    data_hash: String,
    step_started: Instant,
    saved_at: Option<u64>,
    writing: Option<CheckpointWriter>,
    /// How long the next checkpoint waits for the end of a rollout.
    hold_checkpoint: Duration,
}

/// What a task adds to the [`RunInputs`] of its run.
pub struct RunSetup {
    /// The model that it trains.
    pub policy: Policy,
    /// What trains it.
    pub trainer: Trainer,
    /// The order of rows.
    pub sampler: Sampler,
    /// Optimizer steps of an epoch.
    pub steps_per_epoch: u64,
    /// Optimizer steps of the run.
    pub total_steps: u64,
    /// SHA-256 of the data.
    pub data_hash: String,
    /// Which command's run it is.
    pub purpose: Purpose,
    /// What progress is called.
    pub label: &'static str,
    /// Names of the metrics that an evaluation gives, `eval_` before each.
    pub evaluation_metrics: Vec<String>,
    /// It gives others, too, which a program computes.
    pub has_other_metrics: bool,
}

impl TrainingRun {
    /// Takes up the state of a checkpoint, with `restore` what the task saved there, and then opens the run's directory
    /// and logs: everything that can be wrong with the input is found before the first file is written.
    pub fn begin(
        inputs: RunInputs,
        setup: RunSetup,
        restore: impl FnOnce(Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<TrainingRun> {
        let RunInputs { mut resolved, dir, resume_from, ctx, console, sinks, stop, callbacks, .. } = inputs;
        let RunSetup { mut policy, mut trainer, mut sampler, data_hash, label, .. } = setup;
        resolved.config.output_dir = Some(dir.root().to_owned());
        let config_toml = resolved.to_toml();
        let config = resolved.config;
        if !setup.has_other_metrics {
            check_best_metric(&config, &setup.evaluation_metrics)?;
        }
        let state = match resume_from.checkpoint() {
            Some(from) => {
                let mut state = RunState::read(from)?;
                check_resumable(&state, &config, &ctx, &data_hash)?;
                moments::restore_moments(from, "", &mut trainer)?;
                trainer.set_state(state.trainer);
                policy.weights.set_version(state.weights_version);
                sampler.restore(state.sampler);
                let file = from.join(state::FILE);
                restore(state.task.take()).or_bad_input_in(format!("{} is damaged", file.display()))?;
                Some(state)
            }
            None => None,
        };
        trainer.stop_with(stop.of_passes());
        let models = Models::hashed(&dir, &config, setup.purpose, &policy.dir, state.is_some(), &stop)?;
        stop.check()?;
        policy.base_sha256 = policy.weights.adapter.is_some().then(|| models.weights_sha256());
        if let (Some(from), Some(found), false) =
            (resume_from.checkpoint(), &policy.base_sha256, config.allow_other_base)
        {
            compare_base(from, &policy.dir, || Ok(found.clone()))?;
        }
        let began = resume_from.configuration(&dir, setup.purpose)?;

        let killed = dir.lock()?;
        // Another process may have been given the same directory, and been quicker.
        match resume_from {
            ResumeFrom::Nothing => drop(RunDir::fresh(dir.root())?),
            ResumeFrom::Beginning if checkpoint::latest(&dir).is_some() => {
                bad_input!(
                    "{}: another process has begun this run meanwhile: resume it once more",
                    dir.root().display()
                )
            }
            _ => {}
        }
        let (step, log_bytes, unlogged) = match &state {
            Some(state) => (state.step, state.log_bytes.clone(), state.unlogged.clone()),
            None => Default::default(),
        };
        let abandoned = abandoned::set_aside(&dir, step, &log_bytes)?;
        dir.create(&config_toml)?;
        checkpoint::sweep(&dir)?;
        console.set_log_file(dir.log(0))?;
        let mut reporter = Reporter::open(&dir, sinks, &config)?;
        reporter.resume(step, &log_bytes, unlogged)?;
        let sinks = reporter.sinks();
        models.unchecked.iter().for_each(|what| sinks.warn(what));
        let place = |dir: &Path| dir.canonicalize().ok();
        if let Some(old) = began.as_ref().and_then(|began| began.output_dir.as_deref())
            && place(old) != place(dir.root())
        {
            sinks.info(&format!("the run's directory was {}, and is now {}", old.display(), dir.root().display()));
        }
        if let Some(killed) = killed {
            sinks.info(&format!("{killed} was killed while it wrote into this directory"));
        }
        if let Some(kept) = abandoned {
            sinks.warn(&format!("what the run did after step {step} is kept in {}", kept.display()));
        }
        match resume_from {
            ResumeFrom::Checkpoint(from) => {
                // Killed when this one was written and an old one not yet deleted.
                let best = state.as_ref().and_then(|state| state.best.as_ref());
                checkpoint::prune(&dir, Kept::new(&config, best))?;
                sinks.info(&format!("resuming after step {step} from {}", from.display()));
            }
            ResumeFrom::Beginning => {
                let root = dir.root().display();
                sinks.warn(&format!("{root} has no checkpoint: the run starts again from step 0"));
            }
            ResumeFrom::Nothing => {}
        }
        let metadata = RunMetadata {
            command: setup.purpose.command(),
            config: &config,
            config_toml: &config_toml,
            ctx: &ctx,
            models: &models,
            data_hash: &data_hash,
            step,
            changed: began.map_or(Vec::new(), |began| changes(&began, &config)),
        };
        for (name, by) in provenance::isolation(&config, metadata.command) {
            if by.starts_with("none") {
                sinks.warn(&format!("reward `{name}` runs programs WITHOUT ISOLATION: unsafe_no_sandbox = true"));
            }
        }
        provenance::write(&dir, metadata)?;
        let run = TrainingRun {
            stages: device_meter::stages(&reporter, &ctx),
            schedule: config.schedule(setup.total_steps),
            config,
            dir,
            ctx,
            policy,
            trainer,
            sampler,
            steps_per_epoch: setup.steps_per_epoch.max(1),
            step,
            num_tokens: state.as_ref().map_or(0, |state| state.num_tokens),
            best: state.as_ref().and_then(|state| state.best.clone()),
            alarms: state.as_ref().map_or_else(Alarms::default, |state| Alarms::restore(state.alarms.clone())),
            reporter,
            callbacks,
            remarks: RewardRemarks::default(),
            last_logged: Vec::new(),
            label,
            stop,
            before: None,
            evaluation_due: state.as_ref().is_some_and(|state| state.evaluation_due),
            has_other_metrics: setup.has_other_metrics,
            evaluations_without_improvement: state.as_ref().map_or(0, |state| state.evaluations_without_improvement),
            data_hash,
            step_started: Instant::now(),
            saved_at: state.as_ref().filter(|state| !state.evaluation_due).map(|_| step),
            writing: None,
            hold_checkpoint: Duration::ZERO,
        };
        run.report_progress(String::new())?;
        Ok(run)
    }

    /// Why a run that is resumed has nothing left to do, which is said; `None` if it goes on.
    pub(crate) fn ended_before(&self) -> Option<StopReason> {
        let (step, total) = (self.step, self.schedule.total_steps);
        let (reason, why) = match self.saved_at {
            None => return None,
            Some(_) if self.is_done() => (StopReason::Completed, format!("it has done {step} of {total} steps")),
            Some(_) if self.out_of_patience() => (
                StopReason::EarlyStopping,
                format!(
                    "it stopped early after step {step} of {total}: {} evaluations in a row were no better (a higher \
                     early_stopping_patience goes on)",
                    self.evaluations_without_improvement
                ),
            ),
            Some(_) => return None,
        };
        self.reporter.sinks().info(&format!("the run has ended already: {why}"));
        Some(reason)
    }

    fn out_of_patience(&self) -> bool {
        let patience = self.config.early_stopping_patience;
        patience.is_some_and(|patience| self.evaluations_without_improvement as usize >= patience)
    }

    /// Whether the last step is done.
    pub fn is_done(&self) -> bool {
        self.step >= self.schedule.total_steps
    }

    /// Says what a person should look at.
    pub fn warn(&self, message: &str) {
        self.reporter.sinks().warn(message);
    }

    /// Adds a value to the mean that is logged next.
    pub fn add_metric(&mut self, name: &str, value: f64) {
        self.reporter.add(name, value);
    }

    /// Ends the step, and logs it if that is due; progress shows the metrics `shown`.
    pub(crate) fn log_step(&mut self, shown: &[&str]) -> anyhow::Result<()> {
        let (step, last) = (self.step, self.is_done());
        self.reporter.add("step_time", self.step_started.elapsed().as_secs_f64());
        self.step_started = Instant::now();
        self.reporter.set("epoch", step as f64 / self.steps_per_epoch as f64);
        self.reporter.set("num_tokens", self.num_tokens as f64);
        device_meter::report(&mut self.reporter, &self.stages, &self.ctx);
        let alarms = self.alarms.end_step(step, &self.reporter.take_step_values());
        self.emit_alarms(alarms)?;
        if let Some(means) = self.reporter.end_step(step, last)? {
            let value = |name: &str| find(&means, name).filter(|v| v.is_finite());
            let part = |name: &&str| value(name).map(|v| format!("{name} {v:.4}"));
            let parts = shown.iter().filter_map(part).chain(self.remarks.text());
            self.report_progress(parts.collect::<Vec<_>>().join(" · "))?;
            self.callbacks.step(step, &self.policy);
            self.callbacks.log(step, &means, &self.policy);
            self.last_logged = means;
        } else {
            self.callbacks.step(step, &self.policy);
        }
        Ok(())
    }

    /// Reports alarms that are raised, or over, after this step.
    pub(crate) fn emit_alarms(&self, alarms: Vec<Alarm>) -> anyhow::Result<()> {
        let emit = |alarm| self.reporter.sinks().emit(EventKind::Alarm { step: self.step, alarm });
        Ok(alarms.into_iter().try_for_each(emit)?)
    }

    fn report_progress(&self, note: String) -> anyhow::Result<()> {
        let (label, done, total) = (self.label.to_owned(), self.step, self.schedule.total_steps);
        Ok(self.reporter.sinks().emit(EventKind::Progress { label, done, total, note })?)
    }

    /// Whether this step is followed by an evaluation.
    pub(crate) fn evaluates_now(&self) -> bool {
        self.is_due(self.config.eval_strategy, self.config.eval_steps())
    }

    fn is_due(&self, strategy: Strategy, every: u64) -> bool {
        match strategy {
            Strategy::No => false,
            Strategy::Steps => self.step.is_multiple_of(every),
            Strategy::Epoch => self.step.is_multiple_of(self.steps_per_epoch),
        }
    }

    /// Logs an evaluation, keeps the best, and says whether to stop early.
    pub(crate) fn log_evaluation(&mut self, metrics: Vec<(String, f64)>) -> anyhow::Result<bool> {
        self.reporter.metrics(self.step, metrics.clone())?;
        self.callbacks.log(self.step, &metrics, &self.policy);
        let summary: Vec<String> = metrics.iter().map(|(n, v)| format!("{n} {v:.4}")).collect();
        self.reporter.sinks().info(&format!("step {}: {}", self.step, summary.join(" · ")));
        let Some(name) = self.config.metric_for_best_model.as_ref().filter(|_| self.step > 0) else {
            // Before the first step there is no checkpoint that could be the best.
            return Ok(false);
        };
        let Some(value) = find(&metrics, name) else {
            if self.has_other_metrics {
                let names: Vec<&str> = metrics.iter().map(|(name, _)| name.as_str()).collect();
                return Err(no_such_metric(name, &names)).context(MetricsFailed);
            }
            // The name is a known one: nothing was scored.
            self.warn(&format!("step {}: this evaluation has no {name}, and does not count", self.step));
            return Ok(false);
        };
        let more_is_better = self.config.greater_is_better.unwrap_or(!name.ends_with("loss"));
        let threshold = self.config.early_stopping_threshold;
        let gain = |best: &Best| if more_is_better { value - best.metric } else { best.metric - value };
        let better = self.best.as_ref().is_none_or(|best| gain(best) > 0.0);
        let counts = self.best.as_ref().is_none_or(|best| gain(best) > threshold);
        self.evaluations_without_improvement = if counts { 0 } else { self.evaluations_without_improvement + 1 };
        if better {
            self.best = Some(Best { step: self.step, metric: value });
        }
        Ok(self.out_of_patience())
    }

    /// Why the run ends before its last step, if it does; `early` as [`log_evaluation`](Self::log_evaluation) says.
    pub(crate) fn stop_reason(&self, early: bool) -> Option<StopReason> {
        if self.stop.is_requested() {
            return Some(StopReason::Interrupted);
        }
        if self.is_done() {
            return None;
        }
        if early {
            return Some(StopReason::EarlyStopping);
        }
        self.callbacks.stops.then_some(StopReason::Requested)
    }

    /// Whether a checkpoint is due: as configured, after the best evaluation, and at the end. With `save_strategy =
    /// "no"` only if a signal stops the run: it has to go on from somewhere.
    pub(crate) fn saves_now(&self, ended: Option<StopReason>) -> bool {
        let best = self.config.load_best_model_at_end && self.best.as_ref().is_some_and(|b| b.step == self.step);
        let strategy = self.config.save_strategy;
        let at_end = ended.is_some() || self.is_done();
        ended == Some(StopReason::Interrupted)
            || strategy != Strategy::No && (at_end || best || self.is_due(strategy, self.config.save_steps))
    }

    /// Begins to write a checkpoint of this step; [`finish_checkpoint`](Self::finish_checkpoint) ends it.
    pub(crate) fn save(&mut self, task: &dyn TrainingTask) -> anyhow::Result<()> {
        if self.saved_at == Some(self.step) {
            return Ok(());
        }
        self.finish_checkpoint()?;
        let _span = self.stages.span("checkpoint");
        let state = RunState {
            format: RunState::FORMAT,
            step: self.step,
            weights_version: self.policy.weights.version(),
            isa: self.ctx.describe().to_owned(),
            arithmetic: Some(self.ctx.arithmetic(self.config.dtype.dtype()).to_owned()),
            data_hash: self.data_hash.clone(),
            sampler: self.sampler.state(),
            trainer: self.trainer.state(),
            task: task.state()?,
            num_tokens: self.num_tokens,
            unlogged: self.reporter.unlogged().clone(),
            best: self.best.clone(),
            evaluations_without_improvement: self.evaluations_without_improvement,
            evaluation_due: self.evaluation_due,
            alarms: self.alarms.state(),
            log_bytes: self.reporter.sinks().checkpoint()?,
        };
        let mut writes = vec![self.policy.writer(), moments::write_moments("", &self.trainer)];
        writes.extend(task.write_tensors(self));
        writes.push(Box::new(move |dir| state.write(dir)));
        let kept = Kept::new(&self.config, self.best.as_ref());
        self.writing = Some(CheckpointWriter::start(&self.dir, self.step, writes, kept, self.hold_checkpoint)?);
        self.saved_at = Some(self.step);
        Ok(())
    }

    /// The batch of the step is there: what comes now leaves the memory to the checkpoint.
    pub(crate) fn release_checkpoint(&mut self) {
        self.writing.iter_mut().for_each(CheckpointWriter::release);
    }

    /// Waits for the checkpoint that is being written, if one is. Comes before anything that a checkpoint holds is
    /// changed.
    pub(crate) fn finish_checkpoint(&mut self) -> anyhow::Result<()> {
        let Some(writer) = self.writing.take() else { return Ok(()) };
        let (span, step) = (self.stages.span("checkpoint"), writer.step);
        let written = writer.finish().inspect_err(|_| self.saved_at = None)?;
        self.hold_checkpoint = written.hold_next;
        self.stages.record_overlapped("checkpoint", written.began, written.hidden_s);
        let path = written.path.display().to_string();
        self.reporter.sinks().emit(EventKind::Checkpoint { step, path })?;
        span.end();
        self.callbacks.checkpoint(step, &written.path, &self.policy);
        Ok(())
    }

    /// Writes the run's result: the weights as they are, or those of the best checkpoint. An interrupted run has none
    /// yet.
    pub(crate) fn write_result(&mut self, reason: StopReason) -> anyhow::Result<()> {
        self.finish_checkpoint()?;
        if reason != StopReason::Interrupted {
            let _span = self.stages.span("result");
            let mut saved = self.dir.checkpoint(self.step);
            if let (true, Some(best)) = (self.config.load_best_model_at_end, &self.best)
                && best.step != self.step
            {
                let step = best.step;
                let of_best = self.dir.checkpoint(step);
                if of_best.is_dir() {
                    saved = of_best;
                    self.policy.restore(&saved)?;
                    self.reporter.sinks().info(&format!("the result is the best checkpoint, of step {step}"));
                } else {
                    self.warn(&format!("the best checkpoint, of step {step}, is gone: the result is the last weights"));
                }
            }
            let target = self.dir.model();
            let temporary = self.dir.root().join(".unfinished-model");
            let _ = std::fs::remove_dir_all(&temporary);
            match saved.is_dir() {
                true => checkpoint::link_model(&saved, &temporary)?,
                false => self.policy.save(&temporary)?,
            }
            let _ = std::fs::remove_dir_all(&target);
            std::fs::rename(&temporary, &target)?;
        }
        Ok(self.reporter.sinks().finish()?)
    }
}

/// Why a step was skipped.
pub fn not_finite(metrics: &UpdateMetrics) -> String {
    format!("the loss or the gradient is not finite (loss {}, gradient norm {})", metrics.loss, metrics.grad_norm)
}

/// Enters what operations counted since `before` into a span.
pub fn record_ops(span: &Span, before: (u64, u64)) {
    let now = kernels::context::counted();
    span.work((now.0 - before.0) as f64, (now.1 - before.1) as f64);
}

/// A sampler of `rows` rows, `chunk` at a time; a batch larger than the data is refused.
pub fn sampler(rows: usize, chunk: usize, config: &Config) -> anyhow::Result<Sampler> {
    Sampler::new(rows, chunk, config.shuffle_seed()).ok_or_else(|| {
        BadInput::new(format!(
            "one step takes {chunk} rows of the training data, which has {rows}: lower per_device_train_batch_size (or \
             generation_batch_size), or give more data"
        ))
    })
}
