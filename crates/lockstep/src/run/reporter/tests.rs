use super::*;
use std::sync::{Arc, Mutex};
use telemetry::{Error, Event, Result, Sink};

/// Keeps all events, and fails on those in `fails`.
#[derive(Clone, Default)]
struct Seen {
    events: Arc<Mutex<Vec<EventKind>>>,
    fails: Option<fn(&EventKind) -> bool>,
}

impl Sink for Seen {
    fn receive(&mut self, event: &Event) -> Result<()> {
        self.events.lock().unwrap().push(event.kind.clone());
        if self.fails.is_some_and(|fails| fails(&event.kind)) {
            Err(Error::Io { action: "write", path: "a file".into(), source: std::io::ErrorKind::StorageFull.into() })
        } else {
            Ok(())
        }
    }
}

impl Seen {
    /// The events since the last call.
    fn take(&self) -> Vec<EventKind> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    fn metrics(&self) -> Vec<(u64, Vec<(String, f64)>)> {
        let of = |event| match event {
            EventKind::Metrics { step, values } => Some((step.0, values)),
            _ => None,
        };
        self.take().into_iter().filter_map(of).collect()
    }
}

fn open(dir: &std::path::Path, config: &Config, seen: &Seen) -> Reporter {
    let run = RunDir::fresh(dir).unwrap();
    run.create("").unwrap();
    let sinks = Sinks::new();
    sinks.add(seen.clone());
    Reporter::open(&run, sinks, config).unwrap()
}

fn pair(name: &str, value: f64) -> (String, f64) {
    (name.to_owned(), value)
}

#[test]
fn means_are_logged_at_logging_steps() {
    let dir = tempfile::tempdir().unwrap();
    let (config, seen) = (Config { logging_steps: 3, tensorboard: false, ..Config::default() }, Seen::default());
    let mut reporter = open(dir.path(), &config, &seen);
    let logs = |reporter: &Reporter| (1..8).filter(|&step| reporter.logs_at(Step(step), step == 7)).collect::<Vec<_>>();
    assert_eq!(logs(&reporter), [3, 6, 7]);
    reporter.first_step = true;
    assert_eq!(logs(&reporter), [1, 3, 6, 7]);
    reporter.first_step = false;
    for (step, loss) in [(1, 1.0), (2, 2.0), (3, 6.0)] {
        reporter.add("loss", loss);
        reporter.set("epoch", step as f64);
        assert_eq!(reporter.take_step_values(), BTreeMap::from([pair("loss", loss)]));
    }
    let logged = reporter.log_now(Step(3)).unwrap();
    assert_eq!(logged, Some(vec![pair("epoch", 3.0), pair("loss", 3.0)]));
    assert_eq!(reporter.log_now(Step(3)).unwrap(), None);
    assert_eq!(seen.metrics(), [(3, vec![pair("epoch", 3.0), pair("loss", 3.0)])]);
    // As in transformers, the last value is logged and not the mean.
    reporter.log_last_values();
    for value in [4.0, 5.0, 7.0] {
        for name in &["grad_norm", "learning_rate", "val/grad_norm"] {
            reporter.add(name, value);
        }
    }
    let last = vec![pair("grad_norm", 7.0), pair("learning_rate", 7.0), pair("val/grad_norm", 16.0 / 3.0)];
    assert_eq!(reporter.log_now(Step(6)).unwrap(), Some(last));
    reporter.take_step_values();
    seen.take();
    assert_eq!(reporter.unlogged(), &MetricSums::default());
    // The sums in a checkpoint are logged together with later values.
    let mut sums = MetricSums::default();
    sums.add("loss", 5.0);
    reporter.resume(Step(4), &BTreeMap::new(), sums.clone()).unwrap();
    assert_eq!(reporter.unlogged(), &sums);
    reporter.add("loss", 1.0);
    assert_eq!(reporter.log_now(Step(6)).unwrap(), Some(vec![pair("loss", 3.0)]));
    reporter.metrics(Step(9), vec![pair("eval_loss", 0.5)]).unwrap();
    assert_eq!(seen.metrics()[1..], [(9, vec![pair("eval_loss", 0.5)])]);
    let mut lines = telemetry::metrics::read(&dir.path().join("metrics.jsonl")).unwrap().into_iter();
    assert_eq!(lines.next_back().and_then(|line| line.number("eval_loss")), Some(0.5));
}

#[test]
fn each_step_reports_its_own_values_of_the_judged_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let (config, seen) = (Config { logging_steps: 10, tensorboard: false, ..Config::default() }, Seen::default());
    let mut reporter = open(dir.path(), &config, &seen);
    // A step with two generations, a step with none, a step without these metrics, and a step on pairs.
    let mut step = 0;
    let mut end = |reporter: &mut Reporter, values: &[(&str, f64)]| {
        step += 1;
        for (name, value) in values {
            reporter.add(name, *value);
        }
        reporter.end_step(Step(step)).unwrap();
    };
    end(&mut reporter, &[("reward", 1.0), ("reward", 2.0), ("kl", 9.0), ("loss", 0.5)]);
    end(&mut reporter, &[("loss", 0.25)]);
    end(&mut reporter, &[("kl", 1.0)]);
    end(&mut reporter, &[("rewards/accuracies", 1.0), ("accuracy", 0.0), ("rewards/chosen", 3.0)]);
    let own = |event| match event {
        EventKind::StepValues { step, values } => Some((step.0, values)),
        _ => None,
    };
    let found: Vec<_> = seen.take().into_iter().filter_map(own).collect();
    let expected = [
        (1, vec![pair("loss", 0.5), pair("reward", 1.5)]),
        (2, vec![pair("loss", 0.25)]),
        (4, vec![pair("accuracy", 0.0), pair("rewards/accuracies", 1.0)]),
    ];
    assert_eq!(found, expected);
    let text = std::fs::read_to_string(dir.path().join("steps.jsonl")).unwrap();
    assert_eq!(text.lines().next(), Some("{\"step\":1,\"loss\":0.5,\"reward\":1.5}"));
}

#[test]
fn a_failing_sink_fails_the_step_but_a_failing_table_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { logging_steps: 1, tensorboard: false, ..Config::default() };
    let fails = |event: &EventKind| matches!(event, EventKind::Metrics { .. } | EventKind::Completions { .. });
    let seen = Seen { fails: Some(fails), ..Seen::default() };
    let mut reporter = open(dir.path(), &config, &seen);
    reporter.add("loss", 1.0);
    assert!(reporter.log_now(Step(1)).is_err());
    assert!(reporter.metrics(Step(1), Vec::new()).is_err());
    seen.take();
    for _ in 0..2 {
        reporter.completions(CompletionRows::default(), 3);
    }
    let warnings: Vec<String> = seen
        .take()
        .into_iter()
        .filter_map(|event| if let EventKind::Message { text, .. } = event { Some(text) } else { None })
        .collect();
    assert_eq!(warnings.len(), 1, "there is one warning: {warnings:?}");
    assert!(warnings[0].ends_with("; the run continues without such tables"), "{warnings:?}");
}
