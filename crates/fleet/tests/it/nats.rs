//! Tests of learner and workers over a real NATS server, which is killed and loses its data. Needs `nats-server` (the
//! Debian package of that name).

use crate::fake::{FakeWork, check_log, learn, sequential, slots};
use fleet::Error;
use fleet::exchange::nats::{Address, NatsLearner, NatsOptions, NatsWorker};
use fleet::exchange::{Exchange, WorkerExchange};
use fleet::worker::{End, Worker};
use fleet::{Plan, WorkerName};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use testing::{NATS_TOKEN as TOKEN, NatsServer};

/// A server with a self-signed certificate for 127.0.0.1.
fn encrypted(dir: &Path) -> Option<(NatsServer, PathBuf)> {
    NatsServer::installed()?;
    let [key, certificate] = ["key.pem", "cert.pem"].map(|name| dir.join(name));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]);
    // Without this the certificate would be a CA certificate, which clients refuse.
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    let output = openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate).output().expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [key, file] = [&key, &certificate].map(|path| path.to_str().unwrap());
    Some((NatsServer::with(&["-js", "--tls", "--tlscert", file, "--tlskey", key])?, certificate))
}

pub fn options_of(server: &NatsServer, token: Option<&str>) -> NatsOptions {
    let address = Address::parse(&server.url()).unwrap();
    NatsOptions { address, token: token.map(str::to_owned), certificates: None }
}

fn learner(server: &NatsServer, out: &Path) -> NatsLearner {
    NatsLearner::open(out, &options_of(server, Some(TOKEN))).unwrap()
}

fn name(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

pub fn plan(batches: u64, k: u64, chunks: bool) -> Plan {
    Plan { chunks, ..Plan::new(batches, 3, k) }
}

pub fn work(out: &Path, options: &NatsOptions, called: &str, slots: usize, takes: Duration) -> End {
    let mut fake = FakeWork::new(out, slots, takes, false);
    let exchange = NatsWorker::join(options, name(called)).unwrap();
    let end = Worker::new(exchange, name(called), Vec::new()).run(&mut fake, &|| false);
    end.unwrap()
}

#[test]
fn workers_over_nats_reproduce_the_sequential_run() {
    let Some(server) = NatsServer::start() else { return };
    for (k, chunks, workers) in [(0, false, 1), (2, true, 3)] {
        let out = tempfile::tempdir().unwrap();
        let plan = plan(8, k, chunks);
        std::thread::scope(|scope| {
            for i in 0..workers {
                let (out, slots, options) = (out.path(), slots(&plan), options_of(&server, Some(TOKEN)));
                let takes = Duration::from_millis(2);
                scope.spawn(move || assert_eq!(work(out, &options, &format!("w{i}"), slots, takes), End::RunEnded));
            }
            let end = learn(out.path(), plan.clone(), learner(&server, out.path()), 3, &|| false).unwrap();
            assert_eq!(end, Some(sequential(&plan)), "k = {k}, chunks: {chunks}, {workers} workers");
        });
        let learner = fleet::status::read(out.path()).unwrap().learner.unwrap();
        assert!(learner.ended && learner.counts.differing == 0, "{:?}", learner.counts);
    }
}

#[test]
fn an_encrypted_server_needs_a_trusted_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let Some((server, certificate)) = encrypted(dir.path()) else { return };
    let mut options = options_of(&server, Some(TOKEN));
    options.address = Address::parse(&format!("tls://127.0.0.1:{}/test", server.port)).unwrap();
    // The certificate is not signed by an authority that the system knows.
    let stranger = NatsWorker::join(&options, name("dev1")).map(drop).unwrap_err().to_string();
    assert!(stranger.contains("cannot be trusted") && stranger.contains("--nats-ca"), "{stranger}");
    options.certificates = Some(certificate);
    let out = tempfile::tempdir().unwrap();
    let plan = plan(4, 1, false);
    std::thread::scope(|scope| {
        let (at, slots, joined) = (out.path(), slots(&plan), options.clone());
        scope.spawn(move || assert_eq!(work(at, &joined, "w0", slots, Duration::from_millis(2)), End::RunEnded));
        let exchange = NatsLearner::open(out.path(), &options).unwrap();
        assert_eq!(learn(out.path(), plan.clone(), exchange, 3, &|| false).unwrap(), Some(sequential(&plan)));
    });
}

/// The server is killed three times in a run, and its store is deleted each time.
#[test]
fn killing_and_emptying_the_server_changes_no_bit() {
    let Some(mut server) = NatsServer::start() else { return };
    let out = tempfile::tempdir().unwrap();
    let plan = plan(24, 2, true);
    let (ended, emptied) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let takes = Duration::from_millis(60);
        for i in 0..2 {
            let (out, slots, options) = (out.path(), slots(&plan), options_of(&server, Some(TOKEN)));
            scope.spawn(move || work(out, &options, &format!("w{i}"), slots, takes));
        }
        let exchange = learner(&server, out.path());
        let learner = scope.spawn(|| {
            let end = learn(out.path(), plan.clone(), exchange, 5, &|| false);
            ended.store(true, Ordering::SeqCst);
            end.unwrap()
        });
        let log = out.path().join("trained.log");
        let trained = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
        for at in [4, 10, 16] {
            while trained() < at && !ended.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            server.empty();
            std::thread::sleep(Duration::from_millis(700));
            emptied.fetch_add(usize::from(!ended.load(Ordering::SeqCst)), Ordering::SeqCst);
            server.begin();
        }
        assert_eq!(learner.join().unwrap(), Some(sequential(&plan)));
    });
    assert_eq!(emptied.load(Ordering::SeqCst), 3, "the run must not end before the third kill");
    assert!(check_log(out.path()).unwrap() >= 24, "every batch must be trained on");
    let counts = fleet::status::read(out.path()).unwrap().learner.unwrap().counts;
    assert_eq!((counts.differing, counts.died), (0, 0), "{counts:?}");
    eprintln!("the server was killed and emptied three times: {counts:?}");
}

