//! What a run reports while it runs, as one value: metrics, completions, stages, progress, messages, checkpoints.
//!
//! An [`Event`] is plain data that can be serialised and read back by another process, without loss: numbers keep
//! their bits, and NaN and infinities their names. Knows no sink.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The version of the serialised form: [`Event::VERSION`] in those made here.
    pub version: u32,
    /// Seconds since 1970.
    pub time_s: f64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kinds of events; steps are optimizer steps, from 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(missing_docs, reason = "what is not said at a kind, its fields' names say")]
pub enum EventKind {
    /// A logged step (means since the last one), or an evaluation.
    Metrics {
        step: u64,
        /// In the order in which they are written.
        #[serde(with = "numbers")]
        values: Vec<(String, f64)>,
    },
    /// The completions that a step trains on.
    Completions {
        rows: CompletionRows,
        /// How many of them a console shows.
        shown: usize,
    },
    /// How values of a step are distributed; all of them are finite.
    Distributions { step: u64, values: Vec<(String, Vec<f64>)> },
    /// A recorded group, as the record that `rollouts.bin` gets.
    Rollout {
        #[serde(with = "base64_text")]
        record: Vec<u8>,
    },
    /// What an optimizer step did to the tokens of a group, as the record that `updates.bin` gets.
    Update {
        #[serde(with = "base64_text")]
        record: Vec<u8>,
    },
    /// A recorded group of an evaluation, as the record that `evaluations.bin` gets.
    Evaluated {
        #[serde(with = "base64_text")]
        record: Vec<u8>,
    },
    /// A stage ended. Times count from the start of the run.
    Span {
        name: String,
        /// The optimizer step that it is part of.
        #[serde(default)]
        step: u64,
        /// The row of the trace: one for each thread, and one for each name of overlapped work.
        track: u64,
        start_us: f64,
        duration_us: f64,
        flops: f64,
        /// Bytes of memory traffic.
        bytes: f64,
    },
    /// `done` units of `total`; the first one with a new label says how many were done before.
    Progress { label: String, done: u64, total: u64, note: String },
    /// A line for people.
    Message {
        level: Level,
        text: String,
        #[serde(default, skip_serializing_if = "Record::is_empty")]
        fields: Record,
    },
    /// A checkpoint is on the disk.
    Checkpoint { step: u64, path: String },
    /// An alarm was raised after `step`, or is over.
    Alarm { step: u64, alarm: Alarm },
    /// A finding after `step`: something that costs time or memory.
    Finding { step: u64, finding: Finding },
}

/// Where a run's time or memory goes, if something could be done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which rule holds, as docs/profiling.md lists them.
    pub id: String,
    /// What the finding means.
    pub says: String,
    /// What was measured.
    pub evidence: String,
    /// What usually helps.
    pub remedy: String,
    /// The steps that were measured when it was found: the first and the last.
    pub steps: (u64, u64),
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Finding { id, says, evidence, remedy, steps: (first, last) } = self;
        write!(f, "finding {id}, steps {first} to {last}: {says} {evidence}\n  what helps: {remedy}")
    }
}

/// Something in a run that usually means that it goes wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// Which condition holds, as docs/alarms.md lists them.
    pub id: String,
    /// The reward that the alarm is about, where it is about one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// The first step at which it held.
    pub since: u64,
    /// The step after which it was over, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// What was seen when it was raised.
    pub evidence: String,
    /// Completions that show it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
    /// What people usually do about it.
    pub remedy: String,
    /// Whether the run is configured so: then the alarm is only for completeness.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiet: bool,
}

impl std::fmt::Display for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Alarm { id, subject, since, until, evidence, examples, remedy, quiet } = self;
        let of = if subject.is_empty() { String::new() } else { format!(" ({subject})") };
        if *quiet && until.is_none() {
            return write!(f, "note: {id}{of} since step {since}: {evidence}");
        }
        match until {
            Some(until) => return write!(f, "alarm {id}{of} is over: it held from step {since} to step {until}"),
            None => write!(f, "alarm {id}{of} since step {since}: {evidence}")?,
        }
        examples.iter().try_for_each(|example| write!(f, "\n  | {example}"))?;
        write!(f, "\n  what helps: {remedy}")
    }
}

impl Event {
    /// Changes when a reader of the serialised form must.
    pub const VERSION: u32 = 1;
}

impl From<EventKind> for Event {
    /// Happens now.
    fn from(kind: EventKind) -> Self {
        let time_s = crate::system::since_1970().as_secs_f64();
        Event { version: Event::VERSION, time_s, kind }
    }
}

/// How important a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Failures.
    Error,
    /// What a person should look at.
    Warn,
    /// How the run goes.
    #[default]
    Info,
    /// Details.
    Debug,
}

