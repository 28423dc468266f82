use super::*;
use rustix::io::Errno;
use std::time::SystemTime;

type Locked = std::result::Result<(), TryLockError>;
/// Title, result of the system call, content of the file, seconds since the last write, and expected result.
type Case = (&'static str, fn(&File) -> Locked, String, u64, &'static str);

fn failed(errno: Errno) -> Locked {
    Err(TryLockError::Error(errno.into()))
}

fn would_block(_: &File) -> Locked {
    Err(TryLockError::WouldBlock)
}
fn works(_: &File) -> Locked {
    Ok(())
}
fn nosys(_: &File) -> Locked {
    failed(Errno::NOSYS)
}
fn nolck(_: &File) -> Locked {
    failed(Errno::NOLCK)
}
fn opnotsupp(_: &File) -> Locked {
    failed(Errno::OPNOTSUPP)
}
fn inval(_: &File) -> Locked {
    failed(Errno::INVAL)
}
fn io(_: &File) -> Locked {
    failed(Errno::IO)
}

/// A fake `/proc` of the machine `here` with boot `b1`, in PID namespace `n1`. This process and process 77 started at
/// tick 500; process 78 is a zombie.
fn proc(dir: &Path) -> PathBuf {
    let proc = dir.join("proc");
    let own = std::process::id();
    for (pid, state, name) in [(own, "S", "test"), (77, "R", "a (strange) name"), (78, "Z", "ended")] {
        std::fs::create_dir_all(proc.join(pid.to_string())).unwrap();
        let fields = format!("1 1 1 0 -1 4194304 {}500 1 2", "0 ".repeat(12));
        std::fs::write(proc.join(format!("{pid}/stat")), format!("{pid} ({name}) {state} {fields}")).unwrap();
    }
    std::fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
    std::fs::create_dir_all(proc.join("self/ns")).unwrap();
    std::fs::write(proc.join("sys/kernel/hostname"), "here\n").unwrap();
    std::fs::write(proc.join("sys/kernel/random/boot_id"), "b1\n").unwrap();
    std::os::unix::fs::symlink("pid:[n1]", proc.join("self/ns/pid")).unwrap();
    proc
}

/// The content that names an owner: PID, boot, start time, namespace.
fn text(pid: u32, boot: &str, started: Option<u64>, namespace: &str) -> String {
    let (boot, namespace) = (boot.to_owned(), format!("pid:[{namespace}]"));
    serde_json::to_string(&Owner { pid, host: "here".to_owned(), boot, started, namespace }).unwrap()
}

fn owner(text: &str) -> Option<Owner> {
    serde_json::from_str(text).ok()
}

fn describe(taken: Result<Taken>) -> String {
    match taken {
        Ok(Taken::Locked) => "locked".to_owned(),
        Ok(Taken::Unlocked(_)) => "unlocked".to_owned(),
        Ok(Taken::Held) => "held".to_owned(),
        Ok(Taken::Owned(held)) => held.to_string(),
        Err(error) => format!("error {}", error.raw_os_error().unwrap_or(0)),
    }
}

