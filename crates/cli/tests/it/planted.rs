//! Runs with planted failures: the page's overview shows the expected alarm within twenty steps, with evidence and a
//! remedy. The test reads the output of `lockstep report`, which uses the same lines of metrics.jsonl as the overview.

use crate::alarms;
use crate::support::runs::{self, good};
use crate::support::{CONFIG, lockstep, model_of};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The alarms of a run, in the order in which they were raised, each with its step.
fn shown(root: &Path, run: &str) -> Vec<(u64, String)> {
    let found = alarms::alarms(&root.join(run));
    let open = found.iter().filter(|(_, alarm)| alarm["until"].is_null() && alarm["quiet"] != true);
    open.map(|(step, alarm)| {
        for part in ["evidence", "remedy"] {
            assert!(alarm[part].as_str().is_some_and(|text| text.len() > 10), "{alarm}");
        }
        (*step, alarm["id"].as_str().unwrap().to_owned())
    })
    .collect()
}

/// Asserts that one of `expected` was raised by step 20, and that the report shows it.
#[track_caller]
fn planted(root: &Path, run: &str, expected: &[&str]) {
    let found = shown(root, run);
    let named = found.iter().find(|(step, id)| *step <= 20 && expected.contains(&id.as_str()));
    let Some((_, id)) = named else { panic!("{run}: none of {expected:?} in {found:?}") };
    let report = good(root, &["report", run, "--print"]).out;
    assert!(report.contains(&id.replace('_', " ")) || report.contains(id.as_str()), "{run}: {report}");
}

#[test]
fn failing_policy_training_raises_the_right_alarm() {
    let dir = alarms::directory();
    let root = dir.path();
    let letter = "reward_funcs=[{kind = \"exact_match\", extract = \"^(.)\"}]";
    // (run, keys, expected alarms)
    let sick: [(&str, &[&str], &[&str]); 4] = [
        // The learning rate is much too high.
        (
            "explodes",
            &[letter, "learning_rate=30", "max_grad_norm=0"],
            &["grad_norm", "not_finite", "kl_blow_up", "entropy_collapse"],
        ),
        // A negative entropy coefficient rewards certainty.
        ("collapses", &[letter, "entropy_coef=-2", "learning_rate=0.1"], &["entropy_collapse"]),
        // The KL penalty is too small to hold back a diverging policy.
        ("runs-away", &[letter, "beta=0.0001", "learning_rate=0.1"], &["kl_blow_up"]),
        // The reward grows with the length.
        (
            "long",
            &["reward_funcs=[\"length:60\"]", "learning_rate=0.01", "max_completion_length=60"],
            &["length_explodes", "length_is_paid"],
        ),
    ];
    for (run, set, expected) in sick {
        lockstep(root, &alarms::arguments(run, set));
        planted(root, run, expected);
    }
    // A reward that never returns a score.
    fs::write(
        root.join("none.sh"),
        "while read -r line; do awk 'BEGIN { printf \"{\\\"rewards\\\": [\"; for (i = 0; i < 64; i++) \
         printf \"%snull\", i ? \", \" : \"\"; print \"]}\" }'; done\n",
    )
    .unwrap();
    lockstep(
        root,
        &alarms::arguments("unscored", &["reward_funcs=[\"command:sh none.sh\"]", "reward_errors=continue"]),
    );
    planted(root, "unscored", &["unscored"]);
}

/// The reference is from a different stage of training, so the policy is far from the reference before the first step.
#[test]
fn a_stale_reference_raises_the_right_alarm() {
    let dir = runs::directory_of(CONFIG);
    let root = dir.path();
    model_of(&root.join("other"), CONFIG);
    let set = ["beta=0.05", "max_steps=6", "eval_strategy=no", "temperature=1", "learning_rate=0.0001"];
    let reference = format!("ref_model={}", sharper(root, "other"));
    good(root, &runs::arguments("train", "stale", &[&set[..], &[&reference]].concat()));
    planted(root, "stale", &["stale_reference"]);
    good(root, &runs::arguments("train", "own", &set));
    assert!(shown(root, "own").iter().all(|(_, id)| id != "stale_reference"), "{:?}", shown(root, "own"));
}

/// Multiplies the model's lm head by 40, so that the model is very certain of its tokens.
fn sharper(root: &Path, model: &str) -> String {
    let file = root.join(model).join("model.safetensors");
    let mut bytes = crate::support::without_checksum(fs::read(&file).unwrap());
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    for (_, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| name.as_str() == "lm_head.weight") {
        let [start, end] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap() as usize + 8 + length);
        for value in bytes[start..end].chunks_exact_mut(4) {
            let x = f32::from_le_bytes([value[0], value[1], value[2], value[3]]) * 40.0;
            value.copy_from_slice(&x.to_le_bytes());
        }
    }
    fs::write(&file, bytes).unwrap();
    model.to_owned()
}

#[test]
fn failing_sft_and_dpo_raise_the_right_alarm() {
    let dir = runs::directory();
    let root = dir.path();
    let steps = ["max_steps=20", "logging_steps=1", "save_strategy=no", "eval_strategy=no"];
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "learning_rate=10"];
    lockstep(root, &runs::arguments("sft", "sft", &[&steps[..], &["learning_rate=1000"]].concat()));
    planted(root, "sft", &["diverged"]);
    lockstep(root, &runs::arguments("dpo", "dpo", &[&steps[..], &pairs].concat()));
    planted(root, "dpo", &["margin", "diverged"]);
}
