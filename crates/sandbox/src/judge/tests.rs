//! Tests of the capabilities and limits of programs. They need bubblewrap, and the compilers and interpreters under
//! /usr.

use super::*;
use crate::sandbox::Isolation;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use testing::installed;

pub(crate) mod escapes;
mod limits;
mod parts;

/// A judge with time limits that only a hanging program reaches, unless the options set others.
pub(crate) fn judge(mut options: Value) -> Judge {
    for limit in ["timeout_s", "compile_timeout_s"] {
        if options.get(limit).is_none() {
            options[limit] = 600.0.into();
        }
    }
    Judge::new(serde_json::from_value(options).unwrap()).unwrap()
}

/// A judge that runs programs in this sandbox.
pub(crate) fn judge_in(sandbox: Sandbox, options: Value) -> Judge {
    Judge { sandbox, ..judge(options) }
}

/// The verdicts of several programs as scores.
pub(crate) struct Scores {
    /// `None` for a program without a verdict.
    pub values: Vec<Option<f64>>,
    /// The reasons why programs have no verdict.
    pub problems: Vec<String>,
    /// The number of programs that ran out of time.
    pub timed_out: usize,
}

/// Scores texts, each with its prompt and row. Also returns why programs failed or have no verdict.
pub(crate) fn scored_by(judge: &mut Judge, rows: &[(&str, &str, Value)]) -> (Scores, Vec<String>) {
    let tests: Vec<_> = rows.iter().map(|(.., row)| judge.tests(|name| row.get(name))).collect();
    let tested = rows
        .iter()
        .zip(&tests)
        .filter_map(|((prompt, text, _), tests)| tests.as_ref().map(|tests| Submission { text, prompt, tests }));
    let mut verdicts = judge.judge(&tested.collect::<Vec<_>>()).into_iter();
    let (mut scores, mut failures) = (Scores { values: vec![], problems: vec![], timed_out: 0 }, vec![]);
    for tests in &tests {
        let verdict = tests
            .as_ref()
            .map_or(Err("no tests".to_owned()), |_| verdicts.next().unwrap().map_err(|error| error.to_string()));
        scores.timed_out += usize::from(verdict.as_ref().is_ok_and(|verdict| verdict.timed_out));
        scores.values.push(verdict.as_ref().ok().map(|verdict| judge.score(verdict)));
        scores.problems.extend(verdict.as_ref().err().cloned());
        failures.push(verdict.map_or_else(|error| error, |verdict| verdict.failure));
    }
    (scores, failures)
}

pub(crate) fn scored_with_prompts(options: Value, rows: &[(&str, &str, Value)]) -> (Scores, Vec<String>) {
    scored_by(&mut judge(options), rows)
}

/// Like `scored_by`, without prompts.
pub(crate) fn scored(options: Value, rows: &[(&str, Value)]) -> (Scores, Vec<String>) {
    let rows: Vec<_> = rows.iter().map(|(completion, row)| ("q", *completion, row.clone())).collect();
    scored_with_prompts(options, &rows)
}

/// Scores programs on the same tests. Also returns why they failed.
fn score(options: Value, programs: &[&str], tests: &Value) -> (Scores, Vec<String>) {
    let rows: Vec<_> = programs.iter().map(|program| (*program, json!({"tests": tests}))).collect();
    scored(options, &rows)
}

pub(crate) fn doubled() -> Value {
    json!([{"input": "4\n", "output": "8\n"}, {"input": "-3\n", "output": "-6"}])
}

/// As root, runs an ignored test as an ordinary user; returns its output.
pub(crate) fn again_as_an_ordinary_user(test: &str) -> String {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return String::new();
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", test, "--ignored", "--nocapture"]).uid(1000).gid(1000);
    let output = again.env("TMPDIR", "/tmp").current_dir("/").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    text
}

