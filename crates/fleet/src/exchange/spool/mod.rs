//! An exchange in a directory of files. No server is needed, `ls` shows the state, and a worker claims a job by
//! renaming its file.
//!
//! ```text
//! fleet/learner.json                     the learner's state: renamed into place
//! fleet/learner.lock                     held by the learner
//! fleet/pending/000123.0                 offered                                  (learner)
//! fleet/processing_by_dev1/000123.0      claimed by rename                        (worker)
//! fleet/complete_from_dev1/000123.0      tokens, log-probabilities, scores        (worker: write, rename)
//! fleet/batches/000015                   a batch, synced before the update        (learner)
//! fleet/workers/dev1/alive.lock          held by the worker as long as it lives
//! fleet/workers/dev1/status.json         the worker's status, with its progress counter
//! ```
//!
//! A file with a leading dot in its name is still being written; if its writer died, the next process deletes it. The
//! kernel releases a lock when its holder ends, so no clock decides whether a process is alive. Directories have mode
//! 0700, files 0600.

mod learner;
mod watch;
mod worker;

#[cfg(test)]
mod tests;

pub use learner::SpoolLearner;
pub use worker::SpoolWorker;

use crate::error::{Error, OrIo, OrUnusable, Result};
use crate::exchange::LearnerState;
use crate::job::{JobName, WorkerName};
use crate::lock::{Heartbeat, Held, Locks, Owner, Taken, is_unchanged};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The paths of a spool directory.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The spool of the run directory `out`.
    pub fn in_run(out: &Path) -> Layout {
        disk::no_links_below(out);
        Layout { root: out.join("fleet") }
    }

    /// The path of `fleet/`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of `fleet/learner.json`.
    pub fn learner(&self) -> PathBuf {
        self.root.join("learner.json")
    }

    /// The path of `fleet/pending/`.
    pub fn pending(&self) -> PathBuf {
        self.root.join("pending")
    }

    /// The path of `fleet/processing_by_NAME/`.
    pub fn processing(&self, worker: &WorkerName) -> PathBuf {
        self.root.join(format!("processing_by_{worker}"))
    }

    /// The path of `fleet/complete_from_NAME/`.
    pub fn complete(&self, worker: &WorkerName) -> PathBuf {
        self.root.join(format!("complete_from_{worker}"))
    }

    /// The path of `fleet/batches/`.
    pub fn batches(&self) -> PathBuf {
        self.root.join("batches")
    }

    /// The path of `fleet/workers/`.
    pub fn workers(&self) -> PathBuf {
        self.root.join("workers")
    }

    /// The path of `fleet/workers/NAME/alive.lock`.
    pub fn alive(&self, worker: &WorkerName) -> PathBuf {
        self.workers().join(worker.as_str()).join("alive.lock")
    }

    /// The path of `fleet/workers/NAME/status.json`.
    pub fn status(&self, worker: &WorkerName) -> PathBuf {
        self.workers().join(worker.as_str()).join("status.json")
    }

    /// All workers that have ever joined, sorted by name.
    pub fn known_workers(&self) -> Result<Vec<WorkerName>> {
        Ok(names(&self.workers())?.iter().filter_map(|name| WorkerName::new(name).ok()).collect())
    }

    /// Whether the learner that wrote this state is still running. A killed learner leaves its state behind, and the
    /// next learner overwrites it only after it has loaded its model.
    pub fn is_of_learner(&self, state: &LearnerState) -> Result<bool> {
        let holder = holder(&self.root.join("learner.lock"))?;
        // Learners of older versions do not write `incarnation`.
        Ok(holder.is_some_and(|holder| [0, holder.incarnation].contains(&state.incarnation)))
    }

    /// The process of the current or last learner; `None` if there was none, or if it was an older version.
    pub fn learner_process(&self) -> Option<Owner> {
        owner(&String::from_utf8_lossy(&read(&self.root.join("learner.lock")).ok()??))
    }

    /// Deletes all results, including those in batch files.
    pub fn forget_results(&self) -> Result<()> {
        let worker_results = self.known_workers()?.into_iter().map(|worker| self.complete(&worker));
        for directory in worker_results.chain([self.batches()]) {
            names(&directory)?.iter().try_for_each(|name| remove(&directory.join(name)))?;
        }
        Ok(())
    }

    /// Creates the directories that learner and workers need, accessible only to this user.
    pub fn create(&self) -> Result<()> {
        create_dir(&self.root)?;
        create_dir(&self.pending())?;
        create_dir(&self.workers())
    }
}

