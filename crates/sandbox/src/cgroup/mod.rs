//! Limits the memory of a program with its own control group (cgroup v2), if this process may create one.
//!
//! A cgroup that contains processes cannot have children with a memory limit, and this process does not move itself. So
//! the cgroup of a program is a sibling of this process's cgroup. Four conditions must hold: the parent delegates the
//! memory controller; this process may create a cgroup there; it may move a process into that cgroup; and its own
//! cgroup has no limits, which the program would escape. Otherwise memory is watched (`memory`).
//!
//! A program waits at a [`Gate`] until it has been moved. Its cgroup stays locked while this process uses it. If
//! another process can take the lock, the owner has ended, and the other process removes the cgroup before it creates
//! its own.

mod gate;
#[cfg(test)]
pub(super) mod tests;

use self::gate::Gate;
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The prefix of each cgroup's name, which ends with two numbers.
const PREFIX: &str = "lockstep-code-";
/// The files with limits that must not be set in the cgroup of this process, with their content if no limit is set.
const OWN_LIMITS: [(&str, &str); 4] =
    [("memory.max", "max"), ("memory.high", "max"), ("cpu.max", "max"), ("cpuset.cpus", "")];
/// Room for the processes in a cgroup besides those of the program: bubblewrap, and the shells that start it.
const SPARE_PROCESSES: u64 = 8;
/// The time that killed processes of a cgroup may take to end. After that the cgroup is not removed.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of names that are tried for a cgroup.
const NAMES: usize = 100;

/// The cgroups of a process, and the two operations that differ between cgroups and ordinary directories.
#[derive(Clone)]
pub struct Roots {
    /// The content of `/proc/self/cgroup`.
    pub own: String,
    /// The content of `/proc/self/mountinfo`.
    pub mounts: String,
    pub make: fn(&Path) -> Result<()>,
    pub remove: fn(&Path) -> Result<()>,
}

impl Roots {
    pub fn this_process() -> Roots {
        let text = |path: &str| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        Roots {
            own: text("/proc/self/cgroup"),
            mounts: text("/proc/self/mountinfo"),
            make: |path| fs::create_dir(path),
            remove: |path| fs::remove_dir(path),
        }
    }
}

/// The directory in which cgroups of programs can be created.
#[derive(Clone, Debug)]
pub struct Cgroups {
    parent: PathBuf,
    make: fn(&Path) -> Result<()>,
    remove: fn(&Path) -> Result<()>,
}

