//! Writes and reads `metrics.jsonl`, with one JSON object for each logged step. Also writes `steps.jsonl`, with one
//! object for each optimizer step, which has only the values that determine the run's verdict.
//!
//! An alarm is a separate line, `{"step": n, "alarm": {…}}`.
//!
//! Keys keep the order in which they were set. Numbers are written with the fewest digits that parse to the same bits.
//! NaN and infinities, which JSON does not have, are written as `null`. This file does not interpret the metrics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Sink;
use super::appended::Appended;
use crate::{Error, Event, EventKind, Record, Result, Step, visible_json};

/// An append-only file of JSON lines.
#[derive(Debug)]
struct JsonLines {
    file: Appended,
}

impl JsonLines {
    /// Opens `path` for appending, creating the file but not its directory. An incomplete last line, left by a process
    /// that was killed while writing, is removed.
    fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Ok(JsonLines { file: Appended::open(path.into(), whole_lines)? })
    }

    /// Appends one line, without buffering it in this process.
    fn append(&mut self, line: &Map<String, Value>) -> Result<()> {
        let line = serde_json::to_string(line).map_err(|e| Error::format(self.file.path(), e.to_string()))?;
        // Characters that a terminal would act on are written as JSON escapes; the values stay the same.
        self.file.append((visible_json(&line) + "\n").as_bytes())
    }
}

/// Number of bytes of the complete lines.
fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1)
}

/// The sink that writes `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsSink {
    lines: JsonLines,
}

impl MetricsSink {
    /// Opens the file for appending. An incomplete last line is removed.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Ok(MetricsSink { lines: JsonLines::open(path)? })
    }
}

impl Sink for MetricsSink {
    fn receive(&mut self, event: &Event) -> Result<()> {
        let mut line = Record::new();
        match &event.kind {
            EventKind::Metrics { step, values } => {
                line.set("step", *step).set("time_s", (event.time_s * 1e3).round() / 1e3);
                for (name, value) in values {
                    line.set(name, *value);
                }
            }
            EventKind::Alarm { step, alarm } => {
                let alarm =
                    serde_json::to_value(alarm).map_err(|e| Error::format(self.lines.file.path(), e.to_string()))?;
                line.set("step", *step).set("alarm", alarm);
            }
            _ => return Ok(()),
        }
        self.lines.append(&line.0)
    }

    fn check(&mut self) -> Result<Option<String>> {
        self.lines.file.check()
    }

    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        self.lines.file.checkpoint("metrics.jsonl", lengths)
    }

    fn resume(&mut self, _step: Step, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        self.lines.file.resume("metrics.jsonl", lengths, whole_lines)
    }
}

/// The sink that writes `steps.jsonl`. With these lines, the verdict is based on every step, even if only every tenth
/// is logged.
#[derive(Debug)]
pub struct StepsSink {
    lines: JsonLines,
}

impl StepsSink {
    /// Opens the file for appending. An incomplete last line is removed.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Ok(StepsSink { lines: JsonLines::open(path)? })
    }
}

impl Sink for StepsSink {
    fn receive(&mut self, event: &Event) -> Result<()> {
        let EventKind::StepValues { step, values } = &event.kind else { return Ok(()) };
        let mut line = Record::new();
        line.set("step", *step);
        for (name, value) in values {
            line.set(name, *value);
        }
        self.lines.append(&line.0)
    }

    fn check(&mut self) -> Result<Option<String>> {
        self.lines.file.check()
    }

    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        self.lines.file.checkpoint("steps.jsonl", lengths)
    }

    fn resume(&mut self, _step: Step, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        self.lines.file.resume("steps.jsonl", lengths, whole_lines)
    }
}

/// A log of JSON lines that older versions wrote. This version appends nothing to the log, but a resume still truncates
/// it, and checkpoints still store its length.
#[derive(Debug)]
pub struct ClosedLog {
    name: &'static str,
    lines: JsonLines,
}

impl ClosedLog {
    /// Opens an existing log. Checkpoints store its length under `name`.
    pub fn open(path: impl Into<PathBuf>, name: &'static str) -> Result<Self> {
        Ok(ClosedLog { name, lines: JsonLines::open(path)? })
    }
}

impl Sink for ClosedLog {
    fn receive(&mut self, _event: &Event) -> Result<()> {
        Ok(())
    }

