//! Who may use the server, limits, and the end.

use super::*;

#[test]
fn foreign_hosts_content_types_routes_and_methods_are_refused() {
    let server = Running::new();
    let json = "Content-Type: application/json\r\n";
    let host = server.host();
    let port = server.port;
    let refused = |method: &str, path: &str, headers: &str, body: &str, status: u16, words: &str| {
        let reply = server.send(method, path, headers, body);
        let error = reply.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(reply.status == status && message.contains(words), "{} {message}", reply.status);
        assert_eq!(error["type"], "invalid_request_error");
    };
    for foreign in ["evil.example:80".to_owned(), format!("evil.example:{port}"), "localhost:1".to_owned()] {
        let headers = format!("Host: {foreign}\r\n{json}");
        refused("POST", "/v1/completions", &headers, "{}", 421, &format!("--allow-host {foreign}"));
        refused("GET", "/health", &headers, "", 421, "is for");
    }
    refused("POST", "/v1/completions", &host, "{}", 415, "application/json");
    let plain = format!("{host}Content-Type: text/plain\r\n");
    refused("POST", "/v1/chat/completions", &plain, "{}", 415, "`text/plain`");
    refused("GET", "/v1/completions", &host, "", 405, "GET");
    refused("POST", "/v1/embeddings", &format!("{host}{json}"), "{}", 404, "/v1/chat/completions");
    refused("POST", "/v1/completions", &format!("{host}{json}"), &" ".repeat((16 << 20) + 1), 413, "16 MiB");
}

#[test]
fn a_key_is_required_beyond_loopback_and_checked_everywhere_but_for_health() {
    let why = Server::bind("0.0.0.0:0", &Access::default()).err().unwrap();
    assert!(why.contains("LOCKSTEP_API_KEY") && why.contains("--api-key-file"), "{why}");
    for bad in ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "no such host:1"] {
        assert!(Server::bind(bad, &Access::default()).err().unwrap().contains("HOST:PORT"), "{bad}");
    }
    let access = Access { api_key: Some("secret".to_owned()), ..Access::default() };
    let server = Running::with(60, &access, "0.0.0.0:0");
    let status = |path: &str, header: &str| {
        let headers = format!("Host: box:{}\r\n{header}", server.port);
        server.send("GET", path, &headers, "").status
    };
    assert_eq!(status("/health", ""), 200);
    for path in ["/v1/models", "/metrics", "/v1/completions", "/nowhere"] {
        for wrong in ["", "Authorization: Bearer secre\r\n", "Authorization: secret\r\n"] {
            assert_eq!(status(path, wrong), 401, "{path} {wrong}");
        }
    }
    assert_eq!(status("/v1/models", "Authorization: Bearer secret\r\n"), 200);
    let taken = Server::bind(&format!("127.0.0.1:{}", server.port), &Access::default()).err().unwrap();
    assert!(taken.contains("cannot listen on") && taken.contains(":0 for any free port"), "{taken}");
}

#[test]
fn a_full_queue_is_reported_with_a_time_to_retry() {
    let server = Running::with(1, &Access::default(), "127.0.0.1:0");
    let mut client = server.connect();
    let (headers, body) = (server.host() + "Content-Type: application/json\r\n", long(5, false).to_string());
    let length = body.len();
    write!(client, "POST /v1/completions HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}").unwrap();
    testing::wait_until("the queue is full", || server.service.status().open == 5);
    let reply = server.post("/v1/completions", &long(1, false));
    assert!(reply.status == 429 && reply.head.contains("retry-after: 1"), "{}", reply.head);
    let error = reply.json()["error"].clone();
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("rate_limit_exceeded")));
    assert_eq!(server.post("/v1/completions", &long(6, false)).status, 400, "it would never fit");
    drop(client);
    server.wait_until_idle();
    let short = json!({"model": "tiny", "prompt": "a", "max_tokens": 1});
    assert_eq!(server.post("/v1/completions", &short).status, 200);
}

#[test]
fn a_stopping_server_completes_open_requests_and_returns() {
    let mut server = Running::new();
    let reply = std::thread::scope(|scope| {
        let open = scope.spawn(|| server.post("/v1/completions", &long(1, true)));
        testing::wait_until("the request runs", || server.service.status().open == 1);
        server.stop.store(true, Ordering::Relaxed);
        open.join().unwrap()
    });
    assert_eq!(reply.events().len(), tiny::CONTEXT - 100);
    server.thread.take().unwrap().join().unwrap().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", server.port)).is_err());
}
