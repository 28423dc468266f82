//! Tests of `python` rewards, with the table of cases that the Python package uses too (python/tests/calling).

use super::*;
use crate::{Columns, Content, Problem, ProblemKind, Reward, RewardBatch, RewardSpec, Scores};
use serde_json::{Map, json};
use std::path::PathBuf;

fn calling(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/calling").join(name)
}

/// Builds the reward with `more` options.
fn start(file: &Path, function: &str, more: Value) -> crate::Result<Box<dyn Reward>> {
    let mut table: Map<String, Value> = serde_json::from_value(more).unwrap();
    table.insert("kind".into(), "python".into());
    table.insert("python".into(), format!("{}:{function}", file.display()).into());
    crate::build(&RewardSpec::Table(table), function.to_owned())
}

fn refused(file: &Path, function: &str, more: Value) -> String {
    start(file, function, more).err().expect("refused").to_string()
}

/// Scores these completions.
fn ask(reward: &mut dyn Reward, completions: &[&str]) -> Scores {
    let completions: Vec<Content> = completions.iter().map(|&text| text.into()).collect();
    let ids = vec![vec![1, 2]; completions.len()];
    let rows: Vec<usize> = (0..completions.len()).collect();
    let columns = Columns::new();
    reward.score(&RewardBatch {
        prompts: &completions,
        completions: &completions,
        completion_ids: &ids,
        columns: &columns,
        rows: &rows,
        step: model::Step(0),
    })
}

fn only_problem(scores: &Scores) -> &Problem {
    assert!(scores.values.iter().all(Option::is_none), "a failed batch must have no scores: {scores:?}");
    let [problem] = &scores.problems[..] else { panic!("{scores:?}") };
    problem
}

#[test]
fn functions_are_called_with_trls_calling_convention() {
    let Some(()) = testing::program("python3") else { return };
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(calling("cases.json")).unwrap()).unwrap();
    assert!(cases.len() >= 25);
    for case in cases {
        let function = case["function"].as_str().unwrap();
        let mut reward = start(&calling("functions.py"), function, json!({})).unwrap();
        fn of<T: serde::de::DeserializeOwned>(value: &Value) -> T {
            serde_json::from_value(value.clone()).unwrap()
        }
        let given = &case["batch"];
        let (prompts, completions): (Vec<Content>, Vec<Content>) = (of(&given["prompts"]), of(&given["completions"]));
        let (ids, rows): (Vec<Vec<u32>>, Vec<usize>) = (of(&given["completion_ids"]), of(&given["rows"]));
        let (columns, step): (Columns, model::Step) = (of(&given["columns"]), of(&given["step"]));
        let batch = RewardBatch {
            prompts: &prompts,
            completions: &completions,
            completion_ids: &ids,
            columns: &columns,
            rows: &rows,
            step,
        };
        // The same interpreter answers both calls.
        for _ in 0..2 {
            let scores = reward.score(&batch);
            match case.get("answer") {
                Some(answer) => {
                    let expected = Scores::read(function, &answer.to_string(), &batch).unwrap();
                    // NaN does not equal itself, so the formatted scores are compared.
                    assert_eq!(format!("{scores:?}"), format!("{expected:?}"), "{function}");
                }
                None => {
                    let problem = only_problem(&scores);
                    assert_eq!((problem.kind, problem.rows), (ProblemKind::Failed, batch.len()), "{function}");
                    for word in of::<Vec<String>>(&case["error"]) {
                        assert!(problem.message.contains(&word), "{function}: {word}: {problem}");
                    }
                }
            }
        }
    }
}

