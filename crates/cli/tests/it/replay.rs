//! Replaying recorded rollouts gives the same bits. Other tests replay rollouts from other programs, and files that
//! must be refused.

use crate::support::runs::{arguments, directory, files, good, metrics, of_lines, rollouts, same};
use crate::support::{lockstep, refused};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The arguments of a run that trains on `file`; like [`arguments`], but without data and rewards.
fn replay<'a>(file: &'a str, out: &'a str, set: &[&'a str]) -> Vec<&'a str> {
    let base = ["num_generations=2", "max_completion_length=6", "per_device_train_batch_size=4", "max_steps=12"];
    let more = ["learning_rate=0.01", "logging_steps=3", "save_steps=2"];
    let mut all = vec!["train", "--model", "model", "--replay", file, "--out", out];
    base.iter().chain(&more).chain(set).for_each(|pair| all.extend(["--set", *pair]));
    all
}

fn lines(run: &Path) -> Vec<Value> {
    rollouts(run)
}

fn write(root: &Path, name: &str, lines: &[Value]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(root.join(name), text).unwrap();
}

/// Weights, moments and states of all checkpoints, and the final model, without values that only a run with sampling
/// has (a replay draws no random numbers).
fn weights(run: &Path) -> Vec<(String, Vec<u8>)> {
    files(run).into_iter().filter(|(name, _)| name.ends_with(".safetensors")).collect()
}

/// The recorded run uses each batch several times, with a reference model and two rewards, one of which sometimes gives
/// no score.
#[test]
fn a_replay_of_a_recorded_run_has_the_same_bits() {
    let dir = directory();
    let root = dir.path();
    let set = ["num_iterations=2", "steps_per_generation=2", "beta=0.04"];
    let own = ["record_rollouts=true", "reward_funcs=[\"unique_chars\", \"length:3\"]", "reward_weights=[1, 0.5]"];
    good(root, &arguments("train", "recorded", &[&set[..], &own].concat()));
    let found = lines(&root.join("recorded"));
    assert_eq!(found.len(), 24, "12 steps on 3 generations of 8 completions");
    assert_eq!(found[0]["reward_names"], json!(["unique_chars", "length"]));
    assert!(found[0]["ref_logprobs"].is_array() && found[8]["step"] == 5, "{}", found[8]);

    let weighted = [&set[..], &["reward_weights=[1, 0.5]"]].concat();
    good(root, &replay("recorded/rollouts.bin", "replayed", &weighted));
    assert_eq!(weights(&root.join("recorded")), weights(&root.join("replayed")));
    // Without ref_logprobs, the reference model is loaded and evaluated. Without logprobs, the policy computes them if
    // it is on-policy.
    let strip = |key: &str, name: &str| {
        let stripped: Vec<Value> = found
            .iter()
            .cloned()
            .map(|mut line| {
                line.as_object_mut().unwrap().remove(key).unwrap();
                line
            })
            .collect();
        write(root, name, &stripped);
    };
    for key in ["ref_logprobs", "logprobs"] {
        strip(key, "stripped.jsonl");
        good(root, &replay("stripped.jsonl", key, &weighted));
        assert_eq!(weights(&root.join("recorded")), weights(&root.join(key)), "{key}");
    }
    // A replay does not evaluate, does not count epochs, and does not compare tokens with the sampler's, so these
    // metrics differ.
    const OTHERS: [&str; 3] = ["epoch", "sampling/logp_compared_tokens", "sampling/max_logp_difference"];
    let logged = |run: &str| -> Vec<Value> {
        let parsed = metrics(&root.join(run)).into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
        let steps = parsed.filter(|line| line.get("loss").is_some());
        steps
            .map(|line| {
                line.as_object()
                    .unwrap()
                    .iter()
                    .filter(|(k, _)| !OTHERS.contains(&k.as_str()))
                    .map(|(k, v)| json!([k, v]))
                    .collect()
            })
            .collect()
    };
    assert_eq!(logged("recorded"), logged("replayed"));
    // Other reward weights give other results.
    good(root, &replay("recorded/rollouts.bin", "other", &set));
    assert_ne!(weights(&root.join("recorded")), weights(&root.join("other")));
}

