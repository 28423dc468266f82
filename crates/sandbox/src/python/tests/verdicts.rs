//! Tests of parsing the output of the tests' process, without running it.

use super::super::*;
use crate::sandbox::Isolation;

fn judged(check: bool, end: End, stdout: &str, stderr: &str) -> Result<(usize, usize, String, bool), String> {
    let tests = ["a", "b", "c"].map(str::to_owned).to_vec();
    let unit = UnitTests { tests, setup: String::new(), entry_point: None, check };
    let outcome = Outcome { end, stdout: stdout.as_bytes().to_vec(), stderr: stderr.to_owned() };
    let sandbox = Sandbox::with("/no/such/bwrap", Isolation::Bubblewrap);
    verdict(&sandbox, &unit, "N", &outcome)
        .map(|verdict| (verdict.passed, verdict.of, verdict.failure, verdict.timed_out))
        .map_err(|error| error.to_string())
}

#[test]
fn a_verdict_counts_only_lines_with_the_nonce() {
    let (pass, fail) = ("N{\"failure\": null}\n", "N{\"failure\": \"no\"}\n");
    let own = |passed, failure: &str, timed_out| Ok((passed, 3, failure.to_owned(), timed_out));
    let good = || End::Exit(0);
    for (end, lines, expected) in [
        (good(), vec![pass, pass, pass], own(3, "", false)),
        (good(), vec![pass, "M{\"failure\": null}\n", "{\"failure\": null}\n", pass], own(2, "", false)),
        (good(), vec![pass, fail, pass], own(2, "test 2: no", false)),
        (good(), vec![fail, "N{\"failure\": \"yes\"}\n"], own(0, "test 1: no", false)),
        (End::Exit(1), vec![pass, fail], own(1, "test 2: no", false)),
        (End::Exit(1), vec![pass, pass, pass], own(3, "", false)),
        (End::TimedOut, vec![], own(0, "test 1: timed out", true)),
        (End::TimedOut, vec![pass], own(1, "test 2: timed out", true)),
        (End::TimedOut, vec![pass, fail], own(1, "test 2: no", true)),
        (End::TimedOut, vec![pass, pass, pass], own(3, "", true)),
        (End::TooMuchMemory(5), vec![pass], own(1, "test 2: used more than 5 MiB of memory", false)),
        (good(), vec![], Err("the judge failed: ".to_owned())),
        (End::Exit(1), vec![pass, " why \n"], Err("the judge failed: N{\"failure\": null}\n why".to_owned())),
        (good(), vec!["N{\"broken\": \"syntax\"}\n"], Err("its tests cannot be run: syntax".to_owned())),
        (End::Stopped, vec![pass], Err("its score is not needed any more".to_owned())),
    ] {
        assert_eq!(judged(false, end, &lines.concat(), ""), expected, "{lines:?}");
    }
    assert_eq!(judged(true, good(), pass, ""), Ok((1, 1, String::new(), false)));
    assert_eq!(judged(true, End::TimedOut, pass, ""), Ok((1, 1, String::new(), true)));
    assert!(judged(false, good(), "N{\"other\": 1}\n", "").unwrap_err().contains("other"));
    // The sandbox did not start.
    for (stdout, stderr) in [("bwrap: no\n", ""), ("", "bwrap: no")] {
        for end in [End::Exit(1), End::TimedOut] {
            let message = judged(false, end, stdout, stderr).unwrap_err();
            assert!(message.contains("bubblewrap is not installed"), "{message}");
        }
        let message = judged(false, good(), &(stdout.to_owned() + &pass.repeat(3)), stderr);
        assert_eq!(message, own(3, "", false));
    }
}
