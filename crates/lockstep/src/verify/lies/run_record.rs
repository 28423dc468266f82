//! Wrong values in `record.json`.

use super::checkpoint::leaves;
use super::*;
use crate::rollouts::wire::lies::other_json;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use telemetry::RunRecord;
use telemetry::build::Build;
use telemetry::record::{FileHash, ForkedFrom, MeasuredCeilings, Start};

/// The expected result of a wrong value in a field of `record.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gives {
    /// A difference of this kind.
    Kind(&'static str),
    /// The run cannot be verified.
    Refused,
    /// Nothing is reported, and docs/verify.md lists the field.
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
    ("/ceilings/load", Gives::Nothing),
    ("/command/_", Gives::Nothing),
    ("/build/version", Gives::Nothing),
    ("/build/commit", Gives::Nothing),
    ("/build/features", Gives::Nothing),
    ("/starts/_/time_s", Gives::Nothing),
    // The old value applies to the steps before the second start.
    ("/starts/_/step", Gives::Kind("lineage")),
    ("/starts/_/prompt_time_s", Gives::Nothing),
    ("/starts/_/isa", Gives::Nothing),
    ("/starts/_/device", Gives::Nothing),
    ("/starts/_/build/version", Gives::Nothing),
    ("/starts/_/build/commit", Gives::Nothing),
    ("/starts/_/build/features", Gives::Nothing),
    ("/starts/_/command/_", Gives::Nothing),
    // The end of the line is the new value, as in `config.toml`. Wrong old values are tested below.
    ("/starts/_/changed/_", Gives::Nothing),
    // Fields that are skipped as a whole, and are not leaves.
    ("/model", Gives::Kind("hash")),
    ("/prompt_files", Gives::Kind("hash")),
    ("/data", Gives::Kind("hash")),
];

/// A record with a value in every field. A new field is a compile error here, until it has a row.
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
    // Keeps the build of this process: with another build, values that may legitimately differ would not be compared.
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
        forked_from: Some(ForkedFrom { run: "elsewhere".into(), step: Step(1), lineage: Some("ab".into()) }),
        ceilings: Some(MeasuredCeilings {
            time_s: 1,
            isa: "avx2".into(),
            dtype: "f32".into(),
            threads: 1,
            flops_per_s: 1.5,
            read_bytes_per_s: 2.5,
            load: Some(0.125),
        }),
        command,
        build: build_of(build),
        starts: starts.into_iter().map(start).collect(),
    }
}

#[test]
fn a_changed_field_of_record_json_is_reported_or_listed() {
    let dir = directory();
    let root = small(dir.path(), |config| {
        config.ref_model = Some(dir.path().join("model").display().to_string());
        config.max_steps = 1;
    });
    // The run is resumed with another learning rate.
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
        let (_, gives) = found.unwrap_or_else(|| panic!("record.json has the field {row}, but the table lacks it"));
        rows.insert(row.clone());
        let mut lied = good.clone();
        match lied.pointer_mut(&leaf).unwrap() {
            list @ Value::Array(_) if !leaf.ends_with("features") => *list = json!([]),
            value => other_json(value),
        }
        fs::write(&path, lied.to_string()).unwrap();
        let report = verified(&root);
        match gives {
            Gives::Kind(kind) => {
                assert_eq!(report.difference.map(|found| found.kind).as_deref(), Some(*kind), "{leaf}")
            }
            Gives::Refused => assert!(report.proven.len() < 2 && !report.not_verified.is_empty(), "{leaf}: {report:?}"),
            Gives::Nothing => {
                assert!(report.difference.is_none() && report.not_verified.is_empty(), "{leaf}: {report:?}");
                is_documented("`record.json`", row.split('/').nth(1).unwrap());
            }
        }
    }
    // The line records the value of the steps before the resume.
    let changed = &record.starts[1].changed;
    let rate = changed
        .iter()
        .position(|line| line.starts_with("learning_rate was 0.01"))
        .unwrap_or_else(|| panic!("{changed:?}"));
    type Lie = fn(&mut Vec<String>, usize);
    let start_lies: [(&str, Lie); 3] = [
        ("another old value", |lines, rate| lines[rate] = lines[rate].replace("was 0.01", "was 0.03")),
        ("another key", |lines, rate| lines[rate] = "beta was 0.2, now 0.1".to_owned()),
        ("no change", |lines, rate| drop(lines.remove(rate))),
    ];
    for (what, lie) in start_lies {
        let mut lied = record.clone();
        lie(&mut lied.starts[1].changed, rate);
        fs::write(&path, lied.to_bytes().unwrap()).unwrap();
        assert_eq!(convicted(&root, what).kind, "lineage", "{what}");
    }
    let without_leaf: Vec<&str> =
        OF_RECORD.map(|(row, _)| row).into_iter().filter(|row| !rows.contains(*row)).collect();
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
