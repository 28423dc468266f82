//! The learner's side of an exchange over a NATS server.

use super::inbox::{Inbox, Known};
use super::link::{Link, is_connected, until_connected};
use super::{
    ACK_WAIT, ANSWER, Announced, BEAT, Beat, MOST_PENDING, Names, NatsOptions, PAUSE, RUN, UNANSWERED, host,
    number_of_process,
};
use crate::coordinator::Event;
use crate::error::{Error, OrIo, Result};
use crate::exchange::spool::{FileLock, Layout, create_dir, take_lock, write};
use crate::exchange::{Exchange, LearnerState, Observer, Waiter, WorkerStatus};
use crate::job::{Job, JobName, JobResult, WorkerName};
use async_nats::HeaderMap;
use async_nats::client::Client;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use async_nats::jetstream::{AckKind, Context, Message};
use futures_util::StreamExt;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The interval between requests for the list of the server's jobs.
const LIST: Duration = Duration::from_millis(500);
/// The time that a starting learner listens for workers and for another learner with the same name.
const LISTEN: Duration = Duration::from_millis(1500);
/// The maximum time that a learner waits, after the end of the run, for its workers to learn of the end.
const FAREWELL: Duration = Duration::from_secs(3);
/// The name of the learner's consumer of the results stream.
const CONSUMER: &str = "learner";

/// The learner's side of an exchange over a NATS server.
pub struct NatsLearner {
    link: Link,
    shared: Arc<Shared>,
    commands: UnboundedSender<Command>,
    observer: Observer,
    layout: Layout,
    /// The lock that shows that a learner is running.
    _lock: FileLock,
    has_ended: bool,
    /// The last time that each worker's status was written for `lockstep status`.
    written: BTreeMap<WorkerName, Instant>,
}

struct Shared {
    names: Names,
    run: String,
    learner: u64,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    state: Mutex<Option<LearnerState>>,
    tell: Notify,
}

/// A message to the server. Messages are sent in order.
enum Command {
    Offer(JobName, Vec<u8>),
    /// Deletes the message with this sequence number from the jobs stream.
    Withdraw(u64),
    Acknowledge(Vec<Message>),
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, Option<LearnerState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NatsLearner {
    /// Opens the exchange for the run directory `out`. Jobs that an earlier learner offered are deleted, and results
    /// that have arrived are kept. Fails if another learner is running in this directory, or with this name on the
    /// server.
    pub fn open(out: &Path, options: &NatsOptions) -> Result<NatsLearner> {
        let layout = Layout::in_run(out);
        layout.create()?;
        create_dir(&layout.batches())?;
        let who = format!("a learner of {}", out.display());
        let (lock, _) = take_lock(&layout.root().join("learner.lock"), &who, "Wait until it has ended, or stop it")?;
        let run = name_of_run(&layout)?;
        let link = Link::connect(options, "lockstep learner")?;
        let (names, learner) = (Names::of(&options.address), number_of_process());
        let shared = Shared {
            names,
            run,
            learner,
            inbox: Mutex::new(Inbox::new(lock.warning.iter().cloned().collect())),
            changed: Condvar::new(),
            state: Mutex::default(),
            tell: Notify::new(),
        };
        let shared = Arc::new(shared);
        link.spawn(hear(shared.clone(), link.client.clone()));
        if let Some(Some(other)) = link.wait(listen(shared.clone(), link.client.clone())) {
            let (host, pid, name) = (&other.host, other.state.pid, options.address.name());
            return Err(Error::Refused(format!(
                "a learner already uses the name {name} on this NATS server: process {pid} on {host}. Stop it, or give \
                 this one another name: --nats {}/OTHER",
                options.address.server()
            )));
        }
        let prepared = link.wait(prepare(shared.clone(), link.jetstream.clone()));
        prepared.unwrap_or_else(|| Err("the server did not answer in time".to_owned())).map_err(|why| {
            let server = options.address.server();
            Error::Refused(format!(
                "the NATS server {server} cannot create this run's JetStream streams (was it started with -js?): {why}"
            ))
        })?;
        let (commands, queue) = unbounded_channel();
        link.spawn(send(shared.clone(), link.client.clone(), link.jetstream.clone(), queue));
        link.spawn(list(shared.clone(), link.client.clone(), link.jetstream.clone()));
        link.spawn(receive(shared.clone(), link.client.clone(), link.jetstream.clone()));
        link.spawn(announce(shared.clone(), link.client.clone()));
        link.spawn(keep(shared.clone()));
        // Receive the results from an earlier learner first, so that they are not recomputed.
        std::thread::sleep(PAUSE);
        let (observer, written) = Default::default();
        Ok(NatsLearner { link, shared, commands, observer, layout, _lock: lock, has_ended: false, written })
    }

    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    fn acknowledge_all(&self, messages: Vec<Message>) {
        if !messages.is_empty() {
            self.send(Command::Acknowledge(messages));
        }
    }

    /// Writes the workers' statuses as files, for `lockstep status`.
    fn write_statuses(&mut self, all: bool) {
        let statuses: Vec<_> = {
            let inbox = self.shared.inbox();
            let status = |known: &Known| {
                let Beat { host, status, .. } = &known.beat;
                WorkerStatus { host: Some(host.clone()), ..status.clone() }
            };
            inbox.workers.iter().map(|(name, known)| (name.clone(), known.heard, status(known))).collect()
        };
        for (name, heard, status) in statuses {
            let is_due = self.written.get(&name).is_none_or(|at| heard > *at && (all || at.elapsed() > BEAT));
            if is_due && let Ok(text) = serde_json::to_vec(&status) {
                self.written.insert(name.clone(), heard);
                // The file is only for display, so a failure is ignored.
                let _ = create_dir(&self.layout.workers().join(name.as_str()))
                    .and_then(|()| write(&self.layout.status(&name), &text, false));
            }
        }
    }
}

impl Exchange for NatsLearner {
    fn announce(&mut self, state: &LearnerState) -> Result<()> {
        self.has_ended = state.ended;
        *self.shared.state() = Some(state.clone());
        self.shared.tell.notify_one();
        let text = serde_json::to_vec_pretty(state).map_err(|e| Error::Failed(e.to_string()))?;
        write(&self.layout.learner(), &text, false)
    }

