//! The location of a file: an open directory and an entry name in it.
//!
//! Below a directory that was passed to [`no_links_below`], each path component is opened relative to its parent with
//! `O_NOFOLLOW`. Elsewhere the kernel resolves the complete path, and follows links.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf, absolute};
use std::sync::RwLock;

/// The directories below which links are not followed.
static ROOTS: RwLock<BTreeSet<PathBuf>> = RwLock::new(BTreeSet::new());

/// Makes this process refuse symbolic links below `root` from now on. The path of `root` itself may contain links; the
/// resolved path is protected too.
pub fn no_links_below(root: &Path) {
    let Ok(whole) = absolute(root) else { return };
    if ROOTS.read().is_ok_and(|roots| roots.contains(&whole)) {
        return;
    }
    let resolved = whole.canonicalize();
    if let Ok(mut roots) = ROOTS.write() {
        roots.extend([whole].into_iter().chain(resolved));
    }
}

/// An open directory and the name of an entry in it.
pub(crate) struct Place {
    /// `None` if the kernel resolves the whole path.
    directory: Option<OwnedFd>,
    name: OsString,
    path: PathBuf,
}

impl Place {
    /// Splits `path` into its parent directory and its last name. If `path` is below a protected directory, the parent
    /// is opened and must exist.
    pub(crate) fn of(path: &Path) -> Result<Place> {
        let Some((root, below)) = protected(path) else {
            return Ok(Place { directory: None, name: path.as_os_str().to_owned(), path: path.to_owned() });
        };
        let Some((name, parents)) = below.split_last() else {
            return Ok(Place { directory: None, name: root.clone().into_os_string(), path: root });
        };
        let mut directory = openat(CWD, &root, DIRECTORY, Mode::empty())?;
        let mut at = root;
        for parent in parents {
            at.push(parent);
            directory = openat(&directory, parent, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
                .map_err(|error| refusal(&directory, parent, &at, error))?;
        }
        Ok(Place { directory: Some(directory), name: name.clone(), path: path.to_owned() })
    }

    /// The open directory, for system calls that take a path relative to a directory.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, AsFd::as_fd)
    }

    pub(crate) fn name(&self) -> &Path {
        Path::new(&self.name)
    }

    /// Opens the entry. Below a protected directory it must not be a link.
    pub(crate) fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let no_follow = if self.directory.is_some() { OFlags::NOFOLLOW } else { OFlags::empty() };
        openat(self.directory(), self.name(), flags | no_follow | OFlags::CLOEXEC, mode)
            .map_err(|error| refusal(&self.directory(), self.name(), &self.path, error))
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// The error for an entry that could not be opened. If the entry is a link, the error message states that.
fn refusal(directory: &impl AsFd, name: impl AsRef<Path>, shown: &Path, error: Errno) -> Error {
    let is_link = matches!(error, Errno::LOOP | Errno::NOTDIR | Errno::MLINK)
        && statat(directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink);
    if is_link {
        Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{} is a symbolic link. Links inside a run directory are not followed, since they may point outside: \
                 replace the link with the file or directory itself",
                shown.display()
            ),
        )
    } else {
        error.into()
    }
}

/// The protected directory above `path`, and the names from there to it. `None` if no directory above it is protected.
fn protected(path: &Path) -> Option<(PathBuf, Vec<OsString>)> {
    let whole = absolute(path).ok()?;
    // If roots are nested, the outer one is used.
    let root = ROOTS.read().ok()?.iter().find(|root| whole.starts_with(root))?.clone();
    let mut below = Vec::new();
    for component in whole.strip_prefix(&root).ok()?.components() {
        match component {
            Component::Normal(name) => below.push(name.to_owned()),
            // Links below the root are not followed, so `..` can be resolved in the path itself.
            Component::ParentDir => drop(below.pop()?),
            _ => {}
        }
    }
    Some((root, below))
}
