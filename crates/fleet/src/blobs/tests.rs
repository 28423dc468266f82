use super::*;
use crate::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A blob in memory that can return corrupted bytes or disappear.
struct Bytes {
    bytes: Vec<u8>,
    /// The number of reads after the head that return a flipped bit.
    lies: AtomicUsize,
    gone: AtomicBool,
    reads: Mutex<Vec<u64>>,
}

impl Bytes {
    fn new(length: u64) -> Arc<Bytes> {
        let bytes = (0..length).map(|i| (i * 31 % 251) as u8).collect();
        Arc::new(Bytes { bytes, lies: AtomicUsize::new(0), gone: AtomicBool::new(false), reads: Mutex::default() })
    }
}

impl Source for Bytes {
    fn about(&self, name: &str) -> std::io::Result<Option<(u64, serde_json::Value)>> {
        let is_there = name == "it" && !self.gone.load(Ordering::SeqCst);
        Ok(is_there.then(|| (self.bytes.len() as u64, serde_json::json!({"version": 7}))))
    }

    fn read(&self, _: &str, at: u64, out: &mut [u8]) -> std::io::Result<bool> {
        self.reads.lock().unwrap().push(at);
        out.copy_from_slice(&self.bytes[at as usize..][..out.len()]);
        if self.lies.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |lies| lies.checked_sub(1)).is_ok() {
            out[0] ^= 1;
        }
        Ok(!self.gone.load(Ordering::SeqCst))
    }
}

const LENGTH: u64 = 2 * BLOCK + 12_345;

fn serve(source: &Arc<Bytes>, bearer: Option<&str>) -> Server {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    Server::start(listen, bearer.map(str::to_owned), source.clone()).unwrap()
}

fn client_of(address: SocketAddr, bearer: Option<&str>) -> Client {
    Client::new(&address.to_string(), bearer, |_| ())
}

fn never() -> bool {
    false
}

#[test]
fn a_blob_is_fetched_completely_and_its_head_is_computed_once() {
    let source = Bytes::new(LENGTH);
    let server = serve(&source, Some("secret"));
    let client = client_of(server.address(), Some("secret"));
    let head = client.head("it", &never).unwrap().unwrap();
    assert_eq!((head.bytes, head.hashes.len(), &head.about["version"]), (LENGTH, 3, &7.into()));
    assert_eq!(client.bytes("it", &never).unwrap().unwrap(), source.bytes);
    assert_eq!(source.reads.lock().unwrap().len(), 6, "three blocks for the head, three for the bytes");
    assert_eq!(client.head("another", &never).unwrap(), None);
    let empty = Bytes::new(0);
    let server = serve(&empty, None);
    assert_eq!(client_of(server.address(), None).bytes("it", &never).unwrap(), Some(Vec::new()));
}

#[test]
fn a_wrong_token_is_refused() {
    let source = Bytes::new(10);
    let server = serve(&source, Some("secret"));
    for bearer in [None, Some("secre"), Some("Secret"), Some("secret1"), Some("")] {
        let refused = client_of(server.address(), bearer).bytes("it", &never).unwrap_err();
        assert!(matches!(&refused, Error::Refused(why) if why.contains("refuses the token")), "{refused}");
    }
    assert!(source.reads.lock().unwrap().is_empty());
    assert_ne!(bearer("a"), bearer("b"));
    assert_eq!(bearer("a").len(), 64);
}

#[test]
fn a_block_with_a_flipped_bit_is_requested_again() {
    let source = Bytes::new(LENGTH);
    let server = serve(&source, None);
    let client = client_of(server.address(), None);
    let head = client.head("it", &never).unwrap().unwrap();
    let mut got = vec![0; LENGTH as usize];
    let mut sink = |at: u64, block: &[u8]| {
        got[at as usize..][..block.len()].copy_from_slice(block);
        Ok(())
    };
    source.lies.store(2, Ordering::SeqCst);
    assert!(client.fetch("it", &head, &mut sink, &never).unwrap());
    assert_eq!(got, source.bytes);
    source.lies.store(usize::MAX, Ordering::SeqCst);
    let mut sink = |_, _: &[u8]| -> crate::Result<()> { panic!("bytes with a wrong hash") };
    let error = client.fetch("it", &head, &mut sink, &never).unwrap_err().to_string();
    assert!(error.contains("block 0 of") && error.contains("wrong hash"), "{error}");
}

