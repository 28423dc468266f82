//! Lies in each field of the files of a run, with the right checksums: each is found, or the field is in a list of those
//! that are not compared. docs/verify.md has these lists, with reasons. A field without a row makes a test fail.

use super::tests::{directory, groups, run, verified};
use super::*;
use crate::config::{Algorithm, Config};
use crate::rollouts::wire::file::{GroupFile, GroupLog};
use crate::rollouts::wire::lies::{changed, columns, other_json, split, with_more, without};
use crate::rollouts::wire::{Completion, Fork, Group, KNOWN, NEW_LOGPS, records};
use model::Columns;
use model::columns::{Column, Values};
use model::io::FileList;
use rewards::Content;
use rollout::FinishReason;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs;
use telemetry::RunRecord;
use telemetry::build::Build;
use telemetry::record::{FileHash, ForkedFrom, MeasuredCeilings, Start};
use train::Advantage;

const DOCS: &str = include_str!("../../../../docs/verify.md");

/// Checks that the table of docs/verify.md has a row of the field.
#[track_caller]
fn is_documented(file: &str, field: &str) {
    let row = |line: &&str| line.starts_with(&format!("| {file} |")) && line.contains(&format!("`{field}`"));
    assert!(DOCS.lines().any(|line| row(&line)), "docs/verify.md has no row of {file}, `{field}`");
}

/// A run of two steps, each with a checkpoint, whose rewards give problems, metrics and scores.
fn small(dir: &Path, change: impl FnOnce(&mut Config)) -> PathBuf {
    let answers = ["\"ab\"", "null", "[\"m\", \"o\"]", "3", "null", "\"r\""];
    let row = |(word, answer): (&str, &str)| format!("{{\"prompt\": \"{word} \", \"answer\": {answer}}}\n");
    let rows: Vec<String> = ["ab", "sun", "moon", "tree", "x", "river"].into_iter().zip(answers).map(row).collect();
    fs::write(dir.join("d.jsonl"), rows.concat()).unwrap();
    run(dir, |config| {
        config.reward_funcs = vec!["unique_chars".into(), "exact_match".into()];
        (config.max_steps, config.save_steps, config.beta) = (2, 1, 0.1);
        change(config);
    })
}

/// The records of a file, as bytes.
fn read(path: &Path) -> Vec<Vec<u8>> {
    split(&fs::read(path).unwrap())
}

/// Writes a file of groups again, with its index, if its records can be read.
fn write(path: &Path, records: &[Vec<u8>]) {
    for path in [path.to_owned(), path.with_extension("idx")] {
        let _ = fs::remove_file(path);
    }
    if GroupLog::open(path).unwrap().append(&records.concat()).is_err() {
        fs::write(path, records.concat()).unwrap();
    }
}

/// The difference that is found, which a lie must make.
#[track_caller]
fn convicted(root: &Path, lie: &str) -> Difference {
    let report = verified(root);
    report.difference.unwrap_or_else(|| panic!("{lie}: {:?}, {:?}", report.proven, report.not_verified))
}

#[track_caller]
fn proven(root: &Path, lie: &str) {
    let report = verified(root);
    assert!(report.difference.is_none() && report.not_verified.is_empty(), "{lie}: {report:?}");
}

