//! Runs a command and observes its exit, its peak memory, and whether it hangs.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time after which a command is considered hung. Commands take seconds on a busy machine.
const HANG: Duration = Duration::from_secs(300);
/// A process with this much memory is killed, to protect the test machine.
const FAR_TOO_MUCH: u64 = 3 << 30;

/// The outcome of a command.
#[derive(Debug)]
pub struct Seen {
    /// The exit code; none if a signal killed the process.
    pub code: Option<i32>,
    /// Standard output and standard error.
    pub printed: String,
    /// The peak memory of its largest process, in bytes.
    pub peak: u64,
    /// True if the command did not exit within [`HANG`].
    pub hangs: bool,
}

/// Runs a command to its end. Its output goes to files, so that processes that it leaves behind cannot keep a pipe
/// open.
pub fn watched(command: Command) -> Seen {
    let mut output = tempfile::tempfile().unwrap();
    let child = start(command, &output);
    let (code, peak, hangs) = watch(child);
    let mut printed = Vec::new();
    output.rewind().unwrap();
    output.read_to_end(&mut printed).unwrap();
    Seen { code, printed: String::from_utf8_lossy(&printed).into_owned(), peak, hangs }
}

fn start(mut command: Command, output: &File) -> Child {
    let stream = || Stdio::from(output.try_clone().unwrap());
    command.stdin(Stdio::null()).stdout(stream()).stderr(stream()).process_group(0).spawn().unwrap()
}

fn watch(mut child: Child) -> (Option<i32>, u64, bool) {
    let (begun, mut peak, mut hangs) = (Instant::now(), 0, false);
    loop {
        let all = family(child.id());
        peak = all.iter().map(|pid| peak_of(*pid)).fold(peak, u64::max);
        if let Some(status) = child.try_wait().unwrap() {
            return (status.code(), peak, hangs);
        }
        hangs |= begun.elapsed() > HANG;
        if hangs || peak > FAR_TOO_MUCH {
            for pid in all {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process and its descendants, if the system lists them.
pub fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while next < all.len() {
        let of = |tid: &str| std::fs::read_to_string(format!("/proc/{}/task/{tid}/children", all[next]));
        let threads = std::fs::read_dir(format!("/proc/{}/task", all[next])).into_iter().flatten().flatten();
        let children: Vec<u32> = threads
            .filter_map(|thread| of(&thread.file_name().to_string_lossy()).ok())
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        all.extend(children);
        next += 1;
    }
    all
}

/// The peak resident memory of a process, in bytes; 0 if it has ended.
pub fn peak_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}
