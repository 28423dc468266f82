//! `lockstep board` writes the event file that a run with `tensorboard = true` would have written.

use crate::support::runs::{arguments, directory, events, good};
use crate::support::{lockstep, refused};
use std::collections::BTreeSet;
use std::fs;

#[test]
fn the_events_equal_those_of_a_run_with_tensorboard() {
    let dir = directory();
    let root = dir.path();
    let set = ["record_rollouts=true", "max_steps=6", "eval_strategy=no", "threads=1", "tensorboard=true"];
    good(root, &arguments("train", "with", &set));
    let scalars = |run: &str| -> BTreeSet<(u64, String, u32)> {
        events(&root.join(run)).into_iter().filter(|(_, tag, _)| tag != "long").collect()
    };
    let texts = |run: &str| events(&root.join(run)).iter().filter(|(_, tag, _)| tag == "long").count();
    // An event file that the run itself wrote is never overwritten.
    let before = events(&root.join("with"));
    refused(root, &["board", "with"], &["tfevents", "already exists", "--out"]);
    assert_eq!(events(&root.join("with")), before);

    let output = good(root, &["board", "with", "--out", "tb"]);
    assert!(
        output.out.contains("tb/with: ") && output.err.contains("tensorboard --logdir tb"),
        "{}{}",
        output.out,
        output.err
    );
    fs::create_dir(root.join("made")).unwrap();
    fs::rename(root.join("tb/with"), root.join("made/tensorboard")).unwrap();
    assert_eq!(scalars("with"), scalars("made"));
    assert!(scalars("made").iter().any(|(_, tag, _)| tag == "train/reward_p90"));
    // Histograms of six generations, and tables of the steps that log completions.
    assert_eq!(texts("with"), texts("made"));

    let without = ["tensorboard=false", "log_completions=false", "max_steps=2", "eval_strategy=no"];
    good(root, &arguments("train", "without", &without));
    good(root, &["board", "without"]);
    assert!(!scalars("without").is_empty());
    refused(root, &["board", "without"], &["already exists"]);
    refused(root, &["board", "model"], &["no config.toml"]);
    let twice = lockstep(root, &["board", "with", "./with", "--out", "tb"]);
    assert_eq!(twice.code, Some(2), "{}", twice.err);
}
