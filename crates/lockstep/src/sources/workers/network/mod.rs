//! Workers on other machines. Jobs and results go through a NATS server ([`fleet::exchange`]). Weights and files are
//! fetched from the learner over HTTP ([`fleet::blobs`]), once per host. On the host they have the same layout as at
//! the learner: a directory with `learner.json`, and the slots of shared memory named in it. So a worker runs the same
//! code on any machine.

mod host;
mod serve;
#[cfg(test)]
mod tests;

pub use host::Host;
pub use serve::Serving;

use super::fleet_error;
use crate::error::BadInput;
use fleet::WorkerName;
use fleet::exchange::spool::SpoolLearner;
use fleet::exchange::{Exchange, LearnerState, WorkerExchange};
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The address and credentials of a NATS server.
#[derive(Clone, Debug, Default)]
pub struct NatsServer {
    /// The address, `nats://HOST:PORT/NAME` or `tls://HOST:PORT/NAME`.
    pub url: String,
    /// The token that the server requires.
    pub token: Option<String>,
    /// A file with the certificate authority of the server, unless the system trusts it.
    pub certificates: Option<PathBuf>,
}

/// How workers on other machines reach a learner.
#[derive(Clone, Debug)]
pub struct Network {
    /// The NATS server for jobs and results.
    pub server: NatsServer,
    /// The address at which the learner serves weights.
    pub listen: SocketAddr,
    /// The `HOST:PORT` for workers; if `None`, this machine's address on the route to the NATS server.
    pub advertise: Option<String>,
}

/// The address and the files of a learner, for workers on other machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPlace {
    /// `HOST:PORT` of the learner's HTTP server.
    pub address: String,
    /// Names of the model's files.
    pub files: Vec<String>,
}

/// Returns the last state that the worker received from its learner.
pub type Watch = Arc<dyn Fn() -> Option<LearnerState> + Send + Sync>;

/// A worker's connection to the run, and a function that returns the learner's last state.
pub type Joined = (Box<dyn WorkerExchange + Send>, Watch);

/// Whether the value of `--join` is a server's address, as opposed to a directory.
pub fn is_server(join: &Path) -> bool {
    join.to_str().is_some_and(|text| text.starts_with("nats://") || text.starts_with("tls://"))
}

impl NatsServer {
    /// The bearer token for the learner's HTTP server; `None` without a NATS token.
    fn bearer(&self) -> Option<String> {
        self.token.as_deref().map(fleet::blobs::bearer)
    }
}

impl Network {
    /// Checks the addresses and credentials before a model is loaded.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.server.token.is_none() && !self.listen.ip().is_loopback() {
            return Err(BadInput::new(format!(
                "--listen {} would show the weights to anyone: set a token on the NATS server, and pass it to the \
                 learner and its workers with --nats-token-file or LOCKSTEP_NATS_TOKEN",
                self.listen
            )));
        }
        built::check(&self.server)
    }

    /// The address for workers.
    fn advertised(&self, bound: SocketAddr, server: &str) -> anyhow::Result<String> {
        if let Some(advertise) = &self.advertise {
            return Ok(if advertise.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
                advertise.clone()
            } else {
                format!("{advertise}:{}", bound.port())
            });
        }
        if !bound.ip().is_unspecified() {
            return Ok(bound.to_string());
        }
        let own = || {
            let server = server.to_socket_addrs().ok()?.next()?;
            let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = UdpSocket::bind(any).ok()?;
            // Nothing is sent: the system only reports the address that it would send from.
            socket.connect(server).ok()?;
            Some(SocketAddr::new(socket.local_addr().ok()?.ip(), bound.port()).to_string())
        };
        own().ok_or_else(|| {
            BadInput::new(format!("--listen {bound}: set --advertise HOST to the name by which workers reach it"))
        })
    }
}

/// Opens the learner's side of the connection.
pub(super) fn learner_exchange(out: &Path, network: Option<&Network>) -> anyhow::Result<Box<dyn Exchange + Send>> {
    match network {
        None => Ok(Box::new(SpoolLearner::open(out).map_err(fleet_error)?)),
        Some(network) => built::learner(out, &network.server),
    }
}

/// Joins the run of a server as the worker `name`.
pub fn join(server: &NatsServer, name: WorkerName) -> anyhow::Result<Joined> {
    built::join(server, name)
}

/// Functions of a build with NATS.
#[cfg(feature = "nats")]
mod built {
    use super::{Joined, NatsServer, fleet_error};
    use fleet::WorkerName;
    use fleet::exchange::Exchange;
    use fleet::exchange::nats::{self, Address, NatsLearner, NatsOptions, NatsWorker};
    use std::path::Path;
    use std::sync::Arc;

    fn options(NatsServer { url, token, certificates }: &NatsServer) -> anyhow::Result<NatsOptions> {
        let address = Address::parse(url).map_err(fleet_error)?;
        Ok(NatsOptions { address, token: token.clone(), certificates: certificates.clone() })
    }

    pub fn check(server: &NatsServer) -> anyhow::Result<()> {
        nats::check(&options(server)?).map_err(fleet_error)
    }

    /// The server's `HOST:PORT`.
    pub fn place(server: &NatsServer) -> anyhow::Result<String> {
        Ok(options(server)?.address.place())
    }

    pub fn learner(out: &Path, server: &NatsServer) -> anyhow::Result<Box<dyn Exchange + Send>> {
        Ok(Box::new(NatsLearner::open(out, &options(server)?).map_err(fleet_error)?))
    }

    pub fn join(server: &NatsServer, name: WorkerName) -> anyhow::Result<Joined> {
        let worker = NatsWorker::join(&options(server)?, name).map_err(fleet_error)?;
        let watch = worker.watch();
        Ok((Box::new(worker), Arc::new(move || watch.learner())))
    }
}

/// Functions of a build without NATS, which all return the same error.
#[cfg(not(feature = "nats"))]
mod built {
    use super::{BadInput, Joined, NatsServer};
    use fleet::WorkerName;
    use fleet::exchange::Exchange;
    use std::path::Path;

    fn without(server: &NatsServer) -> anyhow::Error {
        BadInput::new(format!(
            "{}: this program was built without NATS; build it with `cargo build --release -p lockstep-cli --features \
             nats`",
            server.url
        ))
    }

    pub fn check(server: &NatsServer) -> anyhow::Result<()> {
        Err(without(server))
    }

    pub fn place(server: &NatsServer) -> anyhow::Result<String> {
        Err(without(server))
    }

    pub fn learner(_: &Path, server: &NatsServer) -> anyhow::Result<Box<dyn Exchange + Send>> {
        Err(without(server))
    }

    pub fn join(server: &NatsServer, _: WorkerName) -> anyhow::Result<Joined> {
        Err(without(server))
    }
}
