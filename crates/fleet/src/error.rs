//! The errors of this crate, outside the state machine.

use std::path::{Path, PathBuf};

/// An I/O error, a refusal of wrong input, or a failure of the run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The attempted operation, as a verb.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file is truncated or has flipped bits.
    #[error("{}: {why}", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// The fault that was detected.
        why: String,
    },
    /// Wrong usage or input (exit code 2), such as a name that another process uses, or values that do not match.
    #[error("{0}")]
    Refused(String),
    /// The run cannot continue.
    #[error("{0}")]
    Failed(String),
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the disk is full or the quota is exceeded.
    pub fn is_disk_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Error::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}

/// Adds the attempted operation and the file to an I/O error.
pub(crate) trait OrIo<T> {
    fn or_io(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T> OrIo<T> for std::io::Result<T> {
    fn or_io(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { doing, path: path.to_owned(), source })
    }
}

/// Adds the attempted operation to the error of a directory that the user chose. Unless the disk is full or broken,
/// the error is a usage error: the user can choose another directory.
pub(crate) trait OrUnusable<T> {
    fn or_unusable(self, doing: &'static str, path: &Path) -> Result<T>;
}

impl<T> OrUnusable<T> for std::io::Result<T> {
    fn or_unusable(self, doing: &'static str, path: &Path) -> Result<T> {
        use std::io::ErrorKind::{
            AlreadyExists, InvalidFilename, InvalidInput, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
        };
        let is_loop = |error: &std::io::Error| error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        let fix = |error: &std::io::Error| match error.kind() {
            PermissionDenied if doing == "protect" => {
                Some("it belongs to another user; learner and workers of a run must run as the same user")
            }
            PermissionDenied => Some("this user may not write there"),
            ReadOnlyFilesystem | NotFound => Some("nothing can be created there"),
            NotADirectory | AlreadyExists => Some("a file with that name exists"),
            InvalidFilename | InvalidInput => Some("this is not a valid directory name"),
            _ if is_loop(error) => Some("its symbolic links form a loop"),
            _ => None,
        };
        self.map_err(|source| match fix(&source) {
            Some(why) => {
                let path = path.display();
                Error::Refused(format!("cannot {doing} {path}: {source}: {why}. Choose another directory for the run"))
            }
            None => Error::Io { doing, path: path.to_owned(), source },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn an_unusable_directory_is_a_usage_error_and_a_broken_disk_is_not() {
        use rustix::io::Errno;
        let of = |errno: Errno, doing: &'static str| {
            let failed: std::io::Result<()> = Err(std::io::Error::from(errno));
            failed.or_unusable(doing, Path::new("a/b")).unwrap_err()
        };
        let rows: [(Errno, &str, &str); 12] = [
            (Errno::ACCESS, "create", "this user may not write there"),
            (Errno::PERM, "create", "this user may not write there"),
            (Errno::PERM, "protect", "belongs to another user"),
            (Errno::ROFS, "create", "nothing can be created there"),
            (Errno::NOENT, "create", "nothing can be created there"),
            (Errno::NOTDIR, "create", "a file with that name exists"),
            (Errno::EXIST, "create", "a file with that name exists"),
            (Errno::NAMETOOLONG, "create", "not a valid directory name"),
            (Errno::INVAL, "create", "not a valid directory name"),
            (Errno::LOOP, "create", "its symbolic links form a loop"),
            (Errno::ACCESS, "protect", "belongs to another user"),
            (Errno::ROFS, "protect", "nothing can be created there"),
        ];
        for (errno, doing, why) in rows {
            let error = of(errno, doing);
            let text = error.to_string();
            assert!(matches!(error, Error::Refused(_)) && text.starts_with(&format!("cannot {doing} a/b: ")), "{text}");
            assert!(text.contains(why) && text.ends_with("Choose another directory for the run"), "{text}");
        }
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::NOMEM, Errno::MFILE, Errno::STALE] {
            assert!(matches!(of(errno, "create"), Error::Io { .. }), "{errno}");
        }
    }

    #[test]
    fn an_error_names_the_file_and_a_full_disk_is_recognized() {
        let error = |kind: ErrorKind| {
            let failed: std::io::Result<()> = Err(kind.into());
            failed.or_io("write", Path::new("a/b")).unwrap_err()
        };
        assert_eq!(error(ErrorKind::NotFound).to_string(), "cannot write a/b: entity not found");
        for (kind, is_full) in
            [(ErrorKind::StorageFull, true), (ErrorKind::QuotaExceeded, true), (ErrorKind::NotFound, false)]
        {
            assert_eq!(error(kind).is_disk_full(), is_full, "{kind}");
        }
        assert!(!Error::Failed("full".to_owned()).is_disk_full());
    }
}
