//! Branches a run: a second run, in its own directory, continues from a checkpoint of the first run. The first run is
//! only read, so another process may be writing it.

use super::RunDir;
use super::checkpoint;
use super::inputs::ResumeFrom;
use super::resume::find_checkpoint;
use super::run_dir::write_atomically;
use super::state::{RunState, lineage_of};
use crate::bad_input;
use crate::error::OrBadInput;
use model::io::{FILE_LIST, FileList};
use std::path::{Path, PathBuf};
use telemetry::RunRecord;
use telemetry::record::ForkedFrom;

/// A run that will continue from another run's checkpoint.
pub struct Branch {
    of: RunDir,
    checkpoint: PathBuf,
    out: RunDir,
    /// The files and directories created so far.
    made: Vec<PathBuf>,
}

impl Branch {
    /// The branch in `out` of the run or checkpoint `resume`; `None` if `out` is that run itself.
    pub fn find(resume: &str, out: &Path) -> anyhow::Result<Option<Branch>> {
        let (of, checkpoint) = find_checkpoint(Path::new(resume))?;
        if out.canonicalize().is_ok_and(|out| out == of.root()) {
            return Ok(None);
        }
        let Some(checkpoint) = checkpoint else {
            bad_input!(
                "{}: the run has no checkpoint from which {} could continue",
                of.root().display(),
                out.display()
            );
        };
        Ok(Some(Branch { of, checkpoint, out: RunDir::fresh(out)?, made: Vec::new() }))
    }

    /// The run that is branched.
    pub fn of(&self) -> &RunDir {
        &self.of
    }

    /// Copies the first run's state at the checkpoint. The result is a run that can be resumed from the checkpoint.
    pub fn make(&mut self) -> anyhow::Result<(RunDir, ResumeFrom)> {
        let copied = self.copy();
        if copied.is_err() {
            self.remove();
        }
        copied
    }

    fn copy(&mut self) -> anyhow::Result<(RunDir, ResumeFrom)> {
        checkpoint::check(&self.checkpoint)?;
        let state = RunState::read(&self.checkpoint)?;
        let all = checkpoint::all(&self.of);
        let best = state.best.as_ref().and_then(|best| all.iter().find(|(step, _)| *step == best.step));
        let from = self.out.checkpoint(state.step);
        self.makes(self.out.checkpoints());
        disk::create_dir_all(self.out.checkpoints())?;
        if let Some((step, best)) = best.filter(|(step, _)| *step != state.step) {
            copy_checkpoint(best, &self.out.checkpoint(*step))?;
        }
        copy_checkpoint(&self.checkpoint, &from)?;
        logs(&self.out).into_iter().chain([self.out.tensorboard()]).for_each(|target| self.makes(target));
        copy_logs(&self.of, &self.out)?;
        let mut record = RunRecord::read(&self.of.record())?;
        let lineage = lineage_of(&state.task).and_then(|lineage| Some(lineage.as_str()?.to_owned()));
        record.forked_from = Some(ForkedFrom { run: self.of.root().display().to_string(), step: state.step, lineage });
        self.makes(self.out.record());
        write_atomically(&self.out.record(), &record.to_bytes()?)?;
        // The configuration is copied last, since it makes the directory a run.
        let config = disk::read(self.of.config(), disk::most::STATE).or_bad_input_in(self.of.config().display())?;
        self.makes(self.out.config());
        write_atomically(&self.out.config(), &config)?;
        Ok((self.out.clone(), ResumeFrom::Checkpoint(from)))
    }

    fn makes(&mut self, path: PathBuf) {
        if !path.exists() {
            self.made.push(path);
        }
    }

    /// Removes the new files if the run cannot begin. The configuration goes first, since without it the directory is
    /// not a run.
    pub fn remove(&self) {
        for path in self.made.iter().rev() {
            let _ = if path.is_dir() { disk::remove_dir_all(path) } else { disk::remove_file(path) };
        }
        // The directory is removed only if it is empty.
        let _ = std::fs::remove_dir(self.out.root());
    }
}

/// The logs that a resumed run continues, truncated to the checkpoint.
fn logs(run: &RunDir) -> Vec<PathBuf> {
    let groups = [run.rollouts(), run.updates(), run.evaluations()];
    let indexes = groups.each_ref().map(|path| path.with_extension("idx"));
    [run.metrics(), run.steps()].into_iter().chain(groups).chain(indexes).collect()
}

/// Copies the logs of a run and its TensorBoard files to the directory of another run.
pub(crate) fn copy_logs(from: &RunDir, to: &RunDir) -> anyhow::Result<()> {
    for (log, target) in logs(from).iter().zip(logs(to)).filter(|(log, _)| log.is_file()) {
        disk::copy(log, target).or_bad_input_in(log.display())?;
    }
    if from.tensorboard().is_dir() { copy_all(&from.tensorboard(), &to.tensorboard()) } else { Ok(()) }
}

/// Copies the files that were written with a checkpoint. Files that were added later are not copied.
pub(crate) fn copy_checkpoint(from: &Path, to: &Path) -> anyhow::Result<()> {
    // Older versions wrote no list.
    let Some(list) = FileList::read(from).or_bad_input()? else { return copy_all(from, to) };
    for name in list.files.keys().map(String::as_str).chain([FILE_LIST]) {
        let (source, target) = (from.join(name), to.join(name));
        disk::create_dir_all(target.parent().unwrap_or(to))?;
        disk::copy(&source, &target).or_bad_input_in(source.display())?;
    }
    Ok(())
}

/// Copies all files of a directory and its subdirectories. A link is an error.
fn copy_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    disk::create_dir_all(to)?;
    for entry in disk::read_dir(from)? {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.is_dir() {
            copy_all(&path, &target)?
        } else {
            disk::copy(&path, target).or_bad_input_in(path.display())?
        }
    }
    Ok(())
}