#[test]
fn every_language_runs_right_and_wrong_programs() {
    for (language, needs, right, wrong, broken) in [
        ("python", &["bwrap", "python3"][..], "print(2 * int(input()))", "print(int(input()) + 4)", "print(("),
        ("shell", &["bwrap"], "read n; echo $((2 * n))", "read n; echo $((n + 4))", "if"),
        (
            "c",
            &["bwrap", "cc"],
            "#include <stdio.h>\nint main() { int n; scanf(\"%d\", &n); printf(\"%d\\n\", 2 * n); return 0; }",
            "#include <stdio.h>\nint main() { int n; scanf(\"%d\", &n); printf(\"%d\\n\", n + 4); return 0; }",
            "int main() {",
        ),
        (
            "javascript",
            &["bwrap", "node"],
            "console.log(2 * require('fs').readFileSync(0))",
            "console.log(4 + Number(require('fs').readFileSync(0)))",
            "console.log((",
        ),
        (
            "ocaml",
            &["bwrap", "ocamlc"],
            "let () = Scanf.scanf \"%d\" (fun n -> Printf.printf \"%d\\n\" (2 * n))",
            "let () = Scanf.scanf \"%d\" (fun n -> Printf.printf \"%d\\n\" (n + 4))",
            "let () = 1 + \"a\"",
        ),
    ] {
        if !installed(needs) {
            continue;
        }
        let options = json!({"language": language, "partial": true});
        let (scores, failures) = score(options, &[right, wrong, broken], &doubled());
        assert_eq!(scores.values, [Some(1.0), Some(0.5), Some(0.0)], "{language}: {failures:?}");
        assert!(scores.problems.is_empty(), "{language}: {:?}", scores.problems);
        assert_eq!((failures[0].as_str(), failures[1].as_str()), ("", "test 2: wrong output"), "{language}");
        let compiled = ["c", "ocaml"].contains(&language);
        assert_eq!(failures[2].starts_with("not compiled: "), compiled, "{language}: {failures:?}");
    }
}

#[test]
fn a_user_defined_language_is_scored_all_or_nothing() {
    if !installed(&["bwrap", "awk"]) {
        return;
    }
    let awk = json!({"file": "main.awk", "run": ["awk", "-f", "{source}"], "fences": ["awk"]});
    let programs = ["So:\n```awk\n{ print 2 * $1 }\n```\nand\n```text\nno program\n```", "{ print $1 + 4 }"];
    let (scores, _) = score(json!({"language": awk}), &programs, &doubled());
    assert_eq!(scores.values, [Some(1.0), Some(0.0)]);
}

/// Each attack scores 0, ends in time, and leaves the machine as it was.
#[test]
fn attacks_score_0_and_leave_nothing_behind() {
    if installed(&["bwrap", "python3"]) {
        attack("bwrap");
    }
}

/// Without bubblewrap, landlock and seccomp stop the same attacks.
#[test]
fn attacks_score_0_even_without_bubblewrap() {
    if confines() {
        attack("/no/such/bwrap");
    }
}

/// Compilers can write only into their own directory, and programs cannot write files.
#[test]
fn without_bubblewrap_programs_write_nothing() {
    if !confines() {
        return;
    }
    let program = "\
import os
for place in (os.environ.get('TMPDIR'), os.environ.get('HOME'), '.', '/tmp'):
    try:
        open(os.path.join(place or '.', 'x'), 'w')
        print('wrote', place)
    except OSError:
        pass
print('done')";
    let options = json!({"language": "python", "isolation": "landlock"});
    let (scores, failures) = score(options, &[program], &json!([{"input": "", "output": "done"}]));
    assert_eq!(scores.values, [Some(1.0)], "{failures:?}");
}

/// Whether this kernel has landlock; else the test is skipped with a message.
fn confines() -> bool {
    use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    match rules.handle_access(AccessFs::from_all(ABI::V3)) {
        Ok(_) => drop(judge(json!({"language": "shell", "isolation": "landlock"}))),
        Err(error) => {
            eprintln!("skipped: {error}");
            return false;
        }
    }
    true
}

