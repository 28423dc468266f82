//! The choice of the best evaluation, the checkpoints that are kept for it, and early stopping.

use crate::stopping::reward;
use crate::support::refused;
use crate::support::runs::{arguments, directory, good, of_lines};
use std::fs;
use std::path::Path;

const BEST: [&str; 2] = ["load_best_model_at_end=true", "save_steps=4"];

fn weights(run: &Path, of: &str) -> Vec<u8> {
    fs::read(run.join(of).join("model.safetensors")).unwrap()
}

/// A lower loss is better, unless `greater_is_better` is set.
#[test]
fn the_lowest_loss_is_the_best() {
    let dir = directory();
    let root = dir.path();
    for (out, greater) in [("least", "none"), ("most", "true")] {
        let greater = format!("greater_is_better={greater}");
        let set = [&BEST[..], &["metric_for_best_model=loss", "learning_rate=0.3", &greater]].concat();
        good(root, &arguments("sft", out, &set));
        let run = root.join(out);
        let losses = of_lines(&run, "eval_loss");
        let (mut least, mut most) = (0, 0);
        for (i, loss) in losses.iter().enumerate() {
            least = if *loss < losses[least] { i } else { least };
            most = if *loss > losses[most] { i } else { most };
        }
        assert!(losses.len() == 3 && least != most, "{losses:?}");
        let best = if out == "least" { least } else { most };
        assert_eq!(
            weights(&run, "model"),
            weights(&run, &format!("checkpoints/step-{:06}", 4 * (best + 1))),
            "{losses:?}"
        );
    }
}

/// All evaluations have the same reward, so the first evaluation after a step is the best. Its weights are saved,
/// although no checkpoint is due at that step. The evaluation before the first step is ignored, since it does not have
/// a checkpoint.
#[test]
fn the_best_evaluation_always_has_a_checkpoint() {
    let dir = directory();
    let root = dir.path();
    let constant = reward(root, "0");
    let best = [&*constant, "load_best_model_at_end=true", "save_steps=8", "metric_for_best_model=reward"];
    for (out, start) in [("plain", "eval_on_start=false"), ("from-start", "eval_on_start=true")] {
        let output = good(root, &arguments("train", out, &[&best[..], &[start]].concat()));
        assert!(output.err.contains("the best checkpoint, of step 4"), "{}", output.err);
        let run = root.join(out);
        assert_eq!(weights(&run, "model"), weights(&run, "checkpoints/step-000004"));
        assert_eq!(of_lines(&run, "eval_reward").len(), if out == "plain" { 3 } else { 4 });
        // Early stopping ignores the evaluation before the first step, too.
        let patient = [&best[..], &[start, "early_stopping_patience=1"]].concat();
        let output = good(root, &arguments("train", &format!("{out}-patient"), &patient));
        assert!(output.err.contains("stopped early after step 8"), "{}", output.err);
    }
    // A message reports that the best checkpoint was deleted.
    let all = arguments("train", "gone", &[&best[..], &["max_steps=8"]].concat());
    good(root, &all);
    fs::remove_dir_all(root.join("gone/checkpoints/step-000004")).unwrap();
    let output = good(root, &["train", "--resume", "gone", "--set", "max_steps=12"]);
    assert!(output.err.contains("the best checkpoint, of step 4, is missing"), "{}", output.err);
}

#[test]
fn early_stopping_state_survives_a_resume() {
    let dir = directory();
    let root = dir.path();
    let constant = reward(root, "0");
    let set = [&*constant, "early_stopping_patience=2", "metric_for_best_model=reward", "eval_on_start=true"];
    good(root, &arguments("train", "run", &[&set[..], &["max_steps=10"]].concat()));
    // Two evaluations in a row are not better than the best one: at step 8, and after the resume at step 12.
    let output = good(root, &["train", "--resume", "run", "--set", "max_steps=20"]);
    assert!(output.err.contains("stopped early after step 12"), "{}", output.err);
    assert_eq!(of_lines(&root.join("run"), "eval_reward").len(), 4, "steps 0, 4, 8 and 12");
}

#[test]
fn a_gain_below_the_threshold_does_not_count() {
    let dir = directory();
    let root = dir.path();
    let set =
        ["early_stopping_patience=1", "metric_for_best_model=loss", "load_best_model_at_end=true", "save_steps=4"];
    let output = good(root, &arguments("sft", "any", &set));
    assert!(output.err.contains("done: 12 steps"), "{}", output.err);
    let losses = of_lines(&root.join("any"), "eval_loss");
    assert!(losses[1] < losses[0], "{losses:?}");
    let output = good(root, &arguments("sft", "much", &[&set[..], &["early_stopping_threshold=100"]].concat()));
    assert!(output.err.contains("stopped early after step 8"), "{}", output.err);
    // A gain below the threshold still counts for choosing the best checkpoint: step 8 is the best.
    assert_eq!(weights(&root.join("much"), "model"), weights(&root.join("much"), "checkpoints/step-000008"));
}

#[test]
fn the_last_step_is_always_logged() {
    let dir = directory();
    good(dir.path(), &arguments("sft", "run", &["max_steps=5"]));
    assert_eq!(
        of_lines(&dir.path().join("run"), "step"),
        [3.0, 4.0, 5.0],
        "logged every third step, evaluated every fourth"
    );
    good(dir.path(), &arguments("sft", "first", &["max_steps=5", "logging_first_step=true", "eval_strategy=no"]));
    assert_eq!(of_lines(&dir.path().join("first"), "step"), [1.0, 3.0, 5.0]);
    // Ten rows are two batches of four per epoch; two rows are dropped.
    assert_eq!(of_lines(&dir.path().join("first"), "epoch"), [0.5, 1.5, 2.5]);
}

/// A fraction of an epoch is rounded up to a whole epoch.
#[test]
fn a_fraction_of_an_epoch_is_rounded_up() {
    let dir = directory();
    for (epochs, steps) in [("1", 2), ("1.3", 3), ("1.6", 4)] {
        let epochs = format!("num_train_epochs={epochs}");
        let out = format!("{steps}-steps");
        let output = good(dir.path(), &arguments("sft", &out, &["max_steps=-1", &epochs, "eval_strategy=no"]));
        assert!(output.err.contains(&format!("done: {steps} steps")), "{epochs}: {}", output.err);
    }
}

/// A row with exactly `max_length` tokens is kept.
#[test]
fn rows_longer_than_max_length_are_dropped() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("one.jsonl"), "{\"prompt\": \"a long road \", \"completion\": \"and a sea.\"}\n").unwrap();
    let one = ["dataset_name=one.jsonl", "per_device_train_batch_size=1", "max_steps=1", "eval_strategy=no"];
    good(root, &arguments("sft", "whole", &one));
    let length = of_lines(&root.join("whole"), "num_tokens")[0];
    assert!((22.0..=24.0).contains(&length), "{length}");
    good(root, &arguments("sft", "just", &[&one[..], &[&format!("max_length={length}")]].concat()));
    let less = format!("max_length={}", length - 1.0);
    refused(root, &arguments("sft", "less", &[&one[..], &[&less]].concat()), &["every row is longer", &less[11..]]);
}
