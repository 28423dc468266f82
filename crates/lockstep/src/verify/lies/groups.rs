//! Wrong values in `rollouts.bin` and its index, and in `updates.bin`.

use super::*;
use crate::config::Algorithm;
use crate::rollouts::wire::lies::{changed, columns, with_more, without};
use crate::rollouts::wire::{Completion, Fork, KNOWN, NEW_LOGPS, records};
use crate::verify::tests::groups;
use model::columns::{Column, Values};
use model::{Columns, GroupId};
use rewards::Content;
use rollout::FinishReason;
use serde_json::json;
use std::collections::BTreeSet;
use train::Advantage;

type Lie = fn(&mut Group);

/// Values of columns that the runs of these tests do not record.
const OTHERS: [(&str, Lie); 14] = [
    ("problems", |g| g.problems.push(json!({"reward": "unique_chars", "kind": "crashed", "rows": 1}))),
    ("prompt_in_batch", |g| g.prompt_in_batch = Some(0)),
    ("generations", |g| g.completions.iter_mut().for_each(|c| c.generation ^= 1)),
    ("step_scores", |g| g.completions[1].steps = vec![Some(vec![(0, 1.0)]), None]),
    ("completions", |g| g.completions[1].content = Some(Content::Text("another text".into()))),
    ("extra", |g| drop(g.completions[1].extra.insert("lie".into(), json!(999)))),
    ("forks", |g| g.completions[1].fork = Some(Fork { parent: 0, at: 1 })),
    ("advantages", |g| g.completions[1].advantage = Some(Advantage::Sequence(1.0))),
    ("token_advantages", |g| {
        let tokens = g.completions[1].ids.len();
        g.completions[1].advantage = Some(Advantage::Tokens(vec![1.0; tokens]));
    }),
    ("mask", |g| g.completions[1].loss_mask[0] = false),
    ("inserted", |g| (g.completions[1].loss_mask[0], g.completions[1].sampled[0]) = (false, false)),
    ("prompt.lie", |g| {
        let tokens = g.prompt_ids.len() - 1;
        g.prompt_columns.insert("lie", Column { width: 1, values: Values::F32(vec![0.0; tokens]) });
    }),
    ("token.lie", |g| {
        let tokens = g.completions[1].ids.len();
        g.completions[1].columns.set("lie", vec![0.0; tokens]);
    }),
    ("has.finish_reasons", |g| g.completions[1].finish_reason = None),
];

#[test]
fn a_changed_column_of_the_recorded_groups_is_reported() {
    let kinds: [(&str, Change); 3] = [
        ("GRPO", |_| {}),
        ("PPO", |c| (c.algorithm, c.num_generations) = (Algorithm::Ppo, 1)),
        ("stale", |c| (c.max_staleness, c.num_iterations, c.record_entropies) = (1, 2, true)),
    ];
    for (kind, change) in kinds {
        let dir = directory();
        let root = small(dir.path(), change);
        let path = root.join("rollouts.bin");
        let good = read(&path);
        proven(&root, kind);
        let place = good.len() / 2 - 1;
        let id = groups(&root)[place].group;
        let tell = |lie: &str, record: Vec<u8>| {
            let mut records = good.clone();
            records[place] = record;
            write(&path, &records);
            let report = verified(&root);
            let Some(found) = report.difference else {
                // The record cannot be read, and the report names its place.
                assert!(report.proven.is_empty() && report.not_verified.len() == 1, "{kind}, {lie}: {report:?}");
                assert!(report.not_verified[0].contains("the record at byte "), "{kind}, {lie}: {report:?}");
                return Difference::default();
            };
            // If a number is changed, the missing or the extra group is named.
            assert!(found.group == Some(id) || lie.contains("`group`") && found.group.is_some(), "{lie}: {found:?}");
            found
        };
        let there = columns(&good[place]);
        for name in &there {
            if let Some(lie) = changed(&good[place], name) {
                tell(&format!("`{name}` changed"), lie);
            }
            tell(&format!("`{name}` left out"), without(&good[place], name));
        }
        if kind == "PPO" {
            // PPO's groups have one completion, and most changes below concern the second.
            continue;
        }
        let mut rows: BTreeSet<&str> = there.iter().map(String::as_str).collect();
        for (name, lie) in OTHERS {
            let mut group = groups_of(&good)[place].clone();
            lie(&mut group);
            let record = records([&group]);
            assert!(columns(&record).iter().any(|column| column == name), "the lie makes the column `{name}`");
            tell(&format!("`{name}` invented"), record);
            rows.insert(name);
        }
        let without_row: Vec<&&str> = KNOWN.iter().filter(|name| !rows.contains(*name)).collect();
        assert!(without_row.is_empty(), "no lie is told about the columns {without_row:?}");
        let later = tell("a column of a later version", with_more(&good[place], "later"));
        assert_eq!((later.kind.as_str(), later.recorded.as_str()), ("column", "`later`"));
    }
}

