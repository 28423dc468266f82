//! The lineage that a run records for its weights, and the settings that affect the lineage. Recording entropies
//! changes neither the lineage nor a bit.

use crate::support::runs::{arguments, directory, good, rollouts};
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// Each generation is used for two steps.
const SET: &[&str] =
    &["record_rollouts=true", "num_iterations=2", "eval_strategy=no", "log_completions=false", "save_steps=1"];

/// The lineage of the weights of each recorded generation batch, by the batch's first step.
fn lineages(run: &Path) -> Vec<(u64, String)> {
    let mut found: Vec<(u64, String)> = rollouts(run)
        .iter()
        .map(|line| (line["step"].as_u64().unwrap(), line["lineage"].as_str().unwrap().to_owned()))
        .collect();
    found.dedup();
    found
}

fn state_file(run: &Path, step: u64) -> std::path::PathBuf {
    run.join(format!("checkpoints/step-{step:06}/run_state.json"))
}

fn state(run: &Path, step: u64) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(state_file(run, step)).unwrap()).unwrap()
}

/// Resumes a copy of the run `whole` after the step, and returns the output.
fn resumed(root: &Path, out: &str, step: u64, set: &[&str]) -> String {
    let copied = std::process::Command::new("cp").args(["-r", "whole", out]).current_dir(root).status().unwrap();
    assert!(copied.success());
    let checkpoint = format!("{out}/checkpoints/step-{step:06}");
    let mut all = vec!["train", "--resume", &checkpoint];
    for pair in set {
        all.extend(["--set", *pair]);
    }
    good(root, &all).err
}

#[test]
fn a_lineage_depends_on_model_data_settings_and_batches() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "whole", SET));
    let whole = lineages(&root.join("whole"));
    assert_eq!(whole.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 3, 5, 7, 9, 11]);
    let mut distinct: Vec<&String> = whole.iter().map(|(_, lineage)| lineage).collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 6, "{whole:?}");
    // The checkpoint of step 4 stores the lineage of the weights that sample for step 5.
    assert_eq!(state(&root.join("whole"), 4)["task"]["lineage"], whole[2].1.as_str());

    // The lineage does not depend on paths, names, or settings that change no bit.
    fs::create_dir(root.join("elsewhere")).unwrap();
    for file in ["model", "d.jsonl"] {
        fs::rename(root.join(file), root.join("elsewhere").join(file)).unwrap();
    }
    let moved = ["model_name_or_path=elsewhere/model", "dataset_name=elsewhere/d.jsonl", "run_name=other"];
    let machine =
        ["threads=2", "max_tokens_per_micro_batch=24", "packing=false", "logging_steps=2", "save_total_limit=2"];
    let set = [SET, &moved, &machine].concat();
    let moved: Vec<&str> = arguments("train", "moved", &set)
        .into_iter()
        .map(|a| if a == "model" { "elsewhere/model" } else { a })
        .collect();
    good(root, &moved);
    assert_eq!(lineages(&root.join("moved")), whole);
    for file in ["model", "d.jsonl"] {
        fs::rename(root.join("elsewhere").join(file), root.join(file)).unwrap();
    }

    // Keys that affect the bits change the lineage from the beginning.
    for other in ["learning_rate=0.02", "temperature=0.9", "max_samples=9", "seed=7"] {
        good(root, &arguments("train", other, &[SET, &["max_steps=1", other]].concat()));
        let found = lineages(&root.join(other));
        assert!(found[0].0 == 1 && found[0].1 != whole[0].1, "{other}");
    }
}

#[test]
fn a_resumed_run_has_the_lineage_of_an_uninterrupted_run() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "whole", SET));
    let whole = lineages(&root.join("whole"));
    resumed(root, "again", 6, &[]);
    assert_eq!(lineages(&root.join("again")), whole);
    // The run is resumed in the middle of a batch.
    resumed(root, "within", 5, &[]);
    assert_eq!(lineages(&root.join("within")), whole);
    // The checkpoint's lineage stays the same; after a step with different settings, the lineage differs.
    resumed(root, "changed", 4, &["learning_rate=0.02"]);
    let changed = lineages(&root.join("changed"));
    assert_eq!(changed[..3], whole[..3]);
    let parted = changed.iter().zip(&whole).skip(3).all(|((a, x), (b, y))| a == b && x != y);
    assert!(parted && changed.len() == 6, "{changed:?}");
}

/// The run is edited to look like a run of a version without lineages.
#[test]
fn the_lineage_of_an_older_checkpoint_starts_with_its_weights() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "whole", SET));
    let whole = lineages(&root.join("whole"));
    let mut old = state(&root.join("whole"), 4);
    old.remove("xxh3").unwrap();
    old["task"].as_object_mut().unwrap().remove("lineage").unwrap();
    fs::write(state_file(&root.join("whole"), 4), Value::Object(old).to_string()).unwrap();
    fs::remove_file(root.join("whole/checkpoints/step-000004/files.json")).unwrap();
    let printed = resumed(root, "old", 4, &[]);
    assert!(
        printed.contains("step-000004")
            && printed.contains("recorded no lineage of the weights: the lineage begins there"),
        "{printed}"
    );
    let old = lineages(&root.join("old"));
    assert!(old[..2] == whole[..2] && old.iter().zip(&whole).skip(2).all(|(a, b)| a.0 == b.0 && a.1 != b.1), "{old:?}");
    resumed(root, "old again", 4, &["threads=2"]);
    assert_eq!(lineages(&root.join("old again")), old, "every resume must compute the same lineage");
}

/// Entropies are recorded only for display: neither the bits of the run nor its lineage depend on them.
#[test]
fn requested_entropies_are_recorded_and_change_no_bit() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "whole", SET));
    good(root, &arguments("train", "entropies", &[SET, &["record_entropies=true"]].concat()));
    let weights = |run: &str| fs::read(root.join(run).join("model/model.safetensors")).unwrap();
    assert_eq!(weights("whole"), weights("entropies"));
    assert_eq!(lineages(&root.join("whole")), lineages(&root.join("entropies")));
    assert!(rollouts(&root.join("whole")).iter().all(|line| line.get("tokens").is_none()));
    for line in rollouts(&root.join("entropies")) {
        let entropies = line["tokens"]["entropies"].as_array().unwrap();
        assert_eq!(entropies.len(), line["completion_ids"].as_array().unwrap().len());
        // The vocabulary has 40 tokens, so the entropy is at most ln 40.
        assert!(entropies.iter().all(|h| (0.0..=3.688_88).contains(&h.as_f64().unwrap())), "{line}");
        assert!(entropies.iter().any(|h| h.as_f64().unwrap() > 0.1), "{line}");
    }
    let alone = good(root, &arguments("train", "alone", &["record_entropies=true", "max_steps=1"]));
    assert!(alone.err.contains("no effect without record_rollouts = true: record_entropies"), "{}", alone.err);
}
