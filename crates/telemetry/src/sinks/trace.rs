//! Writes `trace.json`: spans for chrome://tracing and <https://ui.perfetto.dev> (Chrome's trace event format, array
//! form).
//!
//! In that format the closing bracket of the array is optional, so the file can be read during the run, and after a run
//! was killed. The file has a maximum size: when it is reached, a last event reports that, and later spans are dropped.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::json;

use super::Sink;
use super::appended::Appended;
use crate::{Error, Event, EventKind, Result, Step};

/// The sink that writes `trace.json`. An error ends the trace but not the run; it is reported when the run ends.
#[derive(Debug)]
pub struct TraceSink {
    writer: Option<TraceWriter>,
    /// The ranges of steps that are traced; empty for all steps.
    steps: Vec<RangeInclusive<Step>>,
    failed: Option<Error>,
}

impl TraceSink {
    /// Opens `path` for appending, creating the file but not its directory. The file is kept below `max_bytes` (at
    /// least 1 KiB).
    pub fn open(path: impl Into<PathBuf>, max_bytes: u64) -> Result<Self> {
        Ok(TraceSink { writer: Some(TraceWriter::open(path, max_bytes)?), steps: Vec::new(), failed: None })
    }

    /// Restricts the trace to these ranges of steps; an empty list means all steps.
    pub fn with_steps(self, steps: Vec<RangeInclusive<Step>>) -> Self {
        TraceSink { steps, ..self }
    }
}

impl Sink for TraceSink {
    fn receive(&mut self, event: &Event) -> Result<()> {
        let EventKind::Span { name, step, track, start_us, duration_us, flops, bytes } = &event.kind else {
            return Ok(());
        };
        if !self.steps.is_empty() && !self.steps.iter().any(|steps| steps.contains(step)) {
            return Ok(());
        }
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.span((name, *step), *track, *start_us, *duration_us, (*flops, *bytes))
        {
            self.failed = Some(error);
            self.writer = None;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.writer.take().map_or(Ok(()), TraceWriter::finish)?;
        self.failed.take().map_or(Ok(()), Err)
    }
}

#[derive(Debug)]
struct TraceWriter {
    file: Appended,
    max_bytes: u64,
    full: bool,
}

/// Bytes reserved for the last event, which reports that later spans are dropped.
const LAST_EVENT_BYTES: u64 = 256;

impl TraceWriter {
    /// Opens the file for appending. An incomplete last line and the closing bracket of a finished trace are removed.
    fn open(path: impl Into<PathBuf>, max_bytes: u64) -> Result<Self> {
        let mut full = false;
        let mut file = Appended::open(path.into(), |bytes| {
            let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            let whole = &bytes[..whole];
            let open = whole.strip_suffix(b"{}]\n").unwrap_or(whole);
            full = open.len() as u64 + LAST_EVENT_BYTES > max_bytes.max(1024);
            open.len()
        })?;
        if file.len() == 0 {
            file.append(b"[\n")?;
        }
        Ok(TraceWriter { file, max_bytes: max_bytes.max(1024), full })
    }

    /// Appends a span of an optimizer step to the row `thread`: its start (since the start of the run) and duration in
    /// microseconds, its FLOPs, and its bytes of memory traffic. Viewers show FLOPs and bytes after a click on the
    /// span.
    fn span(
        &mut self,
        (name, step): (&str, Step),
        thread: u64,
        start_us: f64,
        duration_us: f64,
        (flops, bytes): (f64, f64),
    ) -> Result<()> {
        let mut event = json!({
            "name": name, "ph": "X", "pid": std::process::id(), "tid": thread,
            "ts": round(start_us), "dur": round(duration_us), "args": { "step": step },
        });
        if flops > 0.0 || bytes > 0.0 {
            event["args"]["flops"] = flops.into();
            event["args"]["bytes"] = bytes.into();
        }
        self.event(&event)
    }

    fn event(&mut self, event: &serde_json::Value) -> Result<()> {
        if self.full {
            return Ok(());
        }
        let line = format!("{event},\n");
        if self.file.len() + line.len() as u64 + LAST_EVENT_BYTES > self.max_bytes {
            self.full = true;
            let last_event = json!({
                "name": format!("the trace reached its limit of {} bytes", self.max_bytes), "ph": "i", "s": "g",
                "pid": std::process::id(), "ts": event["ts"],
            });
            return self.file.append(format!("{last_event},\n").as_bytes());
        }
        self.file.append(line.as_bytes())
    }

    /// Closes the array, so that strict JSON parsers accept the file. [`open`](Self::open) can still continue the file
    /// later.
    fn finish(mut self) -> Result<()> {
        self.file.append(b"{}]\n")
    }
}

/// Rounds microseconds to whole nanoseconds.
fn round(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn events(text: &str) -> Vec<Value> {
        let closed = if text.ends_with("]\n") { text.to_owned() } else { format!("{text}{{}}]") };
        let mut events: Vec<Value> = serde_json::from_str(&closed).unwrap();
        events.pop();
        events
    }

    #[test]
    fn a_trace_is_readable_while_open_closed_or_incomplete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let read = || std::fs::read_to_string(&path).unwrap();
        let mut trace = TraceWriter::open(&path, 1 << 20).unwrap();
        trace.span(("a \"quoted\" name", Step(1)), 0, 1.0, 2.5, (1e9, 0.0)).unwrap();
        assert_eq!(events(&read()).len(), 1);
        trace.finish().unwrap();
        let strict: Value = serde_json::from_str(&read()).unwrap();
        assert_eq!(
            (&strict[0]["ph"], &strict[0]["dur"], &strict[0]["args"]["flops"]),
            (&"X".into(), &2.5.into(), &1e9.into())
        );

        let mut trace = TraceWriter::open(&path, 1 << 20).unwrap();
        trace.span(("b", Step(1)), 0, 3.0, 7.0, (0.0, 0.0)).unwrap();
        drop(trace);
        std::fs::write(&path, read() + "{\"name\": \"to").unwrap();
        let mut trace = TraceWriter::open(&path, 1 << 20).unwrap();
        trace.span(("c", Step(1)), 0, 4.0, 1.0, (0.0, 0.0)).unwrap();
        let names: Vec<_> = events(&read()).iter().map(|event| event["name"].clone()).collect();
        assert_eq!(names, ["a \"quoted\" name", "b", "c"]);
    }