impl Cgroups {
    /// The parent of this process's cgroup, if a trial cgroup works there; otherwise the reason.
    pub fn find(roots: &Roots) -> std::result::Result<Cgroups, &'static str> {
        let path = roots.own.lines().find_map(|line| line.strip_prefix("0::"));
        let path = path.ok_or("this process is not in a cgroup v2")?;
        let own = directory(&roots.mounts, path).ok_or("no cgroup v2 is mounted")?;
        let own = own.ok_or("the parent of this process's cgroup is not visible here")?;
        let parent = own.parent().unwrap_or(&own).to_owned();
        let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        if !text(parent.join("cgroup.subtree_control")).split_whitespace().any(|controller| controller == "memory") {
            return Err("the parent of this process's cgroup does not pass on the memory controller");
        }
        if OWN_LIMITS.iter().any(|(name, unset)| {
            let value = text(own.join(name));
            let value = value.split_whitespace().next().unwrap_or_default();
            !value.is_empty() && value != *unset
        }) {
            return Err("this process's cgroup has a limit, which programs in a new sibling would escape");
        }
        let cgroups = Cgroups { parent, make: roots.make, remove: roots.remove };
        cgroups.sweep();
        cgroups.check().map_err(|_| "a process cannot be moved into a new sibling of this process's cgroup")?;
        Ok(cgroups)
    }

    /// Removes the cgroups of ended processes of this program.
    fn sweep(&self) {
        let entries = fs::read_dir(&self.parent).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| is_ours(&entry.file_name().to_string_lossy())) {
            if let Some(lock) = locked(&entry.path()) {
                drop(Cgroup { path: entry.path(), remove: self.remove, gate: None, _lock: lock });
            }
        }
    }

    /// Moves a small process into a new cgroup, then removes that cgroup.
    fn check(&self) -> Result<()> {
        let cgroup = self.cgroup(64, 1)?;
        let mut command = cgroup.command("/bin/sh");
        command.args(["-c", "exit 0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let admitted = cgroup.admit(&child);
        if admitted.is_err() {
            let _ = child.kill();
        }
        let status = child.wait()?;
        admitted?;
        let path = cgroup.path.clone();
        drop(cgroup);
        if status.success() && !path.exists() { Ok(()) } else { Err(Error::other("it cannot be used")) }
    }

    /// Creates the cgroup of a program.
    pub fn cgroup(&self, memory_mb: u64, processes: u64) -> Result<Cgroup> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = || format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let gate = Some(Gate::new()?);
        for path in (0..NAMES).map(|_| self.parent.join(name())) {
            match (self.make)(&path) {
                // A killed process with the same PID left this cgroup behind.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            // Another process that removes old cgroups may have removed this one before it was locked.
            let Some(lock) = locked(&path) else { continue };
            let cgroup = Cgroup { path, remove: self.remove, gate, _lock: lock };
            cgroup.write("memory.max", memory_mb << 20)?;
            let more = [("memory.swap.max", 0), ("memory.oom.group", 1), ("pids.max", processes + SPARE_PROCESSES)];
            for (name, value) in more.into_iter().filter(|(name, _)| cgroup.path.join(name).exists()) {
                cgroup.write(name, value)?;
            }
            return Ok(cgroup);
        }
        Err(Error::other(format!("cannot create a cgroup in {}", self.parent.display())))
    }
}

/// Locks the directory of a cgroup, unless another process has the lock or the directory is gone.
fn locked(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    (file.try_lock().is_ok() && path.exists()).then_some(file)
}

fn is_ours(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

/// The directory of the cgroup `path`, according to the lines of `mounts`. `None` if no cgroup v2 is mounted, and
/// `Some(None)` if the parent of the cgroup is outside of the mounted part.
fn directory(mounts: &str, path: &str) -> Option<Option<PathBuf>> {
    // 31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
    let mut mounted = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        (after.split(' ').next() == Some("cgroup2")).then_some(fields.next().zip(fields.next())).flatten()
    });
    let (root, point) = mounted.next()?;
    let own = Path::new(path).strip_prefix(root).ok();
    let own = own.filter(|own| own.components().all(|part| matches!(part, Component::Normal(_))));
    Some(own.filter(|own| own.file_name().is_some()).map(|own| Path::new(&unescaped(point)).join(own)))
}

/// Replaces the escapes that the kernel uses in its tables of mounts.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// The cgroup of a program. Dropping it kills the processes in the cgroup and removes the cgroup.
pub struct Cgroup {
    path: PathBuf,
    remove: fn(&Path) -> Result<()>,
    /// The gate at which the program waits; `None` if the cgroup is only being removed.
    gate: Option<Gate>,
    _lock: File,
}

impl Cgroup {
    /// The command line of `program`, which waits at the gate until it is admitted.
    pub fn command(&self, program: &str) -> Command {
        self.gate.as_ref().map_or_else(|| Command::new(program), |gate| gate.command(program))
    }

    /// The file that a process must be able to read to be admitted.
    pub fn gate(&self) -> Option<&Path> {
        self.gate.as_ref().map(Gate::path)
    }

    /// Moves the waiting process into the cgroup, then lets it start its program.
    pub fn admit(&self, child: &Child) -> Result<()> {
        self.write("cgroup.procs", u64::from(child.id()))?;
        self.gate.as_ref().map_or(Ok(()), Gate::open)
    }

    /// Whether the kernel killed a process because the cgroup's memory reached its limit. `oom_kill` also counts
    /// processes that were killed because a larger cgroup or the machine ran out of memory; `oom` then stays 0.
    pub fn is_over(&self) -> bool {
        let text = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        let count = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        count("oom_kill ").is_some_and(|kills| kills > 0) && count("oom ") != Some(0)
    }

    /// The peak memory of all processes together, in bytes. Needs Linux 5.19.
    pub fn peak(&self) -> Option<u64> {
        fs::read_to_string(self.path.join("memory.peak")).ok()?.trim().parse().ok()
    }

    /// Kills all processes. Needs Linux 5.14; on older versions the processes end with their process group or
    /// namespace.
    pub fn kill(&self) {
        let _ = self.write("cgroup.kill", 1);
    }

    /// Writes into a file that the kernel created.
    fn write(&self, name: &str, value: u64) -> Result<()> {
        let path = self.path.join(name);
        let write = || File::options().write(true).truncate(true).open(&path)?.write_all(value.to_string().as_bytes());
        write().map_err(|error: Error| Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.kill();
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        while (self.remove)(&self.path).is_err() && self.path.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
