//! The page beside a run, and by itself: it changes nothing, and what is wrong is said.

use crate::support::runs::{arguments, directory, good, same_but_workers};
use crate::support::{command, lockstep};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

#[test]
fn a_run_with_a_page_has_the_bits_of_one_without_and_a_taken_port_stops_nothing() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "plain", &[]));
    good(root, &[&arguments("train", "shown", &[])[..], &["--dashboard=0"]].concat());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--dashboard={}", taken.local_addr().unwrap().port());
    let said = good(root, &[&arguments("train", "alone", &[])[..], &[&port]].concat());
    assert!(said.err.contains("no page: cannot listen"), "{}", said.err);
    same_but_workers(&root.join("plain"), &root.join("shown"));
    same_but_workers(&root.join("plain"), &root.join("alone"));
}

#[test]
fn the_page_shows_a_run_and_refuses_what_it_cannot_do() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "runs/a", &["record_rollouts=true"]));
    let missing = lockstep(root, &["dashboard", "nowhere"]);
    assert!(missing.code == Some(2) && missing.err.contains("nowhere: there is no such directory"), "{}", missing.err);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = lockstep(root, &["dashboard", "runs", "--port", &port]);
    assert!(said.code == Some(2) && said.err.contains("--port 0"), "{:?} {}", said.code, said.err);

    let mut page =
        command(root, &["dashboard", "--port", "0"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(page.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let host = url.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&host).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str::<serde_json::Value>(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    assert_eq!(get("/api/runs")[0]["state"], "finished");
    let group = get("/api/runs/a/groups/0");
    let pieces = group["completions"][0]["pieces"].as_array().unwrap();
    let text: String = pieces.iter().map(|piece| piece.as_str().unwrap()).collect();
    assert_eq!(pieces.len() as u64, group["completions"][0]["length"].as_u64().unwrap());
    assert!(!text.is_empty() && group["prompt"].is_string(), "{group}");
    // Ctrl-C, or a signal, ends it at once.
    page.kill().unwrap();
    page.wait().unwrap();
}