/// Creates a directory and its parents, accessible only to this user.
pub(crate) fn create_dir(path: &Path) -> Result<()> {
    // Creating an existing directory only sets its mode.
    let doing = if path.is_dir() { "protect" } else { "create" };
    disk::create_private_dir_all(path).or_unusable(doing, path)
}

/// The names in a directory, sorted; empty if the directory does not exist.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = match disk::read_dir(directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.or_io("read", directory)?,
    };
    Ok(entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// The jobs that have files in a directory. A file that is still being written does not parse as a job name.
pub(crate) fn jobs(directory: &Path) -> Result<Vec<JobName>> {
    Ok(names(directory)?.iter().filter_map(|name| name.parse().ok()).collect())
}

/// The bytes of a file; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    read_at_most(path, disk::most::GROUPS)
}

fn read_at_most(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    match disk::read(path, most) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        bytes => bytes.map(Some).or_io("read", path),
    }
}

/// The value in a JSON file; `None` if the file does not exist or cannot be read.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&read_at_most(path, disk::most::STATE).ok()??).ok()
}

/// Writes a file under a temporary name that begins with a dot, and then renames it, so that readers never see a
/// partial file. With `sync`, the bytes are synced before the rename, and the new name before this returns.
pub(crate) fn write(path: &Path, bytes: &[u8], sync: bool) -> Result<()> {
    write_by(path, sync, |file| file.write_all(bytes))
}

fn write_by(path: &Path, sync: bool, fill: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::Refused(format!("{} is not the path of a file", path.display())));
    };
    let temporary = directory.join(format!(".{}", name.to_string_lossy()));
    let written = (|| {
        let mut file = disk::Options::new().write().create().truncate().mode(0o600).open(&temporary)?;
        fill(&mut file)?;
        if sync {
            file.sync_all()?;
        }
        disk::rename(&temporary, path)?;
        if sync { disk::sync_dir(directory) } else { Ok(()) }
    })();
    if written.is_err() {
        // On a full disk, a partial file would take the space that other writers need.
        let _ = disk::remove_file(&temporary);
    }
    written.or_io("write", path)
}

/// Deletes a file, which may already be gone.
fn remove(path: &Path) -> Result<()> {
    match disk::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.or_io("delete", path),
    }
}

/// Deletes the partial files of a process that died while writing.
pub(crate) fn sweep(directory: &Path) -> Result<()> {
    let mut half = names(directory)?.into_iter().filter(|name| name.starts_with('.'));
    half.try_for_each(|name| remove(&directory.join(name)))
}

/// The process that holds a lock, as recorded in the lock file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    pub pid: u32,
    pub incarnation: u64,
}

/// A file lock. Dropping this value releases it.
pub(crate) struct FileLock {
    file: File,
    /// The heartbeat in the lock file and the file's content. Set only if the file system does not support locks.
    beat: Option<(Heartbeat, Vec<u8>)>,
    /// A warning for the user if the file system does not support locks.
    pub warning: Option<String>,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if let Some((beat, text)) = self.beat.take() {
            drop(beat);
            // Keep the first line, which counts the holders.
            let first = text.iter().position(|&byte| byte == b'\n').map_or(0, |end| end as u64 + 1);
            if is_unchanged(&self.file, &text) {
                let _ = self.file.set_len(first);
            }
        }
        // Closing the file is not enough: a child process between fork and exec has a copy of the descriptor.
        let _ = self.file.unlock();
    }
}

