//! The files of this process in the temporary directory, and the removal of files that killed processes left there.
//!
//! The names of all these files share a prefix, which is the name of a file that this process keeps locked. If another
//! process can take the lock, this process has ended, and the other process removes its files before it creates its
//! own.

use super::seccomp;
use std::fs::Permissions;
use std::io::{Result, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use tempfile::{Builder, NamedTempFile, TempDir};

const PREFIX: &str = "lockstep-code-";
const LOCK: &str = ".lock";

/// The files of a process in the temporary directory. They exist while the process has sandboxes, and are removed with
/// the last sandbox.
pub struct Place {
    lock: NamedTempFile,
    filter: NamedTempFile,
}

static CURRENT: Mutex<Weak<Place>> = Mutex::new(Weak::new());

impl Place {
    /// The `Place` of this process, created if there is none yet.
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

    /// The file with the seccomp filter that bubblewrap reads.
    pub fn filter(&self) -> &Path {
        self.filter.path()
    }
}

/// Creates a temporary directory that the sandbox's user can read.
pub fn directory() -> Result<TempDir> {
    let current = CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).upgrade();
    let prefix = current.map_or(PREFIX.to_owned(), |place| mark(place.lock.path()));
    Builder::new().prefix(&prefix).permissions(Permissions::from_mode(0o755)).tempdir()
}

/// Writes a file that the sandbox's user can read and execute.
pub fn write(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = directory.join(name);
    std::fs::write(&path, bytes)?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o755))
}

/// Writes a program that the sandbox's user can start. A child process writes the file, because a file that is open for
/// writing cannot be started. If this process wrote it, a process forked at the same time for another completion would
/// keep the file open until it executes its own program.
pub fn write_program(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"]).arg(path).env("PATH", "/usr/bin:/bin");
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(bytes));
    let is_done = child.wait()?.success();
    written?;
    if is_done { Ok(()) } else { Err(std::io::Error::other(format!("{} cannot be written", path.display()))) }
}

/// The prefix of the file names that belong to a lock file.
fn mark(lock: &Path) -> String {
    let name = lock.file_name().unwrap_or_default().to_string_lossy();
    format!("{}-", name.trim_end_matches(LOCK))
}

fn locked() -> Result<NamedTempFile> {
    loop {
        let lock = Builder::new().prefix(PREFIX).suffix(LOCK).tempfile()?;
        // Another process that removes old files may have removed this one before it was locked.
        if lock.as_file().try_lock().is_ok() && lock.path().exists() {
            return Ok(lock);
        }
    }
}

/// Removes the files of ended processes of this program. Files that cannot be deleted stay.
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

#[cfg(test)]
mod tests;
