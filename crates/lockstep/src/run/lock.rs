//! Lets only one process at a time write into a run's directory. The file `run.lock` says which process holds the lock,
//! and since when.
//!
//! The operating system's lock on that file decides, so a killed process does not keep it; the file's content is only
//! for people. At the end of a run the file is emptied but never deleted: a process that waited for the deleted file
//! would lock another file than a new process does.

use crate::bad_input;
use crate::error::OrBadInput;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use telemetry::in_place::is_in_place;
use telemetry::system::since_1970;

/// The name of the lock file in a run's directory.
pub const FILE: &str = "run.lock";

/// A lock that this process holds until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    /// The previous holder, if that process was killed while it held the lock.
    pub killed: Option<Holder>,
}

/// The process that holds a lock.
#[derive(Debug, Serialize, Deserialize)]
pub struct Holder {
    pid: u32,
    host: String,
    /// When the process took the lock, in seconds since 1970.
    since_s: u64,
    command: Vec<String>,
}

impl RunLock {
    /// Takes the lock of the directory `root`. If another process holds it, the error is a [`crate::BadInput`] that
    /// names that process.
    pub fn take(root: &Path) -> anyhow::Result<RunLock> {
        let path = root.join(FILE);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = file.or_bad_input_in(format!("cannot open {}", path.display()))?;
        let locked = file.try_lock();
        let mut text = String::new();
        let read = file.read_to_string(&mut text);
        let holder: Option<Holder> = read.ok().and_then(|_| serde_json::from_str(&text).ok());
        match locked {
            Err(TryLockError::WouldBlock) => {
                let root = root.display();
                let (who, kill) = match &holder {
                    Some(holder) => (holder.to_string(), format!(" (`kill {}` on {})", holder.pid, holder.host)),
                    None => ("another process".to_owned(), String::new()),
                };
                bad_input!(
                    "{root} is in use: {who} writes into it. Wait until it has ended, stop it{kill} and resume it with \
                     --resume {root}, or give another directory with --out"
                )
            }
            // A file system without locks cannot protect a run, and is no reason to refuse it.
            Err(TryLockError::Error(error)) if error.kind() != std::io::ErrorKind::Unsupported => {
                Err(error).or_bad_input_in(format!("cannot lock {}", path.display()))
            }
            _ => {
                let lock = RunLock { file, killed: holder };
                lock.say(&serde_json::to_vec(&Holder::this_process())?)
                    .or_bad_input_in(format!("cannot write {}", path.display()))?;
                Ok(lock)
            }
        }
    }

    /// Whether the file `run.lock` in `root` is still the one that this process has locked, and was not deleted or
    /// replaced.
    pub fn is_in_place(&self, root: &Path) -> bool {
        is_in_place(&root.join(FILE), &self.file)
    }

    fn say(&self, text: &[u8]) -> std::io::Result<()> {
        self.file.set_len(0)?;
        std::io::Seek::rewind(&mut &self.file)?;
        (&self.file).write_all(text)
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // What stays in the file would say that this process was killed; nothing else depends on it.
        let _ = self.say(b"");
        // Closing is not enough: a child that is being started has copies of open files until its program runs.
        let _ = self.file.unlock();
    }
}

impl Holder {
    fn this_process() -> Holder {
        Holder {
            pid: std::process::id(),
            host: telemetry::system::host(),
            since_s: since_1970().as_secs(),
            command: telemetry::system::command_line(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = telemetry::duration(since_1970().as_secs().saturating_sub(self.since_s) as f64);
        write!(f, "process {} on {} (`{}`, for {age})", self.pid, self.host, self.command.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Checks that a child process, which inherits all open files until it executes its program, does not keep the
    /// lock.
    #[test]
    fn a_lock_ends_with_its_holder_whatever_else_is_started() {
        let (dir, done) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        assert!(Command::new("true").status().unwrap().success());
                    }
                });
            }
            let taken = (0..20_000).map(|_| RunLock::take(dir.path()).map(drop)).find(Result::is_err);
            done.store(true, Ordering::Relaxed);
            assert!(taken.is_none(), "{taken:?}");
        });
    }

    #[test]
    fn the_second_is_refused_and_a_killed_holder_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunLock::take(dir.path()).unwrap();
        assert!(first.killed.is_none());
        let refusal = RunLock::take(dir.path()).unwrap_err();
        let process = format!("process {}", std::process::id());
        assert!(crate::error::is_bad_input(&refusal) && refusal.to_string().contains(&process), "{refusal}");
        drop(first);
        assert!(RunLock::take(dir.path()).unwrap().killed.is_none(), "the first one ended well");
        let killed = r#"{"pid": 1, "host": "elsewhere", "since_s": 5, "command": ["lockstep", "train"]}"#;
        std::fs::write(dir.path().join(FILE), killed).unwrap();
        let lock = RunLock::take(dir.path()).unwrap();
        let killed = lock.killed.as_ref().unwrap().to_string();
        assert!(killed.contains("process 1 on elsewhere") && killed.contains("lockstep train"), "{killed}");
        // What is no lock's text says nothing, and is no obstacle.
        drop(lock);
        std::fs::write(dir.path().join(FILE), "half a li").unwrap();
        assert!(RunLock::take(dir.path()).unwrap().killed.is_none());
    }
}
