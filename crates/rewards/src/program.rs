//! A program that this process starts, and that is killed at the latest when this process ends.
//!
//! On Unix the program has its own process group, so that its descendants can be killed too, and so that Ctrl-C in the
//! terminal reaches only this process. If this process is killed, the pipe to a guard shell closes, and the shell kills
//! the program's group. A thread reads the program's standard error and keeps the last lines.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The number of last lines of standard error that are kept. `STDERR_LINE_BYTES` limits the length of each.
const STDERR_LINES: usize = 20;
const STDERR_LINE_BYTES: usize = 1_000;

/// The running programs, for [`end_programs`].
static RUNNING: Mutex<Running> = Mutex::new(Running { ids: Vec::new(), closed: false });

struct Running {
    /// The process ids of the programs. None of these was reaped, so no id can belong to another process group.
    ids: Vec<u32>,
    closed: bool,
}

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Kills every program of this process with its process group, and prevents new programs from starting. Call it before
/// an exit that does not drop the programs.
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

/// Starts a shell that kills the process group `group` when the pipe to the shell closes. The pipe closes at the end of
/// this process, even if it is killed. (A program that does not read its input would not notice that.) Returns `None`
/// without a shell.
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

#[derive(Debug, Default)]
struct Stderr {
    lines: VecDeque<String>,
    ended: bool,
}

/// A running program. Dropping this value kills the program and its process group.
#[derive(Debug)]
pub struct Program {
    child: Child,
    /// The shell that kills the program's group when this process ends.
    guard: Option<Child>,
    stderr: Arc<Mutex<Stderr>>,
    status: Option<ExitStatus>,
}

impl Program {
    /// Starts a program with its arguments; `words` must not be empty. Returns the pipe to its standard input and, if
    /// `answers` is true, the pipe from its standard output, which is discarded otherwise.
    pub fn start(words: &[String], answers: bool) -> std::io::Result<(Program, ChildStdin, Option<ChildStdout>)> {
        let mut command = Command::new(&words[0]);
        let stdout = if answers { Stdio::piped() } else { Stdio::null() };
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = {
            let mut running = running();
            if running.closed {
                return Err(std::io::Error::other("this process is exiting"));
            }
            let child = command.spawn()?;
            running.ids.push(child.id());
            child
        };
        let guard = guard(child.id());
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take());
        let child_stderr = child.stderr.take().expect("piped");
        let stderr = Arc::new(Mutex::new(Stderr::default()));
        let kept = Arc::clone(&stderr);
        std::thread::spawn(move || keep_last_lines(child_stderr, &kept));
        Ok((Program { child, guard, stderr, status: None }, stdin, stdout))
    }

    /// Waits up to `time` for the program to exit, but does not reap it, so that its group can still be killed.
    pub fn exited_within(&mut self, time: Duration) -> bool {
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

    /// Kills the program's process group, and reaps the program. Returns its exit status, if it is known.
    pub fn kill(&mut self) -> Option<ExitStatus> {
        if self.status.is_some() {
            return self.status;
        }
        // The program was not reaped yet, so no other process group can have its PID.
        kill_group(self.child.id());
        let _ = self.child.kill();
        // The guard must end before the PID can be reused by another group.
        if let Some(mut guard) = self.guard.take() {
            let _ = guard.kill().and_then(|()| guard.wait());
        }
        running().ids.retain(|&id| id != self.child.id());
        self.status = self.child.wait().ok();
        self.status
    }

    /// Describes how a program that no longer reads or answers ended, with the last lines of its standard error.
    pub fn epitaph(&mut self) -> String {
        let by_itself = self.exited_within(Duration::from_secs(1));
        let message = match self.kill() {
            Some(status) if by_itself => format!("the program exited ({status})"),
            _ => "the program closed its output".to_owned(),
        };
        self.with_stderr(message)
    }

    /// `message`, followed by the last lines of standard error if there are any.
    pub fn with_stderr(&self, message: String) -> String {
        // The program's last output may still be in the pipe.
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

    fn stderr(&self) -> MutexGuard<'_, Stderr> {
        self.stderr.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Splits a command line at white space outside of quotes ('…' and "…"). `None` if a quote is unclosed. No other
/// character is special.
pub fn split_line(line: &str) -> Option<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    let (mut quote, mut inside) = (None, false);
    for c in line.chars() {
        match quote {
            Some(q) if c == q => quote = None,
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                if !inside {
                    words.push(String::new());
                }
                inside = true;
            }
            None if c.is_whitespace() => inside = false,
            _ => {
                if !inside {
                    words.push(String::new());
                }
                inside = true;
                words.last_mut()?.push(c);
            }
        }
    }
    quote.is_none().then_some(words)
}

