//! Ranks of made-up launches, as threads: early and late ones, and those that rank 0 refuses.

use super::*;
use crate::{Link, Peers};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, sync_channel};

/// A launch of its own for each test.
fn launches(world_size: usize) -> Vec<Launch> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    let launch = |rank: usize| {
        let variables = |name: &str| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(world_size.to_string()),
            "MASTER_ADDR" => Some(format!("tests of {}", process::id())),
            "MASTER_PORT" => Some(port.to_string()),
            _ => None,
        };
        Launch::of(&variables).unwrap().unwrap()
    };
    (0..world_size).map(launch).collect()
}

fn limits(join_ms: u64) -> Limits {
    let [heartbeat, silence, join, patience] = [20, 60_000, join_ms, 100].map(Duration::from_millis);
    Limits { heartbeat, silence, join, patience }
}

/// Joins, and sends back the messages of rank 0. Returns its exit code.
fn serve(launch: &Launch, build: &str) -> Result<Option<u8>> {
    let stream = join(launch, build, limits(60_000), &mut |_| {})?;
    let (sender, code) = sync_channel(1);
    let link = Link::of(stream, limits(0).heartbeat, move |code| sender.send(code).unwrap()).unwrap();
    while let Some(message) = link.receive() {
        link.send(&message).unwrap();
    }
    Ok(code.recv().unwrap())
}

fn all(rendezvous: &Rendezvous, join_ms: u64) -> Result<Peers> {
    Peers::launched(rendezvous, limits(join_ms), &|| false, &mut |_| {}, || {})
}

fn error<T>(result: Result<T>) -> String {
    result.err().expect("the exchange must fail").to_string()
}

#[test]
fn early_and_late_ranks_exchange_messages_and_exit_with_the_code_of_rank_0() {
    let all_launches = launches(4);
    thread::scope(|scope| {
        let start = |rank: usize, delay_ms: u64| {
            let launch = &all_launches[rank];
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(delay_ms));
                serve(launch, "a")
            })
        };
        let ranks = [start(1, 0), start(2, 600), start(3, 300)];
        thread::sleep(Duration::from_millis(100)); // rank 1 waits for rank 0
        let rendezvous = Rendezvous::open(all_launches[0].clone(), "a").unwrap();
        let dir = rendezvous.place.dir().to_owned();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        let mut notes = Vec::new();
        let mut note = |text: &str| notes.push(text.to_owned());
        let peers = Peers::launched(&rendezvous, limits(60_000), &|| false, &mut note, || {}).unwrap();
        assert!(notes.len() == 1 && notes[0].starts_with("rank 0 waits for rank"), "{notes:?}");
        assert_eq!((peers.world_size(), rendezvous.ranks_on_other_cores()), (4, Vec::new()));
        for rank in [3, 1, 2] {
            let message = Message { text: "x".to_owned(), numbers: vec![rank as u32; 100_000] };
            peers.send(rank, &message).unwrap();
            assert_eq!(peers.receive(rank, &|| false).unwrap(), message);
        }
        // One more process with a rank of the run is refused, and the run continues.
        let why = error(serve(&all_launches[2], "a"));
        assert!(why.starts_with("two processes of this launch have rank 2 of 4: "), "{why}");
        peers.send(2, &Message::of("y")).unwrap();
        assert_eq!(peers.receive(2, &|| false).unwrap(), Message::of("y"));
        drop(peers);
        rendezvous.end(3);
        for rank in ranks {
            assert_eq!(rank.join().unwrap().unwrap(), Some(3));
        }
        assert!(!dir.exists());
    });
}

#[test]
fn a_rank_0_that_ends_early_ends_ranks_that_wait_or_come_later() {
    let all_launches = launches(4);
    let rendezvous = Rendezvous::open(all_launches[0].clone(), "a").unwrap();
    thread::scope(|scope| {
        let early = scope.spawn(|| serve(&all_launches[1], "a"));
        while lock(&rendezvous.shared.arrivals).joined.is_empty() {
            thread::sleep(POLL_INTERVAL);
        }
        let ending = scope.spawn(|| rendezvous.end(2));
        assert_eq!(early.join().unwrap().unwrap(), Some(2));
        for late in [2, 3] {
            assert_eq!(serve(&all_launches[late], "a").unwrap(), Some(2));
        }
        ending.join().unwrap();
    });
}

