//! A chat template prints the date of the run's first start, in every process and at any later time.

use super::*;
use crate::support::runs::{metrics, rollouts};

/// Days in February and December 1970, in seconds since 1970.
const PAST: u64 = 40 * 86_400;
const LATER: u64 = 800 * 86_400;

/// Moves the start of a run into the past. The run then starts again, as if it had been killed before its first
/// checkpoint.
fn begun_in_the_past(root: &Path, command: &str, out: &str, set: &[&str], more: &[&str]) {
    good(root, &arguments(command, out, set));
    let run = root.join(out);
    for name in &["checkpoints", "model"] {
        fs::remove_dir_all(run.join(name)).unwrap();
    }
    first_start_at(&run, PAST);
    good(root, &[&[command, "--resume", out], more].concat());
    assert!(record(&run)["starts"].as_array().unwrap().iter().all(|start| start["prompt_time_s"] == PAST));
}

fn first_start_at(run: &Path, time: u64) {
    let mut record = record(run);
    record["starts"][0]["prompt_time_s"] = time.into();
    write_record(run, &record);
}

/// The year in each recorded prompt, with the step that trained on it.
fn years(root: &Path, run: &str) -> Vec<(u64, String)> {
    let tokenizer = Tokenizer::load(&root.join("model")).unwrap();
    let year = |line: &Value| {
        let ids = line["prompt_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
        let text = tokenizer.decode(&ids.collect::<Vec<_>>(), true).unwrap();
        (line["step"].as_u64().unwrap(), text.chars().filter(char::is_ascii_digit).collect())
    };
    rollouts(&root.join(run)).iter().map(year).collect()
}

#[track_caller]
fn all_of(root: &Path, run: &str, last: u64, expected: &str) {
    let years = years(root, run);
    // A batch of PPO is used for several steps, and is recorded at the first one.
    assert!(!years.is_empty() && years.iter().all(|(step, _)| *step <= last), "{run}: {years:?}");
    assert!(years.iter().all(|(_, year)| year == expected), "{run}: {years:?}");
}

#[test]
fn every_start_of_a_run_renders_the_date_of_the_first_start() {
    let dir = conversations();
    let root = dir.path();
    good(root, &arguments("train", "now", &keys("train", &[])));
    assert!(years(root, "now").iter().all(|(_, year)| **year > *"2023"));
    let workers = ["--distributed", "--workers", "2"];
    for (kind, own, more) in [
        ("grpo", &[][..], &[][..]),
        ("ppo", &["algorithm=ppo", "num_generations=1"], &[]),
        ("lora", &["use_peft=true", "lora_r=2"], &[]),
        ("ahead", &["max_staleness=2", "num_iterations=2"], &[]),
        ("workers", &["max_staleness=1"], &workers),
    ] {
        begun_in_the_past(root, "train", kind, &keys("train", own), more);
        all_of(root, kind, 2, "1970");
        good(root, &[&["train", "--resume", kind, "--set", "max_steps=4"], more].concat());
        all_of(root, kind, 4, "1970");
        good(root, &["verify", kind, "--all"]);
        for at in ["0", "1", "2", "3"] {
            let fork = format!("{kind}-{at}");
            good(root, &["fork", kind, "--at", at, "--out", &fork]);
            // A fork ends at the last step that it shares with the original.
            all_of(root, &fork, if at < "3" { 2 } else { 4 }, "1970");
        }
    }
}

#[test]
fn supervised_runs_keep_the_date_too() {
    let dir = conversations();
    let root = dir.path();
    for (kind, command, own) in KINDS.into_iter().filter(|(_, command, _)| *command != "train") {
        // The learning rate schedule depends on the number of steps, so it is constant here.
        let set = [&keys(command, own)[..], &["lr_scheduler_type=constant"]].concat();
        let longer = [&set[..], &["max_steps=4"]].concat();
        begun_in_the_past(root, command, "whole", &longer, &[]);
        begun_in_the_past(root, command, "resumed", &set, &[]);
        good(root, &[command, "--resume", "resumed", "--set", "max_steps=4"]);
        good(root, &arguments(command, "now", &longer));
        let of = |run: &str| {
            let lines = metrics(&root.join(run)).into_iter();
            lines.filter(|line| !line.contains("eval_")).collect::<Vec<_>>()
        };
        assert_eq!(of("whole"), of("resumed"), "{kind}");
        assert_ne!(of("whole"), of("now"), "{kind}: the year must affect the weights");
        for run in &["whole", "resumed", "now"] {
            fs::remove_dir_all(root.join(run)).unwrap();
        }
    }
}

/// Each start by an older version rendered the date of that start.
#[test]
fn a_run_of_an_older_version_is_verified_with_the_dates_of_its_starts() {
    let dir = conversations();
    let (root, run) = (dir.path(), dir.path().join("run"));
    begun_in_the_past(root, "train", "run", &keys("train", &[]), &[]);
    first_start_at(&run, LATER);
    good(root, &["train", "--resume", "run", "--set", "max_steps=4"]);
    let mut older = record(&run);
    let starts = older["starts"].as_array_mut().unwrap();
    starts.remove(0);
    for (start, time) in starts.iter_mut().zip([PAST, LATER]) {
        start["time_s"] = time.into();
    }
    assert_eq!(starts.len(), 2);
    write_record(&run, &older);
    as_older(&run);
    let years_of = |root: &Path, run: &str| years(root, run).into_iter().collect::<BTreeSet<_>>();
    let expected_until = |last: u64| -> BTreeSet<(u64, String)> {
        let all = [(1, "1970"), (2, "1970"), (3, "1972"), (4, "1972")];
        all.into_iter().filter(|(step, _)| *step <= last).map(|(step, year)| (step, year.to_owned())).collect()
    };
    assert_eq!(years_of(root, "run"), expected_until(4));
    good(root, &["verify", "run", "--all"]);
    // In the shared steps, a fork has the original's prompts.
    for at in 1..4 {
        let out = at.to_string();
        good(root, &["fork", "run", "--at", &out, "--out", &out]);
        let common = years_of(root, &out).into_iter().filter(|(step, _)| *step <= at);
        assert_eq!(common.collect::<BTreeSet<_>>(), expected_until(at), "{at}");
    }
}

#[test]
fn an_evaluation_of_a_run_has_the_date_of_the_run() {
    let dir = conversations();
    let root = dir.path();
    begun_in_the_past(root, "train", "run", &keys("train", &[]), &[]);
    let short = ["--dataset", "e.jsonl", "--max-completion-length", "4"];
    let first_prompt = |arguments: &[&str]| {
        let printed = good(root, &[&["eval"], arguments, &short].concat()).err;
        printed.lines().find(|line| line.starts_with("first prompt")).unwrap().to_owned()
    };
    for source in ["run", "run/checkpoints/step-000002"] {
        let first = first_prompt(&[source]);
        assert!(first.contains("1970"), "{source}: {first}");
    }
    let of_model = first_prompt(&["--model", "run/model", "--reward", "unique_chars"]);
    assert!(of_model.contains("\"20"), "{of_model}");
}
