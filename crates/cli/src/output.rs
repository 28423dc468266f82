//! How commands print. Untrusted text (an exception of a reward, a server's response, a file name, a completion) may
//! contain escape sequences, which are made visible before a terminal shows them ([`telemetry::visible`]). All output
//! goes through this module or through a [`telemetry::Console`]; the crate's lints deny `println!` and similar macros.
//!
//! A command fails if it cannot write its result to standard output (for example because the disk is full). Failures of
//! other output do not change the exit code: lines on standard error ([`note`]), tables of a training run (a console),
//! names of written files ([`mention`]). If the reader has closed the pipe, the command still exits with the exit code
//! of its result.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use telemetry::{Console, ConsoleSink, Sinks, visible, visible_json};

/// Prints text for people on standard output.
pub(crate) fn text(text: &str) -> Result<(), NotPrinted> {
    write(&visible(text))
}

/// Prints text for people that replaces the previous text on a terminal. If the output is not a terminal, a blank line
/// separates the two.
pub(crate) fn frame(text: &str) -> Result<(), NotPrinted> {
    let text = visible(text);
    write(&if io::stdout().is_terminal() { format!("\u{1b}[H\u{1b}[2J{text}") } else { format!("{text}\n") })
}

/// Formats rows as aligned columns, with two spaces between them.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or_default());
    let mut text = String::new();
    for row in rows {
        // A column without text in any row has no width.
        let cells = row.iter().zip(widths).filter(|(_, width)| *width > 0);
        // `{cell:width$}` panics beyond 65535 characters, and a cell may hold a string from an untrusted run.
        let line: Vec<_> =
            cells.map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count()))).collect();
        text += line.join("  ").trim_end();
        text += "\n";
    }
    text
}

/// Prints text for other programs on standard output, unchanged; on a terminal, escape sequences are made visible.
pub(crate) fn exact(text: &str) -> Result<(), NotPrinted> {
    write(&shown(text, io::stdout().is_terminal()))
}

/// Prints a line of JSON on standard output.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), NotPrinted> {
    let line = serde_json::to_string(value).map_err(|e| NotPrinted(e.into()))?;
    write(&(visible_json(&line).into_owned() + "\n"))
}

/// Prints a line about a result that was written elsewhere. Write errors are ignored.
pub(crate) fn mention(line: impl Display) {
    let _ = write(&visible(&format!("{line}\n")));
}

/// Prints a line on standard error. Write errors are ignored.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", visible(&line.to_string()));
}

/// Sinks that print library messages on the console.
pub(crate) fn sinks(console: &Console) -> Sinks {
    let sinks = Sinks::new();
    sinks.add(ConsoleSink::new(console.clone()));
    sinks
}

/// Prints a warning on standard error.
pub(crate) fn warn(what: &str) {
    note(format_args!("warning: {what}"));
}

fn shown(text: &str, terminal: bool) -> std::borrow::Cow<'_, str> {
    if terminal { visible(text) } else { text.into() }
}

fn write(text: &str) -> Result<(), NotPrinted> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(NotPrinted)
}

/// The error for a failed write to standard output.
#[derive(Debug)]
pub(crate) struct NotPrinted(io::Error);

impl Display for NotPrinted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for NotPrinted {}

impl NotPrinted {
    /// Whether the reader of standard output has closed the pipe (`lockstep … | head`). That is not a failure.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Whether a command ended because the reader of standard output closed the pipe.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error.chain().any(|e| e.downcast_ref().is_some_and(NotPrinted::is_closed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "", "long"], ["é", "", ""], ["abc", "", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(columns(&rows), "a    long\né\nabc  x\n");
        assert_eq!(columns::<2>(&[]), "");
        // Wider than `format!` supports.
        for wide in [65_535, 65_536, 70_000, 1 << 20] {
            let rows = [["x".repeat(wide), "a".to_owned()], ["é".to_owned(), "b".to_owned()]];
            let expected = format!("{}  a\né{}  b\n", "x".repeat(wide), " ".repeat(wide - 1));
            assert!(columns(&rows) == expected, "{wide}");
        }
    }

    #[test]
    fn text_for_programs_is_exact_and_text_for_a_terminal_is_escaped() {
        let text = "a\u{1b}[2Jb\n";
        assert_eq!((&*shown(text, false), &*shown(text, true)), (text, "a\\u{1b}[2Jb\n"));
    }

    #[test]
    fn a_reader_that_closes_the_pipe_is_not_an_error() {
        let error = |kind: io::ErrorKind| anyhow::Error::from(NotPrinted(kind.into())).context("while printing");
        assert!(is_closed(&error(io::ErrorKind::BrokenPipe)) && !is_closed(&error(io::ErrorKind::StorageFull)));
        assert!(!is_closed(&anyhow::anyhow!("broken pipe")));
        let text = NotPrinted(io::ErrorKind::StorageFull.into()).to_string();
        assert_eq!(text, "cannot write to standard output: no storage space");
    }
}