#[test]
fn processes_that_do_not_belong_to_the_launch_are_refused() {
    // Another build, another number of ranks, and a rank that another process has.
    let cases: [(&str, usize, usize, &str); 3] = [
        ("b", 1, 4, "is build b of the program, but rank 0 is a"),
        ("a", 1, 8, "has rank 1 of 8, but WORLD_SIZE of rank 0 is 4: start all processes with one launcher"),
        ("a", 2, 4, "two processes of this launch have rank 2 of 4: "),
    ];
    for (build, rank, world_size, why) in cases {
        let all_launches = launches(4);
        let rendezvous = Rendezvous::open(all_launches[0].clone(), "a").unwrap();
        let first = join(&all_launches[2], "a", limits(60_000), &mut |_| {}).unwrap();
        let stranger = Launch { rank, world_size, ..all_launches[0].clone() };
        let found = [error(serve(&stranger, build)), error(all(&rendezvous, 60_000))];
        assert!(found[0] == found[1] && found[0].contains(why), "{found:?}");
        assert!(matches!(all(&rendezvous, 60_000), Err(Error::Refused(_))));
        drop(first);
        rendezvous.place.remove();
    }
}

#[test]
fn one_process_is_rank_0_and_a_killed_one_can_be_replaced() {
    let launch = &launches(2)[0];
    let first = Rendezvous::open(launch.clone(), "a").unwrap();
    let id = process::id();
    let why = format!("two processes of this launch have rank 0 of 2: {id} and {id}");
    assert_eq!(error(Rendezvous::open(launch.clone(), "a")), why);
    // A killed process leaves its files.
    let Rendezvous { _lock: lock, place, .. } = first;
    drop(lock);
    assert!(place.socket().exists());
    let second = Rendezvous::open(launch.clone(), "a").unwrap();
    assert!(error(Rendezvous::open(launch.clone(), "a")) == why && second.launch() == launch);
    second.place.remove();
}

#[test]
fn a_rank_that_does_not_start_is_named_within_the_limit() {
    let all_launches = launches(4);
    let mut notes = Vec::new();
    let mut note = |text: &str| notes.push(text.to_owned());
    let why = error(join(&all_launches[1], "a", limits(300), &mut note));
    assert_eq!(why, "rank 1 of 4 found no rank 0 of its launch within 0.3 s");
    let rendezvous = Rendezvous::open(all_launches[0].clone(), "a").unwrap();
    let joined = join(&all_launches[2], "a", limits(300), &mut note).unwrap();
    let waited = Peers::launched(&rendezvous, limits(300), &|| false, &mut note, || {});
    assert_eq!(error(waited), "ranks 1, 3 of 4 did not start within 0.3 s");
    assert_eq!(
        notes,
        ["rank 1 of 4 waits for rank 0, at most 0.3 s", "rank 0 waits for ranks 1, 3 of 4, at most 0.3 s"]
    );
    let cancelled = Peers::launched(&rendezvous, limits(60_000), &|| true, &mut |_| {}, || {});
    assert!(matches!(cancelled, Err(Error::Cancelled)));
    drop(joined);
    rendezvous.place.remove();
}

#[test]
fn a_launched_rank_that_ends_or_stops_is_named() {
    let all_launches = launches(2);
    let id = process::id();
    for (silence, why) in [
        (60_000, format!("rank 1 of 2 (process {id}) ended or was killed")),
        (300, format!("rank 1 of 2 (process {id}) sent no heartbeat for 0.3 s: it hangs or was stopped")),
    ] {
        let rendezvous = Rendezvous::open(all_launches[0].clone(), "a").unwrap();
        let mut stream = join(&all_launches[1], "a", limits(60_000), &mut |_| {}).unwrap();
        let (sender, losses) = channel();
        let limits = Limits { silence: Duration::from_millis(silence), ..limits(60_000) };
        let on_loss = move || sender.send(()).unwrap();
        let peers = Peers::launched(&rendezvous, limits, &|| false, &mut |_| {}, on_loss).unwrap();
        if silence == 60_000 {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
        losses.recv().unwrap();
        assert_eq!(error(peers.receive(1, &|| false)), why);
        // The process notices its loss.
        assert!(Message::read_from(&mut stream).is_err());
        rendezvous.place.remove();
    }
}

#[test]
fn a_directory_of_others_is_refused() {
    let launch = &launches(2)[1];
    let place = Place::of(&launch.id).unwrap();
    place.create().unwrap();
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    for why in [error(place.create()), error(join(launch, "a", limits(60_000), &mut |_| {}))] {
        assert!(why.ends_with(" must be a directory that only its user can access: remove it, or set TMPDIR"), "{why}");
    }
    place.remove();
    assert!(!place.check().unwrap());
}