/// The message contains the function's exception, and the dataset row if known.
#[test]
fn exceptions_of_a_function_are_reported_with_and_without_rows() {
    let Some(()) = testing::program("python3") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.py");
    let functions = "def raises(completions, **kwargs):\n    raise ValueError('cannot parse ' + completions[0])\n\
                     def none(completions, **kwargs):\n    return None\n\
                     def short(completions, **kwargs):\n    return []\n";
    std::fs::write(&file, functions).unwrap();
    let completions: Vec<Content> = vec!["xyz".into(), "zyx".into()];
    for rows in [&[][..], &[7, 8]] {
        for (function, refusal) in [
            ("raises", "it raised ValueError: cannot parse xyz"),
            ("none", "it raised TypeError: reward `none` must give a list of numbers, but gave None"),
            ("short", "it raised ValueError: reward `short` gave 0 scores for 2 completions"),
        ] {
            let mut reward = start(&file, function, json!({})).unwrap();
            let scores = reward.score(&RewardBatch {
                prompts: &completions,
                completions: &completions,
                completion_ids: &[vec![], vec![]],
                columns: &Columns::new(),
                rows,
                step: model::Step(0),
            });
            let problem = only_problem(&scores);
            assert!(problem.message.starts_with(refusal), "{problem}");
            let place = if rows.is_empty() { "completion 0 of the batch" } else { "row 7 of the dataset" };
            // Tracebacks have notes only from Python 3.11 on.
            let shown = !problem.message.contains("in reward") || problem.message.contains(place);
            assert!(shown && !problem.message.contains("IndexError"), "{problem}");
        }
    }
}

const STATEFUL: &str = r#"
import os, sys, time
import beside
calls = 0

def count(completions, **kwargs):
    global calls
    calls += 1
    assert sys.stdin.read() == ""
    return [calls * beside.ONE] * len(completions)

def fails(completions, **kwargs):
    print("about to fail")
    what = completions[0]
    if what == "exit":
        sys.exit("enough")
    if what == "die":
        os._exit(3)
    if what == "sleep":
        time.sleep(60)
    if what == "state":
        return [kwargs["trainer_state"].max_steps]
    return [len(completions)] * len(completions)

def grouped(completions, **kwargs):
    return [0] * len(completions)

grouped.by_group = True
"#;

#[test]
fn an_interpreter_is_reused_and_restarted_after_it_exits() {
    let Some(()) = testing::program("python3") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("my-rewards.py");
    std::fs::write(&file, STATEFUL).unwrap();
    std::fs::write(dir.path().join("beside.py"), "ONE = 1\n").unwrap();
    let mut count = start(&file, "count", json!({})).unwrap();
    assert!(!count.scores_by_group());
    for n in [1.0, 2.0] {
        assert_eq!(ask(&mut *count, &["a", "b"]), Scores::new(vec![Some(n), Some(n)]));
    }
    assert!(start(&file, "grouped", json!({})).unwrap().scores_by_group());
    assert!(start(&file, "count", json!({"by_group": true})).unwrap().scores_by_group());

    let with = |timeout_s: f64| start(&file, "fails", json!({"timeout_s": timeout_s, "max_restarts": 9})).unwrap();
    // A busy machine takes seconds to start an interpreter, so only the case that must time out has a short time limit.
    let mut patient = with(testing::HANG.as_secs_f64());
    let mut hasty = with(10.0);
    for (what, kind, words) in [
        ("exit", ProblemKind::Failed, "it raised SystemExit: enough"),
        ("die", ProblemKind::Crashed, "the program exited (exit status: 3)"),
        ("state", ProblemKind::Failed, "has no `max_steps`: there is `global_step`"),
        ("sleep", ProblemKind::TimedOut, "no answer within 10 s; the program was killed"),
    ] {
        let fails = if kind == ProblemKind::TimedOut { &mut hasty } else { &mut patient };
        let scores = ask(&mut **fails, &[what]);
        let problem = only_problem(&scores);
        assert!(problem.kind == kind && problem.message.contains(words), "{what}: {problem}");
        assert!(problem.message.contains("  | about to fail"), "the message must have the standard error: {problem}");
        assert_eq!(ask(&mut **fails, &["good"]).values, [Some(1.0)], "after {what}");
    }
}

