//! Tests of the JSON format: for every kind of line, values are fields and `message` is one short line.

use super::*;
use crate::{Alarm, CompletionRows, Finding};
use serde_json::json;

fn alarm(of: impl FnOnce(&mut Alarm)) -> Alarm {
    let mut alarm = Alarm {
        id: "kl".into(),
        since: Step(2),
        evidence: "it is 3\nand rises".into(),
        examples: vec!["\"a\" → \"b\": 1".into()],
        remedy: "a higher beta".into(),
        ..Alarm::default()
    };
    of(&mut alarm);
    alarm
}

fn rows(rewards: Vec<(String, Vec<Option<f64>>)>, extra: Vec<(String, Vec<Value>)>) -> CompletionRows {
    let prompts = vec!["p".into(), json!([{"role": "user", "content": "q"}])];
    let (completions, advantages) = (vec!["c\nd".into(), "e".into()], vec![Some(0.5), None]);
    CompletionRows { step: Step(4), prompts, completions, rewards, extra, advantages }
}

/// The emitted line as JSON, without its time.
fn line(emit: impl FnOnce(&mut ConsoleSink, &Console)) -> Value {
    let (console, memory) = captured(LogFormat::Json, Level::Debug, false);
    emit(&mut ConsoleSink::new(console.clone()), &console);
    let text = text(&memory);
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut line = lines.next().unwrap();
    assert!(line.as_object_mut().unwrap().remove("time_s").is_some_and(|time| time.as_f64() > Some(1.6e9)));
    let is_one = line["message"].as_str().is_some_and(|message| !message.contains('\n') && !message.contains('─'));
    assert!(is_one, "{line}");
    line
}

fn event(kind: EventKind) -> Value {
    line(|sink, _| sink.receive(&kind.into()).unwrap())
}

