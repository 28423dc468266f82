//! A reward program that crashes, hangs and prints invalid answers for some prompts: the run continues, these
//! completions have no score, alarms report the failures, and a resumed run has the same bits.

use crate::support::runs::{arguments, directory, files, good, metrics, rollouts, same};
use lockstep::wire::file::GroupFile;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// The program fails for the prompts "x", "sun" and "moon", in a different way for each.
const PROGRAM: &str = r#"while read -r line; do case "$line" in
  *'"prompts":["x '*) echo 'cannot judge x' >&2; exit 3;;
  *'"prompts":["sun '*) sleep 60;;
  *'"prompts":["moon '*) echo 'what?';;
  *) echo '{"rewards": [1, 0]}';;
esac; done
"#;

#[test]
fn a_run_continues_if_a_reward_crashes_hangs_or_answers_nonsense() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("serve.sh"), PROGRAM).unwrap();
    let reward = "reward_funcs=[{kind = \"command\", command = \"sh serve.sh\", by_group = true, timeout_s = 2, \
                  max_restarts = 100}]";
    let set = [reward, "reward_errors=continue", "num_generations_eval=2", "record_rollouts=true"];
    let output = good(root, &arguments("train", "whole", &set));
    let whole = root.join("whole");

    // Each kind of failure raises a separate alarm with its reason.
    let lines: Vec<Value> = metrics(&whole).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (id, words) in [
        (
            "reward_crashed",
            "the program exited (exit status: 3); the last lines of its standard error:\n  | cannot judge x",
        ),
        ("reward_timed_out", "no answer within 2 s; the program was killed"),
        ("reward_bad_answer", "it begins: what?"),
    ] {
        let alarm = lines.iter().map(|line| &line["alarm"]).find(|alarm| alarm["id"] == id);
        let alarm = alarm.unwrap_or_else(|| panic!("{id}: {}", output.err));
        assert!(alarm["subject"] == "serve" && alarm["evidence"].as_str().unwrap().contains(words), "{alarm}");
        assert!(
            output.err.contains(&format!("warning: alarm {id} (serve) since step {}", alarm["since"])),
            "{}",
            output.err
        );
    }

    // The record marks each completion without a score, and no other completion.
    let mut counts = BTreeMap::new();
    for line in rollouts(&whole) {
        let problems = line["problems"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(problems.len(), usize::from(line["rewards"][0].is_null()), "{line}");
        for problem in problems {
            *counts.entry(problem.to_string()).or_insert(0) += 1;
        }
    }
    let kinds = ["crashed", "timed_out", "bad_answer"];
    let words = ["cannot judge x", "no answer within 2 s", "it begins: what?"];
    for (kind, words) in kinds.iter().zip(words) {
        let named = |text: &&String| text.contains(&format!("\"kind\":\"{kind}\"")) && text.contains(words);
        let texts: Vec<&String> = counts.keys().filter(named).collect();
        assert!(!texts.is_empty() && texts.iter().all(|text| text.contains("\"reward\":\"serve\"")), "{counts:?}");
    }

    // A replay of the recorded file reports the same failures, from the binary file and from JSON lines.
    let text: String = rollouts(&whole).iter().map(|line| format!("{line}\n")).collect();
    fs::write(root.join("lines.jsonl"), text).unwrap();
    let kept = |run: &str| -> Vec<[Value; 3]> {
        let keys = ["problems", "lineage", "versions"];
        rollouts(&root.join(run)).iter().map(|line| keys.map(|key| line[key].clone())).collect()
    };
    for (file, out) in [("whole/rollouts.bin", "replayed"), ("lines.jsonl", "replayed lines")] {
        let own = ["num_generations=2", "max_completion_length=6", "per_device_train_batch_size=4", "max_steps=12"];
        let mut all =
            vec!["train", "--model", "model", "--replay", file, "--out", out, "--set", "record_rollouts=true"];
        for pair in &own {
            all.extend(["--set", *pair]);
        }
        good(root, &all);
        assert!(kept("whole") == kept(out) && kept(out).len() == 48, "{file}");
    }
    let records = |run: &str| GroupFile::open(&root.join(run).join("rollouts.bin")).unwrap();
    let problems = |run: &str| records(run).groups().map(|group| group.unwrap().problems).collect::<Vec<_>>();
    assert_eq!(problems("whole"), problems("replayed"));

    // Groups that failed have no score, and all other groups have scores.
    let prompts: Vec<(Value, Value)> =
        rollouts(&whole).into_iter().map(|line| (line["prompt_ids"].clone(), line["rewards"][0].clone())).collect();
    let unscored = |ids: &Value| prompts.iter().filter(|(prompt, _)| prompt == ids).all(|(_, score)| score.is_null());
    let scored = |ids: &Value| prompts.iter().filter(|(prompt, _)| prompt == ids).all(|(_, score)| score.is_number());
    let all: BTreeMap<String, &Value> = prompts.iter().map(|(prompt, _)| (prompt.to_string(), prompt)).collect();
    assert_eq!(all.len(), 10, "every prompt must have been drawn");
    assert_eq!(
        (all.values().filter(|ids| unscored(ids)).count(), all.values().filter(|ids| scored(ids)).count()),
        (3, 7)
    );
    let rewards = lines.iter().filter_map(|line| line["rewards/serve/mean"].as_f64());
    assert!(
        rewards.clone().count() > 0 && rewards.into_iter().all(|mean| mean == 0.5),
        "a failure must not count as 0"
    );

    good(root, &arguments("train", "cut", &set));
    good(root, &["train", "--resume", "cut/checkpoints/step-000004"]);
    same(&whole, &root.join("cut"));
    assert!(files(&whole).keys().any(|name| name.ends_with("run_state.json")));
}