/// A proxy that closes each connection after `after` bytes of responses.
fn cutting(to: SocketAddr, after: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, cuts) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = cuts.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(mut client), Ok(mut server)) = (client, TcpStream::connect(to)) else { return };
            let (mut asks, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut asks, &mut answers));
            let (mut left, mut buffer) = (after, vec![0; 1 << 16]);
            while let Ok(read @ 1..) = server.read(&mut buffer) {
                let passed = read.min(left);
                left -= passed;
                if client.write_all(&buffer[..passed]).is_err() || left == 0 {
                    break;
                }
            }
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = (client.shutdown(std::net::Shutdown::Both), server.shutdown(std::net::Shutdown::Both));
        }
    });
    (address, cuts)
}

#[test]
fn only_one_block_is_fetched_again_after_a_lost_connection() {
    let source = Bytes::new(LENGTH);
    let server = serve(&source, None);
    // The connection breaks in the second block, so only that block is requested again.
    let (address, cuts) = cutting(server.address(), BLOCK as usize * 3 / 2);
    let client = client_of(address, None);
    assert_eq!(client.bytes("it", &never).unwrap().unwrap(), source.bytes);
    assert!(cuts.load(Ordering::SeqCst) >= 1);
    let reads = source.reads.lock().unwrap().clone();
    assert_eq!(reads.iter().filter(|&&at| at == 0).count(), 2, "one read for the hash, one for the fetch: {reads:?}");
}

#[test]
fn a_fetch_survives_a_restart_of_the_server_and_ends_if_the_blob_is_deleted() {
    let source = Bytes::new(LENGTH);
    let server = serve(&source, None);
    let address = server.address();
    let client = client_of(address, None);
    let head = client.head("it", &never).unwrap().unwrap();
    drop(server);
    let tried = AtomicUsize::new(0);
    let stop = || tried.fetch_add(1, Ordering::SeqCst) > 2;
    assert!(!client.fetch("it", &head, &mut |_, _| Ok(()), &stop).unwrap(), "no server, and `stop` is true");
    let late = source.clone();
    let back = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        Server::start(address, None, late).unwrap()
    });
    let mut seen = 0;
    let mut sink = |_, block: &[u8]| {
        seen += block.len() as u64;
        Ok(())
    };
    assert!(client.fetch("it", &head, &mut sink, &never).unwrap());
    assert_eq!(seen, LENGTH);
    source.gone.store(true, Ordering::SeqCst);
    assert!(!client.fetch("it", &head, &mut |_, _| Ok(()), &never).unwrap());
    drop(back.join().unwrap());
}

/// Sends a request with these headers. Returns the status, content type and body of the response.
fn raw(address: SocketAddr, path: &str, headers: &str) -> (u16, String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default().to_owned();
    (status, kind, bytes[end + 4..].to_vec())
}

#[test]
fn the_server_returns_exact_ranges_and_refuses_invalid_ones() {
    let source = Bytes::new(LENGTH);
    let server = serve(&source, Some("secret"));
    let token = "Authorization: Bearer secret\r\n";
    let get = |range: &str| raw(server.address(), "/blobs/it/data", &format!("{token}Range: {range}\r\n"));
    let (status, kind, body) = get("bytes=3-6");
    assert_eq!((status, kind.as_str(), &body[..]), (206, "application/octet-stream", &source.bytes[3..7]));
    assert_eq!(get("bytes=7-7").2, source.bytes[7..8]);
    let last = LENGTH - 1;
    assert_eq!(get(&format!("bytes={last}-{last}")).2, source.bytes[last as usize..]);
    assert_eq!(get(&format!("bytes=0-{}", BLOCK - 1)).2.len() as u64, BLOCK, "one block");
    assert_eq!(server.bytes_sent(), 4 + 1 + 1 + BLOCK);
    let reads = source.reads.lock().unwrap().len();
    let beyond = [format!("bytes=0-{BLOCK}"), format!("bytes={last}-{LENGTH}"), "bytes=4-3".to_owned()];
    for range in beyond.iter().map(String::as_str).chain(["bytes=1-", "bytes=-1", "0-1", "bytes=a-b", "bytes=1-2,4-5"])
    {
        let (status, _, why) = get(range);
        assert_eq!((status, &why[..]), (416, &b"request a byte range of at most one block"[..]), "{range}");
    }
    assert_eq!(raw(server.address(), "/blobs/it/data", token).0, 416);
    assert_eq!((source.reads.lock().unwrap().len(), server.bytes_sent()), (reads, 6 + BLOCK));
    for headers in ["", "Authorization: secret\r\n", "Authorization: Bearer secre\r\n"] {
        let (status, _, why) = raw(server.address(), "/blobs/it/head", headers);
        assert_eq!((status, &why[..]), (401, &b"wrong token"[..]));
        assert_eq!(raw(server.address(), "/blobs/it/data", headers).0, 401);
    }
    let (status, kind, head) = raw(server.address(), "/blobs/it/head", token);
    let head: Head = serde_json::from_slice(&head).unwrap();
    assert_eq!((status, kind.as_str(), head.block, head.bytes), (200, "application/json", BLOCK, LENGTH));
    assert_eq!(head.hashes[2], hash(&source.bytes[2 * BLOCK as usize..]));
    let (status, _, why) = raw(server.address(), "/blobs/other/head", token);
    assert_eq!((status, &why[..]), (404, &b"no such blob, or it was deleted"[..]));
}