    fn offer(&mut self, job: &Job) -> Result<()> {
        self.observer.offered(job.name);
        self.shared.inbox().offer(job.name);
        self.send(Command::Offer(job.name, job.to_bytes()));
        Ok(())
    }

    fn release(&mut self, _worker: &WorkerName, _job: JobName) -> Result<()> {
        // There is nothing to take away, since the worker is gone. If the worker comes back and finishes the job, its
        // result has the same bits.
        Ok(())
    }

    fn withdraw(&mut self, job: JobName) -> Result<()> {
        self.observer.withdrawn(job);
        let sequence = self.shared.inbox().withdraw(job);
        if let Some(sequence) = sequence {
            self.send(Command::Withdraw(sequence));
        }
        Ok(())
    }

    fn take(&mut self, worker: &WorkerName, job: JobName) -> Option<JobResult> {
        self.shared.inbox().take(worker, job)
    }

    fn discard(&mut self, worker: &WorkerName, job: JobName) -> Result<()> {
        self.observer.discarded(worker, job);
        let messages = self.shared.inbox().discard(worker, job);
        self.acknowledge_all(messages);
        Ok(())
    }

    fn acknowledge(&mut self, jobs: &[JobName]) -> Result<()> {
        let messages = self.shared.inbox().acknowledge(&jobs.iter().copied().collect());
        self.acknowledge_all(messages);
        Ok(())
    }

    fn kill(&mut self, worker: &WorkerName) -> Result<bool> {
        // The worker cannot be killed from here. Dropping it is enough, since it has its own copy of the weights and
        // does not read memory that the learner overwrites.
        self.shared.inbox().expel(worker);
        Ok(true)
    }

    fn poll(&mut self) -> Result<Vec<Event>> {
        let observer = &self.observer;
        let is_connected = self.link.is_connected();
        let scan = self.shared.inbox().scan(is_connected, |worker, job| observer.knows(worker, job));
        self.write_statuses(false);
        Ok(self.observer.compare(scan))
    }

    fn waiter(&self) -> Result<Waiter> {
        let shared = self.shared.clone();
        Ok(Box::new(move |at_most| {
            // A spurious wake-up is harmless: the caller checks again and waits.
            drop(shared.changed.wait_timeout(shared.inbox(), at_most));
        }))
    }

    fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.shared.inbox().problems)
    }
}

