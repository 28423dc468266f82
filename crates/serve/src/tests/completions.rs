//! The endpoints agree with each other, and a stream with the whole response.

use super::*;

fn base() -> Value {
    json!({
        "model": "tiny", "prompt": "once upon", "max_tokens": 12, "seed": 3, "ignore_eos": true,
        "skip_special_tokens": false,
    })
}

/// `body` with more fields.
fn and(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn models_health_and_metrics_describe_the_server() {
    let server = Running::new();
    let models = server.get("/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("tiny"), &json!(tiny::CONTEXT))
    );
    assert_eq!(server.get("/health").status, 200);
    server.good("/v1/completions", &base());
    let reply = server.get("/metrics");
    let (samples, types) = testing::prometheus::read(&reply.body).unwrap();
    let value = |name: &str| samples.iter().find(|sample| sample.name == name).unwrap().value;
    assert_eq!(value("lockstep_serve_prompts_total"), 1.0);
    assert_eq!(value("lockstep_serve_prompt_tokens_total"), 9.0);
    assert_eq!(value("lockstep_serve_generated_tokens_total"), 12.0);
    assert_eq!(value("lockstep_serve_kv_blocks"), server.service.sizes().kv_cache_blocks as f64);
    assert_eq!(types["lockstep_serve_prompts_total"], "counter");
}

#[test]
fn text_token_ids_and_the_token_endpoint_give_the_same_completion() {
    let server = Running::new();
    let fields = json!({"logprobs": 2, "return_token_ids": true, "n": 2});
    let text = server.good("/v1/completions", &and(base(), fields.clone()));
    let ids = text["choices"][0]["prompt_token_ids"].clone();
    let by_ids = server.good("/v1/completions", &and(base(), and(fields, json!({"prompt": ids}))));
    assert_eq!((&text["choices"], &text["usage"]), (&by_ids["choices"], &by_ids["usage"]));
    let details = json!({"cached_tokens": 0});
    let usage =
        json!({"prompt_tokens": 9, "completion_tokens": 24, "total_tokens": 33, "prompt_tokens_details": details});
    assert_eq!(text["usage"], usage);
    // A longer prompt is found in the prefix cache, in pages of 64 tokens.
    let long = and(base(), json!({"prompt": "a".repeat(150), "max_tokens": 1}));
    let cached = || server.good("/v1/completions", &long)["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!((cached(), cached()), (json!(0), json!(128)));
    let sampling = json!({"max_tokens": 12, "seed": 3, "ignore_eos": true, "logprobs": 1, "n": 2});
    let tokens = server
        .good("/inference/v1/generate", &json!({"token_ids": ids, "sampling_params": sampling, "request_id": "r"}));
    assert_eq!(tokens["request_id"], "r");
    for (text, tokens) in text["choices"].as_array().unwrap().iter().zip(tokens["choices"].as_array().unwrap()) {
        assert_eq!((&text["token_ids"], &text["finish_reason"]), (&tokens["token_ids"], &tokens["finish_reason"]));
        assert_eq!(text["finish_reason"], "length");
        let logprobs = tokens["logprobs"]["content"].as_array().unwrap();
        for ((logged, id), logp) in logprobs
            .iter()
            .zip(tokens["token_ids"].as_array().unwrap())
            .zip(text["logprobs"]["token_logprobs"].as_array().unwrap())
        {
            assert_eq!((&logged["token"], &logged["logprob"]), (&json!(format!("token_id:{id}")), logp));
        }
        let names: Vec<&str> =
            text["logprobs"]["tokens"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        assert_eq!(names.concat(), text["text"].as_str().unwrap());
        let offsets: Vec<usize> = (0..12).map(|i| names[..i].concat().len()).collect();
        assert_eq!(text["logprobs"]["text_offset"], json!(offsets));
        let top = text["logprobs"]["top_logprobs"].as_array().unwrap();
        assert!(top.iter().all(|top| (2..=3).contains(&top.as_object().unwrap().len())), "{top:?}");
    }
    assert_ne!(text["choices"][0]["token_ids"], text["choices"][1]["token_ids"]);
    let named =
        server.good("/v1/completions", &and(base(), json!({"logprobs": 0, "return_tokens_as_token_ids": true})));
    let first = &text["choices"][0]["token_ids"][0];
    assert_eq!(named["choices"][0]["logprobs"]["tokens"][0], format!("token_id:{first}"));
}

/// Joins the chunks of a stream to the choices of a whole response.
fn joined(events: &[Value], is_chat: bool) -> (Vec<Value>, Option<Value>) {
    let mut choices: Vec<Value> = Vec::new();
    let mut usage = None;
    for event in events {
        if event["choices"].as_array().unwrap().is_empty() {
            usage = Some(event["usage"].clone());
        }
        for chunk in event["choices"].as_array().unwrap() {
            let index = chunk["index"].as_u64().unwrap() as usize;
            while choices.len() <= index {
                choices.push(json!({"index": choices.len(), "text": "", "ids": [], "tokens": [], "logps": []}));
            }
            let choice = &mut choices[index];
            let text = if is_chat { &chunk["delta"]["content"] } else { &chunk["text"] };
            choice["text"] = json!(choice["text"].as_str().unwrap().to_owned() + text.as_str().unwrap_or_default());
            let mut extend = |name: &str, values: Vec<Value>| choice[name].as_array_mut().unwrap().extend(values);
            extend("ids", chunk["token_ids"].as_array().cloned().unwrap_or_default());
            let (names, logps) = logged(&chunk["logprobs"]);
            extend("tokens", names);
            extend("logps", logps);
            if !chunk["finish_reason"].is_null() {
                choice["finish_reason"] = chunk["finish_reason"].clone();
            }
        }
    }
    (choices, usage)
}

/// The tokens and log-probabilities in `logprobs` of either endpoint.
fn logged(logprobs: &Value) -> (Vec<Value>, Vec<Value>) {
    match logprobs["content"].as_array() {
        Some(entries) => entries.iter().map(|entry| (entry["token"].clone(), entry["logprob"].clone())).unzip(),
        None => {
            let list = |name: &str| logprobs[name].as_array().cloned().unwrap_or_default();
            (list("tokens"), list("token_logprobs"))
        }
    }
}

#[test]
fn a_stream_has_the_text_log_probabilities_and_usage_of_the_whole_response() {
    let server = Running::new();
    let chat = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "once upon"}], "max_completion_tokens": 40,
        "seed": 4, "n": 2, "logprobs": true, "top_logprobs": 2, "return_token_ids": true, "stop": ["q", "ab"],
    });
    let text = json!({"prompt": ["ab", [3, 4, 5]], "n": 2, "logprobs": 1, "return_token_ids": true, "stop": "q",
                      "max_tokens": 40});
    let text = and(and(base(), text), json!({"ignore_eos": false}));
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/completions", text)] {
        let is_chat = path.contains("chat");
        let whole = server.good(path, &body);
        let streams = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events = server.post(path, &and(body, streams)).events();
        let (choices, usage) = joined(&events, is_chat);
        assert_eq!(usage.as_ref(), Some(&whole["usage"]));
        assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
        let object = if is_chat { "chat.completion.chunk" } else { "text_completion" };
        assert!(events.iter().all(|event| event["object"] == object));
        let all = whole["choices"].as_array().unwrap();
        assert_eq!(all.len(), choices.len());
        for (whole, streamed) in all.iter().zip(&choices) {
            let text = if is_chat { &whole["message"]["content"] } else { &whole["text"] };
            let (tokens, logps) = logged(&whole["logprobs"]);
            let expected = json!({
                "index": whole["index"], "text": text, "ids": whole["token_ids"], "tokens": tokens, "logps": logps,
                "finish_reason": whole["finish_reason"],
            });
            assert_eq!(*streamed, expected);
            assert!(!text.as_str().unwrap().contains('q'), "the text ends before the stop string");
        }
        assert!(all.iter().any(|choice| choice["finish_reason"] == "stop"), "{all:?}");
        let ids = if is_chat { &events[0] } else { &events[0]["choices"][0] };
        assert!(ids["prompt_token_ids"].is_array(), "the first chunk has the prompt");
    }
}

