//! The messages that a learner has received from the NATS server and from its workers.

use super::{ANSWER, Beat, Control, PART, RUN, SILENCE};
use crate::exchange::{Scan, Seen};
use crate::job::{Answer, JobName, JobResult, Lineage, WorkerName};
use async_nats::jetstream::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Another process can use a worker name this long after the last message from its previous owner.
const FREE: Duration = Duration::from_secs(5);

/// The state of an offered job.
#[derive(Clone, Copy)]
pub(super) enum Offered {
    /// The job has been sent.
    Sent,
    /// The server has had the job since this time.
    There(Instant),
}

/// A worker that has sent messages to the learner.
pub(super) struct Known {
    pub beat: Beat,
    pub heard: Instant,
    /// Set if the learner has dropped the worker: its progress counter at that time. Cleared when the counter changes.
    pub expelled: Option<u64>,
}

/// A result that the learner has not acknowledged.
struct Held {
    content: (Lineage, Answer),
    /// The result, until it is taken.
    result: Option<JobResult>,
    messages: Vec<Message>,
}

#[derive(Default)]
pub(super) struct Inbox {
    pub offers: BTreeMap<JobName, Offered>,
    /// The sequence number of each job's message in the server's stream.
    sequences: BTreeMap<JobName, u64>,
    pub workers: BTreeMap<WorkerName, Known>,
    withdrawn: BTreeSet<JobName>,
    results: BTreeMap<(WorkerName, JobName), Held>,
    /// Parts of results that were sent in several messages, by subject and hash of the whole result.
    parts: BTreeMap<(String, String), BTreeMap<usize, Message>>,
    pub problems: Vec<String>,
    /// The number of scans made while disconnected from the server.
    outage: u64,
}

impl Inbox {
    /// An empty inbox with `problems` to report.
    pub fn new(problems: Vec<String>) -> Inbox {
        Inbox { problems, ..Inbox::default() }
    }

    /// Handles a worker's heartbeat. Returns a reply for the worker, if one is needed.
    pub fn hear(&mut self, name: &WorkerName, beat: Beat) -> Option<Control> {
        let known = self.workers.get(name);
        if let Some(other) = known.filter(|known| known.beat.id != beat.id && known.is_there(FREE)) {
            let (host, pid) = (&other.beat.host, other.beat.status.pid);
            let why =
                format!("a worker named {name} is already running: process {pid} on {host}. Choose another --name");
            return Some(Control::Refused(beat.id, why));
        }
        let moved = |progress: u64| progress != beat.status.progress;
        let same = known.filter(|known| known.beat.id == beat.id);
        let expelled = same.and_then(|known| known.expelled).filter(|progress| !moved(*progress));
        let unwanted: Vec<JobName> = beat.status.jobs.iter().map(|(job, _)| *job).collect();
        let unwanted: Vec<JobName> = unwanted.into_iter().filter(|job| self.withdrawn.contains(job)).collect();
        self.workers.insert(name.clone(), Known { beat, heard: Instant::now(), expelled });
        (!unwanted.is_empty()).then_some(Control::Withdrawn(unwanted))
    }

    /// Handles a message with a result or a part of one. Returns messages that are not needed and must be acknowledged.
    pub fn receive(&mut self, run: &str, message: Message) -> Vec<Message> {
        let header =
            |name: &str| message.headers.as_ref().and_then(|headers| headers.get(name)).map(ToString::to_string);
        if header(RUN).as_deref() != Some(run) {
            // The result belongs to an earlier run with this name.
            return vec![message];
        }
        let subject = message.subject.to_string();
        let (bytes, messages) = match header(PART).as_deref().map(parse_part) {
            None => (message.payload.to_vec(), vec![message]),
            Some(Some((index, count, whole))) => {
                let key = (subject.clone(), whole);
                let parts = self.parts.entry(key.clone()).or_default();
                parts.insert(index, message);
                if parts.len() < count {
                    return Vec::new();
                }
                let parts = self.parts.remove(&key).unwrap_or_default();
                (parts.values().flat_map(|part| part.payload.to_vec()).collect(), parts.into_values().collect())
            }
            Some(None) => (Vec::new(), vec![message]),
        };
        match JobResult::from_bytes(&bytes) {
            Ok(result) => {
                let (key, content) = ((result.worker.clone(), result.job), (result.lineage, result.answer));
                let held =
                    self.results.entry(key).or_insert(Held { content, result: Some(result), messages: Vec::new() });
                // If a result is delivered again, the last delivery is the one to acknowledge.
                held.messages = messages;
                Vec::new()
            }
            Err(why) => {
                self.problems.push(format!("{subject}: {why}; the job is repeated"));
                messages
            }
        }
    }

    /// Handles the list of jobs that the server has, which was requested at `asked`.
    pub fn listed(&mut self, jobs: &BTreeSet<JobName>, asked: Instant) {
        self.offers.retain(|job, offered| match offered {
            Offered::There(since) if *since < asked => jobs.contains(job),
            _ => true,
        });
        let offers = &self.offers;
        self.sequences.retain(|job, _| offers.contains_key(job));
    }

