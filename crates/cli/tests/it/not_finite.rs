//! Numbers that are not finite give an error or an alarm, never a score of 0.

use crate::support::runs::{arguments, directory, good};
use crate::support::{lockstep, without_checksum};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Writes NaN into the first element of a tensor.
fn spoil(file: &Path, tensor: &str) {
    let mut bytes = without_checksum(fs::read(file).unwrap());
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let start = 8 + length + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    let nan = if header[tensor]["dtype"] == "BF16" { vec![0xc0, 0x7f] } else { f32::NAN.to_le_bytes().to_vec() };
    bytes[start..start + nan.len()].copy_from_slice(&nan);
    fs::write(file, bytes).unwrap();
}

#[test]
fn nan_in_a_model_is_an_error_that_names_the_model() {
    let dir = directory();
    let root = dir.path();
    let tensor = "model.layers.0.input_layernorm.weight";
    spoil(&root.join("model/model.safetensors"), tensor);
    fs::write(root.join("ids.jsonl"), "{\"prompt_ids\": [1], \"completion_ids\": [2]}\n").unwrap();
    let generate = ["generate", "--model", "model", "--prompt", "ab", "--max-new-tokens", "4"];
    let commands: [(&[&str], &str); 6] = [
        (
            &[
                "eval",
                "--model",
                "model",
                "--dataset",
                "e.jsonl",
                "--reward",
                "unique_chars",
                "--max-completion-length",
                "4",
            ],
            tensor,
        ),
        (&generate, tensor),
        (&[&generate[..], &["--temperature", "0"]].concat(), tensor),
        (&[&generate[..], &["--n", "2", "--json"]].concat(), tensor),
        (&["score", "--model", "model", "--input", "ids.jsonl"], "not finite"),
        (&arguments("sft", "tuned", &["eval_strategy=no"]), tensor),
    ];
    for (arguments, word) in commands {
        let output = lockstep(root, arguments);
        let refused = matches!(output.code, Some(1 | 2)) && output.out.is_empty();
        assert!(refused && output.err.contains("not finite"), "{arguments:?}: {}{}", output.out, output.err);
        assert!(
            output.err.contains(word) && !output.err.contains("Lower learning_rate"),
            "{arguments:?}: {}",
            output.err
        );
    }
}

/// The standard deviation of huge rewards overflows. Dividing by it used to give 0, so the run silently learned
/// nothing.
#[test]
fn rewards_whose_deviation_overflows_raise_an_alarm() {
    let dir = directory();
    let root = dir.path();
    let program = "while read -r line; do echo '{\"rewards\": [1e308, -1e308, 1e308, -1e308]}'; done\n";
    fs::write(root.join("reward.sh"), program).unwrap();
    let set = ["reward_funcs=[\"command:sh reward.sh\"]", "eval_strategy=no"];
    let output = lockstep(root, &arguments("train", "run", &set));
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert!(output.err.contains("not finite") && output.err.contains("rewards"), "{}", output.err);
    // The run does learn from large rewards whose squares are finite.
    fs::write(root.join("reward.sh"), program.replace("308", "100")).unwrap();
    good(root, &arguments("train", "large", &set));
}

/// Finite scores whose sum overflows.
#[test]
fn overflowing_results_are_errors() {
    let dir = directory();
    let root = dir.path();
    let program = "while read -r line; do echo '{\"rewards\": [1e308, -1e308, 1e308, -1e308]}'; done\n";
    fs::write(root.join("reward.sh"), program).unwrap();
    let reward = "reward_funcs=[\"command:sh reward.sh\"]";
    let eval = ["eval", "--model", "model", "--dataset", "e.jsonl", "--n", "2", "--max-completion-length", "2"];
    for json in [&[][..], &["--json"]] {
        let output = lockstep(root, &[&eval[..], json, &["--set", reward]].concat());
        assert!(output.code == Some(1) && output.err.contains("std is NaN"), "{:?} {}", output.code, output.err);
    }
    fs::write(root.join("four.jsonl"), "{\"completion\": \"a\"}\n".repeat(4)).unwrap();
    let output = lockstep(root, &["score-rewards", "--input", "four.jsonl", "--set", reward]);
    assert!(output.code == Some(1) && output.err.contains("overflows"), "{:?} {}", output.code, output.err);
    // A run prints a message for evaluations that overflow, and never chooses one of them as the best. The evaluation
    // after the fourth step is the fifth call of the program.
    let fifth = "n=0\nwhile read -r line; do n=$((n + 1))\n\
        if [ $n = 5 ]; then echo '{\"rewards\": [1e308, -1e308, 1e308, -1e308]}'\n\
                 else echo '{\"rewards\": [1, 0, 1, 0]}'; fi; done\n";
    fs::write(root.join("reward.sh"), fifth).unwrap();
    let set = [reward, "metric_for_best_model=eval_reward_std", "max_steps=4"];
    let output = good(root, &arguments("train", "run", &set)).err;
    assert!(output.contains("of the evaluation is NaN") && output.contains("does not count"), "{output}");
}

/// A non-finite score of a reward model is treated as missing, and raises an alarm.
#[test]
fn a_reward_model_that_returns_nan_raises_an_alarm() {
    let dir = directory();
    let root = dir.path();
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl", "max_steps=1", "save_strategy=no"];
    good(root, &arguments("reward", "scores", &pairs));
    spoil(&root.join("scores/model/model.safetensors"), "score.weight");
    let set = ["reward_funcs=[\"model:scores/model\"]", "eval_strategy=no", "max_steps=4"];
    let output = lockstep(root, &arguments("train", "run", &set));
    assert_eq!(output.code, Some(1), "{}", output.err);
    assert!(
        output.err.contains("not a finite number") && output.err.contains("alarm reward_not_finite"),
        "{}",
        output.err
    );
}
