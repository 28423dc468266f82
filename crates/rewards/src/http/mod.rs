//! `http`: a reward that a service computes for POST requests: `"http://localhost:8000/score"`.
//!
//! The bodies of requests and responses have the JSON format of [`command`](crate::command) programs. By default one
//! request contains all completions of a generation batch, so that the service can compare completions with each other.
//! With `batch_size`, each request has that many consecutive completions, and up to `concurrency` requests are in
//! flight at once.
//!
//! A request is retried if the connection fails, no response comes within `timeout_s`, or the status is 5xx, 408 or
//! 429. There are up to `retries` retries. The pause before the first retry is `backoff_s` seconds, and each further
//! pause is twice as long (at most 30 seconds). If the service requests a longer pause (`Retry-After`), it is used (at
//! most five minutes). Any other status except 2xx is not retried, nor is an invalid response. The completions of a
//! failed request get `None`, never 0, and a [`Problem`] holds the reason.

mod address;
mod certificates;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;

pub use self::address::Address;
use self::address::without_secrets;
use crate::protocol::{self, Failure};
use crate::{Columns, Error, Problem, ProblemKind, Result, Reward, RewardBatch, Scores};

pub(crate) const KIND: &str = "http";
/// The longest response that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 256 << 20;
/// The longest pause before a retry.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// The longest pause that a service may ask for (`Retry-After`).
const MAX_WAIT: Duration = Duration::from_secs(300);
/// The interval at which a waiting thread checks whether the scores are still needed.
const POLL: Duration = Duration::from_millis(50);
/// The number of bytes of an invalid response that an error message shows.
const SHOWN_BYTES: usize = 200;

/// The options of an `http` reward, in addition to `kind` and `name`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpOptions {
    url: String,
    /// Seconds that one request may take.
    #[serde(default = "crate::command::default_timeout_s")]
    timeout_s: f64,
    /// The number of retries of a failed request.
    #[serde(default = "default_retries")]
    retries: u32,
    /// Seconds before the first retry of a failed request.
    #[serde(default = "default_backoff_s")]
    backoff_s: f64,
    /// The number of completions in a request; if not set, all completions of the batch.
    batch_size: Option<usize>,
    /// The maximum number of requests in flight.
    #[serde(default = "default_concurrency")]
    concurrency: usize,
    /// Whether a batch is one group, scored while other groups are still being generated.
    #[serde(default)]
    by_group: bool,
    /// The environment variable that holds a token, sent as `Authorization: Bearer`.
    token_env: Option<String>,
}

fn default_retries() -> u32 {
    4
}

fn default_backoff_s() -> f64 {
    0.5
}

fn default_concurrency() -> usize {
    8
}

/// Sends requests, from any thread.
#[derive(Clone, Debug)]
struct Client {
    /// The reward's name.
    name: String,
    address: Address,
    authorization: Option<String>,
    retries: u32,
    backoff: Duration,
}

/// A reward that an HTTP service computes. The documentation of `http` describes its protocol.
#[derive(Debug)]
pub(crate) struct HttpReward {
    name: String,
    client: Client,
    batch_size: Option<usize>,
    concurrency: usize,
    by_group: bool,
    stop: Arc<AtomicBool>,
}

impl HttpReward {
    /// Builds the reward from its options, without making a request.
    pub(crate) fn new(name: String, options: HttpOptions) -> Result<Self> {
        let authorities = std::env::var_os(certificates::VARIABLE);
        Self::trusting(authorities.as_deref(), name, options)
    }

