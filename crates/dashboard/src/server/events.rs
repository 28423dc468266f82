//! The HTTP route `/api/events`: a stream of events, one whenever a run has new data.

use super::{Shared, Site, missing, words};
use crate::run::RunFiles;
use crate::runs::lock;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of browsers with live updates at the same time.
pub(super) const STREAMS: usize = 64;
/// The interval at which the sizes of a run's files are checked for new data, and the interval for files that have not
/// grown for [`QUIET`]: a step that takes that long may be shown a tenth of a second later.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const QUIET_INTERVAL: Duration = Duration::from_millis(200);
const QUIET: Duration = Duration::from_secs(5);
/// The interval at which the state of a run (running, finished, stopped) is checked while its files do not grow. This
/// costs more than a look at the sizes: the run's lock file is opened, and its lock tested.
const STATE_INTERVAL: Duration = Duration::from_secs(1);

/// Counts a live-update stream; dropping it decrements the count.
struct Stream(Arc<Site>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream of server-sent events: `mark` whenever a run has new data, with the facts that have changed since the
/// stream's last event (in its first event, all facts). The ID of an event is the mark of the facts. After an
/// interruption, the browser sends the ID of the last event that it received.
pub(super) async fn events(State(site): Shared, headers: HeaderMap, uri: Uri) -> Response {
    if site.streams.fetch_add(1, Ordering::Relaxed) >= STREAMS {
        site.streams.fetch_sub(1, Ordering::Relaxed);
        return (StatusCode::SERVICE_UNAVAILABLE, "too many open pages receive live updates: close one")
            .into_response();
    }
    let stream = Stream(site.clone());
    let name = words(&uri).remove("run").unwrap_or_default();
    let Some(run) = site.runs.get(&name) else { return missing() };
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let news = Events {
        stream,
        name,
        run,
        seen,
        sent: Map::new(),
        sizes: None,
        checked: Instant::now(),
        grown: Instant::now(),
    };
    // A comment now and then reveals a closed connection, whose place another browser may need.
    Sse::new(news.into_stream()).keep_alive(KeepAlive::default()).into_response()
}

/// The state of a stream that waits for new data.
struct Events {
    #[expect(dead_code, reason = "counts the stream until it is dropped")]
    stream: Stream,
    name: String,
    run: Arc<Mutex<RunFiles>>,
    /// The facts that this stream has sent.
    sent: Map<String, Value>,
    /// The mark of the last event, which is its ID.
    seen: String,
    /// The sizes of the run's files at the last check; `None` before the first.
    sizes: Option<[u64; 2]>,
    /// When the state was checked, and when the sizes had changed.
    checked: Instant,
    grown: Instant,
}

impl Events {
    fn into_stream(self) -> impl futures_core::Stream<Item = Result<Event, std::convert::Infallible>> {
        futures_util::stream::unfold(self, |mut events| async move {
            loop {
                if let Some(news) = events.news() {
                    return Some((Ok(news), events));
                }
                let is_quiet = events.grown.elapsed() >= QUIET;
                tokio::time::sleep(if is_quiet { QUIET_INTERVAL } else { POLL_INTERVAL }).await;
            }
        })
    }

    /// The event of a run that has changed since the last event.
    fn news(&mut self) -> Option<Event> {
        let mut run = lock(&self.run);
        let sizes = Some(run.sizes());
        if sizes == self.sizes && self.checked.elapsed() < STATE_INTERVAL {
            return None;
        }
        self.checked = Instant::now();
        if sizes != self.sizes {
            (self.sizes, self.grown) = (sizes, self.checked);
        }
        run.refresh();
        let state = run.state();
        let mark = run.mark(state);
        if mark == self.seen {
            return None;
        }
        let verdict = run.verdict_as(state != "running");
        let alarms = run.active_alarms(&verdict).len();
        let mut facts = run.facts_as(&self.name, (state, &mark), &verdict);
        self.seen = mark;
        let row = json!({
            "step": facts["step"], "total": facts["total"], "state": state, "verdict": facts["verdict"],
            "alarms": alarms, "silent_s": facts["silent_s"],
        });
        facts.retain(|key, value| self.sent.get(key) != Some(value));
        let data = json!({ "run": row, "facts": facts });
        self.sent.extend(facts);
        Some(Event::default().event("mark").id(&self.seen).data(data.to_string()))
    }
}
