//! Judges one program: `judge LANGUAGE PROGRAM TESTS.json`.
//!
//! PROGRAM is a source file, or a text with a code block. TESTS.json has a list of tests, such as
//! `[{"input": "4\n", "output": "8\n"}]` or `["assert f(4) == 8"]`, or a row of a dataset with such a list in `tests`.
//! The exit code is 0 if all tests pass, 1 if not, 2 if the program could not be judged.

use sandbox::{Judge, Options, Submission, Verdict, inexact};
use serde_json::{Map, Value};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let verdict = match arguments.as_slice() {
        [language, program, tests] => judge(language, program, tests),
        _ => Err("usage: judge LANGUAGE PROGRAM TESTS.json".to_owned()),
    };
    match verdict {
        Ok(Verdict { passed, of, .. }) if passed == of => {
            println!("passed {passed} of {of}");
            ExitCode::SUCCESS
        }
        Ok(Verdict { passed, of, failure, .. }) => {
            println!("passed {passed} of {of}; {failure}");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("judge: {why}");
            ExitCode::from(2)
        }
    }
}

fn judge(language: &str, program: &str, tests: &str) -> Result<Verdict, String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let (text, json) = (read(program)?, read(tests)?);
    let row = match serde_json::from_str(&json).map_err(|error| format!("{tests}: {error}"))? {
        Value::Object(row) if row.contains_key("tests") => row,
        cell => Map::from_iter([("tests".to_owned(), cell)]),
    };
    if let Some(number) = inexact(&json, false, 1) {
        return Err(format!("{tests}: {} has more digits than 64 bits hold: write it as text", number.number));
    }
    // Runs every test, not only those up to the first failure.
    let options = Options { partial: true, ..Options::new(language) };
    let mut judge = Judge::new(options).map_err(|error| error.to_string())?;
    let tests = judge.tests(|column| row.get(column)).ok_or_else(|| format!("{tests}: contains no readable tests"))?;
    let submission = Submission { text: &text, prompt: "", tests: &tests };
    judge.judge(&[submission]).remove(0).map_err(|error| error.to_string())
}