    /// Like [`HttpReward::new`], with the file of certificate authorities as an argument.
    fn trusting(authorities: Option<&OsStr>, name: String, options: HttpOptions) -> Result<Self> {
        let HttpOptions { url, timeout_s, retries, backoff_s, batch_size, concurrency, by_group, token_env } = options;
        let wrong = |message: String| Err(Error::options(KIND, message));
        if let Err(why) = Address::check(&url) {
            return wrong(format!("`url` = `{}` {why}", without_secrets(&url)));
        }
        if !(timeout_s.is_finite() && timeout_s > 0.0 && timeout_s < 1e9) {
            return wrong(format!("`timeout_s` must be a positive number of seconds below 1e9, got {timeout_s}"));
        }
        if !(0.0..1e9).contains(&backoff_s) {
            return wrong(format!("`backoff_s` must be a number of seconds from 0 to below 1e9, got {backoff_s}"));
        }
        if batch_size == Some(0) || concurrency == 0 {
            return wrong("`batch_size` and `concurrency` must be at least 1".to_owned());
        }
        let authorization = match token_env.map(|name| (std::env::var(&name), name)) {
            None => None,
            Some((Ok(token), name)) if token.trim().is_empty() => {
                return wrong(format!("`token_env`: the environment variable {name} is empty"));
            }
            Some((Ok(token), _)) => Some(format!("Bearer {}", token.trim())),
            Some((Err(_), name)) => return wrong(format!("`token_env`: the environment variable {name} is not set")),
        };
        let address = match Address::trusting(authorities, url, timeout_s) {
            Ok(address) => address,
            Err(why) => return wrong(why),
        };
        let backoff = Duration::from_secs_f64(backoff_s);
        let client = Client { name: name.clone(), address, authorization, retries, backoff };
        Ok(HttpReward { name, client, batch_size, concurrency, by_group, stop: Arc::default() })
    }

    /// Sends the requests. Returns the scores or the failure of each, in the order of the requests.
    fn ask(&self, requests: Vec<Request>) -> Vec<std::result::Result<Scores, Failure>> {
        let stopped = || Err((ProblemKind::Failed, "the scores are not needed any more".to_owned()));
        let mut outcomes: Vec<_> = requests.iter().map(|_| stopped()).collect();
        let threads = self.concurrency.min(requests.len());
        let (queue, work) = channel();
        requests.into_iter().enumerate().for_each(|request| drop(queue.send(request)));
        drop(queue);
        let work = Arc::new(Mutex::new(work));
        let (answers, answered) = channel();
        for _ in 0..threads {
            // The threads are detached, so that a stop does not wait for a slow service.
            let (client, work, answers, stop) = (self.client.clone(), work.clone(), answers.clone(), self.stop.clone());
            std::thread::spawn(move || client.serve(&work, &answers, &stop));
        }
        drop(answers);
        loop {
            match answered.recv_timeout(POLL) {
                Ok((place, outcome)) => outcomes[place] = outcome,
                Err(RecvTimeoutError::Disconnected) => return outcomes,
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Relaxed) => return outcomes,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// The body of a request, and the number of tokens of each of its completions.
struct Request {
    body: Vec<u8>,
    tokens: Vec<usize>,
}

impl Request {
    fn of(batch: &RewardBatch<'_>) -> std::result::Result<Request, Failure> {
        let tokens = batch.completion_ids.iter().map(Vec::len).collect();
        Ok(Request { body: protocol::request(batch, None)?, tokens })
    }
}

type Outcome = (usize, std::result::Result<Scores, Failure>);

impl Client {
    fn serve(&self, work: &Mutex<Receiver<(usize, Request)>>, answers: &Sender<Outcome>, stop: &AtomicBool) {
        loop {
            let next = work.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv();
            let Ok((place, request)) = next else { return };
            if stop.load(Ordering::Relaxed) || answers.send((place, self.scores(&request, stop))).is_err() {
                return;
            }
        }
    }

    /// The pause before the next retry, after `tries` failed retries.
    fn pause(&self, tries: u32) -> Duration {
        self.backoff.saturating_mul(1 << tries.min(16)).min(MAX_BACKOFF)
    }

    /// Sends a request, and retries until it is answered or fails with an error that is not retried.
    fn scores(&self, request: &Request, stop: &AtomicBool) -> std::result::Result<Scores, Failure> {
        let mut tries = 0;
        let answer = loop {
            let ((kind, message), wait) = match self.post(&request.body) {
                Ok(answer) => break answer,
                Err(Refusal::Final(failure)) => return Err(failure),
                Err(Refusal::Again(failure, wait)) => (failure, wait.unwrap_or_default()),
            };
            if tries == self.retries {
                let times = if tries == 0 { String::new() } else { format!(" ({} requests)", tries + 1) };
                return Err((kind, format!("{message}{times}")));
            }
            let until = Instant::now() + self.pause(tries).max(wait.min(MAX_WAIT));
            tries += 1;
            while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(until.saturating_duration_since(Instant::now()).min(POLL));
            }
            if stop.load(Ordering::Relaxed) {
                return Err((kind, message));
            }
        };
        let described = |(kind, message)| match kind {
            ProblemKind::Failed => (kind, format!("{} reported an error: {message}", self.address)),
            _ => (kind, format!("{}: {message}", self.address)),
        };
        let scores = protocol::answer(&answer);
        let scores = scores.and_then(|answer| protocol::scores(&self.name, answer, &request.tokens)).map_err(described);
        scores.map(|mut scores| {
            let message = |problem: &mut Problem| problem.message = format!("{}: {}", self.address, problem.message);
            scores.problems.iter_mut().for_each(message);
            scores
        })
    }

    fn post(&self, body: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
        let answer = self.address.post(body, self.authorization.as_deref());
        let mut response = answer.map_err(|error| self.refusal(&error))?;
        let status = response.status();
        let header = |name: &str| Some(String::from_utf8_lossy(response.headers().get(name)?.as_bytes()).into_owned());
        let wait = header("retry-after").and_then(|seconds| seconds.trim().parse::<u32>().ok());
        // The client's own limit applies to the compressed response, this limit to the decompressed response.
        let reader = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).reader();
        let answer = text_of(reader).map_err(|error| self.refusal(&error))?;
        if status.is_success() {
            return Ok(answer);
        }
        let text = String::from_utf8_lossy(&answer[..answer.len().min(SHOWN_BYTES)]).trim().to_owned();
        let text = if text.is_empty() { text } else { format!("; it begins: {text}") };
        let failure = (ProblemKind::Crashed, format!("{}{text}", self.address.status_of(&response)));
        Err(match status.as_u16() {
            408 | 429 | 500.. => Refusal::Again(failure, wait.map(|seconds| Duration::from_secs(seconds.into()))),
            _ => Refusal::Final(failure),
        })
    }

    fn refusal(&self, error: &ureq::Error) -> Refusal {
        let message = self.address.explain(error);
        match error {
            ureq::Error::Timeout(_) => Refusal::Again((ProblemKind::TimedOut, message), None),
            error if address::may_pass(error) => Refusal::Again((ProblemKind::Crashed, message), None),
            ureq::Error::BodyExceedsLimit(_) => Refusal::Final((
                ProblemKind::BadAnswer,
                format!("the answer from {} is longer than 256 MiB", self.address),
            )),
            _ => Refusal::Final((ProblemKind::Failed, message)),
        }
    }
}

/// The bytes of a response, up to the limit.
fn text_of(reader: impl std::io::Read) -> std::result::Result<Vec<u8>, ureq::Error> {
    use std::io::Read;
    let mut answer = Vec::new();
    let read = reader.take(MAX_ANSWER_BYTES + 1).read_to_end(&mut answer);
    // The client reports exceeded limits and timeouts as read errors.
    read.map_err(ureq::Error::from)?;
    if answer.len() as u64 > MAX_ANSWER_BYTES {
        return Err(ureq::Error::BodyExceedsLimit(MAX_ANSWER_BYTES));
    }
    Ok(answer)
}

enum Refusal {
    /// The request failed, but a retry may succeed, after the pause that the service asks for.
    Again(Failure, Option<Duration>),
    Final(Failure),
}

impl Reward for HttpReward {
    fn name(&self) -> &str {
        &self.name
    }