fn attack(bwrap: &str) {
    let home = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    let secret = home.path().join("secret");
    std::fs::write(&secret, "8").unwrap();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let read_secret = format!("print(open({:?}).read())", secret.display().to_string());
    let write_outside = format!("open({:?}, 'w').write('x')\nprint(8)", home.path().join("new").display().to_string());
    let connect = format!("import socket\ns = socket.socket()\ns.connect(('127.0.0.1', {port}))\nprint(8)");
    // An attack prints the right answer if it succeeds.
    let attacks = [
        ("memory bomb", "x = []\nwhile True:\n    x.append(bytearray(1 << 24))"),
        ("full disk", "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'wb').write(bytes(1 << 23))\n    n += 1"),
        ("full shared memory", "open('/dev/shm/x', 'wb').write(bytes(1 << 20))\nprint(8)"),
        ("a file in /dev", "open('/dev/x', 'w').write('x')\nprint(8)"),
        ("a file in /", "open('/x', 'w').write('x')\nprint(8)"),
        ("a file in /usr", "open('/usr/x', 'w').write('x')\nprint(8)"),
        ("endless output", "while True:\n    print('8' * 1000)"),
        ("endless errors", "import sys\nwhile True:\n    sys.stderr.write('x' * 1000)"),
        ("loop without SIGTERM", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    pass"),
        ("sleep", "import time\ntime.sleep(1000)"),
        ("shadow", "print(open('/etc/shadow').read() and 8)"),
        ("home", "import os\nprint(8 if os.listdir('/root') or os.listdir('/home') else 1)"),
        ("a file of the parent", &read_secret),
        ("writing outside", &write_outside),
        ("localhost", &connect),
        ("resolver", "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)\nprint(8)"),
        ("killing the parent", "import os, time\nos.kill(os.getppid(), 9)\nos.kill(1, 9)\ntime.sleep(100)"),
        ("killing all", "import os, signal\nos.kill(-1, signal.SIGKILL)"),
        ("ptrace", "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nassert c.ptrace(16, 1, 0, 0) == 0\nprint(8)"),
        ("a namespace of its own", "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0\nprint(8)"),
        ("a group of its own", "import os\nos.setpgid(0, 0)\nos.setsid()\nprint(4)"),
        ("another's signal", "import os, time\nos.kill(os.getppid(), 0)\nos.kill(1, 19)\nprint(4)"),
        ("a mode", "import os\nos.chmod('/job', 0o777)\nos.chmod('/usr', 0o777)\nprint(8)"),
        (
            "mount",
            "import ctypes\nc = ctypes.CDLL(None)\nassert c.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0\nprint(8)",
        ),
        ("a forged result", "print('PASSED 2/2')\nprint('{\"passed\": true}')"),
        ("patched exit", "import os, sys\nsys.exit = print\nprint(8)\nos._exit(7)"),
        ("exit before the answer", "import os\nos._exit(0)"),
        ("overwriting its source", "open('/job/main.py', 'w').write('print(8)')\nprint(8)"),
        ("the right answer, killed", "import os, signal\nprint(8, flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)"),
        // The fork bomb comes last, since it would starve the other attacks of processor time.
        ("fork bomb", "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"),
    ];
    let (names, programs): (Vec<_>, Vec<&str>) = attacks.into_iter().unzip();
    let tests = json!([{"input": "4\n", "output": "8\n"}]);
    let (scores, failures) = score(json!({"language": "python", "timeout_s": 3.0, "bwrap": bwrap}), &programs, &tests);
    for ((name, value), failure) in names.iter().zip(&scores.values).zip(&failures) {
        assert!(*value == Some(0.0) && !failure.is_empty(), "{name}: {value:?}, {failure}");
    }
    let place = |name: &str| names.iter().position(|own| *own == name).unwrap();
    assert_eq!(failures[place("loop without SIGTERM")], "test 1: timed out");
    assert_eq!(scores.timed_out, failures.iter().filter(|failure| failure.ends_with("timed out")).count());
    // The failures name the limits. This judge has long time limits, so that a busy machine causes no timeout first.
    let limited = ["endless output", "memory bomb", "full disk"].map(|name| programs[place(name)]);
    let options = json!({"language": "python", "bwrap": bwrap});
    let (_, failures) = score(options, &limited, &tests);
    assert_eq!(failures[0], "test 1: too much output");
    assert!(failures[1].contains("MemoryError"), "{}", failures[1]);
    // The error is "no space left" or "permission denied".
    assert!(failures[2].contains(if bwrap == "bwrap" { "Errno 28" } else { "Errno 13" }), "{}", failures[2]);
    // No file and no process of the sandbox is left.
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "8");
    assert!(!["/x", "/usr/x", "/dev/x", "/dev/shm/x"].iter().any(|path| Path::new(path).exists()));
}

