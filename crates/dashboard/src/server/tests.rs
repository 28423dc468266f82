//! Requests as a browser sends them, to a server that listens.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;

struct Listening {
    port: u16,
    _dir: tempfile::TempDir,
}

/// A server with a run of so many steps.
fn listening(steps: u64) -> Listening {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("a");
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("config.toml"), "max_steps = 10\nseed = 1\n").unwrap();
    let line = |step: u64| format!("{{\"step\":{step},\"reward\":{},\"loss\":\"NaN\"}}\n", step as f64 / steps as f64);
    std::fs::write(run.join("metrics.jsonl"), (1..=steps).map(line).collect::<String>()).unwrap();
    let server = Server::bind("127.0.0.1", 0, Runs::new(vec![dir.path().to_owned()])).unwrap();
    let port = server.listener.local_addr().unwrap().port();
    std::thread::spawn(move || server.run());
    Listening { port, _dir: dir }
}

impl Listening {
    fn open(&self, path: &str, host: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let host = host.replace("PORT", &self.port.to_string());
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        stream
    }

    /// Status, and all that came.
    fn get_as(&self, path: &str, host: &str) -> (u16, String) {
        let mut text = String::new();
        self.open(path, host).read_to_string(&mut text).unwrap();
        (text.split_whitespace().nth(1).unwrap().parse().unwrap(), text)
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.get_as(path, "localhost:PORT")
    }

    fn json(&self, path: &str) -> Value {
        let (status, text) = self.get(path);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

#[test]
fn runs_facts_and_series_are_answered() {
    let site = listening(10);
    let runs = site.json("/api/runs");
    assert_eq!((&runs[0]["id"], &runs[0]["step"], &runs[0]["total"]), (&json!("a"), &json!(10), &json!(10)));
    let facts = site.json("/api/runs/a");
    assert_eq!(facts["verdict"]["state"], "learning");
    assert_eq!(facts["config"]["seed"], 1);
    let series = site.json("/api/runs/a/series?keys=reward,loss&px=4");
    assert_eq!(series["width"], 4);
    assert_eq!(series["keys"]["loss"]["non_finite"], 10);
    for path in ["/api/runs/b", "/api/runs/a/groups", "/api/runs/a/groups/0", "/api/nothing", "/nothing"] {
        assert_eq!(site.get(path).0, 404, "{path}");
    }
}

#[test]
fn a_hundred_thousand_steps_are_answered_in_little() {
    let site = listening(100_000);
    site.json("/api/runs");
    let (_, text) = site.get("/api/runs/a/series?keys=reward,loss&px=800");
    assert!(text.len() < 100_000, "{} bytes", text.len());
}

#[test]
fn what_is_not_ours_is_refused() {
    let site = listening(3);
    for host in ["evil.example", "evil.example:PORT", "localhost:1", "127.0.0.1"] {
        assert_eq!(site.get_as("/api/runs", host).0, 421, "{host}");
        assert_eq!(site.get_as("/", host).0, 421, "{host}");
    }
    for path in ["/..%2fCargo.toml", "/api/runs/..%2f..%2fetc", "/vendor/..%2fVENDOR.toml", "/api/runs/%2e%2e"] {
        assert_eq!(site.get(path).0, 404, "{path}");
    }
    let (status, page) = site.get("/");
    assert_eq!(status, 200);
    for header in ["content-security-policy: default-src 'none'", "nosniff", "no-referrer", "trusted-types"] {
        assert!(page.to_lowercase().contains(header), "{header}: {page:.600}");
    }
}

#[test]
fn beyond_this_machine_nothing_is_answered_without_the_token() {
    let (guard, token) = Guard::new("0.0.0.0", "0.0.0.0".parse().unwrap(), 1).unwrap();
    assert!(guard.needs_token() && token.is_some());
    let server = Server::bind("0.0.0.0", 0, Runs::new(Vec::new())).unwrap();
    assert!(server.url.contains("#token="), "{}", server.url);
    let port = server.listener.local_addr().unwrap().port();
    let token = server.url.split_once("#token=").unwrap().1.to_owned();
    std::thread::spawn(move || server.run());
    let status = |cookie: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(stream, "GET /api/runs HTTP/1.1\r\nHost: box:{port}\r\n{cookie}Connection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(status(""), "401");
    assert_eq!(status(&format!("Cookie: lockstep={token}\r\n")), "200");
}

#[test]
fn news_are_streamed_and_the_65th_stream_is_refused() {
    let site = listening(3);
    site.json("/api/runs");
    let mut streams: Vec<TcpStream> = (0..STREAMS).map(|_| site.open("/api/events?run=a", "localhost:PORT")).collect();
    for stream in &mut streams {
        let mut bytes = [0; 4096];
        let mut text = String::new();
        while !text.contains("event: mark") {
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "{text}");
            text += &String::from_utf8_lossy(&bytes[..count]);
        }
        assert!(text.contains("200 OK"), "{text}");
    }
    assert_eq!(site.get("/api/events?run=a").0, 503);
    // Who goes makes room.
    streams.clear();
    let begun = std::time::Instant::now();
    loop {
        let mut stream = site.open("/api/events?run=a", "localhost:PORT");
        let mut bytes = [0; 15];
        stream.read_exact(&mut bytes).unwrap();
        if bytes.ends_with(b"200 OK") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Without --allow-run nothing is run, and a page of another site starts nothing: both are refused in words.
#[test]
fn jobs_are_begun_by_the_page_alone_and_only_with_leave() {
    let algorithms = vec![json!({ "id": "grpo", "levels": [{ "id": "none" }] })];
    let runnable = |allowed| crate::Runnable {
        program: "/bin/true".into(),
        algorithms: algorithms.clone(),
        presets: Vec::new(),
        shapes: vec!["tiny".into()],
        allowed,
    };
    for allowed in [false, true] {
        let server = Server::bind("127.0.0.1", 0, Runs::new(Vec::new())).unwrap();
        let server = server.with_jobs(crate::Jobs::new(runnable(allowed)));
        let port = server.listener.local_addr().unwrap().port();
        std::thread::spawn(move || server.run());
        let ask = |method: &str, path: &str, headers: &str, body: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let length = body.len();
            let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: {length}\r\n");
            write!(stream, "{head}{headers}Connection: close\r\n\r\n{body}").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            (head.split_whitespace().nth(1).unwrap().parse::<u16>().unwrap(), body.to_owned())
        };
        let job = r#"{"algorithm":"grpo","shape":"tiny","levels":["none"],"steps":1}"#;
        let (ours, origin) = ("x-lockstep: 1\r\n", format!("Origin: http://localhost:{port}\r\n"));
        let state: Value = serde_json::from_str(&ask("GET", "/api/jobs", "", "").1).unwrap();
        assert_eq!((&state["allowed"], &state["job"]), (&json!(allowed), &Value::Null));
        assert_eq!(ask("POST", "/api/jobs", "", job).0, 403);
        assert_eq!(ask("POST", "/api/jobs", &format!("{ours}Origin: http://evil.example\r\n"), job).0, 403);
        assert_eq!(ask("DELETE", "/api/jobs", "", "").0, 403);
        let (status, said) = ask("POST", "/api/jobs", &format!("{ours}{origin}"), job);
        assert_eq!(status, if allowed { 200 } else { 403 }, "{said}");
        if allowed {
            assert_eq!(ask("POST", "/api/jobs", ours, "{").0, 400);
            assert_eq!(ask("GET", "/api/jobs/1", "", "").0, 200);
        }
        assert_eq!(ask("GET", "/api/jobs/7", "", "").0, 404);
    }
}
