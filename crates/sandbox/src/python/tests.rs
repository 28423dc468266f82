//! Tests with HumanEval, MBPP, and programs that try to pass without being right.

use crate::judge::tests::scored_with_prompts as score;
use serde_json::{Value, json};
use std::process::Command;
use testing::installed;

fn asserted(tests: &[&str], programs: &[&str]) -> (Vec<Option<f64>>, Vec<String>) {
    asserted_within(600.0, tests, programs)
}

fn asserted_within(timeout_s: f64, tests: &[&str], programs: &[&str]) -> (Vec<Option<f64>>, Vec<String>) {
    let rows: Vec<_> = programs.iter().map(|program| ("q", *program, json!({"test_list": tests}))).collect();
    let options = json!({"language": "python", "column": "test_list", "timeout_s": timeout_s});
    let (scores, failures) = score(options, &rows);
    assert!(scores.problems.is_empty(), "{:?}", scores.problems);
    (scores.values, failures)
}

mod table;
mod verdicts;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whatever a program does to the code that runs it, a wrong answer stays wrong.
#[test]
fn results_cannot_be_forged() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let search = "import os
found = []
for root in ('/job', '/tmp', '/proc'):
    for directory, _, files in os.walk(root):
        for file in files if 'kcore' not in files else []:
            try:
                text = open(os.path.join(directory, file), 'rb').read(1 << 20)
                found += [1] if b'ass' + b'ert f(4)' in text else []
            except OSError:
                pass
f = lambda x: 2 * x if found else 0";
    let forge = r#"import os
for descriptor in range(1, 30):
    for line in ('{"id": "start", "value": 8}', '{"id": "start"}', '0 {"failure": null}', '{"failure": null}'):
        try:
            os.write(descriptor, line.encode() + b'\n')
        except OSError:
            pass
def f(x): return 0"#;
    let attacks = [
        ("nothing", "f = 1"),
        ("another name", "def g(x): return 2 * x"),
        ("syntax error", "def f(x) return 2 * x"),
        ("exit 0 before the tests", "import os\nos._exit(0)"),
        ("sys.exit before the tests", "import sys\nsys.exit(0)"),
        ("exit 0 in a test", "import os\ndef f(x): os._exit(0)"),
        ("sys.exit in a test", "import sys\ndef f(x): sys.exit(0)"),
        ("patched exits", "import os, sys\nsys.exit = os._exit = lambda *a: None\ndef f(x): raise SystemExit(0)"),
        ("a signal", "import os\ndef f(x): os.kill(os.getpid(), 11)"),
        ("killing all", "import os\nos.kill(-1, 9)"),
        (
            "equal to all",
            "class E:\n    __eq__ = lambda a, b: True\n    __ne__ = lambda a, b: False\ndef f(x): return E()",
        ),
        (
            "an equal number",
            "class N(int):\n    __eq__ = lambda a, b: True\n    __hash__ = None\ndef f(x): return N(0)",
        ),
        (
            "patched assertions",
            "import builtins\nbuiltins.AssertionError = type(None)\n__debug__ or 1\ndef f(x): return 0",
        ),
        (
            "patched comparison",
            "import builtins, operator\nbuiltins.abs = operator.eq = lambda *a: True\ndef f(x): return 0",
        ),
        ("patched runner", "import __main__\n__main__.answer = lambda call, scope: 8"),
        ("forged lines", forge),
        (
            "forged result lines",
            "print('PASSED 2/2')\nimport sys\nsys.stderr.write('{\"failure\": null}\\n' * 2)\nf = print",
        ),
        ("a search for the tests", search),
        ("overwriting the tests", "open('/job/tests.json', 'w').write('{}')\ndef f(x): return 2 * x"),
        ("overwriting the runner", "open('/job/program.py', 'w').write('')\ndef f(x): return 2 * x"),
        ("a value within itself", "def f(x):\n    x = []\n    x.append(x)\n    return x"),
        ("a value too large", "def f(x): return 'x' * (1 << 26)"),
        ("a hanging program", "while True: pass"),
        ("a hanging function", "import time\ndef f(x): time.sleep(100)"),
        ("a reader of the calls", "import os\nos.read(3, 1 << 16)\ndef f(x): return 0"),
        ("debris", "import os\nif os.fork() == 0:\n    while True: pass\nos._exit(0)"),
    ];
    let programs: Vec<_> = attacks.iter().map(|attack| attack.1).collect();
    // Some of the attacks hang.
    let (values, failures) = asserted_within(2.0, &["assert f(4) == 8", "assert f(3) == 6"], &programs);
    for ((name, _), (value, failure)) in attacks.iter().zip(values.iter().zip(&failures)) {
        assert!(*value == Some(0.0) && !failure.is_empty(), "{name}: {value:?} {failure}");
    }
    // A `StopIteration` that would end the tests' own iteration is treated like any other exception.
    let ended = "def f(x): raise StopIteration";
    for test in [
        "assert all(map(lambda x: f(x) == 2 * x, [3, 4]))",
        "for given, right in zip(map(f, [3, 4]), [6, 8]):\n    assert given == right",
        "assert not any(f(x) != 2 * x for x in [3, 4])",
    ] {
        let (values, failures) = asserted(&[test], &[ended, "f = lambda x: 2 * x"]);
        assert_eq!(values, [Some(0.0), Some(1.0)], "{test}: {failures:?}");
    }
    // The program cannot patch modules that a row imports for its tests.
    let patched = "import math\nmath.isclose = lambda *numbers: True\ndef f(x): return 0.0\ng = f";
    let right = "def f(x): return 2.0 * x\ndef g(x): return x.popleft()";
    let setup = "from math import isclose\nimport math as m\nfrom collections import deque";
    for (test, value) in [
        ("assert isclose(f(2), 4.0)", 0.0),
        ("assert m.isclose(f(2), 4.0)", 0.0),
        ("assert math.isclose(f(2), 4.0)", 0.0),
        ("assert g(deque([3, 4])) == 3", 0.0),
    ] {
        let row = json!({"t": [test], "test_setup_code": setup});
        let options = json!({"language": "python", "column": "t"});
        let (scores, failures) = score(options, &[("q", patched, row.clone()), ("q", right, row)]);
        assert_eq!(scores.values, [Some(value), Some(1.0)], "{test}: {failures:?} {:?}", scores.problems);
    }
    // An answer that changes each time it is inspected does not pass either.
    let truth =
        "class T:\n    n = 0\n    def __bool__(self):\n        T.n += 1\n        return T.n == 1\ndef f(x): return T()";
    let (values, failures) = asserted(&["assert f(3)", "assert not f(4)"], &[truth, "f = lambda x: x % 2 == 1"]);
    assert_eq!(values, [Some(0.0), Some(1.0)], "{failures:?}");
}

