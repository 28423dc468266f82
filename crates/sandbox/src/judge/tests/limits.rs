//! Tests of limits in each isolation: the memory of all processes, output, descriptors, and the files of a killed run.

use super::escapes::isolations;
use super::*;
use std::process::{Command, Stdio};

/// The score of a single Python program, and the reason if the score is not 1.
fn one(isolation: &str, language: &str, memory_mb: u64, source: &str) -> String {
    let options = json!({"language": language, "isolation": isolation, "memory_mb": memory_mb});
    let tests = json!([{"input": "4\n", "output": "8"}]);
    let (scores, failures) = score(options, &[source], &tests);
    assert!(scores.problems.is_empty() && scores.values[0] == Some(f64::from(u8::from(failures[0].is_empty()))));
    failures[0].clone()
}

/// All processes of a program share one limit, however they hold memory.
#[test]
fn memory_is_limited_for_all_processes_together() {
    if !installed(&["python3"]) {
        return;
    }
    let greedy = [
        (
            "children",
            "import os, time
for _ in range(4):
    if os.fork() == 0:
        x = b'x' * (150 << 20)
        time.sleep(1000)
        os._exit(0)
time.sleep(1000)",
        ),
        (
            "orphans",
            "import os, time
for _ in range(4):
    if os.fork() == 0:
        if os.fork() == 0:
            x = b'x' * (150 << 20)
            time.sleep(1000)
        os._exit(0)
time.sleep(1000)",
        ),
        (
            "shared pages",
            "import mmap, os, time
for _ in range(4):
    if os.fork() == 0:
        m = mmap.mmap(-1, 150 << 20)
        for i in range(0, 150 << 20, 4096): m[i] = 1
        time.sleep(1000)
time.sleep(1000)",
        ),
        // No process lives long enough for a measurement of all of them. Memory that a child shares with its parent is
        // not in the child's resident set until the child uses it. A fork fails while too many ended processes have not
        // been reaped.
        (
            "processes that fork and exit at once",
            "import mmap, os, time
for _ in range(4):
    if os.fork() == 0:
        m = mmap.mmap(-1, 150 << 20)
        for i in range(0, 150 << 20, 4096): m[i] = 1
        while True:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
time.sleep(1000)",
        ),
        (
            "data in sockets",
            "import os, socket, time
for _ in range(12):
    if os.fork() == 0:
        pairs = [socket.socketpair() for _ in range(50)]
        for pair in pairs:
            for s in pair:
                s.setblocking(False)
                try:
                    while True: s.send(bytes(1 << 16))
                except OSError: pass
        time.sleep(1000)
        os._exit(0)
time.sleep(1000)",
        ),
    ];
    for isolation in isolations() {
        for (name, source) in greedy {
            assert_eq!(
                one(isolation, "python", 384, source),
                "test 1: used more than 384 MiB of memory",
                "{name}, {isolation}"
            );
        }
        // Memory that does not belong to any process is refused.
        let hidden = "import os
f = os.memfd_create('x')
print(8)";
        assert!(one(isolation, "python", 384, hidden).contains("Errno 38"), "{isolation}");
        // Memory that a program shares with its children counts once, and the program can use all of its limit.
        let right = "import os, time
x = b'x' * (200 << 20)
children = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        time.sleep(0.3)
        os._exit(0)
    children.append(child)
for child in children: os.waitpid(child, 0)
print(2 * int(input()))";
        assert_eq!(one(isolation, "python", 384, right), "", "{isolation}");
        // A program that starts other programs briefly counts its memory twice.
        let starts = "import subprocess
x = b'x' * (250 << 20)
for _ in range(60): subprocess.run(['/bin/true'])
print(2 * int(input()))";
        assert_eq!(one(isolation, "python", 384, starts), "", "{isolation}");
        if installed(&["node"]) {
            let greedy = "let all = []; while (true) all.push(Buffer.alloc(1 << 20, 1));";
            assert_eq!(one(isolation, "javascript", 64, greedy), "test 1: used more than 64 MiB of memory");
            let right = "console.log(2 * Number(require('fs').readFileSync(0)))";
            assert_eq!(one(isolation, "javascript", 64, right), "", "{isolation}");
        }
    }
    // Files of /tmp are held in memory, if /tmp exists, and so is the entry of each empty file.
    if installed(&["bwrap"]) {
        let (full, many) = (
            "import time\nf = open('/tmp/x', 'wb')\nfor _ in range(60): f.write(bytes(1 << 20))\ntime.sleep(1000)",
            "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'w').close()\n    n += 1",
        );
        for source in [full, many] {
            assert_eq!(one("bubblewrap", "python", 40, source), "test 1: used more than 40 MiB of memory");
        }
    }
}