/// The number of processes with `mark` in their command line.
fn running(mark: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(mark)).count()
}

/// Waits until the processes have ended, since killed processes take a moment.
fn none_is_left(mark: &str) -> bool {
    testing::wait_until("the killed programs end", || running(mark) == 0);
    true
}

#[test]
fn a_process_in_the_background_does_not_outlive_its_program() {
    if !installed(&["bwrap", "sh"]) {
        return;
    }
    // The sleeping child does not hold the output open, so the program ends at once with success.
    let mark = format!("31{}", std::process::id());
    let program = format!("(sleep {mark}) </dev/null >/dev/null 2>&1 &\nread n; echo $((2 * n))");
    let (scores, failures) = score(json!({"language": "shell"}), &[&program], &doubled());
    assert_eq!(scores.values, [Some(1.0)], "{failures:?}");
    assert!(none_is_left(&mark));
}

#[test]
fn a_source_is_compiled_once() {
    if !installed(&["bwrap", "cc"]) {
        return;
    }
    let mut judge = judge(json!({"language": "c"}));
    let program = "#include <stdio.h>\nint main() { puts(\"8\"); return 0; }";
    let row = json!({"tests": [{"input": "", "output": "8"}]});
    let rows = [("q", program, row.clone()), ("q", program, row)];
    let ask = |judge: &mut Judge| scored_by(judge, &rows).0.values;
    assert_eq!(ask(&mut judge), [Some(1.0); 2]);
    let directory = |judge: &Judge| match &**judge.cache.values().next().unwrap() {
        Prepared::Ready(directory) => directory.path().to_owned(),
        Prepared::Refused(message) => panic!("{message}"),
    };
    let first = directory(&judge);
    assert_eq!(ask(&mut judge), [Some(1.0); 2]);
    assert_eq!((judge.cache.len(), directory(&judge)), (1, first.clone()));
    drop(judge);
    assert!(!first.exists(), "the judge must remove the directory");
}

#[test]
fn a_program_without_readable_tests_is_not_scored_0() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    for tests in
        [json!(null), json!([]), json!("no json"), json!([{"input": 1}]), json!({"inputs": ["1"], "outputs": []})]
    {
        let (scores, _) = score(json!({"language": "python"}), &["print(1)"], &tests);
        assert_eq!((&scores.values[..], &scores.problems[..]), (&[None][..], &["no tests".to_owned()][..]), "{tests}");
    }
    for tests in [json!("[{\"input\": \"4\", \"output\": 8}]"), json!({"inputs": [4], "outputs": ["8"]})] {
        let (scores, failures) = score(json!({"language": "python"}), &["print(2 * int(input()))"], &tests);
        assert_eq!(scores.values, [Some(1.0)], "{failures:?}");
    }
}

