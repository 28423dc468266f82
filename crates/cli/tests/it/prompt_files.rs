//! Files of a model that affect prompts: each listed file is read, hashed, compared at every later start, and copied
//! into all models that a run writes. A date in a prompt is the date of the run's first start.

mod carried;
mod dates;

use crate::distributed::distributed;
use crate::stopping::{start, wait_for};
use crate::support::runs::{arguments, directory, good};
use crate::support::{lockstep, refused};
use model::tokenizer::{SpecialTokens, Tokenizer};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;

const TEMPLATE: &str = "chat_template.jinja";
const TOOLS: &str = "additional_chat_templates/tool_use.jinja";

/// Every listed file that is read and that `directory` does not write, with its contents.
const FILES: [(&str, &str); 5] = [
    (TEMPLATE, "{{ strftime_now('%Y') }} {% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"),
    (TOOLS, "{{ tools | length }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %} "),
    ("generation_config.json", "{\"eos_token_id\": [0, 5]}"),
    ("special_tokens_map.json", "{\"eos_token\": \"<e>\"}"),
    ("tokenizer_config.json", "{\"eos_token\": \"<e>\"}"),
];

/// Files that are copied but not read, and some files that other programs leave in a model's directory.
const OTHERS: [&str; 11] = [
    "added_tokens.json",
    "chat_template.json",
    "merges.txt",
    "tokenizer.model",
    "vocab.json",
    "README.md",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "tokenizer_config.yaml",
    "video_preprocessor_config.json",
];

/// A directory with conversations, and a model whose chat template prints the year.
fn conversations() -> tempfile::TempDir {
    let dir = directory();
    let model = dir.path().join("model");
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    Tokenizer::characters("abcdefghijklmnopqrstuvw .0123456789".chars(), &special).unwrap().save(&model).unwrap();
    fs::create_dir(model.join("additional_chat_templates")).unwrap();
    for (name, text) in &FILES {
        fs::write(model.join(name), text).unwrap();
    }
    let user = |text: &str| json!({"role": "user", "content": text});
    let assistant = |text: &str| json!({"role": "assistant", "content": text});
    let rows = |of: &dyn Fn(&str) -> Value| -> String {
        ["ab", "sun", "moon", "tree", "river", "ice"].map(|word| of(word).to_string() + "\n").concat()
    };
    let prompts = rows(&|w| json!({"prompt": [user(w)], "completion": [assistant("b.")]}));
    let pairs = rows(&|w| json!({"prompt": [user(w)], "chosen": [assistant("b.")], "rejected": [assistant("c")]}));
    for (file, text) in [("d.jsonl", &prompts), ("e.jsonl", &prompts), ("p.jsonl", &pairs), ("q.jsonl", &pairs)] {
        fs::write(dir.path().join(file), text).unwrap();
    }
    dir
}

/// Keys of a short run of each command.
const SHORT: &[&str] = &["max_steps=2", "eval_strategy=no", "logging_steps=1", "record_rollouts=true"];
const OF_PAIRS: &[&str] =
    &["max_steps=2", "eval_strategy=no", "logging_steps=1", "dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
const KINDS: [(&str, &str, &[&str]); 6] = [
    ("grpo", "train", &[]),
    ("ppo", "train", &["algorithm=ppo", "num_generations=1"]),
    ("lora", "train", &["use_peft=true", "lora_r=2"]),
    ("sft", "sft", &[]),
    ("dpo", "dpo", &[]),
    ("reward", "reward", &[]),
];

fn keys<'a>(command: &str, own: &[&'a str]) -> Vec<&'a str> {
    let common = match command {
        "dpo" | "reward" => OF_PAIRS,
        "sft" => &SHORT[..3],
        _ => SHORT,
    };
    [common, own].concat()
}

fn record(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("record.json")).unwrap()).unwrap()
}

fn write_record(run: &Path, record: &Value) {
    fs::write(run.join("record.json"), record.to_string()).unwrap();
}

/// A title, a function that changes a file, and a part of the expected error.
type Change = (String, Box<dyn Fn()>, &'static str);

/// The three ways in which a file can change after the first start, each with a part of the expected error.
fn changes(model: &Path) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    for (name, text) in FILES {
        let path = model.join(name);
        let changed = path.clone();
        all.push((name.into(), Box::new(move || fs::write(&changed, format!("{text} ")).unwrap()), "its SHA-256 is"));
        all.push((name.into(), Box::new(move || fs::remove_file(&path).unwrap()), "this file is missing"));
    }
    let added = model.join("additional_chat_templates/rag.jinja");
    let name = "additional_chat_templates/rag.jinja".to_owned();
    all.push((name, Box::new(move || fs::write(&added, "x").unwrap()), "this file is new"));
    all
}

