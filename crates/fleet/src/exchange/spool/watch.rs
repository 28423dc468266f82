//! Sleeps until a directory changes: with inotify on Linux, elsewhere by waking every few milliseconds.

use std::path::Path;
use std::time::Duration;

#[cfg(not(target_os = "linux"))]
const POLL: Duration = Duration::from_millis(5);

/// A set of watched directories.
pub(super) struct Watch {
    #[cfg(target_os = "linux")]
    inotify: Option<rustix::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Watch {
    pub(super) fn new() -> Watch {
        use rustix::fs::inotify::{CreateFlags, init};
        // If inotify is unavailable (the user's limit is reached), every wait is short.
        Watch { inotify: init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok() }
    }

    /// Watches a directory: a file that is created in it or renamed into it ends a wait. Adding a directory twice is
    /// harmless.
    pub(super) fn add(&mut self, directory: &Path) {
        use rustix::fs::inotify::{WatchFlags, add_watch};
        if let Some(inotify) = &self.inotify
            && add_watch(inotify, directory, WatchFlags::MOVED_TO | WatchFlags::CREATE | WatchFlags::ONLYDIR).is_err()
            && directory.is_dir()
        {
            self.inotify = None;
        }
    }

    /// Waits for a change, and returns whether there was one.
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(inotify) = &self.inotify else {
            std::thread::sleep(at_most.min(Duration::from_millis(5)));
            return false;
        };
        let seconds = i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX);
        let at_most = Timespec { tv_sec: seconds, tv_nsec: i64::from(at_most.subsec_nanos()) };
        // A signal also ends the wait, so that the caller can check for a stop request.
        let _ = poll(&mut [PollFd::new(inotify, PollFlags::IN)], Some(&at_most));
        let (mut events, mut has_changed) = ([0; 4096], false);
        while rustix::io::read(inotify, &mut events).is_ok_and(|read| read > 0) {
            has_changed = true;
        }
        has_changed
    }
}

#[cfg(not(target_os = "linux"))]
impl Watch {
    pub(super) fn new() -> Watch {
        Watch {}
    }

    pub(super) fn add(&mut self, _directory: &Path) {}

    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        std::thread::sleep(at_most.min(POLL));
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_in_a_watched_directory_ends_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Watch::new();
        watch.add(dir.path());
        watch.add(&dir.path().join("none"));
        assert!(watch.inotify.is_some(), "inotify must be available, or the test checks only polling");
        assert!(!watch.wait(Duration::from_millis(30)), "nothing has happened");
        for how in ["created", "renamed"] {
            let path = dir.path().join(how);
            match how {
                "created" => std::fs::write(&path, b"").unwrap(),
                _ => std::fs::rename(dir.path().join("created"), &path).unwrap(),
            }
            assert!(watch.wait(testing::HANG), "{how}");
        }
        assert!(!watch.wait(Duration::from_millis(30)), "an event must wake only once");
    }
}
