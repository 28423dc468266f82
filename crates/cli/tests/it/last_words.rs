//! The verdict of a run: whether it learned, according to the values of its steps. The verdict is the same wherever it
//! is printed.

use crate::support::lockstep;
use crate::support::runs::{arguments, directory, good};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// How a run is executed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Whole,
    /// Stopped after six steps, and resumed.
    Resumed,
    /// Resumed once more, from the checkpoint of step 4.
    FromEarlier,
    /// An older version, which did not write `steps.jsonl`, trained the first six steps.
    Older,
}

/// The command, its keys, how the run is executed, the metric for the verdict, and the number of its values: one per
/// step that has a value. (In the steps that an older version trained: one per logged step.)
type Row = (&'static str, &'static [&'static str], How, &'static str, usize);

#[rustfmt::skip]
const ROWS: [Row; 26] = [
    ("train", &["logging_steps=10"], How::Whole, "reward", 12),
    ("train", &["max_steps=1"], How::Whole, "reward", 1),
    ("train", &["max_steps=2", "logging_steps=10"], How::Whole, "reward", 2),
    ("train", &["max_steps=3", "logging_steps=1"], How::Whole, "reward", 3),
    ("train", &["max_steps=4", "logging_steps=10"], How::Whole, "reward", 4),
    ("train", &["logging_steps=100"], How::Whole, "reward", 12),
    ("train", &["logging_steps=1"], How::Whole, "reward", 12),
    ("train", &["eval_strategy=no"], How::Whole, "reward", 12),
    ("train", &["eval_steps=1", "logging_steps=5"], How::Whole, "reward", 12),
    ("train", &["num_iterations=2", "logging_steps=10"], How::Whole, "reward", 6),
    ("train", &["num_iterations=2", "steps_per_generation=2", "logging_steps=10"], How::Whole, "reward", 3),
    ("train", &["gradient_accumulation_steps=2", "logging_steps=10"], How::Whole, "reward", 12),
    // Each generation is used for four optimizer steps.
    ("train", &["algorithm=ppo", "num_generations=1", "logging_steps=10"], How::Whole, "reward", 3),
    ("train", &["algorithm=rloo", "max_steps=3"], How::Whole, "reward", 3),
    ("train", &["use_peft=true", "lora_r=2", "logging_steps=10"], How::Whole, "reward", 12),
    ("train", &["max_staleness=1", "logging_steps=10"], How::Whole, "reward", 12),
    ("train", &["logging_steps=10"], How::Resumed, "reward", 12),
    ("train", &["logging_steps=10", "num_iterations=2"], How::Resumed, "reward", 6),
    ("train", &["logging_steps=10"], How::FromEarlier, "reward", 12),
    // The older version logs steps 3 and 6; this version logs values of steps 7 to 12.
    ("train", &[], How::Older, "reward", 8),
    ("sft", &["logging_steps=10"], How::Whole, "loss", 12),
    ("sft", &["max_steps=3"], How::Whole, "loss", 3),
    ("sft", &["logging_steps=10"], How::Resumed, "loss", 12),
    ("dpo", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"], How::Whole, "rewards/accuracies", 12),
    ("dpo", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "max_steps=2"], How::Whole, "rewards/accuracies", 2),
    ("reward", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "logging_steps=10"], How::Whole, "accuracy", 12),
];

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Trains with the row's settings. Returns the output of the last command.
fn train(root: &Path, (purpose, set, how, ..): Row) -> String {
    let words = |more: &[&'static str]| arguments(purpose, "out", &[set, more].concat());
    if how == How::Whole {
        return good(root, &words(&[])).err;
    }
    good(root, &words(&["max_steps=6"]));
    if how == How::Older {
        fs::remove_file(root.join("out/steps.jsonl")).unwrap();
        for checkpoint in fs::read_dir(root.join("out/checkpoints")).unwrap() {
            let checkpoint = checkpoint.unwrap().path();
            let state = fs::read_to_string(checkpoint.join("run_state.json")).unwrap();
            // Removes the checksum of the state and the list of files, as in checkpoints of an older version.
            let state = format!("{{{}", state.split_once("\",").unwrap().1);
            let mut state: Value = serde_json::from_str(&state).unwrap();
            assert!(state["log_bytes"].as_object_mut().unwrap().remove("steps.jsonl").is_some());
            fs::write(checkpoint.join("run_state.json"), state.to_string()).unwrap();
            fs::remove_file(checkpoint.join("files.json")).unwrap();
        }
    }
    let resume = |from: &str| good(root, &[purpose, "--resume", from, "--set", "max_steps=12"]).err;
    let printed = resume("out");
    if how == How::FromEarlier { resume("out/checkpoints/step-000004") } else { printed }
}

/// Describes the first error in the verdict of a run.
fn wrong(row: Row) -> Option<String> {
    let (purpose, set, how, key, count) = row;
    let dir = directory();
    let root = dir.path();
    let printed = train(root, row);
    let own: Vec<(u64, f64)> = lines(&root.join("out/steps.jsonl"))
        .iter()
        .filter_map(|line| Some((line["step"].as_u64()?, line[key].as_f64()?)))
        .collect();
    let logged: Vec<(u64, f64)> = lines(&root.join("out/metrics.jsonl"))
        .iter()
        .filter_map(|line| Some((line["step"].as_u64()?, line[key].as_f64()?)))
        .collect();
    let begin = own[0].0;
    let before = logged.iter().filter(|(step, _)| *step < begin).count();
    if before + own.len() != count {
        return Some(format!("{before} logged values and {} own ones, not {count}", own.len()));
    }
    if !own.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        return Some(format!("steps twice, or in another order: {own:?}"));
    }
    // A logged value is the mean of the steps' values since the previous logged step.
    let mut since = begin - 1;
    for (step, mean) in logged.into_iter().filter(|(step, _)| *step >= begin) {
        let all: Vec<f64> = own.iter().filter(|(own, _)| (since + 1..=step).contains(own)).map(|(_, x)| *x).collect();
        let found = all.iter().sum::<f64>() / all.len() as f64;
        if (found - mean).abs() > 1e-9 * mean.abs().max(1.0) {
            return Some(format!("steps {} to {step} have the mean {found}, and {mean} was logged", since + 1));
        }
        since = step;
    }
    // Console, report and page show the same verdict.
    let lines: Vec<&str> = printed.lines().collect();
    let verdict = lines[lines.len() - 2].split_once("s] ").unwrap().1;
    let report = lockstep(root, &["report", "out", "--print"]).out;
    if !report.starts_with(&format!("# out\n\n{verdict}\n")) {
        return Some(format!(
            "the console's verdict is {verdict:?}, but the report begins with {:?}",
            report.get(..200)
        ));
    }
    let few =
        format!("Too early to tell: {count} value{} of {key}, and 4 are needed.", if count == 1 { "" } else { "s" });
    let is_right = if count < 4 {
        verdict.starts_with(&few)
    } else {
        verdict.contains(&format!("{key} ")) && !verdict.contains("early")
    };
    (!is_right).then(|| format!("{purpose} {set:?} {how:?}: {verdict:?}"))
}

