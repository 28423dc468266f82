//! Data files: from rows to examples to token ids, and the errors of invalid rows.

mod reading;
mod rows_of_trl;

use super::*;
use crate::Config;
use crate::error::is_bad_input;
use crate::stop::StopSignal;
use model::chat::{ChatTemplate, PromptEncoder};
use model::tokenizer::{SpecialTokens, Tokenizer};
use serde_json::json;
use std::path::Path;
use telemetry::Step;

fn spec(path: &Path) -> DatasetSpec {
    let config = Config { dataset_name: Some(path.to_string_lossy().into_owned()), ..Config::default() };
    DatasetSpec::train(&config).unwrap()
}

fn load(text: &str, change: impl FnOnce(&mut DatasetSpec)) -> anyhow::Result<Dataset> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d.jsonl");
    std::fs::write(&path, text).unwrap();
    let mut spec = spec(&path);
    change(&mut spec);
    spec.load()
}

fn refused(text: &str, change: impl FnOnce(&mut DatasetSpec), words: &[&str]) {
    let error = load(text, change).expect_err("it was accepted");
    let message = error.to_string();
    assert!(is_bad_input(&error) && !message.contains('\n'), "{message}");
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn texts_and_conversations_are_read_with_their_other_columns() {
    let text = "{\"prompt\": \"a\", \"answer\": 3}\n\n{\"prompt\": [{\"role\": \"user\", \"content\": \"b\"}], \
                \"answer\": null}\r\n";
    let data = load(text, |_| {}).unwrap();
    assert_eq!((data.examples.len(), data.columns.as_slice()), (2, ["answer".to_owned()].as_slice()));
    assert_eq!(data.examples[0].prompt, Content::Text("a".into()));
    assert_eq!(data.examples[1].columns["answer"], json!(null));
    assert_eq!(data.hash.len(), 64);
    assert_ne!(data.hash, load(&text.replace('a', "c"), |_| {}).unwrap().hash);
    assert_eq!(load(text, |s| s.max_samples = Some(1)).unwrap().examples.len(), 1);
}

#[test]
fn columns_are_renamed_and_the_system_prompt_is_added() {
    let text = "{\"question\": \"q\", \"ground_truth\": \"4\", \"x\": 1}\n";
    let data = load(text, |s| {
        s.prompt_column = "question".into();
        s.columns = vec![("answer".into(), "ground_truth".into()), ("asked".into(), "question".into())];
        s.system_prompt = Some("be brief".into());
    });
    let example = &data.unwrap().examples[0];
    let messages = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "q"}]);
    assert_eq!(serde_json::to_value(&example.prompt).unwrap(), messages);
    assert_eq!(serde_json::to_value(&example.columns).unwrap(), json!({"x": 1, "answer": "4", "asked": "q"}));
    let own = "{\"prompt\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}]}";
    let data = load(own, |s| s.system_prompt = Some("other".into())).unwrap();
    assert!(matches!(&data.examples[0].prompt, Content::Messages(m) if m.len() == 2 && m[0]["content"] == "s"));
}

