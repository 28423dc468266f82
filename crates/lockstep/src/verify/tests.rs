//! Runs of a tiny model that are verified and forked: proven parts, parts that cannot be verified, and wrong values
//! that are reported.

use super::*;
use crate::config::{Algorithm, ComputeDType, Config};
use crate::rollouts::wire::Group;
use crate::rollouts::wire::file::{GroupFile, GroupLog};
use model::io::FileList;
use model::tokenizer::{SpecialTokens, Tokenizer};
use model::{GroupId, ModelConfig, Weights};
use std::cell::RefCell;
use std::fs;
use std::sync::Arc;
use telemetry::RunRecord;
use telemetry::record::Start;

const SHAPE: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40,
"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}"#;

/// A directory with a tiny model with random weights, and a dataset.
pub(crate) fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = Arc::new(ModelConfig::parse(SHAPE).unwrap());
    let ctx = crate::context(None, Some(1), ComputeDType::F32).unwrap();
    let weights = Weights::random(ctx.memory(), &config, 1).unwrap();
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    let target = dir.path().join("model");
    Tokenizer::characters("abcdefghijklmnopqrstuvwxyz .,?".chars(), &special).unwrap().save(&target).unwrap();
    model::io::save_model(&target, &config, &weights, None, Default::default()).unwrap();
    let rows = ["ab", "sun", "moon", "tree", "x", "river"].map(|word| format!("{{\"prompt\": \"{word} \"}}\n"));
    fs::write(dir.path().join("d.jsonl"), rows.concat()).unwrap();
    dir
}

/// A run of six steps with two groups each, and a checkpoint after every second step. Returns its directory.
pub(crate) fn run(dir: &Path, change: impl FnOnce(&mut Config)) -> PathBuf {
    let root = dir.join("run");
    let mut config = Config {
        model_name_or_path: Some(dir.join("model").display().to_string()),
        dataset_name: Some(dir.join("d.jsonl").display().to_string()),
        output_dir: Some(root.clone()),
        reward_funcs: vec!["unique_chars".into()],
        num_generations: 2,
        per_device_train_batch_size: 4,
        max_completion_length: 6,
        learning_rate: 0.01,
        max_steps: 6,
        logging_steps: 1,
        save_steps: 2,
        record_rollouts: true,
        record_updates: false,
        threads: Some(1),
        ..Config::default()
    };
    change(&mut config);
    let ctx = crate::context(None, Some(1), config.dtype).unwrap();
    Run::new(Purpose::Grpo, config, RunOptions::new().context(ctx)).unwrap().run().unwrap();
    root
}

fn quiet(_: &str) {}

fn options(choice: Choice) -> VerifyOptions<'static> {
    VerifyOptions { choice, threads: None, model: None, dataset: None, stop: StopSignal::new(), say: &quiet }
}

pub(super) fn verified(root: &Path) -> Report {
    verify(root, &options(Choice::All)).unwrap()
}

pub(super) fn interval(from: u64, to: u64) -> Interval {
    Interval { from: Step(from), to: Step(to) }
}

pub(super) fn groups(root: &Path) -> Vec<Group> {
    GroupFile::open(&root.join("rollouts.bin")).unwrap().groups().map(Result::unwrap).collect()
}

/// Rewrites the run's recorded groups.
fn record(root: &Path, groups: &[Group]) {
    for name in ["rollouts.bin", "rollouts.idx"] {
        fs::remove_file(root.join(name)).unwrap();
    }
    let mut bytes = Vec::new();
    for group in groups {
        group.write(&mut bytes);
    }
    GroupLog::open(&root.join("rollouts.bin")).unwrap().append(&bytes).unwrap();
}

