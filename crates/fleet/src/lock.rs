//! File locks, with a fallback for file systems that do not support them.
//!
//! Normally the kernel's lock (`flock`) decides which process owns a file, and the kernel releases it when the process
//! is killed. Some file systems refuse such locks: Lustre mounted without `flock` (ENOSYS), NFS without a lock daemon
//! (ENOLCK), some network and user-space file systems (EOPNOTSUPP). There the file names its owner, and another process
//! decides whether that owner is alive:
//!
//! - on the same machine, the owner is alive if a process with its PID and start time exists;
//! - on another machine, or in another container, the owner is alive if it has written into the file within [`SILENT`];
//!   it does so every [`BEAT`]. Write times come from the file system's clock, so the machines' clocks may differ.
//!
//! If two processes start at the same moment, the file `FILE.claim` decides: only one of them can create it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Result, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

mod proof;

pub use proof::Unproven;

/// The interval at which the owner of a file without a lock writes into it.
pub const BEAT: Duration = Duration::from_secs(10);
/// An owner on another machine that has not written for this long is gone. Network file systems show a change after up
/// to a minute.
pub const SILENT: Duration = Duration::from_secs(120);

/// The process that owns a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The process number.
    pub pid: u32,
    /// The name of its machine.
    #[serde(default)]
    pub host: String,
    /// The identifier of the boot of its machine's kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// The start time of the process, in clock ticks since that boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// The PID namespace to which `pid` belongs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

impl Owner {
    /// Whether the two processes can see each other's PIDs: same machine, same boot, same PID namespace. False if this
    /// is unknown.
    pub fn is_in_namespace_of(&self, other: &Owner) -> bool {
        let known = !self.boot.is_empty() && !self.namespace.is_empty();
        known && (&self.boot, &self.namespace) == (&other.boot, &other.namespace)
    }
}

/// The functions that lock files and inspect processes. Tests replace some of them.
#[derive(Clone)]
pub struct Locks {
    /// Takes the kernel's lock on a file.
    pub lock: fn(&File) -> std::result::Result<(), TryLockError>,
    /// Takes a shared lock on a file.
    pub shared: fn(&File) -> std::result::Result<(), TryLockError>,
    /// The directory `/proc`.
    pub proc: PathBuf,
}

/// The result of trying to take a file.
#[derive(Debug)]
pub enum Taken {
    /// The kernel's lock is taken.
    Locked,
    /// The file system does not support locks, and the file has no living owner. This process owns the file now: it
    /// must write its [`Owner`] into the file, and then drop the claim.
    Unlocked(Claim),
    /// Another process has the kernel's lock.
    Held,
    /// The file system does not support locks, and another process owns the file.
    Owned(Held),
}

/// The evidence that another process owns a file without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The process is running on this machine.
    Lives,
    /// The process, on another machine or in another container, wrote this number of seconds ago.
    Wrote(u64),
    /// Another process is starting.
    Starts,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Held::Lives => f.write_str("it is running on this machine"),
            Held::Wrote(seconds) => write!(f, "its last heartbeat was {seconds} s ago"),
            Held::Starts => f.write_str("it is starting"),
        }
    }
}

/// The right to write the owner into a file without a lock. It ends when this value is dropped.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// A warning for the user: why the lock is missing, and how to fix that.
    pub warning: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = disk::remove_file(&self.path);
    }
}

/// Whether an error means that this file system does not support locks.
pub fn is_unsupported(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let none = [Errno::NOSYS, Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOTSUP, Errno::INVAL, Errno::NOTTY];
    error.kind() == ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|raw| none.iter().any(|e| e.raw_os_error() == raw))
}

/// The reason why locks fail on the file system of `path`, and the fix.
fn advice(path: &Path, error: &std::io::Error) -> String {
    let fix = if error.raw_os_error() == Some(rustix::io::Errno::NOLCK.raw_os_error()) {
        "on NFS, start its lock daemon (rpc.statd), or mount it with nolock or local_lock=flock"
    } else {
        "on Lustre, mount it with flock or localflock"
    };
    format!(
        "{}: this file system does not lock files ({error}), so only the content of this file keeps a second \
         process out. Choose a directory on another file system, or mount this one with locks ({fix})",
        path.display()
    )
}

impl Locks {
    /// The real functions of this system.
    pub fn system() -> Locks {
        Locks { lock: File::try_lock, shared: File::try_lock_shared, proc: PathBuf::from("/proc") }
    }

