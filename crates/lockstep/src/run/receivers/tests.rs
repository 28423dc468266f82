//! The receivers in these tests are shell scripts and sockets of this process.

#![cfg(unix)]

use super::*;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver as Requests, channel};
use telemetry::{Alarm, Step};

fn receivers(report_to: &[String], token: Option<&str>) -> anyhow::Result<Receivers> {
    let config = Config { report_to: report_to.to_vec(), ..Config::default() };
    Receivers::with_token(&config, &RunDir::at(Path::new("/runs/first")), token.map(str::to_owned))
}

fn started(report_to: &str) -> Receivers {
    receivers(&[report_to.to_owned()], None).unwrap().start().unwrap()
}

fn metrics(step: u64) -> Event {
    let values = vec![("reward".to_owned(), 0.5), ("loss".to_owned(), f64::NAN)];
    EventKind::Metrics { step: Step(step), values }.into()
}

fn script(dir: &Path, text: &str) -> String {
    let path = dir.join("receiver.sh");
    std::fs::write(&path, text).unwrap();
    format!("command:sh {}", path.display())
}

/// A service that answers with each status in turn, and repeats the last one; it passes on the requests.
fn service(statuses: &'static [&'static str]) -> (String, Requests<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/records", listener.local_addr().unwrap());
    let (requests, got) = channel();
    std::thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            let (mut stream, mut text) = (stream.unwrap(), String::new());
            let mut piece = [0; 4096];
            let length = |text: &str| {
                let (head, body) = text.split_once("\r\n\r\n")?;
                let lower = head.to_ascii_lowercase();
                let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                (body.len() >= length.unwrap_or(0)).then_some(())
            };
            while length(&text).is_none() {
                let count = stream.read(&mut piece).unwrap();
                assert!(count > 0, "the request ended early: {text}");
                text += &String::from_utf8_lossy(&piece[..count]);
            }
            let status = statuses[i.min(statuses.len() - 1)];
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhush-1").unwrap();
            let _ = requests.send(text);
        }
    });
    (url, got)
}

fn body(request: &str) -> serde_json::Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_program_gets_each_record_as_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut sink = started(&script(dir.path(), &format!("echo noise; cat > '{}'", out.display())));
    let alarm = Alarm { id: "kl".into(), since: Step(2), examples: vec!["a\nb".into()], ..Alarm::default() };
    let events = [
        metrics(1),
        EventKind::Checkpoint { step: Step(1), path: "elsewhere".into() }.into(),
        EventKind::StepValues { step: Step(1), values: Vec::new() }.into(),
        EventKind::Alarm { step: Step(2), alarm }.into(),
    ];
    for event in &events {
        sink.receive(event).unwrap();
    }
    assert_eq!((sink.flush(), sink.check().unwrap()), (None, None));
    // Nothing is sent after the end.
    sink.receive(&metrics(3)).unwrap();
    let text = std::fs::read_to_string(&out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("{\"run\":\"first\",\"version\":1,\"time_s\":"), "{text}");
    assert!(
        lines[0].contains("\"event\":\"metrics\",\"step\":1,\"values\":{\"reward\":0.5,\"loss\":\"NaN\"}"),
        "{text}"
    );
    let read: Vec<Event> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((read.len(), &read[1]), (2, &events[3]), "an event, with the run's name");
}

#[test]
fn a_failed_run_sends_its_queued_records() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut sink = started(&script(dir.path(), &format!("cat > '{}'", out.display())));
    (1..=20).for_each(|step| sink.receive(&metrics(step)).unwrap());
    drop(sink);
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 20);
}

#[test]
fn a_missing_program_is_reported_once_and_its_records_are_counted() {
    let mut sink = started("command:./no/such/program x");
    let warning = testing::wait_for("the program cannot be started", || sink.check().unwrap());
    let why = "it cannot be started: no such program, or its interpreter is missing";
    assert_eq!(warning, format!("report_to command:./no/such/program x: {why}; the run continues"));
    (1..=3).for_each(|step| sink.receive(&metrics(step)).unwrap());
    assert_eq!(sink.check().unwrap(), None);
    let lost = format!("report_to command:./no/such/program x: 3 of 3 records did not reach it: {why}");
    assert_eq!(sink.flush(), Some(lost));
}

#[test]
fn a_program_that_ends_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let (out, ended) = (dir.path().join("out"), dir.path().join("ended"));
    let text = format!(
        "read -r line; echo \"$line\" >> '{}'; echo why >&2; echo $$ > '{}'; exit 3\n",
        out.display(),
        ended.display()
    );
    let mut sink = started(&script(dir.path(), &text));
    let lines = || std::fs::read_to_string(&out).unwrap_or_default().lines().count();
    for step in 1..=2 {
        sink.receive(&metrics(step)).unwrap();
        testing::wait_until("the record arrives", || lines() == step as usize);
        let id = testing::wait_for("the program ends", || {
            std::fs::read_to_string(&ended).ok().filter(|id| id.ends_with('\n'))
        });
        testing::wait_until("the program has ended", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }
    let warning = sink.check().unwrap().unwrap();
    assert!(
        warning
            .contains("the program exited (exit status: 3); the last lines of its standard error:\n  | why; the run"),
        "{warning}"
    );
    let end = sink.flush().unwrap();
    assert!(end.contains(": it ended (exit status: 3); ") && !end.contains("did not reach"), "{end}");
}

