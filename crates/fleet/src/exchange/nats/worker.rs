//! A worker's side of an exchange over a NATS server.

use super::inbox::part;
use super::link::{Link, is_connected, until_connected};
use super::{
    ACK_WAIT, ANSWER, Announced, BEAT, Beat, Control, MOST_PENDING, Names, NatsOptions, PART, PAUSE, RUN, STATUS,
    UNANSWERED, host, number_of_process,
};
use crate::error::{Error, Result};
use crate::exchange::{LearnerState, WorkerExchange, WorkerStatus};
use crate::job::{Job, JobName, JobResult, WorkerName, takes};
use async_nats::HeaderMap;
use async_nats::client::Client;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{AckKind, Context, Message};
use futures_util::StreamExt;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use twox_hash::XxHash3_128;

/// A fetched job that the worker does not claim within this time is returned to the server.
const OFFERED: Duration = Duration::from_millis(500);
/// The server-side timeout of a pull request.
const PULL: Duration = Duration::from_secs(1);
/// After a result was sent, the job stays in the worker's list for this long, so that the learner receives the result
/// before the job leaves the list.
const SETTLED: Duration = Duration::from_secs(2);
/// The maximum time that an ending worker waits for its results to be sent.
const FAREWELL: Duration = Duration::from_secs(3);
/// The time that a worker waits for a name that another process uses. That process may just have been killed.
const JOIN_TIMEOUT: Duration = Duration::from_secs(8);
/// The bytes of a message that are reserved for headers.
const HEADROOM: usize = 4096;
/// The name of the workers' consumer of the jobs stream.
const CONSUMER: &str = "workers";

/// A worker's side of an exchange over a NATS server. Dropping this value first sends the remaining results.
pub struct NatsWorker {
    link: Link,
    shared: Arc<Shared>,
}

/// The last state that a worker received from its learner. Clones share the state.
#[derive(Clone)]
pub struct LearnerWatch(Arc<Shared>);

impl LearnerWatch {
    /// The state of the learner; `None` before the first message from the learner.
    pub fn learner(&self) -> Option<LearnerState> {
        self.0.desk().learner.as_ref().map(|announced| announced.state.clone())
    }
}

struct Shared {
    names: Names,
    name: WorkerName,
    id: u64,
    host: String,
    joined: Instant,
    desk: Mutex<Desk>,
    changed: Condvar,
    pull: Notify,
    report: Notify,
    send: Notify,
}

#[derive(Default)]
struct Desk {
    learner: Option<Announced>,
    refused: Option<String>,
    /// A job that has been fetched but not claimed.
    ready: Option<(Job, Message)>,
    /// The last time that the worker asked for a job.
    wanted: Option<Instant>,
    held: BTreeMap<JobName, Message>,
    withdrawn: BTreeSet<JobName>,
    unsent: VecDeque<Unsent>,
    sent: VecDeque<(JobName, Instant)>,
    status: Option<WorkerStatus>,
}

