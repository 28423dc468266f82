//! Forks a training run: creates a second run that equals the first, bit for bit, up to a step, and then continues
//! independently.
//!
//! A fork is created like a run that was stopped at a checkpoint of the first run and is resumed from it. Up to the
//! chosen step it uses the first run's configuration and is checked against its record; afterwards it has its own
//! configuration.

use super::inputs::RecordedRun;
use super::record::{Record, SharedRecord};
use super::report::{Interval, NotVerifiable};
use super::{Choice, VerifyOptions};
use crate::RunOptions;
use crate::bad_input;
use crate::config::{Config, Purpose, Resolved};
use crate::error::BadInput;
use crate::run::branch::{copy_checkpoint, copy_logs};
use crate::run::resume::find_run;
use crate::run::run_dir::write_atomically;
use crate::run::state::{RunState, lineage_of};
use crate::run::{RunDir, checkpoint};
use crate::session::Run;
use crate::stop::StopSignal;
use std::path::{Path, PathBuf};
use telemetry::Step;
use telemetry::record::ForkedFrom;

/// Options for forking a run.
pub struct ForkOptions<'a> {
    /// The last step that both runs have in common.
    pub at: Step,
    /// The directory of the fork.
    pub out: &'a Path,
    /// Cancels the fork.
    pub stop: StopSignal,
    /// Receives progress messages.
    pub say: &'a dyn Fn(&str),
}

/// Creates a fork of the run in `root`. Returns the path from which the fork must be resumed.
pub fn fork(root: &Path, options: &ForkOptions<'_>) -> anyhow::Result<PathBuf> {
    fork_of(root, options).map_err(|error| match error.downcast::<NotVerifiable>() {
        Ok(NotVerifiable(why)) => BadInput::new(why),
        Err(error) => error,
    })
}

fn fork_of(root: &Path, options: &ForkOptions<'_>) -> anyhow::Result<PathBuf> {
    let ForkOptions { at, out, stop, say } = options;
    let as_it_is =
        VerifyOptions { choice: Choice::All, threads: None, model: None, dataset: None, stop: stop.clone(), say: *say };
    let run = RecordedRun::open(root, &as_it_is)?;
    let begin = run.checkpoints.iter().rev().find(|(step, _)| step <= at);
    let from = begin.map_or(Step::START, |(step, _)| *step);
    // The configuration is that of the run at this step; later changes are not part of the fork.
    let resolved = run.resolved_of(Interval { from, to: (*at).max(Step(1)) })?;
    let dir = RunDir::fresh(out)?;
    disk::create_dir_all(dir.checkpoints())?;
    if let Some((_, path)) = begin {
        for (step, path) in kept(&run, *at, path, &resolved.config, *say)? {
            checkpoint::check(path)?;
            copy_checkpoint(path, &dir.checkpoint(*step))?;
        }
        copy_logs(&run.dir, &dir)?;
    }
    let mut record = run.record.clone();
    record.starts = run.starts_of(*at).to_vec();
    if record.starts.is_empty() {
        // A fork at step 0 keeps the first start, which has the time with which prompts are rendered.
        record.starts.extend(run.record.starts.first().cloned());
    }
    write_atomically(&dir.record(), &record.to_bytes()?)?;
    // The configuration is written last, since it makes the directory a run.
    write_atomically(&dir.config(), resolved.to_toml().as_bytes())?;
    let mut lineage = None;
    if from < *at {
        say(&format!("replaying {}", Interval { from, to: *at }));
        replay(&run, resolved, &dir, *at, options)?;
    }
    if *at > Step::START {
        let state = RunState::read(&dir.checkpoint(*at))?;
        lineage = lineage_of(&state.task).cloned();
    }
    let lineage = lineage.and_then(|lineage| Some(lineage.as_str()?.to_owned()));
    let run = run.dir.root().display().to_string();
    let mut record = telemetry::RunRecord::read(&dir.record())?;
    record.forked_from = Some(ForkedFrom { run, step: *at, lineage });
    write_atomically(&dir.record(), &record.to_bytes()?)?;
    Ok(if *at > Step::START { dir.checkpoint(*at) } else { dir.root().to_owned() })
}

/// The checkpoints of the first run that are kept in a fork at step `at`, which begins from the checkpoint `begin`:
/// `begin` itself; the best checkpoint so far, whose model may be the fork's result; and checkpoints at which keys
/// changed, since a replay between two checkpoints has one configuration.
fn kept<'a>(
    run: &'a RecordedRun,
    at: Step,
    begin: &Path,
    config: &Config,
    say: &dyn Fn(&str),
) -> anyhow::Result<Vec<&'a (Step, PathBuf)>> {
    let mut steps = run.changes(at);
    if let Some(best) = RunState::read(begin)?.best.filter(|_| config.load_best_model_at_end) {
        steps.insert(best.step);
        if run.checkpoints.iter().all(|(step, _)| *step != best.step) {
            say(&format!(
                "the best checkpoint up to step {at}, of step {}, is missing: unless a later one is better, the result \
                 of the fork will be its last weights",
                best.step
            ));
        }
    }
    Ok(run.checkpoints.iter().filter(|(step, path)| path == begin || *step <= at && steps.contains(step)).collect())
}

/// Continues in `dir` like the first run, up to step `at`.
fn replay(
    run: &RecordedRun,
    resolved: Resolved,
    dir: &RunDir,
    at: Step,
    options: &ForkOptions<'_>,
) -> anyhow::Result<()> {
    let (_, not_asked) = run.rewards()?;
    let mut record = Record::new(run.groups()?, not_asked, run.is_of_same_build());
    for (_, checkpoint) in &run.checkpoints {
        record.add_ahead(&checkpoint.join("frontier.bin"))?;
    }
    let record = SharedRecord::new(record);
    let mut run_options = RunOptions::new()
        .context(run.ctx.clone())
        .stop_signal(options.stop.clone())
        .sink(record.clone())
        .scores_of_record(record.place());
    if let Some(time) = run.prompt_time(at) {
        run_options = run_options.prompt_time(time);
    }
    let (fork_dir, resume_from) = find_run(&dir.root().to_string_lossy(), None)?;
    let mut replayed = Run::resolved(Purpose::Grpo, resolved, fork_dir, resume_from, run_options)?;
    while replayed.last_step() < at {
        let ended = replayed.step()?;
        if let Some(found) = record.lock().difference.take() {
            anyhow::bail!("the replay of {} differs from its record: {found}", run.dir.root().display());
        }
        if ended.is_some() && replayed.last_step() < at {
            options.stop.check()?;
            bad_input!("{} ended after step {}, before --at {at}", run.dir.root().display(), replayed.last_step());
        }
    }
    replayed.save_checkpoint()?;
    replayed.dir().unlock();
    Ok(())
}
