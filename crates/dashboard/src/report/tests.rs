//! Reports of runs that these tests write: their numbers, and text that must not become markup.

use super::*;
use crate::groups::tests::recorded;
use lockstep::wire::{Completion, Group};
use serde_json::json;
use std::fs;

/// A run of forty logged steps: the reward rises from 0 to `top`, and decoding takes `decode` seconds.
fn run(dir: &Path, name: &str, top: f64, decode: f64) -> Report {
    let root = dir.join(name);
    fs::create_dir(&root).unwrap();
    fs::write(root.join("config.toml"), "model_name_or_path = \"<b>m</b>\"\nmax_steps = 40\nseed = 7\n").unwrap();
    let line = |step: u64| json!({"step": step, "reward": top * step as f64 / 40.0, "time_s": 1.0}).to_string() + "\n";
    let alarm = json!({"step": 40, "alarm": {"id": "kl_blow_up", "since": 39, "evidence": "a | b", "remedy": "c"}});
    let over = json!({"step": 40, "alarm": {"id": "truncated", "since": 2, "until": 9, "evidence": "", "remedy": ""}});
    let metrics = (1..=40).map(line).collect::<String>() + &format!("{alarm}\n{over}\n");
    fs::write(root.join("metrics.jsonl"), metrics).unwrap();
    let stage =
        |path: &str, seconds: f64, bytes: f64| json!({"path": path, "seconds": seconds, "flops": 0.0, "bytes": bytes});
    let profile = json!({
        "version": 1,
        "measured": {
            "first_step": 2, "last_step": 11, "steps": 10, "seconds": decode + 5.0, "cpu_s": 12.0, "waited_s": 0.5,
            "threads": 2, "cores": 2, "ceilings": {"flops_per_s": 2e11, "bytes_per_s": 3e10},
            "stages": [
                stage("rollout", decode, 4e10), stage("rollout/decode", decode, 0.0), stage("update", 4.0, 0.0),
            ],
        },
        "findings": [{
            "id": "long_tail", "says": "Slow.", "evidence": "<i>few</i> of many.", "remedy": "less", "steps": [2, 11],
        }],
    });
    fs::write(root.join("profile.json"), profile.to_string()).unwrap();
    Report::read(&root).unwrap()
}

/// Replaces repeated spaces by one.
fn unaligned(text: &str) -> String {
    let mut text = text.replace("  ", " ");
    while text.contains("  ") {
        text = text.replace("  ", " ");
    }
    text
}

#[test]
fn a_report_shows_the_numbers_in_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), "a", 1.0, 5.0);
    let text = unaligned(&markdown(std::slice::from_ref(&report)));
    for part in [
        "# a\n\nLearned: reward went from 0.025 to 0.",
        "- steps: 40 of 40\n",
        "- **alarm** kl_blow_up since step 39: a | b. What helps: c",
        "| reward | 0.025 | 1.00 |",
        "a: steps 2 to 11, 1.00 s per step; 1.20 of 2 cores busy, 0.500 s waited for a core; the machine reaches ",
        "; the machine reaches 200 GFLOP/s",
        "| rollout | 0.500 | 50.0 % | – | 8.00 |",
        "| \u{2003}decode | 0.500 | 50.0 % | – | – |",
        "| in no stage | 0.100 | 10.0 % | – | – |",
        "| a step | 1.00 | 100.0 % | – | – |",
        "- **long_tail** (steps 2 to 11): Slow. <i>few</i> of many. What helps: less.",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("truncated"), "ended alarms must not be listed");
}

#[test]
fn samples_come_from_the_last_step_and_tokens_are_joined() {
    let dir = tempfile::tempdir().unwrap();
    let group = |step: u64, text: &str| {
        let completion = |place: usize| Completion {
            rewards: vec![Some(place as f64)],
            content: Some(format!("{text} {place}").into()),
            ..Completion::new(place, vec![1, 2])
        };
        Group {
            group: lockstep::wire::GroupId(step),
            step: Some(Step(step)),
            prompt: Some("asked".into()),
            reward_names: vec!["r".into()],
            reward_weights: vec![2.0],
            completions: vec![completion(0), completion(1)],
            ..Group::default()
        }
    };
    fs::write(dir.path().join("config.toml"), "").unwrap();
    recorded(dir.path(), [group(1, "early"), group(2, "late")]);
    let found = Report::read(dir.path()).unwrap().samples;
    let [one] = &found[..] else { panic!("{} samples", found.len()) };
    assert_eq!((one.step.0, one.prompt.as_str()), (2, "asked"));
    assert_eq!((&one.best, &one.worst), (&(2.0, "late 1".to_owned()), &(0.0, "late 0".to_owned())));

    let tokens = json!({"step": 3, "prompt": "p", "weights": [1.0], "completions": [
        {"rewards": [0.5], "text": null, "pieces": ["to", "kens"]},
    ]});
    assert_eq!(sample(&tokens).unwrap().best, (0.5, "tokens".to_owned()));
}

