//! Finds the calls in a Python script. A Python interpreter runs `calls.py`, which parses the script without executing
//! it.

use lockstep::error::BadInput;
use serde::Deserialize;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use toml::Value;

/// A Python program that reads a script on standard input and prints its calls as JSON, in the form of [`Answer`].
const CALLS: &str = include_str!("calls.py");

/// The value of an argument.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Argument")]
pub(super) enum Literal {
    /// A value that TOML can hold.
    Value(Value),
    /// Python's `None`.
    None,
    /// Any other expression: its source text on one line.
    Expression(String),
}

/// A function call in a Python script.
#[derive(Debug, Deserialize)]
pub(super) struct Call {
    /// The function's original name, without its module; aliases in the script are resolved.
    pub name: String,
    /// Whether the name follows a dot, as in a method call.
    pub method: bool,
    /// The line number, from 1.
    pub line: usize,
    /// The arguments: name (empty for a positional one) and value.
    pub arguments: Vec<(String, Literal)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Argument {
    Value(Value),
    None,
    Text(String),
}

impl From<Argument> for Literal {
    fn from(argument: Argument) -> Literal {
        match argument {
            Argument::Value(value) => Literal::Value(value),
            Argument::None => Literal::None,
            Argument::Text(text) => Literal::Expression(text),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Calls { calls: Vec<Call> },
    Error { error: String, line: usize },
}

/// Returns the calls in `script`, in order. `python` is the interpreter: a path, or a name that is looked up in `PATH`.
pub(super) fn calls(script: &[u8], python: &Path) -> anyhow::Result<Vec<Call>> {
    let name = python.display();
    // The parser must not depend on the user's packages or `PYTHON…` variables.
    let mut command = Command::new(python);
    command.args(["-I", "-S", "-c", CALLS]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| match e.kind() {
        ErrorKind::NotFound => BadInput::new(format!(
            "program `{name}` not found: `lockstep config from-trl` uses Python to parse the script; install Python \
             3.9 or newer, or name an interpreter with --python PATH"
        )),
        _ => BadInput::new(format!("cannot start `{name}`: {e}; name another interpreter with --python PATH")),
    })?;
    // A program that exits without reading its input prints its own error.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(script));
    let output = child.wait_with_output()?;
    match serde_json::from_slice(&output.stdout) {
        Ok(Answer::Calls { calls }) if output.status.success() => Ok(calls),
        Ok(Answer::Error { error, line: 0 }) => Err(BadInput::new(format!("not a Python script: {error}"))),
        Ok(Answer::Error { error, line }) => Err(BadInput::new(format!("line {line}: not Python: {error}"))),
        _ => {
            let printed = String::from_utf8_lossy(&output.stderr);
            let last = printed.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
            Err(BadInput::new(format!(
                "`{name}` ({}) could not parse the script: {last}; Python 3.9 or newer is required: name an \
                 interpreter with --python PATH",
                output.status
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(script: &str, function: &str) -> Option<Vec<(String, Literal)>> {
        let calls = calls(script.as_bytes(), Path::new("python3")).unwrap();
        calls.into_iter().find(|call| call.name == function).map(|call| call.arguments)
    }

    fn value(text: &str) -> Literal {
        arguments(&format!("f(x={text})"), "f").unwrap().pop().unwrap().1
    }

    #[test]
    fn python_literals_become_toml_values() {
        let Some(()) = testing::program("python3") else { return };
        let string = |s: &str| Literal::Value(Value::String(s.to_owned()));
        let expression = |s: &str| Literal::Expression(s.to_owned());
        assert_eq!(value("3"), Literal::Value(Value::Integer(3)));
        assert_eq!(value("1_000"), Literal::Value(Value::Integer(1000)));
        assert_eq!(value("-1e-6"), Literal::Value(Value::Float(-1e-6)));
        assert_eq!(value("1.0"), Literal::Value(Value::Float(1.0)));
        assert_eq!(value("True"), Literal::Value(Value::Boolean(true)));
        assert_eq!(value("None"), Literal::None);
        assert_eq!(value("'it\\'s' \"\\n\""), string("it's\n"));
        assert_eq!(value("\"\"\"a\n\"b\"\"\""), string("a\n\"b"));
        assert_eq!(value("('a')"), string("a"));
        let list = Value::Array(vec![Value::Integer(1), Value::String("a, b)".to_owned())]);
        assert_eq!(value("[1, 'a, b)',]"), Literal::Value(list.clone()));
        assert_eq!(value("(1, 'a, b)')"), Literal::Value(list));
        let table = value("{'enable_thinking': False, \"n\": [1]}");
        assert!(matches!(table, Literal::Value(Value::Table(t)) if t.len() == 2));
        for text in [
            "os.path.join('a', \"b)\")",
            "2 * 3",
            "f'{a}'",
            "[None]",
            "{1: 2}",
            "1e999",
            "9223372036854775808",
            "b'x'",
            "lambda: 1",
        ] {
            assert_eq!(value(text), expression(text), "{text}");
        }
        assert_eq!(value("g(1,  # one\n  2)"), expression("g(1, 2)"));
    }

    #[test]
    fn comments_and_class_definitions_are_not_calls() {
        let Some(()) = testing::program("python3") else { return };
        let script = "# GRPOConfig(beta=1)\nclass GRPOConfig(Base): pass\nG: int = 4  # group\nOUT = \"runs/é # 1\"\n\
                      args = trl.GRPOConfig(\n    OUT, # where\n    num_generations=G,\n    learning_rate=lr(), \
                      **more)\n";
        let found = arguments(script, "GRPOConfig").unwrap();
        assert_eq!(found[0], (String::new(), Literal::Value(Value::String("runs/é # 1".to_owned()))));
        assert_eq!(found[1], ("num_generations".to_owned(), Literal::Value(Value::Integer(4))));
        assert_eq!(found[2], ("learning_rate".to_owned(), Literal::Expression("lr()".to_owned())));
        assert_eq!(found[3].1, Literal::Expression("**more".to_owned()));
        assert!(arguments(script, "SFTConfig").is_none());
        assert!(arguments("x = 1\nclass SFTConfig(Base): pass\n", "SFTConfig").is_none(), "a definition is not a call");
    }

    /// A name has the value that was last assigned before the call. A name bound by a loop or a parameter has no value.
    #[test]
    fn names_are_replaced_by_their_last_assigned_value() {
        let Some(()) = testing::program("python3") else { return };
        let of = |script: &str| arguments(script, "f").unwrap().pop().unwrap().1;
        let integer = |n| Literal::Value(Value::Integer(n));
        let unknown = Literal::Expression("x".to_owned());
        assert_eq!(of("x = 1\nf(x)\nx = 2\n"), integer(1));
        assert_eq!(of("def g():\n  f(x)\nx = y = 2\n"), integer(2));
        assert_eq!(of("y = 3\nx = y\ny = 4\nf(x)\n"), integer(3));
        for script in ["x = 1\nx += 1\nf(x)", "x = 1\nfor x in y:\n  f(x)", "x = 1\ndef g(x):\n  f(x)", "x = x\nf(x)"] {
            assert_eq!(of(script), unknown, "{script}");
        }
    }

    /// A syntax error is reported with its line, and no part of the script is executed.
    #[test]
    fn scripts_are_parsed_but_not_executed() {
        let Some(()) = testing::program("python3") else { return };
        let refused = |script: &[u8]| calls(script, Path::new("python3")).unwrap_err().to_string();
        assert!(refused(b"x = 1\nf(\n").starts_with("line 2: not Python: "), "{}", refused(b"x = 1\nf(\n"));
        assert!(refused(b"a\0").contains("null byte"), "{}", refused(b"a\0"));
        assert!(refused(&[b'('; 100_000]).contains("not"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("made");
        let script = format!("open({file:?}, 'w')\nimport os\nos.abort()\n");
        assert_eq!(calls(script.as_bytes(), Path::new("python3")).unwrap().len(), 2);
        assert!(!file.exists());
    }

    #[test]
    fn a_program_that_is_not_an_interpreter_is_refused() {
        let refused = |python: &str| {
            let error = calls(b"f()", Path::new(python)).unwrap_err();
            assert!(lockstep::error::is_bad_input(&error));
            error.to_string()
        };
        assert!(refused("no-such-python").starts_with("program `no-such-python` not found"));
        assert!(refused("no-such-python").contains("--python PATH"));
        assert!(refused("/dev/null").contains("cannot start `/dev/null`"));
        assert!(refused("true").contains("could not parse the script: it printed nothing"));
    }
}
