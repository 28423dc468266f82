//! Programs that the `code` reward runs share a machine, and possibly a user, with the weights, the spool and the batch
//! files of their run. In every isolation mode they can neither read nor forge these files.

use super::distributed::{distributed, start_as};
use super::distributed_faults::{learner_of, signal};
use crate::support::runs::{directory, listing_names, rollouts};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Tries all attacks, and prints which of them succeed. The attack runs in the sandbox regardless of the completions.
/// It reads the run's directory from the test's input, because a sandbox replaces paths in a command line.
const ATTACK: &str = r#"
import os
run = input()
fleet, done = run + "/fleet", []

def attempt(name, call):
    try:
        call()
        done.append(name)
    except OSError:
        pass

def opened(path, flags):
    os.close(os.open(path, flags, 0o600))

attempt("list", lambda: os.listdir(fleet))
files = ["learner.json", "learner.lock", "settings", "made_by.jsonl"]
files += ["workers/dev1/status.json", "workers/dev1/alive.lock"]
for place in ["pending", "batches", "workers", "processing_by_dev1", "complete_from_dev1", "../checkpoints"]:
    attempt("list " + place, lambda: files.extend(f"{place}/{name}" for name in os.listdir(f"{fleet}/{place}")))
    files += [f"{place}/00000{n}.{c}" for n in range(9) for c in range(1)] + [f"{place}/00000{n}" for n in range(4)]
    forged = f"{fleet}/{place}/.forged"
    attempt("create in " + place, lambda: (opened(forged, os.O_WRONLY | os.O_CREAT), os.unlink(forged)))
    try:
        open("own", "w").close()
    except OSError:
        pass
    attempt("rename into " + place, lambda: (os.rename("own", forged), os.unlink(forged)))
    attempt("link into " + place, lambda: (os.symlink("own", forged), os.unlink(forged)))
for file in files:
    attempt("read " + file, lambda: opened(f"{fleet}/{file}", os.O_RDONLY))
    attempt("write " + file, lambda: opened(f"{fleet}/{file}", os.O_WRONLY))
try:
    processes = [p for p in os.listdir("/proc") if p.isdigit() and p != str(os.getpid())]
except OSError:
    processes = []
for process in processes:
    try:
        if "memfd:" in open(f"/proc/{process}/maps").read():
            done.append("map of the weights")
    except OSError:
        pass
    for fd in range(64):
        try:
            path = f"/proc/{process}/fd/{fd}"
            target = os.readlink(path)
            if target.startswith(run) or "memfd:" in target:
                done.append("descriptor of " + target)
                attempt("weights by descriptor", lambda: opened(path, os.O_RDONLY))
        except OSError:
            pass
    attempt("run directory by a process", lambda: os.listdir(f"/proc/{process}/root{fleet}"))
try:
    files = os.listdir("/dev/shm")
except OSError:
    files = []
for file in files:
    attempt("shared memory " + file, lambda: opened("/dev/shm/" + file, os.O_RDONLY))
print("; ".join(done) if done else "refused")
"#;

fn reward(isolation: &str) -> String {
    let run = ["python3", "-c", ATTACK, "{source}"].map(|word| serde_json::to_string(word).unwrap()).join(", ");
    let language = format!("{{ file = \"main.txt\", run = [{run}], fences = [\"text\"] }}");
    format!("reward_funcs=[{{ kind = \"code\", isolation = \"{isolation}\", language = {language} }}]")
}

fn give(path: &Path, user: u32) {
    std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
    if path.is_dir() {
        for name in &listing_names(path) {
            give(&path.join(name), user);
        }
    }
}

/// Asserts that other users cannot open the path.
fn is_private(path: &Path) {
    let metadata = fs::symlink_metadata(path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o077, 0, "{}: {:o}", path.display(), metadata.permissions().mode());
    if metadata.is_dir() {
        for name in &listing_names(path) {
            is_private(&path.join(name));
        }
    }
}

/// Runs the same attack outside the sandbox.
fn outside(run: &Path, user: Option<u32>) -> String {
    let mut python = Command::new("python3");
    python.args(["-c", ATTACK]).current_dir(run).stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(user) = user {
        python.uid(user).gid(user);
    }
    let mut child = python.spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{}", run.display()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn run_beside(isolation: &str, user: Option<u32>) {
    let dir = directory();
    let root = dir.path();
    let out = root.join("out");
    let tests = json!([{"input": out.to_str().unwrap(), "output": "refused"}]);
    let rows = |name: &str| {
        let text = fs::read_to_string(root.join(name)).unwrap();
        let row = |line: &str| {
            let mut row: Value = serde_json::from_str(line).unwrap();
            row["tests"] = tests.clone();
            row.to_string() + "\n"
        };
        fs::write(root.join(name), text.lines().map(row).collect::<String>()).unwrap();
    };
    rows("d.jsonl");
    rows("e.jsonl");
    if let Some(user) = user {
        give(root, user);
    }
    let (reward, steps) = (reward(isolation), ["max_steps=8", "record_rollouts=true", "eval_strategy=no"]);
    let mut child = start_as(root, &distributed("out", "1", &[&[&reward[..]], &steps[..]].concat()), user);
    let saved = out.join("checkpoints/step-000002");
    testing::wait_until("a checkpoint, or the end", || saved.is_dir() || child.try_wait().unwrap().is_some());
    // Outside the sandbox, the attack succeeds as the same user, which proves that it works. (As root, programs run as
    // another user.) The learner is paused during the attack, so that the run does not end before the attack has
    // examined each of its processes.
    if child.try_wait().unwrap().is_none() {
        let learner = testing::wait_for("a running learner", || learner_of(&out));
        signal(learner, "STOP");
        let found = outside(&out, user);
        signal(learner, "CONT");
        for what in ["read learner.json", "write learner.json", "create in pending", "map of the weights"] {
            assert!(found.contains(what), "{what}: {found}");
        }
    }
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut printed).unwrap();
    let code = child.wait().unwrap().code();
    if code == Some(2) && printed.contains("cannot isolate") {
        testing::skip::<()>(&format!("{isolation}: {printed}"));
        return;
    }
    assert_eq!(code, Some(0), "{printed}");
    is_private(&out.join("fleet"));
    assert_eq!(fs::metadata(out.join("fleet")).unwrap().uid(), user.unwrap_or(0));
    let lines = rollouts(&out);
    assert_eq!(lines.len(), 32);
    for line in lines {
        let what = format!("{isolation}, as {user:?}: an attack succeeded: {line:?}");
        assert_eq!(line["rewards"], json!([1.0]), "{what}");
    }
}

#[test]
fn sandboxed_programs_neither_read_nor_forge_the_spool() {
    if std::env::var("SANDBOX_TESTS").as_deref() == Ok("skip") || testing::program("python3").is_none() {
        return;
    }
    let users: &[Option<u32>] = match fs::metadata("/proc/self").unwrap().uid() {
        0 => &[None, Some(1000)],
        _ => &[None],
    };
    for &user in users {
        for isolation in ["bubblewrap", "landlock"] {
            if isolation != "bubblewrap" || testing::program("bwrap").is_some() {
                run_beside(isolation, user);
            }
        }
    }
}
