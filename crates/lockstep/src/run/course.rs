//! The course of a run: what GRPO and supervised fine-tuning share. Steps, logs, checkpoints, evaluation, the end.
//!
//! It does not know where samples come from. [`crate::trainers::grpo`] and [`crate::trainers::sft`] add that; their own state goes through
//! [`Own`] into the same checkpoint.

use crate::config::{Config, Purpose, Resolved, Strategy};
use crate::data::Sampler;
use crate::error::BadInput;
use crate::models::Policy;
use crate::rollouts::evaluate::find;
use crate::run::checkpoint;
use crate::run::checkpoint::moments::{restore_moments, save_moments};
use crate::run::checkpoint::state::{Best, Buffer, CriticState, RunState};
use crate::run::provenance;
use crate::run::reporter::Reporter;
use crate::run::run_dir::RunDir;
use crate::run::signals::StopRequest;
use kernels::Context;
use std::path::{Path, PathBuf};
use std::time::Instant;
use telemetry::stages::Span;
use telemetry::{Console, EventKind, Stages, Summary};
use train::{Schedule, Trainer, UpdateMetrics};

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All steps are done.
    Done,
    /// Evaluation stopped improving.
    Early,
    /// Somebody asked; a checkpoint was written.
    Asked,
}

/// Where a run begins.
#[derive(Clone, Debug)]
pub enum Beginning {
    /// A new directory.
    Fresh,
    /// After this checkpoint.
    Checkpoint(PathBuf),
    /// A run that was killed before its first checkpoint: from step 0 again.
    Again,
}

impl Beginning {
    /// The checkpoint, if it is one.
    pub fn checkpoint(&self) -> Option<&Path> {
        match self {
            Beginning::Checkpoint(dir) => Some(dir),
            _ => None,
        }
    }
}

/// What GRPO has and supervised fine-tuning lacks.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// The next rollout number.
    pub rollout_number: u64,
    /// The generation batch in use.
    pub buffer: Option<Buffer>,
    /// What PPO has beside the policy.
    pub critic: Option<CriticState>,
}

/// A run between two steps.
pub struct Course {
    /// What it was told.
    pub config: Config,
    /// Where it writes.
    pub run: RunDir,
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
    /// Logs.
    pub reporter: Reporter,
    /// Timers.
    pub stages: Stages,
    label: &'static str,
    stop: StopRequest,
    evaluations_without_improvement: u32,
    data_hash: String,
    step_started: Instant,
    saved_at: Option<u64>,
}

/// The parts of a course, made by the caller.
pub struct Parts {
    /// What the run was told, and by whom.
    pub resolved: Resolved,
    /// The directory, not yet created if the run is fresh.
    pub run: RunDir,
    /// See [`Course`].
    pub ctx: Context,
    /// See [`Course`].
    pub policy: Policy,
    /// See [`Course`].
    pub trainer: Trainer,
    /// See [`Course`].
    pub sampler: Sampler,
    /// Optimizer steps of an epoch.
    pub steps_per_epoch: u64,
    /// Optimizer steps of the run.
    pub total_steps: u64,
    /// SHA-256 of the data.
    pub data_hash: String,
    /// Where it begins.
    pub beginning: Beginning,
    /// Where it talks.
    pub console: Console,
    /// Whether to stop.
    pub stop: StopRequest,
    /// Which command's run it is.
    pub purpose: Purpose,
    /// What the progress bar says.
    pub label: &'static str,
    /// Names of the metrics that an evaluation gives, `eval_` before each.
    pub evaluation_metrics: Vec<String>,
}

