//! Errors of kernels: a shape or dtype that does not fit, or a device that cannot do what was requested.

/// Result of a kernel call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate; every message names the operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The shapes of two arguments do not match.
    #[error("{op}: {what} has shape {got:?}, expected {expected:?}")]
    Shape {
        /// Name of the operation that was called.
        op: &'static str,
        /// Name of the argument that does not fit.
        what: &'static str,
        /// The argument's shape.
        got: Vec<usize>,
        /// The shape that the other arguments require.
        expected: Vec<usize>,
    },
    /// An argument has a dtype that the operation does not accept.
    #[error("{op}: {what} is {got:?}, expected {expected:?}")]
    DType {
        /// Name of the operation that was called.
        op: &'static str,
        /// Name of the argument that does not fit.
        what: &'static str,
        /// The argument's dtype.
        got: crate::DType,
        /// The dtype that the operation accepts.
        expected: crate::DType,
    },
    /// An argument's value is out of range (an index past the end, a window of 0, …).
    #[error("{op}: {message}")]
    Value {
        /// Name of the operation that was called.
        op: &'static str,
        /// The reason, with the wrong value.
        message: String,
    },
    /// The machine does not have the requested instruction set.
    #[error("{0}")]
    Isa(String),
    /// The machine does not have the requested device.
    #[error("{0}")]
    Device(String),
    /// An allocation failed.
    #[error("out of memory: {part}: cannot allocate {bytes} bytes")]
    OutOfMemory {
        /// The part of the training run that requested the memory.
        part: &'static str,
        /// Bytes that were requested.
        bytes: usize,
    },
    /// The cores shared between processes could not be opened or reserved ([`crate::cores`]).
    #[error("cores in {path}: {message}")]
    Cores {
        /// The directory of the cores' lock files.
        path: std::path::PathBuf,
        /// The reason.
        message: String,
    },
    /// A slot of shared memory with weights cannot be created, read or written.
    #[error("weights in {path}: {message}")]
    Slot {
        /// Path of the slot.
        path: std::path::PathBuf,
        /// The reason, and what to do about it.
        message: String,
    },
    /// A file could not be mapped into memory.
    #[error("cannot map {path}: {source}")]
    Map {
        /// Path of the file.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}