/// Changes the last bit of a file of tensors, and renames its checksum, so that readers ignore it. The file is replaced
/// by a new one, because other directories may link to the old one.
fn flip_last_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(6).position(|name| name == b"\"xxh3\"").unwrap();
    bytes[at + 4] = b'X';
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn all_proven_parts_are_reported() {
    let dir = directory();
    let root = run(dir.path(), |_| {});
    let messages = RefCell::new(Vec::new());
    let say = |text: &str| messages.borrow_mut().push(text.to_owned());
    let report = verify(&root, &VerifyOptions { say: &say, ..options(Choice::All) }).unwrap();
    assert_eq!(report.proven, [interval(0, 2), interval(2, 4), interval(4, 6)]);
    let tokens: usize = groups(&root).iter().map(Group::tokens).sum();
    assert_eq!((report.groups, report.tokens, report.groups_of_checkpoints), (12, tokens as u64, 0));
    assert_eq!((report.rewards_asked, report.rewards_recorded), (vec!["unique_chars".to_owned()], vec![]));
    let files = RunRecord::read(&root.join("record.json")).unwrap();
    let prompts = files.prompt_files.iter().flatten();
    let names: Vec<String> = files.model.iter().chain(prompts).chain(&files.data).map(|f| f.name.clone()).collect();
    let found: std::collections::BTreeSet<&String> = report.hashes.iter().collect();
    assert_eq!(found, names.iter().collect());
    assert_eq!((report.result, report.difference, report.not_verified), (Some(Step(6)), None, vec![]));
    assert_eq!(*messages.borrow(), ["replaying steps 1 to 2", "replaying steps 3 to 4", "replaying steps 5 to 6"]);

    // Each interval begins with a checkpoint.
    let chosen = |seed: u64| verify(&root, &options(Choice::Random { steps: 2, seed })).unwrap();
    let reports: Vec<Report> = (0..6).map(chosen).collect();
    assert!(
        reports.iter().all(|report| report.proven.len() == 1 && report.groups == 4 && report.result == Some(Step(6)))
    );
    assert!(reports.iter().any(|report| report.proven[0].from > Step(0)));

    // The options locate files that were moved.
    fs::rename(dir.path().join("model"), dir.path().join("moved")).unwrap();
    fs::rename(dir.path().join("d.jsonl"), dir.path().join("e.jsonl")).unwrap();
    assert!(verify(&root, &options(Choice::All)).is_err());
    let (model, dataset) = (Some(dir.path().join("moved")), Some(dir.path().join("e.jsonl")));
    let moved = VerifyOptions { model, dataset, threads: Some(2), ..options(Choice::Random { steps: 1, seed: 0 }) };
    let report = verify(&root, &moved).unwrap();
    assert_eq!((report.proven.len(), report.difference), (1, None));
}

#[test]
fn duplicate_and_missing_groups_are_reported() {
    let dir = directory();
    let root = run(dir.path(), |config| config.max_steps = 4);
    let recorded = groups(&root);
    assert_eq!(
        recorded.iter().map(|group| (group.group.0, group.step.unwrap().0)).collect::<Vec<_>>(),
        [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4),]
    );
    let group = |id: u64, step: u64, recorded: &str, remade: &str| Difference {
        step: Some(Step(step)),
        group: Some(GroupId(id)),
        kind: "group".into(),
        recorded: recorded.into(),
        remade: remade.into(),
        ..Difference::default()
    };
    let without = |id: u64| recorded.iter().filter(|group| group.group.0 != id).cloned().collect::<Vec<_>>();
    record(&root, &without(5));
    let report = verified(&root);
    assert_eq!(report.difference, Some(group(5, 3, "none", "2 completions")));
    assert_eq!((report.proven, report.groups), (vec![interval(0, 2)], 5));
    let more = Group { group: GroupId(99), ..recorded[1].clone() };
    record(&root, &[&recorded[..], &[more]].concat());
    let report = verified(&root);
    assert_eq!(report.difference, Some(group(99, 2, "a group", "none: no step learned from it")));
    assert_eq!((report.proven, report.groups), (vec![], 4));
    // The second interval has no recorded groups, which is not a difference.
    record(&root, &recorded[..4]);
    let report = verified(&root);
    assert_eq!((report.proven, report.difference), (vec![interval(0, 2)], None));
    assert_eq!(report.not_verified, ["steps 3 to 4: no groups were recorded (record_rollouts was false then)"]);
    // There are steps after the last checkpoint.
    record(&root, &recorded);
    fs::remove_dir_all(root.join("checkpoints/step-000004")).unwrap();
    fs::remove_dir_all(root.join("model")).unwrap();
    let report = verified(&root);
    assert_eq!((report.proven, report.difference, report.result), (vec![interval(0, 2)], None, None));
    assert_eq!(report.not_verified, ["steps 3 to 4: the run left no checkpoint after them"]);
    // All checkpoints are missing.
    fs::remove_dir_all(root.join("checkpoints/step-000002")).unwrap();
    let [why] = &verified(&root).not_verified[..] else { panic!("one reason") };
    assert!(why.contains("has fewer than two states to replay between"), "{why}");
}

