//! Tests without a program, or with a program that does nothing.

use super::escapes::isolations;
use super::*;
use crate::output::Output;
use crate::python::nonce;
use crate::sandbox::Outcome;

#[test]
fn the_end_of_a_program_is_reported() {
    let message = |end, stderr: &str| Outcome { end, stdout: vec![], stderr: stderr.to_owned() }.words();
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
        assert_eq!(message(end, stderr), expected);
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
    let options: Options = serde_json::from_value(json!({"language": "shell"})).unwrap();
    let Options { column, partial, staged, strict, timeout_s, compile_timeout_s, .. } = &options;
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
        assert_eq!(refusal(options), expected);
    }
    for language in [
        json!({"file": "x", "run": []}),
        json!({"file": "", "run": ["sh"]}),
        json!({"file": "a/b", "run": ["sh"]}),
        json!({"file": "..", "run": ["sh"]}),
        json!({"file": "a..b", "run": ["sh"]}),
    ] {
        let message = refusal(json!({"language": language}));
        assert!(message.starts_with("a language needs a `file` name and a `run` command: "), "{message}");
    }
    if !isolations().is_empty() {
        for option in ["staged", "strict"] {
            for language in ["shell", "python"] {
                let message = refusal(json!({"language": language, option: true}));
                assert_eq!(message, format!("`{option}` is only for language = \"ocaml\""));
            }
        }
        let own = json!({"file": "x", "run": ["/bin/sh", "{source}"], "base_memory_mb": 100});
        let judge =
            judge(json!({"language": own, "timeout_s": 3, "compile_timeout_s": 7, "memory_mb": 5, "processes": 9,
            "output_bytes": 11}));
        let (run, compile) = (judge.run_limits, judge.compile_limits);
        assert_eq!((run.wall, run.memory_mb, run.resident_mb, run.processes), (Duration::from_secs(3), 105, 5, 9));
        assert_eq!((run.output, run.disk_mb, run.compiles), (11, 64, false));
        let seconds = Duration::from_secs(7);
        assert_eq!((compile.wall, compile.memory_mb, compile.resident_mb, compile.processes), (seconds, 4196, 4096, 9));
        assert_eq!((compile.output, compile.disk_mb, compile.compiles), (64 << 20, 256, true));
        assert_eq!(judge.column(), "tests");
        let words = ["{source}", "-o{program}", "x"].map(str::to_owned);
        assert_eq!(judge.words(&words, "/p"), ["/job/x", "-o/p", "x"]);
        let of = |isolation: &str| isolation_of(json!({"language": "shell", "isolation": isolation}));
        assert!(isolations().iter().all(|name| of(name).is_some()));
    }
    let none = json!({"language": "shell", "isolation": "bubblewrap", "bwrap": "/no/such/bwrap"});
    assert_eq!(isolation_of(none), None);
}

fn isolation_of(options: Value) -> Option<String> {
    serde_json::from_value::<Options>(options).unwrap().isolation()
}

#[test]
fn work_is_done_once_and_kept_up_to_a_limit() {
    if isolations().is_empty() {
        return;
    }
    for workers in [1, 3, 50] {
        let judge = judge(json!({"language": "shell", "workers": workers}));
        assert_eq!(judge.beside(20, |i| i * i), (0..20).map(|i| i * i).collect::<Vec<_>>());
        assert!(judge.beside(0, |i| i).is_empty());
    }
    let mut judge = judge(json!({"language": "shell"}));
    let source = |i: usize| format!("echo {i}");
    let sources = |range: std::ops::Range<usize>| range.map(source).collect::<Vec<_>>();
    let mut kept = |range: std::ops::Range<usize>| {
        let sources = sources(range);
        assert!(judge.make_ready(sources.iter().chain(&sources)).is_empty());
        (judge.cache.len(), judge.cache.contains_key(&source(0)))
    };
    assert_eq!((kept(0..100), kept(100..256)), ((100, true), (256, true)));
    assert_eq!((kept(256..257), kept(0..2)), ((1, false), (3, true)));
    assert_ne!(nonce().unwrap(), nonce().unwrap());
    assert!(nonce().unwrap().len() == 32);
}

/// A program that is killed by a stop has no verdict.
#[test]
fn a_stop_ends_programs_without_a_verdict() {
    let Some(&isolation) = isolations().first() else { return };
    let mut judge = judge(json!({"language": "shell", "isolation": isolation}));
    judge.stop_with(Arc::new(AtomicBool::new(true)));
    // Bubblewrap is killed at every stage of its start. Everything that it has started by then ends with it.
    let rows = vec![("q", "sleep 100", json!({"tests": doubled()})); 20];
    let (scores, failures) = scored_by(&mut judge, &rows);
    assert_eq!((scores.values, scores.timed_out), (vec![None; 20], 0));
    assert!(failures.iter().all(|why| why == "its score is not needed any more"), "{failures:?}");
}
