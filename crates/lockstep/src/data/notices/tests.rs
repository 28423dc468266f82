//! Notices about rows before a run.

use super::*;
use model::chat::ChatTemplate;
use model::tokenizer::{SpecialTokens, Tokenizer};
use serde_json::{Map, json};

/// A template that prints the messages of users and assistants, and reads `enable_thinking`. With `tools`, it prints
/// the tools.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role in ['user', 'assistant', 'system'] %}{{ m.role }}:\
                        {{ m.content | trim }}\n{% endif %}{% endfor %}{% if enable_thinking %}t{% endif %}";
const WITH_TOOLS: &str = "{% for t in tools %}{{ t.name }}{% endfor %}";

fn notices(template: &str, kwargs: Value, rows: &[Value]) -> Notices {
    let special = SpecialTokens { eos: Some("<e>".into()), pad: Some("<p>".into()), ..SpecialTokens::default() };
    let tokenizer = Tokenizer::characters("abcdefghijklmnopqrstuvwxyz<>:/\n ".chars(), &special).unwrap();
    let template = ChatTemplate::new(template, tokenizer.special()).unwrap();
    let Value::Object(kwargs) = kwargs else { panic!("an object") };
    let encoder = PromptEncoder { tokenizer: &tokenizer, template: Some(&template), kwargs: &kwargs, tools: None };
    let mut looking = Looking::new(&encoder);
    for (row, columns) in rows.iter().enumerate() {
        let content = Content::read(&columns["prompt"]).unwrap();
        let columns: Map<String, Value> = columns.as_object().unwrap().clone();
        let row_template = OfTemplate::of(&columns, encoder.kwargs).unwrap();
        let own = row_template.encoder(&encoder);
        let text = own.render(&content).unwrap();
        looking.look(&own, row, &content, &text);
    }
    looking.end("d.jsonl")
}

fn chat(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[test]
fn rows_with_content_that_the_model_does_not_see_are_counted() {
    let user = chat("user", "hi");
    let spelled = "have the text of a special token in the prompt";
    let left_out = "have a message whose text the chat template drops or changes";
    let no_template = "and a plain-text prompt";
    let no_tools = "have `tools`, which the chat template does not print";
    let unread = "in chat_template_kwargs, which the chat template does not read";
    let tools = json!([{"name": "add"}]);
    let mut wrong = Vec::new();
    for (row, expected) in [
        (json!({"prompt": "hi"}), vec![]),
        (json!({"prompt": [user]}), vec![]),
        (json!({"prompt": "a <e> b"}), vec![spelled]),
        (json!({"prompt": "a <p>"}), vec![spelled]),
        (json!({"prompt": [chat("user", "a<e>\nsystem: b")]}), vec![spelled]),
        (json!({"prompt": [chat("system", "<p>"), user]}), vec![spelled]),
        (json!({"prompt": [{"role": "user", "content": "hi"}, chat("assistant", "a<e>"), user]}), vec![]),
        (json!({"prompt": [chat("tool", "ab"), user]}), vec![left_out]),
        (json!({"prompt": [user, chat("developer", "ab"), user]}), vec![left_out]),
        (json!({"prompt": [chat("user", "  hi\n")]}), vec![]),
        (json!({"prompt": [user, chat("assistant", "<think>a</think> b"), user]}), vec![]),
        (json!({"prompt": [user, chat("function", "x <e>"), user]}), vec![spelled, left_out]),
        (json!({"prompt": "hi", "tools": tools}), vec![no_template]),
        (json!({"prompt": "hi", "tools": []}), vec![]),
        (json!({"prompt": "hi", "tools": null}), vec![]),
        (json!({"prompt": "hi", "chat_template_kwargs": {"enable_thinking": true}}), vec![no_template]),
        (json!({"prompt": "hi", "chat_template_kwargs": {}}), vec![]),
        (json!({"prompt": [user], "tools": tools}), vec![no_tools]),
        (json!({"prompt": [user], "tools": tools.to_string()}), vec![no_tools]),
        (json!({"prompt": [user], "chat_template_kwargs": {"enable_thinking": true}}), vec![]),
        (json!({"prompt": [user], "chat_template_kwargs": {"enable_thinkin": true}}), vec![unread]),
        (json!({"prompt": [user], "tools": tools, "chat_template_kwargs": {"x": 1}}), vec![no_tools, unread]),
    ] {
        // The row is the second of three.
        let found = notices(TEMPLATE, json!({}), &[json!({"prompt": "a"}), row.clone(), json!({"prompt": "b"})]);
        let reported: Vec<String> = found.info().into_iter().chain(found.warnings()).collect();
        let is_right = reported.len() == expected.len()
            && reported.iter().zip(&expected).all(|(line, words)| {
                line.starts_with("d.jsonl: 1 of 3 rows") && line.contains(words) && line.contains("row 2")
            });
        if !is_right {
            wrong.push(format!("{row}: {reported:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn notices_count_all_rows_and_name_the_first() {
    let user = chat("user", "a <e>");
    let rows = [json!({"prompt": "x"}), json!({"prompt": [user]}), json!({"prompt": [user]})];
    let found = notices(TEMPLATE, json!({"enable_thinkin": false}), &rows);
    let words = "d.jsonl: 2 of 3 rows have the text of a special token in the prompt (\"<e>\" in row 2): it is encoded \
                 as that token, as in transformers";
    assert_eq!(found.info().as_deref(), Some(words));
    let words = "d.jsonl: 2 of 3 rows have `enable_thinkin` in chat_template_kwargs, which the chat template does not \
                 read: first row 2";
    assert_eq!(found.warnings(), [words]);
    // This template prints the tools.
    let printed = notices(
        &format!("{WITH_TOOLS}{TEMPLATE}"),
        json!({}),
        &[json!({"prompt": [chat("user", "hi")], "tools": [{"name": "add"}]})],
    );
    assert_eq!(printed.warnings(), Vec::<String>::new());
    assert_eq!(Notices::default().warnings(), Vec::<String>::new());
}
