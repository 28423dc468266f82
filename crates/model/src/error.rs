//! Errors between a model directory and a model in memory. Every message names the file or the field.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is there, but it is not what it should be.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A `config.json` that cannot be read at all.
    #[error("config.json: {0}")]
    NotJson(String),
    /// A field of `config.json` that is missing, malformed, or asks for something that is not supported.
    #[error("config.json: `{field}`{}: {message}", value.as_ref().map(|v| format!(" = {v}")).unwrap_or_default())]
    Config {
        /// The field, with dots for nesting.
        field: String,
        /// The field's value as JSON; none if it is absent.
        value: Option<String>,
        /// What is wrong with it.
        message: String,
    },
    /// A tensor of a weight file that is missing, unexpected, misshapen or unreadable.
    #[error("{path}: tensor `{tensor}`: {message}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name in it.
        tensor: String,
        /// What is wrong with it.
        message: String,
    },
    /// The tokenizer cannot do it.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template could not be read or rendered.
    #[error("chat template: {0}")]
    Chat(String),
    /// A sequence that the model has no place for.
    #[error("sequence {index}: {message}")]
    Sequence {
        /// The sequence's number, counted over all groups.
        index: usize,
        /// What does not fit.
        message: String,
    },
    /// Arguments that do not fit each other.
    #[error("{0}")]
    Value(String),
    /// A [`StopCheck`](crate::StopCheck) said so.
    #[error("stopped as asked")]
    Stopped,
    /// An error of an operation.
    #[error(transparent)]
    Kernel(#[from] kernels::Error),
}

impl Error {
    /// An [`Error::Io`] about `path`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Error {
        Error::Io { path: path.as_ref().to_owned(), source }
    }
    /// An [`Error::File`] about `path`.
    pub fn file(path: impl AsRef<Path>, message: impl Into<String>) -> Error {
        Error::File { path: path.as_ref().to_owned(), message: message.into() }
    }
    /// An [`Error::Tensor`] about `tensor` of `path`.
    pub fn tensor(path: impl AsRef<Path>, tensor: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Tensor { path: path.as_ref().to_owned(), tensor: tensor.into(), message: message.into() }
    }
}