/// The run does not wait during training, and only some seconds at its end.
#[test]
fn a_program_that_does_not_read_does_not_block_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut sink = started(&script(dir.path(), "exec sleep 600"));
    let values: Vec<(String, f64)> = (0..100).map(|i| (format!("metric {i}"), f64::from(i))).collect();
    let event = Event::from(EventKind::Metrics { step: Step(1), values });
    (0..QUEUE + 500).for_each(|_| sink.receive(&event).unwrap());
    let warning = sink.check().unwrap().unwrap();
    assert!(warning.contains("it is slower than the run: 1000 records wait, and new ones are dropped"), "{warning}");
    let lost = sink.flush().unwrap();
    assert!(lost.contains(" of 1500 records did not reach it: it is slower than the run"), "{lost}");
    let count: usize = lost.split(": ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((500..=1500).contains(&count), "{lost}");
    let mut idle = started(&script(dir.path(), "exec sleep 600"));
    idle.receive(&metrics(1)).unwrap();
    let end = idle.flush().unwrap();
    assert!(end.ends_with(": it was still running after the run's end, and was killed"), "{end}");
}

#[test]
fn an_address_gets_requests_with_the_token() {
    let (url, got) = service(&["200 OK"]);
    let mut sink = receivers(&[url], Some(" hush-1\n")).unwrap().start().unwrap();
    (1..=2).for_each(|step| sink.receive(&metrics(step)).unwrap());
    assert_eq!(sink.flush(), None);
    for step in 1..=2 {
        let request = testing::receive("a request", &got);
        let head = request.to_ascii_lowercase();
        assert!(
            head.starts_with("post /records http/1.1") && head.contains("authorization: bearer hush-1\r\n"),
            "{head}"
        );
        assert!(head.contains("content-type: application/json\r\n"), "{head}");
        assert_eq!((&body(&request)["step"], &body(&request)["run"]), (&step.into(), &"first".into()));
    }
}

#[test]
fn requests_are_retried_if_this_may_help() {
    let (url, got) = service(&["503 Service Unavailable", "200 OK"]);
    let mut sink = started(&url);
    sink.receive(&metrics(1)).unwrap();
    let steps = [(); 2].map(|()| body(&testing::receive("a request", &got))["step"].clone());
    assert_eq!(steps, [1, 1], "the same record is sent again");
    let warning = testing::wait_for("a warning", || sink.check().unwrap());
    assert_eq!(
        warning,
        format!("report_to {url}: {url} answered with status 503 Service Unavailable; the run continues")
    );
    assert_eq!(sink.flush(), None, "no record was lost");

    // Neither the answer of a service nor a token in it is ever printed.
    let (url, got) = service(&["404 hush-1", "302 Found", "200 OK"]);
    let mut sink = receivers(std::slice::from_ref(&url), Some("hush-1")).unwrap().start().unwrap();
    (1..=3).for_each(|step| sink.receive(&metrics(step)).unwrap());
    let steps = [(); 3].map(|()| body(&testing::receive("a request", &got))["step"].clone());
    assert_eq!(steps, [1, 2, 3]);
    let lost = sink.flush().unwrap();
    assert!(
        lost.starts_with(&format!("report_to {url}: 2 of 3 records did not reach it: {url} answered with")),
        "{lost}"
    );
    assert!(!lost.contains("hush-1"), "{lost}");
}

#[test]
fn an_unreachable_service_delays_the_end_by_only_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let mut sink = started(&url);
    (1..=5).for_each(|step| sink.receive(&metrics(step)).unwrap());
    let lost = sink.flush().unwrap();
    assert!(lost.starts_with(&format!("report_to {url}: 5 of 5 records did not reach it: {url}: ")), "{lost}");
    // A server that does not answer.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut sink = started(&url);
    sink.receive(&metrics(1)).unwrap();
    let lost = sink.flush().unwrap();
    assert_eq!(
        lost,
        format!("report_to {url}: 1 of 1 records did not reach it: it was still busy 3s after the run's end")
    );
}

#[test]
fn a_token_for_two_hosts_is_refused() {
    let two = ["http://a.example/x", "http://a.example/y", "https://b.example:8/"].map(str::to_owned);
    assert_eq!(receivers(&two, None).unwrap().list.len(), 3);
    assert_eq!(receivers(&two, Some("  ")).unwrap().list.len(), 3, "an empty token does not count");
    assert_eq!(receivers(&two[..2], Some("hush")).unwrap().list.len(), 2);
    let refused = receivers(&two, Some("hush")).err().expect("refused").to_string();
    assert!(refused.starts_with("`report_to` names a.example and b.example:8, but the token in"), "{refused}");
    assert!(!refused.contains("hush") && receivers(&[], None).unwrap().start().is_none());
}
