//! The events that a training run reports while it runs: metrics, completions, stages, progress, messages, checkpoints.
//!
//! An [`Event`] is plain data that can be serialised and read by another process without loss: numbers keep their bits,
//! including NaN and infinities. This file does not depend on sinks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Step;

/// Something that happened in a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Version of the serialised form; [`Event::VERSION`] in events that this build creates.
    pub version: u32,
    /// Time of the event, in seconds since 1970.
    pub time_s: f64,
    /// The kind of event, with its data.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kinds of events. Steps are optimizer steps, counted from 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names of the fields are their documentation")]
pub enum EventKind {
    /// The metrics of a logged step (means since the previous logged step), or of an evaluation.
    Metrics {
        step: Step,
        /// Names and values of the metrics, in the order in which they are written.
        #[serde(with = "numbers")]
        values: Vec<(String, f64)>,
    },
    /// The values of one optimizer step, logged or not, from which the run's verdict is computed.
    StepValues {
        step: Step,
        #[serde(with = "numbers")]
        values: Vec<(String, f64)>,
    },
    /// The table of the completions on which a step trains.
    Completions {
        rows: CompletionRows,
        /// Number of completions to show on a console.
        shown: usize,
    },
    /// The distributions of some quantities of a step, such as rewards: every value, under the quantity's name. All
    /// values are finite.
    Distributions { step: Step, values: Vec<(String, Vec<f64>)> },
    /// Recorded groups of completions, as the bytes that are appended to `rollouts.bin`.
    Rollout {
        #[serde(with = "base64_text")]
        record: Vec<u8>,
    },
    /// A record of the effects of an optimizer step on the tokens of a group, as the bytes that are appended to
    /// `updates.bin`.
    Update {
        #[serde(with = "base64_text")]
        record: Vec<u8>,
    },
    /// A recorded group of completions of an evaluation, as the bytes that are appended to `evaluations.bin`.
    Evaluated {
        #[serde(with = "base64_text")]
        record: Vec<u8>,
    },
    /// A stage of the run (such as `rollout`) has ended. Times are measured from the start of the run.
    Span {
        name: String,
        /// The optimizer step that the stage is part of.
        #[serde(default)]
        step: Step,
        /// Index of the stage's row in the trace. Each thread has a row, and so has each name of overlapped work.
        track: u64,
        start_us: f64,
        duration_us: f64,
        flops: f64,
        /// Bytes of memory traffic of the stage.
        bytes: f64,
    },
    /// Progress of a phase: `done` of `total` units. The first event with a label reports the units that were done
    /// before the phase began, for example by an earlier start of the run.
    Progress { label: String, done: u64, total: u64, note: String },
    /// A message for people.
    Message {
        level: Level,
        text: String,
        #[serde(default, skip_serializing_if = "Record::is_empty")]
        fields: Record,
    },
    /// A checkpoint was written to disk.
    Checkpoint { step: Step, path: String },
    /// An alarm was raised or ended after `step`.
    Alarm { step: Step, alarm: Alarm },
    /// A finding was made after `step`: something wastes time or memory.
    Finding { step: Step, finding: Finding },
}

/// A finding: something that costs a training run time or memory and could be improved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Id of the finding's rule, as in docs/profiling.md.
    pub id: String,
    /// The meaning of the finding, for people.
    pub says: String,
    /// The measurements on which the finding is based.
    pub evidence: String,
    /// The usual remedy.
    pub remedy: String,
    /// The first and the last step that were measured.
    pub steps: (Step, Step),
}

impl Finding {
    /// The finding and its steps, without the measurements.
    pub fn headline(&self) -> String {
        let Finding { id, steps: (first, last), .. } = self;
        format!("finding {id}, steps {first} to {last}")
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Finding { says, evidence, remedy, .. } = self;
        write!(f, "{}: {says} {evidence}\n  what helps: {remedy}", self.headline())
    }
}

/// An alarm: a sign that a training run is going wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// Id of the alarm's condition, as in docs/alarms.md.
    pub id: String,
    /// Name of the reward that the alarm is about; empty if the alarm is not about a reward.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// The first step at which the condition held.
    pub since: Step,
    /// The step after which the condition no longer held, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Step>,
    /// The measurements that raised the alarm.
    pub evidence: String,
    /// Examples of completions that show the problem.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
    /// The usual remedy.
    pub remedy: String,
    /// Whether the configuration makes this state intentional, so that the alarm is only a note.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiet: bool,
}

impl Alarm {
    /// The alarm, its subject and its steps, without the measurements.
    pub fn headline(&self) -> String {
        let Alarm { id, subject, since, until, quiet, .. } = self;
        let of = if subject.is_empty() { String::new() } else { format!(" ({subject})") };
        match until {
            Some(until) => format!("alarm {id}{of} is over: it held from step {since} to step {until}"),
            None => format!("{} {id}{of} since step {since}", if *quiet { "note:" } else { "alarm" }),
        }
    }
}

