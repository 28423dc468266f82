//! Runs that report to receivers.

#![cfg(unix)]

use super::*;
use crate::config::Algorithm;
use std::path::PathBuf;
use telemetry::Step;

/// A receiver that appends its input to a file.
fn appends(dir: &Path, name: &str) -> (PathBuf, String) {
    let path = dir.join(name);
    let receiver = format!("command:sh -c 'cat >> {}'", path.display());
    (path, receiver)
}

/// The events that a receiver has received.
fn got(path: &Path) -> Vec<Event> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Makes the run wait at each logged step until the receiver has written the step to `path`. After the end of a run, a
/// receiver has only three seconds.
fn waits_for_receiver(options: RunOptions, path: &Path) -> RunOptions {
    let path = path.to_owned();
    options.on_log(move |record| {
        testing::wait_until("the receiver has the step", || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            // The last line may be incomplete.
            let events: Vec<Event> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            steps_of(&events).contains(&record.step)
        });
        ControlFlow::Continue(())
    })
}

fn steps_of(events: &[Event]) -> Vec<Step> {
    let step = |event: &Event| match &event.kind {
        EventKind::Metrics { step, .. } => Some(*step),
        _ => None,
    };
    events.iter().filter_map(step).collect()
}

#[test]
fn a_receiver_gets_each_logged_line_once_across_a_resume() {
    let dir = directory();
    let (path, receiver) = appends(dir.path(), "got");
    let named = |config: Config| Config { report_to: vec![receiver.clone()], run_name: Some("mine".into()), ..config };
    let (stop, end) = (StopSignal::new(), StopSignal::new());
    let after_four = stop.clone();
    let options = options().stop_signal(stop).on_step(move |step| {
        if step == Step(4) {
            after_four.request();
        }
        ControlFlow::Continue(())
    });
    let options = waits_for_receiver(options, &path);
    let stopped = Run::new(Purpose::Grpo, named(config(dir.path(), "out")), options).unwrap().run().unwrap();
    assert_eq!((stopped.stop_reason, steps_of(&got(&path))), (StopReason::Interrupted, vec![Step(2), Step(4)]));
    let root = stopped.dir.root().to_owned();
    let resumed = waits_for_receiver(super::options().stop_signal(end), &path);
    Run::resume(Purpose::Grpo, &root, resumed).unwrap().run().unwrap();
    let events = got(&path);
    assert_eq!(steps_of(&events), [2, 4, 6].map(Step));
    // The receiver has received the lines of the log.
    let lines = telemetry::metrics::read(&root.join("metrics.jsonl")).unwrap();
    assert_eq!(lines.len(), events.len());
    for (line, event) in lines.iter().zip(&events) {
        match &event.kind {
            EventKind::Metrics { values, .. } => {
                assert!(!values.is_empty());
                assert!(values.iter().all(|(name, value)| line.number(name) == Some(*value).filter(|x| x.is_finite())));
            }
            EventKind::Alarm { alarm, .. } => assert_eq!(line.0["alarm"]["id"], *alarm.id),
            other => panic!("{other:?}"),
        }
    }
    assert!(std::fs::read_to_string(&path).unwrap().lines().all(|line| line.starts_with("{\"run\":\"mine\",")));
}

/// An unreachable receiver changes no bit of a run and causes a warning.
#[test]
fn an_unreachable_receiver_only_causes_a_warning() {
    let dir = directory();
    let run = |out: &str, report_to: Vec<String>| {
        let config = Config { report_to, ..config(dir.path(), out) };
        let result = Run::new(Purpose::Grpo, config, options()).unwrap().run().unwrap();
        let log = std::fs::read_to_string(result.dir.root().join("lockstep-0.log")).unwrap();
        (weights_of(&result.dir.model()), log)
    };
    let (plain, _) = run("plain", Vec::new());
    let (weights, log) = run("dead", vec!["command:./no/such/program".to_owned()]);
    assert!(plain == weights);
    assert!(log.contains(" records did not reach it: it cannot be started: no such program"), "{log}");
}

#[test]
fn every_kind_of_run_reports_to_its_receivers() {
    let dir = directory();
    let pair = |word: &str| json!({"prompt": format!("{word} "), "chosen": format!("{word}."), "rejected": "no"});
    let pairs = || Rows::try_from(["ab", "sun", "moon", "tree"].map(pair).to_vec()).unwrap();
    for purpose in [Purpose::Grpo, Purpose::Sft, Purpose::Dpo, Purpose::Reward] {
        let name = format!("{purpose:?}");
        let (path, receiver) = appends(dir.path(), &name);
        let mut config = Config {
            per_device_train_batch_size: 2,
            max_steps: 2,
            logging_steps: 1,
            report_to: vec![receiver],
            ..config(dir.path(), &format!("out {name}"))
        };
        let options = match purpose {
            Purpose::Grpo => {
                (config.algorithm, config.num_generations) = (Algorithm::Ppo, 1);
                options()
            }
            Purpose::Sft => RunOptions::new().context(one_thread()).train_rows(rows()),
            _ => RunOptions::new().context(one_thread()).train_rows(pairs()),
        };
        Run::new(purpose, config, waits_for_receiver(options, &path)).unwrap().run().unwrap();
        assert_eq!(steps_of(&got(&path)), [1, 2].map(Step), "{name}");
    }
}
