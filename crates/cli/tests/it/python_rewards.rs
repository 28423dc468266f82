//! Functions in a Python file as rewards, including process rewards: they give the bits of the equivalent built-in
//! reward, from any directory in which the run is resumed.

use crate::support::runs::{arguments, directory, good, of_lines, same, same_but_lineage};
use crate::support::{lockstep, refused};
use std::fs;

const REWARDS: &str = r#"
import asyncio
from places import place

def unique_chars(completions, log_metric, **kwargs):
    log_metric("longest", max(map(len, completions)))
    return [len(set(text)) for text in completions]

async def unique_chars_later(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [len(set(text)) for text in completions]

def vowels(completions, **kwargs):
    steps = [[{"end": i + 1, "score": place(c, i)} for i, c in enumerate(text)] for text in completions]
    # A list without a score would be no score, and not 0.
    return [own or [{"end": 0, "score": 0.0}] for own in steps]

def vowels_of_tokens(completions, completion_ids, **kwargs):
    # A letter is a token; the token that ends a completion is not a letter.
    scores = [[place(c, i) for i, c in enumerate(text)] or [0.0] for text in completions]
    return [own + [None] * (len(ids) - len(own)) for own, ids in zip(scores, completion_ids)]

def knows_no_moon(prompts, completions, **kwargs):
    return [{"moon ": 1}[prompt] if "moon" in prompt else 0.0 for prompt in prompts if prompt != "moon "]
"#;

fn start() -> Option<tempfile::TempDir> {
    testing::program("python3")?;
    let dir = directory();
    fs::create_dir(dir.path().join("configs")).unwrap();
    fs::write(dir.path().join("configs/rewards.py"), REWARDS).unwrap();
    let beside = "def place(letter, i):\n    return float(i + 1) if letter in 'aeiou' else 0.0\n";
    fs::write(dir.path().join("configs/places.py"), beside).unwrap();
    Some(dir)
}

#[test]
fn a_python_function_matches_the_built_in_reward_and_resumes_from_anywhere() {
    let Some(dir) = start() else { return };
    let root = dir.path();
    let own = |function: &str| {
        format!("reward_funcs=[{{kind = \"python\", python = \"configs/rewards.py:{function}\", name = \"r\"}}]")
    };
    good(root, &arguments("train", "built in", &["reward_funcs=[{kind = \"unique_chars\", name = \"r\"}]"]));
    for function in ["unique_chars", "unique_chars_later"] {
        good(root, &arguments("train", function, &[&own(function)]));
    }
    // One of the functions also logs a metric.
    same_but_lineage(&root.join("built in"), &root.join("unique_chars_later"));
    assert!(of_lines(&root.join("unique_chars"), "rewards/r/longest").iter().all(|&longest| longest > 0.0));
    let of = |run: &str| of_lines(&root.join(run), "rewards/r/mean");
    assert_eq!(of("unique_chars"), of("built in"));

    // The file's path is relative to the configuration file, and the run records it.
    let toml = "model_name_or_path = \"../model\"\ndataset_name = \"../d.jsonl\"\nmax_steps = 12\nsave_steps = 2\n\
                num_generations = 2\nper_device_train_batch_size = 4\nmax_completion_length = 6\n\
                learning_rate = 0.01\nlogging_steps = 1\nreward_funcs = [\"python:rewards.py:unique_chars\"]\n";
    fs::write(root.join("configs/run.toml"), toml).unwrap();
    for out in ["whole", "cut"] {
        good(root, &["train", "configs/run.toml", "--out", out]);
    }
    let elsewhere = root.join("configs");
    good(&elsewhere, &["train", "--resume", "../cut/checkpoints/step-000002"]);
    same(&root.join("whole"), &root.join("cut"));
    assert_eq!(of_lines(&root.join("cut"), "rewards/unique_chars/mean").len(), 12, "the metric must have TRL's name");
}

#[test]
fn a_python_function_may_score_steps() {
    let Some(dir) = start() else { return };
    let root = dir.path();
    for function in ["vowels", "vowels_of_tokens"] {
        let reward = format!("reward_funcs=[\"python:configs/rewards.py:{function}\"]");
        let named = format!("reward_funcs=[{{kind=\"python\", python=\"configs/rewards.py:{function}\", name=\"r\"}}]");
        good(root, &arguments("train", &format!("ppo {function}"), &[&named, "algorithm=ppo", "num_generations=1"]));
        good(root, &arguments("train", function, &[&reward, "process_rewards=per_step", "max_steps=2"]));
    }
    same_but_lineage(&root.join("ppo vowels"), &root.join("ppo vowels_of_tokens"));
    let mean = |run: &str| of_lines(&root.join(run), "rewards/r/mean");
    assert!(mean("ppo vowels").iter().any(|&mean| mean > 0.0));
}

#[test]
fn functions_run_without_a_model_and_errors_are_reported() {
    let Some(dir) = start() else { return };
    let root = dir.path();
    let rows = "{\"prompt\": \"sun \", \"completion\": \"aab\"}\n{\"prompt\": \"moon \", \"completion\": \"b\"}\n";
    fs::write(root.join("c.jsonl"), rows).unwrap();
    let try_it = |function: &str| {
        let reward = format!("python:configs/rewards.py:{function}");
        lockstep(root, &["score-rewards", "--input", "c.jsonl", "--reward", &reward])
    };
    let output = try_it("unique_chars");
    assert!(output.code == Some(0) && output.out.contains("unique_chars"), "{}{}", output.out, output.err);
    let output = try_it("knows_no_moon");
    assert!(output.out.contains("gave 1 scores for 2 completions"), "{}{}", output.out, output.err);
    let words = ["no function `unique_char`", "unique_chars, unique_chars_later"];
    refused(
        root,
        &["score-rewards", "--input", "c.jsonl", "--reward", "python:configs/rewards.py:unique_char"],
        &words,
    );
    let set = ["reward_funcs=[\"python:none.py:f\"]"];
    refused(root, &arguments("train", "never", &set), &["reward `python`", "the file none.py does not exist"]);
}
