//! `trace.json` for the page: the spans of one step, the seconds of each step by stage, and background work.

use crate::lines::Lines;
use crate::series::Series;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use telemetry::Step;

/// Limits for the number of stage names and of spans in a step. Only a forged trace exceeds them.
const MOST_NAMES: usize = 48;
const MOST_SPANS: usize = 1 << 16;

/// The spans of an optimizer step. Spans outside the learner's track have the key `beside`: rewards scored during
/// generation, checkpoints written in the background.
pub fn spans(trace: &str, step: Step) -> Value {
    let (mut found, mut before, mut learner) = (Vec::<Value>::new(), Step::START, 0);
    for span in lines(trace) {
        let Some(at) = span["args"]["step"].as_u64().map(Step) else { continue };
        // A resumed run repeats some steps: the last spans of a step are used.
        if at < before && at <= step {
            found.clear();
        }
        before = at;
        if at != step {
            continue;
        }
        // The span of the step contains the others.
        if span["name"] == "step" {
            learner = track(&span);
            continue;
        }
        found.push(json!({
            "name": span["name"], "track": span["tid"], "start_us": span["ts"], "duration_us": span["dur"],
            "flops": span["args"]["flops"], "bytes": span["args"]["bytes"],
        }));
    }
    for span in &mut found {
        span["beside"] = json!(span["track"] != learner);
    }
    found.into()
}

/// The seconds of each step by outermost stage, and the seconds of background work, read incrementally from a growing
/// trace.
pub struct Traced {
    log: Lines,
    stages: Series,
    /// The number of steps in `stages`, and the seconds of background work in them, by name.
    steps: u64,
    beside: BTreeMap<String, f64>,
    /// The spans of the step in progress.
    open: Vec<Span>,
}

/// A line of the trace.
struct Span {
    name: String,
    step: Step,
    track: u64,
    start_us: f64,
    end_us: f64,
}

impl Span {
    fn of(line: &Value) -> Option<Span> {
        let start_us = line["ts"].as_f64()?;
        Some(Span {
            name: line["name"].as_str()?.to_owned(),
            step: line["args"]["step"].as_u64().map(Step)?,
            track: track(line),
            start_us,
            end_us: start_us + line["dur"].as_f64()?,
        })
    }

    fn seconds(&self) -> f64 {
        (self.end_us - self.start_us) / 1e6
    }
}

impl Traced {
    /// The trace at this path, with nothing read yet.
    pub fn new(path: PathBuf) -> Traced {
        let (stages, beside) = (Series::default(), BTreeMap::new());
        Traced { log: Lines::new(path), stages, steps: 0, beside, open: Vec::new() }
    }

    /// Reads the new lines.
    pub fn refresh(&mut self) {
        let Some(opened) = self.log.open() else { return };
        if opened.begins_anew {
            (self.stages, self.steps) = (Series::default(), 0);
            (self.beside, self.open) = (BTreeMap::new(), Vec::new());
        }
        while let Some(lines) = self.log.next(&opened) {
            for line in lines.split(|&byte| byte == b'\n') {
                if let Some(span) = read(line).as_ref().and_then(Span::of) {
                    self.add(span);
                }
            }
        }
    }

    fn add(&mut self, span: Span) {
        if span.name != "step" {
            self.open.push(span);
            self.open.truncate(MOST_SPANS);
            return;
        }
        // The durations of steps (`step_s`) also give the number of traced steps.
        let mut own = BTreeMap::from([("step_s".to_owned(), span.seconds())]);
        for inner in outermost(std::mem::take(&mut self.open)).filter(|inner| inner.step == span.step) {
            let seconds = inner.seconds();
            let sums = if inner.track == span.track { &mut own } else { &mut self.beside };
            if sums.len() < MOST_NAMES || sums.contains_key(&inner.name) {
                *sums.entry(inner.name).or_default() += seconds;
            }
        }
        let known: BTreeSet<&str> = self.stages.keys().collect();
        own.retain(|name, _| known.len() < MOST_NAMES || known.contains(name.as_str()));
        let line = own.into_iter().map(|(name, seconds)| (name, json!(seconds))).collect();
        self.stages.add(span.step, &line);
        self.steps += 1;
    }

    /// The seconds of each step by stage, in the buckets of a chart with this many pixels, and the background work.
    pub fn json(&self, pixels: usize) -> Value {
        let keys: Vec<String> = self.stages.keys().map(str::to_owned).collect();
        let mut answer = self.stages.buckets(&keys, Step::START, Step(u64::MAX), pixels);
        answer["beside"] = json!({ "steps": self.steps, "seconds": self.beside });
        answer
    }
}

/// The outermost spans of each track.
fn outermost(mut spans: Vec<Span>) -> impl Iterator<Item = Span> {
    spans.sort_by(|a, b| {
        let times = a.start_us.total_cmp(&b.start_us).then(b.end_us.total_cmp(&a.end_us));
        a.track.cmp(&b.track).then(times)
    });
    let mut before = (u64::MAX, f64::NEG_INFINITY);
    spans.into_iter().filter(move |span| {
        let is_inside = before.0 == span.track && span.end_us <= before.1;
        if !is_inside {
            before = (span.track, span.end_us);
        }
        !is_inside
    })
}

fn lines(trace: &str) -> impl Iterator<Item = Value> + '_ {
    trace.lines().filter_map(|line| read(line.as_bytes()))
}

