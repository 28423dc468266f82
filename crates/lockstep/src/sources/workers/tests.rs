//! Files of a distributed run, and the settings that a learner and its workers must share.

use super::expelled::Expelled;
use super::made_by::MadeBy;
use super::*;
use fleet::{Answer, BatchId, JobName, JobResult, WorkerName};
use model::GroupId;

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

#[test]
fn the_next_learner_reads_the_expelled_workers() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        Expelled::open(dir.path())
            .map(|(_, names)| names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(open().unwrap(), [""; 0]);
    let (mut file, _) = Expelled::open(dir.path()).unwrap();
    file.note(&worker("a"), "it lied").unwrap();
    file.note(&worker("b"), "too").unwrap();
    assert_eq!(open().unwrap(), ["a", "b"]);
    let path = Layout::in_run(dir.path()).root().join("expelled.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "{\"worker\":\"a\",\"why\":\"it lied\"}\n{\"worker\":\"b\",\"why\":\"too\"}\n");
    // An incomplete line is ignored.
    std::fs::write(&path, &text[..text.len() - 3]).unwrap();
    assert_eq!(open().unwrap(), ["a"]);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(open().is_err(), "an unreadable file is not an empty list");
}

#[test]
fn the_workers_of_a_group_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(made_by(dir.path(), GroupId(1)), None);
    Layout::in_run(dir.path()).create().unwrap();
    let result = |group, chunk, name: &str| JobResult {
        job: JobName { group: fleet::GroupId(group), chunk },
        lineage: Lineage([0; 16]),
        worker: worker(name),
        answer: Answer { fingerprint: 0, more: false },
        bytes: Vec::new(),
    };
    let mut file = MadeBy::open(dir.path()).unwrap();
    file.note(BatchId(0), &[result(1, 0, "a"), result(1, 1, "a"), result(2, 0, "a"), result(2, 1, "b")]).unwrap();
    file.note(BatchId(1), &[result(3, 0, "b")]).unwrap();
    let text = std::fs::read_to_string(Layout::in_run(dir.path()).root().join("made_by.jsonl")).unwrap();
    assert_eq!(text, "{\"batch\":0,\"groups\":{\"a\":[1,2],\"b\":[2]}}\n{\"batch\":1,\"groups\":{\"b\":[3]}}\n");
    let who = |group| made_by(dir.path(), GroupId(group));
    assert_eq!(
        (who(1).as_deref(), who(2).as_deref(), who(3).as_deref(), who(4)),
        (Some("a"), Some("a, b"), Some("b"), None)
    );
    // A regenerated batch has other workers.
    MadeBy::open(dir.path()).unwrap().note(BatchId(0), &[result(1, 0, "c")]).unwrap();
    assert_eq!((who(1).as_deref(), who(2).as_deref()), (Some("c"), Some("a, b")));
}

#[test]
fn a_difference_from_the_learner_is_named_with_both_values() {
    let identity = |program: &str, arithmetic: &str, file: Option<&str>, settings: &str| Identity {
        program: program.into(),
        build: Default::default(),
        arithmetic: arithmetic.into(),
        files: file.map(|hash| ("config.json".to_owned(), hash.to_owned())).into_iter().collect(),
        settings: settings.into(),
    };
    let learner = identity("1", "f32", Some("h"), "s");
    let difference = |own: Identity| own.difference(&learner);
    assert_eq!(difference(learner.clone()), None);
    for (own, words) in [
        (identity("2", "f16", Some("x"), "t"), "the program's version is 2 here, but 1 at the learner"),
        (identity("1", "f16", Some("x"), "t"), "the arithmetic is f16 here, but f32 at the learner"),
        (
            identity("1", "f32", Some("x"), "t"),
            "the SHA-256 of the model's config.json is x here, but h at the learner",
        ),
        (
            identity("1", "f32", None, "s"),
            "the SHA-256 of the model's config.json is missing here, but h at the learner",
        ),
        (
            identity("1", "f32", Some("h"), "t"),
            "the SHA-256 of the configuration's keys is t here, but s at the learner",
        ),
    ] {
        assert_eq!(difference(own).as_deref(), Some(words));
    }
    let more = learner.difference(&identity("1", "f32", None, "s"));
    assert_eq!(more.as_deref(), Some("the SHA-256 of the model's config.json is h here, but missing at the learner"));
}