/// Joins words into a line that [`split_line`] splits into the same words.
fn line_of(words: &[String]) -> String {
    let needs_quotes = |word: &str| word.is_empty() || word.contains(|c: char| c.is_whitespace() || "'\"".contains(c));
    let quoted = |word: &String| {
        if !needs_quotes(word) {
            return word.clone();
        }
        // Double quotes are enclosed in single quotes, and everything else in double quotes.
        let parts: Vec<String> = word.split('"').map(|part| format!("\"{part}\"")).collect();
        parts.join("'\"'")
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Replaces the paths of a command's program (if it is given by a path) and of its script by the results of `absolute`.
pub(crate) fn absolute_words<E>(words: &mut [String], absolute: impl Fn(&str) -> Result<String, E>) -> Result<(), E> {
    if words[0].contains('/') {
        words[0] = absolute(&words[0])?;
    }
    // The script is the first argument that names a file, as in `python3 -u a.py b.json`. A word without a dot or a
    // slash is not treated as a path.
    for word in words.iter_mut().skip(1).filter(|word| !word.starts_with('-') && word.contains(['.', '/'])) {
        let (path, given) = (absolute(word)?, std::path::Path::new(word));
        // `absolute` may return a file name without a directory.
        if std::path::Path::new(&path).is_file() || given.is_absolute() && given.is_file() {
            *word = path;
            break;
        }
    }
    Ok(())
}

/// Replaces the paths of the program (if it is given by a path) and of the script in a command line by the results of
/// `absolute`. A line without a program is returned unchanged.
pub fn absolute_line<E>(line: &str, absolute: impl Fn(&str) -> Result<String, E>) -> Result<String, E> {
    let Some(mut words) = split_line(line).filter(|words| !words.is_empty()) else { return Ok(line.to_owned()) };
    absolute_words(&mut words, absolute)?;
    Ok(line_of(&words))
}

/// Explains to the user why a program could not be started.
pub fn explain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such program, or its interpreter is missing".to_owned(),
        std::io::ErrorKind::PermissionDenied => {
            "the program is not executable (try chmod +x, or name its interpreter)".to_owned()
        }
        _ => error.to_string(),
    }
}

fn keep_last_lines(stream: impl Read, kept: &Mutex<Stderr>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        // A very long line is split into pieces, to limit the memory.
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
    fn joined_words_are_split_into_the_same_words() {
        for words in [&["a"][..], &["a b", "c"], &["", "x"], &["it's", "a \"b\" c", "\""], &["'\"'", "\t", "é ü"]] {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            assert_eq!(split_line(&line_of(&words)), Some(words.clone()), "{}", line_of(&words));
        }
    }

    #[test]
    fn paths_in_a_command_line_become_absolute() {
        let absolute = |path: &str| Ok::<_, ()>(if path == "./a b" { "/x/a b".to_owned() } else { path.to_owned() });
        assert_eq!(absolute_line("'./a b' -v c.d", absolute), Ok("\"/x/a b\" -v c.d".to_owned()));
        assert_eq!(absolute_line("cat -", absolute), Ok("cat -".to_owned()));
        for unchanged in ["", " ", "a 'b"] {
            assert_eq!(absolute_line(unchanged, |_| Err::<String, _>("asked")), Ok(unchanged.to_owned()));
        }
        assert_eq!(absolute_line("a/b", |_| Err::<String, _>("refused")), Err("refused"));
    }

    #[test]
    fn the_last_twenty_lines_of_standard_error_are_kept() {
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
