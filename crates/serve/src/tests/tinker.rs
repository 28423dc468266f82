//! Tinker's API over loopback, with the bytes that the stock client sends.

use super::*;
use crate::tinker::HOLD;
use crate::tinker::proto::{
    BatchedTensor, Chunk, ChunkKind, DType, Datum, EncodedTextChunk, Encoding, ForwardBackwardOutput,
    ForwardBackwardRequest, SampleResponse, Tensor,
};
use lockstep::service::training::rfc3339;
use prost::Message;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::time::Duration;

/// A client with a session and one model.
struct Client<'a> {
    server: &'a Running,
    session: String,
    model: String,
}

impl<'a> Client<'a> {
    fn new(server: &'a Running) -> Client<'a> {
        let opened = server.good("/api/v1/create_session", &json!({"tags": [], "type": "create_session"}));
        let session = opened["session_id"].as_str().unwrap().to_owned();
        let body = json!({"session_id": session, "model_seq_id": 0, "base_model": "tiny", "type": "create_model",
            "lora_config": {"rank": 4, "train_unembed": true, "train_mlp": true, "train_attn": true}});
        let created = server.good("/api/v1/create_model", &body);
        let again = server.good("/api/v1/create_model", &body);
        assert_eq!(created, again, "a request that is repeated has the same id");
        let model = created["model_id"].as_str().unwrap().to_owned();
        assert_eq!(model, format!("{session}:train:0"));
        let client = Client { server, session, model };
        assert_eq!(client.result(&created)["model_id"], client.model);
        client
    }

    /// The response to a request for the result of a promise.
    fn retrieve(&self, promise: &Value) -> (u16, String, Vec<u8>) {
        let body = json!({"request_id": promise["request_id"], "allow_metadata_only": false}).to_string();
        let headers = self.server.host() + "Content-Type: application/json\r\n";
        self.server.send_bytes("POST", "/api/v1/retrieve_future", &headers, body.as_bytes())
    }

    fn result(&self, promise: &Value) -> Value {
        let (status, head, body) = self.retrieve(promise);
        assert!(status == 200 && head.contains("content-type: application/json"), "{head}");
        serde_json::from_slice(&body).unwrap()
    }

    fn message<M: Message + Default>(&self, promise: &Value) -> M {
        let (status, head, body) = self.retrieve(promise);
        let text = || String::from_utf8_lossy(&body).into_owned();
        assert!(status == 200 && head.contains("content-type: application/x-protobuf"), "{head}: {}", text());
        M::decode(&body[..]).unwrap()
    }

    /// The message of a pass over these ids.
    fn pass_of(&self, seq_id: i32, ids: &[i32], forward_only: bool) -> Vec<u8> {
        let bytes = ids[..ids.len() - 1].iter().flat_map(|id| id.to_le_bytes()).collect();
        let targets = ids[1..].iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
        let weights = ids[1..].iter().flat_map(|_| 1f32.to_le_bytes()).collect();
        let tensor = |bytes, dtype| Tensor {
            encoding: Some(Encoding::Dense(bytes)),
            dtype: dtype as i32,
            shape: vec![ids.len() as i64 - 1],
        };
        let inputs = [("target_tokens", tensor(targets, DType::Int64)), ("weights", tensor(weights, DType::Float32))];
        let chunk = ChunkKind::EncodedText(EncodedTextChunk { tokens: bytes });
        let datum = Datum {
            model_input: vec![Chunk { chunk: Some(chunk) }],
            loss_fn_inputs: inputs.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect(),
            ..Datum::default()
        };
        let request = ForwardBackwardRequest {
            model_id: self.model.clone(),
            seq_id,
            data: vec![datum],
            loss_fn: "cross_entropy".to_owned(),
            forward_only,
            ..ForwardBackwardRequest::default()
        };
        request.encode_to_vec()
    }

    fn post_message(&self, headers: &str, message: &[u8]) -> Reply {
        let headers = self.server.host() + "Content-Type: application/x-protobuf\r\n" + headers;
        let (status, head, body) = self.server.send_bytes("POST", "/api/v1/forward_backward", &headers, message);
        Reply { status, head, body: String::from_utf8(body).unwrap() }
    }

    fn post_pass(&self, seq_id: i32, ids: &[i32], forward_only: bool) -> Reply {
        self.post_message("", &self.pass_of(seq_id, ids, forward_only))
    }

    fn pass(&self, seq_id: i32, ids: &[i32], forward_only: bool) -> ForwardBackwardOutput {
        let reply = self.post_pass(seq_id, ids, forward_only);
        assert_eq!(reply.status, 200, "{}", reply.body);
        self.message(&reply.json())
    }

    fn numbered(&self, route: &str, seq_id: u64, fields: Value) -> Value {
        let mut body = json!({"model_id": self.model, "seq_id": seq_id, "type": route});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.result(&self.server.good(&format!("/api/v1/{route}"), &body))
    }
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
}

fn logprobs(output: &ForwardBackwardOutput) -> &BatchedTensor {
    &output.loss_fn_outputs[0].fields["logprobs"]
}

#[test]
fn a_model_is_trained_sampled_and_saved() {
    let server = Running::new();
    let client = Client::new(&server);
    let info = server.good("/api/v1/get_info", &json!({"model_id": client.model}));
    assert_eq!((&info["model_data"]["model_name"], &info["lora_rank"]), (&json!("tiny"), &json!(4)));
    let ids = [3, 4, 5, 6, 7, 8];
    let mut last = f64::INFINITY;
    for step in 0..3 {
        let loss = client.pass(2 * step + 1, &ids, false).metrics["loss:sum"];
        assert!(loss < last, "step {step}: {loss}, before {last}");
        last = loss;
        let adam = json!({"adam_params": {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12}});
        let stepped = client.numbered("optim_step", 2 * step as u64 + 2, adam);
        assert!(stepped["metrics"]["grad_norm:mean"].as_f64().unwrap() > 0.0, "{stepped}");
    }
    let sampler =
        client.numbered("save_weights_for_sampler", 7, json!({"sampling_session_seq_id": 0, "kind": "snapshot"}));
    let sampler = sampler["sampling_session_id"].as_str().unwrap();
    let sample = json!({
        "sampling_session_id": sampler, "seq_id": 0, "num_samples": 2, "type": "sample",
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [3, 4]}, {"type": "encoded_text", "tokens": [5]}]},
        "sampling_params": {"max_tokens": 5, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "stop": []},
        "prompt_logprobs": true, "topk_prompt_logprobs": 0, "topk_sample_logprobs": 2,
    });
    let promise = server.good("/api/v1/asample", &sample);
    assert_eq!(promise["sample_sequence_ids"].as_array().unwrap().len(), 2);
    assert_eq!(server.good("/api/v1/asample", &sample), promise, "a request that is repeated is not drawn again");
    let drawn: SampleResponse = client.message(&promise);
    let prompt = f32s(drawn.prompt_logprobs.as_ref().unwrap());
    assert!(prompt.len() == 3 && prompt[0].is_nan() && prompt[1..].iter().all(|logp| *logp < 0.0), "{prompt:?}");
    for sequence in &drawn.sequences {
        let top = sequence.topk_sampled_logprobs.as_ref().unwrap();
        assert_eq!((top.k, top.length, sequence.stop_reason, top.token_ids.len()), (2, 5, 1, 5 * 2 * 4));
        // Training computes the bits of the sampler.
        let tokens: Vec<i32> = sequence.tokens.as_chunks().0.iter().map(|&four| i32::from_le_bytes(four)).collect();
        let seq_id = if sequence == &drawn.sequences[0] { 8 } else { 9 };
        let forward = client.pass(seq_id, &[&[3, 4, 5][..], &tokens].concat(), true);
        let (tensor, sampled) = (logprobs(&forward), sequence.logprobs.clone().unwrap());
        assert_eq!(tensor.data[2 * 4..], sampled);
        assert_eq!(f32s(&tensor.data[..2 * 4]), prompt[1..]);
        assert_eq!((forward.metrics["loss:sum"], forward.loss_fn_outputs[0].num_datums), (0.0, 1));
    }
    // A prompt that was computed before is found in the prefix cache, in pages of 64 tokens.
    let mut cached = sample.clone();
    (cached["prompt_logprobs"], cached["prompt"]["chunks"]) = (json!(false), json!([{"tokens": vec![4; 150]}]));
    for (seq_id, expected) in [(1, 0), (2, 128)] {
        cached["seq_id"] = json!(seq_id);
        let drawn: SampleResponse = client.message(&server.good("/api/v1/asample", &cached));
        assert_eq!(drawn.prompt_cache_hit_tokens, expected);
    }
    // Three passes and steps, two passes without a gradient, and a sampler.
    let metrics = || {
        let (samples, _) = testing::prometheus::read(&server.get("/metrics").body).unwrap();
        move |name: &str| samples.iter().find(|sample| sample.name == format!("lockstep_serve_{name}")).unwrap().value
    };
    testing::wait_until("all tokens are counted", || metrics()("training_tokens_total") == 3.0 * 5.0 + 2.0 * 7.0);
    let value = metrics();
    assert_eq!((value("training_passes_total"), value("training_steps_total")), (5.0, 3.0));
    assert_eq!((value("training_requests_total"), value("training_waiting_requests")), (10.0, 0.0));
    assert_eq!((value("training_models"), value("sampler_adapters"), value("sessions")), (1.0, 1.0, 1.0));
    assert!(value("training_wait_seconds_total") > 0.0 && value("training_seconds_total") > 0.0);
    assert!(value("engine_seconds_total") > 0.0);
    // Saved states are listed, described and deleted.
    let saved = client.numbered("save_weights", 10, json!({"path": "a", "ttl_seconds": 3600}));
    let path = format!("tinker://{}/weights/a", client.model);
    assert_eq!(saved["path"], path);
    let named = client.numbered("save_weights_for_sampler", 11, json!({"path": "b", "kind": "snapshot"}));
    let info = server.good("/api/v1/weights_info", &json!({"tinker_path": path}));
    assert_eq!((&info["base_model"], &info["lora_rank"], &info["is_lora"]), (&json!("tiny"), &json!(4), &json!(true)));
    let route = format!("/api/v1/training_runs/{}", client.model);
    let listed = server.get(&format!("{route}/checkpoints")).json();
    assert!(listed["checkpoints"].as_array().unwrap().iter().any(|listed| listed["expires_at"].is_string()));
    let ids: Vec<&str> =
        listed["checkpoints"].as_array().unwrap().iter().map(|c| c["checkpoint_id"].as_str().unwrap()).collect();
    assert!(ids.len() == 2 && ids.contains(&"weights/a") && ids.contains(&"sampler_weights/b"), "{ids:?}");
    let run = server.get(&format!("{route}?access_scope=owned")).json();
    assert_eq!((&run["last_checkpoint"]["tinker_path"], &run["lora_rank"]), (&json!(path), &json!(4)));
    assert_eq!(server.get("/api/v1/training_runs?limit=5&offset=0").json()["cursor"]["total_count"], 1);
    assert_eq!(server.send("DELETE", &format!("{route}/checkpoints/weights/a"), &server.host(), "").status, 200);
    assert_eq!(server.post("/api/v1/weights_info", &json!({"tinker_path": path})).status, 404);
    // The other state expires, and then not.
    let expires = || server.get(&format!("{route}/checkpoints")).json()["checkpoints"][0]["expires_at"].clone();
    let set =
        |ttl: &str| server.send("PUT", &format!("{route}/checkpoints/sampler_weights/b/ttl"), &server.host(), ttl);
    let before = rfc3339(telemetry::system::since_1970().as_secs() + 86_400);
    assert_eq!((set("{\"ttl_seconds\": 86400}").status, expires().as_str() >= Some(&before)), (200, true));
    assert_eq!((set("{\"ttl_seconds\": null}").status, expires()), (200, Value::Null));
    let short = set("{\"ttl_seconds\": 60}");
    assert!(short.status == 400 && short.body.contains("`ttl_seconds` is 60: expected 3600"), "{}", short.body);
    assert_eq!(server.get("/api/v1/training_runs/../checkpoints").json()["checkpoints"], json!([]));
    let body = json!({"session_id": client.session, "sampling_session_seq_id": 1, "model_path": named["path"]});
    let saved_sampler = server.good("/api/v1/create_sampling_session", &body);
    let described =
        server.get(&format!("/api/v1/samplers/{}", saved_sampler["sampling_session_id"].as_str().unwrap())).json();
    assert_eq!((&described["base_model"], &described["model_path"]), (&json!("tiny"), &named["path"]));
    assert_eq!(
        server.good(&format!("/api/v1/sessions/{}/finish", client.session), &json!({"reason": {"type": "success"}})),
        json!({})
    );
    assert_eq!(server.post("/api/v1/session_heartbeat", &json!({"session_id": client.session})).status, 410);
}

