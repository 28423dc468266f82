//! A NATS server for one test, which can kill the server and delete its store. The program `nats-server` (Debian's
//! package of that name) must be installed; otherwise the test is skipped.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The token that clients must send to the server.
pub const NATS_TOKEN: &str = "let-me-in";

/// A server on 127.0.0.1. Dropping this value kills the server.
pub struct NatsServer {
    process: Option<Child>,
    store: tempfile::TempDir,
    /// The port of the server.
    pub port: u16,
    options: Vec<String>,
}

impl NatsServer {
    /// Starts a server with JetStream. Returns `None` if the program is missing; the test should then return.
    pub fn start() -> Option<NatsServer> {
        NatsServer::with(&["-js"])
    }

    /// Starts a server with `options`, in addition to the options for address, token and store.
    pub fn with(options: &[&str]) -> Option<NatsServer> {
        NatsServer::installed()?;
        let port = TcpListener::bind("127.0.0.1:0")
            .expect("bind a free port")
            .local_addr()
            .expect("read the port number")
            .port();
        let options = options.iter().map(|word| (*word).to_owned()).collect();
        let mut server = NatsServer { process: None, store: store(), port, options };
        server.begin();
        Some(server)
    }

    /// Returns `None` if the program is missing; the test should then return. CI fails in that case, unless
    /// `NATS_TESTS=skip` is set (`.ci/run` sets it on machines where the program cannot be installed).
    pub fn installed() -> Option<()> {
        let is_skipped = std::env::var("NATS_TESTS").as_deref() == Ok("skip");
        if is_skipped {
            eprintln!("skipped: nats-server cannot be installed on this machine (NATS_TESTS=skip)");
            return None;
        }
        crate::program("nats-server")
    }

    /// Wraps a server process that the test started itself.
    pub fn of(process: Child, port: u16) -> NatsServer {
        NatsServer { process: Some(process), store: store(), port, options: Vec::new() }
    }

    /// Starts the server again with the contents of its store.
    pub fn begin(&mut self) {
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "--auth", NATS_TOKEN]).args(&self.options);
        command.arg("-sd").arg(self.directory()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("start nats-server"));
        crate::wait_until("nats-server accepts connections", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    /// Kills the server and deletes its store.
    pub fn empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.directory()).expect("delete the store");
    }

    /// The URL of a run named `test`.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}/test", self.port)
    }

    fn directory(&self) -> PathBuf {
        self.store.path().join("store")
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            process.wait().expect("wait for the server to exit");
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn store() -> tempfile::TempDir {
    tempfile::tempdir().expect("create a temporary directory")
}
