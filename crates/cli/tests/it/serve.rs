//! `lockstep serve`: bad arguments are refused before the model is loaded, completions are those of
//! `lockstep generate`, and Ctrl-C completes open requests.

use crate::support::runs::{arguments, directory, good};
use crate::support::{command, lockstep, refused};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

#[test]
fn bad_arguments_of_a_server_are_refused_with_their_fix() {
    let dir = directory();
    let root = dir.path();
    let serve = |more: &[&'static str]| [&["serve", "--listen", "127.0.0.1:0"][..], more].concat();
    refused(root, &serve(&["--model", "missing"]), &["missing"]);
    refused(root, &serve(&["--model", "model", "--adapter", "model"]), &["--adapter model: expected NAME=DIR"]);
    refused(root, &serve(&["--model", "model", "--adapter", "a=b"]), &["--adapter a=b: b is not a directory"]);
    refused(root, &serve(&["--model", "model", "--adapter", "a=model"]), &["adapter a: ", "PEFT adapter"]);
    refused(root, &serve(&["--model", "model", "--max-model-len", "65"]), &["--max-model-len 65: expected 2 to 64"]);
    refused(root, &serve(&["--model", "model", "--kv-cache-blocks", "1"]), &["--kv-cache-blocks"]);
    refused(root, &serve(&["--model", "model", "--api-key-file", "none"]), &["--api-key-file none: "]);
    refused(root, &["serve", "--model", "model", "--listen", "8000"], &["--listen 8000: expected HOST:PORT"]);
    let open = ["serve", "--model", "model", "--listen", "0.0.0.0:0"];
    refused(root, &open, &["LOCKSTEP_API_KEY", "--api-key-file"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(root, &["serve", "--model", "model", "--listen", &address], &["cannot listen on", ":0 for any free port"]);
}

/// A server of the program, and its host and port.
struct Server {
    child: Child,
    host: String,
}

fn start(root: &Path, more: &[&str]) -> Server {
    let arguments = [&["serve", "--model", "model", "--listen", "127.0.0.1:0"][..], more].concat();
    started(command(root, &arguments))
}

fn started(mut command: Command) -> Server {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut printed = Vec::new();
    let url = lines.into_iter().find_map(|line| {
        printed.push(line.clone());
        line.split_once(" at http://").map(|(_, url)| url.to_owned())
    });
    let host = url.unwrap_or_else(|| panic!("{printed:?}"));
    assert!(printed[0].starts_with("qwen3 · ") && printed[1].contains("KV cache"), "{printed:?}");
    Server { child, host }
}

impl Server {
    fn send(&self, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(testing::HANG)).unwrap();
        let (host, body) = (&self.host, body.to_string());
        let length = body.len();
        write!(
            stream,
            "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    fn choices(&self, body: &Value) -> Vec<Value> {
        let mut text = String::new();
        self.send(body).read_to_string(&mut text).unwrap();
        let json: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        json["choices"].as_array().unwrap_or_else(|| panic!("{json}")).clone()
    }
}

#[test]
fn served_completions_equal_generated_ones_and_a_signal_completes_the_open_ones() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "lora", &["use_peft=true", "max_steps=2"]));
    let mut server = start(root, &["--adapter", "tuned=lora/model"]);
    let sampling = ["--prompt", "ab", "--raw", "--n", "3", "--seed", "9", "--max-new-tokens", "20", "--json"];
    for (name, adapter) in [("model", &[][..]), ("tuned", &["--adapter", "lora/model"])] {
        let printed = lockstep(root, &[&["generate", "--model", "model"], &sampling[..], adapter].concat());
        let lines = printed.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let generated: Vec<_> = lines.map(|line| (line["completion_ids"].clone(), line["logprobs"].clone())).collect();
        let body = json!({"model": name, "prompt": "ab", "n": 3, "seed": 9, "max_tokens": 20, "logprobs": 0,
                          "return_token_ids": true});
        let served = server.choices(&body);
        let served: Vec<_> = served
            .iter()
            .map(|choice| (choice["token_ids"].clone(), choice["logprobs"]["token_logprobs"].clone()))
            .collect();
        assert_eq!(generated.len(), 3);
        for ((ids, logps), (served_ids, served_logps)) in generated.iter().zip(&served) {
            let bits = |logps: &Value| -> Vec<u32> {
                logps.as_array().unwrap().iter().map(|logp| (logp.as_f64().unwrap() as f32).to_bits()).collect()
            };
            assert_eq!((ids, bits(logps)), (served_ids, bits(served_logps)), "{name}");
        }
    }
    let body = json!({"model": "model", "prompt": "a", "max_tokens": 60, "n": 64, "ignore_eos": true, "stream": true});
    let mut stream = BufReader::new(server.send(&body));
    let mut first = String::new();
    while !first.starts_with("data: ") {
        first.clear();
        stream.read_line(&mut first).unwrap();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&server.child), rustix::process::Signal::INT)
        .unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.matches("data: {").count(), rest.matches("data: [DONE]").count()), (60 * 64 - 1, 1));
    let ended = testing::wait_for_end("the server", &mut server.child);
    assert_eq!(ended.code(), Some(130));
    let mut printed = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(printed.contains("SIGINT: the server completes open requests and exits"), "{printed}");
}

#[test]
fn idle_connections_beyond_the_limit_of_open_files_keep_nobody_out() {
    let dir = directory();
    let program = command(dir.path(), &["serve", "--model", "model", "--listen", "127.0.0.1:0"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\""]).arg(program.get_program()).args(program.get_args());
    limited.current_dir(dir.path());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let mut server = started(limited);
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&server.host).unwrap()).collect();
    assert_eq!(server.choices(&json!({"model": "model", "prompt": "ab", "max_tokens": 3})).len(), 1);
    drop(idle);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
}
