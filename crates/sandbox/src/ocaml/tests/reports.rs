//! Tests of parsing the output of the tool and of the tests' process, without running them.

use super::super::*;

#[test]
fn a_report_has_a_head_and_three_parts() {
    let read = |text: &str| {
        let report = Report::read(text.as_bytes())?;
        let [program, judge] = [report.program, report.judge].map(|part| String::from_utf8_lossy(part).into_owned());
        Some((report.status.to_owned(), report.warnings, report.of, report.words, program, judge))
    };
    let own = |words: &str, program: &str, judge: &str| {
        Some(("strong".to_owned(), 7, 3, words.to_owned(), program.to_owned(), judge.to_owned()))
    };
    assert_eq!(read("strong 7 3 1 2 3\nabbccc"), own("a", "bb", "ccc"));
    assert_eq!(read("strong 7 3 0 0 0\n"), own("", "", ""));
    assert_eq!(read("strong 7 3 2 1 1\n\n\nab and more"), own("\n\n", "a", "b"));
    for text in [
        "",
        "strong 7 3 1 2 3",
        "strong 7 3 1 2\nabb",
        "strong 7 3 1 2 3 4\nabbccc",
        "strong 7 x 1 2 3\nabbccc",
        "strong 7 3 7 0 0\nabbccc",
        "strong 7 3 1 6 0\nabbccc",
        "strong 7 3 1 2 4\nabbccc",
    ] {
        assert_eq!(read(text), None, "{text}");
    }
    for (why, expected) in [
        (NotBuilt::Syntax, "not parsed: "),
        (NotBuilt::TooMuch, "not compiled: "),
        (NotBuilt::Types(1), "ill-typed: "),
        (NotBuilt::Types(2), "2 ill-typed definitions: "),
        (NotBuilt::Tests, "not compiled with its tests: "),
    ] {
        assert_eq!(why.to_string(), expected);
    }
}

fn outcome(end: End, stdout: &str, stderr: &str) -> Outcome {
    Outcome { end, stdout: stdout.as_bytes().to_vec(), stderr: stderr.to_owned() }
}

#[test]
fn files_follow_their_names_and_sizes() {
    let read = |end, text: &str| {
        let files = files_of(&outcome(end, text, ""))?;
        Some(files.into_iter().map(|(name, bytes)| (name, String::from_utf8(bytes).unwrap())).collect::<Vec<_>>())
    };
    let own = |files: &[(&str, &str)]| {
        Some(files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect::<Vec<_>>())
    };
    assert_eq!(read(End::Exit(0), "a 1\nb 2\n\nxyz"), own(&[("a", "x"), ("b", "yz")]));
    assert_eq!(read(End::Exit(0), "a 2\n\n\n\n and more"), own(&[("a", "\n\n")]));
    for text in ["a 1\nb 2\nxyz", "a 1\nb 3\n\nxyz", "a\n\nx", "a x\n\nx", ""] {
        assert_eq!(read(End::Exit(0), text), None, "{text}");
    }
    assert_eq!(read(End::Exit(1), "a 1\n\nx"), None);
    assert_eq!(read(End::TimedOut, "a 1\n\nx"), None);
}

#[test]
fn a_verdict_has_the_passed_count_and_the_first_failure() {
    let judged = |text: &str, of: usize, end: End, stderr: &str| {
        verdict(text, of, &outcome(end, "", stderr)).map(|v| (v.passed, v.of, v.failure, v.timed_out))
    };
    let own = |passed, failure: &str, timed_out| Ok((passed, 2, failure.to_owned(), timed_out));
    let (good, bad) = (End::Exit(0), End::Exit(2));
    for (text, end, stderr, expected) in [
        ("R \nP 0\nP 1\nE ", good.clone(), "", own(2, "", false)),
        ("P 1\nP 0\nE", good.clone(), "words", own(2, "", false)),
        ("P 0\nF 1 it is not\nE", good.clone(), "", own(1, "test 2: it is not", false)),
        ("F 0 it is not\nP 1\nE", good.clone(), "", own(1, "test 1: it is not", false)),
        ("F 0 a\nF 1 b\nE", good.clone(), "", own(0, "test 1: a", false)),
        ("P 0\nP 2\nP x\nE", good.clone(), "", own(1, "test 2: the tests' process ended too early", false)),
        ("P 0\nG it ended", good.clone(), "", own(1, "test 2: it ended", false)),
        ("P 0\nG it ended", bad.clone(), "a\nlast ", own(1, "test 2: it ended: last", false)),
        ("P 0", bad.clone(), "last", own(1, "test 2: the tests' process ended too early", false)),
        ("P 0", End::TimedOut, "", own(1, "test 2: timed out", true)),
        ("P 0\nP 1", good.clone(), "", own(1, "the tests' process ended too early", false)),
        ("P 0\nP 1\nE", bad.clone(), "", own(1, "the tests' process ended too early", false)),
        ("P 0\nP 1\nE", End::TimedOut, "", own(1, "timed out", true)),
        ("P 0\nP 1", End::TooMuchMemory(3), "", own(1, "used more than 3 MiB of memory", false)),
        ("P 0\nB no such value", good.clone(), "", Err("no such value".to_owned())),
        ("", good, "", own(0, "test 1: the tests' process ended too early", false)),
    ] {
        assert_eq!(judged(text, 2, end, stderr), expected, "{text}");
    }
    let nothing = judged("", 0, bad, "");
    assert_eq!(nothing, Ok((0, 0, "the tests' process ended too early".to_owned(), false)));
}
