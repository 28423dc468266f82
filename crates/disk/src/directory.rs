//! Lists directories, and creates, renames, copies and deletes their entries.

use crate::file::{create, data, open};
use crate::place::Place;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, openat, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Directories nested deeper than this are not deleted. Lockstep itself never nests directories this deep.
const DEEPEST: usize = 64;

const LISTED: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    directory: PathBuf,
    name: OsString,
    is_dir: bool,
    is_file: bool,
}

impl Entry {
    /// The name of the entry.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The path of the directory, joined with the name of the entry.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Whether the entry is a directory. False for a link to a directory.
    pub fn is_dir(&self) -> bool {
        self.is_dir
    }

    /// Whether the entry is a regular file. False for a link to a file.
    pub fn is_file(&self) -> bool {
        self.is_file
    }
}

/// The entries of a directory, sorted by name.
pub fn read_dir(path: impl AsRef<Path>) -> Result<Vec<Entry>> {
    let path = path.as_ref();
    let directory = Place::of(path)?.open(LISTED, Mode::empty())?;
    let mut entries = Vec::new();
    for (name, kind) in entries_of(&directory)? {
        let (is_dir, is_file) = (kind == FileType::Directory, kind == FileType::RegularFile);
        entries.push(Entry { directory: path.to_owned(), name, is_dir, is_file });
    }
    entries.sort();
    Ok(entries)
}

/// The names in an open directory, each with the type of its file.
fn entries_of(directory: &OwnedFd) -> Result<Vec<(OsString, FileType)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                found => FileType::from_raw_mode(found?.st_mode),
            },
            kind => kind,
        };
        entries.push((name.to_owned(), kind));
    }
    Ok(entries)
}

/// Creates a directory and its missing parents.
pub fn create_dir_all(path: impl AsRef<Path>) -> Result<()> {
    make(path.as_ref(), 0o777)
}

/// Creates a directory and its missing parents, accessible only to this user.
pub fn create_private_dir_all(path: impl AsRef<Path>) -> Result<()> {
    make(path.as_ref(), 0o700)?;
    let directory = Place::of(path.as_ref())?.open(LISTED, Mode::empty())?;
    Ok(rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o700))?)
}

fn make(path: &Path, mode: u32) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let make = || {
        let place = Place::of(path)?;
        match mkdirat(place.directory(), place.name(), Mode::from_raw_mode(mode as _)) {
            // The existing entry must be a directory, not a link.
            Err(Errno::EXIST) => place.open(LISTED, Mode::empty()).map(drop),
            made => Ok(made?),
        }
    };
    match make() {
        Err(error) if error.kind() == ErrorKind::NotFound && path.parent().is_some() => {
            make_parent(path, mode)?;
            make()
        }
        made => made,
    }
}

fn make_parent(path: &Path, mode: u32) -> Result<()> {
    path.parent().map_or(Ok(()), |parent| make(parent, mode))
}

/// Deletes an entry that is not a directory. If the entry is a link, its target stays.
pub fn remove_file(path: impl AsRef<Path>) -> Result<()> {
    let place = Place::of(path.as_ref())?;
    Ok(unlinkat(place.directory(), place.name(), AtFlags::empty())?)
}

/// Deletes a directory with everything in it. The targets of links stay, even if `path` itself is a link.
pub fn remove_dir_all(path: impl AsRef<Path>) -> Result<()> {
    let place = Place::of(path.as_ref())?;
    remove(&place.directory(), place.name(), 0)
}

fn remove(directory: &impl AsFd, name: &Path, depth: usize) -> Result<()> {
    if depth > DEEPEST {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("directories must not be nested deeper than {DEEPEST} levels"),
        ));
    }
    let opened = match openat(directory, name, LISTED | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP | Errno::MLINK) => return gone(unlinkat(directory, name, AtFlags::empty())),
        opened => opened?,
    };
    for (name, kind) in entries_of(&opened)? {
        match kind {
            FileType::Directory => remove(&opened, Path::new(&name), depth + 1)?,
            _ => gone(unlinkat(&opened, &name, AtFlags::empty()))?,
        }
    }
    gone(unlinkat(directory, name, AtFlags::REMOVEDIR))
}

/// Treats a missing entry as deleted: another process may have deleted the entry in the meantime.
fn gone(deleted: rustix::io::Result<()>) -> Result<()> {
    match deleted {
        Err(Errno::NOENT) => Ok(()),
        deleted => Ok(deleted?),
    }
}

/// Renames a file or directory. An existing file or link with the new name is replaced.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to) = (Place::of(from.as_ref())?, Place::of(to.as_ref())?);
    Ok(renameat(from.directory(), from.name(), to.directory(), to.name())?)
}

/// Exchanges the names of two files or directories in one step. Not every file system supports this.
pub fn exchange(one: impl AsRef<Path>, other: impl AsRef<Path>) -> Result<()> {
    let (one, other) = (Place::of(one.as_ref())?, Place::of(other.as_ref())?);
    Ok(renameat_with(one.directory(), one.name(), other.directory(), other.name(), RenameFlags::EXCHANGE)?)
}

/// Creates a hard link to a regular file.
pub fn hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    drop(open(&from)?);
    let (from, to) = (Place::of(from.as_ref())?, Place::of(to.as_ref())?);
    Ok(linkat(from.directory(), from.name(), to.directory(), to.name(), AtFlags::empty())?)
}

/// Copies a regular file with its permissions. Holes are preserved.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let mut source = open(from)?;
    let found = source.metadata()?;
    let mut target = create(to)?;
    for part in data(&source, 0..found.len())? {
        source.seek(SeekFrom::Start(part.start))?;
        target.seek(SeekFrom::Start(part.start))?;
        std::io::copy(&mut (&source).take(part.end - part.start), &mut target)?;
    }
    target.set_len(found.len())?;
    target.set_permissions(found.permissions())
}

/// Opens a directory.
pub fn open_dir(path: impl AsRef<Path>) -> Result<File> {
    Ok(Place::of(path.as_ref())?.open(LISTED, Mode::empty())?.into())
}

/// Syncs the entries of a directory to disk.
pub fn sync_dir(path: impl AsRef<Path>) -> Result<()> {
    open_dir(path)?.sync_all()
}
