//! Reads the tests of a dataset row, in the formats of common datasets, and the program in a text.

use serde_json::Value;

use super::inexact::inexact;
use super::output::Output;

/// The tests of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Tests {
    /// Tests of a whole program: standard inputs and expected outputs.
    Streams(Vec<StreamTest>),
    /// Unit tests, which call functions of the program.
    Unit(UnitTests),
    /// Tests in a known format that cannot be run, with the reason.
    Refused(String),
}

/// Unit tests of a program's functions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitTests {
    /// The tests, each one assertion; if `check` is set, the code that defines the function `check`.
    pub tests: Vec<String>,
    /// Code that comes before the tests.
    pub setup: String,
    /// The name of the function that the task asks for.
    pub entry_point: Option<String>,
    /// Whether the only test is the call `check(entry_point)`.
    pub check: bool,
}

/// A test of a whole program: standard input and expected standard output.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamTest {
    /// The standard input.
    pub input: String,
    /// The expected standard output.
    pub output: Output,
}

impl Tests {
    /// The tests in `cell`: `[{"input", "output"}]` or `{"inputs", "outputs"}` (also with the name of a function, as in
    /// APPS, TACO and LiveCodeBench), a list of assertions (MBPP's `test_list`, with `test_setup_code`) or a string of
    /// them, a string of JSON, or a string that defines `check` (HumanEval's `test`, with `entry_point`). `column`
    /// returns the text in another column of the row. With `python`, a string may also be a file of tests for unittest
    /// or pytest.
    pub fn read(cell: &Value, column: &dyn Fn(&str) -> Option<String>, python: bool) -> Option<Tests> {
        let unit = |tests: Vec<String>, check: bool| {
            let setup = column("test_setup_code").unwrap_or_default();
            Tests::Unit(UnitTests { tests, setup, entry_point: column("entry_point"), check })
        };
        match cell {
            Value::String(text) => match serde_json::from_str(text) {
                Ok(Value::String(_)) => None,
                // No program could print this output exactly.
                Ok(_) if inexact(text, false, 1).is_some() => None,
                Ok(json) => Tests::read(&json, column, python),
                Err(_)
                    if text.contains(if python { "def check" } else { "check" }) && column("entry_point").is_some() =>
                {
                    Some(unit(vec![text.clone()], true))
                }
                Err(_) if python && is_test_file(text) => Some(unit(vec![text.clone()], false)),
                Err(_) => {
                    let (setup, tests) = assertions(text);
                    let Tests::Unit(unit) = unit(tests, false) else { return None };
                    let setup = format!("{}{setup}", unit.setup);
                    (!unit.tests.is_empty()).then_some(Tests::Unit(UnitTests { setup, ..unit }))
                }
            },
            Value::Array(tests) if !tests.is_empty() && tests.iter().all(Value::is_string) => {
                Some(unit(tests.iter().filter_map(Value::as_str).map(str::to_owned).collect(), false))
            }
            _ if functions::is_functional(cell) => Some(functions::tests(cell, column)),
            _ => stream_tests(cell).filter(|tests| !tests.is_empty()).map(Tests::Streams),
        }
    }
}

/// Whether a text is a file of Python tests, with classes or functions that a test runner finds.
fn is_test_file(text: &str) -> bool {
    let code = |line: &&str| !line.trim().is_empty() && !line.starts_with(['#', ' ', '\t', ')', ']', '}']);
    let mut lines = text.lines().filter(code);
    let tests = |line: &str| {
        let begins = ["class Test", "def test", "async def test"].iter().any(|begin| line.starts_with(begin));
        begins || line.starts_with("class ") && line.contains("TestCase)")
    };
    text.contains("assert") && (lines.clone().any(tests) || lines.all(|line| !line.starts_with("assert")))
}

/// Splits code into the text before the first assertion and the assertions. An assertion extends to the line where the
/// next begins.
fn assertions(text: &str) -> (String, Vec<String>) {
    let (mut setup, mut tests) = (String::new(), Vec::<String>::new());
    for line in text.split_inclusive('\n') {
        let begins = line.starts_with("assert") || line.starts_with("let () =");
        match tests.last_mut() {
            _ if begins => tests.push(line.to_owned()),
            Some(test) => test.push_str(line),
            None => setup.push_str(line),
        }
    }
    (setup, tests)
}

fn stream_tests(cell: &Value) -> Option<Vec<StreamTest>> {
    let test =
        |input: &Value, output: &Value| Some(StreamTest { input: input_of(input)?, output: Output::read(output)? });
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

/// The standard input in a test: text, lines, or a value as JSON writes it.
fn input_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) if !lines.is_empty() && lines.iter().all(Value::is_string) => {
            Some(lines.iter().filter_map(Value::as_str).map(|line| line.to_owned() + "\n").collect())
        }
        other => Some(other.to_string()),
    }
}

/// The last code block whose language is one of `marks`; otherwise the last block without a language; otherwise the
/// whole text. Blocks are fenced by backticks or tildes. The indentation of a block, as in a list, is removed.
pub(super) fn code_of(text: &str, marks: &[String]) -> String {
    let (mut marked, mut bare) = (None, None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some((fence, info)) = fence_of(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let ends = |line: &&str| !fence_of(line).is_some_and(|(end, _)| end.starts_with(fence));
        let own = |line: &str| line.len() - line.trim_start().len();
        let inside = lines.by_ref().take_while(ends).map(|line| &line[indent.min(own(line))..]);
        let code = inside.collect::<Vec<_>>().join("\n") + "\n";
        let language = info.trim_start_matches(['{', '.', ' ']).split([' ', '\t', ',', '{', '}', ':']).next();
        match language.unwrap_or_default().to_lowercase() {
            language if language.is_empty() => bare = Some(code),
            language if marks.is_empty() || marks.contains(&language) => marked = Some(code),
            _ => {}
        }
    }
    marked.or(bare).unwrap_or_else(|| text.to_owned())
}

/// The fence at the start of a line (three or more backticks or tildes), and the text after it.
fn fence_of(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let mark = line.chars().next().filter(|mark| ['`', '~'].contains(mark))?;
    let (fence, info) = line.split_at(line.len() - line.trim_start_matches(mark).len());
    (fence.len() >= 3 && !(mark == '`' && info.contains('`'))).then_some((fence, info.trim()))
}

mod functions;
#[cfg(test)]
mod tests;
