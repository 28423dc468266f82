//! Complete reports of small runs, and sections at their limits.

use super::*;

fn write(root: &Path, name: &str, text: &str) {
    fs::write(root.join(name), text).unwrap();
}

/// A run's report without contents.
fn empty(name: &str) -> Report {
    Report {
        name: name.to_owned(),
        verdict: Verdict { state: "level", says: "Level.".to_owned() },
        facts: Vec::new(),
        keys: BTreeMap::new(),
        curves: Vec::new(),
        profile: None,
        alarms: Vec::new(),
        samples: Vec::new(),
    }
}

fn profile(seconds: f64, steps: u64, stages: &[(&str, f64, f64, f64)]) -> ProfileRecord {
    type Row<'a> = (&'a str, f64, f64, f64);
    let stage = |(path, seconds, flops, bytes): &Row<'_>| {
        let [path, seconds, flops, bytes] = [json!(path), json!(seconds), json!(flops), json!(bytes)];
        json!({"path": path, "seconds": seconds, "flops": flops, "bytes": bytes})
    };
    let measured = json!({
        "first_step": 2, "last_step": 1 + steps, "steps": steps, "seconds": seconds, "cpu_s": 3.0 * seconds, "cores": 4,
        "stages": stages.iter().map(stage).collect::<Vec<_>>(),
    });
    serde_json::from_value(json!({"version": 1, "measured": measured, "findings": []})).unwrap()
}

#[test]
fn a_markdown_report_matches_the_expected_text() {
    let mut report = empty("a|b");
    report.facts = vec![("model", "x\ny".to_owned())];
    report.alarms = vec!["it\n is".to_owned()];
    report.curves = vec![Curve { name: "reward", points: vec![(Step(1), 0.5), (Step(2), 0.25), (Step(3), 12.0)] }];
    report.profile = Some(profile(8.0, 4, &[("rollout", 6.0, 12e9, 3e9), ("rollout/decode", 2.0, 0.0, 0.0)]));
    let sample =
        Sample { step: Step(7), prompt: "one\ntwo\n".into(), best: (2.0, "# b".into()), worst: (-1.0, "w".into()) };
    report.samples = vec![sample];
    let other =
        Report { curves: vec![Curve { name: "loss", points: vec![(Step(1), 2.0), (Step(9), 1.0)] }], ..empty("other") };
    let expected = "\
# a|b

Level.

- **alarm** it is

# other

Level.


## What differs

No key of their configurations.

## Curves

| metric | a\\|b first | last | other first | last |
|--------|-----------:|-----:|------------:|-----:|
| reward |      0.500 | 12.0 |           – |    – |
| loss   |          – |    – |        2.00 | 1.00 |

## Time

a|b: steps 2 to 5, 2.00 s per step; 3.00 of 4 cores busy.

| stage       | a\\|b s |   share | GFLOP/s |  GB/s |
|-------------|-------:|--------:|--------:|------:|
| rollout     |   1.50 |  75.0 % |    2.00 | 0.500 |
| \u{2003}decode     |  0.500 |  25.0 % |       – |     – |
| in no stage |  0.500 |  25.0 % |       – |     – |
| a step      |   2.00 | 100.0 % |       – |     – |

## Findings of a|b

None.

## What a|b writes, step 7

Prompt:

    one
    two

Best, reward 2.00:

    # b

Worst, reward -1.00:

    w

";
    assert_eq!(markdown(&[report, other]), expected);
}

#[test]
fn active_alarms_are_listed_without_notes() {
    let of = |more: Value| {
        let mut line = json!({"alarm": {"id": "kl", "since": 3, "evidence": "E", "remedy": "R"}});
        line["weight"] = more.get("weight").cloned().unwrap_or(json!("look"));
        for (key, value) in more.as_object().unwrap() {
            line["alarm"][key] = value.clone();
        }
        alarm(&line)
    };
    assert_eq!(of(json!({})).unwrap(), "kl since step 3: E. What helps: R");
    assert_eq!(of(json!({"subject": "s"})).unwrap(), "kl (s) since step 3: E. What helps: R");
    for over in [json!({"until": 4}), json!({"weight": "note"}), json!({"since": null})] {
        assert_eq!(of(over), None);
    }
    assert!(of(json!({"until": null, "weight": "broken"})).is_some());
}

#[test]
fn a_sample_has_the_best_and_the_worst_completion() {
    let group =
        |completions: Value| json!({"step": 3, "prompt": "p", "weights": [1.0, -2.0], "completions": completions});
    let one = |rewards: Value, text: &str| json!({"rewards": rewards, "text": text});
    let found =
        sample(&group(json!([one(json!([1.0, 0.0]), "a"), one(json!([5.0, 3.0]), "b"), one(json!([3.0, null]), "c")])));
    let Sample { step, prompt, best, worst } = found.unwrap();
    assert_eq!((step.0, prompt.as_str(), best, worst), (3, "p", (3.0, "c".to_owned()), (-1.0, "b".to_owned())));
    let text = |length: usize| "é".repeat(length);
    let cut = |length: usize| sample(&group(json!([one(json!([1.0]), &text(length))]))).unwrap().best.1;
    assert_eq!((cut(600), cut(601)), (text(600), text(600) + " …"));
    assert!(sample(&group(json!([]))).is_none());
    assert!(
        sample(&json!({"step": null, "weights": [], "completions": [one(json!([]), "a")], "prompt": "p"})).is_none()
    );
    // The three groups of the last step with the largest spread of rewards.
    let dir = tempfile::tempdir().unwrap();
    let recorded_group = |id: u64| {
        let completion = |place: usize| Completion {
            rewards: vec![Some(place as f64 * id as f64)],
            content: Some("x".into()),
            ..Completion::new(place, vec![1])
        };
        Group {
            group: lockstep::wire::GroupId(id),
            step: Some(Step(6)),
            prompt: Some(format!("{id}").into()),
            reward_names: vec!["r".into()],
            reward_weights: vec![1.0],
            completions: vec![completion(0), completion(1)],
            ..Group::default()
        }
    };
    write(dir.path(), "config.toml", "");
    recorded(dir.path(), [3, 1, 4, 2].map(recorded_group));
    let prompts: Vec<String> = Report::read(dir.path()).unwrap().samples.into_iter().map(|one| one.prompt).collect();
    assert_eq!(prompts, ["4", "3", "2"]);
}
