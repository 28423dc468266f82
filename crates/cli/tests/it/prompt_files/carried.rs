//! Every model that a run writes has all listed files, so that a later run renders the same prompts.

use super::*;
use crate::support::runs::of_lines;

/// Asserts that the listed files in a directory that a run has written equal those of the model.
#[track_caller]
fn has_all(model: &Path, written: &Path, is_adapter: bool) {
    let copied = FILES.iter().map(|(name, _)| *name).chain(OTHERS[..5].iter().copied()).chain(["tokenizer.json"]);
    for name in copied {
        let expected = !is_adapter || name != "generation_config.json";
        let (own, found) = (fs::read(model.join(name)).unwrap(), fs::read(written.join(name)).ok());
        assert_eq!(found, expected.then_some(own), "{}/{name}", written.display());
    }
    for name in OTHERS[5..].iter().chain(&["additional_chat_templates/notes.txt"]) {
        assert!(!written.join(name).exists(), "{}/{name}", written.display());
    }
}

#[test]
fn checkpoints_results_and_merged_models_have_all_listed_files() {
    let dir = conversations();
    let (root, model) = (dir.path(), dir.path().join("model"));
    for name in &OTHERS {
        fs::write(model.join(name), "{}").unwrap();
    }
    fs::write(model.join("additional_chat_templates/notes.txt"), "mine").unwrap();
    for (kind, command, own) in KINDS {
        good(root, &arguments(command, kind, &keys(command, own)));
        for written in ["checkpoints/step-000002", "model"] {
            has_all(&model, &root.join(kind).join(written), kind == "lora");
        }
    }
    has_all(&model, &root.join("ppo/checkpoints/step-000002/value_model"), false);
    good(root, &["merge", "--model", "model", "--adapter", "lora/model", "--out", "merged"]);
    has_all(&model, &root.join("merged"), false);
    good(root, &["init", "--config", "model/config.json", "--tokenizer", "model", "--out", "new"]);
    has_all(&model, &root.join("new"), false);
    good(root, &["fork", "grpo", "--at", "1", "--out", "fork"]);
    has_all(&model, &root.join("fork/checkpoints/step-000001"), false);
    // The best model comes from a checkpoint that is not the last.
    let best = ["eval_strategy=steps", "eval_steps=1", "save_steps=1", "load_best_model_at_end=true"];
    let best = [&best[..], &["metric_for_best_model=loss"]].concat();
    good(root, &arguments("sft", "best", &[&keys("sft", &[])[..], &best].concat()));
    has_all(&model, &root.join("best/model"), false);
}

/// Rows with tools use the template `tool_use`, with the original model and with the result.
#[test]
fn a_result_renders_tools_like_the_original_model() {
    let dir = conversations();
    let root = dir.path();
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let messages = json!([{"role": "user", "content": "ab"}, {"role": "assistant", "content": "b."}]);
    fs::write(root.join("t.jsonl"), json!({"messages": messages, "tools": [tool]}).to_string() + "\n").unwrap();
    let tokens = |model: &str, out: &str| {
        let set = ["dataset_name=t.jsonl", "max_steps=1", "eval_strategy=no", "logging_steps=1"];
        let set = [&set[..], &["per_device_train_batch_size=1"]].concat();
        let mut all = arguments("sft", out, &set);
        all[2] = model;
        good(root, &all);
        of_lines(&root.join(out), "num_tokens")
    };
    let from_model = tokens("model", "one");
    assert_eq!((from_model.len(), tokens("one/model", "two")), (1, from_model.clone()));
    fs::remove_dir_all(root.join("model/additional_chat_templates")).unwrap();
    assert_ne!(tokens("model", "three"), from_model, "the template for tools must change the prompt");
}
