use super::*;
use crate::output::Output;
use serde_json::json;

/// The tests in a cell of a row that also has these columns.
fn tests(cell: Value, columns: Value) -> Option<Tests> {
    Tests::read(&cell, &|name| columns.get(name)?.as_str().map(str::to_owned), true)
}

fn unit(tests: &[&str], setup: &str, entry_point: Option<&str>, check: bool) -> Option<Tests> {
    let tests = tests.iter().map(|test| (*test).to_owned()).collect();
    Some(Tests::Unit(UnitTests { tests, setup: setup.into(), entry_point: entry_point.map(str::to_owned), check }))
}

fn streams(pairs: &[(&str, &str)]) -> Option<Tests> {
    let test = |(input, output): &(&str, &str)| StreamTest { input: (*input).into(), output: (*output).into() };
    Some(Tests::Streams(pairs.iter().map(test).collect()))
}

/// Tests whose expected outputs are JSON values.
fn typed(pairs: &[(&str, Value)]) -> Option<Tests> {
    let test =
        |(input, output): &(&str, Value)| StreamTest { input: (*input).into(), output: Output::read(output).unwrap() };
    Some(Tests::Streams(pairs.iter().map(test).collect()))
}

#[test]
fn tests_are_read_in_the_formats_of_data_sets() {
    let none = || json!({});
    let all = || json!({"test_setup_code": "import x\n", "entry_point": "f"});
    for (cell, columns, expected) in [
        (
            json!([{"input": "1", "output": "2"}, {"input": 3, "output": true}]),
            all(),
            typed(&[("1", json!("2")), ("3", json!(true))]),
        ),
        (json!([{"input": "1", "output": "2", "kind": "x"}]), none(), streams(&[("1", "2")])),
        (json!([{"input": "1"}]), none(), None),
        (json!([{"output": "1"}]), none(), None),
        (json!([{"input": "1", "output": null}]), none(), None),
        (json!([{"input": "1", "output": "2"}, "x"]), none(), None),
        (json!({"inputs": ["1", "2"], "outputs": ["3", 4]}), none(), typed(&[("1", json!("3")), ("2", json!(4))])),
        (
            json!({"inputs": [["1", "2"], "3", [1, 2]], "outputs": [["3", "4"], 1.5, [5, 6]]}),
            none(),
            typed(&[("1\n2\n", json!(["3", "4"])), ("3", json!(1.5)), ("[1,2]", json!([5, 6]))]),
        ),
        (json!([{"input": "1", "output": {"x": 1}}]), none(), None),
        (json!([{"input": "1", "output": [[1], [2]]}]), none(), None),
        (json!("[{\"input\": \"1\", \"output\": 100000000000000000001}]"), none(), None),
        (
            json!("[{\"input\": \"1\", \"output\": 12345678901234567}]"),
            none(),
            typed(&[("1", json!(12345678901234567u64))]),
        ),
        (json!({"inputs": ["1", "2"], "outputs": ["3"]}), none(), None),
        (json!({"inputs": ["1"], "outputs": ["3", "4"]}), none(), None),
        (json!({"inputs": ["1"]}), none(), None),
        (json!({"inputs": [], "outputs": []}), none(), None),
        (json!("[{\"input\": \"1\", \"output\": \"2\"}]"), none(), streams(&[("1", "2")])),
        (json!("[\"assert a\"]"), none(), unit(&["assert a"], "", None, false)),
        (json!("\"assert a\""), none(), None),
        (json!(["assert a", "assert b"]), none(), unit(&["assert a", "assert b"], "", None, false)),
        (json!(["assert a"]), all(), unit(&["assert a"], "import x\n", Some("f"), false)),
        (json!([]), all(), None),
        (json!(["assert a", 1]), none(), None),
        (json!("def check(f): x"), all(), unit(&["def check(f): x"], "import x\n", Some("f"), true)),
        (json!("def check(f): x"), none(), None),
        (json!("def test(f): x"), all(), None),
        (json!("a = 1\nassert a\n"), none(), unit(&["assert a\n"], "a = 1\n", None, false)),
        (json!("a = 1\nassert a\n"), all(), unit(&["assert a\n"], "import x\na = 1\n", Some("f"), false)),
        (json!("a = 1"), none(), None),
        (json!(""), none(), None),
        (json!(null), all(), None),
        (json!(5), all(), None),
    ] {
        assert_eq!(tests(cell.clone(), columns), expected, "{cell}");
    }
    // A column with a different type is ignored.
    let odd = json!({"test_setup_code": 3, "entry_point": null});
    assert_eq!(tests(json!(["assert a"]), odd), unit(&["assert a"], "", None, false));
}

#[test]
fn an_assertion_extends_to_the_next() {
    let text = "x = 1\ny = 2\nassert x\n  and y\nlet () = z\n\nassert z";
    let (setup, tests) = assertions(text);
    assert_eq!(setup, "x = 1\ny = 2\n");
    assert_eq!(tests, ["assert x\n  and y\n", "let () = z\n\n", "assert z"]);
    assert_eq!(assertions(" assert x\n"), (" assert x\n".to_owned(), vec![]));
}

#[test]
fn the_last_code_block_of_the_language_is_the_program() {
    let python = ["python".to_owned(), "py".to_owned()];
    for (text, marked, any) in [
        ("x", "x", "x"),
        ("```python\na\nb\n```", "a\nb\n", "a\nb\n"),
        ("```\na\n```\nso\n```py\nb\n```\n", "b\n", "b\n"),
        // A block without a language often shows the output of the program.
        ("```py\na\n```\nso\n```\nb\n```\n", "a\n", "a\n"),
        ("```\na\n```\nso\n```\nb\n```\n", "b\n", "b\n"),
        ("~~~python\na\n~~~\n", "a\n", "a\n"),
        ("~~~\na\n```\nb\n~~~", "a\n```\nb\n", "a\n```\nb\n"),
        ("```python title=\"a.py\"\na\n```", "a\n", "a\n"),
        ("```python {linenos=true}\na\n```", "a\n", "a\n"),
        ("```{python}\na\n```", "a\n", "a\n"),
        ("```{.python .numberLines}\na\n```", "a\n", "a\n"),
        ("```python:main.py\na\n```", "a\n", "a\n"),
        (
            "1. So:\n   ```python\n   def f():\n       a\n\n   b\n   ```\n",
            "def f():\n    a\n\nb\n",
            "def f():\n    a\n\nb\n",
        ),
        ("- So:\n\t```py\n\tif a:\n\t\tb\n\t```", "if a:\n\tb\n", "if a:\n\tb\n"),
        ("````py\na\n```\nb\n````", "a\n```\nb\n", "a\n```\nb\n"),
        ("```PYTHON3\na\n```", "```PYTHON3\na\n```", "a\n"),
        ("```py``` is one\n```py\na\n```", "a\n", "a\n"),
        ("```python\na\n```\nOutput:\n```text\nb\n```\nor\n```\nc\n```", "a\n", "b\n"),
        ("```py\na\n```\nso\n```sh\nb\n```", "a\n", "b\n"),
        ("  ``` Python \na\n  ```\nb", "a\n", "a\n"),
        ("```py\na", "a\n", "a\n"),
        ("```py\n```", "\n", "\n"),
        ("```sh\na\n```", "```sh\na\n```", "a\n"),
        ("", "", ""),
    ] {
        assert_eq!((code_of(text, &python), code_of(text, &[])), (marked.to_owned(), any.to_owned()), "{text}");
    }
}