impl Level {
    /// The level that `LOCKSTEP_LOG` asks for, info if it is unset; an error if it is none.
    pub fn from_env() -> Result<Self, String> {
        let text = std::env::var_os("LOCKSTEP_LOG").unwrap_or_default();
        // (What is not UTF-8 is no level's name in its lossy form either.)
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

/// Named values in the order in which they were first set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Record(pub Map<String, Value>);

impl Record {
    /// Without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key (a number, text, bool, …). A float that is NaN or infinite becomes `null`.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// The value of a key as a number, if it is one.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(Value::as_f64)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The completions of one step; all lists have the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionRows {
    /// The step that trains on them.
    pub step: u64,
    /// Strings, or arrays of chat messages.
    pub prompts: Vec<Value>,
    /// Strings, or arrays of chat messages.
    pub completions: Vec<Value>,
    /// Name of each reward and its scores.
    pub rewards: Vec<(String, Vec<Option<f64>>)>,
    /// Further columns that rewards gave.
    pub extra: Vec<(String, Vec<Value>)>,
    /// One for each completion.
    pub advantages: Vec<f64>,
}

/// Bytes as a text.
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

/// Named numbers as a JSON object in their order; JSON has no NaN and no infinity, so these are texts.
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

    /// Serialises and reads back.
    fn round_trip(kind: EventKind) -> (String, Event) {
        let event = Event::from(kind);
        let text = serde_json::to_string(&event).unwrap();
        (text.clone(), serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}")))
    }

    fn alarm(until: Option<u64>) -> Alarm {
        Alarm {
            id: "truncated".into(),
            since: 7,
            until,
            evidence: "all were cut".into(),
            examples: vec!["\"a b\"".into()],
            remedy: "a higher limit".into(),
            ..Alarm::default()
        }
    }

    #[test]
    fn alarms_say_what_they_saw_since_when_and_what_helps() {
        let words = "alarm truncated since step 7: all were cut\n  | \"a b\"\n  what helps: a higher limit";
        assert_eq!(alarm(None).to_string(), words);
        let over = Alarm { subject: "math".into(), ..alarm(Some(12)) }.to_string();
        assert_eq!(over, "alarm truncated (math) is over: it held from step 7 to step 12");
    }

    #[test]
    fn every_kind_reads_back() {
        let rows = CompletionRows {
            step: 3,
            prompts: vec!["p".into()],
            completions: vec![serde_json::json!([{"role": "assistant", "content": "c"}])],
            rewards: vec![("r".into(), vec![None]), ("s".into(), vec![Some(0.1 + 0.2)])],
            extra: vec![("e".into(), vec![Value::Null])],
            advantages: vec![-0.5],
        };
        let kinds = [
            EventKind::Metrics { step: 7, values: vec![("z".into(), 0.1 + 0.2), ("a".into(), -0.0)] },
            EventKind::Completions { rows, shown: 1 },
            EventKind::Distributions { step: 7, values: vec![("reward".into(), vec![0.1 + 0.2, -0.0])] },
            EventKind::Rollout { record: vec![0, 255, 7, 1] },
            EventKind::Update { record: vec![7, 0] },
            EventKind::Evaluated { record: vec![1] },
            EventKind::Span {
                name: "rollout".into(),
                step: 4,
                track: 1,
                start_us: 0.5,
                duration_us: 1e9,
                flops: 1e15,
                bytes: 3.0,
            },
            EventKind::Progress { label: "grpo".into(), done: 3, total: 9, note: "reward 0.5".into() },
            EventKind::Message { level: Level::Warn, text: "careful".into(), fields: Record::new() },
            EventKind::Checkpoint { step: 9, path: "checkpoints/step-000009".into() },
            EventKind::Alarm { step: 9, alarm: alarm(None) },
            EventKind::Alarm { step: 12, alarm: alarm(Some(12)) },
            EventKind::Finding { step: 9, finding: Finding { id: "long_tail".into(), ..Finding::default() } },
        ];
        for kind in kinds {
            let (text, back) = round_trip(kind.clone());
            assert_eq!((back.version, &back.kind), (Event::VERSION, &kind), "{text}");
            assert!(text.starts_with("{\"version\":1,\"time_s\":") && back.time_s > 1.6e9, "{text}");
        }
    }

    #[test]
    fn numbers_that_json_lacks_keep_their_names_and_metrics_their_order() {
        let values = [("z", f64::NAN), ("b", f64::INFINITY), ("a", f64::NEG_INFINITY)];
        let (text, back) =
            round_trip(EventKind::Metrics { step: 1, values: values.map(|(n, v)| (n.to_owned(), v)).to_vec() });
        assert!(text.contains("\"values\":{\"z\":\"NaN\",\"b\":\"Infinity\",\"a\":\"-Infinity\"}"), "{text}");
        let EventKind::Metrics { values: back, .. } = back.kind else { panic!("another kind: {text}") };
        assert!(back[0].1.is_nan() && (back[1].1, back[2].1) == (f64::INFINITY, f64::NEG_INFINITY));
        assert!(serde_json::from_str::<Event>(&text.replace("\"NaN\"", "\"many\"")).is_err());
    }

    #[test]
    fn levels_from_text() {
        assert_eq!("WARN".parse(), Ok(Level::Warn));
        assert!("loud".parse::<Level>().unwrap_err().contains("error, warn, info or debug"));
        assert!(Level::Error < Level::Debug);
    }
}
