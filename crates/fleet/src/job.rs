//! What is asked of workers, and what they answer. A job is a pure function of its name: whoever computes it, and
//! however often, gets the same tokens.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// Which job: its place in the run, and never when or by whom it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum JobName {
    /// A chunk of the rollout of a group, `000123.0`.
    Rollout {
        /// Batch b has the rollout numbers b·g … b·g + g − 1.
        number: u64,
        /// Tokens chunk · C … (chunk + 1) · C − 1 of its completions; 0 where completions are not split.
        chunk: u32,
    },
    /// A part of an evaluation, `eval-000020.3`.
    Evaluation {
        /// The weights that are evaluated: those after that many batches.
        version: u64,
        /// Which part.
        index: u32,
    },
}

impl JobName {
    /// Whether it is `other` or a later chunk of the same group.
    pub(crate) fn is_or_continues(self, other: JobName) -> bool {
        match (self, other) {
            (JobName::Rollout { number, chunk }, JobName::Rollout { number: same, chunk: from }) => {
                number == same && chunk >= from
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobName::Rollout { number, chunk } => write!(f, "{number:06}.{chunk}"),
            JobName::Evaluation { version, index } => write!(f, "eval-{version:06}.{index}"),
        }
    }
}

impl FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<JobName, String> {
        let bad = || format!("{text:?} is no job: rollouts are named like 000123.0, evaluations like eval-000020.3");
        let (evaluation, numbers) = match text.strip_prefix("eval-") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (first, second) = numbers.split_once('.').ok_or_else(bad)?;
        let (first, second): (u64, u32) = (first.parse().map_err(|_| bad())?, second.parse().map_err(|_| bad())?);
        let name = match evaluation {
            true => JobName::Evaluation { version: first, index: second },
            false => JobName::Rollout { number: first, chunk: second },
        };
        // One job has one name: no plus sign, no missing zeros.
        if name.to_string() == text { Ok(name) } else { Err(bad()) }
    }
}

impl TryFrom<String> for JobName {
    type Error = String;

    fn try_from(text: String) -> Result<JobName, String> {
        text.parse()
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> String {
        name.to_string()
    }
}

/// The name of a worker: unique in a run, and part of file names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerName(Arc<str>);

impl WorkerName {
    /// 1 to 64 letters, digits, `-` and `_`: anything else is an error that says so.
    pub fn new(name: &str) -> Result<WorkerName, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
            true => Ok(WorkerName(name.into())),
            false => Err(format!("{name:?} cannot name a worker: use 1 to 64 letters, digits, - and _")),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for WorkerName {
    type Error = String;

    fn try_from(name: String) -> Result<WorkerName, String> {
        WorkerName::new(&name)
    }
}

impl From<WorkerName> for String {
    fn from(name: WorkerName) -> String {
        name.0.as_ref().to_owned()
    }
}

/// Whether a worker of these profiles does jobs of one; a worker without profiles does all.
pub fn takes(profiles: &[String], profile: &str) -> bool {
    profiles.is_empty() || profiles.iter().any(|own| own == profile)
}

/// Where weights come from: that of version 0 is a hash of the model, the configuration and the arithmetic; each batch
/// that was trained on makes the next one. Equal lineages are equal weights, without a pass over them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Lineage(pub [u8; 16]);

impl Lineage {
    /// Of version 0: a hash of what a run starts from.
    pub fn origin(parts: &[&[u8]]) -> Lineage {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        first_half(hash)
    }

    /// Of the weights after one more batch.
    pub fn after(self, batch: &BatchDigest) -> Lineage {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(batch.0);
        first_half(hash)
    }
}

impl Lineage {
    /// Of the result of a chunk that these weights continue, from the answer with this fingerprint to the chunk before.
    fn continued(self, before: u64) -> Lineage {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(b"continued");
        hash.update(before.to_le_bytes());
        first_half(hash)
    }

