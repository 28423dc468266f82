//! Allows only one process at a time to write to a run's directory. The file `run.lock` names the process that holds
//! the lock, and since when.
//!
//! The operating system's lock on that file is authoritative, so a killed process does not keep the lock. The file's
//! content is only for people, and for file systems without locks ([`fleet::lock`]), where the named process is looked
//! up. At the end of a run the file is emptied but never deleted: a process that waited for the deleted file would lock
//! a different file from the one that a new process locks.

use crate::bad_input;
use crate::error::OrBadInput;
use fleet::lock::{Heartbeat, Locks, Owner, Taken, is_unchanged};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::Duration;
use telemetry::in_place::is_in_place;
use telemetry::system::since_1970;

/// The name of the lock file in a run's directory.
pub const FILE: &str = "run.lock";

/// The number of attempts to take a lock that another process holds, and the pause between them.
const MAX_TRIES: u32 = 20;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Whether a process writes to the run in `root`. The lock is authoritative, not the process number in its file, which
/// may have been reused. If locks of other machines are invisible here, the file's text is used. Nothing is written.
pub fn has_writer(root: &Path) -> bool {
    let path = root.join(FILE);
    let Ok(file) = disk::open(&path) else { return false };
    let locks = Locks::system();
    match locks.is_held(&file, &path, |text| serde_json::from_str(text).ok()) {
        Ok(false) => is_elsewhere(&locks, &file),
        held => held.unwrap_or_default(),
    }
}

/// Whether the file names a process on another machine.
fn is_elsewhere(locks: &Locks, file: &File) -> bool {
    let text = disk::read_rest(file, 0, disk::most::STATE).unwrap_or_default();
    let Ok(owner) = serde_json::from_slice::<Owner>(&text) else { return false };
    let here = locks.this_process();
    if owner.boot.is_empty() { !owner.host.is_empty() && owner.host != here.host } else { owner.boot != here.boot }
}

/// A lock that this process holds until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    /// The previous holder, if it was killed while it held the lock.
    pub killed: Option<Holder>,
    /// A warning for the user, if the file system does not support locks.
    pub warning: Option<String>,
    /// The file's text, which names this process.
    text: Vec<u8>,
    /// Keeps updating the file, for processes that see only its text.
    beat: Option<Heartbeat>,
}

/// The holder of a lock.
#[derive(Debug, Serialize, Deserialize)]
pub struct Holder {
    #[serde(flatten)]
    owner: Owner,
    /// When the process took the lock, in seconds since 1970.
    since_s: u64,
    command: Vec<String>,
}

/// The process named in a lock file.
fn owner(text: &str) -> Option<Owner> {
    serde_json::from_str(text).ok().map(|holder: Holder| holder.owner)
}

impl RunLock {
    /// Takes the lock of the directory `root`. If another process holds it, the [`crate::BadInput`] names that process.
    pub fn take(root: &Path) -> anyhow::Result<RunLock> {
        RunLock::take_with(&Locks::system(), root)
    }

    fn take_with(locks: &Locks, root: &Path) -> anyhow::Result<RunLock> {
        let path = root.join(FILE);
        let file = disk::Options::new().read().write().create().open(&path);
        let mut file = file.or_bad_input_in(format!("cannot open {}", path.display()))?;
        let take = || locks.take(&file, &path, owner).or_bad_input_in(format!("cannot lock {}", path.display()));
        let mut taken = take()?;
        for _ in 0..MAX_TRIES {
            if !matches!(taken, Taken::Held) {
                break;
            }
            // A process that checks whether the run is in use (such as the web page) holds the lock for a moment.
            std::thread::sleep(POLL_INTERVAL);
            taken = take()?;
        }
        file.rewind().or_bad_input_in(format!("cannot read {}", path.display()))?;
        let text = disk::read_rest(&file, 0, disk::most::STATE);
        let holder: Option<Holder> = text.ok().and_then(|text| serde_json::from_slice(&text).ok());
        let (root, mut more) = (root.display(), String::new());
        let claim = match taken {
            Taken::Locked => None,
            Taken::Unlocked(claim) => Some(claim),
            Taken::Held | Taken::Owned(_) => {
                if let Taken::Owned(held) = taken {
                    more = format!(
                        ". (This file system has no locks; {held}. If you know that the process has ended, delete {})",
                        path.display()
                    );
                }
                let (who, kill) = match &holder {
                    Some(Holder { owner, .. }) => {
                        let who = holder.as_ref().map(ToString::to_string).unwrap_or_default();
                        let here = locks.this_process();
                        let is_elsewhere = owner.boot == here.boot && owner.namespace != here.namespace;
                        let container = if is_elsewhere { ", in its container" } else { "" };
                        (who, format!(" (`kill {}` on {}{container})", owner.pid, owner.host))
                    }
                    None => ("another process".to_owned(), String::new()),
                };
                bad_input!(
                    "{root} is in use: {who} is writing to it. Wait until that process has ended, or stop it{kill} and \
                     resume it with --resume {root}, or choose another directory with --out{more}"
                )
            }
        };
        let text = serde_json::to_vec(&Holder::this_process(locks))?;
        let warning = claim.as_ref().map(|claim| claim.warning.clone());
        let mut lock = RunLock { file, killed: holder, warning, text, beat: None };
        let failed = || format!("cannot write {}", path.display());
        lock.write(&lock.text).or_bad_input_in(failed())?;
        if claim.is_some() {
            lock.beat = Some(Heartbeat::start(&lock.file, lock.text.clone()).or_bad_input_in(failed())?);
        }
        Ok(lock)
    }

