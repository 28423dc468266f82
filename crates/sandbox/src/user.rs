//! Chooses the Unix user that a program runs as. The kernel's limit on processes counts all threads of a user, but is
//! not applied to root. So if this process is root, each running program gets its own user, and with it a limit that no
//! other program uses up.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The user ids for programs. Debian reserves 65000 to 65533, and they are unused.
const FIRST: u32 = 65_000;
const NOBODY: u32 = 65_534;
/// Room for threads that other programs of the same user start while a program runs.
const SPARE_THREADS: u64 = 64;

/// The user id that this process gives to its first program. It is random: the kernel counts the threads of a user over
/// all containers, and two runs as root should not share their users.
static START: LazyLock<u32> = LazyLock::new(|| {
    let random = RandomState::new().hash_one(std::process::id());
    FIRST + (random % u64::from(NOBODY - FIRST + 1)) as u32
});
static TAKEN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A Unix user reserved for one program until this is dropped.
pub struct User(u32);

/// The user ids for programs, in the order in which they are tried.
pub fn users() -> impl Iterator<Item = u32> {
    (*START..=NOBODY).chain(FIRST..*START)
}

impl User {
    /// A user that no other program of this process has, if this process is root; otherwise the user of this process.
    pub fn new() -> User {
        let own = rustix::process::geteuid();
        if !own.is_root() {
            return User(own.as_raw());
        }
        let mut taken = taken();
        let user = users().find(|user| !taken.contains(user)).unwrap_or(NOBODY);
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
