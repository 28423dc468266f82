//! How processes that a launcher has started find each other: rank 0 listens on a socket in a directory of the user,
//! and the other ranks connect to it.
//!
//! Rank 0 listens before it does anything else, and until it ends. So a rank may start late, and if rank 0 fails
//! early, for example because of its configuration, it can still send its exit code to all ranks.

mod place;

use crate::lock::lock;
use crate::{Error, Launch, Limits, Message, Result};
use place::Place;
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a waiting rank looks for rank 0, and rank 0 checks whether to continue waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a process that connects may take to introduce itself, and rank 0 to answer.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a rank 0 that ends early waits for ranks that have not joined yet, to send them its exit code.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(10);
/// The answer to a process that has joined.
const JOINED: &str = "joined";

/// The place where rank 0 meets the other ranks. They end when the process of this value ends.
pub struct Rendezvous {
    shared: Arc<Shared>,
    place: Place,
    /// Locked as long as this process is rank 0 of its launch.
    _lock: File,
}

struct Shared {
    launch: Launch,
    build: String,
    arrivals: Mutex<Arrivals>,
    changed: Condvar,
}

/// The processes that have connected so far.
#[derive(Default)]
struct Arrivals {
    joined: BTreeMap<usize, Joined>,
    /// The number of processes that could not join.
    refused: usize,
    /// The sentence about the first of them.
    why: Option<String>,
    /// The exit code of rank 0, if it ends.
    exit_code: Option<u8>,
}

/// A process that has joined.
pub(crate) struct Joined {
    pub(crate) stream: UnixStream,
    pub(crate) process: u32,
    /// The cores on which the process may run, as the system lists them.
    pub(crate) cores: String,
}

impl Rendezvous {
    /// Lets the other ranks of `launch` join, whose rank is 0. `build` names this build of the program, which must be
    /// that of all ranks.
    pub fn open(launch: Launch, build: &str) -> Result<Rendezvous> {
        let place = Place::of(&launch.id)?;
        let failed = |error| Error::Lost(format!("rank 0 cannot listen in {}: {error}", place.dir().display()));
        place.create()?;
        let mut lock = File::options().create(true).append(true).open(place.lock()).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let other = fs::read_to_string(place.lock()).unwrap_or_default();
                return Err(Error::Refused(twice(0, &launch, &other, process::id())));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // The files of a process that was killed.
        lock.set_len(0).and_then(|()| write!(lock, "{}", process::id())).map_err(failed)?;
        let _ = fs::remove_file(place.socket());
        let listener = UnixListener::bind(place.socket()).map_err(failed)?;
        let (arrivals, changed) = Default::default();
        let shared = Arc::new(Shared { launch, build: build.to_owned(), arrivals, changed });
        let greets = shared.clone();
        let accept = move || {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let greets = greets.clone();
                        // On another thread, since a process may connect and send nothing.
                        thread::spawn(move || greets.greet(stream));
                    }
                    Err(_) => thread::sleep(POLL_INTERVAL),
                }
            }
        };
        thread::Builder::new().name("rendezvous".to_owned()).spawn(accept).map_err(failed)?;
        Ok(Rendezvous { shared, place, _lock: lock })
    }

    /// The place of this process.
    pub fn launch(&self) -> &Launch {
        &self.shared.launch
    }

    /// Waits until all other ranks have joined, or `cancels` returns true. `note` is called if this takes long.
    pub(crate) fn wait(
        &self,
        limits: Limits,
        cancels: &dyn Fn() -> bool,
        note: &mut dyn FnMut(&str),
    ) -> Result<Vec<Joined>> {
        let (start, mut noted) = (Instant::now(), false);
        let mut arrivals = lock(&self.shared.arrivals);
        loop {
            if let Some(why) = &arrivals.why {
                return Err(Error::Refused(why.clone()));
            }
            let missing = self.shared.missing(&arrivals);
            if missing.is_empty() {
                return arrivals.joined.values().map(Joined::try_clone).collect();
            }
            if cancels() {
                return Err(Error::Cancelled);
            }
            let missing = || {
                let names: Vec<_> = missing.iter().map(usize::to_string).collect();
                let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
                format!("{ranks} {} of {}", names.join(", "), self.launch().world_size)
            };
            if start.elapsed() >= limits.join {
                return Err(Error::Lost(format!("{} did not start within {} s", missing(), limits.join.as_secs_f64())));
            }
            if start.elapsed() >= limits.patience && !noted {
                note(&format!("rank 0 waits for {}, at most {} s", missing(), limits.join.as_secs_f64()));
                noted = true;
            }
            let waited = self.shared.changed.wait_timeout(arrivals, POLL_INTERVAL);
            arrivals = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ranks that may run on other cores than this process, by the binding of their launcher.
    pub fn ranks_on_other_cores(&self) -> Vec<usize> {
        let own = cores();
        let arrivals = lock(&self.shared.arrivals);
        arrivals.joined.iter().filter(|(_, joined)| joined.cores != own).map(|(rank, _)| *rank).collect()
    }

    /// Ends the other ranks, which exit with the same code as this process. Ranks that have not started yet may take
    /// some seconds to do so.
    pub fn end(&self, exit_code: u8) {
        let mut arrivals = lock(&self.shared.arrivals);
        arrivals.exit_code = Some(exit_code);
        for joined in arrivals.joined.values_mut() {
            joined.end(exit_code);
        }
        let start = Instant::now();
        while self.shared.missing(&arrivals).len() > arrivals.refused && start.elapsed() < FAREWELL_TIMEOUT {
            let waited = self.shared.changed.wait_timeout(arrivals, POLL_INTERVAL);
            arrivals = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(arrivals);
        self.place.remove();
    }
}

impl Shared {
    fn missing(&self, arrivals: &Arrivals) -> Vec<usize> {
        (1..self.launch.world_size).filter(|rank| !arrivals.joined.contains_key(rank)).collect()
    }

    /// Lets the process at the other end of `stream` join, or tells it why it cannot.
    fn greet(&self, mut stream: UnixStream) {
        let timeout = Some(GREETING_TIMEOUT);
        let timed = stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout));
        let Ok(hello) = timed.and_then(|()| Message::read_from(&mut stream)) else { return };
        let mut arrivals = lock(&self.arrivals);
        match self.check(&hello, &arrivals) {
            Ok((rank, process, cores)) => {
                if Message::of(JOINED).write_to(&mut stream).is_err() {
                    return;
                }
                let mut joined = Joined { stream, process, cores };
                if let Some(exit_code) = arrivals.exit_code {
                    joined.end(exit_code);
                }
                arrivals.joined.insert(rank, joined);
            }
            Err(why) => {
                let _ = Message::of(why.clone()).write_to(&mut stream);
                // A process that comes after all ranks have joined does not end the run.
                if !self.missing(&arrivals).is_empty() {
                    arrivals.refused += 1;
                    arrivals.why.get_or_insert(why);
                }
            }
        }
        self.changed.notify_all();
    }

    /// The rank, id and cores of a process that introduces itself, or why it cannot join.
    fn check(&self, hello: &Message, arrivals: &Arrivals) -> std::result::Result<(usize, u32, String), String> {
        let (size, of) = (self.launch.size, self.launch.world_size);
        let own = &self.build;
        let (build, cores) = hello.text.split_once('\n').unwrap_or((&hello.text, ""));
        let [rank, world_size, process] = hello.numbers[..] else {
            return Err(format!("a rank is another build of the program than rank 0, which is {own}"));
        };
        let rank = rank as usize;
        if build != own {
            return Err(format!(
                "rank {rank} of {of} (process {process}) is build {build} of the program, but rank 0 is {own}"
            ));
        }
        if world_size as usize != of || rank == 0 || rank >= of {
            return Err(format!(
                "process {process} has rank {rank} of {world_size}, but {size} of rank 0 is {of}: start all processes \
                 with one launcher"
            ));
        }
        match arrivals.joined.get(&rank) {
            Some(other) => Err(twice(rank, &self.launch, &other.process.to_string(), process)),
            None => Ok((rank, process, cores.to_owned())),
        }
    }
}

