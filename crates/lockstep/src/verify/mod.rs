//! Proves that a training run matches its record: replays its steps from its checkpoints, with the training code, and
//! compares every bit of the results.
//!
//! A replay resumes the run from the checkpoint of a step S (or from the beginning) in a separate directory. The replay
//! generates its own completions, and takes only scores of nondeterministic rewards from the record. Each trained group
//! must equal the recorded group, and the replay's checkpoint at the end, step E, must equal the run's. This code does
//! not depend on the kind of trainer, since it compares only what a [`Run`] reports and writes.
//!
//! `groups.rs` and `files.rs` compare, and `record.rs` connects the replay with the record.

mod files;
mod fork;
mod groups;
mod inputs;
mod record;
mod report;
mod updates;

pub use fork::{ForkOptions, fork};
pub use report::{Difference, Interval, Report};

use crate::RunOptions;
use crate::config::Purpose;
use crate::error::{is_bad_input, paragraph};
use crate::run::RunDir;
use crate::run::checkpoint::link_model;
use crate::run::inputs::ResumeFrom;
use crate::session::Run;
use crate::sources::workers::made_by;
use crate::stop::StopSignal;
use anyhow::Context as _;
use inputs::{RecordedRun, choose};
use model::FileDType;
use record::{Record, SharedRecord};
use report::{NotVerifiable, missing};
use std::path::{Path, PathBuf};
use telemetry::Step;

/// The choice of steps to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All steps between the run's checkpoints.
    All,
    /// At least `steps` steps, in randomly chosen intervals between checkpoints.
    Random {
        /// The smallest number of steps.
        steps: u64,
        /// The seed of the choice.
        seed: u64,
    },
}

/// Options for verifying a run.
pub struct VerifyOptions<'a> {
    /// The steps to replay.
    pub choice: Choice,
    /// Threads, if they differ from the configuration.
    pub threads: Option<usize>,
    /// The model's directory, if it was moved.
    pub model: Option<PathBuf>,
    /// The dataset's file, if it was moved.
    pub dataset: Option<PathBuf>,
    /// Cancels the verification.
    pub stop: StopSignal,
    /// Receives progress messages.
    pub say: &'a dyn Fn(&str),
}

/// Verifies the run in `root`, without changing it.
pub fn verify(root: &Path, options: &VerifyOptions<'_>) -> anyhow::Result<Report> {
    let mut report = Report::default();
    match verify_into(root, options, &mut report) {
        Err(error) if error.is::<NotVerifiable>() => report.not_verified.push(error.to_string()),
        Err(error) if report.difference.is_none() => return Err(error),
        _ => {}
    }
    if let Some(difference) = &mut report.difference {
        difference.worker = difference.group.and_then(|group| made_by(root, group));
    }
    Ok(report)
}

fn verify_into(root: &Path, options: &VerifyOptions<'_>, report: &mut Report) -> anyhow::Result<()> {
    let run = RecordedRun::open(root, options)?;
    report.other_build = run.other_build();
    let file = run.groups()?;
    (report.rewards_asked, report.rewards_recorded) = run.rewards()?;
    if let Some(file) = &run.config().replay {
        report.not_verified.push(format!("the sampling of {}: the run replayed this file", file.display()));
    }
    run.check_source()?;
    run.check_reward_files()?;
    run.hashes(options, report)?;
    if report.difference.is_some() {
        return Ok(());
    }
    let all = run.intervals(report);
    if all.is_empty() {
        return missing(format!(
            "{} has fewer than two states to replay between: this needs checkpoints (save_strategy, save_steps, \
             save_total_limit)",
            run.dir.root().display()
        ));
    }
    let mut record = Record::new(file, report.rewards_recorded.clone(), run.is_of_same_build());
    report.difference = record.difference.take();
    if report.difference.is_none() && run.is_of_same_build() {
        report.difference = updates::difference(&run.dir.updates(), &record)?;
    }
    if report.difference.is_some() {
        return Ok(());
    }
    for (_, checkpoint) in &run.checkpoints {
        record.add_ahead(&checkpoint.join("frontier.bin"))?;
    }
    let last = run.checkpoints.last().map_or(Step::START, |(step, _)| *step);
    if let Some(recorded) = record.last_step().filter(|step| *step > last) {
        report.not_verified.push(format!("steps {} to {recorded}: the run left no checkpoint after them", last.next()));
    }
    let chosen = choose(all, options.choice);
    let record = SharedRecord::new(record);
    // Adjacent intervals are replayed in one run: the state between them is proven to equal the checkpoint.
    for chain in chosen.chunk_by(|a, b| a.to == b.from && run.same_inputs(*a, *b)) {
        replay(&run, chain, &record, options, report)?;
        if report.difference.is_some() {
            return Ok(());
        }
    }
    result(&run, report)
}

