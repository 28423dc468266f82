//! Training for clients: sessions, models, samplers, and the queue of each model's requests, without HTTP. It follows
//! the rules of Tinker's API.
//!
//! A client opens a session and creates models in it: LoRA adapters of the service's base model, with their own
//! optimizers. It sends each model numbered requests, which the owner thread computes in the order of the numbers, and
//! makes samplers of the weights. Micro-batches of training and steps of the engine take turns. Neither the other
//! clients nor the order of arrival change a bit of a result.
//!
//! | file | contents |
//! |---|---|
//! | `job` | requests and their results |
//! | `failure` | why a request failed |
//! | `path` | the paths of saved states |
//! | `queue` | the order of a model's requests |
//! | `room` | the memory of waiting requests |
//! | `seen` | requests that arrive again |
//! | `learners` | the owner's part: adapters, gradients, optimizers |
//! | `samplers` | samplers and their requests |
//! | `store` | saved states on disk |
//! | `status` | counts and times |

mod failure;
mod job;
mod learners;
mod path;
mod queue;
mod room;
mod samplers;
mod seen;
mod status;
mod store;
#[cfg(test)]
mod tests;

pub use self::failure::{Cause, Failure};
pub use self::job::{AdapterSpec, Compared, Done, Job, ModelInfo, Passed, Reply};
pub use self::path::{Kind, StatePath};
pub use self::samplers::Sampler;
pub use self::seen::Submitted;
pub use self::status::{TrainingCounts, TrainingStatus};
pub use self::store::{Listed, Saved, Store, rfc3339};
pub(super) use learners::Learners;
pub(super) use samplers::{Snapshot, Weights};

pub use train::datums::{AdamParams, ClipRange, Datum, TokenLoss};

use self::job::Pending;
use self::queue::{Next, OrderedQueue};
use self::room::{ModelRoom, Room};
use self::samplers::Sampled;
use super::request::Refused;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use telemetry::system::since_1970;

/// Sequences are not computed for a client without a sign of life for this long. Clients give one every 10 seconds.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(120);
/// A session without a sign of life for this long is freed.
const SESSION_TIMEOUT: Duration = Duration::from_secs(3600);
/// Requests wait this long for a number that has not arrived; clients give up after 5 minutes.
const GAP_TIMEOUT: Duration = Duration::from_secs(360);
/// The largest number of models in training.
const MOST_MODELS: usize = 256;

/// The state that clients and the owner thread share.
pub struct Training {
    inner: Mutex<Inner>,
    /// The saved states.
    pub store: Store,
    /// The name of the base model.
    pub base_model: String,
    /// The server's seed.
    pub(super) seed: u64,
    /// Whether the owner computes requests for training.
    is_busy: AtomicBool,
}

struct Inner {
    sessions: HashMap<String, Session>,
    models: BTreeMap<String, Entry>,
    samplers: HashMap<String, Sampled>,
    /// The number of sessions so far.
    opened: u64,
    /// The id of the next adapter snapshot in the engine.
    snapshots: u64,
    /// The number of uses of samplers so far.
    uses: u64,
    /// The model whose turn is next.
    turn: String,
    room: Room,
    counts: TrainingCounts,
    /// The owner has ended, and nothing more is computed.
    is_ended: bool,
}

struct Session {
    seen: Instant,
    /// When the client has ended it. Its samplers stay for a while.
    closed: Option<Instant>,
    /// The samplers by their numbers in the session.
    samplers: HashMap<u64, String>,
}

struct Entry {
    session: String,
    queue: OrderedQueue<Pending>,
    room: ModelRoom,
    /// Since when the queue waits for a number.
    waits_since: Option<Instant>,
    info: Option<ModelInfo>,
    user_metadata: Value,
    /// The session has ended, or the model could not be created.
    is_over: bool,
}

