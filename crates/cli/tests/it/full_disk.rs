//! A disk that is full when a checkpoint is due: the run stops with the reason, and the last complete checkpoint stays
//! intact. The tests need permission to mount a tmpfs, and are skipped otherwise.

#![cfg(target_os = "linux")]

use crate::support::runs::{arguments, directory, good, same};
use crate::support::{listing, lockstep};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tmpfs of one mebibyte, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<SmallDisk> {
        fs::create_dir(at).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(at).output();
        mount.is_ok_and(|o| o.status.success()).then(|| SmallDisk(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_stops_the_run_and_damages_no_checkpoint() {
    let dir = directory();
    let root = dir.path();
    let mounted = SmallDisk::mount(&root.join("disk"));
    let Some(_disk) = mounted.or_else(|| testing::skip("no permission to mount a tmpfs")) else { return };
    let set = ["tensorboard=false", "log_completions=false"];
    good(root, &arguments("train", "whole", &set));
    let whole: u64 = listing(&root.join("whole/checkpoints/step-000002")).iter().map(|(_, length)| length).sum();

    // The disk has room for only one or two checkpoints.
    fs::write(root.join("disk/ballast"), vec![1u8; ((1 << 20) - 3 * whole) as usize]).unwrap();
    let printed = lockstep(root, &arguments("train", "disk/run", &set));
    assert_eq!(printed.code, Some(1), "{}{}", printed.out, printed.err);
    for words in ["No space left on device", "cannot write the checkpoint", "the last good checkpoint is"] {
        assert!(printed.err.contains(words), "`{words}` is missing: {}", printed.err);
    }
    let kept: Vec<_> = fs::read_dir(root.join("disk/run/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(!kept.is_empty() && kept.iter().all(|name| name.starts_with("step-")), "{kept:?}");
    for name in &kept {
        let weights = |run: &str| fs::read(root.join(run).join("checkpoints").join(name).join("model.safetensors"));
        assert_eq!(weights("whole").unwrap(), weights("disk/run").unwrap(), "{name}");
    }

    // While the disk is full, resuming fails with the same error. Once there is room, the run continues.
    assert_eq!(lockstep(root, &["train", "--resume", "disk/run"]).code, Some(1));
    fs::remove_file(root.join("disk/ballast")).unwrap();
    good(root, &["train", "--resume", "disk/run"]);
    same(&root.join("whole"), &root.join("disk/run"));
}

/// Only the disk with recorded completions is full: recording stops with a message, and training continues.
#[test]
fn a_full_disk_for_completions_does_not_stop_training() {
    let dir = directory();
    let root = dir.path();
    let mounted = SmallDisk::mount(&root.join("disk"));
    let Some(_disk) = mounted.or_else(|| testing::skip("no permission to mount a tmpfs")) else { return };
    let set = ["record_rollouts=true", "tensorboard=false", "log_completions=false"];
    for run in ["roomy", "full"] {
        good(root, &arguments("train", run, &set));
    }
    let (file, moved) = (root.join("full/rollouts.bin"), root.join("disk/rollouts.bin"));
    fs::copy(&file, &moved).unwrap();
    let page = 1 << 12;
    let used = fs::metadata(&moved).unwrap().len().next_multiple_of(page);
    fs::write(root.join("disk/ballast"), vec![1u8; ((1 << 20) - used - page) as usize]).unwrap();
    // Links inside a run are not followed, so the file itself is mounted from the small disk.
    assert!(Command::new("mount").arg("--bind").args([&moved, &file]).status().unwrap().success());
    let _bound = SmallDisk(file.clone());
    let resume = |run: &str| good(root, &["train", "--resume", run, "--set", "max_steps=60"]);
    resume("roomy");
    let printed = resume("full");
    for words in ["rollouts.bin: cannot write it: No space left on device", "the run continues"] {
        assert!(printed.err.contains(words), "`{words}` is missing: {}", printed.err);
    }
    let weights = |run: &str| fs::read(root.join(run).join("model/model.safetensors")).unwrap();
    assert!(weights("roomy") == weights("full"));
}

/// Every command that writes reports the full disk, and leaves no partial result.
#[test]
fn every_command_that_writes_reports_a_full_disk() {
    let dir = directory();
    let root = dir.path();
    let mounted = SmallDisk::mount(&root.join("disk"));
    let Some(_disk) = mounted.or_else(|| testing::skip("no permission to mount a tmpfs")) else { return };
    fs::write(root.join("config.json"), crate::support::CONFIG).unwrap();
    let short = ["max_steps=1", "eval_strategy=no", "use_peft=true", "lora_r=2"];
    let pairs = [&short[..], &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]].concat();
    good(root, &arguments("sft", "lora", &short));
    // Fills the rest of the last page, too.
    let mut ballast = fs::File::create(root.join("disk/ballast")).unwrap();
    while std::io::Write::write_all(&mut ballast, &[1; 4096]).is_ok() {}
    let eval = ["eval", "--model", "model", "--dataset", "e.jsonl", "--reward", "unique_chars"];
    let score = ["score-rewards", "--input", "d.jsonl", "--reward", "unique_chars"];
    for arguments in [
        arguments("train", "disk/run", &short),
        arguments("sft", "disk/run", &short),
        arguments("dpo", "disk/run", &pairs),
        arguments("reward", "disk/run", &pairs),
        vec!["demo", "--out", "disk/run", "--steps", "1"],
        vec!["init", "--config", "config.json", "--out", "disk/model"],
        vec!["merge", "--model", "model", "--adapter", "lora/model", "--out", "disk/model"],
        [&eval[..], &["--max-completion-length", "2", "--out", "disk/e.jsonl"]].concat(),
        [&score[..], &["--out", "disk/s.jsonl"]].concat(),
    ] {
        let printed = lockstep(root, &arguments);
        let all = format!("{arguments:?}: {:?}\n{}{}", printed.code, printed.out, printed.err);
        assert!(matches!(printed.code, Some(1 | 2)) && printed.err.contains("No space left on device"), "{all}");
        assert!(!printed.err.contains("panicked"), "{all}");
        let left: Vec<_> = listing(&root.join("disk")).into_iter().map(|(path, _)| path).collect();
        let result = |path: &PathBuf| {
            !path.ends_with("ballast")
                && !path.ends_with("base-model")
                && !path.ends_with("run")
                && !path.ends_with("run.lock")
        };
        assert!(!left.iter().any(result), "{left:?}: {all}");
        let _ = fs::remove_dir_all(root.join("disk/run"));
    }
}