#[test]
fn a_refused_request_uses_up_its_number_and_errors_have_a_detail() {
    let server = Running::new();
    let client = Client::new(&server);
    let detail = |reply: &Reply| reply.json()["detail"].as_str().unwrap_or_default().to_owned();
    let reply = server.post(
        "/api/v1/optim_step",
        &json!({"model_id": client.model, "seq_id": 1,
        "optimizer_params": {"type": "dimuon", "version": 1}}),
    );
    assert_eq!(
        (reply.status, &*detail(&reply)),
        (400, "the optimizer `dimuon` is not supported: this server has adamw")
    );
    client.pass(2, &[1, 2, 3], true);
    // A wrong token is an error of the result, and the next request is computed.
    let wrong = client.result(&client.post_pass(3, &[1, 2, 99], true).json());
    assert_eq!(
        (&wrong["category"], &wrong["error"]),
        (&json!("user"), &json!("sample 0: token id 99 is outside the vocabulary of 31 tokens"))
    );
    let first = client.post_pass(4, &[1, 2, 3], true).json();
    assert_eq!(client.post_pass(4, &[1, 2, 3], true).json(), first);
    let other = client.post_pass(4, &[1, 2, 4], true);
    assert_eq!((other.status, &*detail(&other)), (422, "another request has this seq_id"));
    let external = json!({"model_id": client.model, "seq_id": 5, "path": "e"});
    let reply = server.post("/api/v1/save_weights_external", &external);
    assert!(reply.status == 400 && detail(&reply).contains("save_weights_external is not supported"), "{}", reply.body);
    client.pass(6, &[1, 2, 3], true);
    for (route, body, status, words) in [
        (
            "create_model",
            json!({"session_id": client.session, "model_seq_id": 1, "base_model": "x"}),
            400,
            "start it with --model x=DIR",
        ),
        ("create_model", json!({"session_id": "s", "model_seq_id": 1, "base_model": "tiny"}), 404, "no session s"),
        ("create_model", json!({"session_id": client.session}), 400, "missing field `model_seq_id`"),
        ("optim_step", json!({"model_id": "m", "seq_id": 1}), 404, "no model m in training"),
        (
            "create_sampling_session",
            json!({"session_id": client.session, "sampling_session_seq_id": 3, "model_path": "a"}),
            400,
            "not of the form",
        ),
        ("asample", json!({"sampling_session_id": "s", "seq_id": 0, "prompt": {"chunks": []}}), 404, "no sampler s"),
        ("retrieve_future", json!({"request_id": "r1-1"}), 410, "no request r1-1"),
        ("create_custom_loss", json!({}), 400, "create_custom_loss is not supported"),
        ("nowhere", json!({}), 404, "no route /api/v1/nowhere"),
    ] {
        let reply = server.post(&format!("/api/v1/{route}"), &body);
        assert!(reply.status == status && detail(&reply).contains(words), "{route}: {} {}", reply.status, reply.body);
    }
    let body = json!({"session_id": client.session, "sampling_session_seq_id": 5, "base_model": "tiny"});
    let base = server.good("/api/v1/create_sampling_session", &body)["sampling_session_id"].clone();
    let long = json!({"sampling_session_id": base, "seq_id": 0, "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": tiny::CONTEXT}});
    let reply = server.post("/api/v1/asample", &long);
    assert!(reply.status == 400 && detail(&reply).contains("maximum context length"), "{}", reply.body);
    // The log-probabilities of a prompt of one token are those of no token.
    let one = json!({"sampling_session_id": base, "seq_id": 7, "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 1, "seed": u64::MAX}, "prompt_logprobs": true});
    let scored: SampleResponse = client.message(&server.good("/api/v1/asample", &one));
    assert!(matches!(f32s(&scored.prompt_logprobs.unwrap())[..], [nan] if nan.is_nan()));
    for (field, value, words) in [
        ("num_samples", json!(0), "`num_samples` is 0"),
        ("num_samples", json!(u64::MAX), "`num_samples` is 18446744073709551615: expected 1 to 64"),
        ("sampling_params", json!({"stop": [31]}), "`stop` has the id 31"),
        ("sampling_params", json!({"max_tokens": 0}), "`max_tokens` is 0: expected 1 or more"),
        ("sampling_params", json!({"seed": 1.5}), "`seed` is 1.5: expected a 64-bit integer"),
    ] {
        let mut body = one.clone();
        (body[field], body["seq_id"]) = (value, json!(8));
        let reply = server.post("/api/v1/asample", &body);
        assert!(reply.status == 400 && detail(&reply).contains(words), "{}", reply.body);
    }
    // A result can be cancelled, and its pages are free again.
    let body = json!({"sampling_session_id": base, "seq_id": 1, "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": tiny::CONTEXT - 10, "stop": []}});
    let promise = server.good("/api/v1/asample", &body);
    server.good("/api/v1/cancel_future", &json!({"request_id": promise["request_id"]}));
    assert_eq!(client.result(&promise)["category"], "user");
    server.wait_until_idle();
    // A page of another site can send text, but not without the user's browser asking first for other types.
    let headers = server.host() + "Content-Type: text/plain\r\n";
    assert_eq!(server.send("POST", "/api/v1/create_session", &headers, "{}").status, 415);
}

