//! Sends a run's metrics and alarms to the programs and addresses in `report_to`.
//!
//! A record is one JSON object: the [`Event`] of a line of `metrics.jsonl`, with the run's name as `run`. A receiver
//! never delays or ends the run: between run and receiver are a queue and a thread, which retries after failures that
//! may pass. If the queue is full, new records are dropped. At the end of the run the queue has a few seconds to empty,
//! and lost records are counted.

mod carriers;

use super::RunDir;
use crate::bad_input;
use crate::config::Config;
use crate::config::report_to::{Receiver as Named, TOKEN};
use crate::error::BadInput;
use carriers::{Carrier, Command, Http};
use rewards::outside::Address;
use serde::Serialize;
use std::sync::mpsc::{Receiver as Queue, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use telemetry::{Event, EventKind, Sink};

/// The maximum number of records queued for a receiver.
const QUEUE: usize = 1000;
/// The pause after a failure, which doubles with each further failure, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long the end of a run waits for all its receivers.
const LAST: Duration = Duration::from_secs(3);
/// The additional time that the thread of a killed program has to end.
const KILLED: Duration = Duration::from_millis(300);

/// The sink that sends records to receivers.
pub struct Receivers {
    /// The run's name.
    run: String,
    list: Vec<Receiver>,
    is_closed: bool,
}

/// A record in the form in which it is sent.
#[derive(Serialize)]
struct Record<'a> {
    run: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

struct Receiver {
    shared: Arc<Shared>,
    carrier: Option<Box<dyn Carrier>>,
    /// The queue of waiting records; `None` before the start and after the end.
    queue: Option<SyncSender<Vec<u8>>>,
    /// Interrupts the carrier's wait.
    abort: Box<dyn FnMut() + Send>,
    /// The number of records so far.
    total: u64,
}

/// The state shared by a receiver and its thread.
struct Shared {
    /// The receiver's name in `report_to`.
    name: String,
    /// A secret that no message may contain.
    token: Option<String>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    delivered: u64,
    /// The reason for the last failure.
    why: Option<String>,
    /// Whether the user was warned.
    is_reported: bool,
    /// The deadline of the thread; set at the end of the run.
    closes_at: Option<Instant>,
    /// Whether the waiting records are discarded.
    discards: bool,
    /// Set when the thread has ended, with an error message if its end failed.
    ended: Option<Option<String>>,
}

impl Receivers {
    /// The receivers in the configuration of the run in `dir`, not started yet.
    pub fn of(config: &Config, dir: &RunDir) -> anyhow::Result<Receivers> {
        Receivers::with_token(config, dir, std::env::var(TOKEN).ok())
    }

    /// Like [`of`](Self::of), with the token as an argument.
    fn with_token(config: &Config, dir: &RunDir, token: Option<String>) -> anyhow::Result<Receivers> {
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let (mut list, mut host) = (Vec::new(), None::<String>);
        for (name, named) in config.receivers()? {
            let (carrier, abort): (Box<dyn Carrier>, Box<dyn FnMut() + Send>) = match named {
                Named::Command(words) => {
                    let command = Command::new(words);
                    let abort = command.abort();
                    (Box::new(command), Box::new(abort))
                }
                Named::Http(url) => {
                    let address = Address::new(&url, carriers::TIMEOUT_S);
                    let address = address.map_err(|why| BadInput::new(format!("`report_to`: {why}")))?;
                    let other = host.get_or_insert_with(|| address.host().to_owned());
                    if token.is_some() && *other != address.host() {
                        bad_input!(
                            "`report_to` names {other} and {}, but the token in {TOKEN} is for one host: name only one \
                             of them, or send to the other with a command",
                            address.host()
                        );
                    }
                    (Box::new(Http::new(address, token.as_deref())), Box::new(|| {}))
                }
            };
            let (state, changed) = (Mutex::default(), Condvar::new());
            let shared = Arc::new(Shared { name: name.to_owned(), token: token.clone(), state, changed });
            list.push(Receiver { shared, carrier: Some(carrier), queue: None, abort, total: 0 });
        }
        let place = || dir.root().file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Receivers { run: config.run_name.clone().or_else(place).unwrap_or_default(), list, is_closed: false })
    }

    /// Starts a thread for each receiver; `None` without receivers.
    pub fn start(mut self) -> Option<Receivers> {
        self.list.iter_mut().for_each(Receiver::start);
        (!self.list.is_empty()).then_some(self)
    }

    /// Waits some seconds until the queues are empty. Returns a message for each receiver that lost records.
    fn close(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Vec::new();
        }
        let deadline = Instant::now() + LAST;
        self.list.iter_mut().for_each(|receiver| receiver.close(deadline));
        self.list.iter_mut().filter_map(|receiver| receiver.wait(deadline)).collect()
    }
}