impl Course {
    /// Opens the run's directory and logs, and takes up the state of a checkpoint. Everything that can be wrong with the
    /// input was found before: this is where files begin to be written.
    pub fn begin(parts: Parts) -> anyhow::Result<(Course, Own)> {
        let Parts { resolved, run, ctx, mut policy, mut trainer, mut sampler, beginning, console, .. } = parts;
        let config = resolved.config.clone();
        let config_toml = resolved.to_toml();
        check_best_metric(&config, &parts.evaluation_metrics)?;
        let state = match &beginning {
            Beginning::Checkpoint(dir) => {
                let state = RunState::read(dir)?;
                check_resumable(&state, &config, &ctx, &parts.data_hash)?;
                Some((state, dir.clone()))
            }
            _ => None,
        };
        run.create(&config_toml)?;
        checkpoint::sweep(&run)?;
        console.set_log_file(run.log(0))?;
        let mut reporter = Reporter::open(&run, console, &config)?;
        let mut own = Own::default();
        let mut course_state = (0, 0, None, 0);
        match &state {
            Some((state, dir)) => {
                restore_moments(dir, "", &mut trainer)?;
                trainer.set_state(state.trainer);
                policy.weights.set_version(state.weights_version);
                sampler.restore(state.sampler);
                reporter.resume(state.step, &state.log_bytes, state.unlogged.clone())?;
                own = Own {
                    rollout_number: state.rollout_number,
                    buffer: state.buffer.clone(),
                    critic: state.critic.clone(),
                };
                course_state =
                    (state.step, state.num_tokens, state.best.clone(), state.evaluations_without_improvement);
                if checkpoint::all(&run).last().is_some_and(|(newest, _)| *newest == state.step) {
                    // Killed when this one was written and an old one not yet deleted.
                    let best = config.load_best_model_at_end.then_some(state.best.as_ref()).flatten().map(|b| b.step);
                    checkpoint::prune(&run, config.save_total_limit, best)?;
                }
                reporter.sinks().info(&format!("resuming after step {} from {}", state.step, dir.display()));
            }
            None => {
                reporter.resume(0, &Default::default(), Default::default())?;
                if matches!(beginning, Beginning::Again) {
                    reporter.sinks().warn("the run has no checkpoint: it starts again from step 0");
                }
            }
        }
        let (step, num_tokens, best, evaluations_without_improvement) = course_state;
        let made = provenance::Made {
            command: parts.purpose.command(),
            config: &config,
            config_toml: &config_toml,
            ctx: &ctx,
            policy: &policy,
            data_hash: &parts.data_hash,
            step,
        };
        provenance::write(&run, &made)?;
        let course = Course {
            schedule: config.schedule(parts.total_steps),
            config,
            run,
            ctx,
            policy,
            trainer,
            sampler,
            steps_per_epoch: parts.steps_per_epoch.max(1),
            step,
            num_tokens,
            best,
            stages: Stages::new(reporter.sinks().clone()),
            reporter,
            label: parts.label,
            stop: parts.stop,
            evaluations_without_improvement,
            data_hash: parts.data_hash,
            step_started: Instant::now(),
            saved_at: state.as_ref().map(|_| step),
        };
        course.report_progress(String::new())?;
        Ok((course, own))
    }

    /// Whether the last step is done.
    pub fn is_done(&self) -> bool {
        self.step >= self.schedule.total_steps
    }

    /// Books an optimizer step.
    pub fn count_update(&mut self, metrics: &UpdateMetrics, seconds: f64) {
        self.step += 1;
        if metrics.skipped {
            self.reporter.sinks().warn(&format!(
                "step {}: the loss or the gradient is not finite (loss {}, gradient norm {}); the step was skipped",
                self.step, metrics.loss, metrics.grad_norm
            ));
        }
        for (name, value) in metrics.entries() {
            self.reporter.add(name, value);
        }
        self.reporter.add("update_time_s", seconds);
        self.reporter.add("forward_time_s", metrics.forward_time_s);
        self.reporter.add("backward_time_s", metrics.backward_time_s);
        self.reporter.add("optimizer_time_s", metrics.optimizer_time_s);
        self.reporter.add("update_tokens_per_s", metrics.computed_tokens as f64 / seconds);
    }

