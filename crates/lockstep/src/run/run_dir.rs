//! The layout of a run's directory, and functions that write its files atomically.
//!
//! ```text
//! OUT/config.toml              the resolved configuration
//!     record.json              versions, ISA, seed, hashes of model and data
//!     metrics.jsonl            one line per logged step, TRL's names
//!     steps.jsonl              one line per step: the values by which the run is judged
//!     tensorboard/             the metrics for TensorBoard
//!     rollouts.bin             the groups that were trained on, if configured (rollouts.idx has their offsets)
//!     updates.bin              the effect of steps on the tokens of some groups
//!     evaluations.bin          the groups of evaluations
//!     completions/             parquet, TRL's columns
//!     checkpoints/step-000100/ a loadable model directory and the state of the run
//!     model/                   the final model
//!     trace.json               spans of the steps, for ui.perfetto.dev
//!     profile.json             seconds per stage, and findings
//!     lockstep-0.log           the log of process 0
//!     run.lock                 the process that writes into this directory
//!     given-1b2c3d4e/          objects passed to the Python package in memory: models, tokenizers
//!     abandoned/               later steps that a resume from an older checkpoint set aside
//! ```

use super::lock::{self, RunLock};
use super::own_files::{in_the_way, is_temporary};
use crate::bad_input;
use crate::error::{BadInput, OrBadInput, paragraph};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use telemetry::Step;

/// The directory of one run. Clones share the lock of the directory.
#[derive(Clone, Debug)]
pub struct RunDir {
    root: PathBuf,
    lock: Arc<Mutex<Option<RunLock>>>,
    /// Files that are written once and needed to resume, with their bytes, so that they can be rewritten if they are
    /// deleted during the run.
    written: Arc<Mutex<BTreeMap<PathBuf, Vec<u8>>>>,
}

impl RunDir {
    /// A new run in `root`. Unrelated files may exist there, but a file with one of the names that a run uses is an
    /// error. Nothing is written yet: call [`RunDir::create`] after all inputs have been checked.
    pub fn fresh(root: &Path) -> anyhow::Result<RunDir> {
        if root.is_file() {
            return Err(BadInput::new(format!("output_dir {} must be a directory, but is a file", root.display())));
        }
        match disk::read_dir(root) {
            Err(e) if e.kind() == ErrorKind::NotFound && root.is_symlink() => {
                bad_input!("output_dir {} is a symbolic link without a target; give another --out", root.display())
            }
            Err(e) if e.kind() != ErrorKind::NotFound => bad_input!("output_dir {}: {e}", root.display()),
            _ => {}
        }
        let run = RunDir::at(&std::path::absolute(root).or_bad_input_in("output_dir")?);
        if run.config().exists() {
            return Err(BadInput::new(format!(
                "output_dir {0} already holds a run; resume it with --resume {0}, or give another --out",
                root.display()
            )));
        }
        if let Some(name) = in_the_way(root) {
            return Err(BadInput::new(format!(
                "output_dir {} is not a run (it has no config.toml), and has `{name}`, which is also the name of a \
                 run's own file and could be replaced or deleted; move it, or give another --out",
                root.display()
            )));
        }
        Ok(run)
    }

    /// Whether `root` has no files of a run, apart from those that may exist before its configuration is written.
    /// `root` may be missing, or contain other files.
    pub fn is_new(root: &Path) -> bool {
        let is_directory = match disk::read_dir(root) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        is_directory && in_the_way(root).is_none()
    }

    /// The existing run in `root`, for reading only: another process may be writing to it.
    pub fn open(root: &Path) -> anyhow::Result<RunDir> {
        let run = RunDir::at(&std::path::absolute(root).or_bad_input_in(root.display())?);
        if !run.config().is_file() {
            return Err(BadInput::new(format!("{} is not a run: it has no config.toml", root.display())));
        }
        Ok(run)
    }