/// A result that the server does not have yet.
#[derive(Clone)]
struct Unsent {
    job: JobName,
    bytes: Arc<Vec<u8>>,
    run: String,
    message: Option<Message>,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NatsWorker {
    /// Joins the run of this name on the server. The run's learner may start later.
    pub fn join(options: &NatsOptions, name: WorkerName) -> Result<NatsWorker> {
        let link = Link::connect(options, &format!("lockstep worker {name}"))?;
        let shared = Arc::new(Shared {
            names: Names::of(&options.address),
            name,
            id: number_of_process(),
            host: host(),
            joined: Instant::now(),
            desk: Mutex::default(),
            changed: Condvar::new(),
            pull: Notify::new(),
            report: Notify::new(),
            send: Notify::new(),
        });
        shared.desk().status = Some(WorkerStatus { pid: std::process::id(), ..WorkerStatus::default() });
        link.spawn(listen(shared.clone(), link.client.clone()));
        link.spawn(obey(shared.clone(), link.client.clone()));
        link.spawn(beat(shared.clone(), link.client.clone()));
        link.spawn(pull_jobs(shared.clone(), link.client.clone(), link.jetstream.clone()));
        link.spawn(send_results(shared.clone(), link.client.clone(), link.jetstream.clone()));
        link.spawn(keep(shared.clone()));
        Ok(NatsWorker { link, shared })
    }

    /// A handle to the learner's last state, for other parts of this process.
    pub fn watch(&self) -> LearnerWatch {
        LearnerWatch(self.shared.clone())
    }

    fn answer(&self, message: Message, kind: AckKind) {
        self.link.spawn(async move {
            let _ = message.ack_with(kind).await;
        });
    }
}

impl WorkerExchange for NatsWorker {
    fn learner(&mut self) -> Result<Option<LearnerState>> {
        let mut desk = self.shared.desk();
        if let Some(why) = &desk.refused
            && self.shared.joined.elapsed() > JOIN_TIMEOUT
        {
            return Err(Error::Refused(why.clone()));
        }
        let Some(announced) = &desk.learner else { return Ok(None) };
        let is_known = announced.workers.get(&self.shared.name) == Some(&self.shared.id);
        let state = (is_known || announced.state.ended).then(|| announced.state.clone());
        if is_known {
            desk.refused = None;
        }
        Ok(state)
    }

    fn claim(&mut self, profiles: &[String]) -> Result<Option<Job>> {
        let mut desk = self.shared.desk();
        desk.wanted = Some(Instant::now());
        self.shared.pull.notify_one();
        let Some((job, message)) = desk.ready.take() else { return Ok(None) };
        let run = desk.learner.as_ref().map(|announced| announced.run.clone());
        if message.headers.as_ref().and_then(|headers| headers.get(RUN)).map(ToString::to_string) != run {
            drop(desk);
            // The message is left over from an earlier run with this name.
            self.answer(message, AckKind::Term);
            return Ok(None);
        }
        if !takes(profiles, &job.profile) {
            drop(desk);
            self.answer(message, AckKind::Nak(Some(OFFERED)));
            return Ok(None);
        }
        desk.withdrawn.remove(&job.name);
        desk.sent.retain(|(sent, _)| *sent != job.name);
        desk.held.insert(job.name, message);
        Ok(Some(job))
    }

    fn is_wanted(&mut self, job: JobName) -> bool {
        !self.shared.desk().withdrawn.contains(&job)
    }

    fn report(&mut self, status: &WorkerStatus) -> Result<()> {
        self.shared.desk().status = Some(status.clone());
        self.shared.report.notify_one();
        Ok(())
    }

    fn complete(&mut self, result: &JobResult) -> Result<()> {
        let mut desk = self.shared.desk();
        let run = desk.learner.as_ref().map(|announced| announced.run.clone()).unwrap_or_default();
        let message = desk.held.remove(&result.job);
        desk.unsent.push_back(Unsent { job: result.job, bytes: Arc::new(result.to_bytes()), run, message });
        self.shared.send.notify_one();
        Ok(())
    }

    fn give_back(&mut self, job: JobName) -> Result<()> {
        let mut desk = self.shared.desk();
        let kind = if desk.withdrawn.contains(&job) { AckKind::Term } else { AckKind::Nak(None) };
        if let Some(message) = desk.held.remove(&job) {
            drop(desk);
            self.answer(message, kind);
        }
        Ok(())
    }