impl Training {
    pub(super) fn new(state: PathBuf, base: PathBuf, base_model: String, seed: u64, first_snapshot: u64) -> Training {
        let inner = Inner {
            sessions: HashMap::new(),
            models: BTreeMap::new(),
            samplers: HashMap::new(),
            opened: 0,
            snapshots: first_snapshot,
            uses: 0,
            turn: String::new(),
            room: Room::new(room::MOST_OF_MODEL, room::MOST_OF_ALL),
            counts: TrainingCounts::default(),
            is_ended: false,
        };
        Training {
            inner: Mutex::new(inner),
            store: Store::new(state, base),
            base_model,
            seed,
            is_busy: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session. Its id differs from those of earlier servers.
    pub fn open_session(&self) -> String {
        let mut inner = self.lock();
        inner.opened += 1;
        let id = format!("s{:x}-{}", since_1970().as_micros(), inner.opened);
        inner.sessions.insert(id.clone(), Session { seen: Instant::now(), closed: None, samplers: HashMap::new() });
        id
    }

    /// Notes a sign of life. False: there is no such session.
    pub fn heartbeat(&self, session: &str) -> bool {
        let mut inner = self.lock();
        inner.open(session).is_ok()
    }

    /// Notes that a client waits for a sequence, also after the end of its session.
    pub fn waits(&self, session: &str) {
        self.lock().touch(session);
    }

    /// Whether the client of a sequence has left, which it requested at this time.
    pub(super) fn has_left(&self, session: &str, requested: Instant) -> bool {
        self.lock().sessions.get(session).is_none_or(|session| {
            session.closed.is_some_and(|closed| requested <= closed) || session.seen.elapsed() > CLIENT_TIMEOUT
        })
    }

    /// See [`Service::close_session`](super::Service::close_session).
    pub(super) fn close_session(&self, session: &str) -> bool {
        let mut inner = self.lock();
        inner.release_saved(session);
        for entry in inner.models.values_mut().filter(|entry| entry.session == session) {
            entry.is_over = true;
        }
        inner.open(session).map(|session| session.closed = Some(Instant::now())).is_ok()
    }

    /// Submits the first request of a model, which creates it. The id of the model is `{session}:train:{number}`.
    pub fn create(
        &self,
        (session, number): (&str, u64),
        user_metadata: Value,
        identity: (u64, u128),
        job: Job,
        reply: Reply,
    ) -> Result<(String, Submitted), Failure> {
        let mut inner = self.lock();
        if inner.is_ended {
            return Err(Refused::Ended.into());
        }
        inner.open(session)?;
        let model = format!("{session}:train:{number}");
        if inner.models.len() >= MOST_MODELS && !inner.models.contains_key(&model) {
            return Err(Failure::load(format!(
                "{MOST_MODELS} models are in training, and no more are possible: end a session, or retry later"
            )));
        }
        let room = inner.room.for_model();
        let entry = inner.models.entry(model.clone()).or_insert_with(|| Entry {
            session: session.to_owned(),
            queue: OrderedQueue::new(0),
            room,
            waits_since: None,
            info: None,
            user_metadata,
            is_over: false,
        });
        let submitted = entry.submit(0, identity, job, reply);
        Ok((model, submitted))
    }

    /// Submits the request `number` of a model.
    pub fn submit(
        &self,
        (model, number): (&str, u64),
        identity: (u64, u128),
        job: Job,
        reply: Reply,
    ) -> Result<Submitted, Failure> {
        let mut inner = self.lock();
        let Some(entry) = inner.models.get_mut(model) else { return Err(no_model(model)) };
        let submitted = entry.submit(number, identity, job, reply);
        let session = entry.session.clone();
        inner.touch(&session);
        Ok(submitted)
    }

    /// See [`Service::refuse`](super::Service::refuse).
    pub(super) fn refuse(&self, (model, number): (&str, u64), is_data: bool) -> bool {
        self.lock().models.get_mut(model).is_none_or(|entry| entry.queue.refuse(number, is_data))
    }

    /// The settings of a model that exists.
    pub fn info(&self, model: &str) -> Result<ModelInfo, Failure> {
        let inner = self.lock();
        let entry = inner.models.get(model).ok_or_else(|| no_model(model))?;
        let not_yet = || Failure::request(format!("the model {model} was not created, or not yet"));
        entry.info.clone().ok_or_else(not_yet)
    }

    /// The models in training that exist.
    pub fn models(&self) -> Vec<String> {
        let inner = self.lock();
        inner.models.iter().filter(|(_, entry)| entry.info.is_some()).map(|(id, _)| id.clone()).collect()
    }

    /// Whether a request waits that can be computed.
    pub(super) fn is_ready(&self) -> bool {
        self.lock().models.values().any(|entry| entry.queue.is_ready())
    }

    /// Whether there are sessions, which may end, or whose models wait.
    fn has_sessions(&self) -> bool {
        !self.lock().sessions.is_empty()
    }

    /// The next request of the model after the one whose turn was last, among those for which `is_free` holds.
    fn next(&self, is_free: impl Fn(&str) -> bool) -> Option<(String, Next<Pending>)> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let after = |id: &&String| **id > inner.turn;
        let ids = inner.models.keys().filter(after).chain(inner.models.keys().filter(|id| !after(id)));
        let ids: Vec<String> = ids.filter(|id| is_free(id)).cloned().collect();
        for id in ids {
            let entry = inner.models.get_mut(&id).expect("listed");
            let mut next = entry.queue.pop();
            let waits = next.is_none() && entry.queue.has_gap();
            entry.waits_since = waits.then(|| entry.waits_since.unwrap_or_else(Instant::now));
            if entry.waits_since.is_some_and(|since| since.elapsed() > GAP_TIMEOUT) {
                next = entry.queue.give_up();
                entry.waits_since = None;
            }
            if let Some(next) = next {
                if let Next::Job(pending) = &next {
                    inner.counts.begin(pending);
                }
                inner.turn.clone_from(&id);
                // Under the lock, so that the request waits or is computed at any time.
                self.set_busy(true);
                return Some((id, next));
            }
        }
        None
    }

    /// Removes models whose sessions have ended, and forgets sessions without a sign of life. Models for which
    /// `is_free` does not hold stay. Returns the ids of the models.
    fn retire(&self, is_free: impl Fn(&str) -> bool) -> Vec<String> {
        let mut inner = self.lock();
        let silent: Vec<String> = inner
            .sessions
            .iter()
            .filter(|(_, session)| session.seen.elapsed() > SESSION_TIMEOUT)
            .map(|(id, _)| id.clone())
            .collect();
        for id in &silent {
            inner.sessions.remove(id);
            inner.samplers.retain(|_, found| *found.sampler.session != **id);
        }
        let is_gone = |session: &String| !inner.sessions.contains_key(session);
        let is_over = |entry: &Entry| is_gone(&entry.session) || entry.is_over && !entry.queue.is_ready();
        let over = inner.models.iter().filter(|(id, entry)| is_over(entry) && is_free(id));
        let over: Vec<String> = over.map(|(id, _)| id.clone()).collect();
        let entries: Vec<_> = over.iter().map(|id| inner.models.remove(id)).collect();
        drop(inner);
        // Their requests are replied to without the lock.
        drop(entries);
        over
    }

    /// Notes that a model exists, also if an earlier request could not create it.
    fn created(&self, model: &str, info: ModelInfo) {
        let mut inner = self.lock();
        let Inner { models, sessions, .. } = &mut *inner;
        if let Some(entry) = models.get_mut(model) {
            entry.info = Some(info);
            entry.is_over = sessions.get(&entry.session).is_none_or(|session| session.closed.is_some());
        }
    }

    /// Notes that a model could not be created. Requests that wait for it are still replied to.
    fn not_created(&self, model: &str) {
        if let Some(entry) = self.lock().models.get_mut(model) {
            entry.is_over = true;
        }
    }

    /// The client's data about a model.
    pub fn user_metadata(&self, model: &str) -> Value {
        self.lock().models.get(model).map_or(Value::Null, |entry| entry.user_metadata.clone())
    }

    /// Notes that a model is computed.
    fn touch(&self, model: &str) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        if let Some(session) = inner.models.get(model).and_then(|entry| inner.sessions.get_mut(&entry.session)) {
            session.seen = Instant::now();
        }
    }

    fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Release);
    }

    /// Whether requests for training are being computed, or could be.
    pub(super) fn is_busy(&self) -> bool {
        // In this order: a request that the owner takes after the first look is noticed by the second one.
        self.is_ready() || self.is_busy.load(Ordering::Acquire)
    }

    /// Moves the last sign of life of a session into the past.
    #[cfg(test)]
    pub(super) fn age(&self, session: &str, by: Duration) {
        let mut inner = self.lock();
        let session = inner.sessions.get_mut(session).expect("a session");
        session.seen = session.seen.checked_sub(by).expect("a machine that has run for a while");
    }

    /// Removes all models, because the owner ends.
    fn end(&self) {
        let mut inner = self.lock();
        inner.is_ended = true;
        let models = std::mem::take(&mut inner.models);
        drop(inner);
        self.set_busy(false);
        drop(models);
    }
}

impl Entry {
    fn submit(&mut self, number: u64, identity: (u64, u128), job: Job, reply: Reply) -> Submitted {
        let Entry { queue, room, .. } = self;
        queue.submit(number, identity, |is_awaited| {
            let claim = room.claim(job.bytes(), is_awaited)?;
            Some(Pending::new(job, reply, claim))
        })
    }
}

impl Inner {
    /// Notes a sign of life of a session, if it exists.
    fn touch(&mut self, session: &str) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.seen = Instant::now();
        }
    }

    /// A session that was not closed, which has given a sign of life.
    fn open(&mut self, session: &str) -> Result<&mut Session, Failure> {
        let found = self.sessions.get_mut(session).filter(|found| found.closed.is_none());
        let found = found.ok_or_else(|| no_session(session))?;
        found.seen = Instant::now();
        Ok(found)
    }
}

fn no_session(id: &str) -> Failure {
    Failure::request(format!("no session {id}: it has ended, or belongs to an earlier run of the server"))
}

fn no_model(id: &str) -> Failure {
    Failure::request(format!(
        "no model {id} in training: it could not be created, its session has ended, or it belongs to an earlier run \
         of the server; load a saved state in a new session"
    ))
}
