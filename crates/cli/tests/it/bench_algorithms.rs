//! `lockstep bench algorithms` with very short runs: its output files, how it continues, and the errors for bad flags.

use crate::support::{lockstep, refused};
use serde_json::Value;
use std::fs;

#[test]
fn a_benchmark_of_two_seeds_continues_without_repeating_runs() {
    let dir = tempfile::tempdir().unwrap();
    let base = ["bench", "algorithms", "--sft-steps", "1", "--seeds", "1,2", "--out", "b", "--only", "grpo", "--json"];
    let only = [&base[..], &["--steps", "1"]].concat();
    let output = lockstep(dir.path(), &only);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let json: Value = serde_json::from_str(&output.out).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["label"].as_str().unwrap()).collect::<Vec<_>>(), ["SFT", "GRPO"]);
    for row in &rows[1..] {
        let runs = row["runs"].as_array().unwrap();
        assert_eq!(runs.iter().map(|r| r["seed"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
        for run in runs {
            // The curve has the initial evaluation, and one evaluation per step.
            let curve = run["curve"].as_array().unwrap();
            assert_eq!(curve.len(), 2, "{run}");
            let number = |i: usize, name: &str| curve[i][name].as_f64().unwrap();
            assert!(number(0, "tokens") == 0.0 && number(1, "tokens") > 0.0 && number(1, "seconds") > 0.0);
            assert_eq!(number(1, "tokens"), run["tokens"].as_f64().unwrap());
        }
    }
    let svg = fs::read_to_string(dir.path().join("b/curves.svg")).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 2, "a row in two panels");
    let csv = fs::read_to_string(dir.path().join("b/curves.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 2);
    assert!(fs::read_to_string(dir.path().join("b/table.md")).unwrap().contains("| GRPO | "));

    // When started again, the benchmark skips finished runs. Different settings are refused, since they would make a
    // different benchmark.
    let begun = |seed: u64| fs::metadata(dir.path().join(format!("b/seed-{seed}/grpo/record.json"))).unwrap();
    let before = begun(1).modified().unwrap();
    let output = lockstep(dir.path(), &only);
    assert_eq!(serde_json::from_str::<Value>(&output.out).unwrap(), json);
    assert_eq!(begun(1).modified().unwrap(), before);
    let output = lockstep(dir.path(), &[&base[..], &["--steps", "2"]].concat());
    assert!(output.code == Some(2) && output.err.contains("different settings"), "{}", output.err);
}

#[test]
fn unknown_rows_and_foreign_output_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.txt"), "mine").unwrap();
    refused(dir.path(), &["bench", "algorithms", "--out", "."], &["--out .", "not empty"]);
    refused(dir.path(), &["bench", "algorithms", "--out", "thesis.txt"], &["--out thesis.txt"]);
    refused(dir.path(), &["bench", "algorithms", "--only", "gpro"], &["--only gpro", "grpo, dr_grpo"]);
}