#[test]
fn errors_of_invalid_rows_name_file_and_line() {
    let missing = "{\"question\": \"a\", \"answer\": 1}\n";
    refused(missing, |_| {}, &["d.jsonl, line 1", "no column `prompt`", "`question`, `answer`", "prompt_column"]);
    refused("{\"prompt\": \"a\"}\n{\"promt\": 1}", |_| {}, &["line 2", "`promt`"]);
    refused("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"\n", |_| {}, &["d.jsonl, line 2", "broken JSON", "EOF"]);
    refused("[1]\n", |_| {}, &["line 1", "a JSON object"]);
    refused("", |_| {}, &["empty"]);
    refused(" \n\n", |_| {}, &["empty"]);
    refused("{\"prompt\": 3}\n", |_| {}, &["line 1", "`prompt`", "expected a string", "got 3"]);
    refused("{\"prompt\": [{\"content\": \"x\"}]}\n", |_| {}, &["message 1", "`role`"]);
    let rename = |s: &mut DatasetSpec| s.columns = vec![("answer".into(), "solution".into())];
    refused("{\"prompt\": \"a\", \"x\": 1}\n", rename, &["no column `solution`", "`prompt`, `x`"]);
    refused("{\"prompt\": \"a\"}\n", |s| s.needs_completion = true, &["no column `completion`"]);
    let gone = spec(Path::new("no/such/file.jsonl")).load().unwrap_err();
    assert!(is_bad_input(&gone) && gone.to_string().contains("no/such/file.jsonl"), "{gone}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.jsonl");
    std::fs::write(&path, b"{\"prompt\": \"\xff\"}\n").unwrap();
    assert!(spec(&path).load().unwrap_err().to_string().contains("line 1: not UTF-8"));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_rows_written_by_telemetry_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let rows = telemetry::CompletionRows {
        step: Step(3),
        prompts: vec![json!("p"), json!("q")],
        completions: vec![json!("c"), json!("d")],
        rewards: vec![("length".into(), vec![Some(1.5), None])],
        extra: vec![],
        advantages: vec![Some(0.5), Some(-0.5)],
    };
    let event = telemetry::EventKind::Completions { rows, shown: 0 };
    telemetry::Sink::receive(&mut telemetry::CompletionsSink::new(dir.path()), &event.into()).unwrap();
    let path = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let data = spec(&path).load().unwrap();
    assert_eq!(data.examples[1].prompt, Content::Text("q".into()));
    assert_eq!(data.examples[0].completion, Some(Content::Text("c".into())));
    assert_eq!((&data.examples[0].columns["length"], &data.examples[1].columns["length"]), (&json!(1.5), &json!(null)));
    std::fs::write(dir.path().join("torn.parquet"), "PAR1").unwrap();
    let error = spec(&dir.path().join("torn.parquet")).load().unwrap_err();
    assert!(is_bad_input(&error) && error.to_string().contains("torn.parquet"), "{error}");
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_with_a_number_that_is_not_finite_is_refused_with_its_row() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let dir = tempfile::tempdir().unwrap();
        let rows = telemetry::CompletionRows {
            step: Step(3),
            prompts: vec![json!("p"), json!("q")],
            completions: vec![json!("c"), json!("d")],
            rewards: vec![("length".into(), vec![Some(1.5), Some(value)])],
            extra: vec![],
            advantages: vec![Some(0.5), Some(-0.5)],
        };
        let event = telemetry::EventKind::Completions { rows, shown: 0 };
        telemetry::Sink::receive(&mut telemetry::CompletionsSink::new(dir.path()), &event.into()).unwrap();
        let path = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let error = spec(&path).load().unwrap_err();
        let expected = format!(
            "{}, row 2: column `length` holds a number that is NaN or infinite: make it null or a string, or remove \
             the column",
            path.display()
        );
        assert!(is_bad_input(&error), "{error}");
        assert_eq!(error.to_string(), expected);
    }
}

fn tokenizer() -> Tokenizer {
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    Tokenizer::characters("abcdefghijklmnopqrstuvwxyz<>:\n ".chars(), &special).unwrap()
}

#[test]
fn prompts_and_completions_are_encoded_as_ids() {
    let (tokenizer, kwargs) = (tokenizer(), Map::new());
    let source = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt \
                  %}assistant:{% endif %}";
    let template = ChatTemplate::new(source, tokenizer.special()).unwrap();
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: Some(&template), kwargs: &kwargs, tools: None };
    let data = load(
        "{\"prompt\": \"abc\", \"completion\": \"de\"}\n{\"prompt\": [{\"role\": \"user\", \"content\": \
         \"hi\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"yo\"}]}",
        |_| {},
    )
    .unwrap();
    let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
    assert_eq!(text(&encoder.encode(&data.examples[0].prompt).unwrap()), "abc");
    let completed = |at: usize| {
        let Example { prompt, completion, .. } = &data.examples[at];
        let completed = encoder.encode_completion(prompt, completion.as_ref().expect("a completion")).unwrap();
        text(&completed.ids[completed.border..])
    };
    assert_eq!(completed(0), "de<e>");
    assert_eq!(encoder.render(&data.examples[1].prompt).unwrap(), "user:hi\nassistant:");
    assert_eq!(completed(1), "yo\n", "only the end tokens that the template prints");

    let plain = PromptEncoder { template: None, ..encoder };
    let error = plain.encode(&data.examples[1].prompt).unwrap_err();
    assert!(error.to_string().contains("no chat template"), "{error}");
    let with_system = load("{\"prompt\": \"q\"}", |s| s.system_prompt = Some("sys".into())).unwrap();
    assert!(
        plain.render(&with_system.examples[0].prompt).is_err(),
        "two messages cannot be rendered without a template"
    );
}

