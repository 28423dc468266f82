use super::*;
use crate::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A blob in memory, which may lie, or go.
struct Bytes {
    bytes: Vec<u8>,
    /// Reads that give a changed bit, from the first after the head on.
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
fn a_blob_comes_whole_and_its_head_is_hashed_once() {
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
fn a_changed_bit_is_seen_and_asked_for_again() {
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
    assert!(error.contains("block 0 of") && error.contains("another hash"), "{error}");
}

/// Passes connections on, and cuts each after so many bytes of answers.
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
fn a_cut_connection_costs_a_block_and_not_the_blob() {
    let source = Bytes::new(LENGTH);
    let server = serve(&source, None);
    // A block and a half: the second one is asked for again, and the first is not.
    let (address, cuts) = cutting(server.address(), BLOCK as usize * 3 / 2);
    let client = client_of(address, None);
    assert_eq!(client.bytes("it", &never).unwrap().unwrap(), source.bytes);
    assert!(cuts.load(Ordering::SeqCst) >= 1);
    let reads = source.reads.lock().unwrap().clone();
    assert_eq!(reads.iter().filter(|&&at| at == 0).count(), 2, "for its hash, and once more: {reads:?}");
}

#[test]
fn what_is_gone_ends_a_fetch_and_a_server_that_comes_back_continues_it() {
    let source = Bytes::new(LENGTH);
    let server = serve(&source, None);
    let address = server.address();
    let client = client_of(address, None);
    let head = client.head("it", &never).unwrap().unwrap();
    drop(server);
    let tried = AtomicUsize::new(0);
    let stop = || tried.fetch_add(1, Ordering::SeqCst) > 2;
    assert!(!client.fetch("it", &head, &mut |_, _| Ok(()), &stop).unwrap(), "nobody is there, and it was stopped");
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
