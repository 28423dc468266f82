//! The owner's loop: takes commands in, runs a step of the engine, and delivers its tokens.

use super::load::Loaded;
use super::request::Refused;
use super::training::{Failure, Learners, Snapshot, StatePath, Weights};
use crate::models::Policy;
use model::columns::{Column, SAMPLER_LOGPS, TOP_IDS, TOP_LOGPS, Values};
use model::{Adapter, Columns, FinishReason};
use rollout::{Counters, Drive, Models, Outcome, Request, RequestId, RolloutGroup};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which the owner looks for requests whose time has run out.
const TICK: Duration = Duration::from_millis(500);

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The id.
    pub id: u32,
    /// The log-probability.
    pub logp: f32,
}

/// A token of a completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The place of the prompt in the request.
    pub prompt: usize,
    /// The index of the completion among those of its prompt.
    pub sample: usize,
    /// The token.
    pub token: Ranked,
    /// The most likely tokens at this position, most likely first; empty unless requested.
    pub top: Vec<Ranked>,
    /// The reason why the completion ended with this token, if it did.
    pub finish_reason: Option<FinishReason>,
}

/// An event of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token was drawn.
    Token(Token),
    /// All completions of a prompt have ended.
    Ended {
        /// The place of the prompt in the request.
        prompt: usize,
        /// The log-probability of each prompt token but the first, and the most likely tokens at its position; empty
        /// unless requested.
        prompt_logprobs: Vec<(f32, Vec<Ranked>)>,
        /// The number of the prompt's tokens that were in the prefix cache.
        cached_tokens: usize,
    },
    /// The engine failed. No more events follow.
    Failed(String),
    /// The client's session has ended, or the client gave no sign of life. No more events follow.
    Cancelled,
}

/// A function that passes an event to a client. False: the client is gone.
pub(super) type Deliver = dyn Fn(Event) -> bool + Send + Sync;

/// The duty to answer a request that waits for the owner. If it is dropped, because the owner has ended, the request
/// fails.
pub(super) struct Undelivered(Option<Arc<Deliver>>);

impl Undelivered {
    pub(super) fn new(deliver: Arc<Deliver>) -> Undelivered {
        Undelivered(Some(deliver))
    }

    fn take(mut self) -> Arc<Deliver> {
        self.0.take().expect("taken once")
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(deliver) = self.0.take() {
            deliver(Event::Failed(Refused::Ended.to_string()));
        }
    }
}

/// A prompt of a request.
pub(super) struct Part {
    pub(super) place: usize,
    pub(super) request: Request,
    pub(super) slots: Slots,
}

/// A command to the owner.
pub(super) enum Command {
    /// `snapshot` is the adapter of a sampler, and `client` the sampler's session with the time of the request.
    Generate {
        number: u64,
        parts: Vec<Part>,
        snapshot: Option<Snapshot>,
        client: Option<(Arc<str>, Instant)>,
        deliver: Undelivered,
    },
    Cancel {
        number: u64,
    },
    /// Makes the sampler `number` of a session, of a saved adapter.
    Sampler {
        session: String,
        number: u64,
        path: StatePath,
        reply: SyncSender<Result<String, Failure>>,
    },
    /// Reads the weights of a sampler again.
    Reload {
        sampler: String,
        reply: SyncSender<Result<Weights, Failure>>,
    },
    /// A client has left.
    Left,
    /// Requests for training wait.
    Train,
}

/// The claim to a number of open completions, released when dropped.
pub(super) struct Slots {
    open: Arc<AtomicUsize>,
    count: usize,
}

impl Slots {
    /// Claims `count` completions, unless more than `most` would be open.
    pub(super) fn take(open: &Arc<AtomicUsize>, count: usize, most: usize) -> Result<Slots, Refused> {
        let more = |now: usize| now.checked_add(count).filter(|sum| *sum <= most);
        match open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Slots { open: open.clone(), count }),
            Err(open) => Err(Refused::Busy { open, most }),
        }
    }

    /// Splits the claim into claims of `size` completions each.
    pub(super) fn split(mut self, size: usize) -> impl Iterator<Item = Slots> {
        let parts = std::mem::take(&mut self.count) / size.max(1);
        (0..parts).map(move |_| Slots { open: self.open.clone(), count: size })
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.open.fetch_sub(self.count, Ordering::AcqRel);
    }
}

/// Counts of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Status {
    /// The number of completions that run or wait.
    pub open: usize,
    /// The number of KV-cache pages that no completion uses, including pages in the prefix cache.
    pub free_blocks: usize,
    /// The number of prompts that were accepted.
    pub prompts: u64,
    /// The number of tokens in these prompts.
    pub prompt_tokens: u64,
    /// The number of prompts whose clients left before the end.
    pub cancelled: u64,
    /// The number of generated tokens.
    pub generated_tokens: u64,
    /// Counts of the engine.
    pub engine: Counters,
}

