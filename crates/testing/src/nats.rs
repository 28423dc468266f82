//! A NATS server for one test, which can be killed and emptied. It needs `nats-server` (Debian's package of that name);
//! if that is missing, the test is skipped.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The token that clients must send to the server.
pub const NATS_TOKEN: &str = "let-me-in";

/// A server on 127.0.0.1. Dropping it ends the server.
pub struct NatsServer {
    process: Option<Child>,
    store: tempfile::TempDir,
    /// The port of the server.
    pub port: u16,
    options: Vec<String>,
}

impl NatsServer {
    /// Starts a server with JetStream. `None` if the program is missing: the test should then return.
    pub fn start() -> Option<NatsServer> {
        NatsServer::with(&["-js"])
    }

    /// Starts a server with these options in addition to address, token and store.
    pub fn with(options: &[&str]) -> Option<NatsServer> {
        NatsServer::installed()?;
        let port = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its number").port();
        let options = options.iter().map(|word| (*word).to_owned()).collect();
        let mut server = NatsServer { process: None, store: store(), port, options };
        server.begin();
        Some(server)
    }

    /// Returns `None` if the program is missing; the test should then return. CI fails in that case, unless
    /// `NATS_TESTS=skip` is set (by `.ci/run`, where the program cannot be installed).
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

    /// Starts the server again with the contents of its store.
    pub fn begin(&mut self) {
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "--auth", NATS_TOKEN]).args(&self.options);
        command.arg("-sd").arg(self.directory()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("nats-server starts"));
        crate::wait_until("the server starts", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    /// Kills the server, and deletes its store.
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
