//! The HTTP server of blobs: weights and files.

use super::{BLOCK, Head, Source, hash};
use crate::error::{Error, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The number of cached heads. Computing the head of a weight file hashes the whole file.
const HEADS: usize = 64;

/// An HTTP server on its own thread. Dropping this value stops the server.
pub struct Server {
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    source: Arc<dyn Source>,
    bearer: Option<String>,
    heads: Mutex<BTreeMap<String, Arc<Head>>>,
    sent: Arc<AtomicU64>,
}

impl Server {
    /// Serves `source` at this address (port 0: any free port). If `bearer` is set, clients must show that token.
    pub fn start(listen: SocketAddr, bearer: Option<String>, source: Arc<dyn Source>) -> Result<Server> {
        let failed = |e: std::io::Error| Error::Refused(format!("cannot listen on {listen}: {e}"));
        let listener = std::net::TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build();
        let runtime = runtime.map_err(failed)?;
        let sent = Arc::new(AtomicU64::new(0));
        let shared = Shared { source, bearer, heads: Mutex::default(), sent: sent.clone() };
        let routes = Router::new().route("/blobs/{name}/head", get(head)).route("/blobs/{name}/data", get(data));
        let routes = routes.with_state(Arc::new(shared));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let serve = move || {
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                // Open connections are closed when the server is dropped; workers retry their requests.
                tokio::select! {
                    _ = axum::serve(listener, routes) => {}
                    _ = stopped => {}
                }
            });
            runtime_ends(runtime);
        };
        let thread = std::thread::Builder::new().name("blobs".to_owned()).spawn(serve).map_err(failed)?;
        Ok(Server { address, stop: Some(stop), sent, thread: Some(thread) })
    }

    /// The number of bytes sent so far.
    pub fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Shuts the runtime down without waiting for running reads.
fn runtime_ends(runtime: tokio::runtime::Runtime) {
    runtime.shutdown_background();
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Refusal = (StatusCode, String);
type Answer = std::result::Result<Response, Refusal>;

fn status(code: StatusCode, why: impl Into<String>) -> Refusal {
    (code, why.into())
}

impl Shared {
    fn admit(&self, headers: &HeaderMap) -> std::result::Result<(), Refusal> {
        let Some(bearer) = &self.bearer else { return Ok(()) };
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        if is_same(shown.as_bytes(), bearer.as_bytes()) {
            Ok(())
        } else {
            Err(status(StatusCode::UNAUTHORIZED, "wrong token"))
        }
    }

    fn head(&self, name: &str) -> std::io::Result<Option<Arc<Head>>> {
        // The lock is held while a head is computed, so that two hosts that request it at once cause only one pass.
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((bytes, about)) = self.source.about(name)? else {
            heads.remove(name);
            return Ok(None);
        };
        if let Some(head) = heads.get(name).filter(|head| head.bytes == bytes && head.about == about) {
            return Ok(Some(head.clone()));
        }
        let mut head = Head { bytes, block: BLOCK, hashes: Vec::new(), about };
        let mut block = vec![0; BLOCK.min(bytes) as usize];
        for index in 0..bytes.div_ceil(BLOCK) as usize {
            let range = head.range(index);
            let block = &mut block[..(range.end - range.start) as usize];
            if !self.source.read(name, range.start, block)? {
                return Ok(None);
            }
            head.hashes.push(hash(block));
        }
        let head = Arc::new(head);
        if heads.len() >= HEADS {
            heads.retain(|name, _| matches!(self.source.about(name), Ok(Some(_))));
        }
        heads.insert(name.to_owned(), head.clone());
        Ok(Some(head))
    }

    fn data(&self, name: &str, (from, to): (u64, u64)) -> std::io::Result<Option<Vec<u8>>> {
        let Some((bytes, _)) = self.source.about(name)? else { return Ok(None) };
        if to >= bytes || from > to || to - from >= BLOCK {
            return Ok(Some(Vec::new()));
        }
        let mut block = vec![0; (to - from + 1) as usize];
        Ok(self.source.read(name, from, &mut block)?.then_some(block))
    }
}

/// Compares two byte strings in constant time, so that the duration does not reveal a common prefix.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Runs a read on a thread that may block: the read may wait for the disk.
async fn blocking<T: Send + 'static>(
    shared: Arc<Shared>,
    read: impl FnOnce(&Shared) -> std::io::Result<Option<T>> + Send + 'static,
) -> std::result::Result<T, Refusal> {
    let read = tokio::task::spawn_blocking(move || read(&shared)).await;
    match read {
        Ok(Ok(Some(value))) => Ok(value),
        Ok(Ok(None)) => Err(status(StatusCode::NOT_FOUND, "no such blob, or it was deleted")),
        Ok(Err(error)) => Err(status(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        Err(_) => Err(status(StatusCode::INTERNAL_SERVER_ERROR, "the blob could not be read")),
    }
}

async fn head(State(shared): State<Arc<Shared>>, Path(name): Path<String>, headers: HeaderMap) -> Answer {
    shared.admit(&headers)?;
    let head = blocking(shared, move |shared| shared.head(&name)).await?;
    let json = serde_json::to_vec(&*head).map_err(|e| status(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(with_type(json, "application/json"))
}

async fn data(State(shared): State<Arc<Shared>>, Path(name): Path<String>, headers: HeaderMap) -> Answer {
    shared.admit(&headers)?;
    let range = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(parse_range);
    let unfit = || status(StatusCode::RANGE_NOT_SATISFIABLE, "request a byte range of at most one block");
    let range = range.ok_or_else(unfit)?;
    let sent = shared.sent.clone();
    let block = blocking(shared, move |shared| shared.data(&name, range)).await?;
    sent.fetch_add(block.len() as u64, Ordering::Relaxed);
    if block.is_empty() {
        return Err(unfit());
    }
    let mut response = with_type(block, "application/octet-stream");
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    Ok(response)
}

fn with_type(bytes: Vec<u8>, kind: &'static str) -> Response {
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(CONTENT_TYPE, axum::http::HeaderValue::from_static(kind));
    response
}

/// Parses `bytes=FROM-TO`. No other form is accepted.
fn parse_range(text: &str) -> Option<(u64, u64)> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}
