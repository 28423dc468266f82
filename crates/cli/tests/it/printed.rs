//! The console output of a training run: one line per evaluation, two lines about time at the end, tables with
//! `--verbose`, and the verdict that report and page also show.

use crate::support::runs::{arguments, directory, good};
use serde_json::Value;
use std::fs;

/// Lines of standard error without their timestamps.
fn lines(err: &str) -> Vec<String> {
    err.lines().map(|line| line.split_once("s] ").map_or(line, |(_, output)| output).to_owned()).collect()
}

#[test]
fn a_run_prints_lines_and_adds_tables_if_verbose() {
    let dir = directory();
    let root = dir.path();
    let plain = good(root, &arguments("train", "plain", &[]));
    let verbose = good(root, &[&arguments("train", "verbose", &[])[..], &["--verbose"]].concat());
    let json = good(root, &[&arguments("train", "json", &[])[..], &["--log-format", "json"]].concat());
    for output in [&plain, &verbose] {
        let all = lines(&output.err);
        let held_out: Vec<&String> = all.iter().filter(|line| line.contains(": held-out reward ")).collect();
        let steps: Vec<&str> = held_out.iter().map(|line| line.split_once(':').unwrap().0).collect();
        assert_eq!(steps, ["step 4", "step 8", "step 12"], "{}", output.err);
        let since = held_out.iter().map(|line| line.contains(" since step 4); "));
        assert_eq!(since.collect::<Vec<_>>(), [false, true, true], "{}", output.err);
        let time: Vec<&String> = all.iter().filter(|line| line.starts_with("time: ")).collect();
        let shares: Vec<u64> = time[0].split(" %").filter_map(|part| part.rsplit(' ').next()?.parse().ok()).collect();
        assert!(time.len() == 1 && shares.len() > 1 && shares.iter().sum::<u64>() == 100, "{time:?}");
        let busy = all.iter().position(|line| line.starts_with("busy: ") && line.contains(" of memory")).unwrap();
        assert!(all[busy - 1] == *time[0] && !output.err.contains("not measured") && !output.err.contains('\u{1b}'));
    }
    assert_eq!(plain.out, "");
    assert!(verbose.out.starts_with("stage ") && verbose.out.contains("\n(not measured) "), "{}", verbose.out);
    let tables = |text: &str| text.matches("evaluation after step ").count();
    assert_eq!((tables(&plain.err), tables(&verbose.err)), (0, 3));
    // No information is lost: the log file has the tables, and JSON output has the values.
    let log = fs::read_to_string(root.join("plain/lockstep-0.log")).unwrap();
    assert!(tables(&log) == 3 && log.contains("debug: stage ") && log.contains("\n(not measured) "), "{log}");
    let json: Vec<Value> = json.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let with = |field: &str| json.iter().filter(|line| line.get(field).is_some()).count();
    assert_eq!((with("stages"), with("eval_reward"), with("peak_bytes") > 4), (1, 3, true));
}
