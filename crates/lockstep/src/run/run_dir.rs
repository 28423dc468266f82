//! A run's directory: what lies where, and how files get there whole.
//!
//! ```text
//! OUT/config.toml              the resolved configuration
//!     record.json              versions, ISA, seed, hashes of model and data
//!     metrics.jsonl            one line per logged step, TRL's names
//!     tensorboard/             the same for TensorBoard
//!     rollouts.bin             the groups that were trained on, if asked for (rollouts.idx says where each lies)
//!     updates.bin              what steps did to the tokens of some of them
//!     evaluations.bin          the groups of evaluations
//!     completions/             parquet, TRL's columns
//!     checkpoints/step-000100/ a loadable model directory and the state of the run
//!     model/                   the final model
//!     trace.json               spans of the steps, for ui.perfetto.dev
//!     profile.json             where the time went as sums, and what was found
//!     lockstep-0.log           the log of process 0
//!     run.lock                 which process writes into it
//!     given-1b2c3d4e/          what the Python package was given in memory: models, tokenizers
//!     abandoned/               what came after a checkpoint from which an older state of the run was resumed
//! ```

use super::lock::{self, RunLock};
use crate::bad_input;
use crate::error::{BadInput, OrBadInput, paragraph};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What the Python package marks the directories with that it writes before a run begins: `given-…`, models and
/// tokenizers that were given in memory.
const GIVEN: &str = "written_by_lockstep_rl.json";

/// The directory of one run, whose lock the clones share.
#[derive(Clone, Debug)]
pub struct RunDir {
    root: PathBuf,
    lock: Arc<Mutex<Option<RunLock>>>,
    /// What was written once and a resume needs, for whoever deletes it during the run.
    written: Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
}

impl RunDir {
    /// A new run in `root`, which must not exist or be empty. Nothing is written yet: call [`RunDir::create`] once
    /// every input is known to be good.
    pub fn fresh(root: &Path) -> anyhow::Result<RunDir> {
        if root.is_file() {
            return Err(BadInput::new(format!("output_dir {} is a file; give a directory", root.display())));
        }
        match fs::read_dir(root) {
            Err(e) if e.kind() == ErrorKind::NotFound && root.is_symlink() => {
                bad_input!("output_dir {} is a link to nothing; give another --out", root.display())
            }
            Err(e) if e.kind() != ErrorKind::NotFound => bad_input!("output_dir {}: {e}", root.display()),
            _ => {}
        }
        let occupied = !RunDir::is_new(root);
        let run = RunDir::at(&std::path::absolute(root).or_bad_input_in("output_dir")?);
        if occupied && run.config().exists() {
            return Err(BadInput::new(format!(
                "output_dir {0} already holds a run; resume it with --resume {0}, or give another --out",
                root.display()
            )));
        }
        if occupied {
            return Err(BadInput::new(format!(
                "output_dir {} exists, is not empty and is not a run (it has no config.toml); give another --out",
                root.display()
            )));
        }
        Ok(run)
    }

