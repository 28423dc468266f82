//! What can fail outside the state machine.

use std::path::{Path, PathBuf};

/// A failure of files, or a refusal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is torn, or bits of it have changed.
    #[error("{}: {why}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Bad usage or input, exit code 2: somebody else holds the name, or numbers do not fit.
    #[error("{0}")]
    Refused(String),
    /// The run cannot proceed.
    #[error("{0}")]
    Failed(String),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// No room is left on the disk, or the quota is used up.
    pub fn is_disk_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Error::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}

/// Says what was tried on which file.
pub(crate) trait OrIo<T> {
    fn or_io(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T> OrIo<T> for std::io::Result<T> {
    fn or_io(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { doing, path: path.to_owned(), source })
    }
}
