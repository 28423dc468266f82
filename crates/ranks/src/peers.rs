//! The side of rank 0: the other ranks, as child processes or as processes that a launcher has started.

use crate::lock::lock;
use crate::rendezvous::Joined;
use crate::{Error, Limits, Message, Rendezvous, Result};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How often a waiting rank 0 checks whether to continue waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a process whose connection has ended may take to exit by itself.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a rank is lost, and which one.
#[derive(Clone, Default)]
pub struct Lost(Arc<OnceLock<(usize, String)>>);

impl Lost {
    /// The sentence about the first lost rank.
    pub fn why(&self) -> Option<&str> {
        self.0.get().map(|(_, why)| why.as_str())
    }

    /// The first lost rank.
    pub fn rank(&self) -> Option<usize> {
        self.0.get().map(|(rank, _)| *rank)
    }

    /// Whether a rank is lost. Cheap enough for a check before each layer.
    pub fn is_lost(&self) -> bool {
        self.0.get().is_some()
    }

    fn set(&self, rank: usize, why: String) {
        let _ = self.0.set((rank, why));
    }

    fn error(&self) -> Option<Error> {
        self.why().map(|why| Error::Lost(why.to_owned()))
    }
}

/// The ranks 1, 2, … of a run. Dropping the value ends those that are child processes of this one; those that a
/// launcher has started end with [`Rendezvous::end`].
pub struct Peers {
    peers: Vec<Peer>,
    lost: Lost,
    /// Whether the end of a connection is expected.
    closes: Arc<AtomicBool>,
}

struct Peer {
    process: Process,
    stream: Mutex<UnixStream>,
    incoming: Mutex<Receiver<Message>>,
}

/// The process of a rank.
#[derive(Clone)]
enum Process {
    Child(Arc<Mutex<Child>>),
    /// A process of a launcher, which alone can wait for it, with this id.
    Launched(u32),
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
        let mut started = Peers::none();
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
        let process = Process::Child(Arc::new(Mutex::new(process)));
        self.attach(rank, world_size, limits, stream, process, on_loss)
    }

    /// Waits until all ranks of a launch have joined, or `cancels` returns true. `note` is called if this takes long,
    /// and `on_loss`, on another thread, when a rank is lost.
    pub fn launched(
        rendezvous: &Rendezvous,
        limits: Limits,
        cancels: &dyn Fn() -> bool,
        note: &mut dyn FnMut(&str),
        on_loss: impl Fn() + Clone + Send + 'static,
    ) -> Result<Peers> {
        let mut peers = Peers::none();
        let joined = rendezvous.wait(limits, cancels, note)?;
        let world_size = 1 + joined.len();
        for (rank, Joined { stream, process, .. }) in (1..).zip(joined) {
            let failed = |error: io::Error| Error::Lost(format!("cannot use rank {rank} of {world_size}: {error}"));
            let peer = peers.attach(rank, world_size, limits, stream, Process::Launched(process), on_loss.clone());
            peers.peers.push(peer.map_err(failed)?);
        }
        Ok(peers)
    }

    fn none() -> Peers {
        Peers { peers: Vec::new(), lost: Lost::default(), closes: Arc::default() }
    }

    fn attach(
        &self,
        rank: usize,
        world_size: usize,
        limits: Limits,
        stream: UnixStream,
        process: Process,
        on_loss: impl Fn() + Send + 'static,
    ) -> io::Result<Peer> {
        let name = format!("rank {rank} of {world_size} (process {})", process.id());
        stream.set_write_timeout(Some(limits.silence))?;
        let mut reader = stream.try_clone()?;
        reader.set_read_timeout(Some(limits.silence))?;
        let (sender, incoming) = channel();
        let (of, lost, closes) = (process.clone(), self.lost.clone(), self.closes.clone());
        std::thread::Builder::new().name(format!("from rank {rank}")).spawn(move || {
            let end = forward(&mut reader, &sender);
            if !closes.load(Ordering::SeqCst) {
                lost.set(rank, format!("{name} {}", of.describe(&end, limits)));
                on_loss();
            }
            // A stopped process of a launcher notices its loss when it continues.
            let _ = reader.shutdown(Shutdown::Both);
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

    /// The next message of `rank`, if it has arrived. Fails if some rank is lost.
    pub fn try_receive(&self, rank: usize) -> Result<Option<Message>> {
        match lock(&self.peers[rank - 1].incoming).try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => self.lost.error().map_or(Ok(None), Err),
            Err(TryRecvError::Disconnected) => Err(self.lost_by(rank, &io::ErrorKind::UnexpectedEof.into())),
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
        let children = || {
            self.peers.iter().filter_map(|peer| match &peer.process {
                Process::Child(child) => Some((peer, child)),
                Process::Launched(_) => None,
            })
        };
        for (peer, _) in children() {
            let _ = lock(&peer.stream).shutdown(Shutdown::Both);
        }
        for (_, child) in children() {
            ended(child);
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

impl Process {
    fn id(&self) -> u32 {
        match self {
            Process::Child(child) => lock(child).id(),
            Process::Launched(id) => *id,
        }
    }

    /// The end of a rank, in words. A child process is killed if it still exists.
    fn describe(&self, end: &io::Error, limits: Limits) -> String {
        let is_silent = matches!(end.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let silent = || format!("sent no heartbeat for {} s: it hangs or was stopped", limits.silence.as_secs_f64());
        match self {
            Process::Child(child) if is_silent => {
                let _ = lock(child).kill();
                ended(child);
                silent()
            }
            Process::Launched(_) if is_silent => silent(),
            Process::Child(child) => match ended(child).map(|status| (status.signal(), status.code())) {
                Some((Some(signal), _)) => format!("was killed by signal {signal}"),
                Some((None, code)) => format!("exited with code {}", code.unwrap_or(-1)),
                None => format!("closed its connection: {end}"),
            },
            Process::Launched(_) => "ended or was killed".to_owned(),
        }
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

#[cfg(test)]
mod tests;
