//! Wrong values in the files of checkpoints: batches, and the state of the run.

use super::*;
use crate::config::Algorithm;
use crate::rollouts::wire::lies::{changed, columns, other_json, with_more};
use model::io::FileList;
use serde_json::Value;
use std::collections::BTreeSet;

/// Fields in the first records of checkpoint files, and of answers, that cannot be repeated.
const TIMES: [&str; 2] = ["seconds", "times"];
/// Fields of batches generated in chunks that are not compared.
const OF_BEGUN: [&str; 5] = ["answer", "rollout_s", "rewards", "scored", "values"];

#[test]
fn a_changed_column_of_a_checkpoint_is_reported() {
    let kinds: [(&str, Change); 3] = [
        ("frontier.bin", |c| c.max_staleness = 1),
        ("generation_batch.bin", |c| c.num_iterations = 2),
        ("frontier.begun.bin", |c| (c.max_staleness, c.partial_rollout_tokens, c.max_steps) = (2, Some(2), 3)),
    ];
    for (name, change) in kinds {
        let dir = directory();
        let root = small(dir.path(), change);
        proven(&root, name);
        let checkpoint = root.join("checkpoints/step-000001");
        let path = checkpoint.join(name);
        let good = read(&path);
        let tell = |place: usize, record: Vec<u8>| {
            let mut records = good.clone();
            records[place] = record;
            fs::write(&path, records.concat()).unwrap();
            FileList::of(&checkpoint, model::Step(1)).unwrap().write(&checkpoint).unwrap();
        };
        let (mut compared, mut seen) = (0, BTreeSet::new());
        for (place, record) in good.iter().enumerate() {
            for column in columns(record) {
                // One record of each kind is enough.
                if !seen.insert((columns(record)[0].clone(), column.clone())) {
                    continue;
                }
                let Some(lie) = changed(record, &column) else { continue };
                let what = format!("{name}, record {place}, `{column}`");
                tell(place, lie);
                let plain = column.rsplit('.').next().unwrap();
                let is_answer = columns(record)[0] == "answer";
                let is_left_out = TIMES.contains(&plain)
                    || name == "frontier.begun.bin" && (is_answer || OF_BEGUN.contains(&&*column));
                if is_left_out {
                    proven(&root, &what)
                } else {
                    match verify_all(&root) {
                        Ok(report) => {
                            let found = report.difference.unwrap_or_else(|| panic!("{what} is proven"));
                            assert!(found.place.unwrap().contains(name), "{what}");
                            compared += 1;
                        }
                        Err(error) => assert!(format!("{error:#}").contains(name), "{what}: {error:#}"),
                    }
                }
            }
            if name != "frontier.begun.bin" {
                tell(place, with_more(record, "later"));
                assert_eq!(convicted(&root, "a column of a later version").kind, "column");
            }
        }
        assert!(compared >= 3, "{name}: {compared} columns were compared");
    }
    for column in &TIMES {
        is_documented("`frontier.bin`", column);
    }
    for column in &OF_BEGUN {
        is_documented("`frontier.begun.bin`", column);
    }
}

fn verify_all(root: &Path) -> anyhow::Result<Report> {
    let say = |_: &str| {};
    let stop = StopSignal::new();
    verify(root, &VerifyOptions { choice: Choice::All, threads: None, model: None, dataset: None, stop, say: &say })
}

/// The fields of `run_state.json` on which no step depends.
const OF_LOGS: [&str; 8] =
    ["format", "isa", "unlogged", "best", "evaluations_without_improvement", "evaluation_due", "alarms", "log_bytes"];

/// The paths of all leaves in a JSON value.
pub(super) fn leaves(at: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| leaves(&format!("{at}/{name}"), value, found));
        }
        Value::Array(list) if !list.is_empty() => {
            list.iter().enumerate().for_each(|(place, value)| leaves(&format!("{at}/{place}"), value, found));
        }
        _ => found.push(at.to_owned()),
    }
}

#[test]
fn a_changed_field_of_the_state_is_reported() {
    let kinds: [(&str, Change); 3] = [
        ("GRPO", |_| {}),
        ("PPO", |c| (c.algorithm, c.num_generations) = (Algorithm::Ppo, 1)),
        ("stale", |c| (c.max_staleness, c.num_iterations) = (1, 2)),
    ];
    for (kind, change) in kinds {
        let dir = directory();
        let root = small(dir.path(), change);
        let checkpoint = root.join("checkpoints/step-000001");
        let path = checkpoint.join("run_state.json");
        let mut good: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        // An older version writes a state without a checksum.
        good.as_object_mut().unwrap().shift_remove("xxh3");
        let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
        leaves("", &good, &mut all);
        for leaf in all {
            let field = leaf.split('/').nth(1).unwrap();
            // One leaf of a field that is not compared is enough.
            if OF_LOGS.contains(&field) && (kind != "GRPO" || !seen.insert(field.to_owned())) {
                continue;
            }
            let mut state = good.clone();
            let value = state.pointer_mut(&leaf).unwrap();
            if value.is_null() {
                continue;
            }
            other_json(value);
            fs::write(&path, state.to_string()).unwrap();
            FileList::of(&checkpoint, model::Step(1)).unwrap().write(&checkpoint).unwrap();
            let what = format!("{kind}, {leaf}");
            if OF_LOGS.contains(&field) {
                // A value that no run writes is refused.
                let report = verified(&root);
                assert!(report.difference.is_none_or(|found| found.kind == "hash"), "{what}");
                assert!(report.not_verified.is_empty(), "{what}");
            } else {
                assert_eq!(convicted(&root, &what).step, Some(Step(1)), "{what}")
            }
        }
        // Every field is compared, or listed.
        let compared = |name: &str| files::STATE.contains(&name);
        let without_row: Vec<&String> = good
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| compared(name) == OF_LOGS.contains(&name.as_str()))
            .collect();
        assert!(without_row.is_empty(), "{without_row:?}");
    }
    for field in &OF_LOGS {
        is_documented("`run_state.json`", field);
    }
}