/// The owner in the second line of a lock file. Older versions wrote this line only on file systems without locks.
pub(crate) fn owner(text: &str) -> Option<Owner> {
    serde_json::from_str(text.lines().nth(1)?).ok()
}

impl Holder {
    fn parse(text: &[u8]) -> Option<Holder> {
        let first = text.split(|&byte| byte == b'\n').next()?;
        let mut words = std::str::from_utf8(first).ok()?.split_whitespace();
        let holder = Holder { pid: words.next()?.parse().ok()?, incarnation: words.next()?.parse().ok()? };
        words.next().is_none().then_some(holder)
    }
}

/// Takes the lock of a file that is never deleted, and writes this process into the file. Retries for a moment, because
/// a process that only checks a lock holds it briefly. `who` names the owner of the lock in the error.
pub(crate) fn take_lock(path: &Path, who: &str, remedy: &str) -> Result<(FileLock, Holder)> {
    take_lock_with(&Locks::system(), path, who, remedy)
}

fn take_lock_with(locks: &Locks, path: &Path, who: &str, remedy: &str) -> Result<(FileLock, Holder)> {
    let opened = disk::Options::new().read().write().create().mode(0o600).open(path);
    let mut file = opened.or_io("open", path)?;
    let mut claim = None;
    for attempt in 0.. {
        let why = match locks.take(&file, path, owner).or_io("lock", path)? {
            Taken::Locked => break,
            Taken::Unlocked(own) => {
                claim = Some(own);
                break;
            }
            Taken::Held | Taken::Owned(Held::Starts) if attempt < 30 => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Taken::Held => String::new(),
            Taken::Owned(held) => format!(" ({held}; if it has ended, delete {})", path.display()),
        };
        let holder = read_at_most(path, disk::most::STATE)?.and_then(|text| Holder::parse(&text));
        let by = holder.map_or("another process".to_owned(), |holder| format!("process {}", holder.pid));
        return Err(Error::Refused(format!("{who} is already running: {by}{why}. {remedy}")));
    }
    let mut before = Vec::new();
    std::io::Seek::rewind(&mut file).or_io("read", path)?;
    (&file).take(disk::most::STATE).read_to_end(&mut before).or_io("read", path)?;
    let incarnation = Holder::parse(&before).unwrap_or_default().incarnation + 1;
    let holder = Holder { pid: std::process::id(), incarnation };
    let this = serde_json::to_string(&locks.this_process()).map_err(|e| Error::Failed(e.to_string()))?;
    let text = format!("{} {}\n{this}\n", holder.pid, holder.incarnation).into_bytes();
    let written = (|| {
        std::io::Seek::rewind(&mut file)?;
        file.write_all(&text)?;
        file.set_len(text.len() as u64)
    })();
    written.or_io("write", path)?;
    let warning = claim.as_ref().map(|claim| claim.warning.clone());
    let beat = match claim {
        Some(_) => Some((Heartbeat::start(&file, text.clone()).or_io("write", path)?, text)),
        None => None,
    };
    Ok((FileLock { file, beat, warning }, holder))
}

/// The process that currently holds a lock; `None` if the lock is free.
pub(crate) fn holder(path: &Path) -> Result<Option<Holder>> {
    holder_with(&Locks::system(), path)
}

fn holder_with(locks: &Locks, path: &Path) -> Result<Option<Holder>> {
    let file = match disk::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.or_io("open", path)?,
    };
    if !locks.is_held(&file, path, owner).or_io("lock", path)? {
        Ok(None)
    } else {
        let text = read_at_most(path, disk::most::STATE)?.unwrap_or_default();
        Ok(Some(Holder::parse(&text).unwrap_or_default()))
    }
}