/// PPO shuffles its mini-batches in each pass over each generation; a replay must draw the same permutations.
#[test]
fn a_replay_of_a_recorded_ppo_run_has_the_same_bits() {
    let dir = directory();
    let root = dir.path();
    let set = ["algorithm=ppo", "num_mini_batches=2", "num_ppo_epochs=2", "adap_kl_ctrl=true", "logging_steps=1"];
    good(root, &arguments("train", "recorded", &[&set[..], &["record_rollouts=true"]].concat()));
    good(root, &replay("recorded/rollouts.bin", "replayed", &set));
    let (recorded, replayed) = (weights(&root.join("recorded")), weights(&root.join("replayed")));
    assert!(recorded.iter().any(|(name, _)| name.contains("value_model/")));
    let differing: Vec<_> = recorded.iter().zip(&replayed).filter(|(a, b)| a != b).map(|(a, _)| &a.0).collect();
    assert!(differing.is_empty() && recorded.len() == replayed.len(), "{differing:?}");
}

#[test]
fn groups_on_one_line_equal_one_line_per_completion() {
    let dir = directory();
    let root = dir.path();
    let one = |ids: &[u32], reward: f64| json!({"prompt_ids": [1, 2], "completion_ids": ids, "rewards": reward});
    let pairs = [one(&[3, 4, 0], 1.0), one(&[5], 0.0), one(&[6, 6], -1.0), one(&[], 0.5)];
    write(root, "lines.jsonl", &pairs);
    let group = |a: &Value, b: &Value| {
        let both = |key: &str| json!([a[key], b[key]]);
        json!({"prompt_ids": [1, 2], "completion_ids": both("completion_ids"), "rewards": both("rewards")})
    };
    write(root, "groups.jsonl", &[group(&pairs[0], &pairs[1]), group(&pairs[2], &pairs[3])]);
    // With four completions and without max_steps, there is one pass of one step.
    for name in ["lines", "groups"] {
        let file = format!("{name}.jsonl");
        good(root, &replay(&file, name, &["max_steps=-1", "record_rollouts=true"]));
        let found = lines(&root.join(name));
        assert_eq!(found.len(), 4);
        assert_eq!((&found[1]["truncated"], &found[0]["truncated"]), (&json!(true), &json!(false)));
        assert!(root.join(name).join("checkpoints/step-000001").is_dir());
    }
    assert_eq!(weights(&root.join("lines")), weights(&root.join("groups")));
}

/// Completions of lengths 1, 2, 4 and 6, the last two truncated, so that the metrics can be computed by hand.
#[test]
fn completion_metrics_match_values_computed_by_hand() {
    let dir = directory();
    let root = dir.path();
    let line = |ids: &[u32], truncated: bool| {
        let rewards = ids.len();
        json!({"prompt_ids": [5, 6], "completion_ids": ids, "rewards": rewards, "truncated": truncated})
    };
    let group =
        [line(&[7], false), line(&[7, 8], false), line(&[7, 8, 9, 10], true), line(&[7, 8, 9, 10, 11, 12], true)];
    write(root, "f.jsonl", &group);
    good(root, &replay("f.jsonl", "run", &["num_generations=4", "max_steps=1", "logging_steps=1"]));
    let expected = [
        ("mean_length", 3.25),
        ("min_length", 1.0),
        ("max_length", 6.0),
        ("mean_terminated_length", 1.5),
        ("min_terminated_length", 1.0),
        ("max_terminated_length", 2.0),
        ("clipped_ratio", 0.5),
    ];
    for (name, value) in expected {
        assert_eq!(of_lines(&root.join("run"), &format!("completions/{name}")), [value], "{name}");
    }
}

