//! Waits for a running program, and kills it.

use super::cgroup::Cgroup;
use super::group::Group;
use super::memory::{Excess, Watch};
use super::user::User;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::io::Read;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The interval at which a running program is polled.
const POLL: Duration = Duration::from_millis(2);

/// The resources that a program may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub wall: Duration,
    /// Address space of each process, in MiB.
    pub memory_mb: u64,
    /// Memory that all processes use together, in MiB.
    pub resident_mb: u64,
    /// Number of processes and threads.
    pub processes: u64,
    /// Bytes on standard output.
    pub output: usize,
    /// Size of `/tmp`, and of the largest file, in MiB.
    pub disk_mb: u64,
    /// Whether the program is a compiler, which must write files even where their total size cannot be bounded.
    pub compiles: bool,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The program exited with this code, which is 128 plus the signal's number if a signal killed it.
    Exit(i32),
    TimedOut,
    TooMuchOutput,
    /// The processes of the program used more than this many MiB together.
    TooMuchMemory(u64),
    /// The program had more than this many processes and threads.
    TooManyProcesses(u64),
    /// The program was stopped because its result is not needed any longer.
    Stopped,
}

/// A running program. Dropping this kills the program.
pub struct Running {
    child: Child,
    /// The process group of the program, if it runs without bubblewrap.
    group: Option<Group>,
    watch: Watch,
    limits: Limits,
    /// The cgroup that limits the memory of the program, if there is one.
    cgroup: Option<Cgroup>,
    /// The measured peak memory of all the program's processes together, in bytes; known once the program has ended.
    pub peak: u64,
    /// The working directory of the program, if it runs without bubblewrap. It is removed once none of its processes is
    /// left.
    _directory: Option<TempDir>,
    _user: User,
}

impl std::ops::Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl std::ops::DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Kills the child processes of a running bubblewrap. This function stops bubblewrap, and the caller must kill it next.
/// The first child ends with bubblewrap only once it has requested this from the kernel. If bubblewrap were killed
/// earlier, the child would wait forever with the program's streams open.
fn kill_children(bubblewrap: &Child) {
    let Some(id) = Pid::from_raw(bubblewrap.id().cast_signed()) else { return };
    // A stopped bubblewrap starts no other children, and does not reap ended ones, so their PIDs are not reused.
    let _ = rustix::process::kill_process(id, Signal::STOP);
    let until = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _ = rustix::process::waitid(WaitId::Pid(id), until);
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)) {
        let _ = rustix::process::kill_process(child, Signal::KILL);
    }
}

impl Running {
    /// Wraps the running `child`, which is first moved into `cgroup` if there is one.
    pub fn admitted(
        child: Child,
        group: Option<Group>,
        watch: Watch,
        limits: Limits,
        cgroup: Option<Cgroup>,
        directory: Option<TempDir>,
        user: User,
    ) -> std::io::Result<Running> {
        let running = Running { child, group, watch, limits, cgroup, peak: 0, _directory: directory, _user: user };
        if let Some(cgroup) = &running.cgroup {
            cgroup.admit(&running.child)?;
        }
        Ok(running)
    }

    /// Kills all processes of the program. With bubblewrap, killing it ends its process namespace.
    pub fn end(&mut self) {
        let cgroup = self.cgroup.take();
        if let Some(cgroup) = &cgroup {
            cgroup.kill();
        }
        let group = self.group.take();
        // If the child has ended, its PID may belong to another process by now.
        if group.is_none() && matches!(self.child.try_wait(), Ok(None)) {
            kill_children(&self.child);
        }
        drop(group);
        let _ = self.child.kill();
        let _ = self.child.wait();
        let measured = cgroup.as_ref().map_or(Some(self.watch.peak()), Cgroup::peak);
        self.peak = self.peak.max(measured.unwrap_or(0));
    }

    /// Waits until the program ends, its limits or those of `other` are exceeded, its time is over, or `stop` is set.
    /// Then kills the remaining processes.
    pub fn wait(
        &mut self,
        deadline: Instant,
        too_much: &AtomicBool,
        stop: &AtomicBool,
        mut other: Option<&mut Running>,
    ) -> std::io::Result<End> {
        let end = loop {
            if let Some(status) = self.child.try_wait()? {
                use std::os::unix::process::ExitStatusExt;
                break End::Exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()));
            }
            let greedy = |running: &mut Running| {
                running.watch.exceeds().map(|excess| match excess {
                    Excess::Memory => End::TooMuchMemory(running.limits.resident_mb),
                    Excess::Threads => End::TooManyProcesses(running.limits.processes),
                })
            };
            if let Some(end) = greedy(self).or_else(|| other.as_mut().and_then(|other| greedy(other))) {
                break end;
            }
            match () {
                () if too_much.load(Ordering::Relaxed) => break End::TooMuchOutput,
                () if stop.load(Ordering::Relaxed) => break End::Stopped,
                () if Instant::now() >= deadline => break End::TimedOut,
                () => std::thread::sleep(POLL),
            }
        };
        // If the kernel kills a program for its memory, the exit code shows only a signal, and the program that reads
        // from it may end in any way.
        let over = |running: &Running| {
            let is_over = running.cgroup.as_ref().is_some_and(Cgroup::is_over);
            is_over.then_some(End::TooMuchMemory(running.limits.resident_mb))
        };
        let end = match end {
            End::Exit(_) => over(self).or_else(|| over(other.as_deref()?)).unwrap_or(end),
            end => end,
        };
        self.end();
        Ok(end)
    }
}

/// Reads a stream to its end and returns its first `most` bytes; sets `more` if there were more.
pub fn read(mut stream: impl Read, most: usize, more: &AtomicBool) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1 << 16]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return kept,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return kept,
            Ok(n) => {
                let room = (most - kept.len()).min(n);
                kept.extend(&buffer[..room]);
                if room < n {
                    more.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}
