//! The services in these tests are sockets of the test process that send prepared responses.

use super::*;
use crate::{Content, RewardSpec, build};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

mod limits;
mod tls;

/// The reaction of a service to a request.
#[derive(Clone)]
enum Deed {
    /// Answers with a status and a body.
    Answer(u16, String),
    /// Redirects the client to a different address.
    Redirect(u16, String),
    /// Reads the request and does not respond.
    Hang,
    /// Closes the connection.
    Close,
    /// Scores each completion by its length.
    Score,
    /// Like `Score`, but first waits until another request is in flight.
    ScoreBeside,
}

fn rewards(text: &str) -> Deed {
    Deed::Answer(200, format!("{{\"rewards\": {text}}}"))
}

/// The requests that a service has seen.
#[derive(Default)]
struct Seen {
    requests: Vec<(String, Value)>,
    now: usize,
    most: usize,
}

/// Starts a service that reacts to each request with the next of these deeds, and repeats the last one.
fn service(deeds: Vec<Deed>) -> (String, Arc<Mutex<Seen>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/score", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let log = seen.clone();
    std::thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            let (deed, log) = (deeds[i.min(deeds.len() - 1)].clone(), log.clone());
            std::thread::spawn(move || serve(stream.unwrap(), deed, &log));
        }
    });
    (url, seen)
}

/// The head and the body of a request. Returns an error if the client closes the connection first.
fn read_request(stream: &mut impl Read) -> std::io::Result<(String, Value)> {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        request.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_ascii_lowercase().split("content-length: ").nth(1).unwrap().to_owned();
            if body.len() >= length.split("\r\n").next().unwrap().parse::<usize>().unwrap() {
                return Ok((head.to_owned(), serde_json::from_str(body).unwrap()));
            }
        }
    }
}

fn serve(mut stream: TcpStream, deed: Deed, log: &Mutex<Seen>) {
    let (head, body) = read_request(&mut stream).expect("the request ended early");
    {
        let mut seen = log.lock().unwrap();
        seen.requests.push((head, body.clone()));
        seen.now += 1;
        seen.most = seen.most.max(seen.now);
    }
    let mut location = String::new();
    let (status, answer) = match deed {
        Deed::Redirect(status, to) => {
            location = format!("location: {to}\r\n");
            (status, String::new())
        }
        Deed::Answer(status, body) => (status, body),
        Deed::Score | Deed::ScoreBeside => {
            if matches!(deed, Deed::ScoreBeside) {
                testing::wait_until("two requests at once", || log.lock().unwrap().most >= 2);
            }
            let texts = body["completions"].as_array().unwrap();
            let lengths: Vec<usize> = texts.iter().map(|text| text.as_str().unwrap().len()).collect();
            (200, json!({"rewards": lengths, "metrics": {"longest": lengths.iter().max()}}).to_string())
        }
        Deed::Hang => {
            std::thread::sleep(Duration::from_secs(600));
            return;
        }
        Deed::Close => return,
    };
    log.lock().unwrap().now -= 1;
    let head =
        format!("HTTP/1.1 {status} x\r\n{location}content-length: {}\r\nconnection: close\r\n\r\n", answer.len());
    stream.write_all((head + &answer).as_bytes()).unwrap();
}

fn reward(url: &str, more: Value) -> HttpReward {
    let mut table = json!({"url": url, "backoff_s": 0.01});
    for (key, value) in more.as_object().unwrap() {
        table[key] = value.clone();
    }
    HttpReward::new("service".into(), serde_json::from_value(table).unwrap()).unwrap()
}

fn ask(reward: &mut HttpReward, completions: &[&str]) -> Scores {
    let completions: Vec<Content> = completions.iter().map(|&text| text.into()).collect();
    let ids = vec![vec![1, 2]; completions.len()];
    let columns = Columns::from([("answer".to_owned(), (0..completions.len()).map(Value::from).collect())]);
    reward.score(&RewardBatch {
        prompts: &completions,
        completions: &completions,
        completion_ids: &ids,
        columns: &columns,
        rows: &[],
        step: model::Step(4),
    })
}

