//! Tests with attacks on processes outside of the sandbox, in each isolation that is available here.

use super::*;
use crate::user::users;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The isolations that work here.
pub(crate) fn isolations() -> Vec<&'static str> {
    let mut names = Vec::new();
    if installed(&["bwrap"]) {
        names.push("bubblewrap");
    }
    if confines() {
        names.push("landlock");
    }
    names
}

/// Runs the current test again in a child process with an environment variable, since a process cannot safely change
/// its own environment.
fn again_with(test: &str, variable: &str, value: &str) {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &format!("judge::tests::escapes::{test}"), "--nocapture"]);
    let output = again.env(variable, value).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// A sleeping process of the user that programs run as.
struct Victim(Child);

impl Victim {
    fn new() -> Victim {
        let mut sleep = Command::new("/usr/bin/sleep");
        sleep.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        if rustix::process::geteuid().is_root() {
            let user = users().next().unwrap();
            sleep.uid(user).gid(user);
        }
        Victim(sleep.spawn().unwrap())
    }

    fn is_alive(&mut self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let state = stat.rsplit(") ").next().unwrap().chars().next();
        self.0.try_wait().unwrap().is_none() && state == Some('S')
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// System calls that every isolation refuses, by number and arguments. `x32` is another calling convention with its own
/// numbers.
const EVERYWHERE: &str = r#"
import ctypes, fcntl, os, socket, struct, sys, time
victim = int(input())
libc = ctypes.CDLL(None, use_errno=True)
bad = []

def refused(name, call):
    """Records the call if it is not refused."""
    ctypes.set_errno(0)
    result = call()
    if result != -1 or ctypes.get_errno() not in (1, 38):
        bad.append((name, result, ctypes.get_errno()))

def syscall(number, *arguments):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])

parameters = ctypes.create_string_buffer(128)
EVERYWHERE = [
    ("perf_event_open", (298, parameters, victim, -1, -1, 0)), ("userfaultfd", (323, 1)),
    ("io_uring_setup", (425, 1, parameters)), ("bpf", (321, 0, parameters, 128)), ("keyctl", (250, 0, -3, 1)),
    ("add_key", (248, b"user", b"x", b"y", 1, -3)), ("request_key", (249, b"user", b"x", None, 0)),
    ("PR_SCHED_CORE", (157, 62, 2, victim, 0, 0)), ("PR_SET_DUMPABLE", (157, 4, 0, 0, 0, 0)),
    ("unshare", (272, 0x10000000)), ("netlink", (41, 16, 3, 0)), ("vsock", (41, 40, 1, 0)), ("packet", (41, 17, 3, 0)),
    ("kernel crypto", (41, 38, 5, 0)), ("internet", (41, 2, 1, 0)), ("a pair of others", (53, 40, 1, 0, parameters)),
    ("a sibling", (56, 0x8000 | 17, 0, 0, 0, 0)), ("a user namespace", (56, 0x10000000 | 17, 0, 0, 0, 0)),
    ("clone3", (435, parameters, 88)), ("memfd_create", (319, b"x", 0)), ("memfd_secret", (447, 0)),
    ("shmget", (29, 0, 1 << 20, 0o1600)), ("msgget", (68, 0, 0o1600)), ("semget", (64, 0, 1, 0o1600)),
    ("mq_open", (240, b"x", 0o102, 0o600, None)), ("ptrace", (101, 16, 1, 0, 0)), ("ptrace me", (101, 0, 0, 0, 0)),
    ("process_vm_readv", (310, 1, 0, 0, 0, 0, 0)), ("kcmp", (312, 1, 1, 0, 0, 0)), ("pidfd_getfd", (438, 0, 0, 0)),
    ("process_madvise", (440, 0, 0, 0, 0, 0)), ("process_mrelease", (448, 0, 0)), ("fanotify_init", (300, 0, 0)),
    ("landlock", (444, parameters, 8, 0)), ("landlock_add_rule", (445, 0, 1, parameters, 0)), ("sync", (162,)),
    ("mount", (165, b"x", b"/tmp", b"tmpfs", 0, None)), ("open_tree", (428, -100, b"/", 0)), ("chroot", (161, b"/")),
    ("fsopen", (430, b"tmpfs", 0)), ("name_to_handle_at", (303, -100, b"/", parameters, parameters, 0)),
    ("open_by_handle_at", (304, -100, parameters, 0)), ("personality", (135, 0xFFFFFFFF)),
    ("syslog", (103, 3, None, 0)),
    ("swapon", (167, b"x", 0)), ("reboot", (169, 0, 0, 0, None)), ("kexec_load", (246, 0, 0, None, 0)),
    ("quotactl", (179, 0, b"x", 0, None)), ("lookup_dcookie", (212, 0, None, 0)), ("acct", (163, None)),
    ("x32 write", (0x40000000 | 1, 1, b"x", 0)), ("x32 kill", (0x40000000 | 62, victim, 0)),
    ("x32 ptrace", (0x40000000 | 521, 16, victim, 0, 0)), ("of a later kernel", (480, 0)), ("none", (1 << 20, 0)),
]
"#;