#[test]
fn missing_and_invalid_files_are_reported_when_the_reward_is_built() {
    let Some(()) = testing::program("python3") else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rewards.py");
    let refusal = refused(&file, "f", json!({}));
    assert!(
        refusal.contains("the file ") && refusal.contains("does not exist") && refusal.contains("rewards.py"),
        "{refusal}"
    );
    std::fs::write(&file, "import json\ndef happy(completions, **kwargs):\n    return [1]\n").unwrap();
    let refusal = refused(&file, "hapy", json!({}));
    assert!(refusal.ends_with("rewards.py has no function `hapy`; its functions are: happy"), "{refusal}");
    for (body, words) in [
        ("def f(:\n", vec!["SyntaxError", "rewards.py\", line 1"]),
        (
            "import no_such_module\n",
            vec!["ModuleNotFoundError: No module named 'no_such_module'", "line 1, in <module>"],
        ),
        ("import os\nos._exit(7)\n", vec!["the program exited (exit status: 7)"]),
    ] {
        std::fs::write(&file, body).unwrap();
        let refusal = refused(&file, "f", json!({}));
        assert!(words.iter().all(|word| refusal.contains(word)) && !refusal.contains("_calling"), "{refusal}");
    }
    std::fs::write(&file, "def f(**kwargs):\n    return [1]\n").unwrap();
    let refusal = refused(&file, "f", json!({"interpreter": "no/such/python"}));
    assert!(
        refusal.contains("the interpreter `no/such/python` was not found") && refusal.contains("interpreter = "),
        "{refusal}"
    );
    let refusal = refused(&file, "f", json!({"interpreter": "echo"}));
    assert!(refusal.contains("not a Python interpreter"), "{refusal}");
    assert!(start(&file, "f", json!({"interpreter": ["python3", "-B"]})).is_ok());
    let refusal = refused(&file, "f", json!({"timeout_s": 0}));
    assert!(refusal.contains("reward `python`: `timeout_s`"), "{refusal}");
    let refusal = crate::build(&"python:rewards.py".into(), "r".into()).err().unwrap().to_string();
    assert!(refusal.contains("expected FILE:FUNCTION"), "{refusal}");
}

#[test]
fn paths_of_python_rewards_are_mapped_and_names_are_the_functions() {
    let absolute = |path: &str| Ok::<_, ()>(format!("/there/{path}"));
    let mapped = |spec: Value| {
        let mut spec: RewardSpec = serde_json::from_value(spec).unwrap();
        spec.map_paths(absolute).unwrap();
        serde_json::to_value(spec).unwrap()
    };
    assert_eq!(mapped(json!("python:a/b.py:f")), "python:/there/a/b.py:f");
    let table = json!({"kind": "python", "python": "b.py:f", "interpreter": ".venv/bin/python -B"});
    let expected = json!(
        {"kind": "python", "python": "/there/b.py:f", "interpreter": ["/there/.venv/bin/python", "-B"]});
    assert_eq!(mapped(table), expected);
    let table = json!({"kind": "python", "python": "b.py:f", "interpreter": "python3.12"});
    assert_eq!(mapped(table)["interpreter"], "python3.12");
    let names = |specs: &[&str]| crate::names(&specs.iter().map(|&s| s.into()).collect::<Vec<_>>()).unwrap();
    assert_eq!(names(&["python:a.py:happy", "gsm8k"]), ["happy", "gsm8k"]);
    assert_eq!(names(&["python:a.py:happy", "python:b.py:happy"]), ["happy_a", "happy_b"]);
}