fn all_right(rows: impl Iterator<Item = Row>) -> usize {
    let rows: Vec<Row> = rows.collect();
    let found = rows.iter().filter_map(|row| Some(format!("{row:?}: {}", wrong(*row)?)));
    let wrong: Vec<String> = found.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    rows.len()
}

#[test]
fn verdicts_of_some_runs_follow_from_their_step_values() {
    all_right([0, 3, 9, 16, 19, 23].into_iter().map(|place| ROWS[place]));
}

#[test]
#[ignore = "a minute; `cargo xtask nightly last_words` runs it"]
fn verdicts_of_all_kinds_of_runs_follow_from_their_step_values() {
    println!("{} runs are judged by the steps' own values", all_right(ROWS.into_iter()));
}

/// `report --out` creates a new directory, for one run and for two runs.
#[test]
fn a_report_creates_its_directory_and_compares_two_runs() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "a", &["max_steps=1", "eval_strategy=no"]));
    good(root, &arguments("train", "b", &["max_steps=1", "eval_strategy=no", "learning_rate=0.02"]));
    for (runs, out) in [(&["a"][..], "rep"), (&["a", "b"], "deep/er/rep"), (&["a"], "rep")] {
        good(root, &[&["report", "--out", out][..], runs].concat());
        let names: Vec<String> = crate::support::runs::listing_names(&root.join(out));
        assert_eq!(names, ["report.html", "report.md"], "{out}");
    }
    let text = fs::read_to_string(root.join("deep/er/rep/report.md")).unwrap();
    let (_, table) = text.split_once("## What differs\n").unwrap();
    let table = table.split_once("##").unwrap().0;
    let keys: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()).collect();
    assert_eq!(keys, ["key", "learning_rate"], "{text}");
    // A single logged line still has a first and a last value.
    let row = text.lines().find(|line| line.starts_with("| reward ")).unwrap_or_else(|| panic!("{text}"));
    assert!(!row.contains('–'), "{row}");
    let page = fs::read_to_string(root.join("deep/er/rep/report.html")).unwrap();
    assert!(page.contains("<td>learning_rate</td>") && !page.contains("<td>seed</td>"));
    fs::write(root.join("file"), "").unwrap();
    for out in ["file", "file/below"] {
        let printed = lockstep(root, &["report", "a", "--out", out]);
        assert!(printed.code == Some(2) && printed.err.contains("--out"), "{out}: {:?} {}", printed.code, printed.err);
    }
}

/// The exit code of `plan` is whether the run fits into the memory of this process.
#[test]
fn a_plan_that_does_not_fit_exits_with_code_1() {
    let dir = directory();
    let root = dir.path();
    let limited = |kib: &str, words: &str| {
        let script = format!("ulimit -v {kib}; exec \"$0\" {words}");
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_lockstep")]).current_dir(root).env("HF_HUB_OFFLINE", "1");
        crate::support::without_settings(&mut command);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let wide = "--model model --set max_completion_length=48 --set max_prompt_length=8 --set num_generations=512 \
                --set per_device_train_batch_size=65536 --set max_num_seqs=65536";
    for json in ["", " --json"] {
        let (code, out) = limited("unlimited", &format!("plan --model model --set max_completion_length=16{json}"));
        assert_eq!(code, Some(0), "{out}");
        let (code, out) = limited("1000000", &format!("plan {wide}{json}"));
        let says = if json.is_empty() {
            out.contains("does not fit: ")
        } else {
            out.contains("\"fits\": false") || out.contains("\"fits\":false")
        };
        assert!(code == Some(1) && says, "{code:?} {out}");
        let (code, _) = limited("1000000", &format!("plan --model nowhere{json}"));
        assert_eq!(code, Some(2));
    }
}