#[test]
fn two_runs_are_shown_side_by_side_with_ratios() {
    let dir = tempfile::tempdir().unwrap();
    let reports = [run(dir.path(), "before", 0.5, 5.0), run(dir.path(), "after", 1.0, 2.0)];
    let text = unaligned(&markdown(&reports));
    assert!(text.contains("| reward | 0.013 | 0.500 | 0.025 | 1.00 |"), "{text}");
    assert!(text.contains("| rollout | 0.500 | 50.0 % | – | 8.00 | 0.200 | 28.6 % | – | 20.0 | 2.50 × |"), "{text}");
    assert!(text.contains("| a step | 1.00 | 100.0 % | – | – | 0.700 | 100.0 % | – | – | 1.43 × |"), "{text}");
    assert!(text.contains("## What differs\n\nNo key of their configurations.\n"), "{text}");
    let page = html(&reports);
    assert_eq!((page.matches("<polyline").count(), page.matches("<figure>").count()), (2, 1));
    assert!(page.contains("<td>2.50 ×</td>"), "{page}");
}

/// A row: the configurations of two runs, and the expected rows of the table of differences.
#[test]
fn only_differing_keys_of_two_runs_are_listed() {
    let rows: &[(&str, &str, &[&str])] = &[
        ("seed = 1", "seed = 1", &[]),
        ("seed = 1", "seed = 2", &["seed 1 2"]),
        ("seed = 1\nbeta = 0.0", "seed = 1\nbeta = 0.1", &["beta 0.0 0.1"]),
        ("seed = 1\nbeta = 0.0", "seed = 2\nbeta = 0.1", &["beta 0.0 0.1", "seed 1 2"]),
        ("output_dir = \"a\"", "output_dir = \"b\"", &[]),
        ("learning_rate = 1e-6", "learning_rate = 1e-5", &["learning_rate 1e-6 1e-5"]),
        ("algorithm = \"grpo\"", "algorithm = \"ppo\"", &["algorithm grpo ppo"]),
        ("use_peft = true", "use_peft = false", &["use_peft true false"]),
        ("reward_weights = [1.0]", "reward_weights = [1.0, 2.0]", &["reward_weights [1.0] [1.0,2.0]"]),
        ("reward_funcs = [\"math\"]", "reward_funcs = [\"math\"]", &[]),
        ("seed = 1", "seed = 1\nvocab = 3", &["vocab – 3"]),
        ("seed = 1\nold = \"x\"", "seed = 1", &["old x –"]),
        ("", "seed = 1", &["seed – 1"]),
        ("", "", &[]),
        ("dataset_name = \"a b\"", "dataset_name = \"a  b\"", &["dataset_name a b a b"]),
        ("model_name_or_path = \"<b>\"", "model_name_or_path = \"c\"", &["model_name_or_path <b> c"]),
        ("max_steps = 4", "max_steps = 8", &["steps 1 of 4 1 of 8", "max_steps 4 8"]),
        ("max_steps = -1", "max_steps = -1", &[]),
        ("dtype = \"f32\"", "dtype = \"bf16\"", &["dtype f32 bf16"]),
        (
            "sampling_profiles = { a = { temperature = 1.0 } }",
            "sampling_profiles = {}",
            &["sampling_profiles {\"a\":{\"temperature\":1.0}} {}"],
        ),
    ];
    for (one, other, expected) in rows {
        let dir = tempfile::tempdir().unwrap();
        let reports = [("a", one), ("b", other)].map(|(name, config)| {
            let root = dir.path().join(name);
            fs::create_dir(&root).unwrap();
            fs::write(root.join("config.toml"), format!("{config}\n")).unwrap();
            // The run has only one logged line.
            fs::write(root.join("metrics.jsonl"), "{\"step\":1,\"reward\":0.5}\n").unwrap();
            Report::read(&root).unwrap()
        });
        let found: Vec<String> = differences(&reports)[1..].iter().map(|row| row.join(" ")).collect();
        let found: Vec<String> = found.iter().map(|row| unaligned(row)).collect();
        assert_eq!(found, *expected, "{one:?} {other:?}");
        let (text, page) = (unaligned(&markdown(&reports)), html(&reports));
        assert_eq!(text.contains("No key of their configurations."), expected.is_empty(), "{text}");
        assert_eq!(page.contains("No key of their configurations."), expected.is_empty(), "{page}");
        // The metrics of a run with only one logged line are shown.
        assert!(text.contains("| reward | 0.500 | 0.500 | 0.500 | 0.500 |"), "{text}");
        assert_eq!(page.matches("<polyline").count(), 2, "{page}");
        // The report of a single run lists its keys as facts.
        let alone = markdown(&reports[..1]);
        assert!(alone.contains("- state: stopped") && !alone.contains("What differs"), "{alone}");
    }
}

#[test]
fn text_from_a_run_is_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = run(dir.path(), "<script>alert(1)</script>".replace('/', "_").as_str(), 1.0, 5.0);
    let bad = "<img src=x onerror=alert(1)>\u{1b}[31m\"".to_owned();
    report.samples = vec![Sample { step: Step(3), prompt: bad.clone(), best: (1.0, bad.clone()), worst: (0.0, bad) }];
    let page = html(&[report]);
    for tag in ["<script", "<img", "<i>", "<b>m", "\u{1b}"] {
        assert!(!page.contains(tag), "{tag}");
    }
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"));
    // The page loads neither scripts nor other files.
    assert!(page.contains("default-src 'none'") && !page.contains("://"), "{page}");
}

#[test]
fn other_directories_are_refused_and_a_missing_profile_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let error = Report::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("not a run's directory"), "{error}");
    fs::write(dir.path().join("config.toml"), "seed = 1\n").unwrap();
    let text = markdown(&[Report::read(dir.path()).unwrap()]);
    assert!(text.contains("Too early to tell") && text.contains("No profile.json"), "{text}");
}

mod exact;
