//! As whom programs run. The kernel's limit on processes counts a user's threads together, root's never; so as root
//! each program that runs has a user of its own, and what it starts is taken from no other.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first user for programs; the others' numbers are below. Debian's policy leaves 65000 to 65533 to nobody.
const NOBODY: u32 = 65_534;
const LAST: u32 = 65_000;
/// How many threads our user's other programs may start while one runs.
const SPARE_THREADS: u64 = 64;

static TAKEN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A user for one program, until this is dropped.
pub struct User(u32);

impl User {
    /// One that no program of ours runs as, if we are root.
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

    /// Lets it start as this user.
    pub fn start(&self, command: &mut Command) {
        if rustix::process::geteuid().is_root() {
            command.uid(self.0).gid(self.0);
        }
    }

    /// The kernel's limit for a program that may have `processes`. It counts what else the user runs, too: exact, it
    /// would be used up by what others start meanwhile, so the program's own are watched besides.
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