/// Every Linux system call that can cause a signal, or another effect, in a process outside of the program.
const SIGNALS: &str = r#"
def fcntls(high, fd):
    owner = ctypes.create_string_buffer(struct.pack("ii", 1, victim))
    refused(f"F_SETOWN {high}", lambda: syscall(72, fd, high | 8, victim))
    refused(f"F_SETSIG {high}", lambda: syscall(72, fd, high | 10, 9))
    refused(f"F_SETOWN_EX {high}", lambda: syscall(72, fd, high | 15, owner))
    refused(f"F_SETLEASE {high}", lambda: syscall(72, fd, high | 1024, 0))
    refused(f"F_NOTIFY {high}", lambda: syscall(72, fd, high | 1026, 0x80000002))

def ioctls(high, fd):
    process = ctypes.create_string_buffer(struct.pack("i", victim))
    for name, request in [("FIOSETOWN", 0x8901), ("SIOCSPGRP", 0x8902), ("TIOCSPGRP", 0x5410), ("TIOCSTI", 0x5412),
                          ("TIOCSCTTY", 0x540E), ("FIOASYNC", 0x5452)]:
        refused(f"{name} {high}", lambda: syscall(16, fd, high | request, process))

def fire(r, w):
    """Triggers the event for which a call may have set up a signal."""
    try:
        fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        pass
    os.write(w, b"x")

r, w = os.pipe()
a, b = socket.socketpair()
for high in (0, 1 << 32, 0x7FFFFFFF << 32):
    for fd in (r, a.fileno()):
        fcntls(high, fd)
        ioctls(high, fd)
fire(r, w)
fire(a.fileno(), b.fileno())
info = ctypes.create_string_buffer(128)
for name, call in [
    ("kill", (62, victim, 9)), ("kill a group", (62, -victim, 9)), ("kill all", (62, -1, 19)),
    ("tkill", (200, victim, 9)),
    ("tgkill", (234, victim, victim, 9)), ("rt_sigqueueinfo", (129, victim, 9, info)),
    ("rt_tgsigqueueinfo", (297, victim, victim, 9, info)), ("pidfd_open", (434, victim, 0)),
    ("pidfd_send_signal", (424, r, 9, None, 0)), ("pidfd_getfd", (438, r, 0, 0)), ("process_mrelease", (448, r, 0)),
    ("process_madvise", (440, r, 0, 0, 0, 0)), ("ptrace", (101, 16, victim, 0, 0)),
    ("ptrace seize", (101, 0x4206, victim, 0, 0)),
    ("process_vm_readv", (310, victim, 0, 0, 0, 0, 0)), ("process_vm_writev", (311, victim, 0, 0, 0, 0, 0)),
    ("kcmp", (312, os.getpid(), victim, 0, 0, 0)), ("prlimit", (302, victim, 0, None, parameters)),
    ("setpriority", (141, 0, victim, 19)), ("ioprio_set", (251, 1, victim, 0)), ("setpgid", (109, 0, victim)),
    ("setsid", (112,)), ("sched_setaffinity", (203, victim, 8, parameters)),
    ("sched_setscheduler", (144, victim, 5, parameters)), ("sched_setparam", (142, victim, parameters)),
    ("sched_setattr", (314, victim, parameters, 0)), ("migrate_pages", (256, victim, 0, None, None)),
    ("move_pages", (279, victim, 0, None, None, None, 0)), ("unix", (41, 1, 1, 0)),
] + EVERYWHERE:
    refused(name, lambda: syscall(*call))
time.sleep(0.2)
if bad:
    sys.exit(f"not refused: {bad}")
print("refused")
"#;

/// Under landlock, programs cannot signal the process that starts them or its other children.
#[test]
fn no_program_under_landlock_signals_a_process_outside() {
    if !confines() || !installed(&["python3"]) || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let mut victim = Victim::new();
    let tests = json!([{"input": victim.0.id().to_string(), "output": "refused"}]);
    let options = json!({"language": "python", "isolation": "landlock"});
    let (scores, failures) = score(options, &[&[EVERYWHERE, SIGNALS].concat()], &tests);
    assert_eq!(scores.values, [Some(1.0)], "{failures:?}");
    assert!(victim.is_alive());
}

/// Tries to watch directories of other processes, with every system call that Linux has for it.
const WATCHES: &str = r#"
READS = 0x03FF
for name, call in [
    ("inotify_init", (253,)), ("inotify_init1", (294, 0)), ("inotify_init1, not blocking", (294, 0o4000)),
    ("inotify_init1, closed on exec", (294, 0o2000000)), ("inotify_rm_watch", (255, 0, 1)),
    ("inotify_add_watch of a stream", (254, 0, b"/", READS)), ("x32 inotify_init1", (0x40000000 | 294, 0)),
    ("fanotify_init of names", (300, 0x0E00, 0)), ("fanotify_init", (300, 0, 0)),
    ("fanotify_mark", (301, 0, 1, READS, -100, b"/")),
] + [(f"inotify_add_watch of {place}", (254, fd, place, READS))
     for fd in (0, 1, 2, 3, -1) for place in (b"/", b"/tmp", b"/root", b"/home", b"/dev/shm", b"/proc/self/cwd", b".")]:
    refused(name, lambda: syscall(*call))
