//! Errors of a reward's settings, found before a run starts. What goes wrong while it scores is a [`crate::Problem`].

/// A reward that cannot be built: a bad specification, or a program that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is none of the built-in ones.
    #[error("unknown reward `{name}`{}; known: {known}", did_you_mean(nearest))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The nearest known name, if one is near.
        nearest: Option<String>,
        /// All known names, separated by commas.
        known: String,
    },
    /// An option is missing, misspelt or has a wrong value.
    #[error("reward `{kind}`: {message}")]
    Options {
        /// The kind of reward.
        kind: String,
        /// What is wrong, and what is accepted.
        message: String,
    },
    /// A name that another reward, or the completions table, has.
    #[error("reward_funcs: {0}")]
    Name(String),
    /// The program of a `command` reward is missing, not executable, or did not start.
    #[error("reward `command`: cannot run `{program}`: {message}")]
    Program {
        /// The program as given.
        program: String,
        /// Why.
        message: String,
    },
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

impl Error {
    /// An [`Error::Options`].
    pub(crate) fn options(kind: &str, message: impl Into<String>) -> Self {
        Error::Options { kind: kind.into(), message: message.into() }
    }
}