#[test]
fn every_refusal_uses_up_the_number_of_its_request() {
    const GZIP: &str = "Content-Encoding: gzip\r\n";
    const ZSTD: &str = "Content-Encoding: zstd\r\n";
    const TOO_MANY: usize = 65 << 20;
    let server = Running::new();
    let client = Client::new(&server);
    let detail = |reply: &Reply| reply.json()["detail"].as_str().unwrap_or_default().to_owned();
    let refused = |reply: Reply, status: u16, words: &str| {
        assert!(reply.status == status && detail(&reply).contains(words), "{}: {}", reply.status, reply.body);
    };
    let ids = [1, 2, 3];
    // A body of 65 MiB. Its pass may have had data, so that the next step is not taken.
    client.pass(1, &ids, false);
    let large = [client.pass_of(2, &ids, false), vec![0; TOO_MANY]].concat();
    refused(client.post_message("", &large), 413, "more than 64 MiB");
    let adam = json!({"adam_params": {"learning_rate": 0.01}});
    let stepped = client.numbered("optim_step", 3, adam.clone());
    assert!(stepped["error"].as_str().unwrap().contains("request 2 of this model was refused"), "{stepped}");
    // A damaged message, and a damaged object, whose routes have no data.
    refused(client.post_message("", &[client.pass_of(4, &ids, true), vec![7]].concat()), 400, "not a Forward");
    client.pass(5, &ids, false);
    let headers = server.host() + "Content-Type: application/json\r\n";
    let damaged = format!("{{\"model_id\": \"{}\", \"seq_id\": 6, \"adam_params\": 1", client.model);
    refused(server.send("POST", "/api/v1/optim_step", &headers, &damaged), 400, "does not fit");
    assert!(client.numbered("optim_step", 7, adam)["error"].is_null());
    // Compressed passes are the same as others, and a few bytes may be too many.
    let zstd = |message: &[u8]| compress_to_vec(message, CompressionLevel::Fastest);
    let plain = client.pass(8, &ids, true);
    let packed = client.post_message(ZSTD, &zstd(&client.pass_of(9, &ids, true)));
    assert_eq!(client.message::<ForwardBackwardOutput>(&packed.json()), plain);
    let large = [client.pass_of(10, &ids, true), vec![0; TOO_MANY]].concat();
    refused(client.post_message(ZSTD, &zstd(&large)), 413, "decompressed body has more than 64 MiB");
    refused(client.post_message(ZSTD, b"zstd"), 400, "not zstd");
    refused(client.post_message(GZIP, b"\x1f\x8b"), 415, "gzip is not supported");
    client.pass(11, &ids, true);
    // A number that is too far ahead is not used up: the request is judged when it arrives again.
    let far = serde_json::json!({"model_id": client.model, "seq_id": 1000, "adam_params": 1}).to_string();
    refused(server.send("POST", "/api/v1/optim_step", &headers, &far), 429, "the queue is full");
    let near = far.replace("1000", "12");
    refused(server.send("POST", "/api/v1/optim_step", &headers, &near), 400, "does not fit");
    client.pass(13, &ids, true);
    let metadata = json!({"session_id": client.session, "model_seq_id": 1, "base_model": "tiny",
        "user_metadata": {"a": "b".repeat(1 << 17)}});
    refused(server.post("/api/v1/create_model", &metadata), 400, "`user_metadata` has 131080 bytes");
}

