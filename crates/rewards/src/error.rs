//! Errors in a reward's configuration, which are reported before a training run starts. A failure while scoring is a
//! [`crate::Problem`].

/// The reason why a reward cannot be built: its specification is invalid, or its program cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No built-in reward has this name.
    #[error("unknown reward `{name}`{}; known: {known}", did_you_mean(nearest))]
    Unknown {
        /// The unknown name.
        name: String,
        /// The most similar known name, if one is similar enough.
        nearest: Option<String>,
        /// All known names, separated by commas.
        known: String,
    },
    /// An option is missing, misspelt, or has an invalid value.
    #[error("reward `{kind}`: {message}")]
    Options {
        /// The kind of reward.
        kind: String,
        /// The error and the accepted values.
        message: String,
    },
    /// The name is already used by another reward or by a column of the completions table.
    #[error("reward_funcs: {0}")]
    Name(String),
    /// The program of a `command` reward is missing, not executable, or did not start.
    #[error("reward `command`: cannot run `{program}`: {message}")]
    Program {
        /// The program as written in the configuration.
        program: String,
        /// The reason why the program cannot be started.
        message: String,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

impl Error {
    /// Builds an [`Error::Options`].
    pub(crate) fn options(kind: &str, message: impl Into<String>) -> Self {
        Error::Options { kind: kind.into(), message: message.into() }
    }
}