    #[test]
    fn only_the_configured_steps_are_traced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let mut sink = TraceSink::open(&path, 1 << 20).unwrap().with_steps(vec![Step(2)..=Step(3), Step(7)..=Step(7)]);
        for step in 1..9 {
            let span = EventKind::Span {
                name: format!("step {step}"),
                step: Step(step),
                track: 0,
                start_us: 0.0,
                duration_us: 1.0,
                flops: 0.0,
                bytes: 0.0,
            };
            sink.receive(&span.into()).unwrap();
        }
        let names: Vec<_> =
            events(&std::fs::read_to_string(&path).unwrap()).iter().map(|e| e["name"].clone()).collect();
        assert_eq!(names, ["step 2", "step 3", "step 7"]);
    }

    #[test]
    fn a_trace_ends_with_a_last_event_at_its_size_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let mut trace = TraceWriter::open(&path, 2_000).unwrap();
        for i in 0..1000 {
            trace.span(("span", Step(1)), 0, f64::from(i), 1.0, (0.0, 0.0)).unwrap();
        }
        trace.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() <= 2_000 && text.len() > 1_500, "{}", text.len());
        let events = events(&text);
        assert!(events.last().unwrap()["name"].as_str().unwrap().contains("the trace reached its limit"));
        // A full file stays full when it is opened again.
        let mut trace = TraceWriter::open(&path, 2_000).unwrap();
        let len = trace.file.len();
        trace.span(("span", Step(1)), 0, 0.0, 1.0, (0.0, 0.0)).unwrap();
        assert_eq!(trace.file.len(), len);
    }

    fn span(name: &str) -> Event {
        let (name, step, track) = (name.to_owned(), Step(7), 3);
        EventKind::Span { name, step, track, start_us: 1.234_56, duration_us: 2.000_4, flops: 0.0, bytes: 0.0 }.into()
    }

    #[test]
    fn a_trace_is_full_when_a_span_and_the_last_event_do_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        // A trace with one span gives the length of a span's line.
        let name = "n".repeat(300);
        TraceSink::open(&path, 1 << 20).unwrap().receive(&span(&name)).unwrap();
        let line = std::fs::metadata(&path).unwrap().len() - 2;
        for (less, spans) in [(0, 5), (1, 4)] {
            std::fs::remove_file(&path).unwrap();
            let bytes = 2 + 5 * line + LAST_EVENT_BYTES - less;
            let mut sink = TraceSink::open(&path, bytes).unwrap();
            for _ in 0..8 {
                sink.receive(&span(&name)).unwrap();
            }
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches(&name).count(), spans);
            let expected = format!(
                "{{\"name\":\"the trace reached its limit of {bytes} \
                 bytes\",\"ph\":\"i\",\"s\":\"g\",\"pid\":{},\"ts\":1.235}},",
                std::process::id()
            );
            assert_eq!(text.lines().skip(1 + spans).collect::<Vec<_>>(), [expected.as_str()]);
        }
        // The closing bracket of an earlier start is removed, so it does not count towards the limit.
        for (less, full) in [(0, false), (1, true)] {
            let lines = format!("[\n{}\n", "x".repeat(2000));
            std::fs::write(&path, format!("{lines}{{}}]\n")).unwrap();
            let writer = TraceWriter::open(&path, lines.len() as u64 + LAST_EVENT_BYTES - less).unwrap();
            assert_eq!((writer.full, std::fs::read_to_string(&path).unwrap()), (full, lines));
        }
        // The limit is at least 1 KiB.
        std::fs::write(&path, "x".repeat(1024 - 256 - 1) + "\n").unwrap();
        let writer = TraceWriter::open(&path, 5).unwrap();
        assert_eq!((writer.full, writer.max_bytes), (false, 1024));
        std::fs::write(&path, "x".repeat(1024 - 256) + "\n").unwrap();
        assert!(TraceWriter::open(&path, 5).unwrap().full);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_ends_the_trace_and_is_reported_at_the_end() {
        let path = std::path::Path::new("trace.json");
        let writer = TraceWriter { file: Appended::broken(path, true), max_bytes: 2048, full: false };
        let mut sink = TraceSink { writer: Some(writer), steps: Vec::new(), failed: None };
        sink.receive(&span("a")).unwrap();
        sink.receive(&span("b")).unwrap();
        let error = sink.finish().unwrap_err().to_string();
        assert_eq!(error, "cannot write trace.json: No space left on device (os error 28)");
        sink.finish().unwrap();
        let writer = TraceWriter { file: Appended::broken(path, true), max_bytes: 2048, full: false };
        let mut sink = TraceSink { writer: Some(writer), steps: Vec::new(), failed: None };
        assert!(sink.finish().is_err(), "writing the closing bracket must fail");
    }
}
