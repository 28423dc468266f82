//! The server with a tiny random model, over loopback.

mod access;
mod bodies;
mod completions;
mod tinker;
mod tiny;
mod tools;

use crate::{Access, Server};
use lockstep::context;
use lockstep::service::{NamedDir, Service, ServiceOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A server on a thread, which stops at the end of the test.
struct Running {
    service: Service,
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    _dir: tempfile::TempDir,
}

/// A response: status, headers in lower case, and body.
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The events of a stream, without the last one, which must be `[DONE]`.
    #[track_caller]
    fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> = self.body.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{}", self.body);
        events.iter().map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }
}

fn options(dir: &tempfile::TempDir) -> ServiceOptions {
    let state = dir.path().join("state");
    let dir = dir.path().join("tiny");
    tiny::write(&dir);
    ServiceOptions {
        model: NamedDir { name: "tiny".to_owned(), dir: dir.display().to_string() },
        adapters: Vec::new(),
        other_base: false,
        dtype: "f32".into(),
        max_model_len: None,
        max_num_seqs: 4,
        max_waiting: 60,
        kv_cache_blocks: Some(5 * tiny::CONTEXT / 64),
        seed: 0,
        state,
    }
}

fn service(dir: &tempfile::TempDir, max_waiting: usize) -> Service {
    let ctx = context(None, Some(1), "f32".into()).unwrap();
    Service::start(&ctx, &ServiceOptions { max_waiting, ..options(dir) }, |_| {}).unwrap()
}

impl Running {
    fn new() -> Running {
        Running::with(60, &Access::default(), "127.0.0.1:0")
    }

    fn with(max_waiting: usize, access: &Access, listen: &str) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let service = service(&dir, max_waiting);
        let server = Server::bind(listen, access).unwrap();
        let port = server.url.rsplit_once(':').unwrap().1.parse().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (served, stopped) = (service.clone(), stop.clone());
        let thread = std::thread::spawn(move || server.run(served, move || stopped.load(Ordering::Relaxed)));
        Running { service, port, stop, thread: Some(thread), _dir: dir }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(testing::HANG)).unwrap();
        stream
    }

    /// Sends a request with these headers; each ends with a line break.
    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let (status, head, body) = self.send_bytes(method, path, headers, body.as_bytes());
        let body = String::from_utf8(body).unwrap();
        let body = if head.contains("transfer-encoding: chunked") { unchunked(&body) } else { body };
        Reply { status, head, body }
    }

    /// [`send`](Self::send) for bodies that are not text. Returns status, headers in lower case, and body.
    fn send_bytes(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = self.connect();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("not a response: {}", String::from_utf8_lossy(&bytes)));
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head, bytes.split_off(end + 4))
    }

    fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}\r\n", self.port)
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &self.host(), "")
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        let headers = self.host() + "Content-Type: application/json\r\n";
        self.send("POST", path, &headers, &body.to_string())
    }

    #[track_caller]
    fn good(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    }

    fn wait_until_idle(&self) {
        let pages = self.service.sizes().kv_cache_blocks;
        testing::wait_until("all pages are free", || {
            let status = self.service.status();
            status.open == 0 && status.free_blocks == pages
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.unwrap().is_ok());
        }
    }
}

/// The text of a body with the transfer encoding `chunked`.
fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text += &rest[..size];
        body = rest[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    text
}

/// A request for `n` completions that run for a long time.
fn long(n: usize, stream: bool) -> Value {
    let tokens = tiny::CONTEXT - 100;
    json!({"model": "tiny", "prompt": "a", "max_tokens": tokens, "n": n, "ignore_eos": true, "stream": stream})
}
