//! The directory of a launch, which only its user can access.

use crate::{Error, Result};
use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The longest path of a socket, in bytes: one less than in the smallest address of a system.
const MAX_SOCKET: usize = 103;

/// The directory in which the ranks of one launch meet.
pub(super) struct Place {
    dir: PathBuf,
    user: u32,
}

impl Place {
    /// The place of the launch with this id. All of its processes find the same one.
    pub(super) fn of(id: &str) -> Result<Place> {
        let unknown = |error| Error::Lost(format!("the user of this process cannot be read from /proc: {error}"));
        let user = fs::metadata("/proc/self").map_err(unknown)?.uid();
        let name = format!("lockstep-ranks-{user}-{:016x}", hash(id));
        let place = Place { dir: env::temp_dir().join(&name), user };
        let is_short = place.socket().as_os_str().len() <= MAX_SOCKET;
        Ok(if is_short { place } else { Place { dir: Path::new("/tmp").join(name), user } })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("rank-0")
    }

    /// A file that rank 0 locks.
    pub(super) fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    pub(super) fn create(&self) -> Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::Lost(format!("{} cannot be created: {error}", self.dir.display())))
            }
            _ => self.check().map(drop),
        }
    }

    /// Whether the directory exists. One that other users can change is an error: they could send anything.
    pub(super) fn check(&self) -> Result<bool> {
        let Ok(found) = fs::symlink_metadata(&self.dir) else { return Ok(false) };
        if found.is_dir() && found.uid() == self.user && found.mode() & 0o077 == 0 {
            return Ok(true);
        }
        let dir = self.dir.display();
        Err(Error::Refused(format!(
            "{dir} must be a directory that only its user can access: remove it, or set TMPDIR"
        )))
    }

    pub(super) fn remove(&self) {
        for file in [self.socket(), self.lock()] {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

/// FNV-1a, which is the same in every build, unlike the standard library's hash.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