impl Sink for Receivers {
    fn receive(&mut self, event: &Event) -> telemetry::Result<()> {
        if let EventKind::Metrics { .. } | EventKind::Alarm { .. } = event.kind
            && let Ok(mut line) = serde_json::to_vec(&Record { run: &self.run, event })
        {
            line.push(b'\n');
            self.list.iter_mut().for_each(|receiver| receiver.send(line.clone()));
        }
        Ok(())
    }

    /// Reports the first failure of each receiver.
    fn check(&mut self) -> telemetry::Result<Option<String>> {
        let notes: Vec<String> = self.list.iter().filter_map(|receiver| receiver.shared.news()).collect();
        Ok((!notes.is_empty()).then(|| notes.join("\n")))
    }

    fn flush(&mut self) -> Option<String> {
        let notes = self.close();
        (!notes.is_empty()).then(|| notes.join("\n"))
    }
}

impl Drop for Receivers {
    /// A failed run has not flushed its sinks.
    fn drop(&mut self) {
        self.close();
    }
}

impl Receiver {
    fn start(&mut self) {
        let Some(carrier) = self.carrier.take() else { return };
        let (queue, records) = sync_channel(QUEUE);
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("report_to".to_owned());
        match thread.spawn(move || carry(carrier, &records, &shared)) {
            Ok(_) => self.queue = Some(queue),
            Err(error) => self.shared.failed(format!("cannot start its thread: {error}")),
        }
    }

    fn send(&mut self, line: Vec<u8>) {
        self.total += 1;
        if self.queue.as_ref().is_some_and(|queue| queue.try_send(line).is_err()) && !self.shared.has_failed() {
            self.shared.failed(format!("it is slower than the run: {QUEUE} records wait, and new ones are dropped"));
        }
    }

    fn close(&mut self, deadline: Instant) {
        if self.queue.take().is_some() {
            self.shared.lock().closes_at = Some(deadline);
            self.shared.changed.notify_all();
        }
    }

    /// Waits for the thread. Returns a message if the receiver lost records or did not end normally.
    fn wait(&mut self, deadline: Instant) -> Option<String> {
        let started = self.shared.lock().closes_at.is_some();
        let mut slow = None;
        if started && !self.shared.has_ended_by(deadline) {
            let mut state = self.shared.lock();
            state.discards = true;
            slow = Some(state.why.clone().unwrap_or_else(|| format!("it was still busy {LAST:?} after the run's end")));
            drop(state);
            (self.abort)();
            self.shared.has_ended_by(Instant::now() + KILLED);
        }
        let mut state = self.shared.lock();
        let (lost, at_end) = (self.total - state.delivered, state.ended.as_mut().and_then(Option::take));
        let why = slow.or_else(|| state.why.take()).filter(|_| lost > 0).or(at_end);
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let (name, total) = (&self.shared.name, self.total);
        match lost {
            0 if why.is_empty() => None,
            0 => Some(format!("report_to {name}{why}")),
            lost => Some(format!("report_to {name}: {lost} of {total} records did not reach it{why}")),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn failed(&self, why: String) {
        let why = self.token.as_ref().map_or_else(|| why.clone(), |token| why.replace(token.as_str(), "…"));
        self.lock().why = Some(why);
    }

    fn has_failed(&self) -> bool {
        self.lock().why.is_some()
    }

    /// The first failure, if the user was not warned.
    fn news(&self) -> Option<String> {
        let mut state = self.lock();
        let why = state.why.clone()?;
        if std::mem::replace(&mut state.is_reported, true) {
            return None;
        }
        Some(format!("report_to {}: {why}; the run continues", self.name))
    }

    /// Waits for `time`, or until the run ends.
    fn pause(&self, time: Duration) {
        let continues = |state: &mut State| state.closes_at.is_none();
        drop(self.changed.wait_timeout_while(self.lock(), time, continues));
    }

    /// Waits until the thread has ended, or until the deadline. Returns whether it has ended.
    fn has_ended_by(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.changed.wait_timeout_while(self.lock(), left, |state| state.ended.is_none()) {
            Ok((state, _)) => state.ended.is_some(),
            Err(_) => false,
        }
    }
}

/// The thread of a receiver, which delivers records until the last one.
fn carry(mut carrier: Box<dyn Carrier>, records: &Queue<Vec<u8>>, shared: &Shared) {
    if let Err(failure) = carrier.begin() {
        shared.failed(failure.why);
    }
    for record in records {
        let mut pause = FIRST_PAUSE;
        loop {
            let (discards, is_last) = {
                let state = shared.lock();
                (state.discards, state.closes_at.is_some())
            };
            if discards {
                break;
            }
            match carrier.deliver(&record) {
                Ok(()) => {
                    shared.lock().delivered += 1;
                    break;
                }
                Err(failure) => {
                    shared.failed(failure.why);
                    if !failure.may_pass || is_last {
                        break;
                    }
                }
            }
            shared.pause(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
    let deadline = shared.lock().closes_at;
    let at_end = carrier.end(deadline.unwrap_or_else(Instant::now));
    shared.lock().ended = Some(at_end);
    shared.changed.notify_all();
}

#[cfg(test)]
mod tests;