    /// The existing run in `root`, locked so that no other process writes to it before this one ends.
    pub fn existing(root: &Path) -> anyhow::Result<RunDir> {
        let run = RunDir::open(root)?;
        run.refuse_links()?;
        run.lock()?;
        Ok(run)
    }

    /// Returns an error if a directory of the run is a link. Links are never followed ([`disk`]), but a run whose
    /// `checkpoints` cannot be read must not restart from step 0.
    fn refuse_links(&self) -> anyhow::Result<()> {
        let fleet = fleet::exchange::spool::Layout::in_run(&self.root);
        let own = [self.checkpoints(), self.completions(), self.tensorboard(), fleet.root().to_owned()];
        if let Some(link) = own.iter().find(|dir| dir.is_symlink()) {
            bad_input!(
                "{} is a symbolic link. Links inside a run directory are not followed, since they may point outside: \
                 replace the link by the directory itself, or move the whole run and put a link in the run's place",
                link.display()
            );
        }
        Ok(())
    }

    /// A `RunDir` for `root`, without checks.
    pub(super) fn at(root: &Path) -> RunDir {
        disk::no_links_below(root);
        RunDir { root: root.to_owned(), lock: Arc::default(), written: Arc::default() }
    }

    /// Takes the lock of the directory, unless a clone already has it. Creates the directory if needed. Returns the
    /// process that was killed while it held the lock, if any.
    pub(super) fn lock(&self) -> anyhow::Result<Option<String>> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.is_none() {
            make(&self.root)?;
            *lock = Some(RunLock::take(&self.root)?);
        }
        Ok(lock.as_ref().and_then(|lock| lock.killed.as_ref()).map(ToString::to_string))
    }

    /// A warning about the lock, if the file system does not support locks.
    pub(super) fn lock_warning(&self) -> Option<String> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.warning.clone()
    }

    /// Releases the lock, for all clones.
    pub(crate) fn unlock(&self) {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Creates the directories. The configuration is written first, so that a run killed later can be resumed.
    pub fn create(&self, config_toml: &str) -> anyhow::Result<()> {
        make(&self.root)?;
        self.write(&self.config(), config_toml.as_bytes())?;
        [self.checkpoints(), self.completions(), self.tensorboard()].iter().try_for_each(|dir| make(dir))
    }

    /// Removes temporary files left by killed processes, including those of older versions. No other process writes
    /// here while this one has the lock.
    pub(super) fn sweep(&self) -> std::io::Result<()> {
        for directory in [self.root(), &self.completions()] {
            for entry in disk::read_dir(directory)? {
                if is_temporary(&entry.file_name().to_string_lossy()) {
                    if entry.is_dir() { disk::remove_dir_all(entry.path())? } else { disk::remove_file(entry.path())? }
                }
            }
        }
        Ok(())
    }

    /// Writes one of the run's files atomically.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> model::Result<()> {
        write_atomically(path, bytes)?;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(path.to_owned(), bytes.to_owned());
        Ok(())
    }

    /// Rewrites files that a resume needs if they were deleted, and returns messages that name these files. Returns an
    /// error if the directory is missing, or if another process writes to it.
    pub(super) fn check(&self) -> anyhow::Result<Vec<String>> {
        let root = self.root.display();
        if !self.root.is_dir() {
            anyhow::bail!("{root}, the run's directory, is gone: was it moved or deleted? Nothing more is written");
        }
        let mut notes = Vec::new();
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.as_ref().is_some_and(|lock| !lock.is_in_place(&self.root)) {
            // This error does not become a `BadInput`, since this run's input was valid.
            let new = RunLock::take(&self.root)
                .map_err(|e| anyhow::anyhow!("{root}/{} was deleted during the run: {}", lock::FILE, paragraph(&e)))?;
            *lock = Some(new);
            notes.push(format!("{root}/{} was deleted during the run: the run is locked again", lock::FILE));
        }
        for (path, bytes) in self.written.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if !path.exists() {
                write_atomically(path, bytes)?;
                notes.push(format!("{} was deleted during the run: it is written again", path.display()));
            }
        }
        Ok(notes)
    }

    /// The path of the run's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// Path of the resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }
    /// Path of the record: versions, instruction set, seed, hashes.
    pub fn record(&self) -> PathBuf {
        self.root.join("record.json")
    }
    /// Path of the metrics by which the run is judged, one line per step.
    pub fn steps(&self) -> PathBuf {
        self.root.join("steps.jsonl")
    }
    /// Path of the metrics, one line per logged step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }
    /// Directory of TensorBoard's event files.
    pub fn tensorboard(&self) -> PathBuf {
        self.root.join("tensorboard")
    }
    /// Path of the groups that were trained on, if they are recorded.
    pub fn rollouts(&self) -> PathBuf {
        self.root.join("rollouts.bin")
    }
    /// Path of the recorded effects of steps on the tokens of some groups.
    pub fn updates(&self) -> PathBuf {
        self.root.join("updates.bin")
    }
    /// Path of the groups of evaluations.
    pub fn evaluations(&self) -> PathBuf {
        self.root.join("evaluations.bin")
    }
    /// Path of the rollouts in the format of older versions.
    pub fn older_rollouts(&self) -> PathBuf {
        self.root.join("rollouts.jsonl")
    }
    /// Directory of the completions tables.
    pub fn completions(&self) -> PathBuf {
        self.root.join("completions")
    }
    /// Directory of all checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }
    /// Directory of the checkpoint after `step` optimizer steps.
    pub fn checkpoint(&self, step: Step) -> PathBuf {
        self.checkpoints().join(format!("step-{step:06}"))
    }
    /// Directory of the final model.
    pub fn model(&self) -> PathBuf {
        self.root.join("model")
    }
    /// Path of the trace: timed spans of the steps.
    pub fn trace(&self) -> PathBuf {
        self.root.join("trace.json")
    }
    /// Path of the log of the process with this `rank`.
    pub fn log(&self, rank: usize) -> PathBuf {
        self.root.join(format!("lockstep-{rank}.log"))
    }
}

