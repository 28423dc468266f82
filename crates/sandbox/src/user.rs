//! Chooses the Unix user that a program runs as. The kernel's limit on processes counts all threads of a user, but is
//! not applied to root. So if this process is root, each running program gets its own user, whose limit no other
//! program uses up.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The highest user id for programs; further programs get lower ids. Debian reserves 65000 to 65533, and they are
/// unused.
const NOBODY: u32 = 65_534;
const LAST: u32 = 65_000;
/// Room for threads that other programs of the same user start while a program runs.
const SPARE_THREADS: u64 = 64;

static TAKEN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A Unix user reserved for one program until this is dropped.
pub struct User(u32);

impl User {
    /// A user that no other program of this process has, if this process is root; otherwise the user of this process.
    pub fn new() -> User {
        let own = rustix::process::geteuid();
        if !own.is_root() {
            return User(own.as_raw());
        }
        let mut taken = taken();
        let user = (LAST..=NOBODY).rev().find(|user| !taken.contains(user)).unwrap_or(NOBODY);
        taken.insert(user);
        User(user)
    }

    /// Makes `command` start as this user.
    pub fn start(&self, command: &mut Command) {
        if rustix::process::geteuid().is_root() {
            command.uid(self.0).gid(self.0);
        }
    }

    /// The value of the kernel's process limit for a program that may have `processes` processes. The kernel counts all
    /// threads of the user, so the limit leaves room for the existing threads and for some that start meanwhile. The
    /// program's own threads are therefore watched as well.
    pub fn limit(&self, processes: u64) -> u64 {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let own = entries.filter(|process| process.metadata().is_ok_and(|metadata| metadata.uid() == self.0));
        let threads = |path: std::path::PathBuf| std::fs::read_dir(path).map_or(0, |tasks| tasks.count() as u64);
        own.map(|process| threads(process.path().join("task"))).sum::<u64>() + processes + SPARE_THREADS
    }
}

impl Drop for User {
    fn drop(&mut self) {
        taken().remove(&self.0);
    }
}

fn taken() -> MutexGuard<'static, BTreeSet<u32>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
