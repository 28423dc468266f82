//! Models and datasets given by Hub ids, fetched from a local server that serves two directories.

use crate::support::{RunOutput, command, model};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server with the Hub's API for `ORG/NAME` and `datasets/ORG/NAME` below a root: lists of a repository's files, and
/// byte ranges of files.
struct Server {
    endpoint: String,
    files_served: Arc<AtomicUsize>,
    /// Whether the server truncates weight files.
    broken: Arc<AtomicBool>,
}

impl Server {
    fn start(root: PathBuf) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (files_served, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, cut) = (files_served.clone(), broken.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &root, &count, &cut);
            }
        });
        Server { endpoint, files_served, broken }
    }
}

fn answer(mut stream: TcpStream, root: &Path, count: &AtomicUsize, cut: &AtomicBool) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap()?;
    let mut first = None;
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
            let (from, to) = range.split_once('-').unwrap();
            first = Some((from.parse::<usize>().unwrap(), to.parse::<usize>().ok()));
        }
    }
    let path = request.split(' ').nth(1).unwrap();
    let head = |status: &str, length: usize, more: &str| {
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n")
    };
    if let Some(repository) = path.strip_prefix("/api/").and_then(|p| p.strip_suffix("/revision/main")) {
        let name = repository.strip_prefix("models/").unwrap_or(repository);
        let Ok(listing) = fs::read_dir(root.join(name)) else {
            return stream.write_all(head("404 Not Found", 0, "").as_bytes());
        };
        let names = listing.map(|e| e.unwrap().file_name().into_string().unwrap());
        let siblings: Vec<_> = names.map(|n| serde_json::json!({"rfilename": n})).collect();
        let body = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
        return stream.write_all((head("200 OK", body.len(), "Content-Type: application/json\r\n") + &body).as_bytes());
    }
    let (repository, file) = path.trim_start_matches('/').split_once("/resolve/main/").unwrap();
    let bytes = fs::read(root.join(repository).join(file))?;
    let (from, to) = first.unwrap();
    let to = to.map_or(bytes.len(), |to| to + 1);
    if to == bytes.len() {
        count.fetch_add(1, Ordering::Relaxed);
    }
    let more = format!(
        "ETag: \"{}-{}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Range: bytes {from}-{}/{}\r\n",
        repository.replace('/', "-"),
        file,
        to - 1,
        bytes.len()
    );
    stream.write_all(head("206 Partial Content", to - from, &more).as_bytes())?;
    let body = &bytes[from..to];
    let broken = cut.load(Ordering::Relaxed) && file.ends_with(".safetensors") && body.len() > 1;
    stream.write_all(if broken { &body[..body.len() / 2] } else { body })
}

/// Runs `lockstep` with this cache directory and this server.
fn lockstep(directory: &Path, endpoint: &str, arguments: &[&str]) -> RunOutput {
    let mut command = command(directory, arguments);
    command.env_remove("HF_HUB_OFFLINE").env("HF_HUB_CACHE", directory.join("cache")).env("HF_ENDPOINT", endpoint);
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    RunOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn hub_files_are_fetched_once_and_broken_downloads_continue() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("hub");
    model(&root.join("tiny/letters"));
    fs::write(root.join("tiny/letters/pytorch_model.bin"), "not wanted").unwrap();
    fs::create_dir_all(root.join("datasets/tiny/words")).unwrap();
    fs::write(root.join("datasets/tiny/words/train.jsonl"), "{\"prompt\": \"ab\"}\n".repeat(8)).unwrap();
    fs::write(root.join("datasets/tiny/words/README.md"), "not wanted").unwrap();
    let server = Server::start(root);
    let run = |endpoint: &str, out: &str| {
        let set = ["num_generations=2", "per_device_train_batch_size=4", "max_steps=1", "max_completion_length=4"];
        let mut arguments = vec!["train", "--model", "tiny/letters", "--dataset", "tiny/words", "--reward", "length:3"];
        arguments.extend(["--out", out]);
        for pair in &set {
            arguments.extend(["--set", *pair]);
        }
        lockstep(dir.path(), endpoint, &arguments)
    };

    server.broken.store(true, Ordering::Relaxed);
    let printed = run(&server.endpoint, "run");
    assert_eq!(printed.code, Some(2), "{}", printed.err);
    assert!(printed.err.contains("downloading it from") && !dir.path().join("run").exists(), "{}", printed.err);

    server.broken.store(false, Ordering::Relaxed);
    let printed = run(&server.endpoint, "run");
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    let repository = dir.path().join("cache/models--tiny--letters");
    let snapshot = repository.join("snapshots").join(COMMIT);
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    assert!(snapshot.join("model.safetensors").exists() && !snapshot.join("pytorch_model.bin").exists());
    let fetched = fs::read(snapshot.join("model.safetensors")).unwrap();
    assert_eq!(fetched, fs::read(dir.path().join("hub/tiny/letters/model.safetensors")).unwrap());

    let served = server.files_served.load(Ordering::Relaxed);
    let printed = run(&server.endpoint, "again");
    assert_eq!((printed.code, server.files_served.load(Ordering::Relaxed)), (Some(0), served), "{}", printed.err);

    let printed = lockstep(dir.path(), &server.endpoint, &["plan", "--model", "tiny/unknown"]);
    assert!(
        printed.code == Some(2) && printed.err.contains("tiny/unknown") && printed.err.contains("404"),
        "{}",
        printed.err
    );
}