impl Drop for NatsLearner {
    fn drop(&mut self) {
        let since = Instant::now();
        // Workers on other machines learn of the end only from messages.
        while self.has_ended && since.elapsed() < FAREWELL && !self.shared.inbox().all_have_ended() {
            self.shared.tell.notify_one();
            std::thread::sleep(PAUSE);
        }
        self.write_statuses(true);
        if self.has_ended && self.link.is_connected() {
            let (jetstream, names) = (self.link.jetstream.clone(), self.shared.names.clone());
            self.link.wait(async move {
                let _ = jetstream.delete_stream(&names.jobs).await;
                let _ = jetstream.delete_stream(&names.results).await;
            });
        }
    }
}

/// The run's identifier in messages. It is stored in the run's directory, so that a resumed learner uses the same one.
fn name_of_run(layout: &Layout) -> Result<String> {
    let file = layout.root().join("run");
    match disk::read_to_string(&file, disk::most::STATE) {
        Ok(name) if name.len() == 32 => return Ok(name),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).or_io("read", &file),
        _ => {}
    }
    let name = format!("{:016x}{:016x}", number_of_process(), number_of_process());
    write(&file, name.as_bytes(), true)?;
    Ok(name)
}

/// Listens for another learner with the same name, and returns the first that is heard within [`LISTEN`].
async fn listen(shared: Arc<Shared>, client: Client) -> Option<Announced> {
    let mut states = client.subscribe(shared.names.state()).await.ok()?;
    let heard = async {
        while let Some(message) = states.next().await {
            let other = serde_json::from_slice::<Announced>(&message.payload).ok();
            if let Some(other) = other.filter(|other| other.learner != shared.learner && !other.state.ended) {
                return Some(other);
            }
        }
        None
    };
    tokio::time::timeout(LISTEN, heard).await.ok().flatten()
}

/// Creates the streams, and deletes the jobs of an earlier learner.
async fn prepare(shared: Arc<Shared>, jetstream: Context) -> std::result::Result<(), String> {
    let names = &shared.names;
    make_streams(names, &jetstream).await?;
    let jobs = jetstream.get_stream_no_info(&names.jobs).await.map_err(|e| e.to_string())?;
    jobs.purge().await.map_err(|e| e.to_string())?;
    let results = jetstream.get_stream_no_info(&names.results).await.map_err(|e| e.to_string())?;
    // The server then redelivers results that an earlier learner received but did not acknowledge.
    let _ = results.delete_consumer(CONSUMER).await;
    Ok(())
}

