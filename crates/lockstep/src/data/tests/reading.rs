//! Which files are read, how rows are encoded, and the exact text of each error.

use super::files::files;
use super::*;
use crate::config::Task;
use crate::stop::is_stopped;
use serde_json::json;
use std::path::PathBuf;
use telemetry::record::sha256;

/// A directory with files of these paths and contents.
fn directory(all: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in all {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

/// The names of the files read, or the error.
fn found(dir: &tempfile::TempDir, configuration: Option<&str>, split: &str) -> Result<Vec<String>, String> {
    let name = |path: PathBuf| path.strip_prefix(dir.path()).unwrap().display().to_string();
    let of = files(dir.path(), configuration, split).map(|all| all.into_iter().map(name).collect());
    of.map_err(|error| {
        assert!(is_bad_input(&error));
        error.to_string().replace(&dir.path().display().to_string(), "DIR")
    })
}

#[test]
fn the_files_of_a_split_are_found() {
    let names =
        ["train.jsonl", "train-1.jsonl", "train_2.jsonl", "training.jsonl", "a/train/0.jsonl", "dev.jsonl", "x.txt"];
    let dir = directory(&names.map(|name| (name, "")));
    let train = ["a/train/0.jsonl", "train-1.jsonl", "train.jsonl", "train_2.jsonl"].map(str::to_owned).to_vec();
    assert_eq!(found(&dir, None, "train"), Ok(train));
    assert_eq!(found(&dir, None, "dev"), Ok(vec!["dev.jsonl".to_owned()]));
    assert_eq!(
        found(&dir, None, "test").unwrap_err(),
        "DIR has no file of split `test`; it has: a/train/0.jsonl, dev.jsonl, train-1.jsonl, train.jsonl, \
         train_2.jsonl, training.jsonl (chosen by dataset_split, eval_dataset_split and dataset_config)"
    );
    // A file of any of these names marks the directory as split.
    for name in ["train", "test", "validation", "dev"] {
        let dir = directory(&[(&format!("{name}.jsonl"), ""), ("other.jsonl", "")]);
        assert!(found(&dir, None, "mine").is_err(), "{name}");
    }
    assert_eq!(found(&directory(&[("other.jsonl", "")]), None, "mine"), Ok(vec!["other.jsonl".to_owned()]));
}

#[test]
fn the_files_of_a_configuration_are_found_in_subdirectories() {
    let names = ["main/a.jsonl", "main-b/b.jsonl", "main-c.jsonl", "mainly/d.jsonl", "e.jsonl"];
    let dir = directory(&names.map(|name| (name, "")));
    let main = ["main/a.jsonl", "main-b/b.jsonl", "main-c.jsonl"].map(str::to_owned).to_vec();
    assert_eq!(found(&dir, Some("main"), "train"), Ok(main));
    let none = "DIR has no data file of configuration `x` (.jsonl, .json, .parquet)";
    assert_eq!(found(&dir, Some("x"), "train").unwrap_err(), none);
    assert_eq!(found(&directory(&[]), None, "train").unwrap_err(), "DIR has no data file (.jsonl, .json, .parquet)");
    let split = directory(&[("main/train.jsonl", ""), ("other/test.jsonl", "")]);
    assert_eq!(
        found(&split, Some("main"), "test").unwrap_err(),
        "DIR has no file of split `test` of configuration `main`; it has: main/train.jsonl (chosen by dataset_split, \
         eval_dataset_split and dataset_config)"
    );
    // Files three directories down are found, those four directories down are not.
    let deep = directory(&[("a/b/c/3.jsonl", ""), ("a/b/c/d/4.jsonl", "")]);
    assert_eq!(found(&deep, None, "train"), Ok(vec!["a/b/c/3.jsonl".to_owned()]));
    // The error lists at most twelve files.
    let many: Vec<String> = (10..23).map(|i| format!("test-{i}.jsonl")).collect();
    let dir = directory(&many.iter().map(|name| (name.as_str(), "")).collect::<Vec<_>>());
    let message = found(&dir, None, "train").unwrap_err();
    assert!(message.contains("test-21.jsonl (chosen by dataset_split") && !message.contains("test-22"), "{message}");
    let nowhere = files(Path::new("no/such"), None, "train").unwrap_err();
    assert!(nowhere.to_string().starts_with("cannot list no/such: "), "{nowhere}");
}

#[test]
fn json_metadata_is_not_read_as_rows() {
    let dir = directory(&[("train.json", ""), ("rows/train.jsonl", "")]);
    assert_eq!(found(&dir, None, "train"), Ok(vec!["rows/train.jsonl".to_owned()]));
    let dir = directory(&[("train.json", ""), ("test.json", "")]);
    assert_eq!(found(&dir, None, "train"), Ok(vec!["train.json".to_owned()]));
}

fn config() -> Config {
    let columns = json!({"answer": "solution"});
    Config {
        dataset_name: Some("d".into()),
        dataset_config: Some("main".into()),
        dataset_split: "mine".into(),
        eval_dataset_name: Some("e".into()),
        eval_datasets: json!({"a": "x", "b": "y"}).as_object().cloned().unwrap(),
        prompt_column: "question".into(),
        completion_column: "reply".into(),
        columns: columns.as_object().cloned().unwrap(),
        system_prompt: Some("be brief".into()),
        max_samples: Some(5),
        eval_max_samples: Some(3),
        task: Some(Task::Gsm8k),
        ..Config::default()
    }
}

#[test]
fn datasets_follow_the_configuration() {
    let config = config();
    let train = DatasetSpec::train(&config).unwrap();
    assert_eq!((train.name.as_str(), train.config.as_deref(), train.split.as_str()), ("d", Some("main"), "mine"));
    assert_eq!((train.prompt_column.as_str(), train.completion_column.as_str()), ("question", "reply"));
    assert_eq!(train.columns, [("answer".to_owned(), "solution".to_owned())]);
    assert_eq!(
        (train.system_prompt.as_deref(), train.max_samples, train.task),
        (Some("be brief"), Some(5), Some(Task::Gsm8k))
    );
    assert!(!train.needs_completion && !train.whole_texts && train.rows.is_none());
    let sets = |config: &Config| -> Vec<(String, String, String, Option<usize>)> {
        let all = DatasetSpec::eval_sets(config).into_iter();
        all.map(|(name, spec)| (name, spec.name, spec.split, spec.max_samples)).collect()
    };
    let set = |name: &str, data: &str, split: &str| (name.to_owned(), data.to_owned(), split.to_owned(), Some(3));
    assert_eq!(sets(&config), [set("", "e", "test"), set("a", "x", "test"), set("b", "y", "test")]);
    let named = Config { eval_dataset_name: None, eval_dataset_split: Some("held".into()), ..config.clone() };
    assert_eq!(sets(&named), [set("a", "x", "held"), set("b", "y", "held")]);
    let scored = DatasetSpec::completions(&config, "c".into());
    assert_eq!((scored.name.as_str(), scored.needs_completion, scored.system_prompt), ("c", true, None));
    assert_eq!((scored.split.as_str(), scored.max_samples), ("mine", Some(5)));
    assert!(DatasetSpec::train(&Config { dataset_name: None, ..config }).is_none());
}

/// Several files are read in the order of their names, up to the limit, and only these are hashed.
#[test]
fn files_are_read_in_order_up_to_the_limit() {
    let (first, second) = ("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n", "[{\"prompt\": \"c\"}, {\"prompt\": 4}]");
    let dir = directory(&[("1.jsonl", first), ("2.jsonl", "{\"prompt\": \"c\"}\n{\"prompt\": 4}\n")]);
    let load = |dir: &tempfile::TempDir, limit| DatasetSpec { max_samples: limit, ..spec(dir.path()) }.load();
    let rows = |data: &Dataset| data.examples.iter().map(|e| (e.row, e.prompt.text().into_owned())).collect::<Vec<_>>();
    let data = load(&dir, Some(3)).unwrap();
    assert_eq!(rows(&data), [(0, "a".to_owned()), (1, "b".to_owned()), (2, "c".to_owned())]);
    assert_eq!(data.hash, sha256(format!("{first}{{\"prompt\": \"c\"}}\n{{\"prompt\": 4}}\n").as_bytes()));
    let data = load(&dir, Some(2)).unwrap();
    assert_eq!((data.examples.len(), data.hash.clone()), (2, sha256(first.as_bytes())));
    assert_eq!(load(&dir, Some(1)).unwrap().examples.len(), 1);
    let message = |dir: &tempfile::TempDir| {
        load(dir, None).unwrap_err().to_string().replace(&dir.path().display().to_string(), "DIR")
    };
    assert_eq!(
        message(&dir),
        "DIR/2.jsonl, line 2: `prompt`: expected a string or a list of messages {\"role\": …, \"content\": …}, got 4"
    );
    // Errors count rows in a JSON list, but lines in a .json file of JSON lines.
    assert!(message(&directory(&[("2.json", second)])).starts_with("DIR/2.json, row 2: "));
    assert!(message(&directory(&[("2.json", "\n{\"prompt\": 4}\n")])).starts_with("DIR/2.json, line 2: "));
    assert!(message(&directory(&[("2.jsonl", "{\"prompt\": 4}\n")])).starts_with("DIR/2.jsonl, line 1: "));
    let empty = directory(&[("1.jsonl", "\n")]);
    assert_eq!(message(&empty), "the dataset DIR is empty: it has no rows");
}

#[test]
fn rows_in_memory_are_counted_and_hashed() {
    let rows =
        Rows::try_from(vec![json!({"prompt": "a"}), json!({"prompt": "b", "x": 1}), json!({"prompt": 3})]).unwrap();
    let of = |limit| DatasetSpec { max_samples: limit, rows: Some(rows.clone()), ..spec(Path::new("memory")) };
    let data = of(Some(2)).load().unwrap();
    assert_eq!((data.examples.len(), data.columns.as_slice()), (2, ["x".to_owned()].as_slice()));
    assert_eq!(data.hash, sha256(b"{\"prompt\":\"a\"}\n{\"prompt\":\"b\",\"x\":1}\n"));
    assert!(of(None).load().unwrap_err().to_string().starts_with("memory, row 3: `prompt`: "));
    let none = DatasetSpec { rows: Some(Rows::try_from(vec![]).unwrap()), ..of(None) };
    assert_eq!(none.load().unwrap_err().to_string(), "the dataset memory is empty: it has no rows");
    let refused = Rows::try_from(vec![json!({}), json!(3)]).unwrap_err();
    assert_eq!(refused.to_string(), "row 2 is not a JSON object such as {\"prompt\": \"…\"}: 3");
    let stop = StopSignal::new();
    stop.request();
    assert!(is_stopped(&DatasetSpec { stop: stop.clone(), ..of(None) }.load().unwrap_err()));
    let dir = directory(&[("1.jsonl", "{\"prompt\": \"a\"}\n")]);
    assert!(is_stopped(&DatasetSpec { stop, ..spec(dir.path()) }.load().unwrap_err()));
    // Each row can be changed before it is checked.
    let changed = of(None).load_with(&mut |row| drop(row.insert("prompt".into(), json!("z")))).unwrap();
    assert!(changed.examples.iter().all(|example| example.prompt == Content::from("z")));
}

#[test]
fn examples_keep_the_columns_for_rewards_and_templates() {
    let example = |text: &str, change: fn(&mut DatasetSpec)| load(text, change).unwrap().examples.remove(0);
    let columns = |example: &Example| Value::Object(example.columns.clone());
    let row = "{\"prompt\": \"p\", \"completion\": \"cc\", \"old\": 3, \"tools\": []}";
    let plain = example(row, |_| {});
    assert_eq!((plain.completion.clone(), plain.bytes()), (Some(Content::from("cc")), 3));
    assert_eq!(columns(&plain), json!({"completion": "cc", "old": 3, "tools": []}));
    let needed = example(row, |s| {
        s.needs_completion = true;
        s.columns = vec![("new".into(), "old".into())];
    });
    assert_eq!(columns(&needed), json!({"tools": [], "new": 3}));
    // A row that is learned whole keeps the columns that the chat template reads.
    let whole = "{\"text\": \"whole\", \"old\": 3, \"tools\": [], \"chat_template_kwargs\": {}}";
    let text_example = example(whole, |s| s.whole_texts = true);
    assert_eq!((text_example.prompt.clone(), text_example.completion.clone()), (Content::from("whole"), None));
    assert_eq!((columns(&text_example), text_example.bytes()), (json!({"tools": [], "chat_template_kwargs": {}}), 5));
    let both = "{\"messages\": [{\"role\": \"user\", \"content\": \"m\"}], \"text\": \"t\"}";
    assert_eq!(example(both, |s| s.whole_texts = true).prompt, Content::from("t"));
    let talk = "{\"conversations\": [{\"role\": \"user\", \"content\": \"m\"}]}";
    assert!(matches!(example(talk, |s| s.whole_texts = true).prompt, Content::Messages(_)));
    let renamed = example("{\"body\": \"b\", \"messages\": 3}", |s| {
        s.whole_texts = true;
        s.columns = vec![("text".into(), "body".into())];
    });
    assert_eq!(renamed.prompt, Content::from("b"));
    // A row with a prompt or a completion is not a single text. Token ids are used as they are.
    let split = "{\"text\": \"t\", \"prompt\": \"p\"}";
    assert_eq!(example(split, |s| s.whole_texts = true).prompt, Content::from("p"));
    assert!(load("{\"text\": \"t\", \"completion\": \"c\"}", |s| s.whole_texts = true).is_err());
    let ids = example("{\"input_ids\": [1, 2], \"x\": 1}", |s| s.whole_texts = true);
    assert_eq!((ids.prompt.clone(), columns(&ids)), (Content::from(""), json!({"input_ids": [1, 2], "x": 1})));
    assert!(load("{\"input_ids\": [1, 2]}", |_| {}).is_err());
}

#[test]
fn json_lines_and_json_lists_are_read() {
    let read = |name: &str, text: &[u8], limit: usize| {
        let rows = super::rows::read(Path::new(name), text, limit, &StopSignal::new());
        rows.map(|rows| rows.into_iter().map(|(place, row)| (place, row["x"].clone())).collect::<Vec<_>>())
            .map_err(|error| error.to_string())
    };
    let two = [(1, json!(1)), (3, json!(2))];
    for text in ["{\"x\": 1}\n\n{\"x\": 2}\n{\"x\": 3}", "\u{feff}{\"x\": 1}\r\n \n{\"x\": 2}\n"] {
        assert_eq!(read("a.jsonl", text.as_bytes(), 2).unwrap(), two, "{text}");
    }
    // Lines after the limit are not read. A byte order mark is accepted only at the start of a file.
    assert_eq!(read("a.jsonl", b"{\"x\": 1}\nbroken", 1).unwrap(), two[..1]);
    let marked = read("a.jsonl", "{\"x\": 1}\n\u{feff}{\"x\": 2}".as_bytes(), 9).unwrap_err();
    assert!(marked.starts_with("a.jsonl, line 2, column 1: broken JSON: "), "{marked}");
    let broken = read("a.jsonl", b"{\"x\": 1}\n{\"x\": 1,}", 9).unwrap_err();
    assert_eq!(broken, "a.jsonl, line 2, column 9: broken JSON: trailing comma");
    // An object over several lines, an unfinished list, and a truncated line.
    for (text, line, column, what) in [
        ("{\n  \"x\": 1\n}\n", 1, 1, "an object"),
        ("{\"x\": 1}\n{\"x\": [1,\n2]}\n", 2, 9, "a value"),
        ("[\n{\"x\": 1}\n]\n", 1, 1, "a list"),
        ("{\"x\": 1}\n{\"x\": \"a", 2, 8, "a string"),
        ("{\"x\":", 1, 5, "a value"),
    ] {
        let message = read("a.jsonl", text.as_bytes(), 9).unwrap_err();
        let whole = "each line must hold one whole JSON object, so write the object on a single line";
        assert_eq!(
            message,
            format!("a.jsonl, line {line}, column {column}: broken JSON: EOF while parsing {what}: {whole}")
        );
    }
    let object = "a.jsonl, line 1: each line must be a JSON object such as {\"prompt\": \"…\"}";
    assert_eq!(read("a.jsonl", b"3", 9).unwrap_err(), object);
    let list = "\u{feff} [{\"x\": 1}, {\"x\": 2}, {\"x\": 3}]";
    assert_eq!(read("a.json", list.as_bytes(), 2).unwrap(), [(1, json!(1)), (2, json!(2))]);
    assert_eq!(read("a.json", list.as_bytes(), 9).unwrap().len(), 3);
    for broken in ["[{\"x\": 1}] and more", "[{\"x\": 1}, 3]"] {
        let message = read("a.json", broken.as_bytes(), 1).unwrap_err();
        assert!(message.starts_with("a.json: broken JSON, or not a list of objects: "), "{message}");
    }
    for ending in ["gz", "zst", "csv", "arrow"] {
        let message = read(&format!("a.{ending}"), b"", 9).unwrap_err();
        let fix = "datasets are read as JSON lines (.jsonl) or Parquet (.parquet); unpack or convert it first";
        assert_eq!(message, format!("a.{ending}: {fix}"));
    }
    let stop = StopSignal::new();
    stop.request();
    for (name, text) in [("a.jsonl", "{}"), ("a.json", "[{}]")] {
        assert!(is_stopped(&super::rows::read(Path::new(name), text.as_bytes(), 9, &stop).unwrap_err()), "{name}");
    }
}

#[test]
fn a_number_beyond_64_bits_is_refused_with_its_place() {
    let problem = |name: &str, text: &str| {
        let rows = super::rows::read(Path::new(name), text.as_bytes(), 9, &StopSignal::new());
        rows.map(|rows| rows.len()).map_err(|error| (is_bad_input(&error), error.to_string()))
    };
    let message = |place: &str, column: &str, number: &str, read: &str| {
        let what = "has more digits than 64 bits hold, and would be read as";
        Err((true, format!("{place}, column `{column}`: {number} {what} {read}; write it as text: \"{number}\"")))
    };
    let big = "100000000000000000001";
    let mut wrong = Vec::new();
    for (name, text, expected) in [
        ("a.jsonl", format!("{{\"x\": 1}}\n{{\"x\": {big}}}"), message("a.jsonl, line 2", "x", big, "1e+20")),
        ("a.jsonl", format!("{{\"x\": [{{\"y\": {big}}}]}}"), message("a.jsonl, line 1", "x", big, "1e+20")),
        ("a.json", format!("[{{\"x\": 1}}, {{\"x\": {big}}}]"), message("a.json, row 2", "x", big, "1e+20")),
        ("a.json", format!("{{\"x\": {big}}}"), message("a.json, line 1", "x", big, "1e+20")),
        (
            "a.jsonl",
            "{\"x\": 0.12345678901234567890}".into(),
            message("a.jsonl, line 1", "x", "0.12345678901234567890", "0.12345678901234568"),
        ),
        ("a.jsonl", "{\"x\": 1e-400}".into(), message("a.jsonl, line 1", "x", "1e-400", "0.0")),
        ("a.jsonl", format!("{{\"x\": \"{big}\", \"{big}\": 0.1}}"), Ok(1)),
        ("a.jsonl", "{\"x\": 18446744073709551615, \"y\": -9223372036854775808}".into(), Ok(1)),
        ("a.jsonl", "{\"x\": 0.30000000000000004, \"y\": 1e20, \"z\": 0.10000000000000001}".into(), Ok(1)),
    ] {
        let got = problem(name, &text);
        if got != expected {
            wrong.push((text, got, expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[cfg(feature = "parquet")]
#[test]
fn a_stop_interrupts_reading_a_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet/none-1.parquet");
    let stop = StopSignal::new();
    stop.request();
    assert!(is_stopped(&super::rows::read(&path, b"", 9, &stop).unwrap_err()));
    assert_eq!(super::rows::read(&path, b"", 0, &stop).unwrap(), []);
}

#[test]
fn prompts_that_do_not_fit_the_context_are_refused() {
    let (tokenizer, kwargs) = (tokenizer(), Map::new());
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: None, kwargs: &kwargs, tools: None };
    let data =
        Dataset { name: "d".into(), ..load("{\"prompt\": \"ab\"}\n{\"prompt\": \"abcdef\"}\n", |_| {}).unwrap() };
    let encode = |most, context, room| encode_all(&encoder, &data, most, context, room, &StopSignal::new());
    let kept = |most| encode(most, 10, 4).map(|all| (all.prompts.len(), all.left_out)).unwrap();
    assert_eq!((kept(Some(6)), kept(Some(5)), kept(Some(2))), ((2, 0), (1, 1), (1, 1)));
    for (context, room, fix) in [
        (9, 4, "lower max_completion_length to 3, or set max_prompt_length = 5 to skip such rows"),
        (6, 3, "set max_prompt_length = 3 to skip such rows"),
    ] {
        let words = format!(
            "d, row 2: the prompt's 6 tokens and max_completion_length = {room} together exceed the context of \
             {context} tokens: {fix}"
        );
        assert_eq!(encode(None, context, room).unwrap_err().to_string(), words);
    }
    // Even the first prompt leaves no room for its completion.
    for (context, room, fix) in [
        (7, 8, "lower max_completion_length to 5 (less if other prompts are longer)"),
        (
            2,
            8,
            "lower max_completion_length below 2 and set max_prompt_length to the rest, or raise max_model_len up to \
             the model's context",
        ),
    ] {
        let words = format!(
            "d, row 1: the prompt's 2 tokens and max_completion_length = {room} together exceed the context of \
             {context} tokens: {fix}"
        );
        assert_eq!(encode(None, context, room).unwrap_err().to_string(), words);
    }
    assert_eq!(
        encode(Some(1), 10, 4).unwrap_err().to_string(),
        "d: every prompt has more than max_prompt_length = 1 tokens: raise max_prompt_length"
    );
    let empty = Dataset { name: "d".into(), ..load("{\"prompt\": \"\"}", |_| {}).unwrap() };
    let error = encode_all(&encoder, &empty, None, 10, 4, &StopSignal::new()).unwrap_err();
    assert_eq!(error.to_string(), "d, row 1: the prompt is empty: it has no tokens");
    let stop = StopSignal::new();
    stop.request();
    assert!(is_stopped(&encode_all(&encoder, &data, None, 10, 4, &stop).unwrap_err()));
    // Equal prompts share one list of ids.
    let twice = load("{\"prompt\": \"ab\"}\n{\"prompt\": \"c\"}\n{\"prompt\": \"ab\"}\n", |_| {}).unwrap();
    let all = encode_all(&encoder, &twice, None, 10, 4, &StopSignal::new()).unwrap().prompts;
    assert!(std::sync::Arc::ptr_eq(&all[0].tokens, &all[2].tokens) && all[2].row == 2);
}

/// A prompt that is certainly too long is not encoded, since encoding it would take much memory.
#[test]
fn a_far_too_long_prompt_is_not_encoded() {
    let (tokenizer, kwargs) = (tokenizer(), Map::new());
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: None, kwargs: &kwargs, tools: None };
    let long = (1 << 20) + 1;
    // The vocabulary does not have capitals, so such a text cannot be encoded.
    let example =
        |row: usize, text: String| Example { row, prompt: Content::Text(text), completion: None, columns: Map::new() };
    let examples = vec![example(0, "ab".into()), example(1, "A".repeat(long))];
    let data = Dataset { name: "d".into(), examples, columns: vec![], template_columns: vec![], hash: String::new() };
    let all = encode_all(&encoder, &data, Some(5), 10, 4, &StopSignal::new()).unwrap();
    assert_eq!((all.prompts.len(), all.left_out), (1, 1));
    let error = encode_all(&encoder, &data, None, 10, 4, &StopSignal::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "d, row 2: the prompt has {long} bytes, too many for the context of 10 tokens (a token has at most 3 \
             bytes): set max_prompt_length to skip such rows"
        )
    );
}
