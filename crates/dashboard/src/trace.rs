//! `trace.json` for the page: the spans of one step, and how long work beside the learner took.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The spans of an optimizer step. Those of other tracks than the learner's have `beside`: rewards behind generation,
/// checkpoints that a thread writes.
pub fn spans(trace: &str, step: u64) -> Value {
    let (mut found, mut before, mut learner) = (Vec::<Value>::new(), 0, 0);
    for span in lines(trace) {
        let Some(at) = span["args"]["step"].as_u64() else { continue };
        // A run that is resumed writes some steps again, behind later ones: the last ones count.
        if at < before && at <= step {
            found.clear();
        }
        before = at;
        if at != step {
            continue;
        }
        // The step itself is around the others.
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

/// Seconds of work beside the learner, by name, over the steps of the trace: `{"steps": n, "seconds": {name: s}}`.
/// What a span contains on its own track is not counted twice.
pub fn beside(trace: &str) -> Value {
    let Some(learner) = trace.lines().filter(|line| line.contains("\"name\":\"step\"")).find_map(read) else {
        return json!({ "steps": 0, "seconds": {} });
    };
    let learner = track(&learner);
    // Most spans are the learner's, and are not parsed.
    let is_learners = format!("\"tid\":{learner},");
    let (mut found, mut steps, mut before) = (Vec::<Beside>::new(), BTreeSet::new(), 0);
    for line in trace.lines() {
        if line.contains(&is_learners) && !line.contains("\"name\":\"step\"") {
            continue;
        }
        let Some(span) = read(line) else { continue };
        let Some(step) = span["args"]["step"].as_u64() else { continue };
        if step < before {
            found.retain(|span| span.step < step);
        }
        before = step;
        if span["name"] == "step" {
            steps.insert(step);
            continue;
        }
        let start_us = span["ts"].as_f64().unwrap_or(0.0);
        found.push(Beside {
            track: (span["pid"].as_u64().unwrap_or(0), track(&span)),
            step,
            start_us,
            end_us: start_us + span["dur"].as_f64().unwrap_or(0.0),
            name: span["name"].as_str().unwrap_or_default().to_owned(),
        });
    }
    // By track and time, the outer span first.
    found.sort_by(|a, b| {
        let times = a.start_us.total_cmp(&b.start_us).then(b.end_us.total_cmp(&a.end_us));
        a.track.cmp(&b.track).then(times)
    });
    let (mut seconds, mut covered) = (Map::new(), ((0, 0), f64::NEG_INFINITY));
    for Beside { track, start_us, end_us, name, .. } in found {
        if covered.0 == track && start_us < covered.1 && end_us <= covered.1 {
            continue;
        }
        covered = (track, end_us);
        let known = seconds.get(&name).and_then(Value::as_f64).unwrap_or(0.0);
        seconds.insert(name, json!(known + (end_us - start_us) / 1e6));
    }
    json!({ "steps": steps.len(), "seconds": seconds })
}

struct Beside {
    /// Process and row.
    track: (u64, u64),
    step: u64,
    start_us: f64,
    end_us: f64,
    name: String,
}

fn lines(trace: &str) -> impl Iterator<Item = Value> + '_ {
    trace.lines().filter_map(read)
}

/// The event of a line, which ends with a comma.
fn read(line: &str) -> Option<Value> {
    serde_json::from_str(line.trim_end_matches(',')).ok()
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
    fn spans_belong_to_the_step_that_they_name() {
        // A gradient and an optimizer step are two spans of one name.
        let trace = ["rollout", "update", "update"].map(|name| line(name, 1, (0, 3, 2))).concat();
        let trace = format!("[\n{trace}{}{}", line("rollout", 2, (0, 6, 2)), line("update", 3, (0, 7, 2)));
        let count = |trace: &str, step| spans(trace, step).as_array().unwrap().len();
        assert_eq!([1, 2, 3, 4].map(|step| count(&trace, step)), [3, 1, 1, 0]);
        assert_eq!(spans(&trace, 2)[0]["start_us"], 6);
        // Resumed after step 1.
        let trace = trace + &line("rollout", 2, (0, 9, 2)) + &line("rollout", 3, (0, 10, 2));
        assert_eq!((count(&trace, 2), spans(&trace, 2)[0]["start_us"].as_u64()), (1, Some(9)));
        assert_eq!(spans(&trace, 3)[0]["start_us"], 10);
    }

    #[test]
    fn a_span_is_answered_whole_and_names_what_is_beside_the_learner() {
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
        let answer = spans(&trace, 1);
        assert_eq!((answer.as_array().unwrap().len(), &answer[0]), (2, &decode), "the step itself is around them");
        assert_eq!((&answer[1]["name"], &answer[1]["beside"]), (&json!("rewards"), &json!(true)));
        assert_eq!(spans("", 1), json!([]));
    }

    #[test]
    fn work_beside_the_learner_is_summed_without_what_is_inside_of_it() {
        let second = 1_000_000;
        let trace = [
            line("rollout", 1, (0, 0, 2 * second)),
            line("decode", 1, (2, second, second)),
            line("rollout", 1, (2, 0, 3 * second)),
            line("checkpoint", 1, (1, 0, second)),
            line("step", 1, (0, 0, 4 * second)),
            line("checkpoint", 2, (1, 5 * second, second / 2)),
            line("step", 2, (0, 4 * second, 4 * second)),
        ];
        let first = format!("[\n{}", trace.concat());
        assert_eq!(beside(&first), json!({ "steps": 2, "seconds": { "checkpoint": 1.5, "rollout": 3.0 } }));
        // Resumed after step 1: step 2 is there twice, and the last one counts.
        let third = line("checkpoint", 3, (1, 8 * second, second));
        let again = line("checkpoint", 2, (1, 9 * second, second)) + &line("step", 2, (0, 8 * second, 4 * second));
        let resumed = first + &third + &again + "{}]\n";
        assert_eq!(beside(&resumed), json!({ "steps": 2, "seconds": { "checkpoint": 2.0, "rollout": 3.0 } }));
        assert_eq!(beside("[\n"), json!({ "steps": 0, "seconds": {} }));
    }
}
