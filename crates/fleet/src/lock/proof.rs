//! Proves which process holds the lock of a file, before that process gets a signal. A PID alone is not enough: in
//! another container it belongs to another process, and after the process has ended the kernel may reuse it.

use super::{Locks, Owner};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The reason why a process is not proven to hold a file's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unproven {
    /// The process has ended, or is not the process that the file names.
    Gone,
    /// The process is in another container, or on another machine.
    Elsewhere,
    /// The system does not show whether the process has the file open.
    Unknown,
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unproven::Gone => "its PID belongs to another process now",
            Unproven::Elsewhere => {
                "it runs in another container or on another machine, and its PID here may belong to another process"
            }
            Unproven::Unknown => "/proc does not show that it holds the lock",
        })
    }
}

impl Locks {
    /// Opens a handle to process `pid`, which the lock file at `path` names as the holder of its lock. Fails unless
    /// this is proven. `owner`, which older versions do not write, must be in this PID namespace and must have the
    /// start time of the process. The process must have the file open. If no start time is known, it must also hold the
    /// lock.
    pub fn handle(&self, pid: u32, owner: Option<&Owner>, path: &Path) -> Result<OwnedFd, Unproven> {
        let here = self.this_process();
        if owner.is_some_and(|owner| !owner.is_in_namespace_of(&here)) {
            return Err(Unproven::Elsewhere);
        }
        if here.started.is_none() {
            return Err(Unproven::Unknown);
        }
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Unproven::Gone)?;
        // Open the handle first: from then on, either the PID belongs to the handle's process, or that process is gone.
        let handle = pidfd_open(number, PidfdFlags::empty()).map_err(|error| match error {
            rustix::io::Errno::SRCH => Unproven::Gone,
            _ => Unproven::Unknown,
        })?;
        let named = owner.and_then(|owner| owner.started);
        if named.is_some() && named != self.started(pid) {
            return Err(Unproven::Gone);
        }
        match self.has_lock(pid, path) {
            None => Err(Unproven::Unknown),
            Some(has_lock) if has_lock || named.is_some() => Ok(handle),
            Some(_) => Err(Unproven::Unknown),
        }
    }

    /// Whether a process holds the lock of the file at `path`; `None` if the process does not seem to have the file
    /// open.
    fn has_lock(&self, pid: u32, path: &Path) -> Option<bool> {
        let identity = |data: Metadata| (data.dev(), data.ino());
        let file = std::fs::metadata(path).map(identity).ok()?;
        let process = self.proc.join(pid.to_string());
        let open = std::fs::read_dir(process.join("fd")).ok()?.flatten();
        let open = open.filter(|fd| std::fs::metadata(fd.path()).is_ok_and(|data| identity(data) == file));
        let has_lock = open.map(|fd| {
            let text = std::fs::read_to_string(process.join("fdinfo").join(fd.file_name())).unwrap_or_default();
            text.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE"))
        });
        has_lock.reduce(|one, other| one || other)
    }
}