async fn make_streams(names: &Names, jetstream: &Context) -> std::result::Result<(), String> {
    let stream = |name: &str, subject: String, per_subject: i64| Config {
        name: name.to_owned(),
        subjects: vec![subject],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        max_messages_per_subject: per_subject,
        ..Config::default()
    };
    // With a limit of one message per subject, a job that is offered again replaces its old message.
    for config in [stream(&names.jobs, names.all_jobs(), 1), stream(&names.results, names.all_results(), -1)] {
        jetstream.get_or_create_stream(config).await.map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Receives the workers' heartbeats.
async fn hear(shared: Arc<Shared>, client: Client) {
    let Ok(mut statuses) = client.subscribe(shared.names.worker("*")).await else { return };
    while let Some(message) = statuses.next().await {
        let name = message.subject.rsplit('.').next().and_then(|name| WorkerName::new(name).ok());
        let beat = serde_json::from_slice::<Beat>(&message.payload).ok();
        let Some((name, beat)) = name.zip(beat) else { continue };
        let (control, is_new) = {
            let mut inbox = shared.inbox();
            let before = inbox.workers.get(&name).map(|known| known.beat.id);
            let control = inbox.hear(&name, beat);
            (control, before != inbox.workers.get(&name).map(|known| known.beat.id))
        };
        if let Some(text) = control.and_then(|control| serde_json::to_vec(&control).ok()) {
            let _ = client.publish(shared.names.control(&name), text.into()).await;
        }
        if is_new {
            shared.tell.notify_one();
        }
        shared.changed.notify_all();
    }
}

/// Publishes the learner's state when it changes, and regularly as a heartbeat.
async fn announce(shared: Arc<Shared>, client: Client) {
    let host = host();
    loop {
        let state = shared.state().clone();
        let workers = shared.inbox().ids();
        if let Some(state) = state.filter(|_| is_connected(&client)) {
            let (run, learner, host) = (shared.run.clone(), shared.learner, host.clone());
            if let Ok(text) = serde_json::to_vec(&Announced { run, learner, host, workers, state }) {
                let _ = client.publish(shared.names.state(), text.into()).await;
            }
        }
        let _ = tokio::time::timeout(BEAT, shared.tell.notified()).await;
    }
}

/// Sends the queued messages. A failed offer is noticed when the next list lacks the job.
async fn send(shared: Arc<Shared>, client: Client, jetstream: Context, mut queue: UnboundedReceiver<Command>) {
    let mut headers = HeaderMap::new();
    headers.insert(RUN, shared.run.as_str());
    while let Some(command) = queue.recv().await {
        until_connected(&client).await;
        match command {
            Command::Offer(job, bytes) => {
                let published =
                    jetstream.publish_with_headers(shared.names.job(job), headers.clone(), bytes.into()).await;
                let shared = shared.clone();
                tokio::spawn(async move {
                    let sequence = match published {
                        Ok(published) => {
                            tokio::time::timeout(ANSWER, published).await.ok().and_then(std::result::Result::ok)
                        }
                        Err(_) => None,
                    };
                    shared.inbox().offered(job, sequence.map(|ack| ack.sequence));
                });
            }
            Command::Withdraw(sequence) => {
                // The job's subject is not purged, because nats-server 2.9 would then skip messages that arrive at the
                // same moment.
                if let Ok(stream) = jetstream.get_stream_no_info(&shared.names.jobs).await {
                    let _ = stream.delete_message(sequence).await;
                }
            }
            Command::Acknowledge(messages) => {
                for message in messages {
                    let _ = message.ack().await;
                }
            }
        }
    }
}

/// Requests the list of the server's jobs regularly. If the server has lost the streams, creates them again.
async fn list(shared: Arc<Shared>, client: Client, jetstream: Context) {
    loop {
        tokio::time::sleep(LIST).await;
        until_connected(&client).await;
        let asked = Instant::now();
        match jobs_of(&shared.names, &jetstream).await {
            Some(jobs) => shared.inbox().listed(&jobs, asked),
            None => drop(make_streams(&shared.names, &jetstream).await),
        }
        shared.changed.notify_all();
    }
}

async fn jobs_of(names: &Names, jetstream: &Context) -> Option<BTreeSet<JobName>> {
    let stream = jetstream.get_stream_no_info(&names.jobs).await.ok()?;
    let mut subjects = stream.info_with_subjects(names.all_jobs()).await.ok()?;
    let mut jobs = BTreeSet::new();
    while let Some(subject) = subjects.next().await {
        jobs.extend(names.job_of(&subject.ok()?.0));
    }
    Some(jobs)
}

/// Receives results as they arrive.
async fn receive(shared: Arc<Shared>, client: Client, jetstream: Context) {
    let mut unanswered = 0;
    loop {
        until_connected(&client).await;
        if let Some(mut messages) = results(&shared.names, &jetstream).await {
            let asked = Instant::now();
            while let Some(Ok(message)) = messages.next().await {
                unanswered = 0;
                let useless = shared.inbox().receive(&shared.run, message);
                shared.changed.notify_all();
                for message in useless {
                    let _ = message.ack().await;
                }
            }
            // If the stream answered, its heartbeats kept the request open for longer than two timeouts.
            unanswered = if asked.elapsed() > 2 * ANSWER { 0 } else { unanswered + usize::from(is_connected(&client)) };
            if unanswered == UNANSWERED {
                unanswered = 0;
                let _ = jetstream.delete_stream(&shared.names.results).await;
            }
        } else {
            // The results stream may be the only missing stream.
            let _ = make_streams(&shared.names, &jetstream).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn results(names: &Names, jetstream: &Context) -> Option<pull::Stream> {
    let config = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_ack_pending: MOST_PENDING,
        ..pull::Config::default()
    };
    let stream = jetstream.get_stream_no_info(&names.results).await.ok()?;
    let consumer = stream.create_consumer(config).await.ok()?;
    let pulled = consumer.stream().max_messages_per_batch(64).expires(ANSWER).heartbeat(ANSWER / 4);
    pulled.messages().await.ok()
}

/// Regularly tells the server that results are still waiting for their batch, so that it does not redeliver them.
async fn keep(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(ACK_WAIT / 3).await;
        let kept = shared.inbox().kept();
        for message in kept {
            let _ = message.ack_with(AckKind::Progress).await;
        }
    }
}