#[test]
fn tests_may_use_names_of_the_program_and_of_python() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let pair = "from dataclasses import dataclass\n@dataclass\nclass Pair:\n    a: int\n    b: int\nprint('noise')
def f(pair): return {'sum': (pair.a + pair.b, 0.5), 'all': {1, 2}}
def g(n): yield from range(n)
def big(n): return [2 ** n, -1j, b'x', float('inf'), None, True]
def bad(x): raise ValueError('no')
def sum(a, b): return a * b
if __name__ == '__main__': 1 / 0";
    let tests = [
        "assert f(Pair(3, b=4)) == {'sum': (7, 0.5), 'all': {2, 1}}",
        "assert list(g(3)) == [0, 1, 2] and math.isclose(Pair(1, 2).b, 2.0)",
        "assert big(200) == [2 ** 200, -1j, b'x', float('inf'), None, True]",
        "try:\n    bad(1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'no'",
    ];
    let (values, failures) = asserted(&tests, &[pair]);
    assert_eq!(values, [Some(1.0)], "{failures:?}");
    assert_eq!(asserted(&["assert sum(3, 5) == 15"], &[pair]).0, [Some(1.0)]);
    let shares = json!({"language": "python", "column": "t", "partial": true});
    let half = json!({"t": ["assert f(1) == 2", "assert f(2) == 5", "assert f(1) == 3", "assert f(3) == 6"]});
    let (scores, failures) = score(shares, &[("q", "f = lambda x: 2 * x", half)]);
    assert_eq!((scores.values, failures[0].as_str()), (vec![Some(0.5)], "test 2: AssertionError"));
}

