//! Errors while reading and writing the files of a training run.

use std::path::{Path, PathBuf};

/// An error that occurs while a file of a training run is read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system reported an error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted operation ("write", "open", …).
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The contents of the file are invalid.
    #[error("{}: {message}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// The error in the contents.
        message: String,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A closure that adds the attempted operation and the path to an I/O error.
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }

    /// An [`Error::Format`] for the file `path`.
    pub(crate) fn format(path: &Path, message: impl Into<String>) -> Self {
        Error::Format { path: path.to_owned(), message: message.into() }
    }
}