/// Compares the final model with its checkpoint.
fn result(run: &RecordedRun, report: &mut Report) -> anyhow::Result<()> {
    let Some(step) = run.step_of_result()? else { return Ok(()) };
    let compared = |step: Step| {
        let (model, checkpoint) = (run.dir.model(), run.dir.checkpoint(step));
        let Some(dtype) = run.result_rounds_to(&checkpoint)? else {
            return files::result_difference(&model, &checkpoint, step);
        };
        let scratch = tempfile::Builder::new().prefix("lockstep-verify-").tempdir()?;
        let rounded = scratch.path().join("model");
        if link_model(&checkpoint, &rounded, Some(dtype)).is_err() && dtype == FileDType::F16 {
            // A weight was too large for the dtype, so the result is f32.
            return files::result_difference(&model, &checkpoint, step);
        }
        files::result_difference(&model, &rounded, step)
    };
    if run.dir.checkpoint(step).is_dir() {
        report.difference = compared(step)?;
        report.result = report.difference.is_none().then_some(step);
        return Ok(());
    }
    // If the best checkpoint was missing when the run ended, the result is the last checkpoint's model.
    match run.checkpoints.last() {
        Some((last, _)) if compared(*last)?.is_none() => report.result = Some(*last),
        _ => report.not_verified.push(format!("the result: the checkpoint of step {step} is missing")),
    }
    Ok(())
}

/// Replays consecutive intervals as one run.
fn replay(
    run: &RecordedRun,
    chain: &[Interval],
    record: &SharedRecord,
    options: &VerifyOptions<'_>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let scratch = tempfile::Builder::new().prefix("lockstep-verify-").tempdir()?;
    let from = chain[0].from;
    if let Err(error) = run.checkpoints.iter().filter(|(step, _)| *step == from).try_for_each(|(_, path)| whole(path)) {
        report.difference = Some(unlisted(from, &error));
        return Ok(());
    }
    let resume_from = match from {
        Step::START => ResumeFrom::Nothing,
        step => ResumeFrom::Checkpoint(run.dir.checkpoint(step)),
    };
    let mut run_options = RunOptions::new()
        .context(run.ctx.clone())
        .stop_signal(options.stop.clone())
        .sink(record.clone())
        .scores_of_record(record.place());
    if let Some(time) = run.prompt_time(chain[0].to) {
        run_options = run_options.prompt_time(time);
    }
    let dir = RunDir::fresh(scratch.path())?;
    let begun = Run::resolved(Purpose::Grpo, run.replay_config(chain[0])?, dir, resume_from, run_options);
    let mut replayed = match begun {
        Err(error) if from > Step::START && is_of(&error, &run.dir.checkpoint(from)) => {
            report.difference = Some(unlisted(from, &error));
            return Ok(());
        }
        begun => begun?,
    };
    for interval in chain {
        (options.say)(&format!("replaying {interval}"));
        if let Some(found) = steps(run, &mut replayed, *interval, record)? {
            report.difference = Some(found);
            break;
        }
        report.proven.push(*interval);
    }
    (report.groups, report.tokens, report.groups_of_checkpoints) = record.lock().equal;
    Ok(())
}

/// Replays one interval, and compares its groups and its final checkpoint.
fn steps(
    run: &RecordedRun,
    replayed: &mut Run,
    interval: Interval,
    record: &SharedRecord,
) -> anyhow::Result<Option<Difference>> {
    record.lock().compared.clear();
    let recorded = record.lock().groups_in_steps(interval.from, interval.to);
    while replayed.last_step() < interval.to {
        let ended = replayed.step()?;
        if let Some(found) = record.lock().difference.take() {
            if recorded.is_empty() {
                return missing(format!("{interval}: no groups were recorded (record_rollouts was false then)"));
            }
            return Ok(Some(found));
        }
        if ended.is_some() && replayed.last_step() < interval.to {
            anyhow::bail!("the replay ended after step {}", replayed.last_step());
        }
    }
    if let Some(group) = recorded.difference(&record.lock().compared).next() {
        return Ok(Some(Difference {
            group: Some(*group),
            step: Some(interval.to),
            kind: "group".into(),
            recorded: "a group".into(),
            remade: "none: no step learned from it".into(),
            ..Difference::default()
        }));
    }
    let checkpoint = run.dir.checkpoint(interval.to);
    if let Err(error) = whole(&checkpoint) {
        return Ok(Some(unlisted(interval.to, &error)));
    }
    replayed.save_checkpoint()?;
    let remade = replayed.dir().checkpoint(interval.to);
    let about_run = files::OfRun { not_asked: &record.lock().not_asked.clone(), same_build: run.is_of_same_build() };
    let found = files::difference(&checkpoint, &remade, interval.to, about_run)?;
    disk::remove_dir_all(&remade).with_context(|| remade.display().to_string())?;
    Ok(found)
}

/// Checks that a checkpoint's files match the list that was written with them.
fn whole(checkpoint: &Path) -> anyhow::Result<()> {
    crate::run::checkpoint::check(checkpoint).map(|_| ())
}

/// Whether an error concerns the files of this checkpoint.
fn is_of(error: &anyhow::Error, checkpoint: &Path) -> bool {
    is_bad_input(error) && paragraph(error).contains(&*checkpoint.to_string_lossy())
}

fn unlisted(step: Step, error: &anyhow::Error) -> Difference {
    let text = paragraph(error);
    // The advice for resuming is removed.
    let text = text.split("; no earlier checkpoint exists").next().unwrap_or_default();
    Difference {
        step: Some(step),
        kind: "hash".into(),
        recorded: "the checkpoint's own checksums".into(),
        remade: text.to_owned(),
        ..Difference::default()
    }
}

#[cfg(test)]
mod forks;
#[cfg(test)]
mod lies;
#[cfg(test)]
pub(crate) mod tests;
