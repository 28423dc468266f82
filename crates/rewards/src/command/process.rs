//! A [`Program`] that reads and writes lines of any format. Reading and writing never block the caller beyond its time
//! limit.
//!
//! Threads read and write the program's pipes, so a program that stops reading or writing only causes a timeout. The
//! threads end when the pipes are closed.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::program::Program;

/// The longest line that a child may send, in bytes.
const MAX_LINE_BYTES: u64 = 256 << 20;
/// The time that a child has to exit after its input is closed.
const GRACE: Duration = Duration::from_secs(1);
/// The wait for a second answer before the next request, if the first answer had no request number. A program that
/// answers twice usually sends both lines at once.
const SETTLED: Duration = Duration::from_millis(3);
/// The interval at which a wait checks whether the caller asked to stop.
const POLL: Duration = Duration::from_millis(50);

/// The reason why a child did not send a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    TimedOut,
    TooLong,
    Stopped,
    Ended,
}

/// A running program with its pipes.
#[derive(Debug)]
pub(super) struct Process {
    program: Program,
    /// Sends bytes to the thread that writes the child's input; `None` once closed.
    input: Option<Sender<Vec<u8>>>,
    output: Receiver<Result<Vec<u8>, Silence>>,
    /// A line that arrived before the next request was sent.
    unread: Option<Result<Vec<u8>, Silence>>,
    /// The time at which the child started or sent its last line.
    heard: Instant,
}

impl Process {
    pub(super) fn start(words: &[String]) -> std::io::Result<Self> {
        let (program, mut stdin, stdout) = Program::start(words, true)?;
        let (input, requests) = channel::<Vec<u8>>();
        std::thread::spawn(move || {
            // A broken pipe is not handled here: the end of the output reports it.
            while let Ok(line) = requests.recv() {
                if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        let (lines, output) = channel();
        std::thread::spawn(move || read_lines(stdout.expect("it answers"), &lines));
        Ok(Process { program, input: Some(input), output, unread: None, heard: Instant::now() })
    }

    /// Queues a line for the child's input.
    pub(super) fn send(&mut self, line: Vec<u8>) {
        if let Some(input) = &self.input {
            // If the writer thread has ended, the child has ended, too. The next read reports that.
            let _ = input.send(line);
        }
    }

    /// Whether the child has written a line without a request; the end of the output is ignored. If its answers are not
    /// `numbered`, such a line could not be recognised later, so this function waits until [`SETTLED`] after the last
    /// line.
    pub(super) fn has_unread_line(&mut self, numbered: bool) -> bool {
        if self.unread.is_none() {
            let wait = if numbered { Duration::ZERO } else { SETTLED.saturating_sub(self.heard.elapsed()) };
            self.unread = self.output.recv_timeout(wait).ok();
        }
        matches!(self.unread, Some(Ok(_)))
    }

    /// Waits for the next line of the child's output, until `deadline` or until `stop` is set.
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

    /// Waits up to `time` for the child to exit.
    pub(super) fn exited_within(&mut self, time: Duration) -> bool {
        self.program.exited_within(time)
    }

    /// Describes how a child that no longer answers ended, with the last lines of its standard error.
    pub(super) fn epitaph(&mut self) -> String {
        self.program.epitaph()
    }

    /// `message`, followed by the last lines of standard error if there are any.
    pub(super) fn with_stderr(&self, message: String) -> String {
        self.program.with_stderr(message)
    }
}

impl Drop for Process {
    /// Closes the child's input, gives the child [`GRACE`] to exit, and then kills the rest of its group.
    fn drop(&mut self) {
        self.input = None;
        if self.unread.is_none() {
            self.program.exited_within(GRACE);
        }
    }
}

/// Sends each nonblank line of the stream. Ends with the stream, or after a line that is too long.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonblank_lines_are_sent_with_their_line_ends() {
        let (lines, sent) = channel();
        read_lines(&b"a\n\n \t\r\n b\nlast"[..], &lines);
        drop(lines);
        let sent: Vec<Result<Vec<u8>, Silence>> = sent.iter().collect();
        assert_eq!(sent, [Ok(b"a\n".to_vec()), Ok(b" b\n".to_vec()), Ok(b"last".to_vec())]);
        // Reading ends, since the receiver was dropped.
        let (lines, sent) = channel();
        drop(sent);
        read_lines(std::io::repeat(b'\n').take(10).chain(&b"a\nb\n"[..]), &lines);
    }
}
