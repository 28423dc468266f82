//! Formats of tool calls, and their parser.

use super::*;
use crate::chat::{Parsed, ToolCall, ToolFormat, ToolParser};

/// The parts of templates of these families that write tool calls.
const HERMES: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls %}\n<tool_call>\n\
    {\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>\
    {% endfor %}<|im_end|>\n{% endfor %}{% if tools %}<tool_call>{\"name\": <name>}</tool_call>{% endif %}";
const LLAMA: &str = "{% for m in messages %}{% if m.tool_calls %}{% set call = m.tool_calls[0].function %}\
    {\"name\": \"{{ call.name }}\", \"parameters\": {{ call.arguments | tojson }}}<|eot_id|>{% else %}{{ m.content }}\
    {% endif %}{% endfor %}{{ tools | length }}";

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }
}

/// The result of parsing `text` in pieces of `size` characters.
fn parsed(format: ToolFormat, text: &str, size: usize) -> Parsed {
    let mut parser = ToolParser::new(format);
    let mut all = Parsed::default();
    let characters: Vec<char> = text.chars().collect();
    for piece in characters.chunks(size) {
        let Parsed { text, calls } = parser.push(&piece.iter().collect::<String>());
        all.text += &text;
        all.calls.extend(calls);
    }
    let Parsed { text, calls } = parser.finish();
    all.text += &text;
    all.calls.extend(calls);
    all
}

#[track_caller]
fn check(format: ToolFormat, text: &str, expected_text: &str, expected_calls: &[ToolCall]) {
    for size in [1, 2, 3, 7, 1000] {
        let Parsed { text: found, calls } = parsed(format, text, size);
        assert_eq!((found.as_str(), &calls[..]), (expected_text, expected_calls), "{text:?} in pieces of {size}");
    }
}

#[test]
fn the_format_of_a_template_is_found_by_rendering_a_call() {
    let format = |template: &str| ChatTemplate::new(template, &special()).unwrap().tool_format();
    assert_eq!(format(HERMES), Some(ToolFormat::Hermes));
    assert_eq!(format(LLAMA), Some(ToolFormat::Llama3));
    let other = HERMES.replace("<tool_call>", "<call>").replace("</tool_call>", "</call>");
    assert_eq!(format(&other), None, "another tag");
    assert_eq!(format("{% for m in messages %}{{ m.content }}{% endfor %}"), None, "no calls");
    assert_eq!(format("{{ raise_exception('no tools') }}"), None);
    let reads = |template: &str| ChatTemplate::new(template, &special()).unwrap().reads_tools();
    assert!(reads(HERMES) && reads(LLAMA) && !reads("{{ messages[0].content }}"));
}

#[test]
fn real_templates_have_the_formats_of_their_families() {
    let Some(shared) = testing::shared("data/chat_templates") else { return };
    let all = [
        ("qwen2_5", Some(ToolFormat::Hermes)),
        ("qwen3", Some(ToolFormat::Hermes)),
        ("llama3_2", Some(ToolFormat::Llama3)),
        ("llama3", None),
    ];
    for (name, format) in all {
        let source = std::fs::read_to_string(shared.join(format!("{name}.jinja"))).unwrap();
        assert_eq!(ChatTemplate::new(&source, &special()).unwrap().tool_format(), format, "{name}");
    }
}

#[test]
fn hermes_calls_are_found_between_text() {
    let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2.50, \"é\"]}}\n</tool_call>";
    let add = call("add", "{\"a\":1,\"b\":[2.5,\"é\"]}");
    check(ToolFormat::Hermes, one, "", std::slice::from_ref(&add));
    check(ToolFormat::Hermes, &format!("I add.\n\n{one}\n{one}\n"), "I add.", &[add.clone(), add.clone()]);
    check(ToolFormat::Hermes, &format!("{one} then text"), " then text", std::slice::from_ref(&add));
    let unclosed = one.strip_suffix("</tool_call>").unwrap();
    check(ToolFormat::Hermes, unclosed, "", std::slice::from_ref(&add));
    let parameters = one.replace("arguments", "parameters");
    check(ToolFormat::Hermes, &parameters, "", &[add]);
}

#[test]
fn text_without_a_complete_call_stays_text() {
    for text in [
        "a < b, <tool>, <tool_cal",
        "<tool_call>",
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>!",
        "<tool_call>{\"name\": \"f\", \"arguments\": {",
        "</tool_call> \n",
        " \n ",
        "",
    ] {
        check(ToolFormat::Hermes, text, text, &[]);
    }
    let broken = "<tool_call>{<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    check(ToolFormat::Hermes, broken, "<tool_call>{", &[call("f", "{}")]);
    for text in ["Hello {\"name\": 1}", "{\"name\": \"f\", \"parameters\": {}} and more", "{\"a\": 1}", "{", " \n", ""]
    {
        check(ToolFormat::Llama3, text, text, &[]);
    }
}

#[test]
fn llama_calls_are_whole_completions() {
    let one = "{\"name\": \"f\", \"parameters\": {\"x\": \"1\"}}";
    let f = call("f", "{\"x\":\"1\"}");
    check(ToolFormat::Llama3, one, "", std::slice::from_ref(&f));
    check(ToolFormat::Llama3, &format!("<|python_tag|>{one}; {one}\n"), "", &[f.clone(), f.clone()]);
    check(ToolFormat::Llama3, &format!("\n\n{one}"), "", &[f]);
}

/// Text reaches the client as soon as it can no longer belong to a call.
#[test]
fn text_is_not_held_back_longer_than_needed() {
    let mut parser = ToolParser::new(ToolFormat::Hermes);
    let mut text = |piece: &str| parser.push(piece).text;
    assert_eq!([text("a "), text("b<"), text("c <tool"), text("s>")], ["a", " b", "<c", " <tools>"]);
    let mut parser = ToolParser::new(ToolFormat::Llama3);
    assert_eq!((parser.push("Hi").text, parser.push(" {").text), ("Hi".to_owned(), " {".to_owned()));
}
