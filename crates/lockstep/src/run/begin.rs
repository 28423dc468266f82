//! The start of a training run: restores the state of a checkpoint, if there is one, and then opens the run's directory
//! and logs.

use super::RunDir;
use super::abandoned;
use super::alarms::Alarms;
use super::checkpoint::{self, Checkpoints, Kept};
use super::data_position::DataPosition;
use super::device_meter;
use super::evaluations::Evaluations;
use super::inputs::{ResumeFrom, RunInputs};
use super::learner::Learner;
use super::log::RunLog;
use super::profile::Profile;
use super::provenance::{self, Models, RunMetadata};
use super::receivers::Receivers;
use super::reporter::Reporter;
use super::resume::check_resumable;
use super::state;
use super::training::TrainingRun;
use crate::bad_input;
use crate::config::{Purpose, changes};
use crate::error::OrBadInput;
use crate::models::compare_base;
use serde_json::Value;
use state::RunState;
use std::path::Path;

/// The parts of a training run that its task builds from the [`RunInputs`].
pub struct RunParts {
    /// The policy with its trainer and optimizer.
    pub learner: Learner,
    /// The position in the training data.
    pub data: DataPosition,
    /// The record of the run's evaluations, empty at first.
    pub evaluations: Evaluations,
    /// The kind of run, which decides its subcommand (GRPO, SFT, ...).
    pub purpose: Purpose,
    /// The label of this run in the progress display.
    pub label: &'static str,
}