#[test]
fn every_kind_of_json_line_has_its_values_as_fields() {
    let alarm_line = |alarm: &Alarm| event(EventKind::Alarm { step: Step(4), alarm: alarm.clone() });
    let expected = |level: &str, message: &str, alarm: &Alarm| {
        let alarm = serde_json::to_value(alarm).unwrap();
        json!({"level": level, "message": message, "step": 4, "alarm": alarm})
    };
    // Alarms with and without a subject, notes, and ended alarms. The field `alarm` has the same content as in
    // metrics.jsonl.
    for (level, message, alarm) in [
        ("warn", "alarm kl since step 2", alarm(|_| {})),
        ("warn", "alarm kl (math) since step 2", alarm(|a| a.subject = "math".into())),
        ("warn", "alarm kl since step 2", alarm(|a| a.examples = Vec::new())),
        ("info", "note: kl since step 2", alarm(|a| a.quiet = true)),
        ("info", "note: kl (r) since step 2", alarm(|a| (a.quiet, a.subject) = (true, "r".into()))),
        ("info", "alarm kl is over: it held from step 2 to step 9", alarm(|a| a.until = Some(Step(9)))),
        (
            "info",
            "alarm kl is over: it held from step 2 to step 9",
            alarm(|a| (a.until, a.quiet) = (Some(Step(9)), true)),
        ),
        ("info", "alarm kl (r) is over: it held from step 2 to step 9", {
            alarm(|a| (a.until, a.subject) = (Some(Step(9)), "r".into()))
        }),
    ] {
        assert_eq!(alarm_line(&alarm), expected(level, message, &alarm));
        let (console, memory) = captured(LogFormat::Plain, Level::Debug, false);
        ConsoleSink::new(console).receive(&EventKind::Alarm { step: Step(4), alarm: alarm.clone() }.into()).unwrap();
        assert!(
            text(&memory).contains(&alarm.to_string()),
            "the plain format must print the whole alarm: {}",
            text(&memory)
        );
    }
    let finding = Finding {
        id: "long_tail".into(),
        says: "Few are long.".into(),
        evidence: "3 of 9.".into(),
        remedy: "a limit".into(),
        steps: (Step(2), Step(5)),
    };
    let found = event(EventKind::Finding { step: Step(5), finding: finding.clone() });
    let fields = serde_json::to_value(&finding).unwrap();
    let message = "finding long_tail, steps 2 to 5";
    assert_eq!(found, json!({"level": "info", "message": message, "step": 5, "finding": fields}));
    // Metrics and evaluations.
    let metrics = |values: &[(&str, f64)]| {
        let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        event(EventKind::Metrics { step: Step(3), values })
    };
    assert_eq!(metrics(&[("loss", 0.5)]), json!({"level": "info", "message": "step 3", "step": 3, "loss": 0.5}));
    assert_eq!(metrics(&[("kl", f64::NAN)]), json!({"level": "info", "message": "step 3", "step": 3, "kl": null}));
    assert_eq!(
        metrics(&[("eval_loss", 0.5)]),
        json!({"level": "info", "message": "evaluation after step 3", "step": 3, "eval_loss": 0.5})
    );
    // Tables of completions.
    let shown = |rows: &CompletionRows, shown| event(EventKind::Completions { rows: rows.clone(), shown });
    let completions_line =
        |all: Value| json!({"level": "info", "message": "completions of step 4", "step": 4, "completions": all});
    let plain = rows(vec![("r".into(), vec![Some(1.0), None])], Vec::new());
    let (first, second) = (
        json!({"prompt": "p", "completion": "c\nd", "advantage": 0.5, "rewards": {"r": 1.0}}),
        json!({
            "prompt": [{"role": "user", "content": "q"}], "completion": "e", "advantage": null, "rewards": {"r": null},
        }),
    );
    assert_eq!(shown(&plain, 9), completions_line(json!([first, second])));
    assert_eq!(shown(&plain, 1), completions_line(json!([first])));
    let more = rows(Vec::new(), vec![("source".into(), vec!["A".into(), Value::Null])]);
    let row = json!({"prompt": "p", "completion": "c\nd", "advantage": 0.5, "rewards": {}, "extra": {"source": "A"}});
    assert_eq!(shown(&more, 1), completions_line(json!([row])));
    // Messages with and without their own fields.
    for level in [Level::Error, Level::Warn, Level::Info, Level::Debug] {
        let fields = Record(serde_json::Map::from_iter([("x".to_owned(), 1.into())]));
        let found = event(EventKind::Message { level, text: "text".into(), fields });
        assert_eq!(found, json!({"level": level.name(), "message": "text", "x": 1}));
    }
    assert_eq!(line(|_, console| console.fatal("boom")), json!({"level": "error", "message": "boom"}));
    // Progress: in the middle, and at its end.
    let progress = line(|_, console| console.progress("sft", 9, 0).set(9, "loss 0.5"));
    let message = "sft 9/9, loss 0.5";
    assert_eq!(progress, json!({"level": "info", "message": message, "label": "sft", "done": 9, "total": 9}));
    let ended = line(|_, console| drop(console.progress("sft", 9, 4)));
    let object = ended.as_object().unwrap();
    assert!(object["seconds"].as_f64().is_some() && object["message"].as_str().unwrap().starts_with("sft 4/9 in "));
    assert_eq!((&object["label"], &object["done"], &object["total"]), (&json!("sft"), &json!(4), &json!(9)));
    // A table, and a message with values.
    let mut fields = Record::new();
    fields.set("stages", vec![json!({"path": "rollout", "seconds": 1.5})]);
    let table = line(|_, console| console.table("stage  seconds\n─────  ───────\n", "where the time went", &fields));
    let stages = json!([{"path": "rollout", "seconds": 1.5}]);
    assert_eq!(table, json!({"level": "info", "message": "where the time went", "stages": stages}));
    let report = line(|_, console| console.report(Level::Warn, "1 alarm:\n  kl", "1 alarm", &fields));
    assert_eq!(report, json!({"level": "warn", "message": "1 alarm", "stages": stages}));
    // The plain format prints only the text.
    let (console, memory) = captured(LogFormat::Plain, Level::Info, false);
    console.table("stage  seconds\n", "where the time went", &fields);
    console.report(Level::Warn, "1 alarm:\n  kl", "1 alarm", &fields);
    assert!(text(&memory).starts_with("stage  seconds\n[") && text(&memory).ends_with("warning: 1 alarm:\n  kl\n"));
}
