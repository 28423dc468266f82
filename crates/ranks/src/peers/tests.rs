//! Rank 0 with child processes that echo its messages: an exchange, a killed, a stopped and a failing process.

use super::*;
use crate::Link;
use std::sync::mpsc::sync_channel;

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}

/// Sends every message back. Standard input is a socket, so it can be written, too.
fn echo(_: usize) -> Command {
    shell("exec cat <&0 >&0")
}

fn limits(silence_ms: u64) -> Limits {
    let [heartbeat, silence] = [20, silence_ms].map(Duration::from_millis);
    Limits { heartbeat, silence, ..Limits::default() }
}

fn pid(peers: &Peers, rank: usize) -> u32 {
    peers.peers[rank - 1].process.id()
}

fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn never() -> bool {
    false
}

#[test]
fn messages_arrive_in_order_and_processes_end_with_rank_0() {
    let peers = Peers::start(4, limits(60_000), echo, || {}).unwrap();
    assert_eq!(peers.world_size(), 4);
    let pids: Vec<u32> = (1..4).map(|rank| pid(&peers, rank)).collect();
    // Longer than the socket's buffer, and sent before anything is received.
    let message = |rank: usize, i: u32| Message { text: format!("{rank}"), numbers: vec![i; 100_000] };
    for i in 0..3 {
        for rank in 1..4 {
            peers.send(rank, &message(rank, i)).unwrap();
        }
    }
    for i in 0..3 {
        for rank in (1..4).rev() {
            assert_eq!(peers.receive(rank, &never).unwrap(), message(rank, i));
        }
    }
    assert!(matches!(peers.receive(1, &|| true).unwrap_err(), Error::Cancelled));
    assert_eq!(peers.try_receive(1).unwrap(), None);
    peers.send(1, &message(1, 9)).unwrap();
    let arrived = (0..10_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        peers.try_receive(1).unwrap()
    });
    assert_eq!(arrived, Some(message(1, 9)));
    assert!(!peers.lost().is_lost() && pids.iter().all(|&pid| is_alive(pid)));
    drop(peers);
    assert!(!pids.into_iter().any(is_alive));
}

#[test]
fn a_killed_rank_is_named_in_every_exchange() {
    let (sender, losses) = sync_channel(9);
    let peers = Peers::start(3, limits(60_000), echo, move || sender.send(()).unwrap()).unwrap();
    let killed = pid(&peers, 2);
    assert!(shell(&format!("kill -9 {killed}")).status().unwrap().success());
    let why = format!("rank 2 of 3 (process {killed}) was killed by signal 9");
    // Rank 1 is alive, but the step cannot be completed.
    for rank in [2, 1] {
        assert_eq!(peers.receive(rank, &never).unwrap_err().to_string(), why);
        assert_eq!(peers.try_receive(rank).unwrap_err().to_string(), why);
    }
    losses.recv().unwrap();
    assert_eq!(peers.lost().why(), Some(&*why));
    let failed = (0..1000).find_map(|_| peers.send(2, &Message::of("x")).err());
    assert_eq!(failed.unwrap().to_string(), why);
    assert!(losses.try_recv().is_err(), "one loss must be reported once");
}

#[test]
fn a_stopped_rank_is_killed_after_the_silence() {
    let peers = Peers::start(2, limits(300), echo, || {}).unwrap();
    let stopped = pid(&peers, 1);
    // Messages are signs of life, too.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        peers.send(1, &Message::of("x")).unwrap();
        peers.receive(1, &never).unwrap();
    }
    assert!(shell(&format!("kill -STOP {stopped}")).status().unwrap().success());
    let why = peers.receive(1, &never).unwrap_err().to_string();
    assert_eq!(why, format!("rank 1 of 2 (process {stopped}) sent no heartbeat for 0.3 s: it hangs or was stopped"));
    assert!(!is_alive(stopped));
}

#[test]
fn a_rank_that_fails_to_start_is_an_error() {
    let peers = Peers::start(2, limits(60_000), |_| shell("exit 7"), || {}).unwrap();
    let why = peers.receive(1, &never).unwrap_err().to_string();
    assert!(why.starts_with("rank 1 of 2 (process ") && why.ends_with(") exited with code 7"), "{why}");
    let none = Peers::start(2, limits(60_000), |_| Command::new("/no such program"), || {});
    let why = none.err().unwrap().to_string();
    assert!(why.starts_with("cannot start rank 1 of 2: No such file"), "{why}");
}

#[test]
fn a_link_sends_heartbeats_and_notices_the_end_of_rank_0() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (sender, ended) = sync_channel(1);
    let link = Link::of(theirs, Duration::from_millis(1), move |code| sender.send(code).unwrap()).unwrap();
    let mut stream = ours;
    for _ in 0..3 {
        assert!(Message::read_from(&mut stream).unwrap().is_heartbeat());
    }
    Message::of("work").write_to(&mut stream).unwrap();
    assert_eq!(link.receive(), Some(Message::of("work")));
    link.send(&Message::of("done")).unwrap();
    let answer = loop {
        match Message::read_from(&mut stream).unwrap() {
            message if message.is_heartbeat() => {}
            message => break message,
        }
    };
    assert_eq!(answer, Message::of("done"));
    drop(stream);
    assert_eq!(ended.recv().unwrap(), None);
    assert_eq!(link.receive(), None);
}
