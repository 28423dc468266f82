//! `lockstep verify`: a run is proven regardless of which processes executed and replay it, and each forged value is
//! detected.

use crate::support::runs::{arguments, directory, good};
use crate::support::{RunOutput, command, lockstep};
use lockstep::wire::file::{GroupFile, GroupLog};
use lockstep::wire::{Group, RecordReader};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const RECORDED: &[&str] = &["record_rollouts=true", "max_steps=6", "eval_strategy=no", "logging_steps=1"];

fn verify(root: &Path, run: &str, more: &[&str], isa: &str) -> (RunOutput, Value) {
    let arguments = [&["verify", run, "--json"], more].concat();
    let mut command = command(root, &arguments);
    if !isa.is_empty() {
        command.env("LOCKSTEP_ISA", isa);
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let printed = RunOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
    let report = serde_json::from_str(&printed.out).unwrap_or_else(|_| panic!("{}{}", printed.out, printed.err));
    (printed, report)
}

#[track_caller]
fn proven(root: &Path, run: &str, more: &[&str], isa: &str) -> Value {
    let (printed, report) = verify(root, run, more, isa);
    assert_eq!(printed.code, Some(0), "{}{}", printed.out, printed.err);
    report
}

/// The difference that is reported for a copy of the run, changed by `lie`.
#[track_caller]
fn difference(root: &Path, lie: impl FnOnce(&Path)) -> Value {
    let copy = root.join("copy");
    let _ = fs::remove_dir_all(&copy);
    assert!(Command::new("cp").args(["-r", "run", "copy"]).current_dir(root).status().unwrap().success());
    lie(&copy);
    let (printed, report) = verify(root, "copy", &["--all"], "");
    assert_eq!(printed.code, Some(1), "{}{}", printed.out, printed.err);
    report["difference"].clone()
}

/// Changes the recorded group with this number.
fn change(run: &Path, id: u64, lie: impl Fn(&mut Group)) {
    let path = run.join("rollouts.bin");
    let groups: Vec<Group> = GroupFile::open(&path).unwrap().groups().map(Result::unwrap).collect();
    fs::remove_file(&path).unwrap();
    fs::remove_file(run.join("rollouts.idx")).unwrap();
    let mut log = GroupLog::open(&path).unwrap();
    for mut group in groups {
        if group.group.0 == id {
            lie(&mut group);
        }
        let mut record = Vec::new();
        group.write(&mut record);
        log.append(&record).unwrap();
    }
}

#[test]
fn a_run_is_proven_with_other_threads_and_instruction_sets() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", &[RECORDED, &["threads=1", "num_iterations=2", "beta=0.1"]].concat()));
    let report = proven(root, "run", &["--all", "--threads", "2"], "portable");
    assert_eq!(report["proven"].as_array().unwrap().len(), 3, "{report}");
    assert_eq!((report["groups"].as_u64(), report["result"].as_u64()), (Some(6), Some(6)), "{report}");
    assert_eq!(report["rewards_asked"][0], "unique_chars");
    assert!(report["hashes"].as_array().unwrap().iter().any(|name| name == "model.safetensors"), "{report}");
    // The seed selects the random steps.
    let drawn = proven(root, "run", &["--steps", "1", "--seed", "3"], "");
    assert_eq!(drawn["proven"].as_array().unwrap().len(), 1, "{drawn}");
    assert_eq!(drawn, proven(root, "run", &["--steps", "1", "--seed", "3"], ""));
    let text = good(root, &["verify", "run"]).out;
    assert!(text.contains("replayed from the initial model") && text.contains("proven: "), "{text}");
    assert!(!root.join("run/run.lock.new").exists());
}

#[test]
fn runs_of_every_kind_are_proven() {
    let dir = directory();
    let root = dir.path();
    let kinds: [&[&str]; 4] = [
        &["dtype=bf16", "use_peft=true", "lora_r=2", "max_staleness=1"],
        &["algorithm=ppo", "num_generations=1", "max_steps=8", "save_steps=4"],
        &["max_staleness=2", "partial_rollout_tokens=2", "num_iterations=2"],
        &["max_staleness=2", "save_total_limit=1", "vllm_importance_sampling_correction=true"],
    ];
    for (i, set) in kinds.into_iter().enumerate() {
        let out = format!("run-{i}");
        good(root, &arguments("train", &out, &[RECORDED, set].concat()));
        proven(root, &out, &["--all"], "");
    }
}