fn restore(model: &Path) {
    for (name, text) in &FILES {
        fs::write(model.join(name), text).unwrap();
    }
    let _ = fs::remove_file(model.join("additional_chat_templates/rag.jinja"));
}

#[test]
fn a_run_resumes_only_with_unchanged_prompt_files() {
    let dir = conversations();
    let (root, model) = (dir.path(), dir.path().join("model"));
    for (kind, command, own) in KINDS {
        good(root, &arguments(command, kind, &keys(command, own)));
        let resume = [command, "--resume", kind, "--set", "max_steps=4"];
        for (name, change, why) in changes(&model) {
            change();
            refused(root, &resume, &[&format!("model/{name}: the model has changed"), why, "start a new run"]);
            restore(&model);
        }
        good(root, &resume);
    }
}

#[test]
fn verify_names_a_changed_prompt_file() {
    let dir = conversations();
    let (root, model) = (dir.path(), dir.path().join("model"));
    good(root, &arguments("train", "run", &keys("train", &[])));
    let verify = |code| {
        let output = lockstep(root, &["verify", "run", "--all", "--json"]);
        assert_eq!(output.code, Some(code), "{}{}", output.out, output.err);
        serde_json::from_str::<Value>(&output.out).unwrap()
    };
    let report = verify(0);
    for (name, _) in FILES {
        assert!(report["hashes"].as_array().unwrap().iter().any(|hash| hash == name), "{name}: {report}");
    }
    for (name, change, _) in changes(&model) {
        change();
        let difference = &verify(1)["difference"];
        let place = difference["place"].as_str().unwrap();
        assert!(difference["kind"] == "hash" && place.ends_with(&format!("model/{name}")), "{name}: {difference}");
        restore(&model);
    }
}

/// Removes the fields that older versions did not write from a record.
fn as_older(run: &Path) {
    let mut older = record(run);
    let fields = older.as_object_mut().unwrap();
    fields.remove("prompt_files").expect("a list of files");
    fields.remove("build").expect("a build");
    for start in older["starts"].as_array_mut().unwrap() {
        let fields = start.as_object_mut().unwrap();
        fields.remove("prompt_time_s").expect("a time");
        fields.remove("build").expect("a build");
    }
    write_record(run, &older);
}

#[test]
fn a_run_of_an_older_version_resumes_and_verifies_with_one_note() {
    let dir = conversations();
    let (root, model) = (dir.path(), dir.path().join("model"));
    for (kind, command, own) in KINDS {
        good(root, &arguments(command, kind, &keys(command, own)));
        let run = root.join(kind);
        as_older(&run);
        let lines = |output: &str| output.lines().filter(|line| line.contains("from an older version")).count();
        if command == "train" {
            let output = good(root, &["verify", kind, "--all"]);
            assert_eq!(lines(&output.err), 1, "{kind}: {}", output.err);
        }
        let first = record(&run)["starts"][0]["time_s"].clone();
        let resume = [command, "--resume", kind, "--set", "max_steps=4"];
        let output = good(root, &resume);
        assert_eq!(lines(&output.err), 1, "{kind}: {}", output.err);
        // From now on the file is compared, and the date is that of the first start.
        let now = record(&run);
        assert_eq!((now["prompt_files"].as_array().unwrap().len(), &now["starts"][1]["prompt_time_s"]), (5, &first));
        if command == "train" {
            good(root, &["verify", kind, "--all"]);
        }
        let resume = [command, "--resume", kind, "--set", "max_steps=6"];
        fs::write(model.join(TEMPLATE), "x").unwrap();
        refused(root, &resume, &["model/chat_template.jinja", "its SHA-256 is"]);
        restore(&model);
        assert_eq!(lines(&good(root, &resume).err), 0);
    }
}