    fn scores_by_group(&self) -> bool {
        self.by_group
    }

    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let size = self.batch_size.unwrap_or(usize::MAX).min(batch.len().max(1));
        let starts: Vec<usize> = (0..batch.len()).step_by(size).collect();
        let requests = starts.iter().map(|&start| {
            let rows = start..(start + size).min(batch.len());
            let column = |(name, values): (&String, &Vec<_>)| (name.clone(), values[rows.clone()].to_vec());
            let columns: Columns = batch.columns.iter().map(column).collect();
            Request::of(&RewardBatch {
                prompts: &batch.prompts[rows.clone()],
                completions: &batch.completions[rows.clone()],
                completion_ids: &batch.completion_ids[rows],
                columns: &columns,
                rows: &[],
                step: batch.step,
            })
        });
        let failed = |rows: usize, (kind, message): Failure| {
            Scores::failed(rows, Problem::new(&self.name, rows, message).with_kind(kind))
        };
        match requests.collect::<std::result::Result<Vec<_>, _>>() {
            Err(failure) => failed(batch.len(), failure),
            Ok(requests) => {
                let counts: Vec<usize> = requests.iter().map(|request| request.tokens.len()).collect();
                let outcomes = self.ask(requests).into_iter().zip(counts);
                Scores::from_groups(outcomes.map(|(outcome, rows)| outcome.unwrap_or_else(|why| failed(rows, why))))
            }
        }
    }
}
