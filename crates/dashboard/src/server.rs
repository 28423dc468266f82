//! The HTTP server of the dashboard: routes and responses.

use self::jobs::{Jobs, NoJobs};
use crate::assets::asset;
use crate::groups::{self, Wanted};
use crate::guard::{Guard, POLICY};
use crate::prompts;
use crate::range::RewardRange;
use crate::report::{self, Report};
use crate::run::RunFiles;
use crate::runs::{Runs, lock};
use crate::series::{Axis, Received};
use crate::table::{Row, table};
use crate::trace;
use crate::workers;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use lockstep::wire::file::GroupFile;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use telemetry::Step;

/// Maximum number of metrics in one response.
const MOST_KEYS: usize = 512;
/// A server that is bound to its address but does not respond yet.
pub struct Server {
    listener: TcpListener,
    guard: Guard,
    runs: Arc<Runs>,
    jobs: Box<dyn Jobs>,
    /// The URL that the user opens.
    pub url: String,
}

struct Site {
    guard: Guard,
    runs: Arc<Runs>,
    jobs: Box<dyn Jobs>,
    streams: AtomicUsize,
}

type Shared = State<Arc<Site>>;

impl Server {
    /// Binds to this address; port 0 selects a free port. If other machines can reach the address, the printed URL
    /// contains a token.
    pub fn bind(host: &str, port: u16, runs: Runs) -> std::io::Result<Server> {
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let mut addresses = (name, port).to_socket_addrs()?;
        let address = addresses.next().ok_or_else(|| std::io::Error::other(format!("{host} has no address")))?;
        let listener = TcpListener::bind(address)?;
        let address: SocketAddr = listener.local_addr()?;
        let (guard, token) = Guard::new(host, address.ip(), address.port())?;
        let shown = match address.ip() {
            IpAddr::V6(ip) => format!("[{ip}]"),
            IpAddr::V4(ip) => ip.to_string(),
        };
        let token = token.map_or(String::new(), |token| format!("#token={token}"));
        let url = format!("http://{shown}:{}/{token}", address.port());
        Ok(Server { listener, guard, runs: Arc::new(runs), jobs: Box::new(NoJobs), url })
    }

    /// Also accepts requests for these hosts, such as `localhost:8888` of a forwarded port.
    pub fn allow_hosts(mut self, hosts: &[String]) -> Server {
        self.guard.allow(hosts);
        self
    }

    /// Lets the page show jobs, and start them if that is allowed.
    pub fn with_jobs(self, jobs: impl Jobs + 'static) -> Server {
        Server { jobs: Box::new(jobs), ..self }
    }

    /// Serves requests until the process exits.
    pub fn run(self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        self.listener.set_nonblocking(true)?;
        let site = Arc::new(Site { guard: self.guard, runs: self.runs, jobs: self.jobs, streams: AtomicUsize::new(0) });
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            axum::serve(listener, router(site)).await
        })
    }
}

/// Serves on a separate thread, alongside a training run. Returns the URL, or the reason why the server could not
/// start.
pub fn serve_in_thread(host: &str, port: u16, runs: Runs) -> std::io::Result<String> {
    let server = Server::bind(host, port, runs)?;
    let url = server.url.clone();
    std::thread::Builder::new().name("dashboard".into()).spawn(move || drop(server.run()))?;
    Ok(url)
}

fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/api/runs", get(runs))
        .route("/api/table", get(all_runs))
        .route("/api/runs/{run}", get(facts))
        .route("/api/runs/{run}/series", get(series))
        .route("/api/runs/{run}/map", get(map))
        .route("/api/runs/{run}/groups", get(list))
        .route("/api/runs/{run}/prompts", get(prompts))
        .route("/api/runs/{run}/groups/{place}", get(group))
        .route("/api/runs/{run}/groups/{place}/completions/{number}", get(completion))
        .route("/api/runs/{run}/spans", get(spans))
        .route("/api/runs/{run}/stages", get(stages))
        .route("/api/runs/{run}/report", get(report_of))
        .route("/api/runs/{run}/workers", get(workers_of))
        .route("/api/events", get(events::events))
        .route("/api/jobs", get(jobs::state).merge(post(jobs::start)).delete(jobs::stop))
        .route("/api/jobs/{job}", get(jobs::events))
        .route("/api/login", get(login))
        .route("/metrics", get(metrics::metrics))
        .fallback(file)
        .layer(from_fn_with_state(site.clone(), guarded))
        .with_state(site)
}