#[test]
fn a_run_with_workers_is_proven_and_a_forger_is_named() {
    let dir = directory();
    let root = dir.path();
    let set = [RECORDED, &["max_staleness=2", "num_iterations=2"]].concat();
    good(root, &[&arguments("train", "run", &set)[..], &["--distributed", "--workers", "2"]].concat());
    let report = proven(root, "run", &["--all"], "portable");
    assert_eq!(report["groups_of_checkpoints"], 0, "all groups must be sampled again: {report}");
    let some = proven(root, "run", &["--steps", "1", "--seed", "1"], "");
    assert!(some["groups"].as_u64() >= some["groups_of_checkpoints"].as_u64(), "{some}");

    // Completions are generated in chunks, by successive versions of the weights.
    let chunks = [&set[..], &["partial_rollout_tokens=2"]].concat();
    good(root, &[&arguments("train", "chunks", &chunks)[..], &["--distributed", "--workers", "2"]].concat());
    assert_eq!(proven(root, "chunks", &["--all"], "portable")["groups_of_checkpoints"], 0);
    proven(root, "chunks", &["--steps", "1", "--seed", "1"], "");

    // The report names the worker whose result was forged.
    let made_by = fs::read_to_string(root.join("run/fleet/made_by.jsonl")).unwrap();
    let lines = made_by.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    let of = |line: &Value, group: u64| {
        let found = line["groups"].as_object().unwrap().iter();
        let mut found = found.filter(|(_, groups)| groups.as_array().unwrap().contains(&group.into()));
        found.next().map(|(name, _)| name.clone())
    };
    let maker = lines.iter().find_map(|line| of(line, 4)).unwrap_or_else(|| panic!("{made_by}"));
    let token = difference(root, |run| change(run, 4, |g| g.completions[0].ids[1] ^= 1));
    assert_eq!((token["group"].as_u64(), token["worker"].as_str()), (Some(4), Some(&*maker)), "{token}");
    let plain = lockstep(root, &["verify", "copy", "--all"]);
    assert!(plain.out.contains(&format!("made by worker {maker}: token: recorded")), "{}", plain.out);
}

#[test]
fn forged_values_in_the_record_are_found() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", RECORDED));
    let of = |found: &Value, keys: &[&str]| -> Vec<i64> { keys.iter().map(|k| found[*k].as_i64().unwrap()).collect() };
    let place = ["step", "group", "completion"];

    let score = difference(root, |run| change(run, 5, |g| g.completions[1].rewards[0] = Some(0.75)));
    assert_eq!((score["kind"].as_str(), of(&score, &place)), (Some("score of `unique_chars`"), vec![3, 5, 1]));
    assert!(score["recorded"].as_str().unwrap().starts_with("0.75 (0x3fe8"), "{score}");

    let token = difference(root, |run| change(run, 4, |g| g.completions[0].ids[1] ^= 1));
    assert_eq!((token["kind"].as_str(), of(&token, &place)), (Some("token"), vec![3, 4, 0]));
    assert_eq!(token["token"], 1);

    let logp = difference(root, |run| {
        change(run, 7, |g| {
            let mut logps = g.completions[1].columns.sampler_logps().unwrap().to_vec();
            logps[0] = f32::from_bits(logps[0].to_bits() ^ 1);
            g.completions[1].columns.set("sampler_logps", logps);
        });
    });
    assert_eq!((logp["kind"].as_str(), of(&logp, &place)), (Some("log-probability"), vec![4, 7, 1]));

    assert!(logp.get("worker").is_none(), "a run without workers must not name a worker");
    let advantage =
        difference(root, |run| change(run, 0, |g| g.completions[0].advantage = Some(train::Advantage::Sequence(9.0))));
    assert_eq!((advantage["kind"].as_str(), of(&advantage, &place)), (Some("advantage"), vec![1, 0, 0]));

    let weight = difference(root, |run| lie_in_weights(&run.join("checkpoints/step-000004")));
    assert_eq!((weight["kind"].as_str(), weight["step"].as_i64()), (Some("weight"), Some(4)), "{weight}");
    assert!(weight["place"].as_str().unwrap().contains("step-000004/model.safetensors, "), "{weight}");

    let data = difference(root, |_| {
        let text = fs::read_to_string(root.join("d.jsonl")).unwrap();
        fs::write(root.join("d.jsonl"), text.replace("moon", "mood")).unwrap();
    });
    assert!(data["kind"] == "hash" && data["place"].as_str().unwrap().ends_with("d.jsonl"), "{data}");
    let text = fs::read_to_string(root.join("d.jsonl")).unwrap();
    fs::write(root.join("d.jsonl"), text.replace("mood", "moon")).unwrap();

    good(root, &arguments("train", "other", &[RECORDED, &["seed=7"]].concat()));
    let other = difference(root, |run| {
        for name in ["rollouts.bin", "rollouts.idx"] {
            fs::copy(root.join("other").join(name), run.join(name)).unwrap();
        }
    });
    assert_eq!((other["kind"].as_str(), of(&other, &place[..2])), (Some("lineage"), vec![1, 0]), "{other}");
}