fn make(dir: &Path) -> anyhow::Result<()> {
    use std::io::ErrorKind::{
        AlreadyExists, InvalidFilename, InvalidInput, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    disk::create_dir_all(dir).map_err(|e| match e.kind() {
        AlreadyExists | InvalidFilename | InvalidInput | NotADirectory | NotFound | PermissionDenied
        | ReadOnlyFilesystem => {
            BadInput::new(format!("cannot create {}: {e}. Give another directory with --out", dir.display()))
        }
        // The disk is full or broken.
        _ => anyhow::anyhow!("cannot create {}: {e}", dir.display()),
    })
}

/// Writes a file so that a reader sees either only the old bytes or only the new ones.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> model::Result<()> {
    model::io::write_atomically(path, |out| out.write_all(bytes).map_err(|e| model::Error::io(path, e)))
}

/// Syncs the directory `dir`, so that renames and new files in it survive a power failure.
pub fn sync_directory(dir: &Path) -> std::io::Result<()> {
    disk::sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Files left by a run that was killed before its configuration was written must not block a new run.
    #[test]
    fn a_directory_with_only_a_lock_file_counts_as_new() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunDir::is_new(dir.path()) && RunDir::is_new(&dir.path().join("not there")));
        for name in [lock::FILE, ".config.toml.12.partial"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let given = dir.path().join("given-12345678");
        fs::create_dir(&given).unwrap();
        fs::create_dir(dir.path().join("fleet")).unwrap();
        assert!(RunDir::is_new(dir.path()) && RunDir::fresh(dir.path()).is_ok());
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

    #[test]
    fn an_unusable_run_directory_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let refused = |path: &Path| {
            let error = RunDir::fresh(path).unwrap_err();
            assert!(crate::error::is_bad_input(&error));
            error.to_string().replace(&dir.path().display().to_string(), "DIR")
        };
        fs::write(at("file"), "").unwrap();
        assert_eq!(refused(&at("file")), "output_dir DIR/file must be a directory, but is a file");
        assert!(
            refused(&at("file/below")).starts_with("output_dir DIR/file/below: "),
            "{}",
            refused(&at("file/below"))
        );
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("nothing"), at("link")).unwrap();
            assert_eq!(
                refused(&at("link")),
                "output_dir DIR/link is a symbolic link without a target; give another --out"
            );
        }
        fs::write(at("record.json"), "").unwrap();
        let words = "output_dir DIR is not a run (it has no config.toml), and has `record.json`, which is also the \
                     name of a run's own file and could be replaced or deleted; move it, or give another --out";
        assert_eq!(refused(dir.path()), words);
        fs::write(at("config.toml"), "").unwrap();
        assert_eq!(
            refused(dir.path()),
            "output_dir DIR already holds a run; resume it with --resume DIR, or give another --out"
        );
        let none = RunDir::open(&at("none")).unwrap_err().to_string();
        assert_eq!(none, format!("{} is not a run: it has no config.toml", at("none").display()));
        assert!(RunDir::open(dir.path()).is_ok());
    }

    #[test]
    fn temporary_files_are_recognised_by_name() {
        for name in [".x.12.partial", ".config.toml.7.tmp", ".a.b.1.partial", ".unfinished-model"] {
            assert!(is_temporary(name), "{name}");
        }
        for name in ["x.12.partial", ".x.partial", ".x.y.partial", ".12.part", ".x.-1.tmp", "unfinished-model", ".x.12"]
        {
            assert!(!is_temporary(name), "{name}");
        }
    }

    #[test]
    fn leftovers_of_killed_processes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::fresh(dir.path()).unwrap();
        run.create("seed = 1\n").unwrap();
        fs::write(dir.path().join(".metrics.jsonl.3.tmp"), "").unwrap();
        fs::write(run.completions().join(".c.parquet.3.partial"), "").unwrap();
        fs::create_dir(dir.path().join(".unfinished-model")).unwrap();
        fs::write(dir.path().join(".unfinished-model/x"), "").unwrap();
        fs::write(run.completions().join("completions_1.parquet"), "").unwrap();
        run.sweep().unwrap();
        let names = |path: &Path| {
            let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let kept = ["checkpoints", "completions", "config.toml", "tensorboard"].map(str::to_owned);
        assert_eq!(names(dir.path()), kept.into());
        assert_eq!(names(&run.completions()), ["completions_1.parquet".to_owned()].into());
    }

    #[test]
    fn files_deleted_during_a_run_are_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        let run = RunDir::fresh(&root).unwrap();
        assert_eq!(run.lock().unwrap(), None);
        run.create("seed = 1\n").unwrap();
        run.write(&run.record(), b"{}").unwrap();
        assert_eq!(run.check().unwrap(), [""; 0]);
        fs::remove_file(run.config()).unwrap();
        fs::remove_file(root.join(lock::FILE)).unwrap();
        let place = root.display();
        let notes = [
            format!("{place}/run.lock was deleted during the run: the run is locked again"),
            format!("{place}/config.toml was deleted during the run: it is written again"),
        ];
        assert_eq!(run.clone().check().unwrap(), notes);
        assert_eq!(fs::read_to_string(run.config()).unwrap(), "seed = 1\n");
        assert_eq!(run.check().unwrap(), [""; 0]);
        assert!(RunDir::existing(&root).is_err(), "the directory is locked again");
        run.unlock();
        let other = RunDir::existing(&root).unwrap();
        drop(other);
        fs::remove_dir_all(&root).unwrap();
        let gone = run.check().unwrap_err().to_string();
        let words = "the run's directory, is gone: was it moved or deleted? Nothing more is written";
        assert_eq!(gone, format!("{place}, {words}"));
    }
}
