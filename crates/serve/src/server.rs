//! The listener, the routes and access control.

use crate::error::{ApiError, answer, shortened};
use crate::metrics::metrics;
use crate::openai::{Endpoint, Wanted, models, now, respond};
use crate::tinker::{MOST_TRAINING_BODY, Tinker, TinkerError, kept, rest};
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::serve::ListenerExt;
use futures_util::StreamExt;
use lockstep::access::{Hosts, Secret};
use lockstep::service::{Refused, Service};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum size of a request's body in bytes.
const MOST_BODY: usize = 16 << 20;
/// The maximum number of bytes that are received of a body that is too large.
const MOST_DROPPED: usize = 256 << 20;
/// The time in which a client must have sent the body of its request.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Content types of requests.
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/x-protobuf";
/// The interval at which a request to stop is noticed.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Who may use the server.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The key that clients must send. Required if other machines can reach the server.
    pub api_key: Option<String>,
    /// Other values of `Host` that requests may have, such as `localhost:8888` of a forwarded port.
    pub allow_hosts: Vec<String>,
}

/// A server that is bound to its address but does not respond yet.
pub struct Server {
    listener: TcpListener,
    hosts: Hosts,
    api_key: Option<Secret>,
    log: Option<Box<Log>>,
    /// The address for clients, without a path.
    pub url: String,
}

/// A function that prints a line about a request.
type Log = dyn Fn(&str) + Send + Sync;

struct Site {
    service: Service,
    tinker: Tinker,
    hosts: Hosts,
    api_key: Option<Secret>,
    log: Option<Box<Log>>,
    started: u64,
}

type Shared = State<Arc<Site>>;

impl Server {
    /// Binds to `listen`, HOST:PORT; port 0 selects a free port. Fails for an address that other machines can reach if
    /// there is no key.
    pub fn bind(listen: &str, access: &Access) -> Result<Server, String> {
        let expected = "expected HOST:PORT, such as 127.0.0.1:8000";
        let (host, port) = listen.rsplit_once(':').ok_or_else(|| format!("--listen {listen}: {expected}"))?;
        let port: u16 = port.parse().map_err(|_| format!("--listen {listen}: {expected}"))?;
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let found =
            (name, port).to_socket_addrs().map_err(|error| format!("--listen {listen}: {error}; {expected}"))?;
        let address = found.into_iter().next().ok_or_else(|| format!("--listen {listen}: {host} has no address"))?;
        if !address.ip().is_loopback() && access.api_key.is_none() {
            return Err(format!(
                "--listen {listen}: other machines can reach this address, so clients must send a key: set the \
                 environment variable LOCKSTEP_API_KEY or --api-key-file FILE, or listen on 127.0.0.1"
            ));
        }
        let listener = TcpListener::bind(address).map_err(|error| {
            let next = port.saturating_add(1);
            format!("cannot listen on {listen}: {error}; try --listen {host}:{next}, or {host}:0 for any free port")
        })?;
        let address: SocketAddr = listener.local_addr().map_err(|error| format!("--listen {listen}: {error}"))?;
        let mut hosts = Hosts::new(host, address.ip(), address.port());
        hosts.allow(&access.allow_hosts);
        let shown = match address.ip() {
            IpAddr::V6(ip) => format!("[{ip}]"),
            IpAddr::V4(ip) => ip.to_string(),
        };
        let url = format!("http://{shown}:{}", address.port());
        Ok(Server { listener, hosts, api_key: access.api_key.as_deref().map(Secret::new), log: None, url })
    }

    /// Lets `log` print a line about each request, without text and tokens.
    pub fn log_to(self, log: impl Fn(&str) + Send + Sync + 'static) -> Server {
        Server { log: Some(Box::new(log)), ..self }
    }

    /// Responds until `is_stopped`. Then new requests are refused, and the function returns once those that were
    /// accepted have ended.
    pub fn run(self, service: Service, is_stopped: impl Fn() -> bool + Send + 'static) -> std::io::Result<()> {
        allow_connections();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        self.listener.set_nonblocking(true)?;
        let Server { listener, hosts, api_key, log, .. } = self;
        let (stopping, computing) = (service.clone(), service.clone());
        let is_local = listener.local_addr()?.ip().is_loopback();
        let tinker = Tinker::new(service.clone(), is_local);
        let site = Arc::new(Site { service, tinker, hosts, api_key, log, started: now() });
        let waited_for = site.clone();
        let stop = async move {
            while !is_stopped() {
                tokio::time::sleep(STOP_INTERVAL).await;
            }
            stopping.stop();
            // Connections that wait for results keep the server until these are known, or never will be.
            tokio::spawn(async move {
                while stopping.is_busy() {
                    tokio::time::sleep(STOP_INTERVAL).await;
                }
                // The last result is written after its request has ended.
                tokio::time::sleep(STOP_INTERVAL).await;
                waited_for.tinker.stop();
            });
        };
        runtime.block_on(async move {
            // Without delay, since the next token of a stream must not wait for the acknowledgement of the last one.
            let prompt = |stream: &mut tokio::net::TcpStream| drop(stream.set_nodelay(true));
            let listener = tokio::net::TcpListener::from_std(listener)?.tap_io(prompt);
            axum::serve(listener, router(site)).with_graceful_shutdown(stop).await?;
            // Requests for training were accepted, too, though no connection waits for them.
            while computing.is_busy() {
                tokio::time::sleep(STOP_INTERVAL).await;
            }
            Ok(())
        })
    }
}

