//! A child process that reads and writes lines. It never blocks this process and never outlives it. Independent of
//! JSON.
//!
//! Three threads serve its pipes, so that a child that reads or writes nothing can only run into the caller's time
//! limit; the threads end with the pipes. The child leads a process group of its own (Unix), so that everything it
//! started can be killed with it, and so that Ctrl-C at the terminal reaches only this process. If this process is
//! killed, a guard shell that waits for the end of a pipe kills the child's group.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How many of the last lines of standard error are kept; `STDERR_LINE_BYTES` bounds each.
const STDERR_LINES: usize = 20;
const STDERR_LINE_BYTES: usize = 1_000;
/// The longest line that a child may answer with, in bytes.
const MAX_LINE_BYTES: u64 = 256 << 20;
/// How long a child may take to exit by itself once its input is closed.
const GRACE: Duration = Duration::from_secs(1);
/// How long after an answer without a number a second one is waited for, before the next request: a program that
/// answers twice does so at once.
const SETTLED: Duration = Duration::from_millis(3);
/// How often a wait checks whether the caller asked to stop.
const POLL: Duration = Duration::from_millis(50);

/// The running children, for [`end_programs`].
static RUNNING: Mutex<Running> = Mutex::new(Running { ids: Vec::new(), closed: false });

struct Running {
    /// Process ids of the children. None has been reaped, so each id is still that of its process group.
    ids: Vec<u32>,
    closed: bool,
}

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Kills every reward program of this process with its process group, and lets no other start. For a process that is
/// about to exit without dropping its rewards.
pub fn end_programs() {
    let mut running = running();
    running.closed = true;
    running.ids.iter().for_each(|&id| kill_group(id));
}

/// Kills a process group. An error means that the group has no process left.
#[cfg(unix)]
fn kill_group(id: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(id as i32) {
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
}

#[cfg(not(unix))]
fn kill_group(_: u32) {}

/// Starts a shell that kills process group `group` when the pipe to the shell closes, as it does when this process ends
/// for any reason. Without it a child that only computes would not notice. `None` where there is no shell.
#[cfg(unix)]
fn guard(group: u32) -> Option<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "read -r _; kill -KILL \"-$0\"", &group.to_string()]);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut shell, 0);
    shell.spawn().ok()
}

#[cfg(not(unix))]
fn guard(_: u32) -> Option<Child> {
    None
}

/// Why a child sent no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    TimedOut,
    TooLong,
    Stopped,
    Ended,
}

#[derive(Debug, Default)]
struct Stderr {
    lines: VecDeque<String>,
    ended: bool,
}

/// A running child process with its pipes.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// The shell that kills the child's group once this process is gone.
    guard: Option<Child>,
    /// Sends bytes to the thread that writes the child's input; `None` once closed.
    input: Option<Sender<Vec<u8>>>,
    output: Receiver<Result<Vec<u8>, Silence>>,
    /// A line that was received before one was requested.
    unread: Option<Result<Vec<u8>, Silence>>,
    /// When the child started, or sent the last line that was received.
    heard: Instant,
    stderr: Arc<Mutex<Stderr>>,
    status: Option<ExitStatus>,
}