/// If tests cannot be run, the program has no score.
#[test]
fn broken_tests_are_not_scored_0() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    for (tests, why) in [
        (json!({"t": ["assert f(4 == 8"]}), "SyntaxError"),
        (json!({"t": ["assert f(1) == 1", "assert f(1 / 0)"]}), "it fails by itself"),
        (json!({"t": ["assert f(1 / 0)"]}), "it fails by itself"),
        (json!({"t": ["print(f(1))"]}), "no assertion looks at an answer of the program"),
        (json!({"t": ["assert f(memoryview(b'')) == 8"]}), "Broken: it passes the program a memoryview"),
        (json!({"t": ["class G(f): pass\nassert G()"], "p": "class f: pass"}), "inherits from the program's f"),
        (json!({"t": ["assert abs(round(2.567, 1) - 2.6) < 1e-9"]}), "`entry_point` can name the program's"),
        (json!({"t": "def check(candidate):\n    assert candidate(helper(1)) == 1", "entry_point": "f"}), "NameError"),
        (json!({"t": "def check(candidate):\n    pass"}), "no tests"),
    ] {
        let program = tests["p"].as_str().unwrap_or("f = lambda x: x").to_owned();
        let (scores, _) = score(json!({"language": "python", "column": "t"}), &[("q", &program, tests)]);
        assert_eq!((scores.values.as_slice(), scores.problems.len()), (&[None][..], 1));
        assert!(scores.problems[0].contains(why), "{}", scores.problems[0]);
    }
    let other = json!({"t": ["assert 1"]});
    let (scores, _) = score(json!({"language": "shell", "column": "t"}), &[("q", "true", other)]);
    assert!(scores.problems[0].contains("run only for \"python\" and \"ocaml\""), "{}", scores.problems[0]);
}

#[test]
fn humaneval_canonical_solutions_pass_and_stubs_do_not() {
    humaneval(5);
}

#[test]
#[ignore = "minutes: cargo xtask nightly sandbox"]
fn all_humaneval_canonical_solutions_pass_and_stubs_do_not() {
    humaneval(1);
}

/// Judges every `every`-th task.
fn humaneval(every: usize) {
    let Some(path) = testing::shared("data/humaneval/HumanEval.jsonl.gz") else { return };
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let text = Command::new("gzip").arg("-dc").arg(path).output().unwrap().stdout;
    let tasks = lines(&String::from_utf8(text).unwrap());
    assert_eq!(tasks.len(), 164);
    let tasks: Vec<Value> = tasks.into_iter().step_by(every).collect();
    let all = tasks.len();
    let text = |task: &Value, key: &str| task[key].as_str().unwrap().to_owned();
    let prompts: Vec<String> = tasks.iter().map(|task| text(task, "prompt")).collect();
    // A completion continues the prompt, or is the complete function in a code block.
    let bodies: Vec<String> = tasks.iter().map(|task| text(task, "canonical_solution")).collect();
    let whole: Vec<String> =
        prompts.iter().zip(&bodies).map(|(prompt, body)| format!("So:\n```python\n{prompt}{body}```\n")).collect();
    let stubs = vec!["    pass\n".to_owned(); all];
    for (completions, right, of) in [(&bodies, all, all), (&stubs, 0, all), (&whole, 20, 20)] {
        let rows = tasks.iter().zip(&prompts).zip(completions);
        let rows: Vec<_> = rows.map(|((task, prompt), text)| (prompt.as_str(), text.as_str(), task.clone())).collect();
        let options = json!({"language": "python", "column": "test"});
        let (scores, failures) = score(options, &rows[..of]);
        assert!(scores.problems.is_empty(), "{:?}", scores.problems);
        let passed: Vec<_> = (0..of).filter(|&i| scores.values[i] == Some(1.0)).collect();
        let wrong: Vec<_> = (0..of).filter(|i| passed.contains(i) != (right > 0)).map(|i| (i, &failures[i])).collect();
        assert_eq!(passed.len(), right, "{wrong:?}");
    }
}

#[test]
fn every_tenth_reference_solution_of_mbpp_passes() {
    mbpp(10);
}

#[test]
#[ignore = "minutes: cargo xtask nightly sandbox"]
fn every_reference_solution_of_mbpp_passes() {
    mbpp(1);
}

/// Judges every `every`-th task.
fn mbpp(every: usize) {
    let Some(path) = testing::shared("data/mbpp/mbpp.jsonl") else { return };
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let tasks = lines(&std::fs::read_to_string(path).unwrap());
    assert_eq!(tasks.len(), 974);
    let tasks: Vec<Value> = tasks.into_iter().step_by(every).collect();
    let rows: Vec<_> = tasks
        .iter()
        .map(|task| (task["text"].as_str().unwrap(), task["code"].as_str().unwrap(), task.clone()))
        .collect();
    let options = json!({"language": "python", "column": "test_list"});
    let (scores, failures) = score(options, &rows);
    let wrong: Vec<_> = (0..rows.len()).filter(|&i| scores.values[i] != Some(1.0)).collect();
    let wrong: Vec<_> = wrong.iter().map(|&i| (&tasks[i]["task_id"], scores.values[i], &failures[i])).collect();
    assert!(wrong.is_empty(), "{wrong:?} {:?}", scores.problems);
}