#[test]
fn a_sample_of_a_session_that_ends_is_gone() {
    let server = Running::new();
    let client = Client::new(&server);
    let body = json!({"session_id": client.session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    let sampler = server.good("/api/v1/create_sampling_session", &body)["sampling_session_id"].clone();
    let body = json!({"sampling_session_id": sampler, "seq_id": 0, "num_samples": 64,
        "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": tiny::CONTEXT - 10, "stop": []}});
    let promise = server.good("/api/v1/asample", &body);
    server.good(&format!("/api/v1/sessions/{}/finish", client.session), &json!({"reason": {"type": "success"}}));
    // The stock client answers 410 by another request.
    let (status, _, body) = client.retrieve(&promise);
    assert!(status == 410, "{status}: {}", String::from_utf8_lossy(&body));
    server.wait_until_idle();
    // Counts are published after the response.
    testing::wait_until("the prompt is counted", || server.service.status().cancelled == 1);
}

#[test]
fn a_server_that_stops_does_not_wait_for_results_that_never_come() {
    // A server that stops before the client has asked refuses it, so that a slow machine needs another try.
    let answered = (0..5).any(|tries| {
        let server = Running::new();
        let client = Client::new(&server);
        // Request 1 never arrives.
        let promise = client.post_pass(2, &[1, 2, 3], true).json();
        let start = std::time::Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.retrieve(&promise).0);
            std::thread::sleep(Duration::from_millis(300 << tries));
            server.stop.store(true, Ordering::Relaxed);
            testing::wait_until("the server has stopped", || server.thread.as_ref().unwrap().is_finished());
            waiting.join().is_ok_and(|status| {
                assert!(status == 408 && start.elapsed() < HOLD, "{status} after {:?}", start.elapsed());
                true
            })
        })
    });
    assert!(answered);
}

#[test]
fn the_key_of_the_client_is_accepted_in_its_own_header() {
    let access = Access { api_key: Some("tml-secret".to_owned()), ..Access::default() };
    let server = Running::with(60, &access, "127.0.0.1:0");
    let status = |key: &str| server.send("GET", "/api/v1/healthz", &format!("{}{key}", server.host()), "").status;
    assert_eq!((status(""), status("X-API-Key: tml-other\r\n"), status("X-API-Key: tml-secret\r\n")), (401, 401, 200));
}
