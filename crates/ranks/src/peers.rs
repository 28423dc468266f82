//! The side of rank 0: the other ranks as child processes.

use crate::{Error, Message, Result};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting rank 0 checks whether to continue waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a process whose connection has ended may take to exit by itself.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often ranks send heartbeats, and how long rank 0 waits for one.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The time between two heartbeats.
    pub heartbeat: Duration,
    /// The time without a sign of life after which a rank is lost.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { heartbeat: Duration::from_secs(1), silence: Duration::from_secs(15) }
    }
}

/// Whether a rank is lost, and which one.
#[derive(Clone, Default)]
pub struct Lost(Arc<OnceLock<String>>);

impl Lost {
    /// The sentence about the first lost rank.
    pub fn why(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Whether a rank is lost. Cheap enough for a check before each layer.
    pub fn is_lost(&self) -> bool {
        self.0.get().is_some()
    }

    fn set(&self, why: String) {
        let _ = self.0.set(why);
    }

    fn error(&self) -> Option<Error> {
        self.why().map(|why| Error::Lost(why.to_owned()))
    }
}

/// The ranks 1, 2, … of a run, as child processes of this one. Dropping the value ends them.
pub struct Peers {
    peers: Vec<Peer>,
    lost: Lost,
    /// Whether the end of a connection is expected.
    closes: Arc<AtomicBool>,
}

struct Peer {
    process: Arc<Mutex<Child>>,
    stream: Mutex<UnixStream>,
    incoming: Mutex<Receiver<Message>>,
}

impl Peers {
    /// Starts ranks 1 to `world_size` − 1 with the command that `command` returns for each rank; its standard input is
    /// replaced. The processes are in process groups of their own, so that Ctrl-C on a terminal reaches only rank 0.
    /// `on_loss` is called, on another thread, when a rank is lost.
    pub fn start(
        world_size: usize,
        limits: Limits,
        command: impl Fn(usize) -> Command,
        on_loss: impl Fn() + Clone + Send + 'static,
    ) -> Result<Peers> {
        let mut started = Peers { peers: Vec::new(), lost: Lost::default(), closes: Arc::default() };
        for rank in 1..world_size {
            let failed = |error: io::Error| Error::Lost(format!("cannot start rank {rank} of {world_size}: {error}"));
            let peer = started.start_one(rank, world_size, limits, command(rank), on_loss.clone()).map_err(failed)?;
            started.peers.push(peer);
        }
        Ok(started)
    }

    fn start_one(
        &self,
        rank: usize,
        world_size: usize,
        limits: Limits,
        mut command: Command,
        on_loss: impl Fn() + Send + 'static,
    ) -> io::Result<Peer> {
        let (stream, theirs) = UnixStream::pair()?;
        let process = command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0).spawn()?;
        drop(command); // and with it this process's copy of the other end
        let name = format!("rank {rank} of {world_size} (process {})", process.id());
        stream.set_write_timeout(Some(limits.silence))?;
        let mut reader = stream.try_clone()?;
        reader.set_read_timeout(Some(limits.silence))?;
        let (sender, incoming) = channel();
        let process = Arc::new(Mutex::new(process));
        let (child, lost, closes) = (process.clone(), self.lost.clone(), self.closes.clone());
        std::thread::Builder::new().name(format!("from rank {rank}")).spawn(move || {
            let end = forward(&mut reader, &sender);
            if !closes.load(Ordering::SeqCst) {
                lost.set(format!("{name} {}", describe(&end, &child, limits)));
                on_loss();
            }
        })?;
        Ok(Peer { process, stream: Mutex::new(stream), incoming: Mutex::new(incoming) })
    }

    /// Number of ranks, with rank 0.
    pub fn world_size(&self) -> usize {
        1 + self.peers.len()
    }

    /// Whether a rank is lost. The value can be kept elsewhere.
    pub fn lost(&self) -> &Lost {
        &self.lost
    }

    /// Sends a message to `rank`.
    pub fn send(&self, rank: usize, message: &Message) -> Result<()> {
        let sent = message.write_to(&mut *lock(&self.peers[rank - 1].stream));
        sent.map_err(|error| self.lost_by(rank, &error))
    }

    /// Waits for the next message of `rank`, until some rank is lost, or `cancels` returns true.
    pub fn receive(&self, rank: usize, cancels: &dyn Fn() -> bool) -> Result<Message> {
        let incoming = lock(&self.peers[rank - 1].incoming);
        loop {
            match incoming.recv_timeout(POLL_INTERVAL) {
                Ok(message) => return Ok(message),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.lost_by(rank, &io::ErrorKind::UnexpectedEof.into()));
                }
                Err(RecvTimeoutError::Timeout) => match self.lost.error() {
                    Some(error) => return Err(error),
                    None if cancels() => return Err(Error::Cancelled),
                    None => {}
                },
            }
        }
    }

    /// The error after an exchange with `rank` has failed: the sentence of the thread that watches the rank, which
    /// notices the end of the connection at the same time and then waits for the process.
    fn lost_by(&self, rank: usize, error: &io::Error) -> Error {
        let start = Instant::now();
        while !self.lost.is_lost() && start.elapsed() < 2 * EXIT_TIMEOUT {
            std::thread::sleep(POLL_INTERVAL);
        }
        let other = || Error::Lost(format!("the connection to rank {rank} of {} failed: {error}", self.world_size()));
        self.lost.error().unwrap_or_else(other)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.closes.store(true, Ordering::SeqCst);
        for peer in &self.peers {
            let _ = lock(&peer.stream).shutdown(Shutdown::Both);
        }
        for peer in &self.peers {
            ended(&peer.process);
        }
    }
}

/// Forwards the messages of a rank, without heartbeats, until the connection ends or is silent for too long.
fn forward(reader: &mut UnixStream, sender: &Sender<Message>) -> io::Error {
    loop {
        match Message::read_from(reader) {
            Ok(message) if message.is_heartbeat() => {}
            Ok(message) => drop(sender.send(message)),
            Err(error) => return error,
        }
    }
}

/// The end of a rank, in words. Its process is killed if it still exists.
fn describe(end: &io::Error, process: &Mutex<Child>, limits: Limits) -> String {
    if matches!(end.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        let _ = lock(process).kill();
        ended(process);
        return format!("sent no heartbeat for {} s: it hangs or was stopped", limits.silence.as_secs_f64());
    }
    match ended(process) {
        Some(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was killed by signal {signal}"),
            (None, code) => format!("exited with code {}", code.unwrap_or(-1)),
        },
        None => format!("closed its connection: {end}"),
    }
}

/// Waits for the end of the process, and kills it if it takes too long. Returns the status of a process that ended by
/// itself.
fn ended(process: &Mutex<Child>) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < EXIT_TIMEOUT {
        if let Ok(Some(status)) = lock(process).try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut process = lock(process);
    let _ = process.kill();
    let _ = process.wait();
    None
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