#[test]
fn the_last_colon_separates_file_and_function() {
    let options = |python: &str| serde_json::from_value::<PythonOptions>(json!({"python": python})).unwrap();
    for (text, expected) in
        [("a.py:f", ("a.py", "f")), (" a b.py : f ", ("a b.py", "f")), ("c:/a.py:f", ("c:/a.py", "f"))]
    {
        assert_eq!(options(text).place().unwrap(), expected);
    }
    for text in ["a.py", "a.py:", ":f", "a.py: ", ""] {
        let refusal = options(text).place().unwrap_err().to_string();
        let expected = format!("expected FILE:FUNCTION, as in \"python:rewards.py:happy_reward\", got `{text}`");
        assert_eq!(refusal, format!("reward `python`: {expected}"));
    }
    let PythonOptions { interpreter, timeout_s, max_restarts, by_group, .. } = options("a.py:f");
    assert_eq!(interpreter.split().unwrap(), ["python3"]);
    assert_eq!((timeout_s, max_restarts, by_group), (60.0, 3, false));
    assert_eq!(label(&options("b/my.rewards.py:f")).unwrap(), ("f".to_owned(), "my.rewards".to_owned()));
    // A missing file is reported before an interpreter is started.
    let refusal = refused(Path::new("no.py"), "f", json!({"interpreter": "no/such/python"}));
    assert_eq!(refusal, "reward `python`: the file no.py does not exist (for `no.py:f`)");
}

/// A shell script plays the Python interpreter. The script's first line determines whether the start succeeds.
#[test]
fn an_interpreter_must_report_ready_at_every_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.py");
    std::fs::write(&file, "").unwrap();
    let script = dir.path().join("fake.sh");
    let begin = |body: &str, timeout_s: f64, stop: bool| {
        std::fs::write(&script, body).unwrap();
        let table = json!({"kind": "python", "python": format!("{}:f", file.display()), "timeout_s": timeout_s,
            "interpreter": ["/bin/sh", script], "max_restarts": 5});
        let stop = Arc::new(AtomicBool::new(stop));
        let built = crate::build_until(&serde_json::from_value(table).unwrap(), "r".to_owned(), &stop);
        built.map_err(|error| error.to_string())
    };
    let waits = "\nread -r line";
    for (greeting, by_group) in [("{\"by_group\": false}", false), ("{\"by_group\": true, \"x\": 1}", true)] {
        let reward = begin(&format!("echo '{greeting}'{waits}"), 30.0, false).unwrap();
        assert_eq!((reward.name(), reward.scores_by_group()), ("r", by_group));
    }
    let place = format!("reward `python`: {}:f: ", file.display());
    for (body, timeout_s, stop, expected) in [
        ("echo '{\"error\": \"no f\", \"by_group\": true}'", 30.0, false, "no f"),
        ("echo '{}'", 30.0, false, "the program is not a Python interpreter"),
        ("echo hello", 30.0, false, "the program is not a Python interpreter"),
        ("exit 3", 30.0, false, "the program exited (exit status: 3)"),
        ("exec sleep 60", 0.1, false, "the import took longer than timeout_s = 0.1; the interpreter was killed"),
        ("exec sleep 60", 30.0, true, "the scores are not needed any more"),
    ] {
        assert_eq!(begin(body, timeout_s, stop).err().unwrap(), format!("{place}{expected}"), "{body}");
    }
    // The interpreter exits at its first batch. The second start fails to import the file, and the third succeeds.
    let starts = dir.path().join("starts");
    let body = format!(
        "echo x >>'{0}'; n=$(wc -l <'{0}')\nif [ \"$n\" -eq 2 ]; then echo '{{\"error\": \"gone\"}}'; exit; fi
         echo '{{\"by_group\": false}}'{waits}\nif [ \"$n\" -eq 3 ]; then echo '{{\"rewards\": [1]}}'; fi",
        starts.display()
    );
    let mut reward = begin(&body, 30.0, false).unwrap();
    let first = ask(&mut *reward, &["a"]);
    assert_eq!(
        (only_problem(&first).kind, &*first.problems[0].message),
        (ProblemKind::Crashed, "the program exited (exit status: 0)")
    );
    let second = ask(&mut *reward, &["a"]);
    assert_eq!((only_problem(&second).kind, &*second.problems[0].message), (ProblemKind::Failed, "gone"));
    assert_eq!(ask(&mut *reward, &["a"]).values, [Some(1.0)]);
}
