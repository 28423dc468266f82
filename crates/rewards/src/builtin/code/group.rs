//! A process group that is killed when this process ends.
//!
//! Its leader, a shell, reads a pipe whose other end this process alone holds. When the pipe ends, however this process
//! ended, the leader kills the group. It ignores signals, as the group's members may signal all of it; as root it is
//! another user's.

use rustix::process::{Pid, Signal};
use std::io::Result;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A leader and its group, which are killed when it is dropped.
pub struct Group(Child);

impl Group {
    pub fn new() -> Result<Group> {
        // But for SIGKILL and SIGSTOP; a group that is stopped when we end is continued by the kernel.
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
            // Gone already, if nothing of it is left.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}