    /// Takes the open `file` at `path`. `owner` parses the owner from the file's content.
    pub fn take(&self, file: &File, path: &Path, owner: impl Fn(&str) -> Option<Owner>) -> Result<Taken> {
        let error = match (self.lock)(file) {
            Ok(()) => return Ok(Taken::Locked),
            Err(TryLockError::WouldBlock) => return Ok(Taken::Held),
            Err(TryLockError::Error(error)) if is_unsupported(&error) => error,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        let mut name = path.as_os_str().to_owned();
        name.push(".claim");
        let name = PathBuf::from(name);
        let create = || disk::Options::new().write().create_new().open(&name);
        let claimed = match create() {
            // This claim was left by a process that was killed during its start.
            Err(exists) if exists.kind() == ErrorKind::AlreadyExists && self.is_abandoned(&name)? => {
                disk::remove_file(&name)?;
                create()
            }
            claimed => claimed,
        };
        match claimed {
            Ok(mut file) => file.write_all(&serde_json::to_vec(&self.this_process())?)?,
            Err(exists) if exists.kind() == ErrorKind::AlreadyExists => return Ok(Taken::Owned(Held::Starts)),
            Err(error) => return Err(error),
        }
        let claim = Claim { path: name, warning: advice(path, &error) };
        Ok(match owner(&text(file)?) {
            Some(owner) => match self.holds(&owner, path)? {
                Some(held) => Taken::Owned(held),
                None => Taken::Unlocked(claim),
            },
            None => Taken::Unlocked(claim),
        })
    }

    /// Whether another process currently holds the open `file` at `path`.
    pub fn is_held(&self, file: &File, path: &Path, owner: impl Fn(&str) -> Option<Owner>) -> Result<bool> {
        match (self.shared)(file) {
            Ok(()) => file.unlock().map(|()| false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) if is_unsupported(&error) => match owner(&text(file)?) {
                Some(owner) => Ok(self.holds(&owner, path)?.is_some()),
                None => Ok(false),
            },
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Whether the process that created a claim file is gone.
    fn is_abandoned(&self, claim: &Path) -> Result<bool> {
        let owner: Option<Owner> =
            disk::read(claim, disk::most::STATE).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        match owner.and_then(|owner| self.lives(&owner)) {
            Some(lives) => Ok(!lives),
            None => Ok(silence(claim)? > SILENT),
        }
    }

    /// The reason why the owner in an unlocked file still owns it; `None` if the owner is gone.
    fn holds(&self, owner: &Owner, path: &Path) -> Result<Option<Held>> {
        if let Some(lives) = self.lives(owner) {
            return Ok(lives.then_some(Held::Lives));
        }
        let silence = silence(path)?;
        Ok((silence <= SILENT).then_some(Held::Wrote(silence.as_secs())))
    }

    /// Whether a process of this machine is running; `None` if it is on another machine or in another container.
    fn lives(&self, owner: &Owner) -> Option<bool> {
        let here = self.this_process();
        let is_visible = if owner.boot.is_empty() {
            !owner.host.is_empty() && owner.host == here.host
        } else {
            owner.boot == here.boot && owner.namespace == here.namespace
        };
        if !is_visible || here.started.is_none() {
            return None;
        }
        let now = self.started(owner.pid);
        Some(now.is_some() && (owner.started.is_none() || owner.started == now))
    }

    /// This process as an owner.
    pub fn this_process(&self) -> Owner {
        let read = |name: &str| std::fs::read_to_string(self.proc.join(name)).unwrap_or_default().trim().to_owned();
        let host: String =
            read("sys/kernel/hostname").chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        let namespace = std::fs::read_link(self.proc.join("self/ns/pid")).unwrap_or_default();
        Owner {
            pid: std::process::id(),
            host: if host.is_empty() { "localhost".to_owned() } else { host },
            boot: read("sys/kernel/random/boot_id"),
            started: self.started(std::process::id()).filter(|_| self.shows_own_namespace()),
            namespace: namespace.display().to_string(),
        }
    }

    /// Whether `/proc` shows the PIDs of this process's namespace. A new PID namespace may still have the `/proc` of
    /// its parent.
    fn shows_own_namespace(&self) -> bool {
        let own = std::fs::read_link(self.proc.join("self"));
        own.map_or(true, |own| own.to_str() == Some(&*std::process::id().to_string()))
    }

    /// For tests: the start time of a process.
    #[cfg(test)]
    pub(crate) fn started_of(&self, pid: u32) -> Option<u64> {
        self.started(pid)
    }

    /// The start time of a process; `None` if it does not exist or is a zombie.
    fn started(&self, pid: u32) -> Option<u64> {
        let text = std::fs::read(self.proc.join(pid.to_string()).join("stat")).ok()?;
        // The name of the process may contain any characters.
        let text = String::from_utf8_lossy(&text);
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let has_ended = matches!(*fields.first()?, "Z" | "X" | "x");
        fields.get(19)?.parse().ok().filter(|_| !has_ended)
    }
}

/// The whole content of an open file.
fn text(mut file: &File) -> Result<String> {
    file.rewind()?;
    let bytes = disk::read_rest(file, 0, disk::most::STATE)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The time since the last write to the file, by the file system's clock: a new file next to it gives the current time.
fn silence(path: &Path) -> Result<Duration> {
    let mut probe = path.as_os_str().to_owned();
    probe.push(format!(".clock-{}", std::process::id()));
    let probe = PathBuf::from(probe);
    let now = disk::create(&probe).and_then(|mut file| {
        file.write_all(b"now")?;
        file.metadata()?.modified()
    });
    let _ = disk::remove_file(&probe);
    let written = std::fs::metadata(path)?.modified()?;
    Ok(now?.duration_since(written).unwrap_or_default())
}

/// Rewrites the content of a file without a lock at intervals, so that other machines see that the owner is alive.
/// Dropping this value stops it.
#[derive(Debug)]
pub struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts to rewrite `text` in the open `file`.
    pub fn start(file: &File, text: Vec<u8>) -> Result<Heartbeat> {
        let mut file = file.try_clone()?;
        let (stop, stopped) = channel();
        let beat = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(BEAT) {
                // If this process was stopped for a while, another one may have taken the file.
                if !is_unchanged(&file, &text) || file.rewind().and_then(|()| file.write_all(&text)).is_err() {
                    return;
                }
                let _ = file.sync_data();
            }
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_owned()).spawn(beat)?;
        Ok(Heartbeat { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether the open file still has this content.
pub fn is_unchanged(file: &File, expected: &[u8]) -> bool {
    text(file).is_ok_and(|text| text.as_bytes() == expected)
}

#[cfg(test)]
mod tests;
