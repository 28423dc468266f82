//! Tests with streams that do not answer requests for messages. nats-server 2.9.10 sometimes has such a stream after a
//! restart on an emptied store.

use crate::fake::{learn, sequential, slots};
use crate::nats::{options_of, plan, work};
use fleet::exchange::nats::{Address, NatsLearner, NatsOptions};
use fleet::worker::End;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testing::{NATS_TOKEN, NatsServer};

/// A proxy between clients and a server. It drops the clients' requests for messages from some streams. Once such a
/// stream is deleted, its requests pass.
struct Proxy {
    port: u16,
    /// The streams whose requests are dropped.
    deaf: Arc<Mutex<BTreeSet<String>>>,
}

impl Proxy {
    fn start(server: u16, deaf: &[&str]) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let deaf = Arc::new(Mutex::new(deaf.iter().map(|stream| (*stream).to_owned()).collect()));
        let shared = Arc::clone(&deaf);
        // The threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, deaf) = (client.unwrap(), Arc::clone(&shared));
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || drop(std::io::copy(&mut from_server, &mut to_client)));
                std::thread::spawn(move || drop(forward(client, server, &deaf)));
            }
        });
        Proxy { port, deaf }
    }
}

/// Forwards a client's data: lines, and the payloads of `PUB` and `HPUB`, whose byte count is the last word of the
/// line.
fn forward(client: TcpStream, mut server: TcpStream, deaf: &Mutex<BTreeSet<String>>) -> std::io::Result<()> {
    let mut client = BufReader::new(client);
    loop {
        let mut message = Vec::new();
        if client.read_until(b'\n', &mut message)? == 0 {
            return Ok(());
        }
        let line = String::from_utf8_lossy(&message).into_owned();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if !matches!(words.first(), Some(&"PUB" | &"HPUB")) {
            server.write_all(&message)?;
            continue;
        }
        let length: usize = words
            .last()
            .and_then(|number| number.parse().ok())
            .expect("a payload's line must end with its number of bytes");
        let start = message.len();
        message.resize(start + length + 2, 0);
        client.read_exact(&mut message[start..])?;
        let subject = words[1];
        if let Some(stream) = subject.strip_prefix("$JS.API.STREAM.DELETE.") {
            deaf.lock().unwrap().remove(stream);
        }
        let asked = subject.strip_prefix("$JS.API.CONSUMER.MSG.NEXT.").and_then(|rest| rest.split('.').next());
        if !asked.is_some_and(|stream| deaf.lock().unwrap().contains(stream)) {
            server.write_all(&message)?;
        }
    }
}

#[test]
#[ignore = "a minute: cargo xtask nightly network"]
fn an_unresponsive_stream_is_recreated() {
    let Some(server) = NatsServer::start() else { return };
    let cases: [&[&str]; 3] =
        [&["LOCKSTEP_test_JOBS"], &["LOCKSTEP_test_RESULTS"], &["LOCKSTEP_test_JOBS", "LOCKSTEP_test_RESULTS"]];
    for streams in cases {
        let proxy = Proxy::start(server.port, streams);
        let address = Address::parse(&format!("nats://127.0.0.1:{}/test", proxy.port)).unwrap();
        let options = NatsOptions { address, ..options_of(&server, Some(NATS_TOKEN)) };
        let out = tempfile::tempdir().unwrap();
        let plan = plan(6, 2, true);
        std::thread::scope(|scope| {
            for name in ["w0", "w1"] {
                let (out, slots, options) = (out.path(), slots(&plan), options.clone());
                let takes = Duration::from_millis(2);
                scope.spawn(move || assert_eq!(work(out, &options, name, slots, takes), End::RunEnded));
            }
            let exchange = NatsLearner::open(out.path(), &options).unwrap();
            let end = learn(out.path(), plan.clone(), exchange, 3, &|| false).unwrap();
            assert_eq!(end, Some(sequential(&plan)), "{streams:?}");
        });
        assert!(proxy.deaf.lock().unwrap().is_empty(), "{streams:?}: each stream must be deleted once, and recreated");
        let counts = fleet::status::read(out.path()).unwrap().learner.unwrap().counts;
        assert_eq!((counts.differing, counts.died), (0, 0), "{counts:?}");
    }
    eprintln!("runs on {} servers with deaf streams ended with the same bits", cases.len());
}
