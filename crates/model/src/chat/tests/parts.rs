//! Message contents that are lists of parts: accepted and rejected lists.

use super::*;

/// Prints contents as Jinja prints them.
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
/// Supports strings only, like Qwen3's template.
const TEXTS: &str = "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}\
                     {{ '' }}{% endif %}\n{% endfor %}";
/// Supports parts, like templates of models that read images.
const PARTS: &str = "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content | trim }}{% else %}\
                     {% for p in m.content %}{% if p.type == 'text' %}{{ p.text | trim }}{% endif %}{% endfor %}\
                     {% endif %}\n{% endfor %}";
/// Prints the results of tools as JSON, like Llama 3's template.
const JSON: &str = "{% for m in messages %}{{ m.role }}: {% if m.role == 'tool' %}{{ m.content | tojson }}{% else %}\
                    {{ m.content }}{% endif %}\n{% endfor %}";

/// The error for a message with this content; `None` if the template renders it.
fn refusal(template: &str, message: Value) -> Option<String> {
    let template = ChatTemplate::new(template, &special()).unwrap();
    template.render(&Chat { messages: &[message], ..Chat::default() }).err().map(|error| error.to_string())
}

#[test]
fn content_parts_are_refused_unless_the_template_renders_them() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let leaves_out = "the chat template drops the text";
    let list = "the chat template prints the list itself";
    let media = "but the model reads text only";
    let mut wrong = Vec::new();
    for (template, role, content, expected) in [
        (PLAIN, "user", json!("hello"), None),
        (PLAIN, "user", json!([text("hello")]), Some(list)),
        (PLAIN, "system", json!([text("hello")]), Some(list)),
        (PLAIN, "assistant", json!([text("hello"), text("you")]), Some(list)),
        (PLAIN, "user", json!({"type": "text", "text": "hello"}), Some(list)),
        (PLAIN, "user", json!({"text": "hello"}), Some(list)),
        (PLAIN, "user", json!(["hello"]), None),
        (PLAIN, "tool", json!([text("hello")]), None),
        (PLAIN, "user", json!([]), None),
        (PLAIN, "user", json!([text("it's")]), Some(list)),
        (TEXTS, "user", json!("hello"), None),
        (TEXTS, "user", json!([text("hello")]), Some(leaves_out)),
        (TEXTS, "user", json!([text("")]), None),
        (TEXTS, "user", json!([text(" \n")]), None),
        (TEXTS, "tool", json!([text("hello")]), Some(leaves_out)),
        (TEXTS, "user", json!(["hello"]), Some(leaves_out)),
        (TEXTS, "user", json!({"temperature": "21 degrees"}), Some(leaves_out)),
        (TEXTS, "user", json!([{"type": "input_text", "text": "hello"}]), Some(leaves_out)),
        (PARTS, "user", json!([text("hello")]), None),
        (PARTS, "user", json!([text(" hello\n")]), None),
        (PARTS, "user", json!([text("two\n\nlines"), text("you")]), None),
        (PARTS, "user", json!([{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]), None),
        (PARTS, "user", json!([{"type": "text", "text": "hello", "image": null, "image_url": null}]), None),
        (PARTS, "user", json!([{"type": "text", "text": "hello", "id": "p1"}]), None),
        (PARTS, "user", json!([{"type": "input_text", "text": "hello"}]), Some(leaves_out)),
        (PARTS, "assistant", json!([{"type": "thinking", "thinking": "hm"}, text("hello")]), None),
        (PARTS, "assistant", json!([{"type": "tool_use", "name": "add"}]), Some(leaves_out)),
        (PARTS, "user", json!([text("what?"), {"type": "image"}]), Some(media)),
        (PARTS, "user", json!([{"type": "image", "image": "x.png"}]), Some(media)),
        (PARTS, "user", json!([{"type": "image_url", "image_url": {"url": "x"}}]), Some(media)),
        (PARTS, "user", json!([{"type": "input_image", "image_url": "x"}]), Some(media)),
        (PARTS, "user", json!([{"type": "Image"}]), Some(media)),
        (PARTS, "user", json!([{"type": "video", "video": "x.mp4"}]), Some(media)),
        (PARTS, "user", json!([{"type": "audio", "audio": "x.wav"}]), Some(media)),
        (PARTS, "user", json!([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]), Some(media)),
        (PARTS, "user", json!([{"type": "file", "file": {"file_id": "x"}}]), Some(media)),
        (PARTS, "user", json!([{"image": "x.png"}]), Some(media)),
        (PARTS, "user", json!([{"image_url": "x.png", "text": "what?"}]), Some(media)),
        (PARTS, "tool", json!([{"type": "image", "image": "x.png"}]), Some(media)),
        (PLAIN, "user", json!({"type": "image", "image": "x.png"}), Some(media)),
        (JSON, "tool", json!([text("hello \"you\"")]), None),
        (JSON, "tool", json!({"temperature": "21", "where": ["Zürich"]}), None),
        (JSON, "tool", json!({"temperature": 21}), None),
        (JSON, "user", json!([text("hello")]), Some(list)),
    ] {
        let found = refusal(template, json!({"role": role, "content": content}));
        let is_right = match (&found, expected) {
            (None, None) => true,
            (Some(error), Some(words)) => error.contains(words) && error.contains("message 1"),
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{role} {content}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let error = refusal(TEXTS, json!({"role": "user", "content": [text("hello")]})).unwrap();
    let words = "message 1 (user) has a list of parts as its content, but the chat template drops the text \"hello\": \
                 write the content as one string";
    assert_eq!(error, words);
    let error = refusal(PARTS, json!({"role": "user", "content": "a", "images": ["x.png"]})).unwrap();
    assert_eq!(error, "message 1 has a part of type `images`, but the model reads text only");
}

/// The refused message is the second of three.
#[test]
fn a_message_missing_from_the_rendered_text_is_found() {
    let mut wrong = Vec::new();
    for (content, rendered, is_left_out) in [
        ("hello", "user: hello\n", false),
        ("hello", "user: \n", true),
        ("  hello \n", "user: hello", false),
        ("a\n\n b", "user: a b", false),
        ("hello", "user: HELLO", true),
        ("<think>\nhm\n</think>\n\nyes", "assistant: yes", false),
        ("<think>\nhm\n</think>\n\nyes", "assistant: no", true),
        ("<think>hm</think>", "assistant: ", false),
        ("", "user: ", false),
        ("say \"hi\"", "tool: \"say \\\"hi\\\"\"", false),
        ("hello", "", true),
    ] {
        let other = json!({"role": "user", "content": null});
        let messages = [other.clone(), json!({"role": "user", "content": content}), other];
        if message_left_out(&messages, rendered) != is_left_out.then_some(1) {
            wrong.push(format!("{content:?} in {rendered:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_template_reports_the_variables_it_reads() {
    let source = "{% if enable_thinking is defined and enable_thinking %}x{% endif %}{% for t in tools %}{{ t }}\
                  {% endfor %}{% set own = 1 %}{{ own }}{{ messages[0].content }}";
    let template = ChatTemplate::new(source, &special()).unwrap();
    let reads = |name: &str| template.reads(name, false).unwrap();
    assert!(reads("enable_thinking") && reads("tools") && reads("messages"));
    assert!(!reads("own") && !reads("enable_thinkin") && !reads("content"));
}

#[test]
fn empty_values_and_media_column_names_are_recognised() {
    for nothing in
        [json!(null), json!(""), json!([]), json!({}), json!([null, ""]), json!({"bytes": null}), json!(false)]
    {
        assert!(is_nothing(&nothing), "{nothing}");
    }
    for something in [json!("x"), json!(0), json!(true), json!([null, "x"]), json!({"bytes": null, "path": "x"})] {
        assert!(!is_nothing(&something), "{something}");
    }
    assert!(["image", "Images", "pixel_values", "videos", "audio"].iter().all(|name| is_media_column(name)));
    assert!(!["imagery", "file", "prompt", "image_caption"].iter().any(|name| is_media_column(name)));
}