for command in (1024, 1026):
    refused(f"fcntl {command}", lambda: syscall(72, 0, command, READS))
if bad:
    sys.exit(f"not refused: {bad}")
print("refused")
"#;

/// Landlock itself does not cover watching, by which a program would learn who uses which file, and when.
#[test]
fn no_program_under_landlock_watches_files_of_others() {
    if !confines() || !installed(&["python3"]) || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let tests = json!([{"input": std::process::id().to_string(), "output": "refused"}]);
    let options = json!({"language": "python", "isolation": "landlock"});
    let (scores, failures) = score(options, &[&[EVERYWHERE, WATCHES].concat()], &tests);
    assert_eq!(scores.values, [Some(1.0)], "{failures:?}");
}

/// Each isolation refuses system calls that no program needs, since these have had bugs in the kernel.
#[test]
fn system_calls_outside_the_list_are_refused() {
    if !installed(&["python3"]) || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let program = format!(
        "{EVERYWHERE}
for name, call in EVERYWHERE:
    refused(name, lambda: syscall(*call))
if bad:
    sys.exit(f\"not refused: {{bad}}\")
print(\"refused\")"
    );
    let tests = json!([{"input": std::process::id().to_string(), "output": "refused"}]);
    for isolation in isolations() {
        let (scores, failures) = score(json!({"language": "python", "isolation": isolation}), &[&program], &tests);
        assert_eq!(scores.values, [Some(1.0)], "{isolation}: {failures:?}");
    }
}

/// Programs that search all of /proc for one of our environment variables. Its name begins with PLANTED_, which the
/// programs do not contain.
const LOOKS: [(&str, &str, &str); 3] = [
    (
        "python",
        "python3",
        r#"
import os, re
name = b"PLANTED" + b"_" + b"SECRET="
found = set()
try:
    if os.getppid() == 1 and os.path.getsize("/proc/1/environ") == 0 and open("/proc/1/environ").read():
        found.add("process 1 has an environment")
except OSError:
    pass
for place, directories, files in os.walk("/proc"):
    directories[:] = [d for d in directories if d not in ("sys", "fd", "map_files", "root", "cwd", "net")]
    for file in files:
        if file not in ("kmsg", "pagemap", "kcore", "mem", "clear_refs"):
            try:
                fd = os.open(place + "/" + file, os.O_RDONLY | os.O_NONBLOCK)
                if name in os.read(fd, 1 << 20):
                    found.add(place + "/" + file)
                os.close(fd)
            except OSError:
                pass
# And in the memory of others.
try:
    processes = [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]
except OSError:
    processes = []
for process in processes:
    try:
        memory = open(f"/proc/{process}/mem", "rb", 0)
        for line in open(f"/proc/{process}/maps"):
            a, b, mode = re.match("([0-9a-f]+)-([0-9a-f]+) (.)", line).groups()
            if mode == "r" and int(b, 16) - int(a, 16) < 1 << 24:
                memory.seek(int(a, 16))
                if name in memory.read(int(b, 16) - int(a, 16)):
                    found.add(f"memory of {process}: {line}")
    except (OSError, OverflowError, ValueError):
        pass
if found:
    sys.exit(f"found: {sorted(found)}")
print("nothing")
"#,
    ),
    (
        "javascript",
        "node",
        r#"
const fs = require("fs");
let found = [];
for (let process = 1; process < 5000; process++)
    for (const file of ["environ", "cmdline", "task/" + process + "/environ"])
        try {
            const text = fs.readFileSync("/proc/" + process + "/" + file, "latin1");
            if (text.includes("PLANTED" + "_" + "SECRET=")) found.push(process + "/" + file);
        } catch (e) {}
if (found.length) { console.error(found.join()); process.exit(1); }
console.log("nothing");
"#,
    ),
    (
        "shell",
        "sh",
        r#"
name=PLANTED; name=${name}_SECRET=
for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/task/*/environ /proc/self/environ /proc/1/environ; do
    if tr '\000' '\n' 2>/dev/null <"$file" | grep -q "$name"; then echo "$file"; exit 1; fi
done 2>/dev/null
env | grep "$name" || echo nothing
"#,
    ),
];

/// The environment contains tokens for services and for the Hub.
#[test]
fn no_process_in_a_sandbox_shows_our_environment() {
    if std::env::var_os("PLANTED_SECRET").is_none() {
        return again_with("no_process_in_a_sandbox_shows_our_environment", "PLANTED_SECRET", "1f0c");
    }
    let tests = json!([{"input": "", "output": "nothing"}]);
    for isolation in isolations() {
        for (language, program, source) in LOOKS {
            if !installed(&[program]) {
                continue;
            }
            let options = json!({"language": language, "isolation": isolation});
            let (scores, failures) = score(options, &[source], &tests);
            assert_eq!(scores.values, [Some(1.0)], "{language}, {isolation}: {failures:?}");
        }
    }
}
