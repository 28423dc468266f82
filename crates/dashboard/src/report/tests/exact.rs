//! Whole reports of small runs, and the parts of them at their limits.

use super::*;

fn write(root: &Path, name: &str, text: &str) {
    fs::write(root.join(name), text).unwrap();
}

/// A run's report without anything in it.
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
fn a_report_in_markdown_is_this_text() {
    let mut report = empty("a|b");
    report.facts = vec![("model", "x\ny".to_owned())];
    report.alarms = vec!["it\n is".to_owned()];
    report.curves = vec![Curve { name: "reward", points: vec![(1, 0.5), (2, 0.25), (3, 12.0)] }];
    report.profile = Some(profile(8.0, 4, &[("rollout", 6.0, 12e9, 3e9), ("rollout/decode", 2.0, 0.0, 0.0)]));
    let sample = Sample { step: 7, prompt: "one\ntwo\n".into(), best: (2.0, "# b".into()), worst: (-1.0, "w".into()) };
    report.samples = vec![sample];
    let other = Report { curves: vec![Curve { name: "loss", points: vec![(1, 2.0), (9, 1.0)] }], ..empty("other") };
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

a|b: steps 2 to 5, 2.00 s for one; 3.00 cores busy of 4.

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
fn a_report_in_html_has_these_parts() {
    let mut report = empty("a<b");
    report.facts = vec![("model", "x&y".to_owned())];
    report.alarms = vec!["it".to_owned()];
    report.curves = vec![Curve { name: "reward", points: vec![(2, 0.5), (3, 2.5), (4, 1.5)] }];
    report.profile = Some(profile(8.0, 4, &[("rollout", 6.0, 12e9, 3e9)]));
    let other = Report { curves: vec![Curve { name: "reward", points: vec![(0, 1.5), (1, 1.5)] }], ..empty("o") };
    let page = html(&[report.clone(), other]);
    for part in [
        "<title>a&lt;b, o</title>\n",
        "<h1 class=\"k0\">a&lt;b</h1>\n<p>Level.</p>\n<ul>\
         <li><b>alarm</b> it</li>\n</ul>\n",
        "<h1 class=\"k1\">o</h1>\n<p>Level.</p>\n<h2>What differs</h2>\n<p>No key of their configurations.</p>\n\
         <h2>Curves</h2>\n",
        "<figure><figcaption>reward: <span class=\"k0\">0.500 → 1.50</span>, <span class=\"k1\">1.50 → 1.50</span>; \
         from 0.500 to 2.50</figcaption>",
        "aria-label=\"reward of steps 0 to 4\"><polyline class=\"r0\" points=\"150.0,98.0 225.0,2.0 300.0,50.0\"/>\
         <polyline class=\"r1\" points=\"0.0,50.0 75.0,50.0\"/></svg>",
        "<h2>Time</h2>\n<p>a&lt;b: steps 2 to 5, 2.00 s for one; 3.00 cores busy of 4.</p>\n<table>\n<tr><th>stage</th>\
         <th>a&lt;b s</th><th>share</th><th>GFLOP/s</th><th>GB/s</th></tr>\n<tr><td>rollout</td><td>1.50</td>",
        "<h2>Findings of a&lt;b</h2>\n<p>None.</p>\n</body></html>\n",
    ] {
        assert!(page.contains(part), "{part}\nis not in\n{page}");
    }
    // A curve that never changes, and one of a single step's width.
    report.curves = vec![Curve { name: "loss", points: vec![(5, 2.0), (5, 2.0)] }];
    report.samples = vec![Sample { step: 3, prompt: "p".into(), best: (1.0, "b".into()), worst: (0.0, "w".into()) }];
    report.profile = Some(
        serde_json::from_value(json!({"version": 1, "findings": [{
            "id": "tail", "says": "Slow.", "evidence": "E.", "remedy": "r", "steps": [2, 11],
        }]}))
        .unwrap(),
    );
    let page = html(&[report]);
    assert!(page.contains("<dl><dt>model</dt><dd>x&amp;y</dd></dl>"), "{page}");
    assert!(page.contains("points=\"0.0,98.0 0.0,98.0\""), "{page}");
    assert!(page.contains("<li><b>tail</b>, steps 2 to 11: Slow. E. What helps: r.</li>"), "{page}");
    assert!(!page.contains("<p>None.</p>") && page.contains("No profile.json") && !page.contains("<table>"), "{page}");
    let sample = "<h2>What a&lt;b writes, step 3</h2>\n<p>Prompt</p><pre>p</pre>\n<p>Best, reward 1.00</p>\
                  <pre>b</pre>\n<p>Worst, reward 0.000</p><pre>w</pre>\n";
    assert!(page.contains(sample), "{page}");
    assert_eq!(super::super::html::escape("a\tb\n\u{7}\u{9b}&\"<>"), "a\tb\n\u{fffd}\u{fffd}&amp;&quot;&lt;&gt;");
}

#[test]
fn two_runs_have_their_ratio_only_where_both_have_the_stage() {
    let before = Report {
        profile: Some(profile(8.0, 4, &[("rollout", 6.0, 0.0, 0.0), ("update", 2.0, 0.0, 0.0)])),
        ..empty("b")
    };
    let after =
        Report { profile: Some(profile(6.0, 6, &[("rollout", 3.0, 0.0, 0.0), ("idle", 0.0, 0.0, 0.0)])), ..empty("a") };
    let rows = super::super::time::Time::of(&[before.clone(), after.clone()]).rows;
    let cells = |name: &str| rows.iter().find(|row| row[0] == name).unwrap()[1..].join(" ");
    assert_eq!(cells("stage"), "b s share GFLOP/s GB/s a s share GFLOP/s GB/s before ÷ after");
    assert_eq!(cells("rollout"), "1.50 75.0 % – – 0.500 50.0 % – – 3.00 ×");
    assert_eq!(cells("update"), "0.500 25.0 % – – – – – – –");
    assert_eq!(cells("idle"), "– – – – 0.000 0.0 % – – –");
    assert_eq!(cells("in no stage"), "0.000 0.0 % – – 0.500 50.0 % – – 0.00 ×");
    assert_eq!(cells("a step"), "2.00 100.0 % – – 1.00 100.0 % – – 2.00 ×");
    let three = super::super::time::Time::of(&[before.clone(), after, before.clone()]).rows;
    assert_eq!((three[0].len(), three[1].len()), (13, 13), "of three there is no ratio");
    let none = Report { profile: Some(profile(0.0, 0, &[])), ..empty("n") };
    let time = super::super::time::Time::of(&[none.clone(), before]);
    assert_eq!((time.says.len(), time.rows[0].len()), (1, 5), "a profile of no steps is none");
    let none = super::super::time::Time::of(&[none]);
    assert!(none.rows.is_empty() && none.says[0].starts_with("No profile.json says where the time went"));
}

#[test]
fn a_curve_is_thinned_to_means_and_one_value_is_a_curve() {
    let dir = tempfile::tempdir().unwrap();
    let of = |lines: &str| {
        write(dir.path(), "metrics.jsonl", lines);
        let mut run = RunFiles::new(dir.path().to_owned());
        run.refresh();
        curve(&run, "reward").map(|curve| curve.points)
    };
    let line = |step: u64, reward: f64| json!({"step": step, "reward": reward}).to_string() + "\n";
    assert_eq!(of(&line(1, 2.0)), Some(vec![(1, 2.0)]));
    assert_eq!(of("{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":1}\n"), None);
    assert_eq!(
        of(&(line(1, 2.0) + "{\"step\":2,\"reward\":\"NaN\"}\n" + &line(3, 4.0))),
        Some(vec![(1, 2.0), (3, 4.0)])
    );
    let lines = |n: u64| (1..=n).map(|step| line(step, step as f64)).collect::<String>();
    assert_eq!(of(&lines(300)).unwrap().len(), 300);
    let thinned = of(&lines(301)).unwrap();
    assert_eq!((thinned.len(), thinned[0], thinned[1], thinned[150]), (151, (1, 1.5), (3, 3.5), (301, 301.0)));
}

#[test]
fn the_facts_of_a_run_that_generates_say_how() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let config = "model_name_or_path = \"m\"\ndataset_name = \"d\"\nalgorithm = \"grpo\"\nnum_generations = 4\n\
                  max_completion_length = 9\nlearning_rate = 1e-6\nseed = 3\nmax_steps = 5\n";
    write(root, "config.toml", config);
    write(root, "metrics.jsonl", "{\"step\":2}\n");
    let of = |kind: &str| {
        let record = json!({"kind": kind, "threads": 2, "isa": "avx2", "dtype": "f32"});
        write(root, "record.json", &record.to_string());
        let report = Report::read(root).unwrap();
        report.facts.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
    };
    let rest = "learning rate=1e-6; seed=3; machine=2 threads, avx2, f32";
    let train = "command=train; state=stopped; steps=2 of 5; model=m; data=d; algorithm=grpo; completions of a \
                 prompt=4; longest completion=9; ";
    assert_eq!(of("train"), format!("{train}{rest}"));
    assert_eq!(of("sft"), format!("command=sft; state=stopped; steps=2 of 5; model=m; data=d; {rest}"));
    write(root, "config.toml", "seed = 3\n");
    assert!(of("sft").contains("; steps=2; seed=3"), "{}", of("sft"));
}

#[test]
fn alarms_that_hold_and_are_no_notes_are_listed() {
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
fn a_sample_has_the_completions_with_the_most_and_the_least_reward() {
    let group =
        |completions: Value| json!({"step": 3, "prompt": "p", "weights": [1.0, -2.0], "completions": completions});
    let one = |rewards: Value, text: &str| json!({"rewards": rewards, "text": text});
    let found =
        sample(&group(json!([one(json!([1.0, 0.0]), "a"), one(json!([5.0, 3.0]), "b"), one(json!([3.0, null]), "c")])));
    let Sample { step, prompt, best, worst } = found.unwrap();
    assert_eq!((step, prompt.as_str(), best, worst), (3, "p", (3.0, "c".to_owned()), (-1.0, "b".to_owned())));
    let text = |length: usize| "é".repeat(length);
    let cut = |length: usize| sample(&group(json!([one(json!([1.0]), &text(length))]))).unwrap().best.1;
    assert_eq!((cut(600), cut(601)), (text(600), text(600) + " …"));
    assert!(sample(&group(json!([]))).is_none());
    assert!(
        sample(&json!({"step": null, "weights": [], "completions": [one(json!([]), "a")], "prompt": "p"})).is_none()
    );
    // Of the last step three groups, those with the most different rewards.
    let dir = tempfile::tempdir().unwrap();
    let recorded_group = |id: u64| {
        let completion = |place: usize| Completion {
            rewards: vec![Some(place as f64 * id as f64)],
            content: Some("x".into()),
            ..Completion::new(place, vec![1])
        };
        Group {
            id,
            step: Some(6),
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
