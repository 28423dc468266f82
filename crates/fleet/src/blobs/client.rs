//! The HTTP client that fetches blobs: weights and files.

use super::{Head, hash};
use crate::error::{Error, Result};
use std::time::{Duration, Instant};

/// The timeout of an attempt to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// The timeout of a request for a block. The block is then requested again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause before a block is requested again.
const PAUSE: Duration = Duration::from_millis(200);
/// The number of times that a block may arrive with a wrong hash before the fetch fails.
const TRIES: usize = 3;
/// The user is warned after the server has been unreachable for this long.
const SILENCE: Duration = Duration::from_secs(5);
/// The maximum size of a head, in bytes.
const LONGEST_HEAD: u64 = 64 << 20;

/// Fetches blobs from a server.
pub struct Client {
    agent: ureq::Agent,
    /// The address of the server, `http://HOST:PORT`.
    url: String,
    authorization: Option<String>,
    /// Called once with a warning if the server cannot be reached.
    say: Box<dyn Fn(&str) + Send + Sync>,
}

/// The outcome of one request.
enum Got {
    Bytes(Vec<u8>),
    Gone,
    /// The server could not be reached, or the connection was lost.
    Cut(String),
}

impl Client {
    /// A client of the server at `HOST:PORT` with a bearer token. `say` is called with a warning if the server cannot
    /// be reached for five seconds.
    pub fn new(address: &str, bearer: Option<&str>, say: impl Fn(&str) + Send + Sync + 'static) -> Client {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(REQUEST_TIMEOUT))
            .max_redirects(0)
            .proxy(None)
            .build();
        let authorization = bearer.map(|bearer| format!("Bearer {bearer}"));
        let (agent, url) = (config.new_agent(), format!("http://{address}"));
        Client { agent, url, authorization, say: Box::new(say) }
    }

    /// The head of a blob; `None` if the blob does not exist, or if `stop` returns true before the server is reached.
    pub fn head(&self, name: &str, stop: &dyn Fn() -> bool) -> Result<Option<Head>> {
        let Some(bytes) = self.patiently(&format!("{name}/head"), None, stop)? else { return Ok(None) };
        let head: Head = serde_json::from_slice(&bytes)
            .map_err(|e| Error::Failed(format!("{}/blobs/{name}/head is not the head of a blob: {e}", self.url)))?;
        if head.is_sound() {
            Ok(Some(head))
        } else {
            Err(Error::Failed(format!(
                "{}/blobs/{name}/head: `bytes`, `block` and the number of hashes do not match",
                self.url
            )))
        }
    }

    /// Fetches a blob block by block. `sink` receives the offset and the bytes of each block whose hash is right. A
    /// request that fails because of the network is retried without limit. Returns false if the blob no longer exists
    /// or `stop` returns true.
    pub fn fetch(
        &self,
        name: &str,
        head: &Head,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
        stop: &dyn Fn() -> bool,
    ) -> Result<bool> {
        for (index, expected) in head.hashes.iter().enumerate() {
            let range = head.range(index);
            let mut tries = 0;
            let block = loop {
                let Some(block) = self.patiently(&format!("{name}/data"), Some(range.clone()), stop)? else {
                    return Ok(false);
                };
                let found = hash(&block);
                if found == *expected {
                    break block;
                }
                tries += 1;
                if tries == TRIES {
                    return Err(Error::Failed(format!(
                        "block {index} of {}/blobs/{name} arrived {tries} times with a wrong hash: expected \
                         {expected}, got {found}. The network or the memory of a machine corrupts data",
                        self.url
                    )));
                }
            };
            sink(range.start, &block)?;
        }
        Ok(true)
    }

    /// Fetches all bytes of a small blob.
    pub fn bytes(&self, name: &str, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>> {
        let Some(head) = self.head(name, stop)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let mut sink = |_, block: &[u8]| {
            bytes.extend_from_slice(block);
            Ok(())
        };
        Ok(self.fetch(name, &head, &mut sink, stop)?.then_some(bytes))
    }

    fn patiently(
        &self,
        path: &str,
        range: Option<std::ops::Range<u64>>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>> {
        let (since, mut has_warned) = (Instant::now(), false);
        loop {
            match self.get(path, range.as_ref())? {
                Got::Bytes(bytes) => return Ok(Some(bytes)),
                Got::Gone => return Ok(None),
                Got::Cut(_) if stop() => return Ok(None),
                Got::Cut(why) => {
                    if since.elapsed() > SILENCE && !std::mem::replace(&mut has_warned, true) {
                        let what =
                            "This machine must be able to connect to the learner's --listen address (--advertise)";
                        (self.say)(&format!("{} cannot be reached: {why}; retrying. {what}", self.url));
                    }
                    std::thread::sleep(PAUSE);
                }
            }
            if stop() {
                return Ok(None);
            }
        }
    }

    fn get(&self, path: &str, range: Option<&std::ops::Range<u64>>) -> Result<Got> {
        let mut request = self.agent.get(format!("{}/blobs/{path}", self.url));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut limit = LONGEST_HEAD;
        if let Some(range) = range {
            request = request.header("Range", format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
            limit = range.end - range.start;
        }
        let mut response = match request.call() {
            Ok(response) => response,
            Err(error) => return Ok(Got::Cut(error.to_string())),
        };
        let status = response.status().as_u16();
        // The limit is one byte above the range, so that a response that is too long is detected.
        match (status, response.body_mut().with_config().limit(limit + 1).read_to_vec()) {
            (200 | 206, Ok(bytes)) if range.is_none() || bytes.len() as u64 == limit => Ok(Got::Bytes(bytes)),
            (200 | 206, _) => Ok(Got::Cut("a response was truncated".to_owned())),
            (404, _) => Ok(Got::Gone),
            (401, _) => Err(Error::Refused(format!(
                "{} refuses the token: learner and workers must use the same token",
                self.url
            ))),
            // The server's weights are being overwritten, or its disk fails. The server logs the reason.
            (500..=599, _) => Ok(Got::Cut(format!("HTTP status {status}"))),
            (status, _) => Err(Error::Failed(format!("{}/blobs/{path}: HTTP status {status}", self.url))),
        }
    }
}