impl TrainingRun {
    /// Begins a run, or resumes it from a checkpoint. `restore` receives the task's own saved state and the
    /// checkpoint's directory. All errors in the input are found before the first file of the run is written.
    pub fn begin(
        inputs: RunInputs,
        parts: RunParts,
        restore: impl FnOnce(Value, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<TrainingRun> {
        let RunInputs { mut resolved, dir, resume_from, prompt_time, console, sinks, stop, injected, .. } = inputs;
        let RunParts { mut learner, mut data, mut evaluations, purpose, label } = parts;
        resolved.config.output_dir = Some(dir.root().to_owned());
        let config_toml = resolved.to_toml();
        let config = resolved.config;
        let is_resumed = resume_from.checkpoint().is_some();
        let (mut log_bytes, mut unlogged, mut alarms) = Default::default();
        if let Some(from) = resume_from.checkpoint() {
            let state = RunState::read(from)?;
            check_resumable(&state, &config, &learner.ctx, &data.hash)?;
            learner.restore(from, &state)?;
            data.restore(&state);
            evaluations.restore(&state);
            let file = from.join(state::FILE);
            restore(state.task, from).or_bad_input_in(format!("{} is damaged", file.display()))?;
            (log_bytes, unlogged, alarms) = (state.log_bytes, state.unlogged, Alarms::restore(state.alarms));
        }
        let policy = &mut learner.policy;
        let models = Models::hashed(&dir, &config, purpose, (&policy.dir, &policy.files), is_resumed, &stop)?;
        stop.check()?;
        policy.base_sha256 = policy.weights.adapter.is_some().then(|| models.weights_sha256());
        if let (Some(from), Some(found), false) =
            (resume_from.checkpoint(), &policy.base_sha256, config.allow_other_base)
        {
            // An adapter that does not record its base causes a warning only if the run's record lacks the base, too.
            let warn = |what: &str| models.unchecked.iter().for_each(|_| sinks.warn(what));
            compare_base(from, &policy.dir, || Ok(found.clone()), warn)?;
        }
        let began = resume_from.configuration(&dir, purpose)?;
        // Replays of a record and runs of `lockstep profile` send nothing.
        let is_silent = injected.recorded_scores || injected.profiled;
        let receivers = if is_silent { None } else { Some(Receivers::of(&config, &dir)?) };
        if let Some(ranks) = &injected.ranks {
            learner.start_ranks(ranks, &stop, &sinks)?;
        }

        let killed = dir.lock()?;
        let other_build = provenance::other_build(&dir).filter(|_| is_resumed);
        // Another process may have begun in the same directory meanwhile.
        match resume_from {
            ResumeFrom::Nothing => drop(RunDir::fresh(dir.root())?),
            ResumeFrom::Beginning if checkpoint::latest(&dir).is_some() => {
                bad_input!(
                    "{}: another process has started this run in the meantime: resume it again",
                    dir.root().display()
                )
            }
            _ => {}
        }
        let step = learner.step;
        let abandoned = abandoned::set_aside(&dir, step, &log_bytes)?;
        dir.create(&config_toml)?;
        checkpoint::sweep(&dir)?;
        dir.sweep()?;
        console.set_log_file(dir.log(0))?;
        // A launcher may start the ranks in other directories.
        let log = |rank| std::path::absolute(dir.log(rank)).unwrap_or_else(|_| dir.log(rank));
        learner.trainer.open_rank_logs(&log)?;
        let mut reporter = Reporter::open(&dir, sinks, &config)?;
        if injected.callbacks.decide.is_some() {
            reporter.log_last_values();
        }
        reporter.resume(step, &log_bytes, unlogged)?;
        if let Some(receivers) = receivers.and_then(Receivers::start) {
            reporter.sinks().add(receivers);
        }
        let stages = device_meter::stages(&reporter, &learner.ctx);
        stages.begin_step(step.next());
        let _span = stages.span("start");
        let profile = Profile::new(&dir, config.dtype.dtype(), injected.profiled);
        let log = RunLog::new(stages, reporter, alarms, profile, injected.callbacks, label);
        let sinks = log.sinks();
        models.unchecked.iter().for_each(|what| sinks.warn(what));
        models.older.iter().for_each(|what| sinks.info(what));
        if let Some(what) = &other_build {
            sinks.warn(what);
        }
        for what in &models.changed_rewards {
            sinks.warn(&format!("a reward differs from the reward that the run was trained with so far: {what}"));
        }
        let place = |dir: &Path| dir.canonicalize().ok();
        if let Some(old) = began.as_ref().and_then(|began| began.output_dir.as_deref())
            && place(old) != place(dir.root())
        {
            sinks.info(&format!("the run's directory was moved from {} to {}", old.display(), dir.root().display()));
        }
        dir.lock_warning().iter().for_each(|what| sinks.warn(what));
        if let Some(killed) = killed {
            sinks.info(&format!("{killed} was killed while it wrote into this directory"));
        }
        if let Some(kept) = abandoned {
            sinks.warn(&format!("the steps after step {step} are kept in {}", kept.display()));
        }
        match resume_from {
            ResumeFrom::Checkpoint(from) => {
                // The process was killed after it wrote this checkpoint and before it deleted an old one.
                checkpoint::prune(&dir, Kept::new(&config, evaluations.best.as_ref()))?;
                sinks.info(&format!("resuming after step {step} from {}", from.display()));
            }
            ResumeFrom::Beginning => {
                let root = dir.root().display();
                sinks.warn(&format!("{root} has no checkpoint: the run starts again from step 0"));
            }
            ResumeFrom::Nothing => {}
        }
        for (name, by) in provenance::isolation(&config, purpose.command()) {
            if by.starts_with("none") {
                sinks.warn(&format!("reward `{name}` runs programs WITHOUT ISOLATION: unsafe_no_sandbox = true"));
            }
        }
        let metadata = RunMetadata {
            command: purpose.command(),
            config: &config,
            config_toml: &config_toml,
            ctx: &learner.ctx,
            models: &models,
            prompt_time,
            data_hash: &data.hash,
            step,
            changed: began.map_or(Vec::new(), |began| changes(&began, &config)),
        };
        provenance::write(&dir, metadata)?;
        log.progress(&learner, String::new())?;
        // A checkpoint written before a due evaluation is written again after it.
        let saved_at = (is_resumed && !evaluations.due).then_some(step);
        let checkpoints = Checkpoints::new(dir, saved_at);
        Ok(TrainingRun { config, prompt_time, learner, data, log, evaluations, checkpoints, stop })
    }
}