#[test]
fn changed_files_are_reported_with_their_step() {
    let dir = directory();
    let root = run(dir.path(), |_| {});
    let checkpoint = root.join("checkpoints/step-000004");
    let (weights, result) = (checkpoint.join("model.safetensors"), root.join("model/model.safetensors"));
    let (good, good_result) = (fs::read(&weights).unwrap(), fs::read(&result).unwrap());
    // The file is linked to the last checkpoint's file.
    flip_last_bit(&result);
    let report = verified(&root);
    let found = report.difference.unwrap();
    assert_eq!((found.kind.as_str(), found.step, report.result), ("weight", Some(Step(6)), None));
    assert!(found.place.unwrap().starts_with(&format!("{}, ", result.display())));
    assert_eq!(report.proven.len(), 3);
    fs::remove_file(&result).unwrap();
    fs::write(&result, good_result).unwrap();

    // The change is reported with and without the checkpoint's list of files.
    flip_last_bit(&weights);
    let report = verified(&root);
    let found = report.difference.unwrap();
    assert_eq!(
        (found.kind.as_str(), found.step, found.recorded.as_str()),
        ("hash", Some(Step(4)), "the checkpoint's own checksums")
    );
    assert!(found.remade.contains("model.safetensors") && !found.remade.contains("no earlier checkpoint exists"));
    assert_eq!(report.proven, [interval(0, 2)]);
    FileList::of(&checkpoint, model::Step(4)).unwrap().write(&checkpoint).unwrap();
    let report = verified(&root);
    let found = report.difference.unwrap();
    assert_eq!((found.kind.as_str(), found.step, report.proven), ("weight", Some(Step(4)), vec![interval(0, 2)]));
    fs::write(&weights, good).unwrap();
    FileList::of(&checkpoint, model::Step(4)).unwrap().write(&checkpoint).unwrap();
    assert_eq!(verified(&root).difference, None);

    // The data differ from the record.
    let (path, text) = (dir.path().join("d.jsonl"), fs::read_to_string(dir.path().join("d.jsonl")).unwrap());
    fs::write(&path, text.replace("moon", "mood")).unwrap();
    let report = verified(&root);
    let found = report.difference.unwrap();
    assert_eq!((found.kind.as_str(), found.place), ("hash", Some(path.display().to_string())));
    assert!(found.recorded != found.remade && report.proven.is_empty());
    let data = &RunRecord::read(&root.join("record.json")).unwrap().data;
    assert_eq!(found.recorded, data[0].sha256);
    fs::write(&path, text).unwrap();
    // The model's files differ, too.
    let config = dir.path().join("model/config.json");
    fs::write(&config, fs::read_to_string(&config).unwrap() + " ").unwrap();
    let found = verified(&root).difference.unwrap();
    assert_eq!((found.kind.as_str(), found.place), ("hash", Some(config.display().to_string())));
}

/// The value model is in its own directory in the checkpoint.
#[test]
fn a_changed_value_model_is_reported() {
    let dir = directory();
    let root = run(dir.path(), |config| {
        (config.algorithm, config.num_generations, config.max_steps) = (Algorithm::Ppo, 1, 4);
    });
    assert_eq!(verified(&root).difference, None);
    let checkpoint = root.join("checkpoints/step-000002");
    let weights = checkpoint.join("value_model/model.safetensors");
    flip_last_bit(&weights);
    FileList::of(&checkpoint, model::Step(2)).unwrap().write(&checkpoint).unwrap();
    let found = verified(&root).difference.unwrap();
    assert_eq!((found.kind.as_str(), found.step), ("weight", Some(Step(2))));
    assert!(found.place.unwrap().starts_with(&format!("{}, ", weights.display())));
}

