//! Process rewards from a program: steps that end at characters or tokens give equal results, a single step at the end
//! equals a reward of the whole completion, and GRPO either sums the steps or compares them step by step.

use crate::support::runs::{arguments, directory, good, metrics, of_lines, same_but_lineage};
use crate::support::{RunOutput, refused};
use std::fs;
use std::path::Path;

/// The reward of a vowel is its position; the program's argument selects how the steps are reported.
const PROGRAM: &str = r#"
import json, sys
for line in sys.stdin:
    batch = json.loads(line)
    rewards = []
    for text, ids in zip(batch["completions"], batch["completion_ids"]):
        # A letter is a token; the token that ends a completion is not a letter.
        scores = [float(place + 1) if letter in "aeiou" else 0.0 for place, letter in enumerate(text)]
        rewards.append({
            "whole": lambda: sum(scores),
            "end": lambda: [{"token": len(ids) - 1, "score": sum(scores)}],
            # A list without a score would be no score, and not 0.
            "chars": lambda: [{"end": place + 1, "score": score} for place, score in enumerate(scores)]
            or [{"end": 0, "score": 0.0}],
            "tokens": lambda: (scores or [0.0]) + [None] * (len(ids) - max(len(text), 1)),
            "beyond": lambda: [{"token": len(ids), "score": 1}] if "e" in text else 1.0,
        }[sys.argv[1]]())
    print(json.dumps({"rewards": rewards}), flush=True)
"#;

fn train(root: &Path, out: &str, way: &str, set: &[&str]) -> RunOutput {
    let reward = format!("reward_funcs=[{{kind = \"command\", name = \"r\", command = \"python3 reward.py {way}\"}}]");
    // Rollouts are not recorded, because they contain the step scores, which differ between equal runs.
    good(root, &arguments("train", out, &[&[&*reward], set].concat()))
}

fn start() -> Option<tempfile::TempDir> {
    testing::program("python3")?;
    let dir = directory();
    fs::write(dir.path().join("reward.py"), PROGRAM).unwrap();
    Some(dir)
}

#[test]
fn ppo_assigns_step_rewards_to_their_tokens() {
    let Some(dir) = start() else { return };
    let root = dir.path();
    let ppo = ["algorithm=ppo", "num_generations=1"];
    for way in ["whole", "end", "chars", "tokens"] {
        train(root, way, way, &ppo);
    }
    same_but_lineage(&root.join("whole"), &root.join("end"));
    same_but_lineage(&root.join("chars"), &root.join("tokens"));
    let values = |run: &str, name: &str| of_lines(&root.join(run), name);
    assert_eq!(
        values("chars", "rewards/r/mean")[0],
        values("whole", "rewards/r/mean")[0],
        "the logged reward must be the sum of the steps"
    );
    assert!(
        values("chars", "loss/value_avg") != values("whole", "loss/value_avg"),
        "step rewards must change the value targets"
    );
}

#[test]
fn grpo_sums_step_rewards_or_compares_them_per_step() {
    let Some(dir) = start() else { return };
    let root = dir.path();
    train(root, "whole", "whole", &[]);
    train(root, "sum", "chars", &[]);
    same_but_lineage(&root.join("whole"), &root.join("sum"));
    train(root, "steps", "tokens", &["process_rewards=per_step"]);
    assert!(metrics(&root.join("steps")) != metrics(&root.join("whole")));
    let refused_words = ["`process_rewards` = \"per_step\"", "`multi_objective_aggregation`"];
    let set = ["process_rewards=per_step", "multi_objective_aggregation=normalize_then_sum"];
    refused(root, &arguments("train", "never", &set), &refused_words);
}

#[test]
fn a_step_beyond_the_completion_is_reported_and_not_scored() {
    let Some(dir) = start() else { return };
    let output = train(dir.path(), "run", "beyond", &["learning_rate=0"]);
    assert!(output.err.contains("alarm reward_bad_answer (r) since step"), "{}", output.err);
    assert!(output.err.contains("a step ends at token"), "{}", output.err);
    let rewards = of_lines(&dir.path().join("run"), "rewards/r/mean");
    assert!(rewards.iter().all(|&reward| reward == 1.0), "an invalid step must not count as 0: {rewards:?}");
}
