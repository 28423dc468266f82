//! The files of slots in a directory, and the locks that mark a slot as owned by a running process.
//!
//! Next to each slot `NAME.slot` there is a file `NAME.lock`, which the slot's writer keeps locked as long as it lives.
//! (The slot's own lock determines who may access its bytes, and is free while no process accesses them.) If a process
//! can take the lock of another slot, the slot's writer has ended, and the process deletes both files. The writer's PID
//! in the name is only for people: containers may share a directory, and the same PID is a different process in each of
//! them. Slots of older versions have no lock file, and are not deleted.

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of slots that this process has created, for unique names.
static MADE: AtomicU32 = AtomicU32::new(0);
/// Maximum number of names to try. A name is in use only if a process of the same run has the same PID in another
/// container.
const ATTEMPTS: u32 = 1000;

/// A slot's file created by this process. Both files are deleted when this value is dropped.
pub(super) struct Owned {
    slot: PathBuf,
    path: PathBuf,
    lock: File,
}

impl Owned {
    /// Creates an empty file for a slot of the run, after deleting the slots in `dir` whose writers are gone.
    pub fn create(dir: &Path, run: &[u8; 16]) -> Result<(File, Owned)> {
        remove_left_behind(dir);
        let run: String = run.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        for _ in 0..ATTEMPTS {
            let count = MADE.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("lockstep-{run}-{}-{count}.lock", std::process::id()));
            let lock = match create_new(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                lock => lock?,
            };
            match lock.try_lock() {
                Ok(()) if is_in_place(&lock, &path) => {}
                // Another process deleted the file, or is about to, because the file was not locked yet.
                Ok(()) | Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => {
                    let _ = std::fs::remove_file(&path);
                    return Err(error);
                }
            }
            let slot = path.with_extension("slot");
            match create_new(&slot) {
                Ok(file) => return Ok((file, Owned { slot, path, lock })),
                Err(error) => {
                    let _ = std::fs::remove_file(&path);
                    if error.kind() != ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "other processes have created files with the same names"))
    }

    /// The slot's file.
    pub fn slot(&self) -> &Path {
        &self.slot
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.slot);
        let _ = std::fs::remove_file(&self.path);
        // Closing the file is not enough: between fork and exec, a child process has copies of all open files.
        let _ = self.lock.unlock();
    }
}

