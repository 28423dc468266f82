//! A single signal is obeyed even before there is anything to save: while data is read, tokenised and hashed, during
//! DPO's reference pass, and while a reward's file is imported.
//!
//! `LOCKSTEP_STOP_ROWS=300000` runs the measurement of docs/runs.md (at most two seconds on an idle machine), and
//! prints its table.

use crate::stopping::{signal, start};
use crate::support::runs::directory;
use crate::support::{lockstep, refused};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(2);

/// Writes data files of `rows` rows: prompts with completions, and pairs.
fn data(root: &Path, rows: usize) {
    let (mut prompts, mut pairs) = (String::new(), String::new());
    for i in 0..rows {
        let word = ["sun", "moon", "a long road", "river", "the tree on the hill"][i % 5];
        let text = "and so it went on and on, ".repeat(1 + i % 3);
        let prompt = &text[..text.len().min(20)];
        prompts += &format!("{{\"prompt\": \"{prompt} \", \"completion\": \"{word}.\", \"n\": {i}}}\n");
        pairs += &format!("{{\"prompt\": \"{prompt} \", \"chosen\": \"{word}.\", \"rejected\": \"{word}?\"}}\n");
    }
    fs::write(root.join("big.jsonl"), prompts).unwrap();
    fs::write(root.join("pairs.jsonl"), pairs).unwrap();
}

/// Waits until the program handles SIGINT; before that, the signal would kill it.
fn catches_signals(child: &mut Child) {
    testing::wait_until("the program catches signals, or ends", || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
        caught & 0b10 != 0 || child.try_wait().unwrap().is_some()
    });
}

/// Starts the program, waits for `marker` on standard error (if given), then for `delay`, and sends a signal. Returns
/// the remaining output and the time until the exit; `None` if the program had already finished.
fn stopped(root: &Path, arguments: &[&str], marker: Option<&str>, delay: Duration) -> Option<(Duration, String)> {
    let mut child = start(root, arguments);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    if let Some(marker) = marker
        && !lines.any(|line| line.contains(marker))
    {
        child.wait().unwrap();
        return None;
    }
    catches_signals(&mut child);
    std::thread::sleep(delay);
    if child.try_wait().unwrap().is_some() {
        return None;
    }
    signal(&child, "INT");
    let asked = Instant::now();
    let printed = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
    let code = child.wait().unwrap().code();
    let took = asked.elapsed();
    let printed = printed.join().unwrap();
    if code == Some(0) {
        // The program was already finishing when the signal arrived.
        return None;
    }
    assert_eq!(code, Some(130), "{arguments:?}: {printed}");
    Some((took, printed))
}

#[test]
fn a_signal_is_obeyed_before_training_begins() {
    let rows = std::env::var("LOCKSTEP_STOP_ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let measures = rows > 20_000;
    let dir = directory();
    let root = dir.path();
    data(root, rows);
    fs::write(root.join("slow.py"), "import time\ntime.sleep(100000)\ndef f(completions, **kwargs):\n    return []\n")
        .unwrap();
    let of = |command: &'static str, dataset: &'static str| {
        let out = ["--model", "model", "--dataset", dataset, "--out", "out", "--set", "max_completion_length=4"];
        [&[command], &out[..]].concat()
    };
    let rewarded = |arguments: &[&'static str]| [arguments, &["--reward", "unique_chars"]].concat();
    let eval = ["eval", "--model", "model", "--dataset", "big.jsonl", "--max-completion-length", "4"];
    let import = "reward_funcs=[{kind=\"python\",python=\"slow.py:f\",timeout_s=100000}]";
    let phases = [
        ("train: data", rewarded(&of("train", "big.jsonl")), None),
        ("sft: data", of("sft", "big.jsonl"), None),
        ("reward: data", of("reward", "pairs.jsonl"), None),
        ("dpo: data", of("dpo", "pairs.jsonl"), None),
        ("dpo: reference", of("dpo", "pairs.jsonl"), Some("the reference's log-probabilities")),
        ("eval: data", rewarded(&eval), None),
        ("score-rewards", rewarded(&["score-rewards", "--input", "big.jsonl"]), None),
        ("train: import", [&of("train", "d.jsonl")[..], &["--set", import]].concat(), None),
    ];
    let delays: &[f64] = if measures { &[0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0] } else { &[0.0, 0.3] };
    let mut table = String::from("| phase | longest | signals |\n|---|---|---|\n");
    let mut stopped_phases = 0;
    for (phase, arguments, marker) in &phases {
        let mut longest = (Duration::ZERO, 0);
        for &delay in delays {
            let _ = fs::remove_dir_all(root.join("out"));
            let Some((took, printed)) = stopped(root, arguments, *marker, Duration::from_secs_f64(delay)) else {
                continue;
            };
            assert!(!measures || took <= LIMIT, "{phase} after {delay} s: {took:?}\n{printed}");
            if !root.join("out/checkpoints").exists() {
                assert!(!printed.contains("writes a checkpoint"), "{phase}: {printed}");
            }
            // A process that exits at once may not have printed the message about the signal.
            assert!(printed.contains("SIGINT: ") || printed.contains("stopped as asked"), "{phase}: {printed}");
            longest = (longest.0.max(took), longest.1 + 1);
        }
        // On a fast machine, a late phase may end before the signal.
        stopped_phases += usize::from(longest.1 > 0);
        table += &format!("| {phase} | {:.2} s | {} |\n", longest.0.as_secs_f64(), longest.1);
    }
    assert!(stopped_phases >= 4, "{table}");
    if measures {
        fs::write("stop-table.md", table).unwrap();
    }
}

/// An import may take as long as a batch.
#[test]
fn a_hanging_import_ends_at_the_time_limit() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("slow.py"), "import time\ntime.sleep(100000)\n").unwrap();
    let import = "reward_funcs=[{kind=\"python\",python=\"slow.py:f\",timeout_s=1}]";
    let train = ["train", "--model", "model", "--dataset", "d.jsonl", "--out", "out", "--set", import];
    refused(root, &train, &["slow.py:f", "import took longer than timeout_s = 1"]);
    assert!(lockstep(root, &["--version"]).code == Some(0));
}