/// Lets the process have as many open files as the system allows. Each connection is one, and by the usual limit, 1024,
/// idle clients would keep out all others.
fn allow_connections() {
    let limit = getrlimit(Resource::Nofile);
    // Where the system refuses, the limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn router(site: Arc<Site>) -> Router {
    let endpoint = |endpoint: Endpoint| {
        post(move |State(site): Shared, request: Request| async move {
            match serve(&site, endpoint, request).await {
                Ok(response) => response,
                Err(error) => error.into_response(),
            }
        })
    };
    Router::new()
        .route("/v1/completions", endpoint(Endpoint::Completions))
        .route("/v1/chat/completions", endpoint(Endpoint::Chat))
        .route("/inference/v1/generate", endpoint(Endpoint::Generate))
        .route("/v1/models", get(|State(site): Shared| async move { answer(&models(&site.service, site.started)) }))
        .route("/metrics", get(|State(site): Shared| async move { metrics(&site.service) }))
        .route("/health", get(health))
        .route("/api/v1/retrieve_future", post(retrieve))
        .route("/api/v1/{*route}", any(tinker))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(site.clone(), guarded))
        .with_state(site)
}

/// Whether the server can complete requests. An engine that has panicked ends, and the process stays.
async fn health(State(site): Shared) -> Result<StatusCode, ApiError> {
    if site.service.is_running() { Ok(StatusCode::OK) } else { Err(Refused::Ended.into()) }
}

/// Responds with the result of a request for training or sampling.
async fn retrieve(State(site): Shared, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let read = async {
        check_type(&head.headers, &[JSON])?;
        read(body, MOST_BODY).await
    };
    match read.await {
        Ok(body) => site.tinker.retrieve(&body).await,
        Err(error) => error.into_response(),
    }
}

/// All other routes of Tinker's API.
async fn tinker(State(site): Shared, Path(route): Path<String>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let read = async {
        if head.method == Method::POST {
            check_type(&head.headers, &[JSON, PROTOBUF])?;
        }
        receive(body, MOST_TRAINING_BODY, kept(&head.headers)).await
    };
    let received = match read.await {
        Ok(received) => received,
        Err(error) => return TinkerError::from(error).into_response(),
    };
    // Decoding the data of a step, and reading the disk, must not delay the responses to others.
    let respond = move || {
        let bytes = match received {
            Received::Whole(bytes) => bytes,
            Received::TooLarge { start } => {
                let error = too_large(MOST_TRAINING_BODY).into();
                return Err(site.tinker.refuse(error, &route, &head.headers, &start));
            }
        };
        let query = head.uri.query().unwrap_or_default();
        let finished = route.strip_prefix("sessions/").and_then(|rest| rest.strip_suffix("/finish"));
        match (head.method == Method::POST, finished) {
            (true, Some(session)) => site.tinker.finish(session),
            (true, None) => site.tinker.post(&route, &head.headers, &bytes),
            (false, _) => rest(&site.tinker, &head.method, &route, query, &bytes),
        }
    };
    match tokio::task::spawn_blocking(respond).await {
        Ok(Ok(value)) => answer(&value),
        Ok(Err(error)) => error.into_response(),
        Err(error) => ApiError::failed(format!("reading the request failed: {error}")).into_response(),
    }
}

async fn serve(site: &Site, endpoint: Endpoint, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    check_type(&head.headers, &[JSON])?;
    let bytes = read(body, MOST_BODY).await?;
    let service = site.service.clone();
    // Encoding a long text must not delay the streams of others.
    let reading = tokio::task::spawn_blocking(move || Wanted::read(endpoint, &service, &bytes));
    let wanted = reading.await.map_err(|error| ApiError::failed(format!("reading the request failed: {error}")))??;
    respond(site.service.clone(), wanted).await
}