/// Tests with rows of APPS, TACO, LiveCodeBench and others that give a function's arguments and value.
#[test]
fn tests_with_arguments_and_values_of_a_function_are_run() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let apps = |inputs: Value, outputs: Value| json!({"fn_name": "f", "inputs": inputs, "outputs": outputs});
    let live = |input: &str, output: &str| json!([{"input": input, "output": output, "testtype": "functional"}]);
    let text = |value: Value| json!({"t": value.to_string()});
    let name = |row: Value, key: &str, value: &str| {
        let mut row = row;
        row[key] = value.into();
        row
    };
    let rows = [
        json!({"t": apps(json!([[4], [5]]), json!([[8], [10]]))}),
        json!({"t": apps(json!([[4], [5]]), json!([8, 10]))}),
        text(apps(json!([[4]]), json!([[8]]))),
        text(json!({"inputs": [[4]], "outputs": [8], "func_name": "f"})),
        json!({"t": [{"type": "function_call", "fn_name": "f", "input": [4], "output": [8]}]}),
        json!({"t": [{"type": "function_call", "fn_name": "f", "input": [4], "output": 8}]}),
        name(json!({"t": live("4", "8")}), "metadata", "{\"func_name\": \"f\"}"),
        name(json!({"t": live("4\n", "8\n")}), "func_name", "f"),
        name(json!({"t": live("[4]", "[4, 4]")}), "fn_name", "f"),
        name(json!({"t": live("\"a\"", "\"aa\"")}), "entry_point", "f"),
        name(
            json!({"t": live("4", "8")}),
            "starter_code",
            "class Solution:\n    def f(self, x: int) -> int:\n        ",
        ),
        name(text(live("4", "8")), "entry_point", "f"),
        json!({"t": apps(json!([[[1, 2]]]), json!([[[1, 2, 1, 2]]]))}),
        json!({"t": apps(json!([[0.5]]), json!([1.0]))}),
        json!({"t": apps(json!([["a"]]), json!(["aa"]))}),
        json!({"t": apps(json!([[[]]]), json!([[]]))}),
    ];
    let function = "def f(x): return x + x";
    let method = "class Solution:\n    def f(self, x):\n        return x + x";
    let wrong = "def f(x): return 99";
    for row in &rows {
        let options = json!({"language": "python", "column": "t"});
        let programs = [function, method, wrong, "print(8)"].map(|program| ("q", program, row.clone()));
        let (scores, failures) = score(options, &programs);
        let expected = [Some(1.0), Some(1.0), Some(0.0), Some(0.0)];
        assert_eq!(scores.values, expected, "{row}: {failures:?} {:?}", scores.problems);
    }
    for (row, why) in [
        (json!({"t": live("4", "8")}), "names it"),
        (json!({"t": live("4 5", "8"), "fn_name": "f"}), "no lists of arguments"),
        (json!({"t": {"fn_name": "f", "inputs": [4], "outputs": [8]}}), "no lists of arguments"),
        (json!({"t": {"fn_name": "f", "inputs": [], "outputs": []}}), "no lists of arguments"),
        (json!({"t": {"fn_name": "f()", "inputs": [[4]], "outputs": [8]}}), "names it"),
    ] {
        let (scores, _) = score(json!({"language": "python", "column": "t"}), &[("q", function, row)]);
        assert_eq!(scores.values, [None]);
        assert!(scores.problems[0].contains(why), "{}", scores.problems[0]);
    }
}

/// A text with tests for a test runner is one test.
#[test]
fn a_file_of_tests_is_run() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    for text in [
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(4), 8)\n",
        "def test_a():\n    assert f(4) == 8\n",
        "# a test\nfrom solution import f\n\nclass TestF:\n    def test_a(self):\n        assert f(4) == 8\n",
        "def main():\n    assert f(4) == 8\nif __name__ == \"__main__\":\n    main()\n",
        "import pytest\n@pytest.mark.parametrize(\"x\", [4])\ndef test_a(x):\n    assert f(x) == 8\n",
    ] {
        let options = json!({"language": "python", "column": "t"});
        let programs = ["f = lambda x: 2 * x", "f = lambda x: 9"].map(|program| ("q", program, json!({"t": text})));
        let (scores, failures) = score(options, &programs);
        assert_eq!(scores.values, [Some(1.0), Some(0.0)], "{text}: {failures:?} {:?}", scores.problems);
    }
}
