//! Tests that send requests like a browser to a listening server.

use super::events::STREAMS;
use super::jobs::Refusal;
use super::*;
use serde_json::Map;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

mod metrics;

struct Listening {
    port: u16,
    dir: tempfile::TempDir,
}

/// A server with a run of this many steps.
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
    Listening { port, dir }
}

impl Listening {
    fn open(&self, path: &str, host: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let host = host.replace("PORT", &self.port.to_string());
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        stream
    }

    /// Returns the status and the whole response.
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
fn runs_facts_and_series_are_served() {
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
fn a_hundred_thousand_steps_give_a_small_response() {
    let site = listening(100_000);
    site.json("/api/runs");
    let (_, text) = site.get("/api/runs/a/series?keys=reward,loss&px=800");
    assert!(text.len() < 100_000, "{} bytes", text.len());
}

#[test]
fn series_may_use_minutes_or_tokens_as_their_axis() {
    let site = listening(0);
    let line = |step: u64| format!("{{\"step\":{step},\"reward\":{step},\"step_time\":60,\"num_tokens\":{step}0}}\n");
    std::fs::write(site.dir.path().join("a/metrics.jsonl"), (1..=5).map(line).collect::<String>()).unwrap();
    let series = |query: &str| site.json(&format!("/api/runs/a/series?keys=reward&{query}"));
    let minutes = series("x=minutes&from=0.5&to=3");
    assert_eq!((&minutes["x"], &minutes["steps"]), (&json!([1.0, 2.0, 3.0]), &json!([2, 3, 4])));
    assert_eq!(series("x=tokens&px=1")["x"], json!([10.0]));
    assert_eq!(series("x=step")["x"], Value::Null);
    assert_eq!(site.json("/api/runs/a")["units"], json!({ "step_time": "s", "num_tokens": "tokens" }));
}

#[test]
fn foreign_hosts_and_unknown_paths_are_refused() {
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
fn other_machines_are_refused_without_the_token() {
    let (_, token) = Guard::new("0.0.0.0", "0.0.0.0".parse().unwrap(), 1).unwrap();
    assert!(token.is_some());
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
fn updates_are_streamed_and_the_65th_stream_is_refused() {
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
    // Closing streams makes room for a new one.
    streams.clear();
    testing::wait_until("there is room", || {
        let mut stream = site.open("/api/events?run=a", "localhost:PORT");
        let mut bytes = [0; 15];
        stream.read_exact(&mut bytes).unwrap();
        bytes.ends_with(b"200 OK")
    });
}

/// Jobs that can be started if `allowed`, but do nothing.
struct OneJob {
    allowed: bool,
}

impl Jobs for OneJob {
    fn state(&self) -> Value {
        json!({ "allowed": self.allowed, "job": null })
    }

    fn events(&self, number: u64, _: usize) -> Option<(Vec<Value>, &'static str)> {
        (number == 1).then(|| (Vec::new(), "done"))
    }

    fn start(&self, _: &Value) -> Result<Value, Refusal> {
        if self.allowed { Ok(self.state()) } else { Err(Refusal::NotAllowed) }
    }

    fn stop(&self) {}
}

/// Jobs are refused without --allow-run and for pages of other sites, each with the reason.
#[test]
fn only_the_page_may_start_jobs_and_only_if_allowed() {
    for allowed in [false, true] {
        let server = Server::bind("127.0.0.1", 0, Runs::new(Vec::new())).unwrap();
        let server = server.with_jobs(OneJob { allowed });
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

#[test]
fn queries_are_decoded_and_missing_numbers_get_defaults() {
    let of = |query: &str| words(&format!("/x?{query}").parse().unwrap());
    let pairs = of("a=1&b=x+y%26%C3%A9&c&&d=1=2&a=3");
    let expected = [("a", "3"), ("b", "x y&é"), ("c", ""), ("d", "1=2")];
    assert_eq!(pairs.iter().map(|(key, value)| (&**key, &**value)).collect::<Vec<_>>(), expected);
    assert!(words(&"/x".parse().unwrap()).is_empty());
    for (text, expected) in [("%41%4", "A%4"), ("%", "%"), ("%zz+", "%zz "), ("100%25", "100%"), ("%ff", "\u{fffd}")] {
        assert_eq!(of(&format!("a={text}"))["a"], expected, "{text}");
    }
    assert_eq!((number(&pairs, "a", 7), number(&pairs, "b", 7), number(&pairs, "none", 7)), (3, 7, 7));
}

#[test]
fn the_series_includes_an_evaluation_before_the_first_step() {
    let site = listening(2);
    let lines = ["{\"step\":0,\"eval_reward\":0.5}\n", "{\"step\":1,\"reward\":1}\n"];
    std::fs::write(site.dir.path().join("a/metrics.jsonl"), lines.concat()).unwrap();
    assert_eq!(site.json("/api/runs/a/series?keys=eval_reward,reward")["steps"], json!([0, 1]));
}

/// Three groups of training at steps 1 to 3, and one of an evaluation.
fn with_groups() -> Listening {
    use crate::groups::tests::recorded;
    use lockstep::wire::{Completion, Group, GroupId};
    let site = listening(3);
    let group = |id: u64, name: &str| Group {
        group: GroupId(id),
        step: Some(Step(id)),
        prompt_ids: vec![id as u32],
        prompt: Some(format!("{name} {id}").into()),
        reward_names: vec!["r".into()],
        reward_weights: vec![1.0],
        completions: vec![Completion { rewards: vec![Some(id as f64)], ..Completion::new(0, vec![5, 6, 7]) }],
        ..Group::default()
    };
    let run = site.dir.path().join("a");
    recorded(&run, [group(9, "evaluated")]);
    std::fs::rename(run.join("rollouts.bin"), run.join("evaluations.bin")).unwrap();
    std::fs::rename(run.join("rollouts.idx"), run.join("evaluations.idx")).unwrap();
    recorded(&run, (1..=3).map(|id| group(id, "trained")));
    std::fs::write(run.join("trace.json"), "{\"name\":\"decode\",\"args\":{\"step\":1}},\n").unwrap();
    site
}

#[test]
fn every_url_parameter_has_an_effect() {
    let site = with_groups();
    let numbers = |query: &str| -> Vec<u64> {
        let answer = site.json(&format!("/api/runs/a/groups?{query}"));
        answer["groups"].as_array().unwrap().iter().map(|group| group["group"].as_u64().unwrap()).collect()
    };
    let hash = site.json("/api/runs/a/groups/1")["prompt_hash"].as_str().unwrap().to_owned();
    for (query, expected) in [
        ("", vec![1, 2, 3]),
        ("from=2", vec![2, 3]),
        ("to=2", vec![1, 2]),
        ("step=2&from=3", vec![2]),
        ("sort=-reward", vec![3, 2, 1]),
        ("only=best", vec![3, 2, 1]),
        ("only=updated", vec![]),
        ("min=2", vec![2, 3]),
        ("max=2&min=", vec![1, 2]),
        ("min=2&max=2.5&per=completion", vec![2]),
        ("q=TRAINED+3", vec![3]),
        ("cursor=1&limit=1", vec![2]),
        ("limit=0", vec![1]),
        ("of=evaluations", vec![9]),
        (&format!("prompt={hash}"), vec![2]),
    ] {
        assert_eq!(numbers(query), expected, "{query}");
    }
    let (status, error) = site.get("/api/runs/a/groups?min=much");
    assert_eq!(status, 400);
    assert!(error.ends_with("min=much is not a number: give a reward, such as min=0.5"), "{error}");
    let map = |query: &str| site.json(&format!("/api/runs/a/map?{query}"))["steps"].clone();
    assert_eq!(
        (map("px=2"), map("px=0"), map(""), map("of=evaluations")),
        (json!([1, 3]), json!([1]), json!([1, 2, 3]), json!([9]))
    );
    assert_eq!((map("from=3"), map("px=2&from=2")), (json!([3]), json!([1, 3])), "whole columns");
    assert_eq!(site.json("/api/runs/a/map?px=1&rows=2")["cells"], json!([[[3.0, 0.0, 2], [1.0, 0.0, 0]]]));
    let prompts = |query: &str| -> Vec<String> {
        let answer = site.json(&format!("/api/runs/a/prompts?{query}"));
        answer["prompts"].as_array().unwrap().iter().map(|one| one["prompt"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(prompts("sort=unsolved&limit=2"), ["trained 1", "trained 2"]);
    assert_eq!(prompts("sort=unsolved&cursor=2"), ["trained 3"]);
    assert_eq!(
        (prompts(&format!("prompt={hash}")), prompts("of=evaluations")),
        (vec!["trained 2".to_owned()], vec!["evaluated 9".to_owned()])
    );
    assert_eq!(prompts("q=Trained+2"), ["trained 2"]);
    assert_eq!(prompts("limit=0").len(), 1);
    assert_eq!(site.json("/api/runs/a/groups/2")["group"], 3);
    assert_eq!(site.json("/api/runs/a/groups/0?of=evaluations")["prompt"], "evaluated 9");
    let cut = site.json("/api/runs/a/groups/2/completions/0?from=1&n=1");
    assert_eq!((&cut["ids"], &cut["from"]), (&json!([6]), &json!(1)));
    assert_eq!(site.json("/api/runs/a/groups/2/completions/0")["ids"], json!([5, 6, 7]));
    assert_eq!(site.json("/api/runs/a/groups/0/completions/0?of=evaluations")["length"], 3);
    assert_eq!(site.json("/api/runs/a/spans").as_array().unwrap().len(), 1);
    assert_eq!(site.json("/api/runs/a/spans?step=2"), json!([]));
    assert_eq!(site.json("/api/runs/a/stages")["beside"], json!({ "steps": 0, "seconds": {} }));
    let steps = |query: &str| site.json(&format!("/api/runs/a/series?keys=reward&{query}"))["steps"].clone();
    assert_eq!(
        (steps(""), steps("from=2"), steps("to=2"), steps("px=0")),
        (json!([1, 2, 3]), json!([2, 3]), json!([1, 2]), json!([0]))
    );
    let edition = site.json("/api/runs/a/series?keys=reward")["edition"].as_u64().unwrap();
    assert_eq!(steps(&format!("edition={edition}&width=1&since=2")), json!([2, 3]));
    assert_eq!(steps(&format!("edition={edition}&width=2&since=2")), json!([1, 2, 3]));
    assert_eq!(site.json("/api/runs/a/series?keys=reward&x=tokens")["x"], json!([]), "the run does not log tokens");
    let (status, why) = site.get("/api/runs/a/series?keys=reward&x=hours");
    assert!(status == 400 && why.ends_with("x = \"hours\" is not an axis: use step, minutes or tokens"), "{why}");
    assert_eq!(site.json("/api/runs/a/series?keys=reward,,loss")["keys"].as_object().unwrap().len(), 2);
    for path in [
        "/api/runs/a/groups/3",
        "/api/runs/a/groups/3/completions/0",
        "/api/runs/a/groups/0/completions/1",
        "/api/runs/a/groups/1?of=evaluations",
        "/api/runs/b/map",
        "/api/runs/b/prompts",
        "/api/runs/b/spans",
        "/api/runs/b/stages",
        "/api/runs/b/report",
        "/api/runs/a/report?vs=b",
        "/api/runs/b/series",
        "/api/runs/a/workers",
        "/api/runs/b/workers",
        "/api/runs/b/groups/0",
        "/api/runs/b/groups/0/completions/0",
        "/api/events?run=b",
    ] {
        assert_eq!(site.get(path).0, 404, "{path}");
    }
}

#[test]
fn reports_of_one_or_two_runs_can_be_downloaded() {
    let site = listening(10);
    let other = site.dir.path().join("two");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("config.toml"), "max_steps = 10\nseed = 2\n").unwrap();
    let (status, text) = site.get("/api/runs/a/report");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert_eq!(status, 200, "{head}");
    for header in ["content-type: text/html; charset=utf-8", "attachment; filename=\"report-a.html\"", "no-store"] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert_eq!(body, report::html(&[Report::read(&site.dir.path().join("a")).unwrap()]));
    let (_, both) = site.get("/api/runs/a/report?vs=two");
    assert!(both.contains("What differs") && both.contains("<td>seed</td><td>1</td><td>2</td>"), "{both}");
    assert_eq!(site.get_as("/api/runs/a/report", "evil.example").0, 421);
}

#[test]
fn every_response_has_a_content_type_and_security_headers() {
    let site = listening(3);
    let (status, text) = site.get("/api/runs");
    assert_eq!(status, 200);
    for header in
        ["content-type: application/json\r\n", "cache-control: no-store\r\n", "x-content-type-options: nosniff\r\n"]
    {
        assert!(text.contains(header), "{header}: {text}");
    }
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/shell/style.css", "text/css; charset=utf-8"),
        ("/shell/app.js", "text/javascript; charset=utf-8"),
    ] {
        assert!(site.get(path).1.contains(&format!("content-type: {kind}\r\n")), "{path}");
    }
    let runs = site.json("/api/runs");
    let silent = runs[0]["silent_s"].as_u64().unwrap();
    let verdict = json!({ "state": "nothing", "says": "Too early to tell: 3 values of reward, and 4 are needed." });
    let expected = json!([{
        "id": "a", "name": null, "state": "stopped", "step": 3, "total": 10, "silent_s": silent, "verdict": verdict,
        "alarms": 0,
    }]);
    assert_eq!(runs, expected);
    let server = Server::bind("[::1]", 0, Runs::new(Vec::new()));
    if let Ok(server) = server {
        assert!(server.url.starts_with("http://[::1]:") && server.url.ends_with('/'), "{}", server.url);
    }
    let server = Server::bind("127.0.0.1", 0, Runs::new(Vec::new())).unwrap();
    let port = server.listener.local_addr().unwrap().port();
    assert_eq!(server.url, format!("http://127.0.0.1:{port}/"));
    assert!(Server::bind("127.0.0.1", port, Runs::new(Vec::new())).is_err(), "a used port must be refused");
}

#[test]
fn the_token_is_stored_in_a_cookie_that_scripts_cannot_read() {
    let site = listening(1);
    let login = |header: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", site.port)).unwrap();
        let host = format!("Host: localhost:{}\r\n", site.port);
        write!(stream, "GET /api/login HTTP/1.1\r\n{host}{header}Connection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 204"), "{text}");
        text.lines().find_map(|line| Some(line.strip_prefix("set-cookie: ")?.trim().to_owned()))
    };
    let cookie = "lockstep=0aF; HttpOnly; SameSite=Strict; Path=/".to_owned();
    assert_eq!(login("Authorization: Bearer 0aF\r\n"), Some(cookie));
    for header in ["", "Authorization: Bearer x; Path=/a\r\n", "Authorization: Basic 0aF\r\n"] {
        assert_eq!(login(header), None, "{header}");
    }
}

#[test]
fn an_event_is_not_sent_to_a_page_that_already_has_it() {
    let site = listening(4);
    let log = site.dir.path().join("a/metrics.jsonl");
    let length = || std::fs::metadata(&log).unwrap().len();
    let next = |seen: &str, meanwhile: &dyn Fn()| {
        let mut stream = TcpStream::connect(("127.0.0.1", site.port)).unwrap();
        let host = format!("Host: localhost:{}\r\n", site.port);
        write!(stream, "GET /api/events?run=a HTTP/1.1\r\n{host}Last-Event-ID: {seen}\r\n\r\n").unwrap();
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        while !text.contains("\r\n\r\n") {
            let count = stream.read(&mut bytes).unwrap();
            text += &String::from_utf8_lossy(&bytes[..count]);
        }
        meanwhile();
        while !text.contains("data: ") || !text.ends_with('\n') {
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "{text}");
            text += &String::from_utf8_lossy(&bytes[..count]);
        }
        let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        (of("id: "), serde_json::from_str::<Value>(&of("data: ")).unwrap())
    };
    let (id, data) = next("", &|| ());
    let is_now = |id: &str| id.starts_with(&format!("{}-0-", length())) && id.ends_with("-stopped");
    assert!(is_now(&id), "{id}");
    assert_eq!(data["facts"]["mark"], id);
    let says = "Learned: reward went from 0.250 to 0.875, and still improved at the end.";
    let verdict = json!({ "state": "learning", "says": says });
    let silent = &data["facts"]["silent_s"];
    let row = json!({
        "step": 4, "total": 10, "state": "stopped", "verdict": verdict, "alarms": 0, "silent_s": silent,
    });
    assert_eq!((&data["run"], timeless(&data["facts"])), (&row, timeless(&site.json("/api/runs/a"))));
    let (later, data) = next(&id, &|| {
        let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
        file.write_all(b"{\"step\":5,\"reward\":2}\n").unwrap();
    });
    assert!(is_now(&later), "{later}");
    assert_eq!(data["run"]["step"], 5);
}

/// The facts about a run without the seconds since its last line, which grow between two requests.
fn timeless(facts: &Value) -> Map<String, Value> {
    facts.as_object().unwrap().clone().into_iter().filter(|(name, _)| name != "silent_s").collect()
}

/// The first event of a stream has all facts, and each later event has those that have changed.
#[test]
fn an_event_has_the_facts_that_have_changed() {
    let site = listening(4);
    let append = |line: &str| {
        let mut log = std::fs::OpenOptions::new().append(true).open(site.dir.path().join("a/metrics.jsonl")).unwrap();
        log.write_all(line.as_bytes()).unwrap();
    };
    let mut stream = BufReader::new(site.open("/api/events?run=a", "localhost:PORT"));
    let mut next = || {
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0, "the stream must not end");
        }
        timeless(&serde_json::from_str::<Value>(&line["data: ".len()..]).unwrap()["facts"])
    };
    let now = || timeless(&site.json("/api/runs/a"));
    let mut known = next();
    assert_eq!(known, now());
    append("{\"step\":5,\"reward\":2}\n");
    let changed = next();
    assert_eq!(changed.keys().collect::<Vec<_>>(), ["mark", "step", "verdict"]);
    known.extend(changed);
    assert_eq!(known, now());
    std::fs::write(site.dir.path().join("a/config.toml"), "max_steps = 6\nseed = 1\n").unwrap();
    append("{\"step\":6,\"alarm\":{\"id\":\"cut_short\",\"since\":6}}\n{\"step\":6,\"kl\":1}\n");
    let changed = next();
    for name in ["state", "step", "total", "alarms", "config", "keys", "meanings"] {
        assert!(changed.contains_key(name), "{name}: {changed:?}");
    }
    assert!(!changed.contains_key("record") && !changed.contains_key("written_s"), "{changed:?}");
    known.extend(changed);
    assert_eq!(known, now());
}