/// Values for columns that runs like those here do not record.
const OTHERS: [(&str, fn(&mut Group)); 14] = [
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
    ("mask", |g| g.completions[1].mask[0] = false),
    ("inserted", |g| (g.completions[1].mask[0], g.completions[1].sampled[0]) = (false, false)),
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
fn a_lie_in_any_column_of_the_record_is_found() {
    let kinds: [(&str, fn(&mut Config)); 3] = [
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
        let id = groups(&root)[place].id;
        let tell = |lie: &str, record: Vec<u8>| {
            let mut records = good.clone();
            records[place] = record;
            write(&path, &records);
            let report = verified(&root);
            let Some(found) = report.difference else {
                // A record that cannot be read, which names its place.
                assert!(report.proven.is_empty() && report.not_verified.len() == 1, "{kind}, {lie}: {report:?}");
                assert!(report.not_verified[0].contains("the record at byte "), "{kind}, {lie}: {report:?}");
                return Difference::default();
            };
            // Of a changed number, either the group that is missing or the one that is beyond.
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
            // Its groups have one completion, and most lies below are told of the second.
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

fn groups_of(records: &[Vec<u8>]) -> Vec<Group> {
    Group::read_all(&records.concat()).unwrap()
}

/// A record as a list: what is there too often, elsewhere, or of no step.
#[test]
fn each_group_is_recorded_once_and_in_its_place() {
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
    let rows: Vec<(&str, Vec<Vec<u8>>, &str)> = vec![
        ("a forged group before the true one", with(1, other(1, forged)), "group"),
        ("a forged group at the beginning", with(0, other(1, forged)), "group"),
        ("a forged group behind the true one", with(2, other(1, forged)), "group"),
        ("a forged group at the end", with(last, other(0, forged)), "group"),
        ("the same group twice", with(1, good[0].clone()), "group"),
        ("the same group at the end", with(last, good[0].clone()), "group"),
        ("all groups twice", [good.clone(), good.clone()].concat(), "group"),
        ("a further group of step 0", with(0, other(0, |g| (g.id, g.step) = (99, Some(0)))), "step"),
        ("a further group of no step", with(last, other(0, |g| (g.id, g.step) = (99, None))), "step"),
        ("a group of step 0", replaced(0, other(0, |g| g.step = Some(0))), "step"),
        ("a group of no step", replaced(0, other(0, |g| g.step = None)), "step"),
        ("a group of no step, forged, of the same number", with(0, other(0, |g| g.step = None)), "step"),
        ("a further group of step 1", with(1, other(0, |g| g.id = 99)), "group"),
        ("a further group of step 1, at the end", with(last, other(0, |g| g.id = 99)), "group"),
        ("a further group of step 2", with(last, other(last - 1, |g| g.id = 99)), "group"),
        ("a group of another step", replaced(0, other(0, |g| g.step = Some(2))), "step"),
        ("a group of another number", replaced(0, other(0, |g| g.id = 99)), "group"),
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
    // Of a step that the run did not reach, it is not said that a step learned from it.
    write(&path, &with(last, other(0, |g| (g.id, g.step) = (99, Some(7)))));
    let report = verified(&root);
    assert_eq!(report.not_verified, ["steps 3 to 7: the run left no checkpoint after them"]);
    write(&path, &good);
    proven(&root, "the record as it was");

    // The index, which lists show without reading the groups.
    let index = root.join("rollouts.idx");
    let bytes = fs::read(&index).unwrap();
    // Group, step, hash of the prompt, reward, its deviation, completions, tokens; of another place it is made again.
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

/// Of the first records in files of checkpoints, and of answers, what nobody can repeat.
const TIMES: [&str; 2] = ["seconds", "times"];
/// What is not compared of batches that are generated in chunks.
const OF_BEGUN: [&str; 5] = ["answer", "rollout_s", "rewards", "scored", "values"];

#[test]
fn a_lie_in_any_column_of_a_checkpoint_is_found() {
    let kinds: [(&str, fn(&mut Config)); 3] = [
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
            FileList::of(&checkpoint, 1).unwrap().write(&checkpoint).unwrap();
        };
        let (mut compared, mut seen) = (0, BTreeSet::new());
        for place in 0..good.len() {
            for column in columns(&good[place]) {
                // One record of each kind is enough.
                if !seen.insert((columns(&good[place])[0].clone(), column.clone())) {
                    continue;
                }
                let Some(lie) = changed(&good[place], &column) else { continue };
                let what = format!("{name}, record {place}, `{column}`");
                tell(place, lie);
                let plain = column.rsplit('.').next().unwrap();
                let of_answer = columns(&good[place])[0] == "answer";
                let is_left_out = TIMES.contains(&plain)
                    || name == "frontier.begun.bin" && (of_answer || OF_BEGUN.contains(&&*column));
                match is_left_out {
                    true => proven(&root, &what),
                    // A record that cannot be read any more is an error that names the file.
                    false => match verify_all(&root) {
                        Ok(report) => {
                            let found = report.difference.unwrap_or_else(|| panic!("{what} is proven"));
                            assert!(found.place.unwrap().contains(name), "{what}");
                            compared += 1;
                        }
                        Err(error) => assert!(format!("{error:#}").contains(name), "{what}: {error:#}"),
                    },
                }
            }
            if name != "frontier.begun.bin" {
                tell(place, with_more(&good[place], "later"));
                assert_eq!(convicted(&root, "a column of a later version").kind, "column");
            }
        }
        assert!(compared >= 3, "{name}: {compared} columns were compared");
    }
    TIMES.iter().for_each(|column| is_documented("`frontier.bin`", column));
    OF_BEGUN.iter().for_each(|column| is_documented("`frontier.begun.bin`", column));
}

fn verify_all(root: &Path) -> anyhow::Result<Report> {
    let say = |_: &str| {};
    let stop = StopSignal::new();
    verify(root, &VerifyOptions { choice: Choice::All, threads: None, model: None, dataset: None, stop, say: &say })
}

/// The fields of `run_state.json` that no step depends on.
const OF_LOGS: [&str; 8] = [
    "format",
    "isa",
    "unlogged",
    "best",
    "evaluations_without_improvement",
    "evaluation_due",
    "alarms",
    "log_bytes",
];

/// The paths to all leaves of a JSON value.
fn leaves(at: &str, value: &Value, found: &mut Vec<String>) {
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
fn a_lie_in_any_field_of_the_state_is_found() {
    let kinds: [(&str, fn(&mut Config)); 3] = [
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
        // A state without a checksum is one of an older version.
        good.as_object_mut().unwrap().shift_remove("xxh3");
        let mut all = Vec::new();
        leaves("", &good, &mut all);
        for leaf in all {
            let field = leaf.split('/').nth(1).unwrap();
            let mut state = good.clone();
            let value = state.pointer_mut(&leaf).unwrap();
            if value.is_null() {
                continue;
            }
            other_json(value);
            fs::write(&path, state.to_string()).unwrap();
            FileList::of(&checkpoint, 1).unwrap().write(&checkpoint).unwrap();
            let what = format!("{kind}, {leaf}");
            match OF_LOGS.contains(&field) {
                true => proven(&root, &what),
                false => assert_eq!(convicted(&root, &what).step, Some(1), "{what}"),
            }
        }
        // Every field has a row: it is compared, or it is in the list.
        let compared = |name: &str| files::STATE.contains(&name);
        let without_row: Vec<&String> = good
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| compared(name) == OF_LOGS.contains(&name.as_str()))
            .collect();
        assert!(without_row.is_empty(), "{without_row:?}");
    }
    OF_LOGS.iter().for_each(|field| is_documented("`run_state.json`", field));
}

/// What a lie in a field of `record.json` gives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gives {
    /// A difference of this kind.
    Kind(&'static str),
    /// The run cannot be verified.
    Refused,
    /// Nothing: docs/verify.md has a row of the field.
    Nothing,
}

/// Every field of `record.json`.
const OF_RECORD: [(&str, Gives); 51] = [
    ("/kind", Gives::Refused),
    ("/versions/lockstep", Gives::Nothing),
    ("/isa", Gives::Nothing),
    ("/device", Gives::Nothing),
    ("/arithmetic", Gives::Refused),
    ("/dtype", Gives::Kind("dtype")),
    ("/threads", Gives::Nothing),
    ("/seed", Gives::Kind("seed")),
    ("/config_sha256", Gives::Nothing),
    ("/model/_/name", Gives::Kind("hash")),
    ("/model/_/bytes", Gives::Kind("length")),
    ("/model/_/sha256", Gives::Kind("hash")),
    ("/prompt_files/_/name", Gives::Kind("hash")),
    ("/prompt_files/_/bytes", Gives::Kind("length")),
    ("/prompt_files/_/sha256", Gives::Kind("hash")),
    ("/reference/_/name", Gives::Kind("hash")),
    ("/reference/_/bytes", Gives::Kind("length")),
    ("/reference/_/sha256", Gives::Kind("hash")),
    ("/data/_/name", Gives::Nothing),
    ("/data/_/bytes", Gives::Nothing),
    ("/data/_/sha256", Gives::Kind("hash")),
    ("/rewards/_/name", Gives::Refused),
    ("/rewards/_/bytes", Gives::Nothing),
    ("/rewards/_/sha256", Gives::Nothing),
    ("/isolation/code", Gives::Nothing),
    ("/forked_from/run", Gives::Nothing),
    ("/forked_from/step", Gives::Nothing),
    ("/forked_from/lineage", Gives::Nothing),
    ("/ceilings/time_s", Gives::Nothing),
    ("/ceilings/isa", Gives::Nothing),
    ("/ceilings/dtype", Gives::Nothing),
    ("/ceilings/threads", Gives::Nothing),
    ("/ceilings/flops_per_s", Gives::Nothing),
    ("/ceilings/read_bytes_per_s", Gives::Nothing),
    ("/command/_", Gives::Nothing),
    ("/build/version", Gives::Nothing),
    ("/build/commit", Gives::Nothing),
    ("/build/features", Gives::Nothing),
    ("/starts/_/time_s", Gives::Nothing),
    // The second start: the steps before it had the old value.
    ("/starts/_/step", Gives::Kind("lineage")),
    ("/starts/_/prompt_time_s", Gives::Nothing),
    ("/starts/_/isa", Gives::Nothing),
    ("/starts/_/device", Gives::Nothing),
    ("/starts/_/build/version", Gives::Nothing),
    ("/starts/_/build/commit", Gives::Nothing),
    ("/starts/_/build/features", Gives::Nothing),
    ("/starts/_/command/_", Gives::Nothing),
    ("/starts/_/changed/_", Gives::Refused),
    // What is left out, and no leaf.
    ("/model", Gives::Kind("hash")),
    ("/prompt_files", Gives::Kind("hash")),
    ("/data", Gives::Kind("hash")),
];

/// A record with a value in every field. A new field does not compile here, and then has no row.
fn full(record: RunRecord, file: &Path) -> RunRecord {
    let RunRecord {
        kind,
        versions,
        isa,
        device,
        arithmetic,
        dtype,
        threads,
        seed,
        config_sha256,
        model,
        prompt_files,
        reference,
        data,
        command,
        build,
        starts,
        ..
    } = record;
    // That of the process, or nothing would be compared that another build may do otherwise.
    let build_of = |build: Option<Build>| {
        let Build { version, commit, modified, features } = build.unwrap_or_default();
        Some(Build { version, commit, modified, features })
    };
    let start = |start: Start| {
        let Start { time_s, step, prompt_time_s, isa, device, build, command, changed } = start;
        Start { time_s, step, prompt_time_s, isa, device, build: build_of(build), command, changed }
    };
    RunRecord {
        kind,
        versions,
        isa,
        device,
        arithmetic,
        dtype,
        threads,
        seed,
        config_sha256,
        model,
        prompt_files,
        reference,
        data,
        rewards: vec![FileHash { name: file.display().to_string(), bytes: Some(1), sha256: "12".into() }],
        isolation: Map::from_iter([("code".to_owned(), json!("bubblewrap"))]),
        forked_from: Some(ForkedFrom { run: "elsewhere".into(), step: 1, lineage: Some("ab".into()) }),
        ceilings: Some(MeasuredCeilings {
            time_s: 1,
            isa: "avx2".into(),
            dtype: "f32".into(),
            threads: 1,
            flops_per_s: 1.5,
            read_bytes_per_s: 2.5,
        }),
        command,
        build: build_of(build),
        starts: starts.into_iter().map(start).collect(),
    }
}

#[test]
fn a_lie_in_any_field_of_the_record_is_found_or_in_the_list() {
    let dir = directory();
    let root = small(dir.path(), |config| {
        config.ref_model = Some(dir.path().join("model").display().to_string());
        config.max_steps = 1;
    });
    // A resume with another learning rate.
    let config = Config { learning_rate: 0.02, max_steps: 2, ..resolved(&root) };
    resume(&root, config);
    let path = root.join("record.json");
    let record = full(RunRecord::read(&path).unwrap(), &dir.path().join("d.jsonl"));
    let good = serde_json::to_value(&record).unwrap();
    fs::write(&path, good.to_string()).unwrap();
    let report = verified(&root);
    assert!(report.difference.is_none() && report.not_verified.is_empty(), "{report:?}");
    let mut all = Vec::new();
    leaves("", &good, &mut all);
    all.extend(["/model", "/prompt_files", "/data"].map(str::to_owned));
    let mut rows = BTreeSet::new();
    for leaf in all {
        let place = |part: &str| if part.parse::<usize>().is_ok() { "_".to_owned() } else { part.to_owned() };
        let row = leaf.split('/').map(place).collect::<Vec<_>>().join("/");
        if row.starts_with("/starts") && !leaf.starts_with("/starts/1") {
            continue;
        }
        let found = OF_RECORD.iter().find(|(name, _)| *name == row);
        let (_, gives) = found.unwrap_or_else(|| panic!("record.json has the field {row}, of which there is no row"));
        rows.insert(row.clone());
        let mut lied = good.clone();
        match lied.pointer_mut(&leaf).unwrap() {
            list @ Value::Array(_) if !leaf.ends_with("features") => *list = json!([]),
            value => other_json(value),
        }
        fs::write(&path, lied.to_string()).unwrap();
        let report = verified(&root);
        match gives {
            Gives::Kind(kind) => assert_eq!(report.difference.map(|found| found.kind).as_deref(), Some(*kind), "{leaf}"),
            Gives::Refused => assert!(report.proven.len() < 2 && !report.not_verified.is_empty(), "{leaf}: {report:?}"),
            Gives::Nothing => {
                assert!(report.difference.is_none() && report.not_verified.is_empty(), "{leaf}: {report:?}");
                is_documented("`record.json`", row.split('/').nth(1).unwrap());
            }
        }
    }
    let without_leaf: Vec<&str> = OF_RECORD.map(|(row, _)| row).into_iter().filter(|row| !rows.contains(*row)).collect();
    assert!(without_leaf.is_empty(), "no record has the fields {without_leaf:?}");
}

fn resolved(root: &Path) -> Config {
    let layers = crate::config::Layers {
        purpose: Purpose::Grpo,
        file: Some(root.join("config.toml")),
        ..crate::config::Layers::default()
    };
    layers.resolve().unwrap().config
}

/// Resumes the run from its last checkpoint, with the configuration `config`.
fn resume(root: &Path, config: Config) {
    let (dir, from) = crate::run::resume::find_run(&root.to_string_lossy(), None).unwrap();
    let ctx = crate::context(None, Some(1), config.dtype).unwrap();
    let layers = crate::config::Layers {
        purpose: Purpose::Grpo,
        file: Some(root.join("config.toml")),
        ..crate::config::Layers::default()
    };
    let mut resolved = layers.resolve().unwrap();
    resolved.config = config;
    Run::resolved(Purpose::Grpo, resolved, dir, from, RunOptions::new().context(ctx)).unwrap().run().unwrap();
}

/// Updates, which a run records of some groups: their log-probabilities alone are not compared.
#[test]
fn a_lie_in_any_column_of_the_updates_is_found() {
    let dir = directory();
    let root = small(dir.path(), |_| {});
    let path = root.join("updates.bin");
    let update = |group: &Group| {
        let completion = |(place, c): (usize, &Completion)| Completion {
            mask: c.mask.clone(),
            columns: Columns::of([(NEW_LOGPS, vec![-0.5; c.ids.len()])]),
            ..Completion::new(place, c.ids.clone())
        };
        let completions = group.completions.iter().enumerate().map(completion).collect();
        let (id, step, prompt_ids) = (group.id, group.step, group.prompt_ids.clone());
        records([&Group { id, step, prompt_ids, completions, ..Group::default() }])
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
        ("a mask", invented(|g| g.completions[0].mask[0] ^= true)),
        ("a score", invented(|g| {
            g.reward_names = vec!["r".into()];
            g.completions.iter_mut().for_each(|c| c.rewards = vec![Some(999.0)]);
        })),
        ("one log-probability of each two", invented(|g| drop(g.completions[0].columns.remove(NEW_LOGPS)))),
        ("another number", invented(|g| g.id = 99)),
        ("another step", invented(|g| g.step = Some(2))),
        ("no step", invented(|g| g.step = None)),
    ];
    for (what, lie) in rows {
        write(&path, &[lie, good[1].clone()]);
        assert_eq!(convicted(&root, what).kind, "update", "{what}");
    }
    // Of steps that were not recorded, nothing is known.
    write(&path, &[invented(|g| (g.id, g.step) = (99, Some(7)))]);
    proven(&root, "an update of a step beyond the record");
}

/// What people add to a result, and what they must not.
#[test]
fn a_result_has_the_files_of_its_checkpoint_and_texts_beside_them() {
    let dir = directory();
    let root = small(dir.path(), |config| config.max_steps = 1);
    proven(&root, "the result as it was");
    let file = GroupFile::open(&root.join("rollouts.bin")).unwrap();
    assert_eq!(file.index().len(), 2);
    let result = root.join("model");
    for name in files::ADDED {
        fs::write(result.join(name), "a text").unwrap();
        proven(&root, name);
        is_documented("`model/`", name);
    }
    let mut model: Vec<PathBuf> = fs::read_dir(&result).unwrap().map(|entry| entry.unwrap().path()).collect();
    model.retain(|path| !files::ADDED.iter().any(|name| path.ends_with(name)));
    assert!(model.len() >= 4, "{model:?}");
    for path in &model {
        let bytes = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        let found = convicted(&root, &path.display().to_string());
        let expected = (&*path.display().to_string(), "none", "the file");
        assert_eq!((&*found.place.unwrap(), &*found.recorded, &*found.remade), expected);
        fs::write(path, bytes).unwrap();
    }
    proven(&root, "the result as it was");
    // All at once, as of a directory that was emptied.
    let kept: Vec<Vec<u8>> = model.iter().map(|path| fs::read(path).unwrap()).collect();
    model.iter().for_each(|path| fs::remove_file(path).unwrap());
    assert_eq!(convicted(&root, "an empty directory").kind, "file");
    model.iter().zip(kept).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    proven(&root, "the result as it was");
}