/// Without namespaces all programs run as one user, but processes of one program do not reduce the limit of others.
#[test]
fn a_program_with_too_many_processes_takes_none_from_others() {
    if !installed(&["python3"]) {
        return;
    }
    let options = |isolation| json!({"language": "python", "isolation": isolation, "processes": 16});
    // In a namespace the kernel refuses the seventeenth process. Otherwise the program is killed once it has been
    // measured.
    let many = "import os, time
for _ in range(40):
    if os.fork() == 0:
        time.sleep(1000)
print(8, flush=True)
time.sleep(1000)";
    let bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    let refused_bomb = "import os, time
own, refused = os.getpid(), 0
while os.getpid() != own or refused < 1000:
    try: os.fork()
    except OSError: refused += 1
print(8)
os._exit(7)";
    let right = "import os
for _ in range(100):
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
print(2 * int(input()))";
    let tests = json!([{"input": "4\n", "output": "8"}]);
    for isolation in isolations() {
        // Without a namespace a bomb is killed once it has been measured; in a namespace it ends by itself.
        let bomb = if isolation == "bubblewrap" { refused_bomb } else { bomb };
        let (scores, failures) = score(options(isolation), &[many, bomb, right, right, bomb, right], &tests);
        // Without namespaces, the programs of an ordinary user share one process count in the kernel.
        let counted_apart = isolation == "bubblewrap" || rustix::process::geteuid().is_root();
        assert!([0, 1, 4].iter().all(|&i| scores.values[i] == Some(0.0)), "{isolation}: {failures:?}");
        assert!(
            !counted_apart || [2, 3, 5].iter().all(|&i| scores.values[i] == Some(1.0)),
            "{isolation}: {failures:?}"
        );
        if counted_apart && isolation != "bubblewrap" {
            let message = "test 1: more than 16 processes and threads";
            assert!([0, 1, 4].iter().all(|&i| failures[i] == message), "{isolation}: {failures:?}");
        }
    }
}

/// Exactly the allowed amount of output is accepted; one byte more is not.
#[test]
fn the_limit_of_output_is_inclusive() {
    for isolation in isolations() {
        let score = |bytes: usize| {
            let options = json!({"language": "shell", "isolation": isolation, "output_bytes": 1000});
            let tests = json!([{"input": "", "output": "x".repeat(bytes)}]);
            let (scores, failures) = score(options, &[&format!("printf '%0{bytes}d' 0 | tr 0 x")], &tests);
            (scores.values[0], failures[0].clone())
        };
        assert_eq!(score(1000), (Some(1.0), String::new()), "{isolation}");
        assert_eq!(score(1001), (Some(0.0), "test 1: too much output".to_owned()), "{isolation}");
    }
}

/// A program that is killed by a signal has failed, regardless of its output.
#[test]
fn a_right_answer_followed_by_a_signal_scores_0() {
    if !installed(&["python3"]) {
        return;
    }
    let programs = [
        "import ctypes, resource\nassert resource.getrlimit(resource.RLIMIT_CORE) == (1, 1)\nprint(8, flush=True)
ctypes.string_at(0)",
        "import os\nprint(8, flush=True)\nos.abort()",
        "import resource\nprint(8, flush=True)\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
    ];
    let tests = json!([{"input": "4\n", "output": "8"}]);
    for isolation in isolations() {
        let (scores, failures) = score(json!({"language": "python", "isolation": isolation}), &programs, &tests);
        assert_eq!(scores.values, [Some(0.0); 3], "{isolation}: {failures:?}");
        // The exit code is 128 plus the signal, and no assertion failed before.
        assert!(failures.iter().all(|failure| failure.starts_with("test 1: exit code 13")), "{failures:?}");
    }
}