#[test]
fn each_step_has_the_configuration_of_its_start() {
    let dir = directory();
    let root = run(dir.path(), |config| config.max_steps = 4);
    let mut opened = RecordedRun::open(&root, &options(Choice::All)).unwrap();
    assert_eq!(opened.checkpoints.iter().map(|(step, _)| step.0).collect::<Vec<_>>(), [2, 4]);
    let start = |step: u64, changed: &[&str]| Start {
        step: Step(step),
        changed: changed.iter().map(|&line| line.to_owned()).collect(),
        ..Start::default()
    };
    opened.record.starts = vec![
        start(0, &[]),
        start(2, &["learning_rate was 0.02, now 0.01"]),
        start(2, &["logging_steps was 5, now 1"]),
        start(3, &["temperature was 0.5, now 1.0"]),
    ];
    let starts = |step: u64| opened.starts_of(Step(step)).len();
    assert_eq!([0, 1, 2, 3, 4].map(starts), [0, 1, 1, 3, 4]);
    // A key that affects bits changes between two checkpoints.
    let mut report = Report::default();
    let intervals = opened.intervals(&mut report);
    assert_eq!(intervals, [interval(0, 2)]);
    let why = "the configuration was changed after step 3, whose checkpoint no longer exists";
    assert_eq!(report.not_verified, [format!("steps 3 to 4: {why}")]);
    let missing = opened.resolved_of(interval(2, 4)).err().unwrap();
    assert!(missing.is::<NotVerifiable>() && missing.to_string() == format!("steps 3 to 4: {why}"));
    // A change at the end of an interval is not inside it.
    let found = opened.resolved_of(interval(3, 4)).unwrap().config;
    assert_eq!((found.temperature, found.learning_rate), (1.0, 0.01));
    opened.record.starts.pop();
    let mut report = Report::default();
    assert_eq!(opened.intervals(&mut report), [interval(0, 2), interval(2, 4)]);
    assert!(report.not_verified.is_empty());
    let (before, after) = (opened.resolved_of(interval(0, 2)).unwrap(), opened.resolved_of(interval(2, 4)).unwrap());
    assert_eq!((before.config.learning_rate, after.config.learning_rate), (0.02, 0.01));
    assert_eq!((before.config.logging_steps, after.config.logging_steps), (1, 1), "the key affects no bits");
    assert!(!opened.same_inputs(interval(0, 2), interval(2, 4)));
    // A key that does not affect bits may differ, and may change anywhere.
    opened.record.starts = vec![start(0, &[]), start(1, &["logging_steps was 5, now 1"])];
    assert!(opened.same_inputs(interval(0, 2), interval(2, 4)));
    assert!(opened.resolved_of(interval(0, 2)).is_ok());

    let replayed = opened.replay_config(interval(2, 4)).unwrap().config;
    assert!(replayed.record_rollouts && !replayed.record_updates && !replayed.tensorboard && !replayed.log_completions);
    assert_eq!((opened.step_of_result().unwrap(), opened.config().threads), (Some(Step(4)), Some(1)));
}

#[test]
fn runs_that_cannot_be_verified_are_refused_with_the_reason() {
    let dir = directory();
    let root = run(dir.path(), |config| config.max_steps = 2);
    let path = root.join("record.json");
    let good = RunRecord::read(&path).unwrap();
    let [other_kind, other_arithmetic] = [
        RunRecord { kind: "sft".into(), ..good.clone() },
        RunRecord { arithmetic: "other".into(), isa: "strange".into(), ..good.clone() },
    ];
    let why = |record: &RunRecord| {
        fs::write(&path, record.to_bytes().unwrap()).unwrap();
        let report = verified(&root);
        assert!(report.proven.is_empty() && report.difference.is_none());
        report.not_verified.concat()
    };
    assert!(why(&other_kind).contains("is a run of `lockstep sft`: only runs of `lockstep train` record"));
    assert!(
        why(&other_arithmetic).contains("the run's matmuls are other on strange")
            && why(&other_arithmetic).contains("LOCKSTEP_ISA=strange")
    );
    // An older record does not name its arithmetic.
    let older = RunRecord { arithmetic: String::new(), ..good.clone() };
    fs::write(&path, older.to_bytes().unwrap()).unwrap();
    let report = verified(&root);
    assert_eq!((report.proven, report.not_verified), (vec![interval(0, 2)], vec![]));
    let with_file = |name: &Path| RunRecord {
        rewards: vec![telemetry::record::FileHash {
            name: name.display().to_string(),
            sha256: "12".into(),
            bytes: None,
        }],
        ..good.clone()
    };
    let gone = dir.path().join("r.py");
    assert!(
        why(&with_file(&gone)).contains("r.py, a file of a reward, is missing")
            && why(&with_file(&gone)).contains("SHA-256 12")
    );
    fs::write(&gone, "").unwrap();
    let report = {
        fs::write(&path, with_file(&gone).to_bytes().unwrap()).unwrap();
        verified(&root)
    };
    assert_eq!(report.proven.len(), 1);
    fs::write(&path, "{").unwrap();
    assert!(verified(&root).not_verified[0].ends_with("is missing or damaged: the sources of the run are unknown"));
    fs::write(&path, good.to_bytes().unwrap()).unwrap();
    fs::write(root.join("rollouts.bin"), "rubbish, and more than sixteen bytes").unwrap();
    assert!(verified(&root).not_verified[0].starts_with("it is damaged: "));
    fs::remove_file(root.join("rollouts.bin")).unwrap();
    assert!(verified(&root).not_verified[0].contains("rollouts.bin is missing or empty"));
}