/// A row's tools and arguments reach the template if `template_columns` names them; rewards always read both.
#[test]
fn tools_and_arguments_of_a_prompts_row_reach_the_template() {
    let tokenizer = tokenizer();
    let source = "{% for t in tools %}{{ t.name }} {% endfor %}{% if shout %}loud {% endif %}{{ style }}\
                  {% for m in messages %}:{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new(source, tokenizer.special()).unwrap();
    let kwargs: Map<String, Value> = [("style".to_owned(), json!("plain"))].into_iter().collect();
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: Some(&template), kwargs: &kwargs, tools: None };
    let prompt = |columns: Value, passed: &[&str]| {
        let mut row = json!({"prompt": [{"role": "user", "content": "hi"}]});
        row.as_object_mut().unwrap().extend(columns.as_object().unwrap().clone());
        let passed = passed.iter().map(|&name| name.to_owned()).collect();
        let data = load(&format!("{row}\n"), |spec| spec.template_columns = passed).unwrap();
        let encoded = encode_all(&encoder, &data, None, 100, 1, &StopSignal::new()).map_err(|error| {
            assert!(is_bad_input(&error));
            error.to_string()
        })?;
        let prompt = &encoded.prompts[0];
        assert_eq!(Value::Object(prompt.columns.clone()), columns, "rewards read all columns");
        Ok(tokenizer.decode(&prompt.tokens.ids, false).unwrap())
    };
    let (tools, both) = (json!([{"name": "add"}]), &["tools", "chat_template_kwargs"][..]);
    let mut wrong = Vec::new();
    for (columns, passed, expected) in [
        (json!({}), both, Ok("plain:hi")),
        (json!({"tools": tools}), both, Ok("add plain:hi")),
        (json!({"tools": tools.to_string()}), both, Ok("add plain:hi")),
        (json!({"tools": [{"name": "add"}, {"name": "sub"}]}), both, Ok("add sub plain:hi")),
        (json!({"tools": []}), both, Ok("plain:hi")),
        (json!({"tools": null}), both, Ok("plain:hi")),
        (json!({"tools": "null"}), both, Ok("plain:hi")),
        (json!({"chat_template_kwargs": {"shout": true}}), both, Ok("loud plain:hi")),
        (json!({"chat_template_kwargs": {"style": "own"}}), both, Ok("own:hi")),
        (json!({"chat_template_kwargs": {}}), both, Ok("plain:hi")),
        (json!({"chat_template_kwargs": null}), both, Ok("plain:hi")),
        (json!({"tools": tools, "chat_template_kwargs": {"style": "own", "shout": true}}), both, Ok("add loud own:hi")),
        (json!({"tools": tools, "chat_template_kwargs": {"style": "own"}}), &["tools"], Ok("add plain:hi")),
        (json!({"tools": tools, "chat_template_kwargs": {"style": "own"}}), &["chat_template_kwargs"], Ok("own:hi")),
        (json!({"tools": tools, "chat_template_kwargs": {"style": "own"}}), &[], Ok("plain:hi")),
        (json!({"tools": "a hammer"}), &[], Ok("plain:hi")),
        (json!({"tools": "a hammer"}), both, Err("`tools` must be a list of JSON schemas")),
        (json!({"tools": 7}), both, Err("`tools` must be a list of JSON schemas")),
        (json!({"tools": {"name": "add"}}), both, Err("`tools` must be a list of JSON schemas")),
        (json!({"chat_template_kwargs": "x"}), both, Err("`chat_template_kwargs` must be an object")),
        (json!({"chat_template_kwargs": ["x"]}), both, Err("`chat_template_kwargs` must be an object")),
    ] {
        let found: Result<String, String> = prompt(columns.clone(), passed);
        let is_right = match (&found, expected) {
            (Ok(found), Ok(expected)) => found == expected,
            (Err(error), Err(words)) => error.contains("d.jsonl, row 1: ") && error.contains(words),
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{columns}, {passed:?}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

mod foreign {
    use super::*;
    use proptest::prelude::*;
    use testing::foreign;

    fn read(name: &str, bytes: &[u8]) -> anyhow::Result<Dataset> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join(name), bytes)?;
        spec(&dir.path().join(name)).load()
    }

    fn row() -> serde_json::Value {
        let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        json!({"prompt": messages, "completion": "c", "answer": 3, "deep": {"a": [null, 1.5, "x"]}})
    }

    #[cfg(feature = "parquet")]
    fn table() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let rows = telemetry::CompletionRows {
            step: Step(3),
            prompts: vec![json!("p"), json!("q")],
            completions: vec![json!("c"), json!("d")],
            rewards: vec![("length".into(), vec![Some(1.5), None])],
            extra: vec![],
            advantages: vec![Some(0.5), Some(-0.5)],
        };
        let event = telemetry::EventKind::Completions { rows, shown: 0 };
        telemetry::Sink::receive(&mut telemetry::CompletionsSink::new(dir.path()), &event.into()).unwrap();
        std::fs::read(std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path()).unwrap()
    }

    proptest! {
        #![proptest_config(foreign::few())]

        #[test]
        fn damaged_rows_do_not_panic(row in foreign::json(row())) {
            let _ = read("d.jsonl", row.to_string().as_bytes());
        }
        #[test]
        fn damaged_jsonl_does_not_panic(bytes in foreign::bytes(row().to_string().into_bytes())) {
            let _ = read("d.jsonl", &bytes);
        }
        #[cfg(feature = "parquet")]
        #[test]
        fn damaged_parquet_does_not_panic(bytes in foreign::bytes(table())) {
            let _ = read("d.parquet", &bytes);
        }
    }
}

