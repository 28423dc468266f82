use super::*;
use crate::outputs::SECTIONS;
use std::collections::BTreeSet;
use testing::prometheus::{Sample, read};

/// The exported samples of a run's metrics, without the samples about the run itself.
fn samples(metrics: &[(&str, f64)]) -> Vec<Sample> {
    let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let text = exposition(&[RunMetrics { run: "a".into(), metrics, ..RunMetrics::default() }]);
    let (samples, _) = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    samples.into_iter().filter(|sample| !sample.name.starts_with("lockstep_run_")).collect()
}

/// The name and labels of a metric's only sample, without the label `run`.
fn named(metric: &str) -> (String, Vec<(String, String)>) {
    let mut samples = samples(&[(metric, 1.5)]);
    let Sample { name, mut labels, value } = samples.remove(0);
    assert!(samples.is_empty() && value == 1.5);
    assert_eq!(labels.remove("run").as_deref(), Some("a"));
    (name, labels.into_iter().collect())
}

#[test]
fn parts_of_names_that_a_run_chooses_become_labels() {
    for (metric, name, labels) in [
        ("reward", "lockstep_reward", &[][..]),
        ("rewards/my math/mean", "lockstep_rewards_mean", &[("name", "my math")]),
        ("rewards/a/b/gil_wait_s", "lockstep_rewards_gil_wait_s", &[("name", "a/b")]),
        ("rewards/a/b/other", "lockstep_rewards", &[("metric", "b/other"), ("name", "a")]),
        ("reward_p90", "lockstep_reward_p", &[("percent", "90")]),
        ("completions/p10_length", "lockstep_completions_p_length", &[("percent", "10")]),
        ("eval_pass@8", "lockstep_eval_pass", &[("k", "8")]),
        ("eval_hard_set_pass@8", "lockstep_eval_pass", &[("k", "8"), ("set", "hard_set")]),
        ("eval_hard_rewards/math/std", "lockstep_eval_rewards_std", &[("name", "math"), ("set", "hard")]),
        ("device/rollout/decode/time_s", "lockstep_device_time_s", &[("stage", "rollout/decode")]),
        ("num_tokens", "lockstep_num_tokens_total", &[]),
        ("my/own-metric", "lockstep_my_own_metric", &[("metric", "my/own-metric")]),
        ("my_own.metric", "lockstep_my_own_metric", &[("metric", "my_own.metric")]),
        ("Größe", "lockstep_Gr_e", &[("metric", "Größe")]),
        ("", "lockstep", &[("metric", "")]),
    ] {
        let labels = labels.iter().map(|(label, text)| ((*label).to_owned(), (*text).to_owned())).collect();
        assert_eq!(named(metric), (name.to_owned(), labels), "{metric}");
    }
}

/// No two metrics of the registry are exported with the same name and labels.
#[test]
fn metrics_of_the_registry_are_exported_without_collisions() {
    let all: Vec<&Metric> = SECTIONS.iter().flat_map(|section| section.metrics).collect();
    let mut seen = BTreeSet::new();
    for metric in &all {
        let labels: Vec<&str> = metric.name.split('<').skip(1).filter_map(|part| part.split('>').next()).collect();
        assert!(seen.insert((sanitised(&fixed(metric.name)), labels.clone())), "{} {labels:?}", metric.name);
        assert!(!labels.contains(&"run") && !labels.contains(&"set"), "{}", metric.name);
    }
    let names: Vec<(String, f64)> =
        all.iter().map(|metric| (metric.name.replace(['<', '>'], "").replace("percent", "50"), 1.0)).collect();
    let text = exposition(&[RunMetrics { run: "a".into(), metrics: names.clone(), ..RunMetrics::default() }]);
    let (samples, types) = read(&text).unwrap();
    assert_eq!(samples.iter().filter(|sample| !sample.name.starts_with("lockstep_run_")).count(), names.len());
    for counter in COUNTERS {
        assert_eq!(types[&(sanitised(counter) + "_total")], "counter");
    }
}

#[test]
fn state_steps_and_alarms_of_runs_are_exported() {
    let hostile = "a\"b\\c\nd{}";
    let alarm = ("kl".to_owned(), hostile.to_owned(), "look".to_owned());
    let first = RunMetrics {
        run: hostile.into(),
        name: Some("first".into()),
        state: "running",
        step: crate::Step(7),
        total_steps: Some(9),
        alarms: vec![alarm],
        metrics: vec![("reward".into(), 0.1 + 0.2), ("loss".into(), f64::NAN)],
    };
    let second = RunMetrics { run: "b".into(), state: "stopped", ..first.clone() };
    let second = RunMetrics {
        name: None,
        total_steps: None,
        alarms: Vec::new(),
        metrics: vec![("reward".into(), f64::NEG_INFINITY), ("kl".into(), 5e-324)],
        ..second
    };
    let text = exposition(&[first, second]);
    let (samples, types) = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let value = |name: &str, wanted: &[(&str, &str)]| {
        let fits = |sample: &&Sample| {
            sample.name == name
                && wanted.iter().all(|(label, text)| sample.labels.get(*label).is_some_and(|t| t == text))
        };
        let found: Vec<f64> = samples.iter().filter(fits).map(|sample| sample.value).collect();
        assert!(found.len() < 2, "{name} {wanted:?}");
        found.first().copied()
    };
    let (a, b) = (("run", hostile), ("run", "b"));
    assert_eq!(value("lockstep_reward", &[a]), Some(0.1 + 0.2));
    assert_eq!(value("lockstep_reward", &[b]), Some(f64::NEG_INFINITY));
    assert!(value("lockstep_loss", &[a]).unwrap().is_nan());
    assert_eq!((value("lockstep_kl", &[b]), value("lockstep_kl", &[a])), (Some(5e-324), None));
    assert_eq!(
        ["running", "stopped"].map(|state| value("lockstep_run_state", &[a, ("state", state)])),
        [Some(1.0), Some(0.0)]
    );
    assert_eq!(value("lockstep_run_state", &[b, ("state", "stopped")]), Some(1.0));
    assert_eq!(
        (value("lockstep_run_steps_total", &[a]), value("lockstep_run_planned_steps", &[a])),
        (Some(7.0), Some(9.0))
    );
    assert_eq!(value("lockstep_run_planned_steps", &[b]), None);
    assert_eq!((value("lockstep_run_alarms", &[a]), value("lockstep_run_alarms", &[b])), (Some(1.0), Some(0.0)));
    assert_eq!(value("lockstep_run_alarm", &[a, ("alarm", "kl"), ("subject", hostile), ("weight", "look")]), Some(1.0));
    assert_eq!(value("lockstep_run_info", &[a, ("name", "first")]), Some(1.0));
    assert_eq!((&*types["lockstep_run_steps_total"], &*types["lockstep_reward"]), ("counter", "gauge"));
    assert!(text.contains("# HELP lockstep_kl Mean KL divergence"), "{text}");
    assert!(!text.contains('`'), "{text}");
    assert_eq!(exposition(&[]), "");
}