/// Groups that occur twice, at the wrong position, or for no step.
#[test]
fn a_group_recorded_twice_or_out_of_order_is_reported() {
    let dir = directory();
    let root = small(dir.path(), |_| {});
    let path = root.join("rollouts.bin");
    let good = read(&path);
    let other = |place: usize, change: fn(&mut Group)| {
        let mut group = groups_of(&good)[place].clone();
        change(&mut group);
        records([&group])
    };
    let forged: fn(&mut Group) = |g| g.completions[0].rewards[0] = Some(999.0);
    let with = |place: usize, record: Vec<u8>| {
        let mut records = good.clone();
        records.insert(place, record);
        records
    };
    let swapped = |a: usize, b: usize| {
        let mut records = good.clone();
        records.swap(a, b);
        records
    };
    let replaced = |place: usize, record: Vec<u8>| {
        let mut records = good.clone();
        records[place] = record;
        records
    };
    let last = good.len();
    let rows: [(&str, Vec<Vec<u8>>, &str); 22] = [
        ("a forged group before the true one", with(1, other(1, forged)), "group"),
        ("a forged group at the beginning", with(0, other(1, forged)), "group"),
        ("a forged group behind the true one", with(2, other(1, forged)), "group"),
        ("a forged group at the end", with(last, other(0, forged)), "group"),
        ("the same group twice", with(1, good[0].clone()), "group"),
        ("the same group at the end", with(last, good[0].clone()), "group"),
        ("all groups twice", [good.clone(), good.clone()].concat(), "group"),
        ("a further group of step 0", with(0, other(0, |g| (g.group, g.step) = (GroupId(99), Some(Step(0))))), "step"),
        ("a further group of no step", with(last, other(0, |g| (g.group, g.step) = (GroupId(99), None))), "step"),
        ("a group of step 0", replaced(0, other(0, |g| g.step = Some(Step(0)))), "step"),
        ("a group of no step", replaced(0, other(0, |g| g.step = None)), "step"),
        ("a group of no step, forged, of the same number", with(0, other(0, |g| g.step = None)), "step"),
        ("a further group of step 1", with(1, other(0, |g| g.group = GroupId(99))), "group"),
        ("a further group of step 1, at the end", with(last, other(0, |g| g.group = GroupId(99))), "group"),
        ("a further group of step 2", with(last, other(last - 1, |g| g.group = GroupId(99))), "group"),
        ("a group of another step", replaced(0, other(0, |g| g.step = Some(Step(2)))), "step"),
        ("a group of another number", replaced(0, other(0, |g| g.group = GroupId(99))), "group"),
        ("two groups of a step in another order", swapped(0, 1), "order of the groups"),
        ("two groups of two steps in another order", swapped(0, last - 1), "order of the groups"),
        ("all groups in another order", good.iter().rev().cloned().collect(), "order of the groups"),
        ("a missing group", good[1..].to_vec(), "group"),
        ("a missing group at the end", good[..last - 1].to_vec(), "group"),
    ];
    for (what, records, kind) in rows {
        write(&path, &records);
        assert_eq!(convicted(&root, what).kind, kind, "{what}");
    }
    // A group of a step that the run did not reach is not treated as trained.
    write(&path, &with(last, other(0, |g| (g.group, g.step) = (GroupId(99), Some(Step(7))))));
    let report = verified(&root);
    assert_eq!(report.not_verified, ["steps 3 to 7: the run left no checkpoint after them"]);
    write(&path, &good);
    proven(&root, "the record as it was");

    // Changes the index, from which lists are printed without reading the groups.
    let index = root.join("rollouts.idx");
    let bytes = fs::read(&index).unwrap();
    // An entry has group, step, hash of the prompt, reward, its deviation, completions and tokens. An index with a
    // different offset is recomputed.
    for at in [16, 24, 32, 40, 48, 56, 60] {
        for entry in [0, last - 1] {
            let mut lied = bytes.clone();
            lied[8 + 64 * entry + at] ^= 1;
            fs::write(&index, lied).unwrap();
            let found = convicted(&root, &format!("byte {at} of entry {entry}"));
            assert_eq!(found.kind, "index");
            assert_eq!(found.place.unwrap(), format!("rollouts.idx, entry {entry}"));
        }
    }
}