impl Joined {
    fn try_clone(&self) -> Result<Joined> {
        let failed = |error: io::Error| Error::Lost(format!("a rank's connection cannot be used: {error}"));
        Ok(Joined {
            stream: self.stream.try_clone().map_err(failed)?,
            process: self.process,
            cores: self.cores.clone(),
        })
    }

    fn end(&mut self, exit_code: u8) {
        // A rank that is lost no longer reads.
        let _ = Message::exit(exit_code).write_to(&mut self.stream);
    }
}

fn twice(rank: usize, launch: &Launch, first: &str, second: u32) -> String {
    format!("two processes of this launch have rank {rank} of {}: {first} and {second}", launch.world_size)
}

/// Connects to rank 0 of `launch` as one of its other ranks, and waits until rank 0 has started. `note` is called if
/// this takes long.
pub fn join(launch: &Launch, build: &str, limits: Limits, note: &mut dyn FnMut(&str)) -> Result<UnixStream> {
    let (start, mut noted) = (Instant::now(), false);
    let place = Place::of(&launch.id)?;
    loop {
        if place.check()?
            && let Ok(stream) = UnixStream::connect(place.socket())
            && let Some(stream) = introduce(stream, launch, build)?
        {
            return Ok(stream);
        }
        let limit = limits.join.as_secs_f64();
        if start.elapsed() >= limits.join {
            return Err(Error::Lost(format!("{launch} found no rank 0 of its launch within {limit} s")));
        }
        if start.elapsed() >= limits.patience && !noted {
            note(&format!("{launch} waits for rank 0, at most {limit} s"));
            noted = true;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Introduces this process to rank 0. `None` if rank 0 does not answer, for example because it is ending.
fn introduce(mut stream: UnixStream, launch: &Launch, build: &str) -> Result<Option<UnixStream>> {
    let numbers = vec![launch.rank as u32, launch.world_size as u32, process::id()];
    let hello = Message { text: format!("{build}\n{}", cores()), numbers };
    let exchanged = stream.set_read_timeout(Some(GREETING_TIMEOUT)).and_then(|()| {
        hello.write_to(&mut stream)?;
        let answer = Message::read_from(&mut stream)?;
        stream.set_read_timeout(None).map(|()| answer)
    });
    match exchanged {
        Ok(answer) if answer.text == JOINED => Ok(Some(stream)),
        Ok(answer) => Err(Error::Refused(answer.text)),
        Err(_) => Ok(None),
    }
}

/// The cores on which this process may run, as the system lists them; empty where it does not.
fn cores() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests;
