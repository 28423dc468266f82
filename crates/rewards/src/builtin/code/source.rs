//! What a row and a completion hold: tests in the forms that datasets have them, and a program. Runs nothing.

use serde_json::Value;

use super::python::UnitTests;
use crate::RewardBatch;

/// The tests of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tests {
    /// Of a whole program.
    Streams(Vec<StreamTest>),
    /// Of a program's functions.
    Unit(UnitTests),
}

/// Standard input and what is expected on standard output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StreamTest {
    pub input: String,
    pub output: String,
}

/// The tests of row `i`, whose tests' cell is `cell`: `[{"input", "output"}]` or `{"inputs", "outputs"}`, a list of
/// assertions (MBPP's `test_list`, with `test_setup_code`), a text of JSON, or one that defines `check` (HumanEval's
/// `test`, with `entry_point`).
pub(super) fn tests_of(cell: &Value, batch: &RewardBatch<'_>, i: usize) -> Option<Tests> {
    let column = |name: &str| batch.columns.get(name)?.get(i)?.as_str().map(str::to_owned);
    let unit = |tests: Vec<String>, entry_point: Option<String>| {
        Tests::Unit(UnitTests { tests, setup: column("test_setup_code").unwrap_or_default(), entry_point })
    };
    match cell {
        Value::String(text) => match serde_json::from_str(text) {
            Ok(Value::String(_)) => None,
            Ok(json) => tests_of(&json, batch, i),
            Err(_) => {
                let entry_point = column("entry_point").filter(|_| text.contains("check"))?;
                Some(unit(vec![text.clone()], Some(entry_point)))
            }
        },
        Value::Array(tests) if !tests.is_empty() && tests.iter().all(Value::is_string) => {
            Some(unit(tests.iter().filter_map(Value::as_str).map(str::to_owned).collect(), None))
        }
        _ => stream_tests(cell).filter(|tests| !tests.is_empty()).map(Tests::Streams),
    }
}

fn stream_tests(cell: &Value) -> Option<Vec<StreamTest>> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    };
    let test = |input: &Value, output: &Value| Some(StreamTest { input: text(input)?, output: text(output)? });
    match cell {
        Value::Array(tests) => tests.iter().map(|t| test(t.get("input")?, t.get("output")?)).collect(),
        Value::Object(lists) => {
            let list = |name: &str| lists.get(name)?.as_array();
            let (inputs, outputs) = (list("inputs")?, list("outputs")?);
            let pairs = inputs.iter().zip(outputs).map(|(input, output)| test(input, output));
            pairs.collect::<Option<_>>().filter(|_| inputs.len() == outputs.len())
        }
        _ => None,
    }
}

/// The last code block with one of these marks or none; without a block, all of the text.
pub(super) fn code_of(text: &str, marks: &[String]) -> String {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(mark) = line.trim_start().strip_prefix("```") else { continue };
        let inside: Vec<&str> = lines.by_ref().take_while(|line| !line.trim_start().starts_with("```")).collect();
        let mark = mark.trim().to_lowercase();
        if mark.is_empty() || marks.is_empty() || marks.contains(&mark) {
            blocks.push(inside.join("\n") + "\n");
        }
    }
    blocks.pop().unwrap_or_else(|| text.to_owned())
}