/// A run records updates for some groups; only their log-probabilities are not compared.
#[test]
fn a_changed_column_of_the_updates_is_reported() {
    let dir = directory();
    let root = small(dir.path(), |_| {});
    let path = root.join("updates.bin");
    let update = |group: &Group| {
        let completion = |(place, c): (usize, &Completion)| Completion {
            loss_mask: c.loss_mask.clone(),
            columns: Columns::of([(NEW_LOGPS, vec![-0.5; c.ids.len()])]),
            ..Completion::new(place, c.ids.clone())
        };
        let completions = group.completions.iter().enumerate().map(completion).collect();
        let (group, step, prompt_ids) = (group.group, group.step, group.prompt_ids.clone());
        records([&Group { group, step, prompt_ids, completions, ..Group::default() }])
    };
    let recorded = groups(&root);
    let good = [update(&recorded[0]), update(&recorded[2])];
    write(&path, &good);
    proven(&root, "updates as a run writes them");
    for column in columns(&good[0]) {
        let lie = changed(&good[0], &column).unwrap();
        write(&path, &[lie, good[1].clone()]);
        match column.as_str() {
            "token.new_logps" => {
                proven(&root, &column);
                is_documented("`updates.bin`", &column);
            }
            _ => assert_eq!(convicted(&root, &column).kind, "update", "{column}"),
        }
    }
    let invented = |change: fn(&mut Group)| {
        let mut group = groups_of(&good)[0].clone();
        change(&mut group);
        records([&group])
    };
    let rows = [
        ("twice", good[1].clone()),
        ("a column of a later version", with_more(&good[0], "later")),
        ("a lineage", invented(|g| g.lineage = Some(crate::rollouts::lineage::Lineage([7; 16])))),
        ("a text", invented(|g| g.prompt = Some(Content::Text("another".into())))),
        ("a dataset row", invented(|g| drop(g.dataset.insert("answer".into(), json!(1))))),
        ("a finish reason", invented(|g| g.completions[0].finish_reason = Some(FinishReason::Stop))),
        ("a mask", invented(|g| g.completions[0].loss_mask[0] ^= true)),
        (
            "a score",
            invented(|g| {
                g.reward_names = vec!["r".into()];
                g.completions.iter_mut().for_each(|c| c.rewards = vec![Some(999.0)]);
            }),
        ),
        ("one log-probability of each two", invented(|g| drop(g.completions[0].columns.remove(NEW_LOGPS)))),
        ("another number", invented(|g| g.group = GroupId(99))),
        ("another step", invented(|g| g.step = Some(Step(2)))),
        ("no step", invented(|g| g.step = None)),
    ];
    for (what, lie) in rows {
        write(&path, &[lie, good[1].clone()]);
        assert_eq!(convicted(&root, what).kind, "update", "{what}");
    }
    // Steps that were not recorded cannot be checked.
    write(&path, &[invented(|g| (g.group, g.step) = (GroupId(99), Some(Step(7))))]);
    proven(&root, "an update of a step beyond the record");
}
