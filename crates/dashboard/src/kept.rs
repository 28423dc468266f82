//! Files that change rarely: they are read and parsed again only after a change. The content is not interpreted here.

use std::cell::RefCell;
use std::fs::Metadata;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// A file whose last change is at least this old has a new time after its next change, whatever the resolution of the
/// file system's clock.
const SETTLED: Duration = Duration::from_secs(2);

/// The identity of a file, and the time of its last change. While they stay the same, so does the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    length: u64,
    /// Seconds and nanoseconds since 1970. A new owner and new permissions are changes, too.
    changed: (i64, i64),
    identity: Identity,
}

/// The properties of a file that determine whether it can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    mode: u32,
    owner: (u32, u32),
}

impl Identity {
    /// The identity of the entry at this path, which may be a link.
    pub fn of(path: &Path) -> Result<Identity> {
        path.symlink_metadata().map(|found| Identity::new(&found))
    }

    fn new(found: &Metadata) -> Identity {
        let owner = (found.uid(), found.gid());
        Identity { device: found.dev(), inode: found.ino(), mode: found.mode(), owner }
    }
}

impl Stamp {
    /// The stamp of the entry at this path, which may be a link.
    pub fn of(path: &Path) -> Result<Stamp> {
        let found = path.symlink_metadata()?;
        let changed = (found.ctime(), found.ctime_nsec());
        Ok(Stamp { length: found.len(), changed, identity: Identity::new(&found) })
    }

    fn is_settled(&self) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let since_1970 =
            Duration::from_secs(seconds.try_into().unwrap_or(0)) + Duration::from_nanos(nanoseconds as u64);
        UNIX_EPOCH.checked_add(since_1970).is_some_and(|time| time.elapsed().is_ok_and(|age| age >= SETTLED))
    }
}

/// A file of settings or state, and the value made from its content.
pub(crate) struct Kept<T> {
    path: PathBuf,
    parse: fn(&[u8]) -> T,
    value: RefCell<Option<(Stamp, Arc<T>)>>,
}

impl<T> Kept<T> {
    /// The file at this path, not read yet. `parse` makes the value; it gets no bytes if the file cannot be read.
    pub fn new(path: PathBuf, parse: fn(&[u8]) -> T) -> Kept<T> {
        Kept { path, parse, value: RefCell::default() }
    }

    /// The value of the current content.
    pub fn value(&self) -> Arc<T> {
        self.read().0
    }

    /// The value of the current content, and the reason why an existing file cannot be read.
    pub fn read(&self) -> (Arc<T>, Option<std::io::Error>) {
        let stamp = match Stamp::of(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return (Arc::new((self.parse)(b"")), None),
            stamp => stamp.ok(),
        };
        let known = self.value.borrow().clone();
        if let Some((_, value)) = known.filter(|(known, _)| stamp == Some(*known)) {
            return (value, None);
        }
        let bytes = disk::open(&self.path).and_then(|file| disk::read_rest(&file, 0, disk::most::STATE));
        let value = Arc::new((self.parse)(bytes.as_deref().unwrap_or_default()));
        let stamp = stamp.filter(|stamp| bytes.is_ok() && stamp.is_settled());
        *self.value.borrow_mut() = stamp.map(|stamp| (stamp, value.clone()));
        (value, bytes.err().filter(|error| error.kind() != ErrorKind::NotFound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static PARSED: AtomicUsize = AtomicUsize::new(0);

    fn parse(bytes: &[u8]) -> String {
        PARSED.fetch_add(1, Ordering::Relaxed);
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[test]
    fn an_unchanged_file_is_parsed_once_and_a_changed_file_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        let kept = Kept::new(path.clone(), parse);
        let text = || {
            let (value, error) = kept.read();
            assert!(error.is_none(), "{error:?}");
            (*value).clone()
        };
        assert_eq!(text(), "", "a missing file has no content");
        // A file that has just changed may change again without a new time, so nothing is kept yet.
        for now in ["one", "two", "3", "four"] {
            std::fs::write(&path, now).unwrap();
            assert_eq!(text(), now);
        }
        testing::wait_until("the file is settled", || Stamp::of(&path).unwrap().is_settled());
        assert_eq!(text(), "four");
        let before = PARSED.load(Ordering::Relaxed);
        assert!((0..9).all(|_| text() == "four") && PARSED.load(Ordering::Relaxed) == before);
        // Another file of the same length takes its place, as when a run writes its state.
        let other = dir.path().join("b.toml");
        std::fs::write(&other, "five").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(text(), "five");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text(), "");
        std::fs::create_dir(&path).unwrap();
        let (value, error) = kept.read();
        assert!(value.is_empty() && error.unwrap().to_string().contains("is a directory"));
    }
}
