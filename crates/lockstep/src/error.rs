//! What is the user's to mend (exit code 2), told apart from what failed on the way (exit code 1).

use std::fmt::Display;

/// The input was wrong: a flag, a key, a file. The message says what, where, and how to mend it.
///
/// It travels inside [`anyhow::Error`]; [`is_bad_input`] finds it there under any context.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

impl BadInput {
    /// An error with this message, ready to be returned.
    #[expect(clippy::new_ret_no_self, reason = "it only ever travels inside anyhow's error")]
    pub fn new(message: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(BadInput(message.into()))
    }
}

/// Returns early with a [`BadInput`] formatted as by `format!`.
#[macro_export]
macro_rules! bad_input {
    ($($format:tt)*) => {
        return Err($crate::error::BadInput::new(format!($($format)*)))
    };
}

/// Marks any error as the user's to mend.
pub trait OrBadInput<T> {
    /// The value, or the error with its causes as a [`BadInput`].
    fn or_bad_input(self) -> anyhow::Result<T>;
    /// The same, the message preceded by `what` and a colon.
    fn or_bad_input_in(self, what: impl Display) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrBadInput<T> for Result<T, E> {
    fn or_bad_input(self) -> anyhow::Result<T> {
        self.map_err(|e| BadInput::new(paragraph(&e.into())))
    }
    fn or_bad_input_in(self, what: impl Display) -> anyhow::Result<T> {
        self.map_err(|e| BadInput::new(format!("{what}: {}", paragraph(&e.into()))))
    }
}

/// Whether the user can mend it.
pub fn is_bad_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<BadInput>())
}

/// The error and its causes as one paragraph; a cause that an outer message already quotes is not said twice.
pub fn paragraph(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    one_line(&text)
}

/// Lines joined; those that only point at a place of the line above are left out.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.chars().all(|c| c == '^'));
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn one_paragraph_says_each_cause_once() {
        let error = BadInput::new("regex parse error:\n    (\n    ^\nerror: unclosed group");
        let error = Err::<(), _>(error).context("reward `format`").unwrap_err();
        assert_eq!(paragraph(&error), "reward `format`: regex parse error: ( error: unclosed group");
        assert!(is_bad_input(&error));
        let quoted = Err::<(), _>(anyhow::anyhow!("no such file")).context("a.toml: no such file").unwrap_err();
        assert_eq!(paragraph(&quoted), "a.toml: no such file");
        assert!(!is_bad_input(&quoted) && is_bad_input(&Err::<(), _>(quoted).or_bad_input().unwrap_err()));
    }
}