/// The process that starts a run may have left a descriptor open in it, such as a log, a lock or a terminal.
#[test]
fn no_descriptor_of_this_process_is_inherited() {
    if !installed(&["python3"]) {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    rustix::io::fcntl_setfd(file.as_file(), rustix::io::FdFlags::empty()).unwrap();
    let program = "import os
for fd in range(3, 256):
    try:
        os.write(fd, b'x')
    except OSError:
        pass
print(2 * int(input()))";
    for isolation in isolations() {
        assert_eq!(one(isolation, "python", 256, program), "", "{isolation}");
        assert_eq!(file.as_file().metadata().unwrap().len(), 0, "{isolation}: written to");
    }
}

/// A language that does not work is refused with the reason, instead of scoring every completion 0.
#[test]
fn a_language_that_does_not_work_is_refused() {
    for isolation in isolations() {
        let refused = |mut options: Value, words: &[&str]| {
            options["isolation"] = isolation.into();
            let message = refusal(options);
            for word in words {
                assert!(message.contains(word), "{isolation}: `{word}` in {message}");
            }
        };
        if installed(&["python3"]) {
            let words = ["`python` does not work here", &format!("{isolation} and seccomp, memory "), "exit code 1"];
            refused(json!({"language": "python", "memory_mb": 2}), &words);
        }
        if !Path::new("/usr/bin/rustc").exists() {
            refused(json!({"language": "rust"}), &["`rustc` is not installed under /usr"]);
        }
        // The path exists, but is not a program.
        let language = json!({"file": "x.l", "run": ["/usr/bin/../share", "{source}"]});
        refused(json!({"language": language}), &["the language with file `x.l` does not work here", "exit code 126"]);
    }
}

/// A source whose compilation times out does not produce a program.
#[test]
fn a_source_that_is_not_compiled_in_time_scores_0() {
    if !installed(&["cc"]) {
        return;
    }
    let mut source = "#define A0 1+1+1+1+1+1+1+1+1+1+\n".to_owned();
    for i in 1..9 {
        let before = format!("A{} ", i - 1);
        source += &format!("#define A{i} {}\n", before.repeat(10));
    }
    source += "int main(void) { return A8 1; }\n";
    for isolation in isolations() {
        let options = json!({"language": "c", "isolation": isolation, "compile_timeout_s": 0.5});
        let (scores, failures) = score(options, &[&source], &doubled());
        assert_eq!((&scores.values[..], &failures[0][..]), (&[Some(0.0)][..], "not compiled: timed out"));
        assert!(scores.problems.is_empty());
    }
}

/// Runs this test again as a separate process, for one isolation and with separate files.
fn again(isolation: &str, mark: &str, files: &Path) -> Command {
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "judge::tests::limits::nothing_outlives_a_run_that_is_killed", "--nocapture"]);
    test.env("ENDS", format!("{isolation} {mark}")).env("TMPDIR", files).stdout(Stdio::null()).stderr(Stdio::null());
    test
}

/// SIGKILL leaves no time to clean up, but programs end all the same, and the next run removes the files.
#[test]
fn nothing_outlives_a_run_that_is_killed() {
    if let Ok(ends) = std::env::var("ENDS") {
        let (isolation, mark) = ends.split_once(' ').unwrap();
        // One process sleeps as a child, one as a daemon, one in the foreground; none notices that its streams close.
        let program = format!(
            "trap '' HUP TERM INT PIPE
(exec sleep {mark}) </dev/null >/dev/null 2>&1 &
(setsid sleep {mark} || sleep {mark}) </dev/null >/dev/null 2>&1 &
sleep {mark}"
        );
        let options = json!({"language": "shell", "isolation": isolation});
        return drop(score(options, &[if mark == "0" { "echo 8" } else { &program }], &doubled()));
    }
    for (i, isolation) in isolations().into_iter().enumerate() {
        let mark = format!("34{}{i}", std::process::id());
        let files = tempfile::tempdir().unwrap();
        std::fs::set_permissions(files.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let left = || std::fs::read_dir(files.path()).unwrap().count();
        let mut run = again(isolation, &mark, files.path()).spawn().unwrap();
        testing::wait_until("the program has started", || running(&mark) >= 3);
        run.kill().unwrap();
        run.wait().unwrap();
        assert!(none_is_left(&mark), "{isolation}: a program continues");
        assert!(left() > 0, "{isolation}: the killed run must leave files for the next run to remove");
        // Files of other programs stay.
        std::fs::write(files.path().join("lockstep-codes"), "").unwrap();
        assert!(again(isolation, "0", files.path()).status().unwrap().success());
        assert_eq!(left(), 1, "{isolation}: {:?}", std::fs::read_dir(files.path()).unwrap().collect::<Vec<_>>());
    }
}

/// Of two concurrent runs, neither mistakes the other's files for those of a killed run.
#[test]
fn a_run_that_continues_keeps_its_files() {
    if isolations().is_empty() {
        return;
    }
    let judge = judge(json!({"language": "shell"}));
    let Prepared::Ready(directory) = judge.prepare("echo 8").unwrap() else { panic!() };
    let mut other = again(isolations()[0], "0", &std::env::temp_dir());
    assert!(other.status().unwrap().success());
    assert!(directory.path().join("main.sh").exists());
}

/// A program without its own session that has many busy processes is niced in proportion to their number.
#[test]
fn busy_processes_give_way_to_other_programs() {
    if !installed(&["python3"]) || !isolations().contains(&"landlock") {
        return;
    }
    let busy = "import os, time
for _ in range(40):
    if os.fork() == 0:
        while True: pass
while os.getpriority(os.PRIO_PROCESS, 0) < 15: time.sleep(0.05)
print(8)";
    // A single thread is not niced, regardless of the nice value of the tests.
    let own = rustix::process::getpriority_process(None).unwrap();
    let alone = format!(
        "import os, time
end = time.process_time() + 0.2
while time.process_time() < end: pass
print(8 if os.getpriority(os.PRIO_PROCESS, 0) == {own} else 9)"
    );
    for source in [busy, &alone] {
        assert_eq!(one("landlock", "python", 512, source), "", "{source}");
    }
}
