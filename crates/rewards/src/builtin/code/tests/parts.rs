//! What needs no program, or one that does nothing.

use super::super::output::Output;
use super::escapes::isolations;
use super::*;

#[test]
fn how_a_program_ended_is_said() {
    let said = |end, stderr: &str| words_of(&Outcome { end, stdout: vec![], stderr: stderr.to_owned() });
    for (end, stderr, expected) in [
        (End::Exit(3), "", "exit code 3"),
        (End::Exit(3), " \n", "exit code 3"),
        (End::Exit(3), "first\nlast\n", "exit code 3: last"),
        (End::TimedOut, "x", "timed out"),
        (End::TooMuchOutput, "x", "too much output"),
        (End::TooMuchMemory(5), "x", "used more than 5 MiB of memory"),
        (End::TooManyProcesses(6), "x", "more than 6 processes and threads"),
        (End::Stopped, "x", "stopped"),
    ] {
        assert_eq!(said(end, stderr), expected);
    }
}

#[test]
fn white_space_at_the_ends_of_lines_is_ignored() {
    for (given, expected, same) in [
        ("8", "8", true),
        ("8\n", "8", true),
        ("8 \n\n", "8", true),
        ("8", "8 \n", true),
        ("a \nb\t\n", "a\nb", true),
        ("a\r\nb", "a\nb", true),
        (" 8", "8", false),
        ("\n8", "8", false),
        ("8", " 8", false),
        ("8", "\n8", false),
        ("8", "8\n\n \n", true),
        ("a\n\nb", "a\nb", false),
        ("a", "a\nb", false),
        ("a\nb", "a", false),
        ("", "", true),
        ("", "8", false),
        ("8", "9", false),
    ] {
        assert_eq!(Output::from(expected).is(given.as_bytes()), same, "{given:?} {expected:?}");
    }
    assert!(!Output::from("\u{fffd}").is(b"\xff"));
}

#[test]
fn options_have_defaults_and_limits() {
    let options: CodeOptions = serde_json::from_value(json!({"language": "shell"})).unwrap();
    let CodeOptions { column, partial, staged, strict, timeout_s, compile_timeout_s, .. } = &options;
    assert_eq!((column.as_str(), *partial, *staged, *strict), ("tests", false, false, None));
    assert_eq!((*timeout_s, *compile_timeout_s, options.memory_mb, options.processes), (10.0, 30.0, 512, 64));
    assert_eq!((options.output_bytes, options.workers, options.bwrap.as_str()), (1 << 20, None, "bwrap"));
    assert!(options.isolation.is_none() && !options.unsafe_no_sandbox);
    for (options, expected) in [
        (
            json!({"language": "cobol"}),
            "unknown language `cobol`; known: python, ocaml, rust, c, javascript, shell, or a table of your own",
        ),
        (json!({"language": "shell", "workers": 0}), "`workers`, `memory_mb` and `processes` must be at least 1"),
        (json!({"language": "shell", "memory_mb": 0}), "`workers`, `memory_mb` and `processes` must be at least 1"),
        (json!({"language": "shell", "processes": 0}), "`workers`, `memory_mb` and `processes` must be at least 1"),
        (json!({"language": "shell", "timeout_s": 0}), "`timeout_s` must be a positive number of seconds, not 0"),
        (json!({"language": "shell", "timeout_s": -1}), "`timeout_s` must be a positive number of seconds, not -1"),
        (
            json!({"language": "shell", "timeout_s": 1e6}),
            "`timeout_s` must be a positive number of seconds, not 1000000",
        ),
        (
            json!({"language": "shell", "compile_timeout_s": 0}),
            "`compile_timeout_s` must be a positive number of seconds, not 0",
        ),
    ] {
        assert_eq!(refusal(options), format!("reward `code`: {expected}"));
    }
    for language in [
        json!({"file": "x", "run": []}),
        json!({"file": "", "run": ["sh"]}),
        json!({"file": "a/b", "run": ["sh"]}),
        json!({"file": "..", "run": ["sh"]}),
        json!({"file": "a..b", "run": ["sh"]}),
    ] {
        let said = refusal(json!({"language": language}));
        assert!(said.starts_with("reward `code`: a language needs a `file` name and a `run` command: "), "{said}");
    }
    if !isolations().is_empty() {
        for option in ["staged", "strict"] {
            for language in ["shell", "python"] {
                let said = refusal(json!({"language": language, option: true}));
                assert_eq!(said, format!("reward `code`: `{option}` is of language = \"ocaml\" alone"));
            }
        }
        let own = json!({"file": "x", "run": ["/bin/sh", "{source}"], "base_memory_mb": 100});
        let reward =
            code(json!({"language": own, "timeout_s": 3, "compile_timeout_s": 7, "memory_mb": 5, "processes": 9,
            "output_bytes": 11}));
        let (run, compile) = (reward.run_limits, reward.compile_limits);
        assert_eq!((run.wall, run.memory_mb, run.resident_mb, run.processes), (Duration::from_secs(3), 105, 5, 9));
        assert_eq!((run.output, run.disk_mb, run.compiles), (11, 64, false));
        let seconds = Duration::from_secs(7);
        assert_eq!((compile.wall, compile.memory_mb, compile.resident_mb, compile.processes), (seconds, 4196, 4096, 9));
        assert_eq!((compile.output, compile.disk_mb, compile.compiles), (64 << 20, 256, true));
        assert_eq!((reward.name(), reward.scores_by_group(), reward.reads_ids()), ("code", true, false));
        assert_eq!(reward.required_columns(), ["tests"]);
        let words = ["{source}", "-o{program}", "x"].map(str::to_owned);
        assert_eq!(reward.words(&words, "/p"), ["/job/x", "-o/p", "x"]);
        let of = |isolation: &str| isolation_of(json!({"language": "shell", "isolation": isolation}));
        assert!(isolations().iter().all(|name| of(name).is_some()));
    }
    let none = json!({"language": "shell", "isolation": "bubblewrap", "bwrap": "/no/such/bwrap"});
    assert_eq!(isolation_of(none), None);
}