    /// Whether `root` does not exist, is empty, or holds no more than a run has before its configuration is whole.
    pub fn is_new(root: &Path) -> bool {
        let not_yet_a_run = |entry: std::io::Result<fs::DirEntry>| {
            entry.is_ok_and(|e| {
                let name = e.file_name().to_string_lossy().into_owned();
                name == lock::FILE
                    // Workers may join before their learner starts.
                    || name == "fleet"
                    || name.starts_with(".config.toml.") && is_temporary(&name)
                    || name.starts_with("given-") && e.path().join(GIVEN).is_file()
            })
        };
        match fs::read_dir(root) {
            Ok(mut entries) => entries.all(not_yet_a_run),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// The existing run in `root`, to read from: another process may write into it.
    pub fn open(root: &Path) -> anyhow::Result<RunDir> {
        let run = RunDir::at(&std::path::absolute(root).or_bad_input_in(root.display())?);
        if !run.config().is_file() {
            return Err(BadInput::new(format!("{} is not a run: it has no config.toml", root.display())));
        }
        Ok(run)
    }

    /// The existing run in `root`, which no other process writes into until this one ends.
    pub fn existing(root: &Path) -> anyhow::Result<RunDir> {
        let run = RunDir::open(root)?;
        run.lock()?;
        Ok(run)
    }

    /// The names that a run in `root` has.
    pub(super) fn at(root: &Path) -> RunDir {
        RunDir { root: root.to_owned(), lock: Arc::default(), written: Arc::default() }
    }

    /// Takes the lock of the directory, which is made if need be, unless a clone has it. Says who was killed while it
    /// had it.
    pub(super) fn lock(&self) -> anyhow::Result<Option<String>> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.is_none() {
            make(&self.root)?;
            *lock = Some(RunLock::take(&self.root)?);
        }
        Ok(lock.as_ref().and_then(|lock| lock.killed.as_ref()).map(ToString::to_string))
    }

    /// Gives the lock back, for all clones.
    pub(crate) fn unlock(&self) {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Makes the directories. The configuration comes before all else: a run killed at any later moment can be resumed.
    pub fn create(&self, config_toml: &str) -> anyhow::Result<()> {
        make(&self.root)?;
        self.write(&self.config(), config_toml.as_bytes())?;
        [self.checkpoints(), self.completions(), self.tensorboard()].iter().try_for_each(|dir| make(dir))
    }

    /// Removes what processes that were killed left under temporary names, older versions' too. Nobody else writes here
    /// while this process has the lock.
    pub(super) fn sweep(&self) -> std::io::Result<()> {
        for directory in [self.root(), &self.completions()] {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                if is_temporary(&entry.file_name().to_string_lossy()) {
                    let is_directory = entry.file_type()?.is_dir();
                    if is_directory { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
                }
            }
        }
        Ok(())
    }

    /// Writes one of its files, whole or not at all.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> model::Result<()> {
        write_atomically(path, bytes)?;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(path.to_owned(), bytes.to_owned());
        Ok(())
    }

    /// Looks whether somebody deleted, during the run, what a resume needs: such files are written again, which
    /// the texts say. An error is a directory that is gone, or that another process has begun to write into.
    pub(super) fn check(&self) -> anyhow::Result<Vec<String>> {
        let root = self.root.display();
        if !self.root.is_dir() {
            anyhow::bail!("{root}, the run's directory, is gone: was it moved or deleted? Nothing is written any more");
        }
        let mut notes = Vec::new();
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.as_ref().is_some_and(|lock| !lock.is_in_place(&self.root)) {
            // Not the error itself: the input of this run was right.
            let new = RunLock::take(&self.root).map_err(|e| {
                anyhow::anyhow!("{root}/{} was deleted while this process held it: {}", lock::FILE, paragraph(&e))
            })?;
            *lock = Some(new);
            notes.push(format!("{root}/{} was deleted while this process held it: it is locked again", lock::FILE));
        }
        for (path, bytes) in self.written.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if !path.exists() {
                write_atomically(path, bytes)?;
                notes.push(format!("{} was deleted during the run: it is written again", path.display()));
            }
        }
        Ok(notes)
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }
    /// Versions, ISA, seed, hashes.
    pub fn record(&self) -> PathBuf {
        self.root.join("record.json")
    }
    /// One line per logged step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }
    /// Event files.
    pub fn tensorboard(&self) -> PathBuf {
        self.root.join("tensorboard")
    }
    /// Rollouts that were trained on, if they are recorded.
    pub fn rollouts(&self) -> PathBuf {
        self.root.join("rollouts.bin")
    }
    /// What steps did to tokens of some of them.
    pub fn updates(&self) -> PathBuf {
        self.root.join("updates.bin")
    }
    /// The groups of evaluations.
    pub fn evaluations(&self) -> PathBuf {
        self.root.join("evaluations.bin")
    }
    /// What older versions recorded instead.
    pub fn older_rollouts(&self) -> PathBuf {
        self.root.join("rollouts.jsonl")
    }
    /// Completion tables.
    pub fn completions(&self) -> PathBuf {
        self.root.join("completions")
    }
    /// All checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }
    /// The checkpoint after `step` optimizer steps.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.checkpoints().join(format!("step-{step:06}"))
    }
    /// The final model.
    pub fn model(&self) -> PathBuf {
        self.root.join("model")
    }
    /// Spans.
    pub fn trace(&self) -> PathBuf {
        self.root.join("trace.json")
    }
    /// The log of process `rank`.
    pub fn log(&self, rank: usize) -> PathBuf {
        self.root.join(format!("lockstep-{rank}.log"))
    }
}

/// `.NAME.PID.partial` and `.NAME.PID.tmp`, or a result that is being put together.
fn is_temporary(name: &str) -> bool {
    let file = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial").or(name.strip_suffix(".tmp")));
    let pid = file.and_then(|name| name.rsplit_once('.')).is_some_and(|(_, pid)| pid.parse::<u32>().is_ok());
    pid || name.starts_with(".unfinished-")
}

fn make(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).map_err(|e| anyhow::anyhow!("cannot make {}: {e}", dir.display()))
}

/// Writes a file so that a reader sees the old bytes or the new ones, never a part.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> model::Result<()> {
    model::io::write_atomically(path, |out| out.write_all(bytes).map_err(|e| model::Error::io(path, e)))
}

/// Makes renames and new names in `dir` survive a power cut.
pub fn sync_directory(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_run_is_refused_and_untouched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
        let refusal = RunDir::fresh(dir.path()).unwrap_err().to_string();
        assert!(refusal.contains("not a run"), "{refusal}");
        assert!(RunDir::existing(dir.path()).is_err());
        fs::write(dir.path().join("config.toml"), "").unwrap();
        let refusal = RunDir::fresh(dir.path()).unwrap_err().to_string();
        assert!(refusal.contains("--resume"), "{refusal}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// What a run that was killed before its configuration was whole leaves behind is in nobody's way.
    #[test]
    fn a_directory_that_was_only_locked_is_new() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunDir::is_new(dir.path()) && RunDir::is_new(&dir.path().join("not there")));
        for name in [lock::FILE, ".config.toml.12.partial"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert!(RunDir::is_new(dir.path()) && RunDir::fresh(dir.path()).is_ok());
        let given = dir.path().join("given-12345678");
        fs::create_dir(&given).unwrap();
        assert!(!RunDir::is_new(dir.path()), "somebody's own directory of that name");
        fs::write(given.join(GIVEN), "{}").unwrap();
        assert!(RunDir::is_new(dir.path()) && RunDir::fresh(dir.path()).is_ok());
        fs::write(dir.path().join("other.partial"), "").unwrap();
        assert!(!RunDir::is_new(dir.path()));
    }

    #[test]
    fn an_atomic_write_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        write_atomically(&path, b"old").unwrap();
        write_atomically(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