    fn check(&mut self) -> Result<Option<String>> {
        self.lines.file.check()
    }

    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        self.lines.file.checkpoint(self.name, lengths)
    }

    fn resume(&mut self, _step: Step, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        self.lines.file.resume(self.name, lengths, whole_lines)
    }
}

/// Reads all complete lines of a `metrics.jsonl`.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = disk::read_to_string(path, disk::most::GROUPS).map_err(Error::io("read", path))?;
    let whole = text.rfind('\n').map_or("", |last| &text[..last]);
    whole
        .lines()
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_str::<Map<String, Value>>(line)
                .map(Record)
                .map_err(|e| Error::format(path, format!("line {}: {e}", number + 1)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(sink: &mut impl Sink, step: u64, values: &[(&str, f64)]) {
        let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        sink.receive(&EventKind::Metrics { step: Step(step), values }.into()).unwrap();
    }

    #[test]
    fn metrics_keep_order_and_bits_and_nan_becomes_null() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut sink = MetricsSink::open(&path).unwrap();
        let odd: f64 = 0.1 + 0.2;
        logged(&mut sink, 3, &[("reward", odd), ("a", f64::NAN), ("kl", f64::INFINITY), ("tiny", 5e-324)]);
        let message = EventKind::Message { level: crate::Level::Info, text: "not here".into(), fields: Record::new() };
        sink.receive(&message.into()).unwrap();
        let alarm = crate::Alarm { id: "kl".into(), since: Step(2), ..crate::Alarm::default() };
        sink.receive(&EventKind::Alarm { step: Step(4), alarm }.into()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let (line, alarm) = text.split_once('\n').unwrap();
        // `time_s` is the time of logging, in seconds since 1970.
        let (begin, rest) = line.split_once(",\"time_s\":").unwrap();
        let (time, rest) = rest.split_once(',').unwrap();
        assert!(time.parse::<f64>().unwrap() > 1.6e9, "{line}");
        let line = format!("{begin},{rest}");
        assert_eq!(line, "{\"step\":3,\"reward\":0.30000000000000004,\"a\":null,\"kl\":null,\"tiny\":5e-324}");
        assert!(alarm.starts_with("{\"step\":4,\"alarm\":{\"id\":\"kl\",\"since\":2,"), "{alarm}");
        let back = read(&path).unwrap();
        assert_eq!(back[0].number("reward").unwrap().to_bits(), odd.to_bits());
        assert_eq!(back[0].number("a"), None);
    }

    #[test]
    fn an_incomplete_line_is_removed_and_a_resume_truncates() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut sink = MetricsSink::open(&path).unwrap();
        logged(&mut sink, 1, &[]);
        let mut at_checkpoint = BTreeMap::new();
        sink.checkpoint(&mut at_checkpoint).unwrap();
        assert_eq!(at_checkpoint["metrics.jsonl"], std::fs::metadata(&path).unwrap().len());
        logged(&mut sink, 2, &[]);
        drop(sink);
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"step\":3,\"rew");
        std::fs::write(&path, &torn).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);

        let mut sink = MetricsSink::open(&path).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);
        // A file shorter than at the checkpoint is reported and kept. If the checkpoint's length falls inside a line,
        // the file is truncated before that line.
        let note = sink.resume(Step(1), &BTreeMap::from([("metrics.jsonl".to_owned(), 10_000)])).unwrap().unwrap();
        assert!(note.contains("metrics.jsonl") && note.contains("10000") && read(&path).unwrap().len() == 2, "{note}");
        let inside = BTreeMap::from([("metrics.jsonl".to_owned(), at_checkpoint["metrics.jsonl"] + 3)]);
        assert!(sink.resume(Step(1), &inside).unwrap().unwrap().contains("ends inside a record"));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), at_checkpoint["metrics.jsonl"]);
        assert_eq!(sink.resume(Step(1), &at_checkpoint).unwrap(), None);
        logged(&mut sink, 22, &[]);
        let steps: Vec<_> = read(&path).unwrap().iter().map(|r| r.number("step").unwrap()).collect();
        assert_eq!(steps, [1.0, 22.0]);
        sink.resume(Step(0), &BTreeMap::new()).unwrap();
        assert!(read(&path).unwrap().is_empty());
    }

    #[test]
    fn each_step_has_a_line_and_a_resume_removes_later_steps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps.jsonl");
        let mut sink = StepsSink::open(&path).unwrap();
        let step = |sink: &mut StepsSink, step, reward: f64| {
            sink.receive(&EventKind::StepValues { step: Step(step), values: vec![("reward".into(), reward)] }.into())
                .unwrap();
        };
        step(&mut sink, 1, 0.5);
        logged(&mut sink, 1, &[("not here", 1.0)]);
        let mut lengths = BTreeMap::new();
        sink.checkpoint(&mut lengths).unwrap();
        step(&mut sink, 2, f64::NAN);
        let text = "{\"step\":1,\"reward\":0.5}\n{\"step\":2,\"reward\":null}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(lengths, BTreeMap::from([("steps.jsonl".to_owned(), 24)]));
        assert_eq!(sink.resume(Step(1), &lengths).unwrap(), None);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text[..24]);
        // A checkpoint of an older version has no length for this log.
        assert_eq!(sink.resume(Step(1), &BTreeMap::new()).unwrap(), None);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        std::fs::remove_file(&path).unwrap();
        assert!(sink.check().unwrap().unwrap().contains("was deleted"));
    }

    #[test]
    fn a_log_of_an_older_version_is_truncated_and_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rollouts.jsonl");
        std::fs::write(&path, "{\"a\":1}\n{\"a\":2}\n{\"a").unwrap();
        let mut log = ClosedLog::open(&path, "rollouts.jsonl").unwrap();
        logged(&mut log, 1, &[("not here", 1.0)]);
        let mut lengths = BTreeMap::new();
        log.checkpoint(&mut lengths).unwrap();
        assert_eq!(lengths, BTreeMap::from([("rollouts.jsonl".to_owned(), 16)]));
        assert_eq!(log.resume(Step(1), &BTreeMap::from([("rollouts.jsonl".to_owned(), 8)])).unwrap(), None);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":1}\n");
    }

    #[test]
    fn lines_have_a_time_in_milliseconds_and_errors_name_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut sink = MetricsSink::open(&path).unwrap();
        let kind = EventKind::Metrics { step: Step(3), values: vec![("a\u{9b}".into(), -0.0)] };
        sink.receive(&Event { version: 1, time_s: 1_700_000_000.123_45, kind }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"step\":3,\"time_s\":1700000000.123,\"a\\u009b\":-0.0}\n");
        assert_eq!(read(&path).unwrap()[0].number("a\u{9b}"), Some(-0.0));
        std::fs::write(&path, "{\"step\":1}\n[]\n{\"step\":3}\n{\"step").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: line 2: ", path.display())), "{error}");
        std::fs::write(&path, "{\"step\":1}").unwrap();
        assert!(read(&path).unwrap().is_empty(), "no line is complete");
        let error = read(&dir.path().join("none")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("none"), "{error}");
        let ends = ["", "a", "\n", "a\nb", "a\n\nbc\n", "a\nb\nc"].map(|text| whole_lines(text.as_bytes()));
        assert_eq!(ends, [0, 0, 1, 2, 6, 4]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_and_deleted_metrics_are_written_again() {
        for is_full in [true, false] {
            let broken = || JsonLines { file: Appended::broken(Path::new("m.jsonl"), is_full) };
            let mut sink = MetricsSink { lines: broken() };
            for kind in [
                EventKind::Metrics { step: Step(1), values: Vec::new() },
                EventKind::Alarm { step: Step(1), alarm: crate::Alarm::default() },
            ] {
                let error = sink.receive(&kind.into()).unwrap_err().to_string();
                assert!(error.starts_with("cannot write m.jsonl: "), "{error}");
            }
            assert!(sink.resume(Step(0), &BTreeMap::new()).is_err());
            assert!(ClosedLog { name: "old", lines: broken() }.resume(Step(0), &BTreeMap::new()).is_err());
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut sinks: [Box<dyn Sink>; 2] = [
            Box::new(MetricsSink::open(&path).unwrap()),
            Box::new(ClosedLog::open(dir.path().join("log"), "old").unwrap()),
        ];
        for sink in &mut sinks {
            std::fs::remove_file(&path).unwrap();
            assert!(sink.check().unwrap().unwrap().contains("was deleted"));
            assert_eq!(sink.check().unwrap(), None);
        }
    }
}