/// A file may have reference log-probabilities for some rollouts: the reference model computes only the others.
#[test]
fn reference_log_probabilities_in_a_file_are_used() {
    let dir = directory();
    let root = dir.path();
    let line = |ids: &[u32], given: Option<[f32; 2]>| {
        let mut line = json!({"prompt_ids": [5, 6], "completion_ids": ids, "rewards": ids[1]});
        given.map(|given| line.as_object_mut().unwrap().insert("ref_logprobs".into(), json!(given)));
        line
    };
    let given = [-9.25f32, -8.5];
    write(
        root,
        "f.jsonl",
        &[line(&[7, 8], Some(given)), line(&[7, 9], None), line(&[7, 8], None), line(&[9, 9], None)],
    );
    let set = ["beta=0.5", "max_steps=1", "logging_steps=1", "record_rollouts=true"];
    good(root, &replay("f.jsonl", "run", &set));
    let found: Vec<Value> = lines(&root.join("run")).into_iter().map(|line| line["ref_logprobs"].clone()).collect();
    let of = |given: [f32; 2]| json!(given);
    assert_eq!(found.iter().filter(|found| **found == of(given)).count(), 1, "{found:?}");
    let asked: Vec<f64> = found.iter().filter(|found| **found != of(given)).map(|f| f[0].as_f64().unwrap()).collect();
    assert!(asked.len() == 3 && asked.iter().all(|&logp| (-7.0..0.0).contains(&logp)), "{found:?}");
}

/// π_old / π_sampler is exactly 1 if the weights that replay the rollouts also sampled them; otherwise the ratio is
/// measured and clipped.
#[test]
fn stale_rollouts_are_corrected_by_importance_sampling() {
    let dir = directory();
    let root = dir.path();
    let record = ["record_rollouts=true", "learning_rate=0.03"];
    good(root, &arguments("train", "recorded", &record));
    let file = "recorded/rollouts.bin";
    let (rate, on) = ("learning_rate=0.03", "vllm_importance_sampling_correction=true");
    let token = "vllm_importance_sampling_mode=token_truncate";
    let ratios = |run: &str| -> Vec<[f64; 4]> {
        let lines = metrics(&root.join(run)).into_iter().map(|l| serde_json::from_str::<Value>(&l).unwrap());
        let number = |l: &Value, name: &str| l[format!("sampling/importance_sampling_ratio/{name}")].as_f64();
        let of = |l: Value| Some(["min", "mean", "max", "bounded"].map(|name| number(&l, name)).map(|x| x.unwrap()));
        lines.filter(|l| l.get("loss").is_some()).filter_map(of).collect()
    };
    good(root, &replay(file, "plain", &[rate]));
    for (run, mode) in [("tokens", token), ("sequences", "vllm_importance_sampling_mode=sequence_mask")] {
        good(root, &replay(file, run, &[rate, on, mode]));
        assert_eq!(weights(&root.join("plain")), weights(&root.join(run)), "{run}");
        assert_eq!(ratios(run), [[1.0, 1.0, 1.0, 0.0]; 4], "{run}");
    }

    // The trained model replays the file: its weights, and so its log-probabilities, differ.
    let mut unversioned = lines(&root.join("recorded"));
    for line in &mut unversioned {
        line.as_object_mut().unwrap().remove("versions").unwrap();
    }
    write(root, "unversioned.jsonl", &unversioned);
    let stale = |file: &'static str, out: &'static str, set: &[&'static str]| {
        let mut arguments = replay(file, out, set);
        let model = arguments.iter().position(|a| *a == "model").unwrap();
        arguments[model] = "recorded/model";
        good(root, &arguments);
        weights(&root.join(out))
    };
    let [plain, free] = [stale(file, "stale", &[rate]), stale("unversioned.jsonl", "free", &[rate, on, token])];
    let bounded = stale(file, "bounded", &[rate, on, token, "vllm_importance_sampling_clip_max=1.01"]);
    assert!(plain != free && free != bounded);
    let [min, _, max, _] = ratios("free")[0];
    assert!(min < 1.0 && max > 1.01, "{min} {max}");
    let [_, _, raw, share] = ratios("bounded")[0];
    assert!(raw > 1.01 && share > 0.0, "the ratio must be logged before clipping: {raw} {share}");
}