    pub fn offer(&mut self, job: JobName) {
        self.withdrawn.remove(&job);
        self.offers.insert(job, Offered::Sent);
    }

    /// Handles the server's reply to an offer: the sequence number of the job's message, or `None` if the server may
    /// not have the job.
    pub fn offered(&mut self, job: JobName, sequence: Option<u64>) {
        let Some(offered) = self.offers.get_mut(&job) else { return };
        // Without a sequence number the job is treated as lost, unless the next list contains it.
        let since = if sequence.is_some() { Instant::now() } else { Instant::now() - ANSWER };
        *offered = Offered::There(since);
        self.sequences.extend(sequence.map(|sequence| (job, sequence)));
    }

    /// Withdraws a job. Returns the sequence number of its message, if the server has the job.
    pub fn withdraw(&mut self, job: JobName) -> Option<u64> {
        self.offers.remove(&job);
        self.withdrawn.insert(job);
        // The oldest withdrawals are removed, since workers dropped those jobs long ago.
        while self.withdrawn.len() > 1 << 16 {
            self.withdrawn.pop_first();
        }
        self.sequences.remove(&job)
    }

    pub fn expel(&mut self, worker: &WorkerName) {
        if let Some(known) = self.workers.get_mut(worker) {
            known.expelled = Some(known.beat.status.progress);
        }
    }

    pub fn take(&mut self, worker: &WorkerName, job: JobName) -> Option<JobResult> {
        self.results.get_mut(&(worker.clone(), job))?.result.take()
    }

    pub fn discard(&mut self, worker: &WorkerName, job: JobName) -> Vec<Message> {
        self.results.remove(&(worker.clone(), job)).map_or(Vec::new(), |held| held.messages)
    }

    pub fn acknowledge(&mut self, jobs: &BTreeSet<JobName>) -> Vec<Message> {
        let done: Vec<_> = self.results.keys().filter(|(_, job)| jobs.contains(job)).cloned().collect();
        done.into_iter().flat_map(|(worker, job)| self.discard(&worker, job)).collect()
    }

    /// All unacknowledged messages. The server redelivers them unless it is told regularly that they are in progress.
    pub fn kept(&self) -> Vec<Message> {
        let held = self.results.values().flat_map(|held| &held.messages);
        held.chain(self.parts.values().flat_map(BTreeMap::values)).cloned().collect()
    }

    /// For each worker name, the identifier of the process that uses it.
    pub fn ids(&self) -> BTreeMap<WorkerName, u64> {
        self.workers.iter().map(|(name, known)| (name.clone(), known.beat.id)).collect()
    }

    /// Whether every connected worker has reported its end.
    pub fn all_have_ended(&self) -> bool {
        self.workers.values().all(|known| known.beat.status.ended || !known.is_there(SILENCE))
    }

    /// A scan of the exchange. `knows` returns whether a result has already been reported.
    pub fn scan(&mut self, is_connected: bool, knows: impl Fn(&WorkerName, JobName) -> bool) -> Scan {
        if !is_connected {
            self.outage += 1;
            self.workers.values_mut().for_each(|known| known.heard = Instant::now());
        }
        let mut scan = Scan { pending: self.offers.keys().copied().collect(), ..Scan::default() };
        for (name, known) in &self.workers {
            let Beat { id, status, .. } = &known.beat;
            let alive = known.is_there(SILENCE) && known.expelled.is_none() && !status.ended;
            // `ended: true`: the end of a remote process is not blamed on its jobs, since its reason is unknown and may
            // be the network. While disconnected, `outage` counts as progress, so that workers do not look stalled.
            let progress = status.progress.wrapping_add(self.outage);
            scan.workers.insert(name.clone(), Seen { incarnation: *id, alive, ended: true, failures: 0, progress });
            if alive {
                let jobs = status.jobs.iter().map(|(job, _)| *job).filter(|job| !self.withdrawn.contains(job));
                scan.processing.extend(jobs.map(|job| (name.clone(), job)));
            }
        }
        for ((worker, job), held) in &self.results {
            let content = (!knows(worker, *job)).then_some(held.content);
            scan.results.insert((worker.clone(), *job), content);
        }
        scan
    }
}

impl Known {
    fn is_there(&self, limit: Duration) -> bool {
        self.heard.elapsed() < limit && !self.beat.status.ended
    }
}

/// The value of the header for a part: `INDEX/COUNT HASH`.
pub(super) fn part(index: usize, count: usize, whole: &str) -> String {
    format!("{index}/{count} {whole}")
}

fn parse_part(text: &str) -> Option<(usize, usize, String)> {
    let (place, whole) = text.split_once(' ')?;
    let (index, count) = place.split_once('/')?;
    let (index, count): (usize, usize) = (index.parse().ok()?, count.parse().ok()?);
    (index < count && count <= 1 << 16).then(|| (index, count, whole.to_owned()))
}
