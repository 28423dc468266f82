//! How a run begins: the state of a checkpoint, if there is one, then its directory and its logs.

use super::RunDir;
use super::abandoned;
use super::alarms::Alarms;
use super::checkpoint::{self, Checkpoints, Kept, moments, state};
use super::data_position::DataPosition;
use super::device_meter;
use super::eval_metrics::check_best_metric;
use super::evaluations::Evaluations;
use super::inputs::RunInputs;
use super::learner::Learner;
use super::log::RunLog;
use super::provenance::{self, Models, RunMetadata};
use super::reporter::Reporter;
use super::resume::{ResumeFrom, check_resumable};
use super::training::TrainingRun;
use crate::bad_input;
use crate::config::{Purpose, changes};
use crate::data::Sampler;
use crate::error::OrBadInput;
use crate::models::{Policy, compare_base};
use serde_json::Value;
use state::RunState;
use std::path::Path;
use train::Trainer;

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
            learner: Learner::new(ctx.clone(), policy, trainer, config.schedule(setup.total_steps), step),
            data: DataPosition {
                hash: data_hash,
                sampler,
                steps_per_epoch: setup.steps_per_epoch.max(1),
                num_tokens: state.as_ref().map_or(0, |state| state.num_tokens),
            },
            checkpoints: Checkpoints::new(dir, state.as_ref().filter(|state| !state.evaluation_due).map(|_| step)),
            log: RunLog::new(
                device_meter::stages(&reporter, &ctx),
                reporter,
                state.as_ref().map_or_else(Alarms::default, |state| Alarms::restore(state.alarms.clone())),
                callbacks,
                label,
            ),
            evaluations: Evaluations {
                due: state.as_ref().is_some_and(|state| state.evaluation_due),
                without_improvement: state.as_ref().map_or(0, |state| state.evaluations_without_improvement),
                best: state.and_then(|state| state.best),
                has_other_metrics: setup.has_other_metrics,
            },
            config,
            stop,
        };
        run.log.progress(&run.learner, String::new())?;
        Ok(run)
    }
}
