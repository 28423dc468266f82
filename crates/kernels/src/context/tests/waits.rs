//! A context that shares its cores must hold no core while its thread waits for anything.
//!
//! In each test, the awaited event happens only after another process has reserved all cores. So a wait that keeps a
//! core deadlocks, on any machine.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::sync::{Arc, Barrier, Condvar, Mutex, Once, OnceLock, RwLock};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// A way to wait for an event, which is signalled through the channel. The path is a directory for files.
type Wait = fn(Receiver<()>, &Path);

/// Calls `then` on another thread when the event has happened.
fn after(event: Receiver<()>, then: impl FnOnce() + Send + 'static) {
    spawn(move || {
        event.recv().unwrap();
        then();
    });
}

const WAITS: [(&str, Wait); 22] = [
    ("a channel", |event, _| event.recv().unwrap()),
    (
        "a channel, polled",
        |event, _| {
            while event.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {}
        },
    ),
    ("a full channel", |event, _| {
        let (full, emptied) = sync_channel(1);
        full.send(1).unwrap();
        after(event, move || assert_eq!(emptied.iter().count(), 2));
        full.send(2).unwrap();
    }),
    ("the end of a thread", |event, _| spawn(move || event.recv().unwrap()).join().unwrap()),
    ("the end of a scope of threads", |event, _| {
        std::thread::scope(|scope| drop(scope.spawn(move || event.recv().unwrap())));
    }),
    ("a condition variable", |event, _| {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let other = pair.clone();
        after(event, move || {
            *other.0.lock().unwrap() = true;
            other.1.notify_all();
        });
        drop(pair.1.wait_while(pair.0.lock().unwrap(), |happened| !*happened).unwrap());
    }),
    ("a mutex", |event, _| {
        let (mutex, (locked, is_locked)) = (Arc::new(Mutex::new(())), channel());
        let other = mutex.clone();
        spawn(move || {
            let _guard = other.lock().unwrap();
            locked.send(()).unwrap();
            event.recv().unwrap();
        });
        is_locked.recv().unwrap();
        drop(mutex.lock().unwrap());
    }),
    ("a read-write lock", |event, _| {
        let (lock, (locked, is_locked)) = (Arc::new(RwLock::new(())), channel());
        let other = lock.clone();
        spawn(move || {
            let _guard = other.read().unwrap();
            locked.send(()).unwrap();
            event.recv().unwrap();
        });
        is_locked.recv().unwrap();
        drop(lock.write().unwrap());
    }),
    ("a barrier", |event, _| {
        let barrier = Arc::new(Barrier::new(2));
        let other = barrier.clone();
        after(event, move || {
            other.wait();
        });
        barrier.wait();
    }),
    ("another thread's initialisation", |event, _| {
        let (once, (begun, has_begun)) = (Arc::new(Once::new()), channel());
        let other = once.clone();
        spawn(move || {
            other.call_once(|| {
                begun.send(()).unwrap();
                event.recv().unwrap();
            });
        });
        has_begun.recv().unwrap();
        once.call_once(|| unreachable!("the other thread initialises it"));
    }),
    ("a cell that another thread sets", |event, _| {
        let cell = Arc::new(OnceLock::new());
        let other = cell.clone();
        after(event, move || other.set(()).unwrap());
        cell.wait();
    }),
    ("parked", |event, _| {
        let happened = Arc::new(AtomicBool::new(false));
        let (other, thread) = (happened.clone(), std::thread::current());
        after(event, move || {
            other.store(true, Ordering::SeqCst);
            thread.unpark();
        });
        while !happened.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }),
    ("a flag, polled with sleeps", |event, _| {
        let happened = Arc::new(AtomicBool::new(false));
        let other = happened.clone();
        after(event, move || other.store(true, Ordering::SeqCst));
        while !happened.load(Ordering::SeqCst) {
            sleep(Duration::from_micros(100));
        }
    }),
    ("a flag, polled without sleeping", |event, _| {
        let happened = Arc::new(AtomicBool::new(false));
        let other = happened.clone();
        after(event, move || other.store(true, Ordering::SeqCst));
        while !happened.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }),
    ("a flag, polled with sleeps longer than a turn", |event, _| {
        let happened = Arc::new(AtomicBool::new(false));
        let other = happened.clone();
        after(event, move || other.store(true, Ordering::SeqCst));
        while !happened.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(30));
        }
    }),
    ("the end of a process", |event, _| {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        after(event, move || drop(input));
        assert!(child.wait().unwrap().success());
    }),
    ("a response from a process", |event, _| {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        after(event, move || input.write_all(b"it is").unwrap());
        let mut answer = String::new();
        child.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
        assert!(answer == "it is" && child.wait().unwrap().success());
    }),
    ("a file", |event, path| {
        let other = path.to_owned();
        after(event, move || std::fs::write(other, "").unwrap());
        while !path.exists() {
            sleep(Duration::from_millis(1));
        }
    }),
    ("a file lock", |event, path| {
        let [file, other] = [(); 2].map(|()| std::fs::File::create(path).unwrap());
        other.lock().unwrap();
        after(event, move || other.unlock().unwrap());
        file.lock().unwrap();
    }),
    ("a local socket", |event, _| {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        after(event, move || there.write_all(b"x").unwrap());
        here.read_exact(&mut [0]).unwrap();
    }),
    ("a connection", |event, _| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        after(event, move || drop(TcpStream::connect(address).unwrap()));
        drop(listener.accept().unwrap());
    }),
    ("a response from a server", |event, _| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        after(event, move || listener.accept().unwrap().0.write_all(b"x").unwrap());
        TcpStream::connect(address).unwrap().read_exact(&mut [0]).unwrap();
    }),
];