#[test]
fn impossible_connections_are_refused_with_the_reason() {
    let Some(server) = NatsServer::start() else { return };
    let out = tempfile::tempdir().unwrap();
    let refused = |result: fleet::Result<()>| match result {
        Err(Error::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let open = |out: &Path, options: &NatsOptions| NatsLearner::open(out, options).map(drop);
    let join = |options: &NatsOptions| NatsWorker::join(options, name("dev1")).map(drop);
    for (token, why) in [(Some("wrong"), "refuses the token"), (None, "requires a token")] {
        let options = options_of(&server, token);
        assert!(refused(join(&options)).contains(why));
        assert!(refused(open(out.path(), &options)).contains(why));
    }
    let mut nobody = options_of(&server, None);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    nobody.address = Address::parse(&format!("nats://127.0.0.1:{port}")).unwrap();
    assert!(refused(join(&nobody)).contains("no NATS server answers"));
    let plain = NatsServer::with(&[]).unwrap();
    assert!(
        refused(open(out.path(), &options_of(&plain, Some(TOKEN))))
            .contains("cannot create this run's JetStream streams")
    );
    // A second learner with the same name, and a second worker.
    let mut first = learner(&server, out.path());
    let learner = fleet::exchange::LearnerState { pid: 4711, ..idle() };
    first.announce(&learner).unwrap();
    let other = tempfile::tempdir().unwrap();
    let why = refused(open(other.path(), &options_of(&server, Some(TOKEN))));
    assert!(why.contains("a learner already uses the name test") && why.contains("4711"), "{why}");
    let mut one = NatsWorker::join(&options_of(&server, Some(TOKEN)), name("dev1")).unwrap();
    let until = |worker: &mut NatsWorker, is_it: &dyn Fn(&fleet::Result<bool>) -> bool| {
        testing::wait_for("the worker hears from the learner or is refused", || {
            let there = worker.learner().map(|learner| learner.is_some());
            is_it(&there).then_some(there)
        })
    };
    assert!(until(&mut one, &|there| matches!(there, Ok(true))).unwrap());
    let mut two = NatsWorker::join(&options_of(&server, Some(TOKEN)), name("dev1")).unwrap();
    let why = until(&mut two, &|there| there.is_err()).unwrap_err().to_string();
    assert!(why.contains("a worker named dev1 is already running"), "{why}");
    assert!(one.learner().unwrap().is_some(), "the first worker must stay");
}

fn idle() -> fleet::exchange::LearnerState {
    serde_json::from_value(serde_json::json!({
        "pid": 1, "step": 0, "batches": 1, "groups": 1, "max_staleness": 0,
        "lineage": "00000000000000000000000000000000",
        "ended": false, "checkpoints": {"last": null, "waiting": []},
        "counts": fleet::exchange::Counts::default(),
    }))
    .unwrap()
}

/// A result above the message size limit is split, and reassembled by the learner.
#[test]
fn large_results_are_split_into_messages() {
    use fleet::coordinator::Event;
    use fleet::{Answer, GroupId, Job, JobName, JobResult, Version};
    let Some(server) = NatsServer::start() else { return };
    let out = tempfile::tempdir().unwrap();
    let mut learner = learner(&server, out.path());
    learner.announce(&idle()).unwrap();
    let mut worker = NatsWorker::join(&options_of(&server, Some(TOKEN)), name("dev1")).unwrap();
    let lineage = crate::fake::lineage(1);
    let job = JobName::first(GroupId(3));
    let payload = b"prompt".to_vec();
    let (profile, continues) = ("any".to_owned(), None);
    learner.offer(&Job { name: job, version: Version(0), lineage, continues, alone: false, profile, payload }).unwrap();
    let claimed = testing::wait_for("the worker gets the job", || {
        worker.learner().unwrap()?;
        worker.claim(&[]).unwrap()
    });
    assert_eq!((claimed.name, &claimed.payload[..]), (job, &b"prompt"[..]));
    let bytes: Vec<u8> = (0..3_500_000u32).map(|i| (i % 253) as u8).collect();
    let result = JobResult { job, lineage, worker: name("dev1"), answer: Answer::of(&bytes), bytes };
    worker.complete(&result).unwrap();
    testing::wait_until("the learner receives the result", || {
        let is_result = |event: &Event| matches!(event, Event::Result { job: done, .. } if *done == job);
        learner.poll().unwrap().iter().any(is_result)
    });
    assert_eq!(learner.take(&name("dev1"), job), Some(result));
    learner.acknowledge(&[job]).unwrap();
}
