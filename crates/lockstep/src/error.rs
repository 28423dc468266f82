//! What is the user's to mend (exit code 2), told apart from what failed on the way (exit code 1).

use std::fmt::Display;

/// The input was wrong: a flag, a key, a file. The message says what, where, and how to mend it.
///
/// It travels inside [`anyhow::Error`]; [`is_bad_input`] finds it there under any context.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

impl BadInput {
    /// An error with this message.
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
    text
}
