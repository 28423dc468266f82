//! Tools in a request, and calls in a response.

use super::*;
use crate::openai::tools::{Calls, plain_calls};
use lockstep::service::ToolFormat;

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}})
}

#[test]
fn the_template_gets_tools_unless_the_client_wants_no_call() {
    let server = Running::new();
    let prompt_tokens = |more: Value| {
        let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.good("/v1/chat/completions", &body)["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = prompt_tokens(json!({}));
    assert_eq!(prompt_tokens(json!({"tools": []})), plain);
    assert_eq!(prompt_tokens(json!({"tools": [tool("add"), tool("sub")]})), plain + 6);
    assert_eq!(prompt_tokens(json!({"tools": [tool("add")], "tool_choice": "auto"})), plain + 3);
    assert_eq!(prompt_tokens(json!({"tools": [tool("add")], "tool_choice": "none"})), plain);
}

#[test]
fn earlier_calls_are_rendered_with_arguments_as_an_object() {
    let plain = |message: Value| {
        let mut message = message;
        let has_calls = plain_calls("m", message.as_object_mut().unwrap()).unwrap();
        (has_calls, message)
    };
    let calls = |arguments: Value| {
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        json!({"role": "assistant", "tool_calls": [call]})
    };
    for (given, object) in [
        (json!("{\"a\": [1]}"), json!({"a": [1]})),
        (json!({"a": [1]}), json!({"a": [1]})),
        (json!(""), json!({})),
        (json!(null), json!({})),
    ] {
        assert_eq!(plain(calls(given)), (true, calls(object)));
    }
    for none in [json!([]), json!(null)] {
        assert_eq!(plain(json!({"content": "x", "tool_calls": none})), (false, json!({"content": "x"})));
    }
    // The tiny model's tokenizer refuses the text of a call, so the template has rendered it.
    let server = Running::new();
    let message = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]});
    let reply = server.post("/v1/chat/completions", &json!({"model": "tiny", "messages": [message]}));
    assert!(reply.status == 400 && reply.body.contains("no character '<'"), "{}", reply.body);
}

#[test]
fn calls_of_a_completion_are_numbered() {
    let text = "Well. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>\n\
                <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    let call = |place: usize, name: &str, arguments: &str| {
        json!({"id": format!("call-chatcmpl-1-2-{place}"), "type": "function",
               "function": {"name": name, "arguments": arguments}})
    };
    for (parallel, expected) in
        [(true, vec![call(0, "f", "{\"x\":1}"), call(1, "g", "{}")]), (false, vec![call(0, "f", "{\"x\":1}")])]
    {
        let mut parser = Calls { format: ToolFormat::Hermes, parallel }.parser("chatcmpl-1", 2);
        let mut calls = Vec::new();
        let (before, after) = text.split_at(text.len() / 2);
        let text_outside = parser.push(before, false, &mut calls) + &parser.push(after, true, &mut calls);
        assert_eq!((text_outside.as_str(), calls), ("Well.", expected));
    }
}