#[test]
fn a_head_divides_a_blob_into_blocks() {
    let head = |bytes: u64, block: u64, hashes: usize| Head {
        bytes,
        block,
        hashes: vec![String::new(); hashes],
        about: 0.into(),
    };
    let ten = head(10, 4, 3);
    assert_eq!([0, 1, 2].map(|index| ten.range(index)), [0..4, 4..8, 8..10]);
    let sound = |bytes, block, hashes| head(bytes, block, hashes).is_sound();
    assert!(sound(10, 4, 3) && sound(8, 4, 2) && sound(0, 1, 0) && sound(BLOCK, BLOCK, 1));
    assert!(!sound(10, 4, 2) && !sound(8, 4, 3) && !sound(1, 0, 1) && !sound(1, BLOCK + 1, 1));
    let secret: String = Sha256::digest(b"lockstep blobs\0a").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(bearer("a"), secret);
    assert_eq!(hash(b"x").len(), 32);
}

/// A server that sends these responses, one for each connection.
fn answering(answers: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (answer, stream) in answers.iter().zip(listener.incoming()) {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            let _ = stream.read(&mut asked).and_then(|_| stream.write_all(answer.as_bytes()));
        }
    });
    address
}

#[test]
fn a_client_retries_only_temporary_failures() {
    let answer = |status: u16, body: &str| {
        format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    };
    let head = |answers: &[String]| client_of(answering(answers.to_vec()), None).head("it", &never);
    let good = r#"{"bytes": 3, "block": 3, "hashes": ["h"], "about": 1}"#;
    let found = head(&[answer(503, ""), answer(200, good)]).unwrap().unwrap();
    assert_eq!((found.bytes, found.hashes.len()), (3, 1));
    assert_eq!(head(&[answer(404, "")]).unwrap(), None);
    let why = |answers: &[String]| head(answers).unwrap_err().to_string();
    assert!(why(&[answer(418, "")]).ends_with("/blobs/it/head: HTTP status 418"), "{}", why(&[answer(418, "")]));
    assert!(why(&[answer(200, "{}")]).contains("/blobs/it/head is not the head of a blob: missing field `bytes`"));
    let unsound = r#"{"bytes": 4, "block": 3, "hashes": ["h"], "about": 1}"#;
    assert!(
        why(&[answer(200, unsound)])
            .ends_with("/blobs/it/head: `bytes`, `block` and the number of hashes do not match")
    );
    // A block of the wrong length is requested again.
    let head = Head { bytes: 3, block: 3, hashes: vec![hash(b"abc")], about: 0.into() };
    let answers = vec![answer(206, "ab"), answer(206, "abcd"), answer(206, "abc")];
    let mut got = Vec::new();
    let mut sink = |at: u64, block: &[u8]| {
        got.push((at, block.to_vec()));
        Ok(())
    };
    assert!(client_of(answering(answers), None).fetch("it", &head, &mut sink, &never).unwrap());
    assert_eq!(got, [(0, b"abc".to_vec())]);
    let stopped = client_of(answering(vec![answer(206, "ab")]), None);
    assert!(!stopped.fetch("it", &head, &mut |_, _| Ok(()), &|| true).unwrap());
}