    /// Logs the step; `note` picks the metrics shown beside the progress bar.
    pub fn log_step(&mut self, note: &[&str]) -> anyhow::Result<()> {
        let (step, last) = (self.step, self.is_done());
        self.reporter.add("step_time", self.step_started.elapsed().as_secs_f64());
        self.step_started = Instant::now();
        self.reporter.set("epoch", step as f64 / self.steps_per_epoch as f64);
        self.reporter.set("num_tokens", self.num_tokens as f64);
        if let Some(peak) = telemetry::system::peak_rss_bytes() {
            self.reporter.set("peak_bytes", peak as f64);
        }
        if let Some(means) = self.reporter.end_step(step, last)? {
            let value = |name: &str| means.iter().find(|(n, v)| n == name && v.is_finite());
            let part = |name: &&str| value(name).map(|(_, v)| format!("{name} {v:.4}"));
            self.report_progress(note.iter().filter_map(part).collect::<Vec<_>>().join(" · "))?;
        }
        Ok(())
    }

    fn report_progress(&self, note: String) -> anyhow::Result<()> {
        let (label, done, total) = (self.label.to_owned(), self.step, self.schedule.total_steps);
        Ok(self.reporter.sinks().emit(EventKind::Progress { label, done, total, note })?)
    }

    /// Whether step `self.step` is followed by an evaluation.
    pub fn evaluates_now(&self) -> bool {
        self.due(self.config.eval_strategy, self.config.eval_steps())
    }

    fn due(&self, strategy: Strategy, every: u64) -> bool {
        match strategy {
            Strategy::No => false,
            Strategy::Steps => self.step.is_multiple_of(every),
            Strategy::Epoch => self.step.is_multiple_of(self.steps_per_epoch),
        }
    }