    fn wait(&mut self, at_most: Duration) {
        let desk = self.shared.desk();
        if desk.ready.is_none() {
            // A spurious wake-up is harmless: the caller checks again and waits.
            drop(self.shared.changed.wait_timeout(desk, at_most));
        }
    }
}

impl Drop for NatsWorker {
    fn drop(&mut self) {
        let since = Instant::now();
        while since.elapsed() < FAREWELL && self.link.is_connected() && !self.shared.desk().unsent.is_empty() {
            std::thread::sleep(PAUSE / 10);
        }
        if self.link.is_connected() {
            let (shared, client) = (self.shared.clone(), self.link.client.clone());
            let ready = self.shared.desk().ready.take();
            self.link.wait(async move {
                if let Some((_, message)) = ready {
                    let _ = message.ack_with(AckKind::Nak(None)).await;
                }
                say(&shared, &client).await;
                let _ = client.flush().await;
            });
        }
    }
}

/// Receives the state that the learner publishes.
async fn listen(shared: Arc<Shared>, client: Client) {
    let Ok(mut states) = client.subscribe(shared.names.state()).await else { return };
    while let Some(message) = states.next().await {
        let Ok(announced) = serde_json::from_slice::<Announced>(&message.payload) else { continue };
        {
            let mut desk = shared.desk();
            if desk.learner.as_ref().is_some_and(|before| before.run != announced.run) {
                // A new run uses this name now, so the jobs of the old run are dropped.
                let held: Vec<JobName> = desk.held.keys().copied().collect();
                desk.withdrawn.extend(held);
            }
            desk.learner = Some(announced);
        }
        shared.changed.notify_all();
    }
}

/// Receives the learner's messages to this worker.
async fn obey(shared: Arc<Shared>, client: Client) {
    let Ok(mut controls) = client.subscribe(shared.names.control(&shared.name)).await else { return };
    while let Some(message) = controls.next().await {
        match serde_json::from_slice::<Control>(&message.payload) {
            Ok(Control::Withdrawn(jobs)) => shared.desk().withdrawn.extend(jobs),
            Ok(Control::Refused(id, why)) if id == shared.id => shared.desk().refused = Some(why),
            _ => continue,
        }
        shared.changed.notify_all();
    }
}

/// Publishes this worker's status regularly, as a heartbeat.
async fn beat(shared: Arc<Shared>, client: Client) {
    loop {
        if is_connected(&client) {
            say(&shared, &client).await;
        }
        tokio::time::sleep(STATUS).await;
        let _ = tokio::time::timeout(BEAT, shared.report.notified()).await;
    }
}

async fn say(shared: &Shared, client: &Client) {
    let status = {
        let mut desk = shared.desk();
        while desk.sent.front().is_some_and(|(_, since)| since.elapsed() > SETTLED) {
            desk.sent.pop_front();
        }
        let Some(mut status) = desk.status.clone() else { return };
        let unsent = desk.unsent.iter().map(|unsent| unsent.job);
        let more: BTreeSet<JobName> = unsent.chain(desk.sent.iter().map(|(job, _)| *job)).collect();
        let known: BTreeSet<JobName> = status.jobs.iter().map(|(job, _)| *job).collect();
        status.jobs.extend(more.difference(&known).map(|job| (*job, "handing over".to_owned())));
        status
    };
    let beat = Beat { id: shared.id, host: shared.host.clone(), status };
    if let Ok(text) = serde_json::to_vec(&beat) {
        let _ = client.publish(shared.names.worker(shared.name.as_str()), text.into()).await;
    }
}

/// Fetches a job when the worker wants one.
async fn pull_jobs(shared: Arc<Shared>, client: Client, jetstream: Context) {
    let mut consumer = None;
    let mut unanswered = 0;
    loop {
        let wanted = shared.desk().wanted;
        if wanted.is_none_or(|wanted| wanted.elapsed() > OFFERED) {
            let unclaimed = shared.desk().ready.take();
            if let Some((_, message)) = unclaimed {
                let _ = message.ack_with(AckKind::Nak(None)).await;
            }
            let _ = tokio::time::timeout(BEAT, shared.pull.notified()).await;
            continue;
        }
        if shared.desk().ready.is_some() || shared.desk().learner.is_none() {
            let _ = tokio::time::timeout(OFFERED, shared.pull.notified()).await;
            continue;
        }
        until_connected(&client).await;
        if consumer.is_none() {
            consumer = jobs(&shared.names, &jetstream).await;
        }
        let Some(jobs) = &consumer else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(mut batch) = jobs.batch().max_messages(1).expires(PULL).messages().await else {
            consumer = None;
            continue;
        };
        // If the server does not have the stream, it never answers.
        let Ok(answer) = tokio::time::timeout(PULL + PAUSE, batch.next()).await else {
            consumer = None;
            unanswered += 1;
            if unanswered == UNANSWERED {
                unanswered = 0;
                let _ = jetstream.delete_stream(&shared.names.jobs).await;
            }
            continue;
        };
        unanswered = 0;
        match answer {
            Some(Ok(message)) => match Job::from_bytes(&message.payload) {
                Ok(job) => {
                    shared.desk().ready = Some((job, message));
                    shared.changed.notify_all();
                }
                // The job cannot be read. The learner notices that it is missing and offers it again.
                Err(_) => drop(message.ack_with(AckKind::Term).await),
            },
            Some(Err(_)) => {
                consumer = None;
                tokio::time::sleep(PAUSE).await;
            }
            None => {}
        }
    }
}

async fn jobs(names: &Names, jetstream: &Context) -> Option<async_nats::jetstream::consumer::PullConsumer> {
    let config = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_ack_pending: MOST_PENDING,
        max_waiting: 1 << 14,
        ..pull::Config::default()
    };
    // A server that lost its data has no consumer. The learner recreates the stream, and the first worker the consumer.
    jetstream.get_stream_no_info(&names.jobs).await.ok()?.create_consumer(config).await.ok()
}