/// Refuses unauthorised requests, and adds security headers to responses.
async fn guarded(State(site): Shared, request: Request, next: Next) -> Response {
    // The page's files are public: the page must load before it can read the token from its URL.
    let path = request.uri().path();
    let is_open = !path.starts_with("/api/") && path != "/metrics";
    let mut response = match site.guard.check(request.headers()) {
        Err(StatusCode::MISDIRECTED_REQUEST) => {
            (StatusCode::MISDIRECTED_REQUEST, site.guard.misdirected(request.headers())).into_response()
        }
        Err(status) if !(is_open && status == StatusCode::UNAUTHORIZED) => status.into_response(),
        _ if !request.method().is_safe() && !site.guard.may_change(request.headers()) => {
            (StatusCode::FORBIDDEN, "only the page itself may send this request").into_response()
        }
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn answer(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Body::from(value.to_string())).into_response()
}

fn missing() -> Response {
    (StatusCode::NOT_FOUND, "not found").into_response()
}

/// The query parameters of a URL.
fn words(uri: &Uri) -> BTreeMap<String, String> {
    form_urlencoded::parse(uri.query().unwrap_or("").as_bytes()).into_owned().collect()
}

fn number<T: std::str::FromStr>(words: &BTreeMap<String, String>, name: &str, default: T) -> T {
    words.get(name).and_then(|word| word.parse().ok()).unwrap_or(default)
}

/// The end of a range of steps that has no end.
const LAST: Step = Step(u64::MAX);

fn step(words: &BTreeMap<String, String>, name: &str, default: Step) -> Step {
    Step(number(words, name, default.0))
}

async fn runs(State(site): Shared) -> Response {
    let line = |(name, run): (String, Arc<Mutex<RunFiles>>)| {
        let mut run = lock(&run);
        run.refresh();
        let state = run.state();
        let verdict = run.verdict_as(state != "running");
        let (step, total) = run.progress();
        let alarms = run.active_alarms(&verdict).len();
        json!({
            "id": name, "name": run.config().name(), "state": state, "step": step, "total": total,
            "silent_s": run.silent_s(), "verdict": verdict.to_json(), "alarms": alarms,
        })
    };
    answer(&site.runs.all().into_iter().map(line).collect())
}

async fn all_runs(State(site): Shared) -> Response {
    let rows = site.runs.all().into_iter().map(|(name, run)| Row::of(&name, &mut lock(&run)));
    answer(&table(rows.collect()))
}

async fn facts(State(site): Shared, Path(name): Path<String>) -> Response {
    match site.runs.get(&name) {
        Some(run) => answer(&lock(&run).facts(&name).into()),
        None => missing(),
    }
}

/// The buckets of an earlier response, which the page has kept.
fn received(words: &BTreeMap<String, String>) -> Option<Received> {
    let number = |name: &str| words.get(name)?.parse().ok();
    Some(Received { edition: number("edition")?, width: number("width")?, last: Step(number("since")?) })
}

async fn series(State(site): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let Some(run) = site.runs.get(&name) else { return missing() };
    let (words, mut run) = (words(&uri), lock(&run));
    run.refresh();
    let keys = words.get("keys").map_or("", String::as_str);
    let keys: Vec<String> = keys.split(',').filter(|key| !key.is_empty()).take(MOST_KEYS).map(str::to_owned).collect();
    let pixels = number(&words, "px", 500).clamp(1, 4000);
    let axis = match words.get("x").map(String::as_str) {
        None | Some("step") => {
            let (from, to, series) = (step(&words, "from", Step::START), step(&words, "to", LAST), run.series());
            let mut found = series.buckets_after(received(&words), &keys, from, to, pixels);
            found["edition"] = json!(series.edition());
            return answer(&found);
        }
        Some("minutes") => Axis::Minutes,
        Some("tokens") => Axis::Tokens,
        Some(other) => {
            let says = format!("x = {other:?} is not an axis: use step, minutes or tokens");
            return (StatusCode::BAD_REQUEST, says).into_response();
        }
    };
    let (from, to) = (number(&words, "from", 0.0), number(&words, "to", f64::MAX));
    answer(&run.series().buckets_along(axis, &keys, from, to, pixels))
}

/// The recorded groups of training, or those of evaluations if the request has `of=evaluations`.
fn groups_of(run: &mut RunFiles, words: &BTreeMap<String, String>) -> Option<Arc<GroupFile>> {
    match words.get("of").map(String::as_str) {
        Some("evaluations") => run.evaluations(),
        _ => run.groups(),
    }
}

async fn map(State(site): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let words = words(&uri);
    let groups = site.runs.get(&name).and_then(|run| groups_of(&mut lock(&run), &words));
    let Some(groups) = groups else { return missing() };
    let (pixels, rows) = (number(&words, "px", 300).clamp(1, 2000), number(&words, "rows", 48).clamp(1, 512));
    answer(&groups::map(&groups, pixels, rows, step(&words, "from", Step::START)))
}

async fn list(State(site): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let Some(run) = site.runs.get(&name) else { return missing() };
    let words = words(&uri);
    let rewards = match RewardRange::parse(&words) {
        Ok(rewards) => rewards,
        Err(error) => return (StatusCode::BAD_REQUEST, error).into_response(),
    };
    let is_search = words.get("q").is_some_and(|text| !text.is_empty());
    let (file, texts, updates) = {
        let mut run = lock(&run);
        // A list without a search need not wait until the tokenizer is loaded.
        (groups_of(&mut run, &words), is_search.then(|| run.tokens()).flatten(), run.updates())
    };
    let Some(file) = file else { return missing() };
    let word = |name: &str| words.get(name).cloned().unwrap_or_default();
    let only = words.get("step").and_then(|step| step.parse().ok()).map(Step);
    let wanted = Wanted {
        from: only.unwrap_or_else(|| step(&words, "from", Step::START)),
        to: only.unwrap_or_else(|| step(&words, "to", LAST)),
        only: word("only"),
        rewards,
        sort: word("sort"),
        text: word("q"),
        prompt: words.get("prompt").and_then(|hash| u64::from_str_radix(hash, 16).ok()),
        updated: groups::updated(updates.as_deref()),
        after: number(&words, "cursor", 0),
        limit: number(&words, "limit", 20).clamp(1, 200),
    };
    answer(&groups::list(&file, &wanted, texts.as_deref()))
}

async fn prompts(State(site): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let words = words(&uri);
    let file = site.runs.get(&name).and_then(|run| groups_of(&mut lock(&run), &words));
    let Some(file) = file else { return missing() };
    let word = |name: &str| words.get(name).cloned().unwrap_or_default();
    let wanted = prompts::Wanted {
        sort: word("sort"),
        text: word("q"),
        prompt: words.get("prompt").and_then(|hash| u64::from_str_radix(hash, 16).ok()),
        after: number(&words, "cursor", 0),
        limit: number(&words, "limit", 20).clamp(1, 200),
    };
    answer(&prompts::prompts(&file, &wanted))
}

async fn group(State(site): Shared, Path((name, place)): Path<(String, usize)>, uri: Uri) -> Response {
    let Some(run) = site.runs.get(&name) else { return missing() };
    let (file, texts, updates) = {
        let mut run = lock(&run);
        (groups_of(&mut run, &words(&uri)), run.tokens(), run.updates())
    };
    let Some(file) = file.filter(|file| place < file.index().len()) else { return missing() };
    match groups::group(&file, place, texts.as_deref(), updates.as_deref()) {
        Ok(group) => answer(&group),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

async fn completion(
    State(site): Shared,
    Path((name, place, number_of)): Path<(String, usize, usize)>,
    uri: Uri,
) -> Response {
    let Some(run) = site.runs.get(&name) else { return missing() };
    let words = words(&uri);
    let (file, texts, updates) = {
        let mut run = lock(&run);
        (groups_of(&mut run, &words), run.tokens(), run.updates())
    };
    let Some(file) = file.filter(|file| place < file.index().len()) else { return missing() };
    let cut = (number(&words, "from", 0), number(&words, "n", 4096));
    match groups::window(&file, place, number_of, texts.as_deref(), updates.as_deref(), cut) {
        Ok(Some(completion)) => answer(&completion),
        Ok(None) => missing(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

async fn spans(State(site): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let Some(run) = site.runs.get(&name) else { return missing() };
    let path = lock(&run).root().join("trace.json");
    let text = disk::read_to_string(path, disk::most::STATE).unwrap_or_default();
    answer(&trace::spans(&text, step(&words(&uri), "step", Step(1))))
}

async fn stages(State(site): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let Some(run) = site.runs.get(&name) else { return missing() };
    answer(&lock(&run).traced().json(number(&words(&uri), "px", 240).clamp(1, 4000)))
}

/// The report of `lockstep report` on one run, or on two runs if `vs` is given, as a downloadable file.
async fn report_of(State(site): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let words = words(&uri);
    let names = std::iter::once(name.as_str()).chain(words.get("vs").map(String::as_str));
    let mut reports = Vec::new();
    for name in names {
        let Some(run) = site.runs.get(name) else { return missing() };
        let root = lock(&run).root().to_owned();
        match Report::read(&root) {
            Ok(report) => reports.push(report),
            Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
        }
    }
    // Ids of runs contain only letters, digits and `-_.~`.
    let file = format!("attachment; filename=\"report-{name}.html\"");
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (header::CONTENT_DISPOSITION, file)];
    (headers, report::html(&reports)).into_response()
}

async fn workers_of(State(site): Shared, Path(name): Path<String>, uri: Uri) -> Response {
    let root = site.runs.get(&name).map(|run| lock(&run).root().to_owned());
    let pixels = number(&words(&uri), "px", 200).clamp(1, 2000);
    match root.and_then(|root| workers::workers(&root, pixels)) {
        Some(workers) => answer(&workers),
        None => missing(),
    }
}

/// Stores the token from the URL in a cookie that scripts cannot read.
async fn login(headers: HeaderMap) -> Response {
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let plain = token.filter(|token| token.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match plain {
        Some(token) => {
            let cookie = format!("lockstep={token}; HttpOnly; SameSite=Strict; Path=/");
            (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
        }
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn file(uri: Uri) -> Response {
    match asset(uri.path().trim_start_matches('/')) {
        Some((content, kind)) => ([(header::CONTENT_TYPE, kind)], content).into_response(),
        None => missing(),
    }
}

mod events;
pub(crate) mod jobs;
mod metrics;
#[cfg(test)]
mod tests;
