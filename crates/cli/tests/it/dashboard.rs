//! The page of a run and `lockstep dashboard`: neither affects the run, and both report errors.

use crate::support::runs::{arguments, directory, good, same_but_workers};
use crate::support::{command, lockstep};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

#[test]
fn a_page_changes_no_bit_and_a_used_port_stops_no_run() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "plain", &[]));
    good(root, &[&arguments("train", "shown", &[])[..], &["--dashboard=0"]].concat());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--dashboard={}", taken.local_addr().unwrap().port());
    let output = good(root, &[&arguments("train", "alone", &[])[..], &[&port]].concat());
    assert!(output.err.contains("no dashboard: cannot listen"), "{}", output.err);
    same_but_workers(&root.join("plain"), &root.join("shown"));
    same_but_workers(&root.join("plain"), &root.join("alone"));
}

/// Some of 64 event streams are never read, others are read to the end, and new ones connect all the time.
#[test]
fn many_page_viewers_change_no_bit_of_a_run() {
    let dir = directory();
    let root = dir.path();
    let set = ["record_rollouts=true", "tensorboard=false", "logging_steps=1", "save_steps=12", "max_steps=150"];
    good(root, &arguments("train", "plain", &set));
    let arguments = [&arguments("train", "watched", &set)[..], &["--dashboard=0"]].concat();
    let mut run = command(root, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (BufReader::new(run.stdout.take().unwrap()), BufReader::new(run.stderr.take().unwrap()));
    let (send, lines) = std::sync::mpsc::channel();
    let streams: [Box<dyn BufRead + Send>; 2] = [Box::new(out), Box::new(err)];
    for stream in streams {
        let send = send.clone();
        std::thread::spawn(move || stream.lines().map_while(Result::ok).for_each(|line| drop(send.send(line))));
    }
    drop(send);
    let url = lines.iter().find_map(|line| Some(line.split_once("watch it at http://")?.1.to_owned())).unwrap();
    let host = url.trim().trim_end_matches('/').to_owned();
    let watch = || -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&host)?;
        write!(stream, "GET /api/events?run=watched HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
        Ok(stream)
    };
    let unread: Vec<TcpStream> = (0..20).map(|_| watch().unwrap()).collect();
    let read: Vec<_> = (0..43)
        .map(|_| watch().unwrap())
        .map(|mut stream| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = stream.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        })
        .collect();
    let mut visits = 0;
    while run.try_wait().unwrap().is_none() {
        // The connection fails if the run ends at this moment.
        let Ok(mut stream) = watch() else { continue };
        visits += usize::from(stream.read(&mut [0; 64]).is_ok_and(|count| count > 0));
    }
    assert!(run.wait().unwrap().success() && visits > 0, "{visits}");
    let texts: Vec<String> = read.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(texts.iter().all(|text| text.contains("event: ")), "{}", texts[0]);
    drop(unread);
    same_but_workers(&root.join("plain"), &root.join("watched"));
}

#[test]
fn the_page_shows_a_run_and_refuses_bad_requests() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "runs/a", &["record_rollouts=true"]));
    let missing = lockstep(root, &["dashboard", "nowhere"]);
    assert!(missing.code == Some(2) && missing.err.contains("nowhere: no such directory"), "{}", missing.err);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = lockstep(root, &["dashboard", "runs", "--port", &port]);
    assert!(output.code == Some(2) && output.err.contains("--port 0"), "{:?} {}", output.code, output.err);

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
    // A signal stops the page at once.
    page.kill().unwrap();
    page.wait().unwrap();
}