#[test]
fn a_replay_resumes_exactly() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "recorded", &["record_rollouts=true"]));
    let set = ["record_rollouts=true", "num_iterations=2"];
    good(root, &replay("recorded/rollouts.bin", "whole", &set));
    good(root, &replay("recorded/rollouts.bin", "cut", &set));
    // Creates the state of a run that was killed after step 4, with logs of later steps.
    for step in [6, 8, 10, 12] {
        fs::remove_dir_all(root.join(format!("cut/checkpoints/step-{step:06}"))).unwrap();
    }
    fs::remove_dir_all(root.join("cut/model")).unwrap();
    let output = good(root, &["train", "--resume", "cut"]);
    assert!(output.err.contains("resuming after step 4"), "{}", output.err);
    same(&root.join("whole"), &root.join("cut"));
    // A resume is refused if the replayed file has changed.
    fs::write(root.join("recorded/rollouts.bin"), "{}").unwrap();
    assert_eq!(lockstep(root, &["train", "--resume", "cut"]).code, Some(2));
}

#[test]
fn invalid_rollout_files_are_refused() {
    let dir = directory();
    let root = dir.path();
    let line = |ids: &[u32]| json!({"prompt_ids": [1, 2], "completion_ids": ids, "rewards": 1});
    let refuse = |content: &[Value], set: &[&str], words: &[&str]| {
        write(root, "bad.jsonl", content);
        refused(root, &replay("bad.jsonl", "run", set), words);
    };
    refused(root, &replay("none.jsonl", "run", &[]), &["none.jsonl", "cannot read"]);
    refuse(&[], &[], &["bad.jsonl is empty"]);
    refuse(&[line(&[1]), json!({"prompt_ids": [1, 2]})], &[], &["bad.jsonl, line 2", "`completion_ids` is missing"]);
    refuse(&[line(&[1]), line(&[40])], &[], &["bad.jsonl, line 2", "completion_ids[0] = 40", "vocabulary of 40"]);
    refuse(&[line(&[1])], &[], &["bad.jsonl, line 1", "last group has 1 completion,", "num_generations is 2"]);
    let other = json!({"prompt_ids": [7], "completion_ids": [1], "rewards": 1});
    refuse(&[line(&[1]), other], &[], &["line 2", "a new prompt begins", "num_generations is 2"]);
    let three = json!({"prompt_ids": [1], "completion_ids": [[1], [2], [3]], "rewards": [1, 2, 3]});
    refuse(&[three], &[], &["line 1", "3 completions", "set num_generations = 3"]);
    let short = json!({"prompt_ids": [1, 2], "completion_ids": [1, 2], "rewards": 1, "logprobs": [-1]});
    refuse(&[short], &[], &["line 1", "`logprobs` must have as many elements as `completion_ids` (2), got 1"]);
    refuse(&[line(&[1; 7])], &[], &["line 1", "7 tokens", "max_completion_length = 6"]);
    let two = json!({"prompt_ids": [1, 2], "completion_ids": [1], "rewards": [1, null]});
    refuse(&[line(&[1]), two.clone()], &[], &["line 2", "`rewards` has 2 numbers", "have 1"]);
    refuse(&[two.clone(), two], &["reward_weights=[1]"], &["must have one weight per reward: it has 1", "2 rewards"]);
    refuse(&[line(&[1]), line(&[2])], &[], &["one step takes 2 rows", "has only 1"]);
    fs::write(root.join("bad.jsonl"), "{\"prompt_ids\": [1], \n").unwrap();
    refused(root, &replay("bad.jsonl", "run", &[]), &["bad.jsonl, line 1", "broken JSON"]);
    fs::write(root.join("bad.jsonl"), b"{\"prompt_ids\": \xff}").unwrap();
    refused(root, &replay("bad.jsonl", "run", &[]), &["bad.jsonl, line 1"]);
    write(root, "good.jsonl", &[line(&[1]), line(&[2]), line(&[3]), line(&[4])]);
    refused(root, &replay("good.jsonl", "run", &["eval_dataset_name=e.jsonl"]), &["no reward"]);
    refused(root, &["sft", "--model", "model", "--set", "replay=good.jsonl", "--out", "run"], &["`replay`", "train"]);
    good(root, &replay("good.jsonl", "run", &["max_steps=1"]));
}