/// A run that was killed before its first checkpoint starts again, with the current files.
#[test]
fn a_run_that_starts_again_records_its_current_files() {
    let dir = conversations();
    let (root, run) = (dir.path(), dir.path().join("run"));
    good(root, &arguments("train", "run", &keys("train", &[])));
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    fs::remove_dir_all(run.join("model")).unwrap();
    fs::write(root.join("model").join(TEMPLATE), "{{ messages[0].content }} ").unwrap();
    good(root, &["train", "--resume", "run"]);
    good(root, &["verify", "run", "--all"]);
    good(root, &["train", "--resume", "run", "--set", "max_steps=4"]);
}

#[test]
fn a_worker_with_a_different_prompt_file_is_refused() {
    let dir = conversations();
    let (root, model) = (dir.path(), dir.path().join("model"));
    for (name, change, _) in changes(&model) {
        let out = format!("out-{}", name.replace('/', "-"));
        let _ = fs::remove_dir_all(root.join(&out));
        // The learner has read its files before the worker joins, and waits for groups.
        let mut learner = arguments("train", &out, SHORT);
        learner[0] = "learner";
        let mut child = start(root, &learner);
        wait_for(&root.join(&out).join("fleet/learner.json"), true);
        change();
        let output = lockstep(root, &["worker", "--join", &out, "--name", "other"]);
        let words = ["other cannot work for this run", &format!("the SHA-256 of the model's {name} is")];
        let all = words.iter().all(|word| output.err.contains(word));
        restore(&model);
        good(root, &["worker", "--join", &out, "--name", "own"]);
        assert!(child.wait().unwrap().success());
        assert!(output.code == Some(2) && all, "{name}: {:?} {}", output.code, output.err);
    }
}

/// The files in the folders `watched` that `run` opens.
fn opened(watched: &[&Path], run: impl FnOnce()) -> BTreeSet<String> {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    let queue = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    let folders: Vec<i32> = watched.iter().map(|dir| add_watch(&queue, *dir, WatchFlags::OPEN).unwrap()).collect();
    run();
    let mut buffer = vec![MaybeUninit::uninit(); 1 << 16];
    let (mut events, mut found) = (Reader::new(&queue, &mut buffer), BTreeSet::new());
    while let Ok(event) = events.next() {
        assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW), "events are lost");
        let folder = folders.iter().position(|folder| *folder == event.wd()).unwrap();
        if let Some(name) = event.file_name().filter(|_| !event.events().contains(ReadFlags::ISDIR)) {
            let below = if folder == 0 { "" } else { "additional_chat_templates/" };
            found.insert(format!("{below}{}", name.to_str().unwrap()));
        }
    }
    found
}

/// No command opens an unlisted file in a model's directory.
#[test]
fn only_listed_files_and_weights_are_opened() {
    let dir = conversations();
    let (root, model) = (dir.path(), dir.path().join("model"));
    for name in &OTHERS {
        fs::write(model.join(name), "{").unwrap();
    }
    for name in ["notes.txt", "draft.jinja.bak"] {
        fs::write(model.join("additional_chat_templates").join(name), "{").unwrap();
    }
    let watched = [&*model, &model.join("additional_chat_templates")];
    let mut commands: Vec<Vec<&str>> =
        KINDS.iter().map(|(kind, command, own)| arguments(command, kind, &keys(command, own))).collect();
    commands.push(distributed("workers", "2", SHORT));
    commands.push(vec!["train", "--resume", "grpo", "--set", "max_steps=4"]);
    commands.push(vec!["verify", "grpo", "--all"]);
    commands.push(vec!["fork", "grpo", "--at", "1", "--out", "fork"]);
    commands.push(vec!["merge", "--model", "model", "--adapter", "lora/model", "--out", "merged"]);
    let eval = ["--reward", "unique_chars", "--max-completion-length", "4"];
    commands.push([&["eval", "--model", "model", "--dataset", "e.jsonl"], &eval[..]].concat());
    commands.push(vec!["generate", "--model", "model", "--prompt", "ab", "--max-new-tokens", "4"]);
    for command in commands {
        let found = opened(&watched, || drop(good(root, &command)));
        let of_list = |name: &&String| model::io::is_listed(name) || name.ends_with(".safetensors");
        let others: Vec<&String> = found.iter().filter(|name| !of_list(name)).collect();
        assert!(others.is_empty(), "{command:?} opened unlisted files: {others:?}");
        for name in FILES.map(|(name, _)| name).iter().chain(&["config.json", "tokenizer.json"]) {
            assert!(found.contains(*name), "{command:?} did not open {name}: {found:?}");
        }
    }
}