impl std::fmt::Display for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Alarm { until, evidence, examples, remedy, quiet, .. } = self;
        let headline = self.headline();
        if until.is_some() {
            return f.write_str(&headline);
        }
        write!(f, "{headline}: {evidence}")?;
        if *quiet {
            return Ok(());
        }
        examples.iter().try_for_each(|example| write!(f, "\n  | {example}"))?;
        write!(f, "\n  what helps: {remedy}")
    }
}

impl Event {
    /// The current version of the serialised form. It increases with each change that breaks readers.
    pub const VERSION: u32 = 1;
}

impl From<EventKind> for Event {
    /// Creates an event of this kind with the current time.
    fn from(kind: EventKind) -> Self {
        let time_s = crate::system::since_1970().as_secs_f64();
        Event { version: Event::VERSION, time_s, kind }
    }
}

/// The importance of a message, as in log levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Errors.
    Error,
    /// Warnings: something that a person should look at.
    Warn,
    /// Information on the progress of the run.
    #[default]
    Info,
    /// Details for debugging.
    Debug,
}

impl Level {
    /// The level named by the environment variable `LOCKSTEP_LOG`: `Info` if it is not set, and an error if its value
    /// is not a level.
    pub fn from_env() -> Result<Self, String> {
        let text = std::env::var_os("LOCKSTEP_LOG").unwrap_or_default();
        // The lossy conversion is safe: a value that is not UTF-8 never becomes the name of a level.
        match text.to_string_lossy().as_ref() {
            "" => Ok(Level::Info),
            text => text.parse().map_err(|error| format!("LOCKSTEP_LOG={text}: {error}")),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

impl std::str::FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let levels = [Level::Error, Level::Warn, Level::Info, Level::Debug];
        let found = levels.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| "expected error, warn, info or debug".to_owned())
    }
}

/// A map of named values that keeps the order in which they were first set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Record(pub Map<String, Value>);

