//! Errors below the model: a shape or dtype that does not fit, a device that cannot do what is asked.

/// Result of a kernel call.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate; every message names the operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Two shapes that had to agree do not.
    #[error("{op}: {what} has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The operation that was called.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// The shape that it has.
        got: Vec<usize>,
        /// The shape that the other arguments ask for.
        expected: Vec<usize>,
    },
    /// A tensor of a dtype that the operation does not take.
    #[error("{op}: {what} is {got:?}, expected {expected:?}")]
    DType {
        /// The operation that was called.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// The dtype that it has.
        got: crate::DType,
        /// The dtype asked for.
        expected: crate::DType,
    },
    /// A value outside its domain (an index past the end, a window of 0, …).
    #[error("{op}: {message}")]
    Value {
        /// The operation that was called.
        op: &'static str,
        /// What is wrong, with the value.
        message: String,
    },
    /// The instruction set asked for is not there.
    #[error("{0}")]
    Isa(String),
    /// The device asked for is not there.
    #[error("{0}")]
    Device(String),
    /// Memory could not be had.
    #[error("out of memory: {part}: {bytes} bytes could not be had")]
    OutOfMemory {
        /// The part of the run that asked for it.
        part: &'static str,
        /// How much it asked for.
        bytes: usize,
    },
    /// Cores that processes share cannot be had.
    #[error("cores in {path}: {message}")]
    Cores {
        /// Where they are.
        path: std::path::PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A slot of shared memory cannot be made, read or written.
    #[error("weights in {path}: {message}")]
    Slot {
        /// Where it is.
        path: std::path::PathBuf,
        /// What is wrong, and the fix.
        message: String,
    },
    /// A file could not be mapped.
    #[error("cannot map {path}: {source}")]
    Map {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
