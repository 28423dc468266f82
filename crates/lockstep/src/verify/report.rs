//! What a verification says.

use serde::Serialize;

/// The steps from one checkpoint, or the beginning, to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Steps done at its beginning; 0 is the model that the run began with.
    pub from: u64,
    /// Steps done at its end, of which there is a checkpoint.
    pub to: u64,
}

impl Interval {
    /// Its steps.
    pub fn steps(&self) -> u64 {
        self.to - self.from
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from + 1 {
            first if first == self.to => write!(f, "step {first}"),
            first => write!(f, "steps {first} to {}", self.to),
        }
    }
}

/// The first bit of a run that is not what the replay makes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// The optimizer step that learned from it, or that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The group's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// The completion's place in its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<usize>,
    /// The token's place in its completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<usize>,
    /// The worker that made the group, where the run says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// What differs: `token`, `log-probability`, `score of REWARD`, `advantage`, `weight`, `lineage`, `hash`, …
    pub kind: String,
    /// The file, and what of it: a tensor and the place in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The value that the run has, with its bits.
    pub recorded: String,
    /// The value that the replay has.
    pub remade: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { step, group, completion, token, worker, kind, place, recorded, remade } = self;
        let mut at = Vec::new();
        at.extend(step.map(|n| format!("step {n}")));
        at.extend(group.map(|n| format!("group {n}")));
        at.extend(completion.map(|n| format!("completion {n}")));
        at.extend(token.map(|n| format!("token {n}")));
        at.extend(place.clone());
        at.extend(worker.as_ref().map(|name| format!("made by worker {name}")));
        write!(f, "{}: {kind}: recorded {recorded}, remade {remade}", at.join(", "))
    }
}

/// What a verification found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What was replayed, and equals the record in every bit.
    pub proven: Vec<Interval>,
    /// Groups whose tokens, log-probabilities, scores and advantages were compared.
    pub groups: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Groups of these that were sampled before the interval began: their tokens are those of its first checkpoint.
    pub groups_of_checkpoints: u64,
    /// Rewards that were asked again.
    pub rewards_asked: Vec<String>,
    /// Rewards whose scores were taken from the record.
    pub rewards_recorded: Vec<String>,
    /// Files whose SHA-256 equals that of `record.json`.
    pub hashes: Vec<String>,
    /// The result, where it equals a checkpoint: of which step.
    pub result: Option<u64>,
    /// The first bit that differs.
    pub difference: Option<Difference>,
    /// What could not be verified, and why.
    pub not_verified: Vec<String>,
}

/// A run, or a part of it, that cannot be verified here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotVerifiable(pub String);

/// An error that says what is missing.
pub(super) fn missing<T>(what: impl Into<String>) -> anyhow::Result<T> {
    Err(NotVerifiable(what.into()).into())
}

/// A number with its bits.
pub(super) fn f32_bits(x: f32) -> String {
    format!("{x} (0x{:08x})", x.to_bits())
}

/// The same.
pub(super) fn f64_bits(x: f64) -> String {
    format!("{x} (0x{:016x})", x.to_bits())
}
