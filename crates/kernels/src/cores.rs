//! CPU cores shared by the processes of one machine: each process computes with as many threads as it has reserved
//! cores, so that they do not interrupt each other in the middle of parallel regions.
//!
//! Each core is a file. A process reserves the core by taking the kernel's lock on that file, which the kernel releases
//! when the process ends in any way. A process that waits for cores queues at one more lock, the gate, and gets its
//! first core before any other process gets a second one. So no process starves, and with as many processes as cores
//! each has one thread.

use crate::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the first process of the queue looks for a free core.
const LOOK: Duration = Duration::from_micros(300);
/// How long a process keeps its cores before it lets other processes have them.
const TURN: Duration = Duration::from_millis(3);

/// The directory of lock files by which processes share the cores of a machine.
#[derive(Clone, Debug)]
pub struct CoreTokens {
    dir: PathBuf,
    cores: usize,
}

/// Cores that this process has reserved until this value is dropped, or the process ends.
#[derive(Debug)]
pub struct HeldCores {
    locks: Vec<Locked>,
}

/// A file whose lock this process has taken.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough: a child that is being started has copies of open files until its program runs.
        let _ = self.0.unlock();
    }
}

impl HeldCores {
    /// Number of reserved cores: at least 1.
    pub fn count(&self) -> usize {
        self.locks.len()
    }
}

/// A process's share of the cores: while it computes it keeps reserved cores, and every few milliseconds it lets other
/// processes have them.
#[derive(Debug)]
pub(crate) struct Lease {
    tokens: CoreTokens,
    held: Option<(HeldCores, Instant)>,
}

impl Lease {
    pub(crate) fn new(tokens: CoreTokens) -> Lease {
        Lease { tokens, held: None }
    }

    /// Called between two parallel regions. Returns the number of threads that may compute, or none if that cannot have
    /// changed. All `threads` may if the lock files are missing (somebody deleted their directory).
    pub(crate) fn renew(&mut self, threads: usize) -> Option<usize> {
        if self.held.as_ref().is_some_and(|(_, since)| since.elapsed() < TURN) {
            return None;
        }
        self.held = None;
        let Ok(held) = self.tokens.acquire(threads) else { return Some(threads) };
        let count = held.count();
        self.held = Some((held, Instant::now()));
        Some(count)
    }

    /// Releases the cores, because the process now waits for something else.
    pub(crate) fn release(&mut self) {
        self.held = None;
    }
}

impl CoreTokens {
    /// Makes the lock files of `cores` ≥ 1 cores in the directory `dir`, and the directory if it is missing. Existing
    /// files are kept.
    pub fn create(dir: &Path, cores: usize) -> Result<CoreTokens> {
        let fail = |path: &Path, e: std::io::Error| error(path, format!("cannot be made: {e}"));
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| fail(dir, e))?;
        let tokens = CoreTokens { dir: dir.to_owned(), cores: cores.max(1) };
        for path in (0..tokens.cores).map(|core| tokens.core(core)).chain([tokens.gate()]) {
            let mut options = OpenOptions::new();
            let made = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
            made.map_err(|e| fail(&path, e))?;
        }
        Ok(tokens)
    }

    /// Opens the lock files that another process made in `dir`.
    pub fn open(dir: &Path) -> Result<CoreTokens> {
        let mut tokens = CoreTokens { dir: dir.to_owned(), cores: 0 };
        while tokens.core(tokens.cores).exists() {
            tokens.cores += 1;
        }
        if tokens.cores == 0 {
            return Err(error(dir, "holds no cores: its learner makes them when it starts".into()));
        }
        Ok(tokens)
    }

    /// Number of cores, reserved or not.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Waits for a core and reserves it, and up to `at_most` in all if more are free and no process waits.
    pub fn acquire(&self, at_most: usize) -> Result<HeldCores> {
        let gate = self.lock_file(&self.gate())?;
        gate.lock().map_err(|e| error(&self.gate(), format!("cannot be locked: {e}")))?;
        let gate = Locked(gate);
        let first = loop {
            match self.free(1)?.pop() {
                Some(core) => break core,
                None => std::thread::sleep(LOOK),
            }
        };
        drop(gate);
        let mut locks = vec![first];
        let more = at_most.min(self.cores).saturating_sub(1);
        // Those who wait come first: with the gate in hand nobody does.
        if more > 0 {
            let gate = try_lock(self.lock_file(&self.gate())?, &self.gate())?;
            if gate.is_some() {
                locks.extend(self.free(more)?);
            }
        }
        Ok(HeldCores { locks })
    }

    /// Reserves up to `count` cores that are free.
    fn free(&self, count: usize) -> Result<Vec<Locked>> {
        let mut taken = Vec::new();
        for path in (0..self.cores).map(|core| self.core(core)) {
            if taken.len() == count {
                break;
            }
            // Locks are of open files, so each holder has its own.
            taken.extend(try_lock(self.lock_file(&path)?, &path)?);
        }
        Ok(taken)
    }

    fn core(&self, core: usize) -> PathBuf {
        self.dir.join(format!("core-{core}"))
    }
    fn gate(&self) -> PathBuf {
        self.dir.join("gate")
    }
    fn lock_file(&self, path: &Path) -> Result<File> {
        File::open(path).map_err(|e| error(path, format!("cannot be opened: {e}")))
    }
}

fn try_lock(file: File, path: &Path) -> Result<Option<Locked>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(Locked(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(error(path, format!("cannot be locked: {e}"))),
    }
}

