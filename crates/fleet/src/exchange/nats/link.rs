//! The connection to a NATS server, on its own thread.

use super::{ANSWER, NatsOptions, PAUSE};
use crate::error::{Error, Result};
use async_nats::client::Client;
use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::{ConnectErrorKind, ConnectOptions};
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The timeout of one attempt to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// The interval between pings that check the connection.
const PING: Duration = Duration::from_secs(2);
/// The number of attempts to connect when a process starts.
const TRIES: usize = 3;

pub(super) struct Link {
    /// `None` only while the connection is being closed.
    runtime: Option<Runtime>,
    pub client: Client,
    pub jetstream: Context,
}

impl Link {
    /// Connects to the server. Fails with the reason if the server cannot be reached or refuses the token. A connection
    /// that is lost later is re-established for as long as this value lives.
    pub fn connect(options: &NatsOptions, who: &str) -> Result<Link> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|e| Error::Failed(format!("cannot start a thread: {e}")))?;
        let server = options.address.server();
        let connect = || {
            let mut connect = ConnectOptions::new()
                .name(who)
                .connection_timeout(CONNECT)
                .request_timeout(Some(ANSWER))
                .ping_interval(PING)
                .max_reconnects(None)
                .reconnect_delay_callback(|tries| Duration::from_millis(100 * tries.min(10) as u64))
                // Other servers of a cluster may not be reachable from here, so only the given address is used.
                .ignore_discovered_servers()
                .require_tls(options.address.is_tls());
            if let Some(token) = &options.token {
                connect = connect.token(token.clone());
            }
            if let Some(file) = &options.certificates {
                connect = connect.add_root_certificates(file.clone());
            }
            runtime.block_on(connect.connect(&server))
        };
        let mut tries = 1;
        let client = loop {
            match connect() {
                Ok(client) => break client,
                Err(error) => {
                    let is_there = matches!(error.kind(), ConnectErrorKind::AuthorizationViolation);
                    if is_there || tries == TRIES {
                        return Err(refused(options, &error));
                    }
                }
            }
            tries += 1;
            std::thread::sleep(PAUSE);
        };
        // The JetStream context spawns a task, which needs the runtime.
        let entered = runtime.enter();
        let mut jetstream = async_nats::jetstream::new(client.clone());
        jetstream.set_timeout(ANSWER);
        drop(entered);
        Ok(Link { runtime: Some(runtime), client, jetstream })
    }

    pub fn is_connected(&self) -> bool {
        is_connected(&self.client)
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    /// Runs a task and waits for its result, for at most [`ANSWER`].
    pub fn wait<T>(&self, task: impl Future<Output = T>) -> Option<T> {
        let runtime = self.runtime.as_ref()?;
        runtime.block_on(async { tokio::time::timeout(ANSWER, task).await.ok() })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The runtime's tasks are cancelled, so shutting down does not wait for their I/O.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) fn is_connected(client: &Client) -> bool {
    client.connection_state() == State::Connected
}

pub(super) async fn until_connected(client: &Client) {
    while !is_connected(client) {
        tokio::time::sleep(PAUSE).await;
    }
}

fn refused(options: &NatsOptions, error: &async_nats::ConnectError) -> Error {
    let server = options.address.server();
    let chain = std::iter::successors(std::error::Error::source(error), |error| error.source());
    let why = chain.last().map_or_else(|| error.to_string(), |last| format!("{error}: {last}"));
    Error::Refused(match (error.kind(), &options.token) {
        (ConnectErrorKind::AuthorizationViolation, Some(_)) => {
            format!("the NATS server {server} refuses the token: it is wrong")
        }
        (ConnectErrorKind::AuthorizationViolation, None) => {
            format!("the NATS server {server} requires a token: pass it with --nats-token-file or LOCKSTEP_NATS_TOKEN")
        }
        // A certificate error may also arrive as an I/O error.
        _ if error.kind() == ConnectErrorKind::Tls || why.contains("certificate") => {
            format!("the NATS server {server} cannot be trusted: {why} (set its certificate authority with --nats-ca)")
        }
        _ => format!("no NATS server answers at {server}: {why}"),
    })
}

#[cfg(test)]
impl Link {
    /// A link with a client that never connects.
    pub fn nowhere() -> Link {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(ConnectOptions::new().retry_on_initial_connect().connect("nats://127.0.0.1:1"));
        let client = client.unwrap();
        let entered = runtime.enter();
        let jetstream = async_nats::jetstream::new(client.clone());
        drop(entered);
        Link { runtime: Some(runtime), client, jetstream }
    }
}
