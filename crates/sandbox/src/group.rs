//! A process group that is killed when this process ends.
//!
//! The leader of the group is a shell that reads a pipe, and only this process holds the other end. However this
//! process ends, the pipe closes, and the shell kills the group. The shell ignores signals, since members may signal
//! the whole group. If this process is root, the shell runs as a different user from the members.

use rustix::process::{Pid, Signal};
use std::io::Result;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The shell that leads a process group. Dropping it kills the shell and the group.
pub struct Group(Child);

impl Group {
    pub fn new() -> Result<Group> {
        // SIGKILL and SIGSTOP cannot be ignored. If a group is stopped when this process ends, the kernel continues it.
        let signals: Vec<String> =
            (1..=64).filter(|n| ![9, 17, 19, 32, 33].contains(n)).map(|n| n.to_string()).collect();
        let script = format!("trap '' {}; while read -r line; do :; done; kill -9 0", signals.join(" "));
        let mut leader = Command::new("/bin/sh");
        leader.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Group(leader.process_group(0).env_clear().current_dir("/").spawn()?))
    }

    pub fn id(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Whether the process group still exists. Its leader may have been killed to free memory.
    pub fn is_there(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.id()) {
            // This fails if the group has no process left.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}