    /// Of the result of a job of these weights. One that continues another answer than that which was accepted since
    /// has another lineage.
    pub fn of_result(self, continues: Option<u64>) -> Lineage {
        continues.map_or(self, |before| self.continued(before))
    }
}

fn first_half(hash: Sha256) -> Lineage {
    let bytes = hash.finalize();
    let mut half = [0; 16];
    half.copy_from_slice(&bytes[..16]);
    Lineage(half)
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Lineage {
    type Error = String;

    fn try_from(text: String) -> Result<Lineage, String> {
        let bad = || format!("{text:?} is no lineage: 32 hexadecimal digits");
        if text.len() != 32 || !text.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Lineage(bytes))
    }
}

impl From<Lineage> for String {
    fn from(lineage: Lineage) -> String {
        lineage.to_string()
    }
}

/// A hash of what a batch taught: names and contents of its results, not who made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchDigest(pub [u8; 32]);

impl BatchDigest {
    /// Of a batch's results in the order of their names.
    pub fn of(results: &[JobResult]) -> BatchDigest {
        let mut hash = Sha256::new();
        for result in results {
            let name = result.job.to_string();
            hash.update([name.len() as u8]);
            hash.update(name);
            hash.update([u8::from(result.answer.more)]);
            hash.update((result.bytes.len() as u64).to_le_bytes());
            hash.update(&result.bytes);
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(&hash.finalize());
        BatchDigest(digest)
    }
}

/// What a worker is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// Which one.
    pub name: JobName,
    /// The weights that sample it, by number.
    pub version: u64,
    /// The weights that sample it, by where they come from.
    pub lineage: Lineage,
    /// Of a later chunk: the fingerprint of the answer to the chunk before, which the payload has.
    pub continues: Option<u64>,
    /// Workers ended while they worked on it beside others: the next one does it alone, to find which one ends workers.
    pub alone: bool,
    /// Which kind of worker takes it.
    pub profile: String,
    /// Prompt, sampling and what else the work needs; for a chunk the chunks before it, too. Opaque here.
    pub payload: Vec<u8>,
}

/// What of a result decides something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// A hash of what must be the same whoever computes the job: tokens and log-probabilities, not scores from outside.
    pub fingerprint: u64,
    /// A completion has not ended: the next chunk must be asked for.
    pub more: bool,
}

impl Answer {
    /// Of a result of which every byte must be the same.
    pub fn of(bytes: &[u8]) -> Answer {
        Answer { fingerprint: XxHash3_64::oneshot(bytes), more: false }
    }
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobResult {
    /// Which job.
    pub job: JobName,
    /// That of the weights that sampled it, and of what it continues: [`Lineage::of_result`].
    pub lineage: Lineage,
    /// Who made it.
    pub worker: WorkerName,
    /// What of it decides something.
    pub answer: Answer,
    /// Tokens, log-probabilities, scores. Opaque here.
    pub bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_one_name() {
        for name in [JobName::Rollout { number: 123, chunk: 0 }, JobName::Evaluation { version: 12_345_678, index: 3 }]
        {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for bad in ["123.0", "000123", "000123.00", "+00123.0", "eval-20.3", "000123.0.tmp", "", ".", "000123.-1"] {
            assert!(bad.parse::<JobName>().unwrap_err().contains("is no job"), "{bad}");
        }
    }

    #[test]
    fn a_workers_name_can_be_a_directory() {
        assert!(WorkerName::new("dev-1_b").is_ok());
        for bad in ["", "..", "a/b", "a b", &"x".repeat(65)] {
            assert!(WorkerName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lineage_knows_every_batch_and_not_who_made_it() {
        let origin = Lineage::origin(&[b"model", b"config"]);
        assert_ne!(origin, Lineage::origin(&[b"modelc", b"onfig"]));
        let result = |worker: &str, bytes: &[u8]| JobResult {
            job: JobName::Rollout { number: 1, chunk: 0 },
            lineage: origin,
            worker: WorkerName::new(worker).unwrap(),
            answer: Answer::of(bytes),
            bytes: bytes.to_vec(),
        };
        let after = |result| origin.after(&BatchDigest::of(&[result]));
        assert_eq!(after(result("a", b"x")), after(result("b", b"x")));
        assert_ne!(after(result("a", b"x")), after(result("a", b"y")));
        assert_eq!(Lineage::try_from(origin.to_string()), Ok(origin));
    }
}
