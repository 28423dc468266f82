//! Bad bodies: each is refused with a status of 400 to 499 that names the field.

use super::*;
use crate::error::ApiError;
use crate::openai::{Endpoint, Wanted};
use proptest::prelude::*;
use std::sync::LazyLock;

#[test]
fn a_bad_field_is_refused_by_name() {
    let server = Running::new();
    let text = |more: Value| ("/v1/completions", json!({"model": "tiny", "prompt": "a"}), more);
    let message = json!([{"role": "user", "content": "a"}]);
    let chat = |more: Value| ("/v1/chat/completions", json!({"model": "tiny", "messages": message}), more);
    let tokens = |more: Value| ("/inference/v1/generate", json!({"token_ids": [1]}), more);
    let table = [
        (text(json!({"model": null})), 400, "model", "GET /v1/models"),
        (text(json!({"model": "other"})), 404, "model", "This server has: tiny"),
        (text(json!({"prompt": null})), 400, "prompt", "missing"),
        (text(json!({"prompt": 5})), 400, "prompt", "`prompt` is 5: expected a string"),
        (text(json!({"prompt": [1, "a"]})), 400, "prompt", "token ids"),
        (text(json!({"prompt": [1, -1]})), 400, "prompt", "token ids"),
        (text(json!({"prompt": []})), 400, "prompt", "0 prompts"),
        (text(json!({"prompt": [40]})), 400, "prompt", "token id 40"),
        (text(json!({"prompt": "A"})), 400, "prompt", "no character 'A'"),
        (text(json!({"max_tokens": 0})), 400, "max_tokens", "`max_tokens` is 0"),
        (text(json!({"max_tokens": 1.5})), 400, "max_tokens", "an integer"),
        (text(json!({"max_tokens": tiny::CONTEXT})), 400, "prompt", "maximum context length is 4096"),
        (text(json!({"logprobs": 21})), 400, "logprobs", "expected 0 to 20"),
        (text(json!({"n": 0})), 400, "n", "expected 1 to"),
        (text(json!({"seed": "x"})), 400, "seed", "64-bit"),
        (text(json!({"top_k": -2})), 400, "top_k", "0 or more"),
        (text(json!({"stop": [1]})), 400, "stop", "list of strings"),
        (text(json!({"temprature": 1})), 400, "temprature", "did you mean `temperature`?"),
        (text(json!({"best_of": 2})), 400, "best_of", "use n"),
        (text(json!({"logit_bias": {"5": 1}})), 400, "logit_bias", "not supported"),
        (text(json!({"presence_penalty": 0.5})), 400, "presence_penalty", "use repetition_penalty"),
        (text(json!({"echo": true, "stream": true})), 400, "echo", "stream"),
        (text(json!({"stream_options": {"include_usage": true}})), 400, "stream_options", "\"stream\": true"),
        (text(json!({"stream": true, "stream_options": {"x": 1}})), 400, "stream_options", "include_usage"),
        (chat(json!({"messages": []})), 400, "messages", "list of messages"),
        (chat(json!({"messages": ["a"]})), 400, "messages[0]", "an object"),
        (chat(json!({"messages": [{"content": "a"}]})), 400, "messages[0].role", "system, user"),
        (chat(json!({"messages": [{"role": "user"}]})), 400, "messages[0].content", "missing"),
        (
            chat(json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})),
            400,
            "messages[0].content[0]",
            "text models",
        ),
        (chat(json!({"max_completion_tokens": 0})), 400, "max_completion_tokens", "1 or more"),
        (chat(json!({"top_logprobs": 2})), 400, "top_logprobs", "\"logprobs\": true"),
        (chat(json!({"tools": {}})), 400, "tools", "a list of tools"),
        (chat(json!({"tools": [{"type": "function"}]})), 400, "tools[0]", "\"name\""),
        (chat(json!({"tools": [{"function": {"name": "f"}}]})), 400, "tools[0]", "\"type\""),
        (chat(json!({"tool_choice": "required"})), 400, "tool_choice", "constrained decoding"),
        (chat(json!({"tool_choice": {"type": "function"}})), 400, "tool_choice", "\"auto\" or \"none\""),
        (chat(json!({"parallel_tool_calls": 1})), 400, "parallel_tool_calls", "true or false"),
        (chat(json!({"functions": [{"name": "f"}]})), 400, "functions", "use tools"),
        (chat(json!({"messages": [{"role": "assistant", "tool_calls": 1}]})), 400, "messages[0].tool_calls", "a list"),
        (
            chat(json!({"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]})),
            400,
            "messages[0].tool_calls[0]",
            "\"name\"",
        ),
        (
            chat(json!({"messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            ]})),
            400,
            "messages[0].tool_calls[0].function.arguments",
            "the JSON of an object",
        ),
        (chat(json!({"response_format": {"type": "json_object"}})), 400, "response_format", "constrained"),
        (tokens(json!({"token_ids": null})), 400, "token_ids", "missing"),
        (tokens(json!({"token_ids": []})), 400, "token_ids", "at least one token"),
        (tokens(json!({"stream": true})), 400, "stream", "/v1/completions"),
        (tokens(json!({"sampling_params": 1})), 400, "sampling_params", "an object"),
        (tokens(json!({"sampling_params": {"max_token": 1}})), 400, "max_token", "`max_tokens`"),
    ];
    for ((path, mut body, more), status, param, words) in table {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post(path, &body);
        let error = reply.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(reply.status == status && error["param"] == param, "{body}: {} {error}", reply.status);
        assert!(message.contains(words), "{body}: {message}");
    }
    // Fields without effect are accepted.
    let harmless = json!({
        "user": "me", "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1, "suffix": null,
        "cache_salt": "x", "top_k": -1, "response_format": {"type": "text"},
    });
    let mut body = json!({"model": "tiny", "prompt": "a"});
    body.as_object_mut().unwrap().extend(harmless.as_object().unwrap().clone());
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    for (body, words) in [("{", "not valid JSON"), ("[]", "a JSON object"), ("\u{0}", "not valid JSON")] {
        let headers = server.host() + "Content-Type: application/json; charset=utf-8\r\n";
        let reply = server.send("POST", "/v1/completions", &headers, body);
        assert!(reply.status == 400 && reply.body.contains(words), "{}", reply.body);
    }
}

/// Values of all JSON types, with numbers at the limits and short nested lists and objects.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..60).prop_map(Value::from),
        Just(json!(u64::MAX)),
        any::<f64>().prop_map(Value::from),
        "[a-z ]{0,6}".prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let key =
            prop_oneof![Just("role"), Just("content"), Just("type"), Just("text"), Just("n"), Just("include_usage")];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.prop_map(str::to_owned), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

const FIELDS: [&str; 30] = [
    "model",
    "prompt",
    "messages",
    "token_ids",
    "sampling_params",
    "stream",
    "stream_options",
    "n",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "logprobs",
    "top_logprobs",
    "echo",
    "stop_token_ids",
    "ignore_eos",
    "repetition_penalty",
    "return_token_ids",
    "chat_template_kwargs",
    "tools",
    "unknown",
    "continue_final_message",
    "add_generation_prompt",
    "skip_special_tokens",
    "response_format",
];

/// Requests that are valid but for a few fields.
fn bodies() -> impl Strategy<Value = (Endpoint, Value)> {
    let endpoint = prop_oneof![Just(Endpoint::Completions), Just(Endpoint::Chat), Just(Endpoint::Generate)];
    let changed = prop::collection::vec((prop::sample::select(FIELDS.to_vec()), values()), 0..4);
    (endpoint, changed).prop_map(|(endpoint, changed)| {
        let mut body = match endpoint {
            Endpoint::Completions => json!({"model": "tiny", "prompt": "ab"}),
            Endpoint::Chat => json!({"model": "tiny", "messages": [{"role": "user", "content": "ab"}]}),
            Endpoint::Generate => json!({"token_ids": [1, 2], "sampling_params": {"max_tokens": 3}}),
        };
        for (name, value) in changed {
            body[name] = value;
        }
        (endpoint, body)
    })
}

/// One service for all cases of the property.
static SERVICE: LazyLock<(tempfile::TempDir, Service)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let service = service(&dir, 60);
    (dir, service)
});

/// Reads and submits a request, and cancels it at once.
fn attempt(endpoint: Endpoint, bytes: &[u8]) -> Result<(), ApiError> {
    let service = &SERVICE.1;
    let wanted = Wanted::read(endpoint, service, bytes)?;
    wanted.submit(service, |_| true).map(drop)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_json_is_accepted_or_refused_with_a_client_error((endpoint, body) in bodies()) {
        if let Err(error) = attempt(endpoint, body.to_string().as_bytes()) {
            prop_assert!(error.status.is_client_error(), "{body}: {error:?}");
            prop_assert!(!error.message.is_empty());
        }
    }

    #[test]
    fn any_bytes_are_refused(
        (endpoint, bytes) in (bodies().prop_map(|body| body.0), prop::collection::vec(any::<u8>(), 0..80))
    ) {
        if let Err(error) = attempt(endpoint, &bytes) {
            prop_assert!(error.status.is_client_error(), "{error:?}");
        }
    }
}
