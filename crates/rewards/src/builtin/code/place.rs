//! This process's own directory for temporary files, and the removal of what killed runs left there.
//!
//! All of a process's begin with its mark, the name of a file that it holds locked. Whose lock can be had is gone, and
//! its directories are removed by the next process that needs some.

use super::seccomp;
use std::fs::Permissions;
use std::io::{Result, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use tempfile::{Builder, NamedTempFile, TempDir};

const PREFIX: &str = "lockstep-code-";
const LOCK: &str = ".lock";

/// What a process has there while it has sandboxes; removed with the last of them.
pub struct Place {
    lock: NamedTempFile,
    filter: NamedTempFile,
}

static CURRENT: Mutex<Weak<Place>> = Mutex::new(Weak::new());

impl Place {
    /// This process's, which is made where there is none yet.
    pub fn current() -> Result<Arc<Place>> {
        let mut current = CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(place) = current.upgrade() {
            return Ok(place);
        }
        sweep(&std::env::temp_dir());
        let lock = locked()?;
        let mut filter =
            Builder::new().prefix(&mark(lock.path())).permissions(Permissions::from_mode(0o644)).tempfile()?;
        filter.write_all(&seccomp::in_namespace()?)?;
        let place = Arc::new(Place { lock, filter });
        *current = Arc::downgrade(&place);
        Ok(place)
    }

    /// Holds what bubblewrap reads.
    pub fn filter(&self) -> &Path {
        self.filter.path()
    }
}

/// A directory that the sandbox's user can read.
pub fn directory() -> Result<TempDir> {
    let current = CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).upgrade();
    let prefix = current.map_or(PREFIX.to_owned(), |place| mark(place.lock.path()));
    Builder::new().prefix(&prefix).permissions(Permissions::from_mode(0o755)).tempdir()
}

/// What the names of a lock's files begin with.
fn mark(lock: &Path) -> String {
    let name = lock.file_name().unwrap_or_default().to_string_lossy();
    format!("{}-", name.trim_end_matches(LOCK))
}

fn locked() -> Result<NamedTempFile> {
    loop {
        let lock = Builder::new().prefix(PREFIX).suffix(LOCK).tempfile()?;
        // Somebody who sweeps may have found it before it was locked.
        if lock.as_file().try_lock().is_ok() && lock.path().exists() {
            return Ok(lock);
        }
    }
}

/// Removes what processes of ours left that are gone. What cannot be removed stays.
fn sweep(directory: &Path) {
    let entries = || std::fs::read_dir(directory).into_iter().flatten().flatten();
    let own = |path: &Path| {
        let metadata = path.symlink_metadata().ok()?;
        (metadata.uid() == rustix::process::geteuid().as_raw()).then_some(metadata)
    };
    let named = |path: &Path, from: &str, to: &str| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(from) && name.ends_with(to)
    };
    let locks = entries().map(|entry| entry.path()).filter(|path| named(path, PREFIX, LOCK));
    for lock in locks.filter(|path| own(path).is_some_and(|metadata| metadata.is_file())) {
        let Ok(file) = std::fs::File::open(&lock) else { continue };
        if file.try_lock().is_err() {
            continue;
        }
        let mark = mark(&lock);
        let left: Vec<PathBuf> = entries().map(|entry| entry.path()).filter(|path| named(path, &mark, "")).collect();
        for path in left {
            let _ = match own(&path).map(|metadata| metadata.is_dir()) {
                Some(true) => std::fs::remove_dir_all(&path),
                Some(false) => std::fs::remove_file(&path),
                None => Ok(()),
            };
        }
        let _ = std::fs::remove_file(&lock);
    }
}
