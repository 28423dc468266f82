//! Tests that give the arguments and the value of one function, as in APPS, TACO, LiveCodeBench and others. They are
//! converted to Python assertions. The program must define the function, or a class `Solution` with a method of that
//! name.

use super::{Tests, UnitTests};
use serde_json::Value;

/// Compares an answer with the expected value. As in these datasets, tuples count as lists, keys of objects may be
/// integers, and the expected value may be wrapped in a list of one item.
const COMPARE: &str = r#"import json
def as_json(value):
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {int(key) if isinstance(key, str) and key.lstrip("-").isdigit() else key: as_json(item)
                for key, item in value.items()}
    return value
def is_answer(answer, expected, wrapped):
    answer, expected = as_json(answer), as_json(expected)
    alone = wrapped and isinstance(expected, list) and len(expected) == 1
    return answer == expected or alone and answer == expected[0]
"#;

/// The keys that name a function, in a cell or a column.
const NAMES: [&str; 3] = ["fn_name", "func_name", "function_name"];

/// Whether these tests call a function with arguments, instead of running a program.
pub(super) fn is_functional(cell: &Value) -> bool {
    let kind = |test: &Value| {
        let kind = ["testtype", "type"].iter().find_map(|key| test.get(key)?.as_str());
        kind.is_some_and(|kind| kind.starts_with("func")) || name_in(test).is_some()
    };
    match cell {
        Value::Array(tests) => tests.iter().any(kind),
        other => kind(other),
    }
}

fn name_in(value: &Value) -> Option<&str> {
    NAMES.iter().find_map(|key| value.get(key)?.as_str()).filter(|name| !name.is_empty())
}

/// Converts tests of a function to assertions. `column` reads another column of the row.
pub(super) fn tests(cell: &Value, column: &dyn Fn(&str) -> Option<String>) -> Tests {
    let name = || {
        let first = cell.get(0).unwrap_or(cell);
        if let Some(name) = name_in(cell).or_else(|| name_in(first)) {
            return Some(name.to_owned());
        }
        let own = NAMES.iter().find_map(|name| column(name)).or_else(|| column("entry_point"));
        let metadata = || name_in(&serde_json::from_str(&column("metadata")?).ok()?).map(str::to_owned);
        own.or_else(metadata).or_else(|| defined_last(&column("starter_code")?))
    };
    let Some(name) = name().filter(|name| is_name(name)) else {
        return Tests::Refused(
            "its tests call a function, and neither they nor a column `fn_name`, `entry_point`, `metadata` or \
             `starter_code` names it"
                .to_owned(),
        );
    };
    let pairs: Option<Vec<(Value, Value, bool)>> = match cell {
        Value::Array(tests) => tests.iter().map(|test| pair(test.get("input")?, test.get("output")?)).collect(),
        other => (|| {
            let (inputs, outputs) = (other.get("inputs")?.as_array()?, other.get("outputs")?.as_array()?);
            let pairs = inputs.iter().zip(outputs).map(|(input, output)| pair(input, output));
            pairs.collect::<Option<Vec<_>>>().filter(|_| inputs.len() == outputs.len())
        })(),
    };
    let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) else {
        return Tests::Refused(format!("its tests of the function `{name}` have no lists of arguments and outputs"));
    };
    let tests = pairs.into_iter().map(|(arguments, expected, wrapped)| {
        let text = |value: Value| Value::String(value.to_string()).to_string();
        let wrapped = if wrapped { "True" } else { "False" };
        format!(
            "{COMPARE}try:\n    function = Solution().{name}\n\
             except (NameError, AttributeError):\n    function = {name}\n\
             assert is_answer(function(*json.loads({})), json.loads({}), {wrapped})\n",
            text(arguments),
            text(expected)
        )
    });
    let tests = tests.collect();
    Tests::Unit(UnitTests { tests, setup: String::new(), entry_point: Some(name), check: false })
}

/// The arguments and the expected value of one test, and whether the value may be wrapped in a list. In LiveCodeBench,
/// each line of the text is an argument.
fn pair(input: &Value, output: &Value) -> Option<(Value, Value, bool)> {
    let arguments = match input {
        Value::String(text) => {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            Value::Array(lines.map(|line| serde_json::from_str(line).ok()).collect::<Option<_>>()?)
        }
        Value::Array(_) => input.clone(),
        _ => return None,
    };
    match (input, output) {
        (Value::String(_), Value::String(text)) => Some((arguments, serde_json::from_str(text).ok()?, false)),
        _ => Some((arguments, output.clone(), true)),
    }
}

/// The name of the last function that Python code defines.
fn defined_last(code: &str) -> Option<String> {
    let defined = code.lines().rev().find_map(|line| line.trim_start().strip_prefix("def "))?;
    Some(defined.split('(').next()?.trim().to_owned())
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}