fn refusal(options: Value) -> String {
    let options = serde_json::from_value(options).unwrap();
    Judge::new(options).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn wrong_options_are_refused() {
    assert!(refusal(json!({"language": "cobol"})).contains("known: python"));
    assert!(refusal(json!({"language": "python", "timeout_s": 0})).contains("timeout_s"));
    assert!(refusal(json!({"language": "python", "staged": true})).contains("ocaml"));
    assert!(refusal(json!({"language": {"file": "../x", "run": ["sh"]}})).contains("`file`"));
    if installed(&["bwrap"]) {
        let own = json!({"language": {"file": "x", "run": ["no-such-interpreter", "{source}"]}});
        assert!(refusal(own).contains("`no-such-interpreter` is not installed under /usr"));
    }
}

/// A `bwrap` that cannot create namespaces, as in a container that forbids them.
fn forbidden_bwrap(directory: &Path) -> String {
    let path = directory.join("bwrap");
    let words = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n";
    testing::write_program(&path, words);
    path.display().to_string()
}

/// Without bubblewrap the message names a remedy, and landlock and seccomp are used if they exist.
#[test]
fn without_bubblewrap_landlock_is_used_or_nothing_is_run() {
    let check = |bwrap: &str| Sandbox::with(bwrap, Isolation::Bubblewrap).check(&[]).unwrap_err();
    let missing = check("/no/such/bwrap");
    assert!(missing.contains("apt install bubblewrap"), "{missing}");
    let directory = directory().unwrap();
    let bwrap = forbidden_bwrap(directory.path());
    let forbidden = check(&bwrap);
    for words in ["No permissions to create new namespace", "kernel.unprivileged_userns_clone", "--security-opt"] {
        assert!(forbidden.contains(words), "{forbidden}");
    }
    match Judge::new(Options { bwrap, ..Options::new("shell") }) {
        Ok(judge) => assert!(judge.sandbox.name().starts_with("landlock and seccomp, memory ")),
        Err(error) => {
            let error = error.to_string();
            for words in ["No permissions", "Linux 6.2", "unsafe_no_sandbox = true"] {
                assert!(error.contains(words), "{error}");
            }
        }
    }
}

/// Programs, unit tests and compilers run confined as in namespaces, and leave no process behind.
#[test]
fn confined_programs_run() {
    if !confines() || !installed(&["python3"]) {
        return;
    }
    let options = |language: &str| json!({"language": language, "bwrap": "/no/such/bwrap"});
    let mark = format!("33{}", std::process::id());
    let background = format!("(sleep {mark}) </dev/null >/dev/null 2>&1 &\nread n; echo $((2 * n))");
    let (scores, failures) = score(options("shell"), &["read n; echo $((2 * n))", "echo 1", &background], &doubled());
    assert_eq!(scores.values, [Some(1.0), Some(0.0), Some(1.0)], "{failures:?}");
    assert!(none_is_left(&mark));
    let assertions = json!({"tests": ["assert f(2) == 4"]});
    let rows = [("def f(x): return 2 * x", assertions.clone()), ("def f(x): return x", assertions)];
    let (scores, failures) = scored(options("python"), &rows);
    assert_eq!(scores.values, [Some(1.0), Some(0.0)], "{failures:?}");
    if installed(&["ocamlc", "cc"]) {
        let rows = [("let f x = 2 * x", json!({"tests": ["assert (f 2 = 4)"]}))];
        let (scores, failures) = scored(options("ocaml"), &rows);
        assert_eq!(scores.values, [Some(1.0)], "{failures:?}");
        let c = "#include <stdio.h>\nint main() { int n; scanf(\"%d\", &n); printf(\"%d\", 2 * n); return 0; }";
        let (scores, failures) = score(options("c"), &[c], &doubled());
        assert_eq!(scores.values, [Some(1.0)], "{failures:?}");
    }
}

/// Isolation that stops working during a run is not a failure of a program.
#[test]
fn lost_isolation_is_not_scored_0() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let directory = directory().unwrap();
    let path = directory.path().join("bwrap");
    std::os::unix::fs::symlink("/usr/bin/bwrap", &path).unwrap();
    let mut judge = judge(json!({"language": "shell", "bwrap": path}));
    std::fs::remove_file(&path).unwrap();
    forbidden_bwrap(directory.path());
    let (scores, _) = scored_by(&mut judge, &[("q", "echo 8", json!({"tests": doubled()}))]);
    assert_eq!(scores.values, [None]);
    assert!(scores.problems[0].contains("No permissions"), "{}", scores.problems[0]);
}

