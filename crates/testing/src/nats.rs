//! A NATS server of a test's own, which can be killed and emptied. Needs `nats-server` (Debian's package of that name);
//! where it is missing, the test is skipped.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The token that clients of the server must give.
pub const NATS_TOKEN: &str = "let-me-in";

/// A server on 127.0.0.1. It ends when it is dropped.
pub struct NatsServer {
    process: Option<Child>,
    store: tempfile::TempDir,
    /// The port that it listens on.
    pub port: u16,
    options: Vec<String>,
}

impl NatsServer {
    /// Starts a server with JetStream. `None` if the program is missing: the test should then return.
    pub fn start() -> Option<NatsServer> {
        NatsServer::with(&["-js"])
    }

    /// Starts a server with these options beside address, token and store.
    pub fn with(options: &[&str]) -> Option<NatsServer> {
        NatsServer::installed()?;
        let port = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its number").port();
        let options = options.iter().map(|word| (*word).to_owned()).collect();
        let mut server = NatsServer { process: None, store: store(), port, options };
        server.begin();
        Some(server)
    }

    /// `None` if the program is missing: the test should then return. With `NATS_TESTS=skip` (from `.ci/run`, where it
    /// cannot be installed) CI does not fail then.
    pub fn installed() -> Option<()> {
        let is_skipped = std::env::var("NATS_TESTS").as_deref() == Ok("skip");
        if is_skipped {
            eprintln!("skipped: there is no nats-server here (NATS_TESTS=skip)");
            return None;
        }
        crate::program("nats-server")
    }

    /// Takes over a server that the test started itself.
    pub fn of(process: Child, port: u16) -> NatsServer {
        NatsServer { process: Some(process), store: store(), port, options: Vec::new() }
    }

    /// Starts it again, with what its store has.
    pub fn begin(&mut self) {
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "--auth", NATS_TOKEN]).args(&self.options);
        command.arg("-sd").arg(self.directory()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("nats-server starts"));
        crate::wait_until("the server starts", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    /// Kills it, and deletes what it has stored.
    pub fn empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.directory()).expect("the store is deleted");
    }

    /// The address of a run named `test`.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}/test", self.port)
    }

    fn directory(&self) -> PathBuf {
        self.store.path().join("store")
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            process.wait().expect("the server ends");
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn store() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}
