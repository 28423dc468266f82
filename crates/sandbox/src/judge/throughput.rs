//! Measures the cost of isolation per program. It is not a test; docs/benchmarks.md explains how to run it.

use super::tests::{doubled, judge, scored};
use super::*;
use serde_json::json;
use std::process::{Command, Stdio};
use std::time::Instant;
use testing::installed;

const ROUNDS: usize = 60;
const PROGRAMS: usize = 48;

/// The median and the 10th percentile of `times`, in milliseconds.
fn spread(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    format!("median {:.1} ms, tenth percentile {:.1} ms", times[times.len() / 2], times[times.len() / 10])
}

#[test]
#[ignore = "a measurement"]
fn overhead_and_throughput() {
    if installed(&["bwrap", "python3", "ocamlc"]) {
        for isolation in super::tests::escapes::isolations() {
            overhead_and_throughput_in(isolation);
        }
    }
}

fn overhead_and_throughput_in(isolation: &str) {
    for (language, source) in [("python", "print(2 * int(input()))"), ("ocaml", "let () = print_int (2 * read_int ())")]
    {
        let judge = judge(json!({"language": language, "isolation": isolation}));
        let prepared = judge.prepare(source).unwrap();
        let Prepared::Ready(directory) = &prepared else { panic!() };
        let tests = [StreamTest { input: "4\n".into(), output: "8\n".into() }];
        let own = directory.path().join("program").display().to_string();
        let words = judge.words(&judge.language.run, &own);
        let words: Vec<_> = words.iter().map(|w| w.replace(JOB, &directory.path().display().to_string())).collect();
        let (mut bare, mut isolated) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS + 5 {
            let start = Instant::now();
            let mut child = Command::new(&words[0]);
            child.args(&words[1..]).env("PATH", "/usr/bin").stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = child.spawn().unwrap();
            std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"4\n").unwrap();
            assert_eq!(child.wait_with_output().unwrap().stdout.trim_ascii(), b"8");
            let first = start.elapsed().as_secs_f64() * 1e3;
            let start = Instant::now();
            assert_eq!(judge.run(&prepared, &tests).unwrap().passed, 1);
            let second = start.elapsed().as_secs_f64() * 1e3;
            // The first rounds still read files from disk.
            if round >= 5 {
                bare.push(first);
                isolated.push(second);
            }
        }
        let more = bare.iter().zip(&isolated).map(|(bare, isolated)| isolated - bare).collect();
        println!("{isolation}: {language}, bare: {}", spread(bare));
        println!("{isolation}: {language}, isolated: {}", spread(isolated));
        println!("{isolation}: {language}, isolated minus bare, pair by pair: {}", spread(more));
    }
    let streams = json!({"tests": doubled()});
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    for (what, options, source, row) in [
        (
            "Python, two tests with input and output",
            json!({"language": "python", "isolation": isolation}),
            "print(2 * int(input())) # ",
            streams.clone(),
        ),
        (
            "Python, three assertions",
            json!({"language": "python", "isolation": isolation}),
            "def f(x): return 2 * x # ",
            json!({"tests": ["assert f(1) == 2", "assert f(2) == 4", "assert f(3) == 6"]}),
        ),
        (
            "OCaml, compiled, two tests with input and output",
            json!({"language": "ocaml", "isolation": isolation}),
            "let () = print_int (2 * read_int ()) let _ = ",
            streams,
        ),
        (
            "OCaml, compiled, three assertions",
            json!({"language": "ocaml", "staged": true, "isolation": isolation}),
            "let f x = 2 * x let _ = ",
            json!({"tests": ["assert (f 1 = 2)", "assert (f 2 = 4)", "assert (f 3 = 6)"]}),
        ),
    ] {
        // All sources differ, so that each one is compiled.
        let sources: Vec<String> = (0..PROGRAMS).map(|i| format!("{source}{i}")).collect();
        let rows: Vec<_> = sources.iter().map(|source| (source.as_str(), row.clone())).collect();
        let start = Instant::now();
        let (scores, failures) = scored(options, &rows);
        let rate = PROGRAMS as f64 / start.elapsed().as_secs_f64();
        assert!(scores.values.iter().all(|value| *value == Some(1.0)), "{failures:?}");
        println!("{isolation}: {what}: {rate:.1} programs per second with {workers} workers");
    }
}
