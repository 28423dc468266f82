//! How commands print: what comes from elsewhere (a reward's exception, a server's answer, a file's name, what a model
//! says) never reaches a terminal as it is, since it may hold escape sequences ([`telemetry::visible`]). Everything
//! that the program prints by itself goes through here or through a [`telemetry::Console`]; the lints of the crate
//! refuse `println!` and its like.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use telemetry::{visible, visible_json};

/// Text for people, on standard output.
pub(crate) fn text(text: &str) -> io::Result<()> {
    write(&visible(text))
}

/// What other programs read as it is, on standard output; on a terminal, for people.
pub(crate) fn exact(text: &str) -> io::Result<()> {
    write(&shown(text, io::stdout().is_terminal()))
}

/// A line of JSON on standard output.
pub(crate) fn json(value: &impl serde::Serialize) -> io::Result<()> {
    let line = serde_json::to_string(value).map_err(io::Error::from)?;
    write(&(visible_json(&line).into_owned() + "\n"))
}

/// A line on standard error. That nobody reads it is no failure.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", visible(&line.to_string()));
}

fn shown(text: &str, terminal: bool) -> std::borrow::Cow<'_, str> {
    if terminal { visible(text) } else { text.into() }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_read_is_exact_and_a_terminal_is_not_written_to_as_it_is() {
        let text = "a\u{1b}[2Jb\n";
        assert_eq!((&*shown(text, false), &*shown(text, true)), (text, "a\\u{1b}[2Jb\n"));
    }
}