/// The result has files that its checkpoint lacks, and a program that loads the result might prefer these files.
#[test]
fn a_forged_result_is_found() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", &[RECORDED, &["max_steps=2"]].concat()));
    good(root, &["verify", "run", "--all"]);
    type Forge = fn(&Path);
    let rows: [(&str, Forge); 5] = [
        ("model-00001-of-00001.safetensors", |model| {
            // The weights have a different file name, which an index gives.
            fs::rename(model.join("model.safetensors"), model.join("model-00001-of-00001.safetensors")).unwrap();
            let map = serde_json::json!({"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}});
            fs::write(model.join("model.safetensors.index.json"), map.to_string()).unwrap();
        }),
        ("adapter_model.safetensors", |model| {
            fs::copy(model.join("model.safetensors"), model.join("adapter_model.safetensors")).unwrap();
        }),
        ("chat_template.jinja", |model| fs::write(model.join("chat_template.jinja"), "{{ messages }}").unwrap()),
        ("tokenizer.json", |model| fs::remove_file(model.join("tokenizer.json")).unwrap()),
        ("model.safetensors", |model| {
            for entry in fs::read_dir(model).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        }),
    ];
    for (name, lie) in rows {
        let found = difference(root, |run| lie(&run.join("model")));
        let place = found["place"].as_str().unwrap();
        assert!(found["kind"] == "file" && place.ends_with(&format!("copy/model/{name}")), "{found}");
    }
}

/// A worker samples dishonestly: the run has trained on the forged value, and record, weights and lists are consistent.
#[test]
fn a_forged_value_is_found_at_the_step_that_trained_on_it() {
    let dir = directory();
    let root = dir.path();
    let set = [RECORDED, &["max_staleness=1"]].concat();
    good(root, &arguments("train", "run", &set));
    let checkpoint = root.join("run/checkpoints/step-000002");
    let path = checkpoint.join("frontier.bin");
    let bytes = fs::read(&path).unwrap();
    let (_, mut rest) = RecordReader::take(&bytes).unwrap();
    let mut lied = bytes[..bytes.len() - rest.len()].to_vec();
    while !rest.is_empty() {
        let (mut group, next) = Group::read(rest).unwrap();
        if group.group.0 == 4 {
            group.completions[0].ids[0] ^= 1;
        }
        group.write(&mut lied);
        rest = next;
    }
    fs::write(&path, lied).unwrap();
    model::io::FileList::of(&checkpoint, model::Step(2)).unwrap().write(&checkpoint).unwrap();
    good(root, &["train", "--resume", "run/checkpoints/step-000002"]);
    let (printed, report) = verify(root, "run", &["--all"], "");
    let found = &report["difference"];
    assert_eq!((printed.code, found["kind"].as_str()), (Some(1), Some("token")), "{found}");
    assert!(found["group"] == 4 && found["place"].to_string().contains("step-000002/frontier.bin"), "{found}");
    // A replay of only other steps cannot notice the forged value, and reports which data it did not verify.
    let later = (0..20).map(|seed| verify(root, "run", &["--steps", "1", "--seed", &seed.to_string()], ""));
    let (_, later) = later.into_iter().find(|(_, report)| report["proven"][0]["from"] == 2).unwrap();
    assert!(later["difference"].is_null() && later["groups_of_checkpoints"] == 2, "{later}");
}

/// Changes the last bit of a weight, and the checksums that connect the files.
fn lie_in_weights(checkpoint: &Path) {
    let path = checkpoint.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 4;
    bytes[last] ^= 1;
    fs::write(&path, crate::support::without_checksum(bytes)).unwrap();
    model::io::FileList::of(checkpoint, model::Step(4)).unwrap().write(checkpoint).unwrap();
}

#[test]
fn steps_that_cannot_be_verified_are_reported() {
    let dir = directory();
    let root = dir.path();
    let not_verified = |out: &str, set: &[&str], word: &str| {
        good(root, &arguments("train", out, &[RECORDED, set].concat()));
        let (printed, report) = verify(root, out, &["--all"], "");
        assert_eq!(printed.code, Some(2), "{}", printed.out);
        let printed = report["not_verified"].to_string();
        assert!(printed.contains(word), "{printed}");
    };
    not_verified("unrecorded", &["record_rollouts=false"], "record_rollouts = true");
    not_verified("unsaved", &["save_strategy=no"], "save_strategy");
    good(root, &arguments("train", "bf16", &[RECORDED, &["dtype=bf16"]].concat()));
    let record: Value = serde_json::from_slice(&fs::read(root.join("bf16/record.json")).unwrap()).unwrap();
    if record["arithmetic"] == "bf16-chain" {
        let (printed, report) = verify(root, "bf16", &[], "amx-emulated");
        assert!(printed.code == Some(2) && report["not_verified"][0].to_string().contains("LOCKSTEP_ISA="), "{report}");
    }
    let printed = lockstep(root, &["verify", "nowhere"]);
    assert!(printed.code == Some(2) && printed.err.contains("nowhere"), "{}", printed.err);
}

/// A key that was changed on resume has the old value in earlier steps.
#[test]
fn each_step_is_replayed_with_its_own_configuration() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", RECORDED));
    let set = ["--set", "learning_rate=0.02", "--set", "max_steps=8", "--set", "stop_token_ids=[3]"];
    good(root, &[&["train", "--resume", "run/checkpoints/step-000004"][..], &set].concat());
    let report = proven(root, "run", &["--all"], "");
    assert_eq!(report["proven"].as_array().unwrap().len(), 4, "{report}");
    // The same holds for a fork.
    good(root, &["fork", "run", "--at", "3", "--set", "epsilon=0.1", "--out", "fork"]);
    let fork = proven(root, "fork", &["--all"], "");
    assert_eq!(fork["proven"].as_array().unwrap().len(), 4, "its six steps: {fork}");
    // The configuration file differs from the one that the run used.
    let config = root.join("run/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("temperature = 1.0"), "{text}");
    fs::write(&config, text.replace("temperature = 1.0", "temperature = 1.1")).unwrap();
    let (printed, report) = verify(root, "run", &["--all"], "");
    assert_eq!((printed.code, report["difference"]["kind"].as_str()), (Some(1), Some("lineage")), "{}", printed.out);
}

/// Scores of a nondeterministic program are taken from the record, with a message.
#[test]
fn scores_of_a_nondeterministic_reward_are_taken_from_the_record() {
    let dir = directory();
    let root = dir.path();
    if testing::program("python3").is_none() {
        return;
    }
    let program = "import json, random, sys\nfor line in sys.stdin:\n    texts = json.loads(line)['completions']\n    \
                   print(json.dumps({'rewards': [random.random() for _ in texts]}), flush=True)\n";
    fs::write(root.join("r.py"), program).unwrap();
    let rewards = "reward_funcs=[\"unique_chars\", \"command:python3 r.py\"]";
    good(root, &arguments("train", "run", &[RECORDED, &[rewards, "max_staleness=1"]].concat()));
    let report = proven(root, "run", &["--all"], "portable");
    assert_eq!((&report["rewards_asked"][0], &report["rewards_recorded"][0]), (&"unique_chars".into(), &"r".into()));
    // The updates are still verified, and a checkpoint has the scores of batches that were generated ahead.
    let found = difference(root, |run| change(run, 0, |g| g.completions[0].rewards[1] = Some(9.0)));
    assert_eq!((found["kind"].as_str(), found["group"].as_i64()), (Some("advantage"), Some(0)), "{found}");
    let found = difference(root, |run| change(run, 5, |g| g.completions[0].rewards[1] = Some(9.0)));
    assert!(found["kind"] == "score of `r`" && found["place"].to_string().contains("frontier.bin"), "{found}");
    fs::remove_file(root.join("r.py")).unwrap();
    let (printed, report) = verify(root, "run", &["--all"], "");
    assert!(
        printed.code == Some(2) && report["not_verified"].to_string().contains("r.py, a file of a reward, is missing"),
        "{}",
        printed.out
    );
}

#[test]
fn a_damaged_record_is_reported() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "run", RECORDED));
    let found = difference(root, |run| {
        let path = run.join("rollouts.bin");
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 4;
        fs::write(&path, bytes).unwrap();
    });
    assert!(found["kind"] == "record" && found["group"] == 11, "{found}");
    // The initial weights of a replay have no checksum.
    let path = root.join("run/checkpoints/step-000004/model.safetensors");
    let good_bytes = fs::read(&path).unwrap();
    let mut bytes = good_bytes.clone();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let drawn = (0..20).map(|seed| verify(root, "run", &["--steps", "1", "--seed", &seed.to_string()], ""));
    let kind = |report: &Value| report["difference"]["kind"].as_str().map(str::to_owned);
    let (printed, report) = drawn.into_iter().find(|(_, report)| kind(report).as_deref() == Some("hash")).unwrap();
    assert!(printed.code == Some(1) && report["difference"]["remade"].to_string().contains("is damaged"), "{report}");
    fs::write(&path, good_bytes).unwrap();
    // The change adds a group that no step trained on.
    let found = difference(root, |run| {
        let path = run.join("rollouts.bin");
        let mut groups = GroupFile::open(&path).unwrap().groups().map(Result::unwrap).collect::<Vec<_>>();
        let mut more = groups.pop().unwrap();
        more.group.0 = 99;
        let mut record = Vec::new();
        more.write(&mut record);
        GroupLog::open(&path).unwrap().append(&record).unwrap();
    });
    assert!(found["kind"] == "group" && found["group"] == 99, "{found}");
}