fn error(path: &Path, message: String) -> Error {
    Error::Cores { path: path.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-cores-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    #[cfg_attr(miri, ignore = "it locks files")]
    fn cores_are_held_by_one_and_what_is_free_can_be_had() {
        let dir = scratch("held");
        assert!(CoreTokens::open(&dir).is_err_and(|e| e.to_string().contains("holds no cores")));
        let tokens = CoreTokens::create(&dir, 3).unwrap();
        assert_eq!(CoreTokens::open(&dir).unwrap().cores(), 3);
        let one = tokens.acquire(1).unwrap();
        let rest = CoreTokens::open(&dir).unwrap().acquire(8).unwrap();
        assert_eq!((one.count(), rest.count()), (1, 2));
        drop(one);
        assert_eq!(tokens.acquire(8).unwrap().count(), 1);
        drop(rest);
        assert_eq!(tokens.acquire(8).unwrap().count(), 3);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "it locks files")]
    fn nobody_starves_and_there_are_never_more_holders_than_cores() {
        let dir = scratch("line");
        let tokens = CoreTokens::create(&dir, 2).unwrap();
        let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..40 {
                        let cores = tokens.acquire(2).unwrap();
                        let now = held.fetch_add(cores.count(), Ordering::SeqCst) + cores.count();
                        most.fetch_max(now, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_micros(100));
                        held.fetch_sub(cores.count(), Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 2);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "it locks files")]
    fn a_lease_lets_others_in_when_its_turn_is_over_or_it_waits() {
        let dir = scratch("lease");
        let tokens = CoreTokens::create(&dir, 2).unwrap();
        let mut lease = Lease::new(tokens.clone());
        assert_eq!(lease.renew(2), Some(2));
        // Somebody else waits for one, which the next turn leaves.
        let other = std::thread::scope(|scope| {
            let other = scope.spawn(|| tokens.acquire(1).unwrap());
            let since = Instant::now();
            while lease.renew(2) != Some(1) {
                assert!(since.elapsed() < Duration::from_secs(20), "the other one gets none");
                std::thread::sleep(TURN);
            }
            other.join().unwrap()
        });
        lease.release();
        assert_eq!(tokens.acquire(2).unwrap().count(), 1);
        drop(other);
        assert_eq!(lease.renew(2), Some(2));
        std::fs::remove_dir_all(&dir).unwrap();
        lease.release();
        assert_eq!(lease.renew(2), Some(2), "nobody shares cores any more");
    }

    #[test]
    #[cfg_attr(miri, ignore = "it locks files")]
    fn lock_files_are_the_owners_alone_and_kept_by_the_next() {
        use std::os::unix::fs::PermissionsExt;
        let dir = scratch("files").join("below");
        let tokens = CoreTokens::create(&dir, 0).unwrap();
        assert_eq!(tokens.cores(), 1, "at least one");
        let tokens = CoreTokens::create(&dir, 2).unwrap();
        std::fs::write(dir.join("core-1"), "kept").unwrap();
        assert_eq!(CoreTokens::create(&dir, 2).unwrap().cores(), 2);
        let mut names: Vec<String> =
            std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["core-0", "core-1", "gate"]);
        assert_eq!(std::fs::read_to_string(dir.join("core-1")).unwrap(), "kept");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join("core-0")), mode(&dir.join("gate"))), (0o700, 0o600, 0o600));
        // One core is had for any wish, and no more than are wished for.
        for (wish, count) in [(0, 1), (1, 1), (2, 2), (9, 2)] {
            assert_eq!(tokens.acquire(wish).unwrap().count(), count);
        }
        // Who waits at the gate comes before a second core for another.
        let gate = File::open(dir.join("gate")).unwrap();
        let held = std::thread::scope(|scope| {
            gate.lock().unwrap();
            let asks = scope.spawn(|| tokens.acquire(1).unwrap().count());
            std::thread::yield_now();
            gate.unlock().unwrap();
            asks.join().unwrap()
        });
        assert_eq!(held, 1);
        std::fs::remove_file(dir.join("core-1")).unwrap();
        let message = tokens.acquire(2).unwrap_err().to_string();
        let expected = format!(
            "cores in {}: cannot be opened: No such file or directory (os error 2)",
            dir.join("core-1").display()
        );
        assert_eq!(message, expected);
        std::fs::remove_file(dir.join("gate")).unwrap();
        assert!(tokens.acquire(1).unwrap_err().to_string().contains("gate: cannot be opened"));
        std::fs::remove_dir_all(dir.parent().unwrap()).unwrap();
        let message = CoreTokens::open(&dir).unwrap_err().to_string();
        assert_eq!(
            message,
            format!("cores in {}: holds no cores: its learner makes them when it starts", dir.display())
        );
        let file = scratch("file");
        std::fs::write(&file, "").unwrap();
        assert!(CoreTokens::create(&file.join("x"), 1).unwrap_err().to_string().contains("/x: cannot be made: "));
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "it locks files")]
    fn a_turn_lasts_and_then_the_cores_are_reserved_anew() {
        let dir = scratch("turn");
        let mut lease = Lease::new(CoreTokens::create(&dir, 2).unwrap());
        assert_eq!(lease.renew(1), Some(1));
        let (held, _) = lease.held.take().unwrap();
        // As if the turn lasted for long.
        lease.held = Some((held, Instant::now() + Duration::from_secs(60)));
        assert_eq!(lease.renew(2), None);
        let (held, _) = lease.held.take().unwrap();
        lease.held = Some((held, Instant::now().checked_sub(TURN).expect("a time that the system can name")));
        assert_eq!(lease.renew(2), Some(2));
        lease.release();
        assert!(lease.held.is_none());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
