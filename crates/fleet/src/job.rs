//! Jobs for workers, and their results. The tokens of a job follow from its name alone: they are the same for every
//! worker, and each time that the job is repeated.

use crate::ids::{GroupId, Version};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// The name of a job: its place in the run, written as `000123.0`. It depends neither on the worker that does the job
/// nor on the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName {
    /// The group of completions.
    pub group: GroupId,
    /// The index of the chunk. With C tokens per chunk, the chunk has the tokens chunk · C … (chunk + 1) · C − 1 of
    /// each completion. If completions are not split, the index is 0.
    pub chunk: u32,
}

impl JobName {
    /// The job of a whole group, or of its first chunk.
    pub fn first(group: GroupId) -> JobName {
        JobName { group, chunk: 0 }
    }

    /// Whether this job is `other` or a later chunk of the same group.
    pub(crate) fn is_or_continues(self, other: JobName) -> bool {
        self.group == other.group && self.chunk >= other.chunk
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}.{}", self.group, self.chunk)
    }
}

impl FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<JobName, String> {
        let bad = || format!("{text:?} is not a job: job names look like 000123.0");
        let (group, chunk) = text.split_once('.').ok_or_else(bad)?;
        let name =
            JobName { group: GroupId(group.parse().map_err(|_| bad())?), chunk: chunk.parse().map_err(|_| bad())? };
        // A job has exactly one spelling: without a plus sign, and with all leading zeros.
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

/// The name of a worker. It must be unique in a run, since file names contain it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerName(Arc<str>);

impl WorkerName {
    /// Checks a name, which must have 1 to 64 letters, digits, `-` and `_`.
    pub fn new(name: &str) -> Result<WorkerName, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !name.is_empty() && name.len() <= 64 && name.chars().all(fits) {
            Ok(WorkerName(name.into()))
        } else {
            Err(format!("{name:?} cannot name a worker: use 1 to 64 letters, digits, - and _"))
        }
    }

    /// The name as a string slice.
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

/// Whether a worker with these profiles takes jobs of `profile`. A worker without profiles takes all jobs.
pub fn takes(profiles: &[String], profile: &str) -> bool {
    profiles.is_empty() || profiles.iter().any(|own| own == profile)
}

/// Identifies weights by their origin: 16 bytes that the learner's caller chooses. Equal lineages mean equal weights,
/// so the weights themselves need not be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Lineage(pub [u8; 16]);

impl Lineage {
    /// The lineage of a chunk's result. The chunk was sampled with weights of this lineage, and continues the answer
    /// with the fingerprint `before`.
    fn continued(self, before: u64) -> Lineage {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(b"continued");
        hash.update(before.to_le_bytes());
        first_half(hash)
    }

    /// The lineage of a job's result that was sampled with weights of this lineage. It depends on the answer that the
    /// job continues, so that a chunk that continues an answer other than the accepted one is detected.
    pub fn for_result(self, continues: Option<u64>) -> Lineage {
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
        let bad = || format!("{text:?} is not a lineage: expected 32 hexadecimal digits");
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

/// A job as the learner gives it to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// The name of the job.
    pub name: JobName,
    /// The version of the weights that must sample it.
    pub version: Version,
    /// The lineage of the weights that must sample it.
    pub lineage: Lineage,
    /// For a later chunk: the fingerprint of the answer to the previous chunk. The payload contains that answer.
    pub continues: Option<u64>,
    /// True if the worker must not do other jobs at the same time. This is set after workers have ended while doing
    /// this job and others, to find out which job ends them.
    pub alone: bool,
    /// The job's sampling profile, which decides which workers take the job.
    pub profile: String,
    /// The prompt, the sampling settings and, for a later chunk, the previous chunks. The fleet does not read it.
    pub payload: Vec<u8>,
}

/// The part of a result that the protocol depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// A hash of the values that must be equal on every worker: tokens and log-probabilities, but not external scores.
    pub fingerprint: u64,
    /// True if a completion has not ended, so that another chunk must follow.
    pub more: bool,
}

impl Answer {
    /// The answer of a result in which every byte must be equal.
    pub fn of(bytes: &[u8]) -> Answer {
        Answer { fingerprint: XxHash3_64::oneshot(bytes), more: false }
    }
}

/// The result of a job, as a worker returns it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobResult {
    /// The name of the job.
    pub job: JobName,
    /// The lineage of the weights that sampled it and of the answer that it continues; see [`Lineage::for_result`].
    pub lineage: Lineage,
    /// The worker that produced the result.
    pub worker: WorkerName,
    /// The part of the result that the protocol depends on.
    pub answer: Answer,
    /// Tokens, log-probabilities and scores. The fleet does not read them.
    pub bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{chunk, job};

    #[test]
    fn a_job_name_has_exactly_one_spelling() {
        for name in [job(123), chunk(12_345_678, 3)] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for bad in ["123.0", "000123", "000123.00", "+00123.0", "eval-20.3", "000123.0.tmp", "", ".", "000123.-1"] {
            assert!(bad.parse::<JobName>().unwrap_err().contains("is not a job"), "{bad}");
        }
    }

    #[test]
    fn a_worker_name_is_a_valid_directory_name() {
        assert!(WorkerName::new("dev-1_b").is_ok());
        for bad in ["", "..", "a/b", "a b", &"x".repeat(65)] {
            assert!(WorkerName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_and_profiles_are_formatted_and_compared() {
        assert_eq!(chunk(7, 2).to_string(), "000007.2");
        assert_eq!(serde_json::to_string(&chunk(7, 2)).unwrap(), r#""000007.2""#);
        let continues = |job: JobName| job.is_or_continues(chunk(7, 1));
        assert!(continues(chunk(7, 1)) && continues(chunk(7, 2)));
        assert!(!continues(chunk(7, 0)) && !continues(chunk(8, 1)));
        let longest = "x".repeat(64);
        assert_eq!(WorkerName::new(&longest).unwrap().as_str(), longest);
        let refused = "\"a b\" cannot name a worker: use 1 to 64 letters, digits, - and _";
        assert_eq!(WorkerName::try_from("a b".to_owned()), Err(refused.to_owned()));
        let profiles = ["fast".to_owned(), "long".to_owned()];
        assert!(takes(&[], "any") && takes(&profiles, "long") && !takes(&profiles, "any"));
    }

    /// If these hashes changed, older runs could not be resumed.
    #[test]
    fn lineage_hashes_are_fixed() {
        let hex = |text: &[u8]| Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let one = Lineage([1; 16]);
        let continued = [&[1; 16][..], b"continued", &5u64.to_le_bytes()].concat();
        assert_eq!(one.for_result(Some(5)).to_string(), hex(&continued)[..32]);
        assert_eq!(one.for_result(None), one);
        assert_eq!(format!("{one:?}"), "01".repeat(16));
        for bad in ["01".repeat(15), "01".repeat(17), "0g".repeat(16), "é1".repeat(11) + "é", "é".repeat(16)] {
            let why = Lineage::try_from(bad.clone()).unwrap_err();
            assert_eq!(why, format!("{bad:?} is not a lineage: expected 32 hexadecimal digits"));
        }
        let text: String = (0u8..16).map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(Lineage::try_from(text).unwrap().0, std::array::from_fn::<u8, 16, _>(|i| i as u8));
        assert_eq!(Answer::of(b"x"), Answer { fingerprint: XxHash3_64::oneshot(b"x"), more: false });
    }
}
