//! Errors of loading, using and saving models. Every message names the file or the field.

use std::path::{Path, PathBuf};

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the `model` crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The content of a file is wrong.
    #[error("{path}: {message}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Describes the fault.
        message: String,
    },
    /// The text of a `config.json` is not a JSON object.
    #[error("config.json: {0}")]
    NotJson(String),
    /// A field of `config.json` is missing or malformed, or asks for something that is not supported.
    #[error("config.json: `{field}`{}: {message}", value.as_ref().map(|v| format!(" = {v}")).unwrap_or_default())]
    Config {
        /// Name of the field, with dots for nested objects.
        field: String,
        /// The field's value as JSON; none if it is absent.
        value: Option<String>,
        /// Describes the fault.
        message: String,
    },
    /// A tensor of a weight file is missing, unexpected or unreadable, or has the wrong shape.
    #[error("{path}: tensor `{tensor}`: {message}")]
    Tensor {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor in the file.
        tensor: String,
        /// Describes the fault.
        message: String,
    },
    /// An error of the tokenizer.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The chat template could not be read or rendered.
    #[error("chat template: {0}")]
    Chat(String),
    /// A sequence does not fit the model.
    #[error("sequence {index}: {message}")]
    Sequence {
        /// Index of the sequence, counted over all groups.
        index: usize,
        /// The reason why the sequence does not fit the model.
        message: String,
    },
    /// Invalid arguments.
    #[error("{0}")]
    Value(String),
    /// A [`StopCheck`](crate::StopCheck) stopped the pass.
    #[error("stopped as asked")]
    Stopped,
    /// An error of the `kernels` crate.
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