#[test]
fn a_fork_is_replayed_from_the_last_checkpoint_before_it() {
    let dir = directory();
    let root = run(dir.path(), |_| {});
    let forked = |at: u64| {
        let (out, messages) = (dir.path().join(format!("fork-{at}")), RefCell::new(Vec::new()));
        let say = |text: &str| messages.borrow_mut().push(text.to_owned());
        let path = fork(&root, &ForkOptions { at: Step(at), out: &out, stop: StopSignal::new(), say: &say })?;
        let mut steps: Vec<String> = fs::read_dir(out.join("checkpoints"))?
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        steps.sort();
        let record = RunRecord::read(&out.join("record.json"))?;
        anyhow::Ok((out, path, messages.into_inner(), steps, record.forked_from.unwrap()))
    };
    let (out, path, messages, steps, from) = forked(5).unwrap();
    assert_eq!(
        (path, messages, steps),
        (
            out.join("checkpoints/step-000005"),
            vec!["replaying step 5".to_owned()],
            vec!["step-000004".to_owned(), "step-000005".to_owned()]
        )
    );
    assert_eq!((from.run, from.step.0), (root.display().to_string(), 5));
    // The lineage is that of the weights that sampled the sixth step's groups.
    let sampled =
        groups(&root).iter().find(|group| group.step == Some(Step(6))).and_then(|group| group.lineage).unwrap();
    assert_eq!(from.lineage, Some(sampled.to_string()));
    let ids = |root: &Path| groups(root).iter().map(|group| group.group.0).collect::<Vec<_>>();
    assert_eq!(ids(&out), (0..10).collect::<Vec<u64>>());

    let (out, path, messages, steps, from) = forked(4).unwrap();
    assert_eq!((path, messages, steps), (out.join("checkpoints/step-000004"), vec![], vec!["step-000004".to_owned()]));
    assert!(from.step == Step(4) && from.lineage.is_some());
    let (out, path, messages, steps, from) = forked(1).unwrap();
    assert_eq!(
        (path, messages, steps),
        (out.join("checkpoints/step-000001"), vec!["replaying step 1".to_owned()], vec!["step-000001".to_owned()])
    );
    assert_eq!((from.step.0, ids(&out)), (1, vec![0, 1]));
    let (out, path, messages, steps, from) = forked(0).unwrap();
    assert_eq!((path, messages, steps), (out, vec![], vec![]));
    assert_eq!((from.step.0, from.lineage), (0, None));
    let error = forked(9).unwrap_err();
    assert!(is_bad_input(&error));
    assert_eq!(error.to_string(), format!("{} ended after step 6, before --at 9", root.display()));

    // A fork compares its steps with the record.
    let mut lied = groups(&root);
    lied[9].completions[1].ids[0] ^= 1;
    record(&root, &lied);
    fs::remove_dir_all(dir.path().join("fork-5")).unwrap();
    let refused = forked(5).unwrap_err().to_string();
    let words = format!(
        "the replay of {} differs from its record: step 5, group 9, completion 1, token 0: token",
        root.display()
    );
    assert!(refused.starts_with(&words), "{refused}");
    // A run that cannot be verified cannot be forked either.
    fs::remove_file(root.join("record.json")).unwrap();
    fs::remove_dir_all(dir.path().join("fork-5")).unwrap();
    let error = forked(5).unwrap_err();
    assert!(is_bad_input(&error) && error.to_string().contains("record.json is missing or damaged"), "{error}");
}