impl Record {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` to a number, string, bool or other value. A float that is NaN or infinite becomes `null`.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// The value of `key`, if it is a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(Value::as_f64)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The table of the completions of one step. All its lists have one element per completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionRows {
    /// The optimizer step that trains on the completions.
    pub step: Step,
    /// The prompts: strings, or arrays of chat messages.
    pub prompts: Vec<Value>,
    /// The completions: strings, or arrays of chat messages.
    pub completions: Vec<Value>,
    /// The name of each reward and its scores; `None` if the reward gave no score.
    pub rewards: Vec<(String, Vec<Option<f64>>)>,
    /// The name and values of each extra column that a reward function returned.
    pub extra: Vec<(String, Vec<Value>)>,
    /// The advantage of each completion; `None` if the completion has no advantage.
    pub advantages: Vec<Option<f64>>,
}

/// Serialises bytes as base64 text.
mod base64_text {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        STANDARD.encode(bytes).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Serialises named numbers as a JSON object that keeps their order. JSON has no NaN or infinity, so these become
/// strings.
mod numbers {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::{Map, Value};

    const NAMES: [(&str, f64); 3] = [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)];

    pub fn serialize<S: Serializer>(values: &[(String, f64)], serializer: S) -> Result<S::Ok, S::Error> {
        let value = |&number: &f64| match NAMES.iter().find(|(_, odd)| odd.total_cmp(&number).is_eq()) {
            Some((name, _)) => Value::from(*name),
            None if number.is_nan() => Value::from("NaN"),
            None => Value::from(number),
        };
        let map: Map<String, Value> = values.iter().map(|(name, number)| (name.clone(), value(number))).collect();
        map.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, f64)>, D::Error> {
        let number = |(name, value): (String, Value)| {
            let odd = |text: &str| NAMES.iter().find(|(known, _)| *known == text).map(|(_, number)| *number);
            let number = value.as_f64().or_else(|| odd(value.as_str()?));
            number.map(|number| (name, number)).ok_or_else(|| D::Error::custom(format!("{value} is not a number")))
        };
        Map::<String, Value>::deserialize(deserializer)?.into_iter().map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serialises an event and parses it again; returns the text and the parsed event.
    fn round_trip(kind: EventKind) -> (String, Event) {
        let event = Event::from(kind);
        let text = serde_json::to_string(&event).unwrap();
        (text.clone(), serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}")))
    }

    fn alarm(until: Option<Step>) -> Alarm {
        Alarm {
            id: "truncated".into(),
            since: Step(7),
            until,
            evidence: "all were cut".into(),
            examples: vec!["\"a b\"".into()],
            remedy: "a higher limit".into(),
            ..Alarm::default()
        }
    }

    #[test]
    fn an_alarm_is_formatted_with_steps_evidence_and_remedy() {
        let words = "alarm truncated since step 7: all were cut\n  | \"a b\"\n  what helps: a higher limit";
        assert_eq!(alarm(None).to_string(), words);
        let over = Alarm { subject: "math".into(), ..alarm(Some(Step(12))) }.to_string();
        assert_eq!(over, "alarm truncated (math) is over: it held from step 7 to step 12");
    }

    #[test]
    fn every_event_kind_round_trips_as_json() {
        let rows = CompletionRows {
            step: Step(3),
            prompts: vec!["p".into()],
            completions: vec![serde_json::json!([{"role": "assistant", "content": "c"}])],
            rewards: vec![("r".into(), vec![None]), ("s".into(), vec![Some(0.1 + 0.2)])],
            extra: vec![("e".into(), vec![Value::Null])],
            advantages: vec![Some(-0.5)],
        };
        let kinds = [
            EventKind::Metrics { step: Step(7), values: vec![("z".into(), 0.1 + 0.2), ("a".into(), -0.0)] },
            EventKind::StepValues { step: Step(7), values: vec![("reward".into(), 0.1 + 0.2)] },
            EventKind::Completions { rows, shown: 1 },
            EventKind::Distributions { step: Step(7), values: vec![("reward".into(), vec![0.1 + 0.2, -0.0])] },
            EventKind::Rollout { record: vec![0, 255, 7, 1] },
            EventKind::Update { record: vec![7, 0] },
            EventKind::Evaluated { record: vec![1] },
            EventKind::Span {
                name: "rollout".into(),
                step: Step(4),
                track: 1,
                start_us: 0.5,
                duration_us: 1e9,
                flops: 1e15,
                bytes: 3.0,
            },
            EventKind::Progress { label: "grpo".into(), done: 3, total: 9, note: "reward 0.5".into() },
            EventKind::Message { level: Level::Warn, text: "careful".into(), fields: Record::new() },
            EventKind::Checkpoint { step: Step(9), path: "checkpoints/step-000009".into() },
            EventKind::Alarm { step: Step(9), alarm: alarm(None) },
            EventKind::Alarm { step: Step(12), alarm: alarm(Some(Step(12))) },
            EventKind::Finding { step: Step(9), finding: Finding { id: "long_tail".into(), ..Finding::default() } },
        ];
        for kind in kinds {
            let (text, back) = round_trip(kind.clone());
            assert_eq!((back.version, &back.kind), (Event::VERSION, &kind), "{text}");
            assert!(text.starts_with("{\"version\":1,\"time_s\":") && back.time_s > 1.6e9, "{text}");
        }
    }

    #[test]
    fn nan_and_infinities_round_trip_and_metrics_keep_their_order() {
        let values = [("z", f64::NAN), ("b", f64::INFINITY), ("a", f64::NEG_INFINITY)];
        let (text, back) =
            round_trip(EventKind::Metrics { step: Step(1), values: values.map(|(n, v)| (n.to_owned(), v)).to_vec() });
        assert!(text.contains("\"values\":{\"z\":\"NaN\",\"b\":\"Infinity\",\"a\":\"-Infinity\"}"), "{text}");
        let EventKind::Metrics { values: back, .. } = back.kind else { panic!("another kind: {text}") };
        assert!(back[0].1.is_nan() && (back[1].1, back[2].1) == (f64::INFINITY, f64::NEG_INFINITY));
        assert!(serde_json::from_str::<Event>(&text.replace("\"NaN\"", "\"many\"")).is_err());
    }

    #[test]
    fn log_levels_are_parsed_from_their_names() {
        assert_eq!("WARN".parse(), Ok(Level::Warn));
        assert!("loud".parse::<Level>().unwrap_err().contains("error, warn, info or debug"));
        assert!(Level::Error < Level::Debug);
    }

    #[test]
    fn notes_alarms_and_findings_are_formatted_as_text() {
        let quiet = Alarm { quiet: true, ..alarm(None) };
        assert_eq!(quiet.to_string(), "note: truncated since step 7: all were cut");
        let quiet = Alarm { subject: "math".into(), ..quiet };
        assert_eq!(quiet.to_string(), "note: truncated (math) since step 7: all were cut");
        let over = "alarm truncated (math) is over: it held from step 7 to step 12";
        assert_eq!(Alarm { until: Some(Step(12)), ..quiet.clone() }.to_string(), over);
        let plain = Alarm { quiet: false, examples: vec!["a".into(), "b".into()], ..quiet };
        let words = "alarm truncated (math) since step 7: all were cut\n  | a\n  | b\n  what helps: a higher limit";
        assert_eq!(plain.to_string(), words);
        let finding = Finding {
            id: "long_tail".into(),
            says: "Few are long.".into(),
            evidence: "3 of 9.".into(),
            remedy: "a limit".into(),
            steps: (Step(2), Step(5)),
        };
        let words = "finding long_tail, steps 2 to 5: Few are long. 3 of 9.\n  what helps: a limit";
        assert_eq!(finding.to_string(), words);
    }
}