/// With `unsafe_no_sandbox` and without isolation, programs still run to their end, with limits only.
#[test]
fn unsafe_no_sandbox_runs_without_isolation() {
    if !installed(&["prlimit", "python3"]) {
        return;
    }
    let without_isolation = |language: &str| {
        let options = json!({"language": language, "unsafe_no_sandbox": true});
        judge_in(Sandbox::with("/no/such/bwrap", Isolation::Nothing), options)
    };
    assert_eq!(without_isolation("shell").sandbox.name(), "none (unsafe_no_sandbox)");
    let tests = [StreamTest { input: "4\n".into(), output: "8".into() }];
    let mark = format!("32{}", std::process::id());
    let background = format!("(sleep {mark}) </dev/null >/dev/null 2>&1 &\nread n; echo $((2 * n)) >x; cat x");
    for (source, passed) in [("read n; echo $((2 * n))", 1), ("echo 1", 0), (&background, 1)] {
        let judge = without_isolation("shell");
        let verdict = judge.run(&judge.prepare(source).unwrap(), &tests).unwrap();
        assert_eq!(verdict.passed, passed, "{source}: {}", verdict.failure);
    }
    assert!(none_is_left(&mark));
    // Isolation is used if it is available.
    if installed(&["bwrap"]) {
        let options = json!({"language": "shell", "unsafe_no_sandbox": true});
        assert_eq!(judge(options).sandbox.isolation, Isolation::Bubblewrap);
    }
}

/// As root, repeats tests as an ordinary user, for whom bubblewrap creates a user namespace without privileges.
#[test]
fn an_ordinary_user_is_isolated_too() {
    if !installed(&["bwrap", "python3"]) || !rustix::process::geteuid().is_root() {
        return;
    }
    use std::os::unix::process::CommandExt;
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    let own = ["a_namespace_has_no_way_out", "escapes::", "limits::"].map(|name| format!("judge::tests::{name}"));
    test.args(own).arg("--nocapture");
    match test.uid(1000).gid(1000).env("TMPDIR", "/tmp").current_dir("/").output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("test result: ok. 1"), "{text}{errors}");
        }
        // The directory of the test program may be accessible only to root.
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn a_namespace_has_no_way_out() {
    if !installed(&["bwrap", "python3"]) {
        return;
    }
    let attacks = [
        "import os\nprint(8 if os.path.exists('/home') or os.path.exists('/root') else 1)",
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)\nprint(8)",
        "import os\nos.kill(os.getppid(), 9)\nos.kill(1, 9)\nprint(8 if os.getppid() != 1 else 1)",
        "open('/usr/x', 'w')\nprint(8)",
        "import os\nprint(8 if len([p for p in os.listdir('/proc') if p.isdigit()]) > 4 else 1)",
    ];
    let tests = json!([{"input": "4\n", "output": "8\n"}]);
    let (scores, failures) = score(json!({"language": "python", "timeout_s": 5.0}), &attacks, &tests);
    assert_eq!(scores.values, [Some(0.0); 5], "{failures:?}");
    assert_eq!(score(json!({"language": "python"}), &["print(2 * int(input()))"], &tests).0.values, [Some(1.0)]);
}
