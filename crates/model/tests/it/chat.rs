//! Chat templates and tokenizers against transformers: `conformance/chat_fixtures.py` computed the expected texts and
//! ids.
//!
//! The templates and tokenizers are in `../shared` (or `LOCKSTEP_SHARED`), not in this repository.

use model::chat::PromptTime;
use model::io::ModelFiles;
use model::{Chat, ChatTemplate, SpecialTokens, TextStream, Tokenizer};
use serde_json::Value;
use std::collections::HashMap;

fn fixtures() -> Value {
    serde_json::from_str(include_str!("../fixtures/chat.json")).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn rendered_chats_and_ids_match_transformers() {
    let Some(shared) = testing::shared("") else { return };
    let fixtures = fixtures();
    let tokenizer = Tokenizer::load(&shared.join("models/qwen2.5-tokenizer")).unwrap();
    let mut templates = HashMap::new();
    let (mut compared, mut refused) = (0, 0);
    for case in fixtures["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let template = templates.entry(name).or_insert_with(|| {
            let source = std::fs::read_to_string(shared.join("data/chat_templates").join(name)).unwrap();
            ChatTemplate::new(&source, tokenizer.special()).unwrap()
        });
        let conversation = case["conversation"].as_str().unwrap();
        let chat = Chat {
            messages: fixtures["conversations"][conversation].as_array().unwrap(),
            tools: case["tools"].as_array().map(Vec::as_slice),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            continue_final_message: case["continue_final_message"].as_bool().unwrap(),
            kwargs: case["kwargs"].as_object(),
        };
        let rendered = template.render(&chat);
        let what = format!("{name}, {conversation:?}, {chat:?}");
        match case["text"].as_str() {
            Some(text) => {
                let rendered = rendered.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(rendered, text, "{what}");
                if !case["ids"].is_null() {
                    assert_eq!(tokenizer.encode_rendered(&rendered).unwrap(), ids(&case["ids"]), "{what}");
                }
                compared += 1;
            }
            None => {
                assert!(rendered.is_err(), "{what}: rendered, but transformers raises: {}", case["error"]);
                refused += 1;
            }
        }
    }
    assert!(compared > 450 && refused > 8, "{compared} compared, {refused} refused");
}

#[test]
fn encoded_ids_and_decoded_texts_match_transformers() {
    let Some(shared) = testing::shared("") else { return };
    let fixtures = fixtures();
    for (name, dir) in [("qwen2.5", "qwen2.5-tokenizer"), ("stories260k", "stories260k")] {
        let tokenizer = Tokenizer::load(&shared.join("models").join(dir)).unwrap();
        for case in fixtures[name].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected = ids(&case["ids"]);
            // The only difference: `encode` adds no second start token to a text that begins with one.
            match tokenizer.bos_id() {
                Some(bos) if text.starts_with("<s>") => {
                    assert_eq!(expected[..2], [bos, bos]);
                    assert_eq!(tokenizer.encode(text).unwrap(), expected[1..], "{text:?}");
                }
                _ => assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}"),
            }
            if !case["plain_ids"].is_null() {
                assert_eq!(tokenizer.encode_rendered(text).unwrap(), ids(&case["plain_ids"]), "{text:?}");
            }
            assert_eq!(tokenizer.decode(&expected, false).unwrap(), case["decoded"].as_str().unwrap());
            assert_eq!(tokenizer.decode(&expected, true).unwrap(), case["skipped"].as_str().unwrap());
        }
    }
}

#[test]
fn streamed_text_equals_the_decoded_text() {
    let Some(shared) = testing::shared("") else { return };
    let fixtures = fixtures();
    for (name, dir) in [("qwen2.5", "qwen2.5-tokenizer"), ("stories260k", "stories260k")] {
        let tokenizer = Tokenizer::load(&shared.join("models").join(dir)).unwrap();
        for case in fixtures[name].as_array().unwrap() {
            for skip in [false, true] {
                // The ids are also truncated, possibly within a character; `finish` then returns the incomplete
                // character.
                let all = ids(&case["ids"]);
                for cut in [all.len(), all.len() / 2, all.len() / 3] {
                    let mut stream = TextStream::new(skip);
                    let mut text = String::new();
                    for &id in &all[..cut] {
                        text += &stream.push(&tokenizer, id).unwrap();
                    }
                    text += &stream.finish(&tokenizer).unwrap();
                    assert_eq!(text, tokenizer.decode(&all[..cut], skip).unwrap(), "{}", case["text"]);
                }
            }
        }
    }
}

#[test]
fn special_tokens_and_templates_are_read_from_directories() {
    let Some(shared) = testing::shared("") else { return };
    let qwen = shared.join("models/qwen2.5-tokenizer");
    let tokenizer = Tokenizer::load(&qwen).unwrap();
    let token = |t: &str| Some(t.to_owned());
    let special = SpecialTokens { bos: None, eos: token("<|im_end|>"), pad: token("<|endoftext|>"), unk: None };
    assert_eq!(tokenizer.special(), &special);
    assert_eq!(
        (tokenizer.eos_id(), tokenizer.pad_id(), tokenizer.vocab_size()),
        (Some(151_645), Some(151_643), 151_665)
    );
    let files = ModelFiles::read(&qwen).unwrap();
    let template = ChatTemplate::of(&files, tokenizer.special(), PromptTime(0)).unwrap().expect("it has one");
    let messages = [serde_json::json!({"role": "user", "content": "hi"})];
    let text = template.render(&Chat { messages: &messages, ..Chat::default() }).unwrap();
    assert!(text.contains("<|im_start|>user\nhi<|im_end|>"), "{text}");

    let stories = Tokenizer::load(&shared.join("models/stories260k")).unwrap();
    assert_eq!((stories.bos_id(), stories.eos_id(), stories.vocab_size()), (Some(1), Some(2), 512));
}