#[test]
fn a_file_without_a_lock_belongs_to_its_running_owner() {
    let own = std::process::id();
    let lives = "it is running on this machine";
    let old = |pid: u32, host: &str| format!("{{\"pid\": {pid}, \"host\": \"{host}\", \"since_s\": 5}}");
    let rows: Vec<Case> = vec![
        ("a lock", works, String::new(), 0, "locked"),
        ("a lock, whatever the content of the file", works, text(77, "b1", Some(500), "n1"), 0, "locked"),
        ("a lock of another process", would_block, String::new(), 999, "held"),
        ("ENOSYS, no owner", nosys, String::new(), 0, "unlocked"),
        ("ENOLCK, no owner", nolck, String::new(), 0, "unlocked"),
        ("EOPNOTSUPP, no owner", opnotsupp, String::new(), 0, "unlocked"),
        ("EINVAL, no owner", inval, String::new(), 0, "unlocked"),
        ("another error", io, String::new(), 0, "error 5"),
        ("ENOSYS, truncated content", nosys, "{\"pid\": 7".to_owned(), 0, "unlocked"),
        ("ENOSYS, a running process", nosys, text(77, "b1", Some(500), "n1"), 0, lives),
        ("ENOLCK, a running process", nolck, text(77, "b1", Some(500), "n1"), 0, lives),
        ("EOPNOTSUPP, a running process", opnotsupp, text(77, "b1", Some(500), "n1"), 0, lives),
        ("a running process that has not written for long", nosys, text(77, "b1", Some(500), "n1"), 99_999, lives),
        ("this process", nosys, text(own, "b1", Some(500), "n1"), 0, lives),
        ("a process that has ended", nosys, text(79, "b1", Some(500), "n1"), 0, "unlocked"),
        ("a zombie", nosys, text(78, "b1", Some(500), "n1"), 0, "unlocked"),
        ("another process with the same PID", nosys, text(77, "b1", Some(499), "n1"), 0, "unlocked"),
        ("a process whose start time is unknown", nosys, text(77, "b1", None, "n1"), 0, lives),
        (
            "another machine, which wrote recently",
            nosys,
            text(77, "b2", Some(500), "n1"),
            60,
            "its last heartbeat was 60 s ago",
        ),
        ("another machine, another PID", nosys, text(9, "b2", Some(500), "n1"), 60, "its last heartbeat was 60 s ago"),
        ("another machine, silent", nosys, text(77, "b2", Some(500), "n1"), 600, "unlocked"),
        (
            "another container, which wrote recently",
            nosys,
            text(79, "b1", Some(5), "n2"),
            60,
            "its last heartbeat was 60 s ago",
        ),
        ("another container, silent", nosys, text(79, "b1", Some(5), "n2"), 600, "unlocked"),
        ("an older version's content, running", nosys, old(77, "here"), 99_999, lives),
        ("an older version's content, ended", nosys, old(79, "here"), 0, "unlocked"),
        ("an older version's content, elsewhere", nosys, old(79, "there"), 60, "its last heartbeat was 60 s ago"),
        ("an older version's content, elsewhere, silent", nosys, old(79, "there"), 600, "unlocked"),
    ];
    let mut wrong = Vec::new();
    for (name, lock, content, silent, expected) in &rows {
        let dir = tempfile::tempdir().unwrap();
        let locks = Locks { lock: *lock, shared: *lock, proc: proc(dir.path()) };
        let path = dir.path().join("run.lock");
        std::fs::write(&path, content).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        // Half a second is added, since file times are coarse.
        let ago = Duration::from_secs(*silent) + Duration::from_millis(500);
        file.set_modified(SystemTime::now() - ago).unwrap();
        let found = describe(locks.take(&file, &path, owner));
        // Seconds may pass in between.
        let same = found == *expected || expected.contains("60 s") && found.starts_with("its last heartbeat was 6");
        if !same {
            wrong.push(format!("{name}: {found}, expected {expected}"));
        }
        let is_held = !matches!(*expected, "locked" | "unlocked");
        if !expected.starts_with("error")
            && locks.is_held(&file, &path, owner).is_ok_and(|held| held != is_held)
            && *expected != "locked"
        {
            wrong.push(format!("{name}: held is not {is_held}"));
        }
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        if left.len() != 2 {
            wrong.push(format!("{name}: left {left:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(rows.len() >= 20);
}

#[test]
fn only_one_of_two_simultaneous_processes_can_take_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let locks = Locks { lock: nosys, shared: nosys, proc: proc(dir.path()) };
    let path = dir.path().join("l");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let first = locks.take(&file, &path, owner).unwrap();
    assert_eq!(describe(locks.take(&file, &path, owner)), "it is starting");
    drop(first);
    assert_eq!(describe(locks.take(&file, &path, owner)), "unlocked");
    // A claim left by a process that was killed during its start does not block others.
    let claim = dir.path().join("l.claim");
    std::fs::write(&claim, text(79, "b1", Some(500), "n1")).unwrap();
    assert_eq!((describe(locks.take(&file, &path, owner)), claim.exists()), ("unlocked".to_owned(), false));
    std::fs::write(&claim, text(77, "b1", Some(500), "n1")).unwrap();
    assert_eq!((describe(locks.take(&file, &path, owner)), claim.exists()), ("it is starting".to_owned(), true));
}

#[test]
fn a_warning_names_the_error_and_the_fix() {
    let text = |errno: Errno| advice(Path::new("d/run.lock"), &errno.into());
    let none = "this file system does not lock files";
    for (errno, fix) in [(Errno::NOSYS, "localflock"), (Errno::NOLCK, "rpc.statd"), (Errno::OPNOTSUPP, "localflock")] {
        let text = text(errno);
        let names = ["d/run.lock", none, fix, "another file system", &std::io::Error::from(errno).to_string()];
        assert!(names.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn a_heartbeat_stops_on_drop_and_keeps_the_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("l");
    std::fs::write(&path, "mine").unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    drop(Heartbeat::start(&file, b"mine".to_vec()).unwrap());
    assert!(is_unchanged(&file, b"mine") && !is_unchanged(&file, b"other"));
}
