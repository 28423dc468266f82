use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::json;

use super::*;

/// Reads a table with the row reader of the parquet crate. Each row is a list of strings `name: value`.
fn read(path: &Path) -> Vec<Vec<String>> {
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().get_column_iter().map(|(name, field)| format!("{name}: {field}")).collect()).collect()
}

fn rows() -> CompletionRows {
    CompletionRows {
        step: Step(10),
        prompts: vec!["2+2=".into(), "é".into()],
        completions: vec!["4".into(), "line\nfeed".into()],
        rewards: vec![("gsm8k".into(), vec![Some(1.0), None]), ("length".into(), vec![Some(0.1), Some(-2.5)])],
        extra: vec![("found".into(), vec![4.into(), Value::Null])],
        advantages: vec![Some(0.5), Some(-0.5)],
    }
}

#[test]
fn tables_have_the_columns_of_trl() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir.path().join("completions"), &rows()).unwrap();
    assert!(path.ends_with("completions/completions_00010.parquet"));
    let expected = [
        [
            "step: 10",
            "prompt: \"2+2=\"",
            "completion: \"4\"",
            "gsm8k: 1.0",
            "length: 0.1",
            "found: 4",
            "advantage: 0.5",
        ],
        [
            "step: 10",
            "prompt: \"é\"",
            "completion: \"line\nfeed\"",
            "gsm8k: null",
            "length: -2.5E0",
            "found: null",
            "advantage: -5E-1",
        ],
    ];
    assert_eq!(read(&path), expected);
    // A table that is written again (after a resume) replaces the old file and leaves no other file.
    let mut again = rows();
    again.rewards.truncate(1);
    write(path.parent().unwrap(), &again).unwrap();
    assert_eq!(read(&path)[0].len(), 6);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn conversations_are_written_as_lists_of_structs() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = rows();
    let user = |text: &str| json!({"role": "user", "content": text});
    rows.prompts = vec![json!([{"role": "system", "content": "be brief", "name": "x"}, user("hi")]), json!([])];
    rows.completions = vec![json!([{"role": "assistant", "content": [{"type": "text"}]}]), "plain".into()];
    let read = read(&write(dir.path(), &rows).unwrap());
    assert!(read[0][1].contains("role: \"system\"") && read[0][1].contains("name: \"x\"}"), "{}", read[0][1]);
    assert!(read[0][1].contains("role: \"user\", content: \"hi\", name: null"), "{}", read[0][1]);
    assert_eq!(read[1][1], "prompt: []");
    // A mixture of text and conversations becomes text.
    assert!(read[0][2].starts_with("completion: \"[{\"role\":\"assistant\""), "{}", read[0][2]);
    assert_eq!(read[1][2], "completion: \"plain\"");
}

#[test]
fn extra_columns_have_fitting_types_and_tables_may_be_empty() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = rows();
    rows.extra = vec![
        ("bool".into(), vec![true.into(), false.into()]),
        ("float".into(), vec![1.into(), 2.5.into()]),
        ("mixed".into(), vec![json!({"a": 1}), "text".into()]),
        ("none".into(), vec![Value::Null, Value::Null]),
    ];
    let read_back = read(&write(dir.path(), &rows).unwrap());
    assert_eq!(read_back[0][5..9], ["bool: true", "float: 1.0", "mixed: \"{\"a\":1}\"", "none: null"]);
    let empty = CompletionRows { step: Step(123_456), ..CompletionRows::default() };
    let path = write(dir.path(), &empty).unwrap();
    assert!(path.ends_with("completions_123456.parquet") && read(&path).is_empty());
}

#[test]
fn ragged_or_duplicate_columns_are_errors_and_write_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("completions");
    let mut ragged = rows();
    ragged.advantages.pop();
    assert!(
        write(&directory, &ragged)
            .unwrap_err()
            .to_string()
            .contains("`advantage` must have one value per completion: got 1 values for 2")
    );
    let mut doubled = rows();
    doubled.rewards[1].0 = "gsm8k".into();
    assert!(write(&directory, &doubled).unwrap_err().to_string().contains("two columns have the name `gsm8k`"));
    assert!(!directory.exists());
}

#[test]
fn a_resume_removes_tables_of_later_steps_and_partial_tables() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("completions");
    let mut sink = CompletionsSink::new(&directory);
    assert_eq!(sink.resume(Step(3), &BTreeMap::new()).unwrap(), None, "the directory does not exist yet");
    sink.receive(&EventKind::Rollout { record: vec![1] }.into()).unwrap();
    assert!(!directory.exists());
    for step in [9, 10, 11, 123_456] {
        sink.receive(&EventKind::Completions { rows: CompletionRows { step: Step(step), ..rows() }, shown: 0 }.into())
            .unwrap();
    }
    let others = ["completions_x.parquet", "notes_00011.parquet", ".completions_1", "completions.tmp"];
    let half = [".completions_00009.parquet.77.tmp", "completions_00012.jsonl"];
    others.iter().chain(&half).for_each(|name| std::fs::write(directory.join(name), "").unwrap());
    assert_eq!(sink.resume(Step(10), &BTreeMap::new()).unwrap(), None);
    let mut left: Vec<String> =
        std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    let mut expected = [&others[..], &["completions_00009.parquet", "completions_00010.parquet"]].concat();
    expected.sort();
    assert_eq!(left, expected);
    std::fs::create_dir(directory.join("completions_00013.parquet")).unwrap();
    let error = sink.resume(Step(10), &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.starts_with("cannot remove ") && error.contains("completions_00013.parquet"), "{error}");
    // The path of the directory is a file.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = write(&file, &rows()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot create {}: ", file.display())), "{error}");
}

#[test]
fn cells_get_the_most_specific_type_that_fits_all_values() {
    let kind = |values: &[Value]| {
        let cells = cells(values);
        assert_eq!(cells.len(), values.len());
        match cells {
            Cells::Ints(cells) => format!("ints {cells:?}"),
            Cells::Floats(cells) => format!("floats {cells:?}"),
            Cells::Bools(cells) => format!("bools {cells:?}"),
            Cells::Texts(cells) => format!("texts {cells:?}"),
            Cells::Messages { keys, rows } => format!("messages {keys:?} {rows:?}"),
        }
    };
    assert_eq!(kind(&[1.into(), Value::Null, (-2).into()]), "ints [Some(1), None, Some(-2)]");
    assert_eq!(kind(&[1.into(), u64::MAX.into()]), "floats [Some(1.0), Some(1.8446744073709552e19)]");
    assert_eq!(kind(&[0.5.into(), Value::Null]), "floats [Some(0.5), None]");
    assert_eq!(kind(&[true.into(), Value::Null]), "bools [Some(true), None]");
    assert_eq!(kind(&["a".into(), Value::Null]), "texts [Some(\"a\"), None]");
    assert_eq!(kind(&[json!([]), json!([])]), "texts [Some(\"[]\"), Some(\"[]\")]");
    assert_eq!(kind(&[json!([1]), Value::Null, "x".into()]), "texts [Some(\"[1]\"), None, Some(\"x\")]");
    let chats = [json!([{"a": "x", "b": null}, {"b": 2}]), json!([])];
    assert_eq!(kind(&chats), "messages [\"a\", \"b\"] [[[Some(\"x\"), None], [None, Some(\"2\")]], []]");
}