impl Process {
    pub(super) fn start(words: &[String]) -> std::io::Result<Self> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = {
            let mut running = running();
            if running.closed {
                return Err(std::io::Error::other("this process is ending"));
            }
            let child = command.spawn()?;
            running.ids.push(child.id());
            child
        };
        let guard = guard(child.id());
        let (mut stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let child_stderr = child.stderr.take().expect("piped");

        let (input, requests) = channel::<Vec<u8>>();
        std::thread::spawn(move || {
            // A broken pipe shows as the end of the output.
            while let Ok(line) = requests.recv() {
                if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        let (lines, output) = channel();
        std::thread::spawn(move || read_lines(stdout, &lines));
        let stderr = Arc::new(Mutex::new(Stderr::default()));
        let kept = Arc::clone(&stderr);
        std::thread::spawn(move || keep_last_lines(child_stderr, &kept));
        Ok(Process {
            child,
            guard,
            input: Some(input),
            output,
            unread: None,
            heard: Instant::now(),
            stderr,
            status: None,
        })
    }

    /// Queues a line for the child's input.
    pub(super) fn send(&mut self, line: Vec<u8>) {
        if let Some(input) = &self.input {
            // If the writer is gone, so is the child: reading says it.
            let _ = input.send(line);
        }
    }

    /// Whether the child has written a line that was not requested (the end of its output does not count). If its
    /// answers have no numbers, by which such a line could be told later, waits until [`SETTLED`] after the last one.
    pub(super) fn has_unread_line(&mut self, numbered: bool) -> bool {
        if self.unread.is_none() {
            let wait = if numbered { Duration::ZERO } else { SETTLED.saturating_sub(self.heard.elapsed()) };
            self.unread = self.output.recv_timeout(wait).ok();
        }
        matches!(self.unread, Some(Ok(_)))
    }

    /// The next line of the child's output, waited for until `deadline`, or until `stop` is set.
    pub(super) fn line_until(&mut self, deadline: Instant, stop: &AtomicBool) -> Result<Vec<u8>, Silence> {
        if let Some(line) = self.unread.take() {
            return line;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left.min(POLL)) {
                Ok(line) => {
                    self.heard = Instant::now();
                    return line;
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Silence::Ended),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Silence::Stopped),
                Err(RecvTimeoutError::Timeout) if left <= POLL => return Err(Silence::TimedOut),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits up to `time` for the child to exit; does not reap it, so that its group can still be killed.
    pub(super) fn exited_within(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            if self.status.is_some() || self.has_exited() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[cfg(unix)]
    fn has_exited(&mut self) -> bool {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let Some(pid) = Pid::from_raw(self.child.id() as i32) else { return true };
        !matches!(waitid(WaitId::Pid(pid), options), Ok(None) | Err(rustix::io::Errno::INTR))
    }

    #[cfg(not(unix))]
    fn has_exited(&mut self) -> bool {
        self.status = self.child.try_wait().ok().flatten();
        self.status.is_some()
    }

    /// Kills the child and its whole process group, and reaps the child.
    fn kill(&mut self) {
        if self.status.is_some() {
            return;
        }
        // Not reaped yet, so the number is still this group's.
        kill_group(self.child.id());
        let _ = self.child.kill();
        // Before the number can be another group's.
        if let Some(mut guard) = self.guard.take() {
            let _ = guard.kill().and_then(|()| guard.wait());
        }
        running().ids.retain(|&id| id != self.child.id());
        self.status = self.child.wait().ok();
    }

    /// Describes how a child that stopped answering ended, with its last lines of standard error.
    pub(super) fn epitaph(&mut self) -> String {
        let by_itself = self.exited_within(Duration::from_secs(1));
        self.kill();
        let message = match self.status {
            Some(status) if by_itself => format!("it ended ({status})"),
            _ => "it closed its output".to_owned(),
        };
        self.with_stderr(message)
    }

    /// `message`, followed by the last lines of standard error if there are any.
    pub(super) fn with_stderr(&self, message: String) -> String {
        // What it wrote before it failed may still be in the pipe.
        let deadline = Instant::now() + Duration::from_millis(100);
        while !self.stderr().ended && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let stderr = self.stderr();
        if stderr.lines.is_empty() {
            return message;
        }
        let lines = stderr.lines.iter().map(|line| format!("\n  | {line}")).collect::<String>();
        format!("{message}; the last lines of its standard error:{lines}")
    }

    fn stderr(&self) -> std::sync::MutexGuard<'_, Stderr> {
        self.stderr.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Process {
    /// Closes the child's input, gives it [`GRACE`] to exit by itself, and kills what is left of its group.
    fn drop(&mut self) {
        self.input = None;
        if self.unread.is_none() && self.status.is_none() {
            self.exited_within(GRACE);
        }
        self.kill();
    }
}

/// Sends each line of the stream that is not blank; ends with the stream, or after a line that is too long.
fn read_lines(stream: impl Read, lines: &Sender<Result<Vec<u8>, Silence>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let outcome = match stream.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 >= MAX_LINE_BYTES => Err(Silence::TooLong),
            Ok(_) if line.iter().all(u8::is_ascii_whitespace) => continue,
            Ok(_) => Ok(line),
        };
        let stop = outcome.is_err();
        if lines.send(outcome).is_err() || stop {
            return;
        }
    }
}

fn keep_last_lines(stream: impl Read, kept: &Mutex<Stderr>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        // A line without end is cut into pieces: memory stays bounded.
        let end = matches!(stream.by_ref().take(STDERR_LINE_BYTES as u64).read_until(b'\n', &mut line), Ok(0) | Err(_));
        let mut kept = kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if end {
            kept.ended = true;
            return;
        }
        if kept.lines.len() == STDERR_LINES {
            kept.lines.pop_front();
        }
        kept.lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_blank_are_sent_with_their_ends() {
        let (lines, sent) = channel();
        read_lines(&b"a\n\n \t\r\n b\nlast"[..], &lines);
        drop(lines);
        let sent: Vec<Result<Vec<u8>, Silence>> = sent.iter().collect();
        assert_eq!(sent, [Ok(b"a\n".to_vec()), Ok(b" b\n".to_vec()), Ok(b"last".to_vec())]);
        // Nobody listens: it ends.
        let (lines, sent) = channel();
        drop(sent);
        read_lines(std::io::repeat(b'\n').take(10).chain(&b"a\nb\n"[..]), &lines);
    }

    #[test]
    fn the_last_twenty_lines_are_kept_in_pieces_of_a_thousand_bytes() {
        let kept = |text: String| {
            let kept = Mutex::new(Stderr::default());
            keep_last_lines(text.as_bytes(), &kept);
            let Stderr { lines, ended } = kept.into_inner().unwrap();
            assert!(ended);
            Vec::from(lines)
        };
        assert!(kept(String::new()).is_empty());
        assert_eq!(kept("a \n\n b".to_owned()), ["a", "", " b"]);
        let numbered = |lines: std::ops::Range<usize>| lines.map(|i| format!("{i}\n")).collect::<String>();
        let shown = |lines: std::ops::Range<usize>| lines.map(|i| i.to_string()).collect::<Vec<_>>();
        for count in [19, 20, 21, 45] {
            assert_eq!(kept(numbered(0..count)), shown(count.saturating_sub(20)..count));
        }
        let pieces = kept("x".repeat(2500));
        assert_eq!(pieces.iter().map(String::len).collect::<Vec<_>>(), [1000, 1000, 500]);
    }
}
