//! Dynamic sampling in whole runs: its counts and the groups that it drops. Neither kills nor the number of threads
//! change a bit.

use crate::support::runs::{arguments, directory, good, metrics, rollouts, same};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// The reward is whether a completion ends within six tokens: a random model then gives groups with equal and with
/// different rewards.
const SET: [&str; 5] = [
    "dynamic_sampling=true",
    "dynamic_sampling_max_rounds=4",
    "reward_funcs=[\"format:^[a-j]\"]",
    "logging_steps=1",
    "record_rollouts=true",
];

fn values(run: &std::path::Path, name: &str) -> Vec<f64> {
    let parsed = metrics(run).into_iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
    parsed.filter_map(|line| line[name].as_f64()).collect()
}

#[test]
fn groups_with_equal_rewards_are_replaced() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", &SET));
    let run = root.join("run");
    let (rounds, replaced) =
        (values(&run, "dynamic_sampling/rounds"), values(&run, "dynamic_sampling/groups_replaced"));
    let left = values(&run, "dynamic_sampling/groups_without_spread");
    assert_eq!(rounds.len(), 12);
    assert!(rounds.iter().all(|&r| (1.0..=4.0).contains(&r)), "{rounds:?}");
    assert!(rounds.iter().any(|&r| r > 1.0) && replaced.iter().sum::<f64>() > 0.0, "{rounds:?} {replaced:?}");
    for ((rounds, replaced), left) in rounds.iter().zip(&replaced).zip(&left) {
        assert!(*left == 0.0 || *rounds == 4.0, "groups may be missing only at the maximum of rounds: {rounds} {left}");
        assert_eq!(*rounds == 1.0, *replaced == 0.0);
    }
    // The counts match the groups that were trained on.
    let mut groups: BTreeMap<u64, Vec<Vec<f64>>> = BTreeMap::new();
    for line in rollouts(&run) {
        let of = groups.entry(line["step"].as_u64().unwrap()).or_default();
        match of.last_mut() {
            Some(open) if open.len() < 2 => open.push(line["rewards"][0].as_f64().unwrap()),
            _ => of.push(vec![line["rewards"][0].as_f64().unwrap()]),
        }
    }
    let flat = |of: &Vec<Vec<f64>>| of.iter().filter(|g| g[0] == g[1]).count() as f64;
    assert_eq!(groups.values().map(flat).collect::<Vec<_>>(), left);
}

/// If rewards never differ within a group, every step takes `dynamic_sampling_max_rounds` rounds.
#[test]
fn the_number_of_rounds_is_bounded() {
    let dir = directory();
    let root = dir.path();
    let set =
        [&SET[..], &["dynamic_sampling_max_rounds=3", "reward_funcs=[\"format:.*\"]", "eval_strategy=no"]].concat();
    good(root, &arguments("train", "run", &set));
    let run = root.join("run");
    for (name, value) in [("rounds", 3.0), ("groups_replaced", 4.0), ("groups_without_spread", 2.0), ("reward", 1.0)] {
        assert_eq!(values(&run, &format!("dynamic_sampling/{name}")), [value; 12], "{name}");
    }
}

#[test]
fn dynamic_sampling_does_not_depend_on_kills_or_threads() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "whole", &[&SET[..], &["threads=1"]].concat()));
    good(root, &arguments("train", "cut", &[&SET[..], &["threads=2", "max_num_seqs=3"]].concat()));
    same(&root.join("whole"), &root.join("cut"));
    for step in [8, 10, 12] {
        fs::remove_dir_all(root.join(format!("cut/checkpoints/step-{step:06}"))).unwrap();
    }
    good(root, &["train", "--resume", "cut"]);
    same(&root.join("whole"), &root.join("cut"));
}