/// A run's record is printed as JSON lines, which can be replayed like the file itself.
#[test]
fn recorded_rollouts_are_printed_as_json_lines() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", &["record_rollouts=true", "max_steps=4"]));
    let shown = |more: &[&str]| good(root, &[&["rollouts", "run"], more].concat()).out;
    let parsed = |text: String| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    let all = parsed(shown(&[]));
    assert_eq!(all, rollouts(&root.join("run")));
    assert_eq!((all.len(), &all[0]["versions"][0][0], &all[15]["versions"][0][0]), (16, &json!(0), &json!(3)));
    let of_group = |group: u64| all.iter().filter(|line| line["group"] == group).cloned().collect::<Vec<_>>();
    assert_eq!(parsed(shown(&["--group", "5"])), of_group(5));
    let index = parsed(shown(&["--index"]));
    assert_eq!(index.len(), 8);
    for entry in &index {
        let own = of_group(entry["group"].as_u64().unwrap());
        let rewards: Vec<f64> = own.iter().map(|line| line["rewards"][0].as_f64().unwrap()).collect();
        assert_eq!(entry["reward"], (rewards[0] + rewards[1]) / 2.0);
        assert_eq!((&entry["completions"], &entry["step"]), (&json!(2), &own[0]["step"]));
    }
    fs::write(root.join("lines.jsonl"), shown(&[])).unwrap();
    for (file, out) in [("lines.jsonl", "of_lines"), ("run/rollouts.bin", "of_file")] {
        good(root, &replay(file, out, &["max_steps=4"]));
    }
    assert_eq!(weights(&root.join("of_lines")), weights(&root.join("of_file")));

    refused(root, &["rollouts", "run", "--group", "99"], &["has no group 99", "--index"]);
    refused(root, &["rollouts", "model"], &["model is not a run"]);
    refused(root, &["rollouts", "of_file"], &["rollouts.bin: no such file", "record_rollouts = true"]);
    let file = root.join("run/rollouts.bin");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    refused(root, &["rollouts", "run", "--group", "7"], &["rollouts.bin, the record at byte", "checksum"]);
    refused(
        root,
        &replay("run/rollouts.bin", "never", &["max_steps=4"]),
        &["rollouts.bin: record 7, at byte", "checksum"],
    );
}

/// A generation batch with remaining steps is a file of the checkpoint, with its own checksums.
#[test]
fn a_damaged_generation_batch_is_refused() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", &["num_iterations=4", "max_steps=6"]));
    let file = root.join("run/checkpoints/step-000006/generation_batch.bin");
    assert!(!root.join("run/checkpoints/step-000004/generation_batch.bin").exists(), "used up");
    assert!(!root.join("run/model/generation_batch.bin").exists(), "a final model must not have a generation batch");
    let whole = fs::read(&file).unwrap();
    // Removes the checkpoint's list of files, which would report the file first.
    fs::remove_file(root.join("run/checkpoints/step-000006/files.json")).unwrap();
    let resume = ["train", "--resume", "run", "--set", "max_steps=8"];
    for at in [0, whole.len() / 2, whole.len() - 1] {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        fs::write(&file, &flipped).unwrap();
        refused(root, &resume, &["generation_batch.bin", "damaged", "checkpoints/step-000004"]);
    }
    let first = 16 + u32::from_le_bytes(whole[4..8].try_into().unwrap()) as usize;
    fs::write(&file, &whole[..first]).unwrap();
    refused(root, &resume, &["has 2 samples, but run_state.json records 4"]);
    fs::remove_file(&file).unwrap();
    refused(root, &resume, &["generation_batch.bin"]);
    fs::write(&file, &whole).unwrap();
    good(root, &resume);
}