/// Test configurations: number of cores, threads of the context, rows to compute.
const SHAPES: [(usize, usize, usize); 5] = [(1, 1, 2), (1, 4, 200), (3, 2, 2), (2, 2, 200), (3, 4, 200)];

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("lockstep-waits-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn compute(context: &Context, rows: usize) {
    let (x, w) = (Tensor::zeros(context.memory(), &[rows, 40], DType::F32), Matrix::zeros(context.memory(), 70, 40));
    let mut y = Tensor::zeros(context.memory(), &[rows, 70], DType::F32);
    let forward = crate::ops::linear::Forward { x: x.view(), w: &w, bias: None, y: y.view_mut(), accumulate: false };
    crate::ops::linear::forward(context, forward).unwrap();
}

fn has_all(tokens: &CoreTokens) -> bool {
    tokens.acquire(usize::MAX).unwrap().count() == tokens.cores()
}

/// Computes, waits with `wait` until another process has reserved all cores, and computes again.
fn wait_beside_others(dir: &Path, (cores, threads, rows): (usize, usize, usize), wait: Wait) {
    let tokens = CoreTokens::create(&dir.join("cores"), cores).unwrap();
    let context = Context::cpu(Isa::PORTABLE, threads);
    context.share_cores(tokens.clone()).unwrap();
    compute(&context, rows);
    let (had, event) = channel();
    let other = spawn(move || {
        while !has_all(&tokens) {
            std::thread::yield_now();
        }
        had.send(()).unwrap();
    });
    wait(event, &dir.join("file"));
    other.join().unwrap();
    compute(&context, rows);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn a_context_holds_no_core_while_its_thread_waits() {
    let dir = scratch("one");
    let (ended, ends) = channel();
    let mut left = std::collections::BTreeSet::new();
    for (way, wait) in WAITS {
        for shape in SHAPES {
            let name = format!("{way}, (cores, threads, rows) = {shape:?}");
            left.insert(name.clone());
            let (dir, ended) = (dir.join(left.len().to_string()), ended.clone());
            spawn(move || {
                wait_beside_others(&dir, shape, wait);
                ended.send(name).unwrap();
            });
        }
    }
    drop(ended);
    assert_eq!(left.len(), 110);
    while !left.is_empty() {
        match ends.recv_timeout(testing::HANG) {
            Ok(name) => assert!(left.remove(&name)),
            Err(_) => panic!("these waits fail or keep their cores: {left:#?}"),
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Two contexts with one core each wait for each other's result in turn, like a learner and its worker.
#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn two_waiting_contexts_share_one_core_in_turns() {
    let dir = scratch("two");
    let tokens = CoreTokens::create(&dir, 1).unwrap();
    let contexts = [2, 3].map(|threads| {
        let context = Context::cpu(Isa::PORTABLE, threads);
        context.share_cores(tokens.clone()).unwrap();
        context
    });
    let (to_second, first) = channel();
    let (to_first, second) = channel();
    let answers = std::thread::scope(|scope| {
        let [a, b] = &contexts;
        scope.spawn(move || {
            for number in first {
                compute(b, 100);
                to_first.send(number + 1).unwrap();
            }
        });
        let mut answers = Vec::new();
        for number in 0..20 {
            compute(a, 100);
            to_second.send(number).unwrap();
            answers.push(testing::receive("the other context computes", &second));
        }
        drop(to_second);
        answers
    });
    assert_eq!(answers, (1..=20).collect::<Vec<_>>());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot lock files")]
fn an_idle_context_releases_all_cores() {
    let dir = scratch("threads");
    let tokens = CoreTokens::create(&dir, 2).unwrap();
    let context = Context::cpu(Isa::PORTABLE, 2);
    context.release_cores();
    context.share_cores(tokens.clone()).unwrap();
    std::thread::scope(|scope| {
        for rows in [2, 100, 400] {
            let context = &context;
            scope.spawn(move || (0..30).for_each(|_| compute(context, rows)));
        }
    });
    testing::wait_until("all cores are free", || has_all(&tokens));
    compute(&context, 2);
    context.release_cores();
    testing::wait_until("all cores are free", || has_all(&tokens));
    std::fs::remove_dir_all(&dir).unwrap();
}