/// Sends results, and retries until the server has them.
async fn send_results(shared: Arc<Shared>, client: Client, jetstream: Context) {
    loop {
        let next = shared.desk().unsent.front().cloned();
        let Some(unsent) = next else {
            let _ = tokio::time::timeout(BEAT, shared.send.notified()).await;
            continue;
        };
        until_connected(&client).await;
        if !publish(&shared, &client, &jetstream, &unsent).await {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        {
            let mut desk = shared.desk();
            desk.unsent.pop_front();
            desk.sent.push_back((unsent.job, Instant::now()));
        }
        // Acknowledge the job last: if this process dies earlier, the server delivers the job again.
        if let Some(message) = unsent.message {
            let _ = message.ack().await;
        }
    }
}

/// Sends a result, split into several messages if it exceeds the size limit. Returns whether the server confirmed all.
async fn publish(shared: &Shared, client: &Client, jetstream: &Context, unsent: &Unsent) -> bool {
    let room = client.max_payload().saturating_sub(HEADROOM).max(HEADROOM);
    let parts: Vec<&[u8]> = unsent.bytes.chunks(room).collect();
    let whole = format!("{:032x}", XxHash3_128::oneshot(&unsent.bytes));
    let subject = shared.names.result(&shared.name, unsent.job);
    for (index, bytes) in parts.iter().enumerate() {
        let mut headers = HeaderMap::new();
        headers.insert(RUN, unsent.run.as_str());
        if parts.len() > 1 {
            headers.insert(PART, part(index, parts.len(), &whole).as_str());
        }
        let published = jetstream.publish_with_headers(subject.clone(), headers, bytes.to_vec().into()).await;
        let Ok(published) = published else { return false };
        if !tokio::time::timeout(ANSWER, published).await.is_ok_and(|ack| ack.is_ok()) {
            return false;
        }
    }
    true
}

/// Regularly tells the server that jobs are in progress, so that it does not deliver them to other workers.
async fn keep(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(ACK_WAIT / 3).await;
        let messages: Vec<Message> = {
            let desk = shared.desk();
            let unsent = desk.unsent.iter().filter_map(|unsent| unsent.message.as_ref());
            desk.held.values().chain(unsent).cloned().collect()
        };
        for message in messages {
            let _ = message.ack_with(AckKind::Progress).await;
        }
    }
}

#[cfg(test)]
mod tests;