/// Refuses a body whose declared type is none of `types`. Pages of other sites can only send such bodies after a CORS
/// preflight, which this server never grants.
fn check_type(headers: &HeaderMap, types: &[&str]) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if types.iter().any(|known| kind.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    let (given, types) = (shortened(given), types.join(" or "));
    let message = format!("the content type is `{given}`: send the header Content-Type: {types}");
    Err(ApiError::bad(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// A body that was received.
enum Received {
    Whole(Vec<u8>),
    /// More than the limit; the beginning.
    TooLarge {
        start: Vec<u8>,
    },
}

fn too_large(most: usize) -> ApiError {
    let most = most >> 20;
    let message = format!("the body has more than {most} MiB: send less in a request");
    ApiError::bad(StatusCode::PAYLOAD_TOO_LARGE, message)
}

async fn read(body: Body, most: usize) -> Result<Vec<u8>, ApiError> {
    match receive(body, most, 0).await? {
        Received::Whole(bytes) => Ok(bytes),
        Received::TooLarge { .. } => Err(too_large(most)),
    }
}

/// `start`: the number of bytes that are kept of a body with more than `most`.
async fn receive(body: Body, most: usize, start: usize) -> Result<Received, ApiError> {
    let bad = |status, message: String| Err(ApiError::bad(status, message));
    match tokio::time::timeout(BODY_TIMEOUT, read_all(body, most, start)).await {
        Ok(Ok(received)) => Ok(received),
        Ok(Err(error)) => bad(StatusCode::BAD_REQUEST, format!("the body is incomplete: {error}")),
        Err(_) => {
            let seconds = BODY_TIMEOUT.as_secs();
            bad(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {seconds} s"))
        }
    }
}

/// The bytes of a body. Most clients read a response only after they have sent the whole body, so the rest of a body
/// that is too large is received and dropped, up to a second limit.
async fn read_all(body: Body, most: usize, start: usize) -> Result<Received, axum::Error> {
    let (mut stream, mut bytes, mut length) = (body.into_data_stream(), Vec::new(), 0);
    while length <= MOST_DROPPED
        && let Some(chunk) = stream.next().await
    {
        let chunk = chunk?;
        length += chunk.len();
        if length <= most {
            bytes.extend_from_slice(&chunk);
        } else {
            bytes.truncate(start);
            bytes.shrink_to_fit();
        }
    }
    Ok(if length <= most { Received::Whole(bytes) } else { Received::TooLarge { start: bytes } })
}

/// Refuses requests for other host names and without the key, and logs all requests. The time in the log is that until
/// the response begins.
async fn guarded(State(site): Shared, request: Request, next: Next) -> Response {
    let (start, bytes) = (Instant::now(), request.body().size_hint().exact());
    let name = site.log.as_ref().map(|_| (request.method().clone(), shortened(request.uri().path())));
    let mut response = match refused(&site, request.method(), request.uri().path(), request.headers()) {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    };
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let (Some(log), Some((method, path))) = (&site.log, name) {
        let (status, ms) = (response.status().as_u16(), start.elapsed().as_secs_f64() * 1e3);
        let size = bytes.map_or(String::new(), |bytes| format!(" · {bytes} bytes"));
        log(&format!("{method} {path} · {status}{size} · {ms:.1} ms"));
    }
    response
}

fn refused(site: &Site, method: &Method, path: &str, headers: &HeaderMap) -> Option<ApiError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    if !site.hosts.accept(host) {
        let port = site.hosts.port();
        let host: String = host.chars().take(100).collect();
        return Some(ApiError::bad(
            StatusCode::MISDIRECTED_REQUEST,
            format!(
                "this server listens on port {port} of its machine, but the request is for `{host}`. If you forward a \
                 port, keep its number, or start the server with --allow-host {host}"
            ),
        ));
    }
    // Launchers ask for the health without a key.
    if path == "/health" && method == Method::GET {
        return None;
    }
    let key = site.api_key?;
    let bearer = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    // Tinker's client sends its key in a header of its own.
    let mut given = bearer.into_iter().chain(headers.get("x-api-key").and_then(|value| value.to_str().ok()));
    if given.any(|given| key.is(given)) {
        return None;
    }
    let message = "the API key is missing or wrong: send the header Authorization: Bearer KEY, or X-API-Key: KEY";
    Some(ApiError::bad(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key"))
}

async fn no_route(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(100).collect();
    let message = format!(
        "no route {path}: this server has /v1/models, /v1/completions, /v1/chat/completions, /inference/v1/generate, \
         /api/v1 (Tinker), /health and /metrics"
    );
    ApiError::bad(StatusCode::NOT_FOUND, message)
}

async fn no_method(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(100).collect();
    let message = format!("{path} does not have the method {}", request.method());
    ApiError::bad(StatusCode::METHOD_NOT_ALLOWED, message)
}