/// A prompt whose completions have not all ended.
struct Open {
    number: u64,
    place: usize,
    snapshot: Option<Snapshot>,
    /// The session of its sampler, and the time of the request.
    client: Option<(Arc<str>, Instant)>,
    deliver: Arc<Deliver>,
    slots: Slots,
}

/// The thread that has the weights and the engine.
pub(super) struct Owner {
    policy: Policy,
    adapters: Vec<(u64, Adapter)>,
    learners: Learners,
    drive: Drive<u64>,
    open: HashMap<RequestId, Open>,
    received: Receiver<Command>,
    status: Status,
    shown: Arc<Mutex<Status>>,
    /// When the last requests of clients that have left were cancelled.
    looked: Instant,
}

impl Owner {
    pub(super) fn new(
        loaded: Loaded,
        learners: Learners,
        received: Receiver<Command>,
        shown: Arc<Mutex<Status>>,
    ) -> Owner {
        let Loaded { policy, engine, adapters, .. } = loaded;
        let drive = Drive::new(engine);
        let (open, status, looked) = (HashMap::new(), Status::default(), Instant::now());
        let mut owner = Owner { policy, adapters, learners, drive, open, received, status, shown, looked };
        owner.show();
        owner
    }

    /// Runs until all senders of commands are gone. Training and decoding take turns of about equal time.
    pub(super) fn run(mut self) {
        loop {
            if self.drive.is_idle() && self.learners.is_idle() {
                match self.wait() {
                    Ok(command) => self.take(command),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            loop {
                match self.received.try_recv() {
                    Ok(command) => self.take(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            if self.looked.elapsed() > TICK {
                self.cancel_left();
            }
            let start = Instant::now();
            self.learners.advance(self.policy.weights.base.current());
            let (trained, start) = (start.elapsed(), Instant::now());
            while !self.drive.is_idle() {
                self.step();
                if start.elapsed() >= trained {
                    break;
                }
            }
            self.show();
        }
    }

    /// Waits for a command.
    fn wait(&mut self) -> Result<Command, RecvTimeoutError> {
        match self.learners.tidy() {
            Some(time) => self.received.recv_timeout(time),
            None => self.received.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Train => {}
            Command::Left => self.cancel_left(),
            Command::Cancel { number } => self.cancel(number),
            Command::Sampler { session, number, path, reply } => {
                let base = self.policy.weights.base.current();
                // A client that has left needs no reply.
                let _ = reply.send(self.learners.load_sampler(base, (&session, number), &path));
            }
            Command::Reload { sampler, reply } => {
                let base = self.policy.weights.base.current();
                let _ = reply.send(self.learners.reload_sampler(base, &sampler));
            }
            Command::Generate { number, parts, snapshot, client, deliver } => {
                let deliver = deliver.take();
                for Part { place, request, slots } in parts {
                    let tokens = request.prompt.ids.len();
                    match self.drive.submit(number, request) {
                        Ok(id) => {
                            self.status.prompts += 1;
                            self.status.prompt_tokens += tokens as u64;
                            let (snapshot, client, deliver) = (snapshot.clone(), client.clone(), deliver.clone());
                            let open = Open { number, place, snapshot, client, deliver, slots };
                            self.open.insert(id, open);
                        }
                        Err(error) => {
                            deliver(Event::Failed(error.to_string()));
                            self.remove(number);
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Removes all prompts of a request whose client has left.
    fn cancel(&mut self, number: u64) {
        self.status.cancelled += self.remove(number) as u64;
    }

    /// Removes all prompts of a request. Returns their number.
    fn remove(&mut self, number: u64) -> usize {
        self.drive.cancel_of(|owner| *owner == number);
        let before = self.open.len();
        self.open.retain(|_, open| open.number != number);
        before - self.open.len()
    }

    /// Cancels the requests of clients that have left.
    fn cancel_left(&mut self) {
        self.looked = Instant::now();
        let has_left = |open: &&Open| {
            open.client.as_ref().is_some_and(|(session, requested)| self.learners.has_left(session, *requested))
        };
        // A request has several prompts.
        let left: HashMap<u64, Arc<Deliver>> =
            self.open.values().filter(has_left).map(|open| (open.number, open.deliver.clone())).collect();
        for (number, deliver) in left {
            self.cancel(number);
            deliver(Event::Cancelled);
        }
    }

    fn step(&mut self) {
        let base = self.policy.weights.base.current();
        let mut adapters: Vec<(u64, &Adapter)> = self.adapters.iter().map(|(id, adapter)| (*id, adapter)).collect();
        for Snapshot { id, adapter } in self.open.values().filter_map(|open| open.snapshot.as_ref()) {
            if adapters.iter().all(|(other, _)| other != id) {
                adapters.push((*id, adapter));
            }
        }
        let models = Models { current: None, bases: &[base], adapters: &adapters };
        let outcomes = match self.drive.step(models) {
            Ok(outcomes) => outcomes,
            Err(error) => return self.fail(&error.to_string()),
        };
        let drawn = self.drive.drawn().to_vec();
        self.status.generated_tokens += drawn.len() as u64;
        for drawn in drawn.iter().filter(|drawn| !drawn.logp.is_finite()) {
            self.fail_one(drawn.request, drawn.logp);
        }
        let ended = outcomes.into_iter().filter_map(|outcome| match outcome {
            Outcome::Ended { request, group, cached_tokens, .. } => Some((request, group, cached_tokens)),
            Outcome::Paused { .. } => None,
        });
        let ended: Vec<(RequestId, RolloutGroup, usize)> = ended.collect();
        let mut gone = Vec::new();
        for drawn in drawn {
            let Some(open) = self.open.get(&drawn.request) else { continue };
            let token = Token {
                prompt: open.place,
                sample: drawn.generation,
                token: Ranked { id: drawn.id, logp: drawn.logp },
                top: match ended.iter().find(|(request, ..)| *request == drawn.request) {
                    Some((_, group, _)) => ranked(&group.completions[drawn.generation].columns, drawn.index),
                    None => {
                        let (ids, logps) = self.drive.engine().top_logprobs(&drawn);
                        zipped(ids, logps)
                    }
                },
                finish_reason: drawn.finish_reason,
            };
            if !(open.deliver)(Event::Token(token)) {
                gone.push(open.number);
            }
        }
        for (request, group, cached_tokens) in ended {
            let Some(Open { place, deliver, slots, .. }) = self.open.remove(&request) else { continue };
            let logps = group.prompt_columns.f32(SAMPLER_LOGPS).unwrap_or_default();
            let prompt_logprobs =
                logps.iter().enumerate().map(|(i, &logp)| (logp, ranked(&group.prompt_columns, i))).collect();
            // A client that has its response may send the next request at once, and must find its slots free.
            drop(slots);
            deliver(Event::Ended { prompt: place, prompt_logprobs, cached_tokens });
        }
        for number in gone {
            self.cancel(number);
        }
    }

    /// Reports to its client that a token of a request has this log-probability, which is not finite, and drops the
    /// request. Requests with other adapters may be healthy.
    fn fail_one(&mut self, request: RequestId, logp: f32) {
        let Some(open) = self.open.get(&request) else { return };
        let why = match &open.snapshot {
            Some(_) => "the weights of the adapter are too large, or not finite".to_owned(),
            None => self.policy.why_not_finite(),
        };
        (open.deliver)(Event::Failed(format!("a token's log-probability is {logp}: {why}")));
        let number = open.number;
        self.remove(number);
    }

    /// Reports a failure of the engine to all clients, and drops their requests. Later requests are tried again.
    fn fail(&mut self, message: &str) {
        self.drive.cancel_of(|_| true);
        for (_, open) in self.open.drain() {
            (open.deliver)(Event::Failed(message.to_owned()));
        }
    }

    /// Publishes the counts.
    fn show(&mut self) {
        let engine = self.drive.engine();
        self.status.free_blocks = engine.free_blocks();
        self.status.engine = engine.counters();
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = self.status;
    }
}

impl Drop for Owner {
    /// The owner ends, perhaps by a panic: no client waits for ever.
    fn drop(&mut self) {
        for (_, open) in self.open.drain() {
            (open.deliver)(Event::Failed(Refused::Ended.to_string()));
        }
    }
}

/// The most likely tokens at one position of `columns`; empty if they were not recorded.
fn ranked(columns: &Columns, position: usize) -> Vec<Ranked> {
    match (columns.get(TOP_IDS), columns.get(TOP_LOGPS)) {
        (Some(Column { width, values: Values::U32(ids) }), Some(Column { values: Values::F32(logps), .. })) => {
            let range = position * width..(position + 1) * width;
            zipped(&ids[range.clone()], &logps[range])
        }
        _ => Vec::new(),
    }
}

fn zipped(ids: &[u32], logps: &[f32]) -> Vec<Ranked> {
    ids.iter().zip(logps).map(|(&id, &logp)| Ranked { id, logp }).collect()
}