fn isolation_of(options: Value) -> Option<String> {
    isolation(serde_json::from_value(options).unwrap())
}

#[test]
fn work_is_done_once_and_kept_up_to_a_limit() {
    if isolations().is_empty() {
        return;
    }
    for workers in [1, 3, 50] {
        let reward = code(json!({"language": "shell", "workers": workers}));
        assert_eq!(reward.beside(20, |i| i * i), (0..20).map(|i| i * i).collect::<Vec<_>>());
        assert!(reward.beside(0, |i| i).is_empty());
    }
    let mut reward = code(json!({"language": "shell"}));
    let source = |i: usize| format!("echo {i}");
    let sources = |range: std::ops::Range<usize>| range.map(source).collect::<Vec<_>>();
    let mut kept = |range: std::ops::Range<usize>| {
        let sources = sources(range);
        assert!(reward.make_ready(sources.iter().chain(&sources)).is_empty());
        (reward.cache.len(), reward.cache.contains_key(&source(0)))
    };
    assert_eq!((kept(0..100), kept(100..256)), ((100, true), (256, true)));
    assert_eq!((kept(256..257), kept(0..2)), ((1, false), (3, true)));
    assert_ne!(nonce().unwrap(), nonce().unwrap());
    assert!(nonce().unwrap().len() == 32);
}

/// Nobody waits for a program any more: it has no score, which is not 0.
#[test]
fn a_stop_ends_programs_without_a_score() {
    let Some(&isolation) = isolations().first() else { return };
    let mut reward = code(json!({"language": "shell", "isolation": isolation}));
    reward.stop_with(Arc::new(AtomicBool::new(true)));
    let columns = Columns::from([("tests".to_owned(), vec![doubled(), Value::Null, doubled()])]);
    let completions = vec![Content::from("sleep 100"); 3];
    let scores = reward.score(&RewardBatch {
        prompts: &completions,
        completions: &completions,
        completion_ids: &[const { vec![] }; 3],
        columns: &columns,
        rows: &[],
        step: 0,
    });
    assert_eq!((&scores.values[..], scores.timed_out), (&[None; 3][..], 0));
    assert_eq!(scores.extra, [("failure".to_owned(), vec![Value::Null; 3])]);
    let untested = "column `tests` has no tests such as [{\"input\": \"1\", \"output\": \"2\"}], \
                    [\"assert f(1) == 2\"], or a `check(candidate)` beside a column `entry_point`";
    let stopped = "a program could not be judged: nobody waits for its score any more";
    assert_eq!(scores.problems, [Problem::new("code", 1, untested), Problem::new("code", 2, stopped)]);
    // Bubblewrap is killed at each moment of its start; what it has started by then ends with it.
    let (columns, many) = (Columns::from([("tests".to_owned(), vec![doubled(); 20])]), vec!["sleep 100".into(); 20]);
    let scores = reward.score(&RewardBatch {
        prompts: &many,
        completions: &many,
        completion_ids: &[const { vec![] }; 20],
        columns: &columns,
        rows: &[],
        step: 0,
    });
    assert_eq!(scores.values, [None; 20]);
    let missing = reward.score(&RewardBatch {
        prompts: &completions,
        completions: &completions,
        completion_ids: &[const { vec![] }; 3],
        columns: &Columns::new(),
        rows: &[],
        step: 0,
    });
    assert_eq!((missing.values, missing.problems[0].rows), (vec![None; 3], 3));
}