    /// Logs an evaluation, keeps the best, and says whether to stop early.
    pub fn take_evaluation(&mut self, metrics: &[(String, f64)]) -> anyhow::Result<bool> {
        self.reporter.metrics(self.step, metrics.to_vec())?;
        let summary: Vec<String> = metrics.iter().map(|(n, v)| format!("{n} {v:.4}")).collect();
        self.reporter.sinks().info(&format!("step {}: {}", self.step, summary.join(" · ")));
        let Some(name) = &self.config.metric_for_best_model else { return Ok(false) };
        let Some(value) = find(metrics, name) else {
            // The name is a known one: nothing was judged.
            let note = format!("step {}: this evaluation has no {name}, and does not count", self.step);
            self.reporter.sinks().warn(&note);
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
        let patience = self.config.early_stopping_patience;
        Ok(patience.is_some_and(|p| self.evaluations_without_improvement as usize >= p))
    }

    /// Why the run ends here, if it does.
    pub fn ends(&self, early: bool) -> Option<Ended> {
        if self.stop.asked() {
            return Some(Ended::Asked);
        }
        (early && !self.is_done()).then_some(Ended::Early)
    }

    /// Whether a checkpoint is due: as configured, after the best evaluation, and at every end.
    pub fn saves_now(&self, ended: Option<Ended>) -> bool {
        let best = self.config.load_best_model_at_end && self.best.as_ref().is_some_and(|b| b.step == self.step);
        ended.is_some() || self.is_done() || best || self.due(self.config.save_strategy, self.config.save_steps)
    }

    /// Writes a checkpoint of this step; `more` adds files to it.
    pub fn save(&mut self, own: Own, more: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
        if self.saved_at == Some(self.step) {
            return Ok(());
        }
        let span = self.stages.span("checkpoint");
        let state = RunState {
            format: RunState::FORMAT,
            step: self.step,
            weights_version: self.policy.weights.version(),
            isa: self.ctx.describe().to_owned(),
            data_hash: self.data_hash.clone(),
            sampler: self.sampler.state(),
            rollout_number: own.rollout_number,
            buffer: own.buffer,
            critic: own.critic,
            trainer: self.trainer.state(),
            num_tokens: self.num_tokens,
            unlogged: self.reporter.unlogged().clone(),
            best: self.best.clone(),
            evaluations_without_improvement: self.evaluations_without_improvement,
            log_bytes: self.reporter.sinks().checkpoint()?,
        };
        checkpoint::write(&self.run, self.step, |dir| {
            self.policy.save(dir)?;
            save_moments(dir, "", &self.trainer)?;
            more(dir)?;
            state.write(dir)
        })?;
        let path = self.run.checkpoint(self.step).display().to_string();
        self.reporter.sinks().emit(EventKind::Checkpoint { step: self.step, path })?;
        let best = self.config.load_best_model_at_end.then_some(self.best.as_ref()).flatten().map(|b| b.step);
        checkpoint::prune(&self.run, self.config.save_total_limit, best)?;
        self.saved_at = Some(self.step);
        span.end();
        Ok(())
    }

    /// Writes the run's result: the weights as they are, or those of the best checkpoint.
    pub fn finish(mut self, ended: Ended) -> anyhow::Result<Finished> {
        if ended != Ended::Asked {
            if let (true, Some(best)) = (self.config.load_best_model_at_end, &self.best)
                && best.step != self.step
                && self.run.checkpoint(best.step).is_dir()
            {
                self.policy.restore(&self.run.checkpoint(best.step))?;
                let note = format!("the result is the best checkpoint, of step {}", best.step);
                self.reporter.sinks().info(&note);
            }
            let target = self.run.model();
            let temporary = self.run.root().join(".unfinished-model");
            let _ = std::fs::remove_dir_all(&temporary);
            self.policy.save(&temporary)?;
            let _ = std::fs::remove_dir_all(&target);
            std::fs::rename(&temporary, &target)?;
        }
        self.reporter.sinks().finish()?;
        let summary = self.stages.summary();
        Ok(Finished { ended, step: self.step, run: self.run, policy: self.policy, summary })
    }
}

/// What a run leaves.
pub struct Finished {
    /// Why it ended.
    pub ended: Ended,
    /// Steps done.
    pub step: u64,
    /// Its directory.
    pub run: RunDir,
    /// The model.
    pub policy: Policy,
    /// Where the time went.
    pub summary: Summary,
}

/// A best model by a metric that no evaluation gives would be found out hours later.
fn check_best_metric(config: &Config, known: &[String]) -> anyhow::Result<()> {
    let Some(name) = &config.metric_for_best_model else { return Ok(()) };
    if config.eval_strategy == Strategy::No || known.iter().any(|n| n == name || n.strip_prefix("eval_") == Some(name))
    {
        return Ok(());
    }
    Err(BadInput::new(format!(
        "`metric_for_best_model` = {name}: no such evaluation metric; there are {}",
        known.join(", ")
    )))
}

fn check_resumable(state: &RunState, config: &Config, ctx: &Context, data_hash: &str) -> anyhow::Result<()> {
    if state.data_hash != data_hash {
        return Err(BadInput::new(
            "the training data is not what the run began with (its SHA-256 differs): give the old file, or start a new run",
        ));
    }
    let isa = ctx.describe();
    if state.isa != isa && !config.allow_other_isa {
        return Err(BadInput::new(format!(
            "the run began on {}, this is {isa}: bits are promised on one instruction set only. Set LOCKSTEP_ISA={} if this \
             machine has it, or allow_other_isa = true to go on with {isa}",
            state.isa, state.isa
        )));
    }
    Ok(())
}

/// What `--resume` names: the run and the checkpoint to go on from. `latest` means the run of the output directory.
pub fn find_run(resume: &str, output_dir: Option<&Path>) -> anyhow::Result<(RunDir, Beginning)> {
    let path = match resume {
        "latest" => output_dir.map(Path::to_owned).ok_or_else(|| {
            BadInput::new("--resume latest: of which run? Give --out DIR, or --resume DIR".to_owned())
        })?,
        dir => PathBuf::from(dir),
    };
    if resume == "latest" && RunDir::is_unborn(&path) {
        return Ok((RunDir::fresh(&path)?, Beginning::Again));
    }
    if path.join("run_state.json").is_file() {
        let root = path.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        return Ok((RunDir::existing(root)?, Beginning::Checkpoint(path)));
    }
    let run = RunDir::existing(&path)?;
    checkpoint::sweep(&run)?;
    let beginning = checkpoint::latest(&run).map_or(Beginning::Again, Beginning::Checkpoint);
    Ok((run, beginning))
}

/// Books what operations counted since `before` to a span.
pub fn book(span: &Span, before: (u64, u64)) {
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