#[test]
fn builds_differ_by_commit_and_uncommitted_changes() {
    let identity = |commit: &str, modified: &str, features: &[&str]| {
        let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let features = features.iter().map(|name| (*name).to_owned()).collect();
        let build = Build { version: "1".to_owned(), commit: known(commit), modified: known(modified), features };
        let (arithmetic, settings) = ("f32".to_owned(), "s".to_owned());
        Identity { program: "1".to_owned(), build, arithmetic, files: BTreeMap::new(), settings }
    };
    let learner = identity("aaaaaaaaaaaaaaaa", "", &["hub"]);
    let rows = [
        ("the same", identity("aaaaaaaaaaaaaaaa", "", &["hub"]), false),
        ("more features, which change no bit", identity("aaaaaaaaaaaaaaaa", "", &["hub", "nats"]), false),
        ("another commit", identity("bbbbbbbbbbbbbbbb", "", &["hub"]), true),
        ("modified", identity("aaaaaaaaaaaaaaaa", "cccccccccccccccc", &["hub"]), true),
        ("unknown here", identity("", "", &["hub"]), true),
    ];
    let other = |own: &Identity, learner: &Identity| own.other_build(learner).is_some();
    let wrong: Vec<_> = rows.iter().filter(|(_, own, is_other)| other(own, &learner) != *is_other).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(rows.iter().all(|(_, own, is_other)| other(&learner, own) == *is_other));
    let (nothing, modified) = (identity("", "", &[]), identity("a", "c", &[]));
    assert!(!other(&nothing, &nothing) && !other(&modified, &modified) && other(&modified, &identity("a", "d", &[])));
    // A learner of an older version does not name its build.
    let mut old = serde_json::to_value(&learner).unwrap();
    old.as_object_mut().unwrap().remove("build");
    let old: Identity = serde_json::from_value(old).unwrap();
    assert_eq!(
        learner.other_build(&old).as_deref(),
        Some("its build is 1 (commit aaaaaaaaaaaa; features hub), but the learner's is 1, whose commit is unknown")
    );
    assert_eq!(learner.difference(&rows[2].1), None, "a flag may accept another build");
}

#[test]
fn a_worker_of_another_run_is_refused() {
    let identity = |program: &str| Identity {
        program: program.into(),
        build: Default::default(),
        arithmetic: "f32".into(),
        files: BTreeMap::new(),
        settings: "s".into(),
    };
    let run = [3u8; 16];
    let shared = serde_json::json!({
        "identity": identity("1"), "run": run, "base": null, "slots": {}, "rewards": ["r"], "longest_prompt": 1,
        "weight_sync_bytes_copied": 0,
    });
    let state = serde_json::json!({
        "pid": 1, "step": 0, "batches": 9, "groups": 1, "max_staleness": 1, "lineage": Lineage([0; 16]), "slots": [],
        "ended": false, "checkpoints": {"last": null, "waiting": []}, "counts": fleet::exchange::Counts::default(),
        "shared": shared,
    });
    let bytes = serde_json::to_vec(&state).unwrap();
    let read = Shared::read(&bytes, &identity("1")).unwrap();
    assert_eq!((read.run, read.rewards), (run, vec!["r".to_owned()]));
    let why = |bytes: &[u8], program: &str| Shared::read(bytes, &identity(program)).unwrap_err().to_string();
    assert_eq!(
        why(&bytes, "2"),
        "the run has changed since this worker joined: the program's version is 2 here, but 1 at the learner; start \
         the worker again"
    );
    assert_eq!(why(&bytes[1..], "1"), "learner.json");
}

#[test]
fn an_identity_covers_files_and_settings_that_affect_bits() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"];
    for name in names.iter().chain(&["model.safetensors", "vocab.json", "notes.txt"]) {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let ctx = crate::context(None, Some(1), crate::config::ComputeDType::F32).unwrap();
    let of = |config: &Config| Identity::of(&ctx, config, &ModelFiles::read(dir.path()).unwrap());
    let own = of(&Config::default());
    let sorted = ["chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json"];
    assert_eq!(own.files.keys().collect::<Vec<_>>(), sorted);
    assert_eq!(own.files["tokenizer.json"], telemetry::record::sha256(b"tokenizer.json"));
    assert_eq!(
        (own.program.as_str(), own.arithmetic.as_str()),
        (env!("CARGO_PKG_VERSION"), ctx.arithmetic(kernels::DType::F32))
    );
    assert_eq!(own, of(&Config { threads: Some(3), ..Config::default() }));
    assert!(own.difference(&of(&Config { temperature: 0.5, ..Config::default() })).is_some());
}
