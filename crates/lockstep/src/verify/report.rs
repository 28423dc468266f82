//! The report of a verification.

use model::GroupId;
use serde::Serialize;
use telemetry::Step;

/// The steps from one checkpoint, or from the beginning, to the next checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Steps done at the start; 0 is the initial model.
    pub from: Step,
    /// Steps done at the end, where a checkpoint exists.
    pub to: Step,
}

impl Interval {
    /// The number of steps in the interval.
    pub fn steps(&self) -> u64 {
        self.to.since(self.from)
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from.next() {
            first if first == self.to => write!(f, "step {first}"),
            first => write!(f, "steps {first} to {}", self.to),
        }
    }
}

/// The first difference between a run and its replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// The optimizer step that trained on the differing data, or computed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// The group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The index of the completion in its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<usize>,
    /// The index of the token in its completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<usize>,
    /// The worker that generated the group, if recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The kind of the differing value: `token`, `log-probability`, `score of REWARD`, `advantage`, `weight`, `hash`, …
    pub kind: String,
    /// The differing file and the place in it, such as a tensor and an index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The value in the run, with its bits.
    pub recorded: String,
    /// The value in the replay, with its bits.
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

/// The results of a verification.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Replayed intervals that equal the record in every bit.
    pub proven: Vec<Interval>,
    /// Groups whose tokens, log-probabilities, scores and advantages were compared.
    pub groups: u64,
    /// Tokens in these groups.
    pub tokens: u64,
    /// How many of these groups were generated before the interval, so that their tokens come from its first
    /// checkpoint.
    pub groups_of_checkpoints: u64,
    /// Rewards that were called again.
    pub rewards_asked: Vec<String>,
    /// Rewards whose scores came from the record.
    pub rewards_recorded: Vec<String>,
    /// Files whose SHA-256 equals that in `record.json`.
    pub hashes: Vec<String>,
    /// The step of the checkpoint that equals the final model, if any.
    pub result: Option<Step>,
    /// The first difference.
    pub difference: Option<Difference>,
    /// Parts that could not be verified, each with the reason.
    pub not_verified: Vec<String>,
    /// The builds that trained the run, unless all are known to be this build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_build: Option<String>,
}

/// The error that a run, or a part of it, cannot be verified here.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotVerifiable(pub String);

/// Returns an error about something missing.
pub(super) fn missing<T>(what: impl Into<String>) -> anyhow::Result<T> {
    Err(NotVerifiable(what.into()).into())
}

/// An f32 as text, with its bits.
pub(super) fn f32_bits(x: f32) -> String {
    format!("{x} (0x{:08x})", x.to_bits())
}

/// An f64 as text, with its bits.
pub(super) fn f64_bits(x: f64) -> String {
    format!("{x} (0x{:016x})", x.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_prints_its_place_from_step_to_token() {
        let plain =
            Difference { kind: "file".into(), recorded: "a".into(), remade: "b".into(), ..Difference::default() };
        assert_eq!(plain.to_string(), ": file: recorded a, remade b");
        let full = Difference {
            step: Some(Step(1)),
            group: Some(GroupId(2)),
            completion: Some(3),
            token: Some(4),
            worker: Some("w".into()),
            place: Some("p".into()),
            ..plain
        };
        let message = "step 1, group 2, completion 3, token 4, p, made by worker w: file: recorded a, remade b";
        assert_eq!(full.to_string(), message);
        let interval = |from, to| Interval { from: Step(from), to: Step(to) };
        assert_eq!((interval(0, 1).to_string(), interval(0, 2).to_string()), ("step 1".into(), "steps 1 to 2".into()));
        assert_eq!((interval(4, 9).to_string(), interval(4, 9).steps()), ("steps 5 to 9".into(), 5));
        assert_eq!((f32_bits(-1.5), f64_bits(0.0)), ("-1.5 (0xbfc00000)".into(), "0 (0x0000000000000000)".into()));
        assert_eq!(
            (f32_bits(1e-45), f64_bits(-2.0)),
            ("0.000000000000000000000000000000000000000000001 (0x00000001)".into(), "-2 (0xc000000000000000)".into())
        );
    }
}