/// Files written by another library, in every compression and both page versions.
#[cfg(feature = "parquet")]
#[test]
fn parquet_is_read_in_every_compression() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet");
    let read = |name: &str, limit: usize| {
        let path = fixtures.join(name);
        super::rows::read(&path, &std::fs::read(&path).unwrap(), limit, &StopSignal::default())
    };
    for codec in ["none", "snappy", "gzip", "brotli", "lz4", "zstd"] {
        for version in [1, 2] {
            let name = format!("{codec}-{version}.parquet");
            let rows = read(&name, 100).unwrap();
            assert_eq!(rows.len(), 40, "{name}");
            for (i, (number, row)) in rows.into_iter().enumerate() {
                let turns = vec![json!({"role": "user", "content": format!("hi {i}")}); i % 3];
                let expected = json!({
                    "prompt": format!("question {}: {}", i % 7, "word ".repeat(30)),
                    "answer": format!("ünïcode {i}"),
                    "maybe": (i % 3 == 0).then_some(i),
                    "nothing": null,
                    "chat": turns,
                });
                assert_eq!((number, Value::Object(row)), (i + 1, expected), "{name}");
            }
            assert_eq!(read(&name, 30).unwrap().len(), 30, "{name}: across row groups");
        }
    }
    let image = read("image.parquet", 1).unwrap();
    assert_eq!(image[0].1["image"], "plain");
    let error = read("image.parquet", 2).unwrap_err();
    let reported = error.to_string();
    assert!(is_bad_input(&error) && reported.contains("row 2") && reported.contains("`image`"), "{reported}");
    // Damages pages in the compressions that are unpacked by this crate.
    for name in ["zstd-1.parquet", "brotli-2.parquet"] {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = std::fs::read(fixtures.join(name)).unwrap();
        bytes[60..300].fill(0x5a);
        let path = dir.path().join(name);
        std::fs::write(&path, &bytes).unwrap();
        assert!(is_bad_input(&super::rows::read(&path, &bytes, 100, &StopSignal::default()).unwrap_err()), "{name}");
    }
}
