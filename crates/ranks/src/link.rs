//! The side of a rank other than 0.

use crate::Message;
use crate::lock::lock;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The connection of this rank to rank 0. It sends heartbeats from a thread of its own.
pub struct Link {
    stream: Arc<Mutex<UnixStream>>,
    incoming: Receiver<Message>,
}

impl Link {
    /// Uses standard input, which must be the socket of [`Peers`](crate::Peers). `ended` is called, on another thread,
    /// when rank 0 closes the connection or ends: the caller then exits, whatever it is computing. The argument is rank
    /// 0's exit code, if rank 0 has sent it.
    pub fn on_stdin(heartbeat: Duration, ended: impl FnOnce(Option<u8>) + Send + 'static) -> io::Result<Link> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        let stream = UnixStream::from(socket);
        let other = |_| io::Error::new(io::ErrorKind::NotConnected, "standard input must be the socket of rank 0");
        stream.peer_addr().map_err(other)?;
        Link::of(stream, heartbeat, ended)
    }

    /// Uses this socket, for example that of [`join`](crate::join).
    pub fn of(
        stream: UnixStream,
        heartbeat: Duration,
        ended: impl FnOnce(Option<u8>) + Send + 'static,
    ) -> io::Result<Link> {
        let mut reader = stream.try_clone()?;
        let stream = Arc::new(Mutex::new(stream));
        let (sender, incoming) = channel();
        std::thread::Builder::new().name("from rank 0".to_owned()).spawn(move || {
            let exit_code = loop {
                match Message::read_from(&mut reader) {
                    Ok(message) if message.exit_code().is_some() => break message.exit_code(),
                    Ok(message) => drop(sender.send(message)),
                    Err(_) => break None,
                }
            };
            ended(exit_code);
        })?;
        let beating = Arc::downgrade(&stream);
        std::thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
            while let Some(stream) = beating.upgrade() {
                if send(&stream, &Message::heartbeat()).is_err() {
                    return;
                }
                drop(stream);
                std::thread::sleep(heartbeat);
            }
        })?;
        Ok(Link { stream, incoming })
    }

    /// Sends a message to rank 0.
    pub fn send(&self, message: &Message) -> io::Result<()> {
        send(&self.stream, message)
    }

    /// Waits for the next message of rank 0; `None` after the connection has ended.
    pub fn receive(&self) -> Option<Message> {
        self.incoming.recv().ok()
    }
}

fn send(stream: &Mutex<UnixStream>, message: &Message) -> io::Result<()> {
    message.write_to(&mut *lock(stream))
}