fn create_new(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Whether the open file still exists at `path`.
pub(super) fn is_in_place(file: &File, path: &Path) -> bool {
    let identity = |data: std::fs::Metadata| (data.dev(), data.ino());
    let (open, there) = (file.metadata().map(identity), std::fs::metadata(path).map(identity));
    matches!((open, there), (Ok(open), Ok(there)) if open == there)
}

/// Whether a name is that of a slot's lock: `lockstep-RUN-NUMBER-COUNT.lock`.
fn is_lock(name: &str) -> bool {
    let parts: Vec<&str> = name.strip_suffix(".lock").unwrap_or_default().split('-').collect();
    let ["lockstep", run, process, count] = parts[..] else { return false };
    run.len() == 8 && process.parse::<u32>().is_ok() && count.parse::<u32>().is_ok()
}

/// Deletes the slots in `dir` whose writers are gone.
fn remove_left_behind(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_lock) {
            continue;
        }
        let path = entry.path();
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
        let Ok(lock) = OpenOptions::new().read(true).custom_flags(flags).open(&path) else { continue };
        let is_free = lock.metadata().is_ok_and(|data| data.is_file()) && lock.try_lock().is_ok();
        if is_free && is_in_place(&lock, &path) {
            let _ = std::fs::remove_file(path.with_extension("slot"));
            let _ = std::fs::remove_file(&path);
        }
        let _ = lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-owned-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// The cases list files that exist before another process creates a slot in the directory, and whether the files
    /// are kept.
    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot lock files")]
    fn only_slots_of_terminated_writers_are_removed() {
        // The first PID is above the maximum, so no process has it.
        let (gone, own) = (4_194_305, std::process::id());
        let (free, held) = (false, true);
        // Each case: a name without extension, the extensions of existing files, whether another process holds the
        // lock, and whether the files are kept.
        let both: &[&str] = &["lock", "slot"];
        let rows: Vec<(String, &[&str], bool, bool)> = vec![
            (format!("lockstep-01234567-{gone}-0"), both, free, false),
            (format!("lockstep-01234567-{own}-0"), both, free, false),
            (format!("lockstep-89abcdef-{gone}-12"), both, free, false),
            ("lockstep-89abcdef-1-0".to_owned(), both, free, false),
            ("lockstep-89abcdef-2-0".to_owned(), both, held, true),
            (format!("lockstep-01234567-{gone}-1"), both, held, true),
            (format!("lockstep-01234567-{own}-1"), both, held, true),
            (format!("lockstep-01234567-{gone}-2"), &["lock"], free, false),
            (format!("lockstep-01234567-{gone}-3"), &["lock"], held, true),
            (format!("lockstep-01234567-{gone}-4"), &["slot"], free, true),
            // Slots of older versions stay, because their writers may live in another container.
            (format!("lockstep-01234567-{gone}-5"), &[""], free, true),
            (format!("lockstep-01234567-{own}-5"), &[""], free, true),
            ("lockstep-01234567-2-5".to_owned(), &[""], free, true),
            // These names do not belong to slots.
            (format!("lockstep-0123456-{gone}-0"), both, free, true),
            (format!("lockstep-012345678-{gone}-0"), both, free, true),
            (format!("other-01234567-{gone}-0"), both, free, true),
            (format!("lockstep-01234567-{gone}"), both, free, true),
            (format!("lockstep-01234567-{gone}-0-1"), both, free, true),
            (format!("lockstep-01234567-{gone}-x"), both, free, true),
            ("lockstep-01234567-x-0".to_owned(), both, free, true),
            ("lockstep-01234567--1-0".to_owned(), both, free, true),
            (format!("lockstep-01234567-{gone}-6"), &["lock/", "slot"], free, true),
        ];
        let dir = directory("left");
        let mut locks = Vec::new();
        let path =
            |name: &str, end: &str| dir.join(if end.is_empty() { name.to_owned() } else { format!("{name}.{end}") });
        for (name, ends, is_held, _) in &rows {
            for end in *ends {
                match end.strip_suffix('/') {
                    Some(end) => fs::create_dir(path(name, end)).unwrap(),
                    None => fs::write(path(name, end), "x").unwrap(),
                }
                if *is_held && *end == "lock" {
                    let lock = File::open(path(name, end)).unwrap();
                    lock.try_lock().unwrap();
                    locks.push(lock);
                }
            }
        }
        // A symbolic link must not lead out of the directory, and a FIFO must not block.
        let (elsewhere, link, fifo) =
            (directory("elsewhere"), dir.join("lockstep-01234567-7-7.lock"), dir.join("lockstep-01234567-8-8.lock"));
        fs::write(elsewhere.join("precious"), "x").unwrap();
        symlink(elsewhere.join("precious"), &link).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let (file, owned) = Owned::create(&dir, &[7; 16]).unwrap();
        for (name, ends, is_held, stays) in &rows {
            for end in *ends {
                let there = path(name, end.trim_end_matches('/')).exists();
                assert_eq!(there, *stays, "{name}.{end}, held: {is_held}");
            }
        }
        assert!(link.is_symlink() && elsewhere.join("precious").exists() && fifo.exists());
        assert!(rows.len() >= 20);
        // The process does not delete its own slot as a leftover, but deletes it at the end.
        let (own, begin) = (owned.slot().to_owned(), format!("lockstep-07070707-{own}-"));
        assert!(own.file_name().unwrap().to_str().unwrap().starts_with(&begin), "{own:?}");
        remove_left_behind(&dir);
        assert!(own.exists() && is_in_place(&file, &own));
        drop(owned);
        assert!(!own.exists() && !own.with_extension("lock").exists());
        locks.clear();
        remove_left_behind(&dir);
        assert!(!path("lockstep-89abcdef-2-0", "slot").exists(), "the writer has ended");
        for dir in &[dir, elsewhere] {
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot lock files")]
    fn a_slot_name_taken_by_another_container_is_not_reused() {
        let dir = directory("names");
        let next = MADE.load(Ordering::Relaxed);
        // Takes the next names of this process, as a process of the same run with the same PID in another container
        // would. There are 200, because other tests also use up names.
        for count in next..next + 200 {
            let name = dir.join(format!("lockstep-05050505-{}-{count}.slot", std::process::id()));
            fs::write(&name, "theirs").unwrap();
        }
        let (_, owned) = Owned::create(&dir, &[5; 16]).unwrap();
        assert_eq!(fs::read(owned.slot()).unwrap(), b"");
        let of = |end: &str| {
            let names = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.ends_with(end)).count()
        };
        assert_eq!((of(".slot"), of(".lock")), (201, 1), "no lock file may remain under a name that was in use");
        drop(owned);
        assert!(Owned::create(&dir.join("none"), &[5; 16]).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
