use super::*;
use serde_json::Value;

fn generate(dir: &Path, more: &[&str]) -> Ran {
    let arguments = [&["generate", "--model", "model", "--max-new-tokens", "20"], more].concat();
    lockstep(dir, &arguments, "")
}

#[test]
fn a_pretrained_model_generates_its_documented_story() {
    let Some(stories) = testing::shared("models/stories260k") else { return };
    let stories = stories.canonicalize().unwrap();
    let arguments = ["generate", "--model", stories.to_str().unwrap(), "--prompt", "Once upon a time"];
    let greedy = ["--temperature", "0", "--max-new-tokens", "120"];
    let text = lockstep(Path::new("."), &[&arguments[..], &greedy].concat(), "").ok();
    let story =
        ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball";
    assert!(text.starts_with(story), "{text}");
}

/// As in transformers, a stop string is also matched across the boundary between prompt and completion.
#[test]
fn a_stop_string_may_begin_with_a_space_or_inside_the_prompt() {
    let Some(stories) = testing::shared("models/stories260k") else { return };
    let stories = stories.canonicalize().unwrap();
    for (stop, tokens) in [(" time", 1), ("a time", 1), (", there", 3), ("no such words", 9)] {
        let base = ["generate", "--model", stories.to_str().unwrap(), "--prompt", "Once upon a", "--json"];
        let greedy = ["--temperature", "0", "--max-new-tokens", "9", "--stop", stop];
        let out = lockstep(Path::new("."), &[&base[..], &greedy].concat(), "").ok();
        let made: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(made["completion_ids"].as_array().unwrap().len(), tokens, "{stop}: {out}");
    }
}

#[test]
fn score_gives_the_log_probabilities_that_generate_recorded() {
    let dir = model();
    let sampled = ["--prompt", "hello", "--n", "3", "--seed", "5", "--top-k", "10", "--json"];
    let out = generate(dir.path(), &sampled).ok();
    assert_eq!(out.lines().count(), 3);
    // `score` reads the output lines of `generate --json`.
    let scored = lockstep(dir.path(), &["score", "--model", "model", "--input", "-"], &out).ok();
    let mut texts = Vec::new();
    for (i, (made, scored)) in out.lines().zip(scored.lines()).enumerate() {
        let made: Value = serde_json::from_str(made).unwrap();
        let scored: Value = serde_json::from_str(scored).unwrap();
        assert_eq!(made["index"], i);
        assert_eq!(made["logprobs"], scored["logprobs"]);
        let ids = made["completion_ids"].as_array().unwrap();
        let stopped = ids.last().is_some_and(|id| id == 2);
        assert_eq!(made["finish_reason"], if stopped { "stop" } else { "length" });
        assert!(stopped || ids.len() == 20);
        texts.push(made["text"].as_str().unwrap().to_owned());
    }
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(generate(dir.path(), &sampled).ok(), out, "an equal seed must give equal completions");
}

#[test]
fn streamed_text_equals_the_whole_text() {
    let dir = model();
    let arguments = ["--prompt", "hello", "--seed", "3"];
    let streamed = generate(dir.path(), &arguments).ok();
    let whole: Value =
        serde_json::from_str(&generate(dir.path(), &[&arguments[..], &["--json"]].concat()).ok()).unwrap();
    assert_eq!(streamed.strip_suffix('\n'), whole["text"].as_str());
}

#[test]
fn a_chat_template_is_used_unless_raw() {
    let dir = model();
    let template = "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}.{{ m.content }}!{% endfor %}{% if \
                    add_generation_prompt %}a.{% endif %}";
    std::fs::write(dir.path().join("model/chat_template.jinja"), template).unwrap();
    let prompt_ids = |arguments: &[&str]| {
        let out = generate(dir.path(), &[arguments, &["--json"]].concat()).ok();
        serde_json::from_str::<Value>(&out).unwrap()["prompt_ids"].clone()
    };
    let chat = prompt_ids(&["--prompt", "hi", "--system", "be"]);
    assert_eq!(chat, prompt_ids(&["--prompt", "<s>s.be!u.hi!a.", "--raw"]));
    assert_ne!(chat, prompt_ids(&["--prompt", "hi", "--raw"]));
}

#[test]
fn flags_out_of_range_are_refused() {
    let dir = model();
    for (arguments, says) in [
        (&["--prompt", "hi", "--temperature", "-1"][..], "--temperature -1"),
        (&["--prompt", "hi", "--top-p", "0"], "--top-p 0"),
        (&["--prompt", "hi", "--n", "0"], "--n 0"),
        (&["--prompt", "hi", "--system", "x"], "--system requires a chat template"),
        (&["--prompt", &"a".repeat(200)], "context of 128"),
        (&["--prompt", "Ä"], "'Ä'"),
    ] {
        let message = generate(dir.path(), arguments).refused();
        assert!(message.contains(says), "{message}");
    }
}