#[test]
fn echo_returns_the_prompt_with_its_log_probabilities() {
    let server = Running::new();
    let plain = server.good("/v1/completions", &and(base(), json!({"logprobs": 1})));
    let echo = server.good("/v1/completions", &and(base(), json!({"logprobs": 1, "echo": true})));
    let (plain, echo) = (&plain["choices"][0], &echo["choices"][0]);
    assert_eq!(echo["text"].as_str().unwrap(), format!("once upon{}", plain["text"].as_str().unwrap()));
    let (tokens, logps) = logged(&echo["logprobs"]);
    let names: String = tokens.iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(names, echo["text"].as_str().unwrap());
    assert!(logps[0].is_null() && logps[1..].iter().all(|logp| logp.as_f64().unwrap() < 0.0), "{logps:?}");
    assert_eq!(logps[9..], logged(&plain["logprobs"]).1);
    // A prompt's token has the log-probability that the sampler gives it.
    let prefix = server.good(
        "/v1/completions",
        &and(base(), json!({"prompt": echo["text"], "max_tokens": 1, "logprobs": 0, "echo": true})),
    );
    assert_eq!(logged(&prefix["choices"][0]["logprobs"]).1[..21], logps);
}

#[test]
fn messages_are_rendered_by_the_template_with_its_options() {
    let server = Running::new();
    let chat = |more: Value| {
        let messages = json!([{"role": "user", "content": "ab"}]);
        let body = json!({"model": "tiny", "messages": messages, "max_tokens": 1, "return_token_ids": true});
        server.good("/v1/chat/completions", &and(body, more))["prompt_token_ids"].clone()
    };
    assert_eq!(chat(json!({})), json!([1, 2, 28]));
    assert_eq!(chat(json!({"add_generation_prompt": false})), json!([1, 2]));
    assert_eq!(chat(json!({"chat_template_kwargs": {"tail": "c"}})), json!([1, 2, 3]));
    assert_eq!(chat(json!({"continue_final_message": true})), json!([1, 2]));
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    let refused = server.post("/v1/chat/completions", &json!({"model": "tiny", "messages": parts}));
    // Parts are joined by a line break, which this vocabulary lacks.
    assert!(refused.status == 400 && refused.body.contains("no character"), "{}", refused.body);
}

#[test]
fn a_client_that_leaves_a_stream_or_a_whole_response_frees_its_pages() {
    let server = Running::new();
    let alone = server.good("/v1/completions", &base());
    for stream in [true, false] {
        let body = long(60, stream).to_string();
        let mut client = server.connect();
        let headers = server.host() + "Content-Type: application/json\r\n";
        let length = body.len();
        let before = server.service.status();
        write!(client, "POST /v1/completions HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}").unwrap();
        testing::wait_until("tokens are generated", || {
            server.service.status().generated_tokens > before.generated_tokens
        });
        if stream {
            let mut first = [0; 200];
            assert!(client.read(&mut first).unwrap() > 0);
        }
        drop(client);
        assert_eq!(server.good("/v1/completions", &base())["choices"], alone["choices"]);
        server.wait_until_idle();
        assert_eq!(server.service.status().cancelled, before.cancelled + 1);
    }
}
