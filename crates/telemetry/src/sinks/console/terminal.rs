//! The terminal on which progress bars are drawn. It ignores write errors: indicatif panics if drawing fails, but a
//! closed terminal (a lost connection) must not end the run.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressDrawTarget, TermLike};

/// The maximum number of draws per second.
const RATE: u8 = 10;

/// A terminal that buffers each draw, and writes it with a single call at its end.
#[derive(Debug, Default)]
pub(super) struct Terminal<W> {
    out: W,
    drawn: Mutex<String>,
}

/// The draw target for the bars of a console on standard error.
pub(super) fn target() -> ProgressDrawTarget {
    let is_dumb = std::env::var_os("TERM").is_none_or(|name| name == "dumb");
    if is_dumb { ProgressDrawTarget::hidden() } else { of(io::stderr()) }
}

fn of<W: std::fmt::Debug + Send + Sync + 'static>(out: W) -> ProgressDrawTarget
where
    for<'a> &'a W: Write,
{
    let terminal = Terminal { out, drawn: Mutex::default() };
    ProgressDrawTarget::term_like_with_hz(Box::new(terminal), RATE)
}

impl<W> Terminal<W> {
    fn drawn(&self) -> MutexGuard<'_, String> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, text: &str) -> io::Result<()> {
        self.drawn().push_str(text);
        Ok(())
    }

    /// The escape sequence that moves the cursor by `n` places.
    fn go(&self, n: usize, direction: char) -> io::Result<()> {
        if n > 0 { self.add(&format!("\u{1b}[{n}{direction}")) } else { Ok(()) }
    }
}

impl<W: std::fmt::Debug + Send + Sync> TermLike for Terminal<W>
where
    for<'a> &'a W: Write,
{
    fn width(&self) -> u16 {
        console::Term::stderr().size().1
    }

    fn height(&self) -> u16 {
        console::Term::stderr().size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.go(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.go(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.go(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.go(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(text)?;
        self.add("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add("\r\u{1b}[2K")
    }

    fn flush(&self) -> io::Result<()> {
        // The buffer is cleared even if writing fails; otherwise it would grow forever on a closed terminal.
        let drawn = std::mem::take(&mut *self.drawn());
        let _ = (&self.out).write_all(drawn.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Console, ConsoleOptions};
    use super::*;
    use std::io::ErrorKind;
    use std::sync::Arc;

    /// A terminal on which every write after the first `good` ones fails.
    #[derive(Clone, Debug)]
    struct Closing {
        good: usize,
        kind: ErrorKind,
        shown: Arc<Mutex<Vec<String>>>,
    }

    impl Write for &Closing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut shown = self.shown.lock().unwrap();
            if shown.len() >= self.good {
                return Err(self.kind.into());
            }
            shown.push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_run_continues_after_its_terminal_fails_at_any_write() {
        // EIO does not map to an `ErrorKind`, so `Other` represents it.
        let kinds = [ErrorKind::Other, ErrorKind::BrokenPipe, ErrorKind::StorageFull, ErrorKind::WouldBlock];
        let mut seen = Vec::new();
        for kind in kinds {
            for good in [0, 1, 2, 3, 5, 8, 1000] {
                let shown = Arc::default();
                let out = Closing { good, kind, shown: Arc::clone(&shown) };
                let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
                let console = Console::with(ConsoleOptions::default(), true, false, Some(Arc::clone(&lines))).unwrap();
                console.inner.bars.set_draw_target(of(out));
                let mut bar = console.progress("grpo", 9, 0);
                for done in 1..9 {
                    bar.set(done, "reward 0.5");
                    console.info("a step");
                }
                drop(bar);
                console.info("the end");
                assert_eq!(lines.lock().unwrap().split(|&byte| byte == b'\n').count(), 10, "eight steps and the end");
                seen.push(shown.lock().unwrap().len());
            }
        }
        let least = [0, 1, 2, 3, 5, 8];
        for lengths in seen.chunks(7) {
            assert_eq!(lengths[..6], least, "every write that succeeds must be shown");
            assert!(lengths[6] > 8, "{lengths:?}");
        }
    }

    #[test]
    fn a_draw_is_a_single_write_with_escape_sequences() {
        let shown: Arc<Mutex<Vec<String>>> = Arc::default();
        let out = Closing { good: 9, kind: ErrorKind::Other, shown: Arc::clone(&shown) };
        let terminal = Terminal { out, drawn: Mutex::default() };
        terminal.write_line("a").unwrap();
        terminal.move_cursor_up(2).unwrap();
        terminal.move_cursor_down(1).unwrap();
        terminal.move_cursor_left(0).unwrap();
        terminal.move_cursor_right(3).unwrap();
        terminal.move_cursor_left(4).unwrap();
        terminal.clear_line().unwrap();
        terminal.write_str("b").unwrap();
        assert!(shown.lock().unwrap().is_empty());
        terminal.flush().unwrap();
        assert_eq!(*shown.lock().unwrap(), ["a\n\u{1b}[2A\u{1b}[1B\u{1b}[3C\u{1b}[4D\r\u{1b}[2Kb"]);
        let (width, height) = (terminal.width(), terminal.height());
        assert!(width > 0 && height > 0, "{width} {height}");
    }
}
