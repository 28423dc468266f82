//! The results of requests, until clients fetch them.

use lockstep::service::Ticket;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A result that was fetched is kept for this long, in case its response was lost.
const FETCHED_TIMEOUT: Duration = Duration::from_secs(120);
/// A result that is not fetched is kept for this long.
const RESULT_TIMEOUT: Duration = Duration::from_secs(1800);
/// The interval at which old results are dropped.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Json(Value),
    Proto(Vec<u8>),
    /// `category` is `user` or `server`.
    Failed {
        error: String,
        category: &'static str,
    },
    /// The request was cancelled, because its client had left. A client that asks sends it again.
    Gone,
}

/// A request whose result was asked for.
#[derive(Debug, PartialEq)]
pub enum Waited {
    Ready(Arc<Answer>),
    NotYet,
    /// The request is unknown, or its result was dropped.
    Gone,
}

/// The state of a result.
#[derive(Clone, Debug)]
enum State {
    Open,
    /// The server stops, and nothing more is computed.
    Stopped,
    Ready(Arc<Answer>),
}

struct Entry {
    state: watch::Sender<State>,
    ended: Option<Instant>,
    fetched: Option<Instant>,
    /// Drops to cancel the request.
    ticket: Option<Ticket>,
    /// The session of the request, whose client is there as long as it asks for the result.
    session: Option<Arc<str>>,
}

/// All requests.
pub struct Futures {
    inner: Mutex<Inner>,
    /// Precedes the ids of this server, so that they differ from those of earlier ones.
    prefix: String,
}

struct Inner {
    entries: HashMap<u64, Entry>,
    next: u64,
    swept: Instant,
    is_stopped: bool,
}

impl Futures {
    pub fn new(prefix: String) -> Futures {
        let inner = Inner { entries: HashMap::new(), next: 0, swept: Instant::now(), is_stopped: false };
        Futures { inner: Mutex::new(inner), prefix }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new request.
    pub fn reserve(&self) -> u64 {
        let mut inner = self.lock();
        if inner.swept.elapsed() > SWEEP_INTERVAL {
            inner.swept = Instant::now();
            let is_old = |since: Option<Instant>, timeout| since.is_some_and(|since| since.elapsed() > timeout);
            inner
                .entries
                .retain(|_, entry| !is_old(entry.fetched, FETCHED_TIMEOUT) && !is_old(entry.ended, RESULT_TIMEOUT));
        }
        inner.next += 1;
        let id = inner.next;
        let state = watch::Sender::new(if inner.is_stopped { State::Stopped } else { State::Open });
        inner.entries.insert(id, Entry { state, ended: None, fetched: None, ticket: None, session: None });
        id
    }

    /// Removes a request that was not submitted.
    pub fn release(&self, id: u64) {
        self.lock().entries.remove(&id);
    }

    /// Keeps the claim to the tokens of a session's request until its result is known.
    pub fn hold(&self, id: u64, ticket: Ticket, session: Arc<str>) {
        if let Some(entry) = self.lock().entries.get_mut(&id).filter(|entry| entry.ended.is_none()) {
            (entry.ticket, entry.session) = (Some(ticket), Some(session));
        }
    }

    /// Notes the session of a request.
    pub fn belongs(&self, id: u64, session: Arc<str>) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.session = Some(session);
        }
    }

    /// The session of a request that has no result yet.
    pub fn session(&self, id: u64) -> Option<Arc<str>> {
        self.lock().entries.get(&id).filter(|entry| entry.ended.is_none())?.session.clone()
    }

    /// Sets the result of a request, unless it has one.
    pub fn complete(&self, id: u64, answer: Answer) {
        if let Some(entry) = self.lock().entries.get_mut(&id).filter(|entry| entry.ended.is_none()) {
            entry.ended = Some(Instant::now());
            entry.ticket = None;
            entry.state.send_replace(State::Ready(Arc::new(answer)));
        }
    }

    /// Cancels a request, unless it has a result.
    pub fn cancel(&self, id: u64) {
        self.complete(id, Answer::Failed { error: "the client cancelled the request".to_owned(), category: "user" });
    }

    /// Waits for the result of a request for up to `timeout`.
    pub async fn wait(&self, id: u64, timeout: Duration) -> Waited {
        let Some(mut state) = self.lock().entries.get(&id).map(|entry| entry.state.subscribe()) else {
            return Waited::Gone;
        };
        let known = tokio::time::timeout(timeout, state.wait_for(|state| !matches!(state, State::Open))).await;
        let ready = match known.map(|known| known.map(|state| state.clone())) {
            Err(_) | Ok(Ok(State::Open | State::Stopped)) => return Waited::NotYet,
            Ok(Err(_)) => return Waited::Gone,
            Ok(Ok(State::Ready(answer))) => answer,
        };
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.fetched = Some(Instant::now());
        }
        Waited::Ready(ready)
    }

    /// Ends all waits for results, because nothing more is computed.
    pub fn stop(&self) {
        let mut inner = self.lock();
        inner.is_stopped = true;
        for entry in inner.entries.values().filter(|entry| entry.ended.is_none()) {
            entry.state.send_replace(State::Stopped);
        }
    }

    /// The id for clients.
    pub fn name(&self, id: u64) -> String {
        format!("{}-{id}", self.prefix)
    }

    /// The request with this id for clients, if this server gave the id.
    pub fn parse(&self, name: &str) -> Option<u64> {
        name.strip_prefix(&self.prefix)?.strip_prefix('-')?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_belongs_to_its_session_until_it_has_a_result() {
        let futures = Futures::new("r".to_owned());
        let id = futures.reserve();
        assert_eq!(futures.session(id), None);
        futures.belongs(id, "s".into());
        assert_eq!(futures.session(id), Some("s".into()));
        futures.complete(id, Answer::Gone);
        assert_eq!(futures.session(id), None);
    }

    #[test]
    fn a_wait_ends_with_the_result_or_the_server() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let futures = Arc::new(Futures::new("r".to_owned()));
        let (done, open) = (futures.reserve(), futures.reserve());
        let wait = |id| {
            let futures = futures.clone();
            async move { futures.wait(id, testing::HANG).await }
        };
        let answer = Answer::Json(Value::Null);
        runtime.block_on(async {
            let (first, second) = (tokio::spawn(wait(done)), tokio::spawn(wait(open)));
            tokio::task::yield_now().await;
            futures.complete(done, answer.clone());
            assert_eq!(first.await.unwrap(), Waited::Ready(Arc::new(answer.clone())));
            assert!(!second.is_finished());
            futures.stop();
            assert_eq!(second.await.unwrap(), Waited::NotYet);
            // A result that is known is still fetched, and a later one still arrives.
            assert_eq!(wait(done).await, Waited::Ready(Arc::new(answer.clone())));
            futures.complete(open, answer.clone());
            assert_eq!(wait(open).await, Waited::Ready(Arc::new(answer)));
            assert_eq!((wait(futures.reserve()).await, wait(99).await), (Waited::NotYet, Waited::Gone));
        });
    }
}