    /// Whether a process is writing to the directory `root`.
    pub fn is_held(root: &Path) -> bool {
        let path = root.join(FILE);
        disk::open(&path).is_ok_and(|file| Locks::system().is_held(&file, &path, owner).unwrap_or(false))
    }

    /// Whether the file `run.lock` in `root` is still the file that this process has locked, not deleted or replaced.
    pub fn is_in_place(&self, root: &Path) -> bool {
        // If only the text protects a run, another process may have taken the lock while this one was suspended.
        is_in_place(&root.join(FILE), &self.file) && (self.beat.is_none() || is_unchanged(&self.file, &self.text))
    }

    fn write(&self, text: &[u8]) -> std::io::Result<()> {
        self.file.set_len(0)?;
        std::io::Seek::rewind(&mut &self.file)?;
        (&self.file).write_all(text)
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // A holder that is still in the file was killed.
        if self.beat.take().is_none() || is_unchanged(&self.file, &self.text) {
            let _ = self.write(b"");
        }
        // Closing is not enough: a child process that is being started has copies of open files until it executes its
        // program.
        let _ = self.file.unlock();
    }
}

impl Holder {
    fn this_process(locks: &Locks) -> Holder {
        Holder {
            owner: locks.this_process(),
            since_s: since_1970().as_secs(),
            command: telemetry::system::command_line(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = telemetry::duration(since_1970().as_secs().saturating_sub(self.since_s) as f64);
        write!(f, "process {} on {} (`{}`, for {age})", self.owner.pid, self.owner.host, self.command.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A child process inherits all open files until it executes its program; it must not keep the lock.
    #[test]
    fn a_lock_ends_with_its_holder_despite_child_processes() {
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

    /// On a file system without locks, the holder named in the file protects the run.
    #[test]
    fn without_file_locks_a_living_holder_is_refused_and_a_killed_one_named() {
        fn none(_: &File) -> Result<(), std::fs::TryLockError> {
            Err(std::fs::TryLockError::Error(std::io::Error::from_raw_os_error(38)))
        }
        let dir = tempfile::tempdir().unwrap();
        let locks = Locks { lock: none, shared: none, ..Locks::system() };
        let take = || RunLock::take_with(&locks, dir.path());
        let first = take().unwrap();
        let warning = first.warning.clone().unwrap();
        assert!(warning.contains("does not lock files") && warning.contains("run.lock"), "{warning}");
        let refusal = take().unwrap_err();
        let text = refusal.to_string();
        let process = format!("process {}", std::process::id());
        assert!(crate::error::is_bad_input(&refusal) && text.contains(&process), "{text}");
        assert!(text.contains("it is running on this machine") && text.contains("delete"), "{text}");
        assert!(first.is_in_place(dir.path()));
        drop(first);
        assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), b"");
        let second = take().unwrap();
        assert!(second.killed.is_none(), "the first process ended normally");
        // Another process took the file while this one was suspended.
        let other = r#"{"pid": 1, "host": "elsewhere", "boot": "b", "since_s": 5, "command": ["lockstep"]}"#;
        std::fs::write(dir.path().join(FILE), other).unwrap();
        assert!(!second.is_in_place(dir.path()));
        drop(second);
        assert_eq!(
            std::fs::read_to_string(dir.path().join(FILE)).unwrap(),
            other,
            "the file of another process is kept"
        );
        assert!(
            take().unwrap_err().to_string().contains("process 1 on elsewhere"),
            "the other process has just written the file"
        );
        let child = Command::new("true").spawn().unwrap();
        let (pid, host) = (child.id(), telemetry::system::host());
        child.wait_with_output().unwrap();
        let killed = format!(r#"{{"pid": {pid}, "host": "{host}", "since_s": 5, "command": ["lockstep"]}}"#);
        std::fs::write(dir.path().join(FILE), killed).unwrap();
        let lock = take().unwrap();
        let killed = lock.killed.as_ref().unwrap().to_string();
        assert!(killed.contains(&format!("process {pid} on")), "{killed}");
    }

    /// The writer of a run for each combination of lock and text. The number of a process in another container belongs
    /// to a different process here.
    #[test]
    fn the_lock_decides_whether_a_run_is_written_not_the_process_number() {
        let here = Locks::system().this_process();
        let own = |owner: Owner| serde_json::to_string(&owner).unwrap();
        let gone = u32::MAX;
        // The older form has neither boot nor namespace.
        let older =
            |pid: u32, host: &str| format!(r#"{{"pid": {pid}, "host": "{host}", "since_s": 5, "command": []}}"#);
        let container = |pid| own(Owner { pid, namespace: "pid:[1]".to_owned(), ..here.clone() });
        let machine = |pid| own(Owner { pid, boot: "b".to_owned(), host: "there".to_owned(), ..here.clone() });
        let rows: Vec<(&str, String, bool, bool)> = vec![
            ("this process, with its lock", own(here.clone()), true, true),
            ("this process, after releasing the lock", own(here.clone()), false, false),
            ("a living process of another container", container(gone), true, true),
            ("the same, with the PID of a process here", container(1), true, true),
            ("a killed process of another container", container(gone), false, false),
            ("a killed process whose PID a process has here", container(1), false, false),
            ("a killed process whose PID this process has", container(here.pid), false, false),
            ("a killed process", own(Owner { pid: gone, ..here.clone() }), false, false),
            ("a later process with its PID", own(Owner { started: Some(1), ..here.clone() }), false, false),
            ("another machine, whose locks are seen", machine(gone), true, true),
            ("another machine, whose locks may not be seen", machine(1), false, true),
            ("an older version, this machine", older(here.pid, &here.host), false, false),
            ("an older version, this machine, with its lock", older(gone, &here.host), true, true),
            ("an older version, another machine", older(1, "there"), false, true),
            ("a run that ended well", String::new(), false, false),
            ("a run that begins", String::new(), true, true),
            ("half a text", own(here.clone())[..9].to_owned(), false, false),
            ("half a text, with a lock", own(here.clone())[..9].to_owned(), true, true),
            ("another form", "[1, 2]".to_owned(), false, false),
            ("no text at all", "\u{fffd}\u{0}".to_owned(), false, false),
        ];
        for (what, text, is_locked, is_written) in &rows {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(FILE);
            std::fs::write(&path, text).unwrap();
            let lock = File::open(&path).unwrap();
            if *is_locked {
                lock.try_lock().unwrap();
            }
            assert_eq!(has_writer(dir.path()), *is_written, "{what}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), *text, "{what}: the file must not change");
        }
        assert!(rows.len() >= 20 && !has_writer(Path::new("/no/such")));
        // Checking for a writer does not keep a run from beginning.
        let dir = tempfile::tempdir().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    has_writer(dir.path());
                }
            });
            let refused = (0..200).map(|_| RunLock::take(dir.path()).map(drop)).find(Result::is_err);
            done.store(true, Ordering::Relaxed);
            assert!(refused.is_none(), "{refused:?}");
        });
    }

    #[test]
    fn a_second_holder_is_refused_and_a_killed_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunLock::take(dir.path()).unwrap();
        assert!(first.killed.is_none() && RunLock::is_held(dir.path()));
        let refusal = RunLock::take(dir.path()).unwrap_err();
        let process = format!("process {}", std::process::id());
        assert!(crate::error::is_bad_input(&refusal) && refusal.to_string().contains(&process), "{refusal}");
        drop(first);
        assert!(!RunLock::is_held(dir.path()) && !RunLock::is_held(&dir.path().join("none")));
        assert!(RunLock::take(dir.path()).unwrap().killed.is_none(), "the first process ended normally");
        let killed = r#"{"pid": 1, "host": "elsewhere", "since_s": 5, "command": ["lockstep", "train"]}"#;
        std::fs::write(dir.path().join(FILE), killed).unwrap();
        let lock = RunLock::take(dir.path()).unwrap();
        let killed = lock.killed.as_ref().unwrap().to_string();
        assert!(killed.contains("process 1 on elsewhere") && killed.contains("lockstep train"), "{killed}");
        // A file without a valid text is ignored.
        drop(lock);
        std::fs::write(dir.path().join(FILE), "half a li").unwrap();
        assert!(RunLock::take(dir.path()).unwrap().killed.is_none());
    }
}
