//! CPU cores shared by the processes of one machine. Each process computes with one thread per core that it has
//! reserved, so that processes do not preempt each other in the middle of parallel regions.
//!
//! Each core is represented by a file. A process reserves the core by locking the file. The operating system releases
//! the lock when the process ends, however it ends. A process that waits for cores queues on a separate lock, the gate,
//! and gets its first core before any other process gets a second one. So no process starves, and if there are as many
//! processes as cores, each process has one thread.

use crate::{Error, Result};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two polls for a free core by the first process in the queue.
const POLL_INTERVAL: Duration = Duration::from_micros(300);
/// How long a process keeps its cores before it offers them to other processes.
const TURN: Duration = Duration::from_millis(3);

/// The directory of lock files through which processes share the cores of a machine.
#[derive(Clone, Debug)]
pub struct CoreTokens {
    dir: PathBuf,
    cores: usize,
}

/// Cores reserved by this process until this value is dropped or the process ends.
#[derive(Debug)]
pub struct HeldCores {
    locks: Vec<Locked>,
}

/// A file that this process has locked.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing the file is not enough: between fork and exec, a child process has copies of all open files.
        let _ = self.0.unlock();
    }
}

impl HeldCores {
    /// Number of reserved cores: at least 1.
    pub fn count(&self) -> usize {
        self.locks.len()
    }
}

/// A process's share of the cores. A process keeps its cores from one parallel region to the next, and offers them to
/// other processes every few milliseconds. A separate thread releases the cores at the end of a turn if no region is
/// running. So a process does not hold cores while it waits for workers, rewards or a disk, and callers need not
/// release them explicitly.
#[derive(Debug)]
pub(crate) struct Lease {
    tokens: CoreTokens,
    shared: Arc<SharedLease>,
    keeper: Option<std::thread::JoinHandle<()>>,
}

/// The state that a lease shares with the thread that ends its turns.
#[derive(Debug, Default)]
struct SharedLease {
    state: Mutex<State>,
    changed: Condvar,
    /// The number of parallel regions that are running.
    running: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// The reserved cores, and the start time of the turn.
    held: Option<(HeldCores, Instant)>,
    ends: bool,
}

/// A running parallel region. While this value exists, the lease keeps its cores.
pub(crate) struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl SharedLease {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the cores at the end of each turn if nothing is computing, until the lease ends.
    fn end_turns(&self) {
        let mut state = self.lock();
        while !state.ends {
            state = match &state.held {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some((_, since)) => {
                    let left = TURN.saturating_sub(since.elapsed());
                    if left.is_zero() && self.running.load(Ordering::SeqCst) == 0 {
                        state.held = None;
                        continue;
                    }
                    let left = if left.is_zero() { TURN } else { left };
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Lease {
    /// A lease of cores from `tokens`. Fails if the system cannot start its thread.
    pub(crate) fn new(tokens: CoreTokens) -> Result<Lease> {
        let shared = Arc::new(SharedLease::default());
        let keeper = std::thread::Builder::new().name("cores".to_owned());
        let started = keeper.spawn({
            let shared = Arc::clone(&shared);
            move || shared.end_turns()
        });
        let keeper =
            started.map_err(|e| error(&tokens.dir, format!("failed to start the thread that releases them: {e}")))?;
        Ok(Lease { tokens, shared, keeper: Some(keeper) })
    }

    /// Called before a parallel region, which lasts until the returned `Running` is dropped. Also returns the number of
    /// threads that may compute, or `None` if it cannot have changed. All `threads` may compute if the lock files are
    /// missing (because somebody deleted their directory).
    pub(crate) fn begin(&self, threads: usize) -> (Option<usize>, Running<'_>) {
        let mut state = self.shared.lock();
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(&self.shared.running);
        if state.held.as_ref().is_some_and(|(_, since)| since.elapsed() < TURN) {
            return (None, running);
        }
        state.held = None;
        let Ok(cores) = self.tokens.acquire(threads) else { return (Some(threads), running) };
        let count = cores.count();
        state.held = Some((cores, Instant::now()));
        self.shared.changed.notify_one();
        (Some(count), running)
    }

    /// Releases the cores immediately, not at the end of the turn.
    pub(crate) fn release(&self) {
        self.shared.lock().held = None;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.changed.notify_one();
        // Ignores the result, because the joined thread does not panic.
        let _ = self.keeper.take().map(std::thread::JoinHandle::join);
    }
}

impl CoreTokens {
    /// Creates the lock files of `cores` ≥ 1 cores in the directory `dir`, and the directory if it is missing. Existing
    /// files are kept.
    pub fn create(dir: &Path, cores: usize) -> Result<CoreTokens> {
        let fail = |path: &Path, e: std::io::Error| error(path, format!("failed to create: {e}"));
        disk::create_private_dir_all(dir).map_err(|e| fail(dir, e))?;
        let tokens = CoreTokens { dir: dir.to_owned(), cores: cores.max(1) };
        for path in (0..tokens.cores).map(|core| tokens.core(core)).chain([tokens.gate()]) {
            let made = disk::Options::new().write().create().mode(0o600).open(&path);
            made.map_err(|e| fail(&path, e))?;
        }
        Ok(tokens)
    }

    /// Opens the lock files that another process created in `dir`.
    pub fn open(dir: &Path) -> Result<CoreTokens> {
        let mut tokens = CoreTokens { dir: dir.to_owned(), cores: 0 };
        while tokens.core(tokens.cores).exists() {
            tokens.cores += 1;
        }
        if tokens.cores == 0 {
            return Err(error(dir, "found no lock files of cores; the learner creates them when it starts".into()));
        }
        Ok(tokens)
    }

    /// Number of cores, reserved or not.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Waits for a core and reserves it. Reserves up to `at_most` cores in total if more are free and no process is
    /// waiting.
    pub fn acquire(&self, at_most: usize) -> Result<HeldCores> {
        let gate = self.lock_file(&self.gate())?;
        gate.lock().map_err(|e| error(&self.gate(), format!("failed to lock: {e}")))?;
        let gate = Locked(gate);
        let first = loop {
            match self.free(1)?.pop() {
                Some(core) => break core,
                None => std::thread::sleep(POLL_INTERVAL),
            }
        };
        drop(gate);
        let mut locks = vec![first];
        let more = at_most.min(self.cores).saturating_sub(1);
        // Waiting processes come first. While this process holds the gate, no other process is waiting.
        if more > 0 {
            let gate = try_lock(self.lock_file(&self.gate())?, &self.gate())?;
            if gate.is_some() {
                locks.extend(self.free(more)?);
            }
        }
        Ok(HeldCores { locks })
    }

    /// Reserves up to `count` free cores.
    fn free(&self, count: usize) -> Result<Vec<Locked>> {
        let mut taken = Vec::new();
        for path in (0..self.cores).map(|core| self.core(core)) {
            if taken.len() == count {
                break;
            }
            // Locks belong to open files, so each holder has a separate lock.
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
        disk::open(path).map_err(|e| error(path, format!("failed to open: {e}")))
    }
}

fn try_lock(file: File, path: &Path) -> Result<Option<Locked>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(Locked(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(error(path, format!("failed to lock: {e}"))),
    }
}

fn error(path: &Path, message: String) -> Error {
    Error::Cores { path: path.to_owned(), message }
}

#[cfg(test)]
mod tests;
