//! What can go wrong while writing a run's files.

use std::path::{Path, PathBuf};

/// A file of the run could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted ("write", "open", …).
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: {message}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A closure that wraps an I/O error with what was done to which file.
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }

    /// An [`Error::Format`].
    pub(crate) fn format(path: &Path, message: impl Into<String>) -> Self {
        Error::Format { path: path.to_owned(), message: message.into() }
    }
}