#[test]
fn requests_and_answers_have_the_format_of_reward_programs() {
    let body = r#"{"rewards": [0.5, null, [1, 2]], "extra": {"why": ["a", "b", "c"]}, "metrics": {"m": 2.5}}"#;
    let (url, seen) = service(vec![Deed::Answer(200, body.into())]);
    let scores = ask(&mut reward(&url, json!({})), &["x", "y", "z"]);
    assert_eq!(scores.values, [Some(0.5), None, Some(3.0)], "{scores:?}");
    assert_eq!(scores.steps.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!((scores.extra.len(), &scores.metrics[..]), (1, &[("m".to_owned(), 2.5)][..]));
    let (head, body) = seen.lock().unwrap().requests.remove(0);
    let expected = json!({
        "prompts": ["x", "y", "z"], "completions": ["x", "y", "z"], "completion_ids": [[1, 2], [1, 2], [1, 2]],
        "trainer_state": {"global_step": 4}, "answer": [0, 1, 2],
    });
    assert_eq!(body, expected);
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /score ") && head.contains("content-type: application/json"), "{head}");
    assert!(!head.contains("authorization"));
}

#[test]
fn only_transient_failures_are_retried() {
    let status = |status| Deed::Answer(status, "try later".into());
    // Each row has the failed responses before the successful one, and the number of requests.
    for (deeds, requests) in [
        (vec![status(503), status(500)], 3),
        (vec![status(429), status(408)], 3),
        (vec![Deed::Close, Deed::Close], 3),
        (vec![Deed::Hang], 2),
    ] {
        let timeout_s = if matches!(deeds[0], Deed::Hang) { 3.0 } else { 600.0 };
        let (url, seen) = service([deeds, vec![rewards("[1, 2]")]].concat());
        let scores = ask(&mut reward(&url, json!({"timeout_s": timeout_s})), &["a", "b"]);
        assert_eq!(scores, Scores::new(vec![Some(1.0), Some(2.0)]));
        assert_eq!(seen.lock().unwrap().requests.len(), requests);
    }
    for (deed, more, kind, requests, words) in [
        (status(404), json!({}), ProblemKind::Crashed, 1, "answered with status 404 Not Found; it begins: try later"),
        (status(500), json!({"retries": 2}), ProblemKind::Crashed, 3, "status 500 Internal Server Error"),
        (status(500), json!({"retries": 0}), ProblemKind::Crashed, 1, "it begins: try later"),
        (Deed::Close, json!({"retries": 1}), ProblemKind::Crashed, 2, "(2 requests)"),
        (Deed::Hang, json!({"retries": 1, "timeout_s": 1.5}), ProblemKind::TimedOut, 2, "within 1.5 s (2 requests)"),
        (
            rewards("[1]"),
            json!({}),
            ProblemKind::BadAnswer,
            1,
            "`rewards` must have one score per completion: got 1 scores for 2 completions",
        ),
        (
            rewards("[\"x\", \"y\"]"),
            json!({}),
            ProblemKind::BadAnswer,
            1,
            "score 0: expected a number, null or a list of steps, got \"x\"",
        ),
        (Deed::Answer(200, "<html>".into()), json!({}), ProblemKind::BadAnswer, 1, "it begins: <html>"),
        (Deed::Answer(200, String::new()), json!({}), ProblemKind::BadAnswer, 1, "not a line of JSON"),
        (Deed::Answer(200, json!({"error": "no key"}).to_string()), json!({}), ProblemKind::Failed, 1, "error: no key"),
    ] {
        let (url, seen) = service(vec![deed]);
        let scores = ask(&mut reward(&url, more), &["a", "b"]);
        assert_eq!(scores.values, [None, None], "never 0");
        let [problem] = &scores.problems[..] else { panic!("{scores:?}") };
        assert_eq!((problem.kind, problem.rows, problem.fatal), (kind, 2, false), "{problem}");
        assert!(problem.message.contains(words) && problem.message.contains(&url), "{words}: {problem}");
        testing::wait_until(words, || seen.lock().unwrap().requests.len() == requests);
    }
    // No process listens on this port.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let scores = ask(&mut reward(&url, json!({"retries": 1})), &["a"]);
    assert_eq!(scores.problems[0].kind, ProblemKind::Crashed, "{}", scores.problems[0]);
}

#[test]
fn pauses_between_retries_double() {
    let pauses = |backoff_s: f64| {
        let reward = reward("http://127.0.0.1:9/", json!({"backoff_s": backoff_s}));
        [0, 1, 2, 3, 16, 17, u32::MAX].map(|tries| reward.client.pause(tries).as_millis())
    };
    assert_eq!(pauses(0.05), [50, 100, 200, 400, 30_000, 30_000, 30_000]);
    assert_eq!(pauses(0.0001), [0, 0, 0, 0, 6553, 6553, 6553]);
    assert_eq!(pauses(1e8), [30_000; 7]);
    assert_eq!(pauses(0.0), [0; 7]);
}

#[test]
fn parts_of_a_batch_are_sent_concurrently_and_joined_in_order() {
    let texts: Vec<String> = (1..=7).map(|n| "x".repeat(n)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let lengths: Vec<Option<f64>> = (1..=7).map(|n| Some(f64::from(n))).collect();
    let (url, seen) = service(vec![Deed::ScoreBeside]);
    let scores = ask(&mut reward(&url, json!({"batch_size": 2, "concurrency": 3})), &texts);
    assert_eq!((&scores.values, &scores.metrics[..]), (&lengths, &[("longest".to_owned(), 4.75)][..]), "{scores:?}");
    let seen = seen.lock().unwrap();
    let mut answers: Vec<String> = seen.requests.iter().map(|(_, body)| body["answer"].to_string()).collect();
    answers.sort();
    assert_eq!(answers, ["[0,1]", "[2,3]", "[4,5]", "[6]"]);
    assert!(seen.most == 2 || seen.most == 3, "at once: {}", seen.most);
    let (url, seen) = service(vec![Deed::Score]);
    ask(&mut reward(&url, json!({"batch_size": 1, "concurrency": 1})), &texts[..3]);
    assert_eq!(seen.lock().unwrap().most, 1);
    // One of four requests fails: only its completions have no score.
    let (url, _) = service(vec![Deed::Score, Deed::Answer(400, String::new()), Deed::Score]);
    let scores = ask(&mut reward(&url, json!({"batch_size": 2, "concurrency": 1})), &texts);
    assert_eq!(scores.values[..4], [Some(1.0), Some(2.0), None, None]);
    assert_eq!((scores.values[6], scores.problems[0].rows), (Some(7.0), 2));
}

#[test]
fn a_stop_ends_the_wait_for_a_service() {
    let (url, seen) = service(vec![Deed::Hang]);
    let mut reward = reward(&url, json!({"timeout_s": 1e6}));
    let stop = Arc::new(AtomicBool::new(false));
    reward.stop_with(stop.clone());
    std::thread::spawn(move || {
        testing::wait_until("the request comes", || !seen.lock().unwrap().requests.is_empty());
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(ask(&mut reward, &["a"]).values, [None]);
}

#[test]
fn invalid_http_options_are_reported_when_the_reward_is_built() {
    let built = |spec: Value| {
        let spec: RewardSpec = serde_json::from_value(spec).unwrap();
        build(&spec, crate::names(std::slice::from_ref(&spec)).unwrap().remove(0))
    };
    assert_eq!(built(json!("http://localhost:8000/score")).unwrap().name(), "http");
    assert_eq!(built(json!("https://example.org/score")).unwrap().name(), "http");
    assert!(built(json!({"kind": "http", "url": "http://x/", "by_group": true})).unwrap().scores_by_group());
    for (spec, words) in [
        (json!("http:localhost"), "must be a URL"),
        (json!({"kind": "http", "url": "ftp://x/"}), "must be a URL"),
        (json!({"kind": "http", "url": "http://x/", "timeout_s": 0}), "`timeout_s`"),
        (json!({"kind": "http", "url": "http://x/", "backoff_s": -1}), "`backoff_s`"),
        (json!({"kind": "http", "url": "http://x/", "batch_size": 0}), "at least 1"),
        (json!({"kind": "http", "url": "http://x/", "concurrency": 0}), "at least 1"),
        (
            json!({"kind": "http", "url": "http://x/", "token_env": "NO_SUCH_VARIABLE_IS_SET"}),
            "the environment variable NO_SUCH",
        ),
        (json!({"kind": "http", "url": "http://x/", "retry": 1}), "`retries`"),
    ] {
        let message = built(spec).err().expect("refused").to_string();
        assert!(message.contains(words) && message.contains("reward `http`"), "{message}");
    }
}

/// A client that follows a redirect sends a GET without the completions, and would use the response as scores.
#[test]
fn redirects_are_reported_and_not_followed() {
    let (elsewhere, asked) = service(vec![rewards("[9, 9]")]);
    for status in [301, 302, 303, 307, 308] {
        let (url, _) = service(vec![Deed::Redirect(status, elsewhere.clone())]);
        let scores = ask(&mut reward(&url, json!({"retries": 2})), &["x", "y"]);
        assert_eq!(scores.values, [None, None], "{status}");
        let printed = scores.problems[0].message.clone();
        assert!(printed.contains(&status.to_string()) && printed.contains(&elsewhere), "{printed}");
    }
    assert!(asked.lock().unwrap().requests.is_empty());
}

/// Runs this test again in a second process, whose environment names a proxy that does not respond.
#[test]
fn requests_to_this_machine_bypass_the_proxy() {
    const CHILD: &str = "LOCKSTEP_TEST_WITHIN_PROXY";
    if std::env::var_os(CHILD).is_none() {
        let own = ["--exact", "http::tests::requests_to_this_machine_bypass_the_proxy", "--nocapture"];
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            child.env(name, "http://127.0.0.1:9");
        }
        for name in ["no_proxy", "NO_PROXY"] {
            child.env_remove(name);
        }
        let output = child.args(own).env(CHILD, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        return;
    }
    let (url, _) = service(vec![rewards("[1]")]);
    let scores = ask(&mut reward(&url, json!({"retries": 0, "timeout_s": 600})), &["x"]);
    assert_eq!(scores.values, [Some(1.0)], "{scores:?}");
}
