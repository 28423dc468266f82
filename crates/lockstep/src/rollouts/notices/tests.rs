//! Notices about sampling, and about tags that reward functions cannot see.

use super::*;
use crate::config::{Layers, Purpose};
use model::tokenizer::SpecialTokens;
use model::{Head, ModelAssets};
use rewards::Content;
use serde_json::{Map, Value, json};

fn config(set: &[(&str, &str)]) -> Config {
    let required = [("model_name_or_path", "m"), ("dataset_name", "d"), ("reward_funcs", "length:3")];
    let set = required.iter().chain(set).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Layers { purpose: Purpose::Grpo, set, ..Layers::default() }.resolve().unwrap().config
}

/// A model directory whose tokenizer has these special tokens and the end token `<e>`.
fn assets(special: &[&str]) -> ModelAssets {
    let dir = tempfile::tempdir().unwrap();
    let own = SpecialTokens { eos: Some("<e>".into()), pad: Some("<p>".into()), ..SpecialTokens::default() };
    let tokenizer = Tokenizer::characters("abcdefghijklmnopqrstuvwxyz<>/:_ \n".chars(), &own).unwrap();
    tokenizer.save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer_config.json");
    let mut settings: Map<String, Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    settings.insert("additional_special_tokens".into(), json!(special));
    std::fs::write(&path, Value::Object(settings).to_string()).unwrap();
    let model = json!({"model_type": "llama", "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 64});
    std::fs::write(dir.path().join("config.json"), model.to_string()).unwrap();
    ModelAssets::load(dir.path(), Head::Lm, model::chat::PromptTime(0)).unwrap()
}

fn messages(rewards: &Value, special: &[&str], prompts: &[&str], skip_special_tokens: bool) -> Vec<String> {
    let assets = assets(special);
    let reward_funcs = serde_json::from_value(rewards.clone()).unwrap();
    let config = Config { reward_funcs, skip_special_tokens, ..Config::default() };
    let prompt = |text: &&str| {
        let tokens = model::Prompt::new(assets.tokenizer.encode(text).unwrap());
        Arc::new(Prompt { row: 0, tokens, content: Content::from(*text), columns: Map::new() })
    };
    let prompts: Vec<Arc<Prompt>> = prompts.iter().map(prompt).collect();
    unseen_tags(&config, &assets, prompts.iter()).unwrap()
}

#[test]
fn tags_that_rewards_look_for_and_cannot_see_are_named() {
    let file = tempfile::tempdir().unwrap();
    let place = |name: &str, text: &str| {
        let path = file.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let python =
        format!("python:{}:f", place("r.py", "def f(completions):\n    return ['<answer>' in c for c in x]\n"));
    let command = format!("command:python3 {}", place("c.py", "print('</think>')\n"));
    let table = |fields: Value| json!([fields]);
    let (think, answer) = (["<think>", "</think>"], ["<answer>", "</answer>"]);
    let mut wrong = Vec::new();
    let a = &["a"][..];
    for (rewards, special, prompts, expected) in [
        (json!(["think_answer"]), &think[..], a, vec!["looks for <think>, </think>, special tokens"]),
        (json!(["think_answer"]), &answer[..], a, vec!["looks for <answer>, </answer>, special tokens"]),
        (json!(["think_answer"]), &[], a, vec![]),
        (json!(["think_answer"]), &["<tool_call>"], a, vec![]),
        (table(json!({"kind": "think_answer", "think": "reasoning"})), &think, a, vec![]),
        (table(json!({"kind": "think_answer", "think": "reasoning"})), &["<reasoning>"], a, vec!["<reasoning>"]),
        (table(json!({"kind": "think_answer", "think_in_prompt": true})), &think, a, vec!["looks for </think>,"]),
        (json!(["format:<think>.*</think>"]), &think, a, vec!["looks for <think>, </think>"]),
        (json!(["format:\\<think\\>"]), &think, a, vec!["looks for <think>"]),
        (json!(["format:<b>"]), &think, a, vec![]),
        (table(json!({"kind": "format", "pattern": "</answer>$"})), &answer, a, vec!["looks for </answer>"]),
        (json!(["keyword:<think>"]), &think, a, vec!["looks for <think>"]),
        (json!(["length:3"]), &think, a, vec![]),
        (json!(["format:<e>"]), &think, a, vec![]),
        (json!([python]), &answer, a, vec!["reward `f` looks for <answer>"]),
        (json!([python]), &think, a, vec![]),
        (json!([command]), &think, a, vec!["looks for </think>"]),
        (json!(["function:f"]), &think, a, vec!["reward `f` does not see <think>, </think>"]),
        (json!(["function:f"]), &["<start_of_turn>"], a, vec![]),
        (json!(["think_answer", "format:<think>"]), &think, a, vec!["reward `think_answer`", "reward `format`"]),
        // Prompts that end with a tag, whether it is a special token or not.
        (json!(["think_answer"]), &[], &["q <think>\n"], vec!["looks for <think>, but 1 of 1 prompts already end"]),
        (json!(["think_answer"]), &[], &["q <think>", "q"], vec!["1 of 2 prompts already end"]),
        (json!(["think_answer"]), &[], &["<think>\n\n</think>\n\n"], vec!["looks for </think>, but 1 of 1"]),
        (table(json!({"kind": "think_answer", "think_in_prompt": true})), &[], &["q <think>\n"], vec![]),
        (json!(["format:^<think>"]), &[], &["q <think>"], vec!["looks for <think>, but 1 of 1"]),
        (json!(["format:<answer>"]), &[], &["q <think>"], vec![]),
        (json!(["think_answer"]), &[], &["q <think> so"], vec![]),
        (json!(["length:3"]), &[], &["q <think>"], vec![]),
        (json!(["think_answer"]), &think, &["q <think>"], vec!["special tokens", "but 1 of 1 prompts"]),
    ] {
        let found = messages(&rewards, special, prompts, true);
        let is_right = found.len() == expected.len() && found.iter().zip(&expected).all(|(a, b)| a.contains(b));
        if !is_right {
            wrong.push(format!("{rewards}, {special:?}, {prompts:?}: {found:?}, not {expected:?}"));
        }
        // With skip_special_tokens = false, special tokens are visible.
        let shown = messages(&rewards, special, prompts, false);
        if shown.iter().any(|line| line.contains("special tokens")) {
            wrong.push(format!("{rewards} with skip_special_tokens = false: {shown:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let words = "reward `think_answer` looks for <think>, but 1 of 1 prompts already end with it, so the completion \
                 does not contain it: set think_in_prompt = true in the reward's table ({ kind = \"think_answer\", … \
                 })";
    assert_eq!(messages(&json!(["think_answer"]), &[], &["q <think>"], true), [words]);
    let words = "reward `think_answer` looks for <think>, </think>, special tokens that are removed from completions: \
                 set skip_special_tokens = false to keep them";
    assert_eq!(messages(&json!(["think_answer"]), &think, &["q"], true), [words]);
}

#[test]
fn ignored_generation_settings_of_the_model_are_named() {
    let mut wrong = Vec::new();
    for (file, set, expected) in [
        (json!({}), &[][..], None),
        (json!({"eos_token_id": 1, "do_sample": true, "max_new_tokens": 9}), &[], None),
        (json!({"temperature": 1.0, "top_p": 1, "top_k": 0, "repetition_penalty": 1.0}), &[], None),
        (json!({"top_p": null, "suppress_tokens": [], "num_beams": 1, "no_repeat_ngram_size": 0}), &[], None),
        (json!({"top_p": 0.8}), &[], Some("top_p = 0.8")),
        (json!({"top_p": 0.8}), &[("top_p", "0.8")], None),
        (json!({"top_p": 0.8}), &[("top_p", "0.9")], Some("top_p = 0.8")),
        (json!({"temperature": 0.7, "top_k": 20}), &[], Some("temperature = 0.7, top_k = 20")),
        (json!({"temperature": 0.7, "top_k": 20}), &[("temperature", "0.7")], Some("top_k = 20")),
        (json!({"repetition_penalty": 1.05}), &[], Some("repetition_penalty = 1.05")),
        (json!({"min_p": 0.1}), &[], Some("min_p = 0.1")),
        (json!({"suppress_tokens": [3, 4]}), &[], Some("suppress_tokens = [3,4]")),
        (json!({"bad_words_ids": [[3]]}), &[], Some("bad_words_ids = [[3]]")),
        (json!({"no_repeat_ngram_size": 3}), &[], Some("no_repeat_ngram_size = 3")),
        (json!({"min_new_tokens": 5}), &[], Some("min_new_tokens = 5")),
        (json!({"num_beams": 4}), &[], Some("num_beams = 4")),
        (json!({"forced_bos_token_id": 4}), &[], Some("forced_bos_token_id = 4")),
        (json!({"stop_strings": ["x"]}), &[], Some("stop_strings = [\"x\"]")),
        (json!({"guidance_scale": 2.0, "typical_p": 0.9}), &[], Some("typical_p = 0.9, guidance_scale = 2.0")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), file.to_string()).unwrap();
        let found = other_sampling(&config(set), &ModelFiles::read(dir.path()).unwrap()).unwrap();
        let words = expected.map(|expected| {
            format!("ignored in the model's generation_config.json: {expected}; the run's own keys apply")
        });
        if found != words {
            wrong.push(format!("{file}, {set:?}: {found:?}, not {words:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(other_sampling(&config(&[]), &ModelFiles::default()).unwrap(), None);
}
