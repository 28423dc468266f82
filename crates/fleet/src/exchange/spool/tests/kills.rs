//! Tests that a learner kills a stalled worker, but never another process that has the same PID.

use crate::exchange::spool::{Layout, SpoolLearner, SpoolWorker};
use crate::exchange::{Exchange, WorkerStatus};
use crate::lock::{Locks, Owner};
use crate::testing::name;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A sleeping process that is killed on drop. If a path is given, the process has that file open, and locked if
/// `has_lock` is set.
struct Sleeper(Child);

impl Sleeper {
    fn new(open: Option<&Path>, has_lock: bool) -> Sleeper {
        let open_it = open.map_or("", |_| "exec 9< \"$0\"; ");
        let lock = if has_lock { "flock -n 9; " } else { "" };
        let script = format!("{open_it}{lock}echo ready; exec sleep 600");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(open.unwrap_or(Path::new("none"))).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut ready = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        Sleeper(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether the process is alive. `dies` waits for its end, since a process may survive SIGKILL for a moment.
    fn lives(&mut self, dies: bool) -> bool {
        if dies {
            testing::wait_for_end("the process that was killed", &mut self.0);
        }
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Builds the content of a lock file that names a process.
type Text = fn(u32, &Owner) -> String;

fn with(pid: u32, owner: Owner) -> String {
    format!("{pid} 3\n{}\n", serde_json::to_string(&owner).unwrap())
}

#[derive(Clone, Copy, PartialEq)]
enum Opened {
    /// The process does not have the lock file open; another process holds the lock.
    Not,
    /// The process has the lock file open, and another process holds the lock.
    Reads,
    /// The process holds the lock.
    Locks,
}

#[test]
fn only_a_process_proven_to_hold_the_lock_is_killed() {
    use Opened::{Locks as Locked, Not, Reads};
    let Some(()) = testing::program("flock") else { return };
    // Each row: the lock file's content, how the named process has the file open, and whether the process is killed.
    // The content is built from the PID and the owner that the process itself would write.
    let rows: Vec<(&str, Text, Opened, bool)> = vec![
        ("the worker", |pid, own| with(pid, own.clone()), Locked, true),
        ("a worker of an older version", |pid, _| format!("{pid} 3\n"), Locked, true),
        ("the same without a newline", |pid, _| format!("{pid} 3"), Locked, true),
        ("no start time", |pid, own| with(pid, Owner { started: None, ..own.clone() }), Locked, true),
        ("another machine's name", |pid, own| with(pid, Owner { host: "there".into(), ..own.clone() }), Locked, true),
        (
            "another container",
            |pid, own| with(pid, Owner { namespace: "pid:[1]".into(), ..own.clone() }),
            Locked,
            false,
        ),
        (
            "a PID from another container",
            |pid, own| with(pid, Owner { namespace: "pid:[1]".into(), ..own.clone() }),
            Not,
            false,
        ),
        ("no namespace", |pid, own| with(pid, Owner { namespace: String::new(), ..own.clone() }), Locked, false),
        ("another boot", |pid, own| with(pid, Owner { boot: "b".into(), ..own.clone() }), Locked, false),
        ("no boot", |pid, own| with(pid, Owner { boot: String::new(), ..own.clone() }), Locked, false),
        ("an owner with only a PID", |pid, _| with(pid, Owner { pid, ..Owner::default() }), Locked, false),
        (
            "a later process",
            |pid, own| with(pid, Owner { started: own.started.map(|at| at - 1), ..own.clone() }),
            Locked,
            false,
        ),
        (
            "an earlier process",
            |pid, own| with(pid, Owner { started: own.started.map(|at| at + 1), ..own.clone() }),
            Locked,
            false,
        ),
        ("another process, named with its owner", |pid, own| with(pid, own.clone()), Not, false),
        ("another process, no start time", |pid, own| with(pid, Owner { started: None, ..own.clone() }), Not, false),
        ("another process, an older version", |pid, _| format!("{pid} 3\n"), Not, false),
        ("a reader, an older version", |pid, _| format!("{pid} 3\n"), Reads, false),
        ("a reader, no start time", |pid, own| with(pid, Owner { started: None, ..own.clone() }), Reads, false),
        (
            "a reader, another container",
            |pid, own| with(pid, Owner { namespace: "pid:[1]".into(), ..own.clone() }),
            Reads,
            false,
        ),
        (
            "half of the content",
            |pid, own| {
                let text = with(pid, own.clone());
                text[..text.len() / 2].to_owned()
            },
            Not,
            false,
        ),
        ("not a PID", |_, _| "x 3\n".to_owned(), Locked, false),
        ("PID 0", |_, own| with(0, own.clone()), Locked, false),
        ("the largest PID", |_, own| with(u32::MAX, own.clone()), Locked, false),
        ("PID 1", |_, _| "1 3\n".to_owned(), Locked, false),
        ("an empty file", |_, _| String::new(), Locked, false),
    ];
    let mut wrong = Vec::new();
    for (what, text, opened, is_killed) in &rows {
        let out = tempfile::tempdir().unwrap();
        let mut learner = SpoolLearner::open(out.path()).unwrap();
        drop(SpoolWorker::join(out.path(), name("w")).unwrap());
        let path = Layout::in_run(out.path()).alive(&name("w"));
        let mut named = Sleeper::new((*opened != Not).then_some(&*path), *opened == Locked);
        let holder = File::open(&path).unwrap();
        if *opened != Locked {
            holder.try_lock().unwrap();
        }
        let locks = Locks::system();
        let owner = Owner { pid: named.pid(), started: locks.started_of(named.pid()), ..locks.this_process() };
        assert!(owner.started.is_some() && owner.namespace.starts_with("pid:["), "{owner:?}");
        std::fs::write(&path, text(named.pid(), &owner)).unwrap();
        let killed = learner.kill_with(&locks, &name("w")).unwrap();
        let problems = learner.take_problems();
        if killed != *is_killed || named.lives(*is_killed) == *is_killed || problems.is_empty() != *is_killed {
            wrong.push(format!("{what}: killed {killed}, {problems:?}"));
        }
        // Further attempts do not report the problem again.
        assert_eq!(learner.kill_with(&locks, &name("w")).unwrap(), *is_killed, "{what}");
        assert!(learner.take_problems().is_empty(), "{what}");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(rows.len() >= 20);
}

#[test]
fn a_learner_with_the_proc_of_another_namespace_kills_nothing() {
    let Some(()) = testing::program("flock") else { return };
    let dir = tempfile::tempdir().unwrap();
    let made = |what: &str| {
        let proc = dir.path().join(what);
        std::fs::create_dir_all(proc.join("self-of-another")).unwrap();
        proc
    };
    let (missing, empty, other) = (dir.path().join("missing"), made("empty"), made("other"));
    // The `/proc` of another PID namespace: complete, but with different PIDs.
    for name in ["sys", "1"] {
        symlink(Path::new("/proc").join(name), other.join(name)).unwrap();
    }
    symlink("1", other.join("self")).unwrap();
    for proc in [missing, empty, other] {
        let out = tempfile::tempdir().unwrap();
        let mut learner = SpoolLearner::open(out.path()).unwrap();
        drop(SpoolWorker::join(out.path(), name("w")).unwrap());
        let path = Layout::in_run(out.path()).alive(&name("w"));
        let mut worker = Sleeper::new(Some(&path), true);
        std::fs::write(&path, format!("{} 3\n", worker.pid())).unwrap();
        let locks = Locks { proc: proc.clone(), ..Locks::system() };
        assert!(!learner.kill_with(&locks, &name("w")).unwrap() && worker.lives(false), "{}", proc.display());
        let problems = learner.take_problems();
        assert!(problems.len() == 1 && problems[0].contains("/proc does not show"), "{problems:?}");
        assert!(learner.kill_with(&Locks::system(), &name("w")).unwrap() && !worker.lives(true));
    }
}

/// This version reads lock files of older versions, and writes lock files that older versions can read.
#[test]
fn lock_files_are_compatible_with_older_versions() {
    let out = tempfile::tempdir().unwrap();
    let worker = SpoolWorker::join(out.path(), name("w")).unwrap();
    let path = Layout::in_run(out.path()).alive(&name("w"));
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("{} 1", std::process::id()), "older versions read only this line");
    let owner: Owner = serde_json::from_str(lines[1]).unwrap();
    assert!(owner == Locks::system().this_process() && lines.len() == 2, "{text}");
    drop(worker);
    // The file was last written by an older version.
    std::fs::write(&path, "77 41\n").unwrap();
    let mut worker = SpoolWorker::join(out.path(), name("w")).unwrap();
    crate::exchange::WorkerExchange::report(&mut worker, &WorkerStatus::default()).unwrap();
    let first = std::fs::read_to_string(&path).unwrap();
    assert!(first.starts_with(&format!("{} 42\n", std::process::id())), "{first}");
    // A worker that is a thread of this process is not killed, and no problem is reported.
    let mut learner = SpoolLearner::open(out.path()).unwrap();
    assert!(learner.kill(&name("w")).unwrap() && learner.take_problems().is_empty());
}
