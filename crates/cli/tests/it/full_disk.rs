//! A disk that is full when a checkpoint is due: the run stops and says why, and the last good checkpoint stays good.
//! Needs the right to mount a small tmpfs; skipped, which is said, without it.

#![cfg(target_os = "linux")]

use crate::support::runs::{arguments, directory, good, same};
use crate::support::{listing, lockstep};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tmpfs of one mebibyte, unmounted at the end.
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
fn a_full_disk_stops_the_run_and_spoils_no_checkpoint() {
    let dir = directory();
    let root = dir.path();
    let mounted = SmallDisk::mount(&root.join("disk"));
    let Some(_disk) = mounted.or_else(|| testing::skip("no right to mount a tmpfs")) else { return };
    let set = ["tensorboard=false", "log_completions=false"];
    good(root, &arguments("train", "whole", &set));
    let whole: u64 = listing(&root.join("whole/checkpoints/step-000002")).iter().map(|(_, length)| length).sum();

    // Room for the first checkpoint or two, and not for the rest.
    fs::write(root.join("disk/ballast"), vec![1u8; ((1 << 20) - 3 * whole) as usize]).unwrap();
    let said = lockstep(root, &arguments("train", "disk/run", &set));
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    for words in ["No space left on device", "cannot write the checkpoint", "the last good checkpoint is"] {
        assert!(said.err.contains(words), "`{words}` is missing: {}", said.err);
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

    // Still full: it says so again. With room, it goes on.
    assert_eq!(lockstep(root, &["train", "--resume", "disk/run"]).code, Some(1));
    fs::remove_file(root.join("disk/ballast")).unwrap();
    good(root, &["train", "--resume", "disk/run"]);
    same(&root.join("whole"), &root.join("disk/run"));
}
