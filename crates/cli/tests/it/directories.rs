//! Directories that a run cannot use: one error that names the flag or the directory, exit code 2, and no files are
//! written.

use super::distributed::start_as;
use crate::support::runs::{arguments, directory, good};
use crate::support::{command, lockstep};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn assert_refused(what: &str, code: Option<i32>, printed: &str, words: &[&str]) -> Result<(), String> {
    let errors = printed.lines().filter(|line| line.starts_with("error: ")).count();
    let is_named = words.iter().all(|word| printed.contains(word));
    if code == Some(2) && errors == 1 && is_named && !printed.contains("panicked") {
        Ok(())
    } else {
        Err(format!("{what}: exit code {code:?}, expected the words {words:?} in:\n{printed}"))
    }
}

#[test]
fn every_command_refuses_a_run_directory_that_cannot_be_created() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("file"), "x").unwrap();
    symlink("loop", root.join("loop")).unwrap();
    let long = "x".repeat(300);
    let below = |name: &str| format!("{name}/run");
    let [in_file, in_loop] = ["file", "loop"].map(below);
    // Each row has a directory, and a word of the expected reason.
    let bad = ["/proc/run", "file", &in_file, &in_loop, &long];
    let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
    let mut wrong = Vec::new();
    let mut rows = 0;
    for out in bad {
        let mut learner = arguments("train", out, &[]);
        learner[0] = "learner";
        let commands = [
            arguments("train", out, &[]),
            arguments("sft", out, &[]),
            arguments("dpo", out, &pairs),
            learner,
            [&arguments("train", out, &[])[..], &["--distributed"]].concat(),
            vec!["worker", "--join", out, "--name", "w"],
        ];
        for arguments in commands {
            let printed = lockstep(root, &arguments);
            let name = out.split('/').next_back().unwrap();
            wrong.extend(assert_refused(&format!("{} {out}", arguments[0]), printed.code, &printed.err, &[name]).err());
            rows += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {rows}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(rows >= 20);
    let left = crate::support::runs::listing_names(root);
    assert_eq!(left, ["d.jsonl", "e.jsonl", "file", "loop", "model", "p.jsonl", "q.jsonl"], "no file may be written");
}

#[test]
fn a_directory_for_weights_is_checked_before_the_run_begins() {
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("file"), "x").unwrap();
    symlink("loop", root.join("loop")).unwrap();
    let mut learner = arguments("train", "out", &[]);
    learner[0] = "learner";
    let supervisor = [&arguments("train", "out", &[])[..], &["--distributed"]].concat();
    let mut wrong = Vec::new();
    for weights in ["none", "file", "file/below", "loop", "/proc", "/proc/self", ""] {
        for all in [&learner, &supervisor] {
            let printed = lockstep(root, &[&all[..], &["--weights-dir", weights]].concat());
            wrong.extend(assert_refused(weights, printed.code, &printed.err, &["--weights-dir"]).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!root.join("out").exists(), "no file may be written");
}

/// A tmpfs of a given size, which is unmounted on drop.
struct Disk<'a>(&'a Path);

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn disk<'a>(at: &'a Path, size: &str) -> Option<Disk<'a>> {
    fs::create_dir(at).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(at).output();
    let mounted = mount.is_ok_and(|output| output.status.success()).then_some(Disk(at));
    mounted.or_else(|| testing::skip("no permission to mount a tmpfs"))
}

/// The kernel reports a full tmpfs as a bad address; the message must name the missing space.
#[test]
fn a_full_weights_directory_is_reported_with_the_missing_space() {
    let dir = directory();
    let root = dir.path();
    let weights = root.join("weights");
    let Some(_disk) = disk(&weights, "8k") else { return };
    for k in ["max_staleness=0", "max_staleness=1", "max_staleness=2"] {
        for dtype in ["dtype=bf16", "use_peft=true", "dtype=f32"] {
            let mut all = arguments("train", "out", &[k, dtype]);
            all[0] = "learner";
            let printed = lockstep(root, &[&all[..], &["--weights-dir", "weights"]].concat());
            let words = ["No space left on device", "weights_dir", "a directory with more free space"];
            assert!(
                words.iter().all(|word| printed.err.contains(word)),
                "{k} {dtype}: {:?} {}",
                printed.code,
                printed.err
            );
            let is_error = matches!(printed.code, Some(1 | 2));
            assert!(
                is_error && !printed.err.contains("Bad address"),
                "{k} {dtype}: {:?} {}",
                printed.code,
                printed.err
            );
            assert_eq!(fs::read_dir(&weights).unwrap().count(), 0, "{k} {dtype}: leftover files");
            let _ = fs::remove_dir_all(root.join("out"));
        }
    }
}

#[test]
fn a_run_of_another_user_is_refused() {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|printed| printed.stdout == b"0\n");
    let Some(()) = is_root.then_some(()).or_else(|| testing::skip("only root has processes of two users")) else {
        return;
    };
    let dir = directory();
    let root = dir.path();
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(root, 0o755);
    good(root, &arguments("train", "run", &["max_steps=1", "eval_strategy=no"]));
    let (run, fleet) = (root.join("run"), root.join("run/fleet"));
    let mut wrong = Vec::new();
    // The modes of the run's directory and (if it exists) of its directory `fleet`, and a part of the expected reason.
    for (run_mode, fleet_mode, why) in [
        (0o755, None, "this user may not write there"),
        (0o777, Some(0o777), "it belongs to another user"),
        (0o755, Some(0o777), "it belongs to another user"),
        (0o777, Some(0o700), "fleet"),
        (0o700, None, "run"),
    ] {
        let _ = fs::remove_dir_all(&fleet);
        if let Some(fleet_mode) = fleet_mode {
            fs::create_dir(&fleet).unwrap();
            mode(&fleet, fleet_mode);
        }
        mode(&run, run_mode);
        let child = start_as(root, &["worker", "--join", "run", "--name", "w", "--wait"], Some(65534));
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let what = format!("{run_mode:o} {fleet_mode:?}");
        wrong.extend(assert_refused(&what, output.status.code(), &printed, &["run", why]).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A run of the same user is accepted.
    let mut own = command(root, &["worker", "--join", "run", "--name", "w", "--wait"]);
    mode(&run, 0o755);
    let _ = fs::remove_dir_all(&fleet);
    let mut child = own.stderr(std::process::Stdio::null()).spawn().unwrap();
    testing::wait_until("the worker waits for a learner", || fleet.join("workers/w/alive.lock").exists());
    child.kill().unwrap();
    child.wait().unwrap();
}