/// Parses the event in a line, which ends with a comma.
fn read(line: &[u8]) -> Option<Value> {
    serde_json::from_slice(line.strip_suffix(b",").unwrap_or(line)).ok()
}

fn track(span: &Value) -> u64 {
    span["tid"].as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, step: u64, (track, start, duration): (u64, u64, u64)) -> String {
        let span = json!({
            "name": name, "ph": "X", "pid": 7, "tid": track, "ts": start, "dur": duration, "args": { "step": step },
        });
        format!("{span},\n")
    }

    #[test]
    fn spans_are_assigned_to_the_step_that_they_name() {
        // Computing the gradient and the optimizer step are two spans with the same name.
        let trace = ["rollout", "update", "update"].map(|name| line(name, 1, (0, 3, 2))).concat();
        let trace = format!("[\n{trace}{}{}", line("rollout", 2, (0, 6, 2)), line("update", 3, (0, 7, 2)));
        let count = |trace: &str, step| spans(trace, Step(step)).as_array().unwrap().len();
        assert_eq!([1, 2, 3, 4].map(|step| count(&trace, step)), [3, 1, 1, 0]);
        assert_eq!(spans(&trace, Step(2))[0]["start_us"], 6);
        // The run was resumed after step 1.
        let trace = trace + &line("rollout", 2, (0, 9, 2)) + &line("rollout", 3, (0, 10, 2));
        assert_eq!((count(&trace, 2), spans(&trace, Step(2))[0]["start_us"].as_u64()), (1, Some(9)));
        assert_eq!(spans(&trace, Step(3))[0]["start_us"], 10);
    }

    #[test]
    fn spans_are_returned_whole_and_background_work_is_marked() {
        let work = json!({ "step": 1, "flops": 5.0, "bytes": 6.0 });
        let counted = json!({ "name": "decode", "tid": 2, "ts": 30, "dur": 4, "args": work });
        let trace = format!(
            "[\n{counted},\n{}{}{}no json\n",
            line("rewards", 1, (3, 31, 1)),
            line("step", 1, (2, 29, 9)),
            line("decode", 2, (2, 40, 1))
        );
        let decode = json!({
            "name": "decode", "track": 2, "start_us": 30, "duration_us": 4, "flops": 5.0, "bytes": 6.0, "beside": false,
        });
        let answer = spans(&trace, Step(1));
        assert_eq!(
            (answer.as_array().unwrap().len(), &answer[0]),
            (2, &decode),
            "the span of the step itself is excluded"
        );
        assert_eq!((&answer[1]["name"], &answer[1]["beside"]), (&json!("rewards"), &json!(true)));
        assert_eq!(spans("", Step(1)), json!([]));
    }

    #[test]
    fn the_seconds_of_a_step_are_summed_by_outermost_stage() {
        let second = 1_000_000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let mut traced = Traced::new(path.clone());
        traced.refresh();
        assert_eq!(traced.json(9)["steps"], json!([]), "no step is complete yet");
        let first = [
            line("rollout", 1, (0, 0, 2 * second)),
            line("log", 1, (0, 2 * second, second)),
            line("log", 1, (0, 3 * second, second)),
            line("decode", 1, (2, second, second)),
            line("rollout", 1, (2, 0, 3 * second)),
            line("checkpoint", 1, (1, 0, second)),
            line("step", 1, (0, 0, 4 * second)),
        ];
        let second_step =
            [line("checkpoint", 2, (1, 5 * second, second / 2)), line("step", 2, (0, 4 * second, 4 * second))];
        std::fs::write(&path, format!("[\n{}", first.concat())).unwrap();
        traced.refresh();
        // The remaining lines arrive later.
        std::fs::write(&path, format!("[\n{}{}{{}}]\n", first.concat(), second_step.concat())).unwrap();
        traced.refresh();
        let answer = traced.json(9);
        assert_eq!((&answer["steps"], &answer["width"]), (&json!([1, 2]), &json!(1)));
        let of = |name: &str| answer["keys"][name]["mean"].clone();
        assert_eq!(of("step_s"), json!([4.0, 4.0]));
        assert_eq!((of("rollout"), of("log")), (json!([2.0, null]), json!([2.0, null])));
        assert_eq!(of("decode"), Value::Null, "a span inside background work is not counted");
        assert_eq!(answer["beside"], json!({ "steps": 2, "seconds": { "checkpoint": 1.5, "rollout": 3.0 } }));
    }

    #[test]
    fn the_number_of_stages_of_an_untrusted_trace_is_limited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let mut text: String = (0..500).map(|i| line(&format!("stage {i}"), 1, (i % 2, 10 * i, 5))).collect();
        text += &line("step", 1, (0, 0, 9000));
        text += &(0..500).map(|i| line(&format!("other {i}"), 2, (0, 10 * i, 5))).collect::<String>();
        text += &line("step", 2, (0, 0, 9000));
        std::fs::write(&path, text).unwrap();
        let mut traced = Traced::new(path);
        traced.refresh();
        let answer = traced.json(9);
        let count = |of: &Value| of.as_object().unwrap().len();
        assert_eq!((count(&answer["keys"]), count(&answer["beside"]["seconds"])), (MOST_NAMES, MOST_NAMES));
        assert_eq!(answer["keys"]["other 499"], Value::Null);
    }
}
