//! Runs of an older build: its checkpoints resume, and its recorded rollouts replay, to the bits that it gave.
//!
//! `63ed136/NAME-DTYPE/` was written by that commit on the portable instruction set: `run/`, cut off after step 2 of 6,
//! in the middle of a generation batch's uses; `bits.txt`, what the run left that was not cut off; `recorded.jsonl`,
//! its rollouts; and `replayed.txt`, what a run on these left. `@SITE@` stands for the directory that it ran in.

use crate::bits::{self, Bits};
use crate::runs::{COMMON, STEPS, Site, good};
use std::fs;
use std::path::Path;

/// Keys of the runs on recorded rollouts.
const GRPO: &[&str] =
    &["num_generations=4", "num_iterations=2", "steps_per_generation=2", "beta=0.04", "loss_type=dr_grpo"];
const PPO: &[&str] =
    &["algorithm=ppo", "num_generations=1", "num_mini_batches=2", "num_ppo_epochs=4", "per_device_train_batch_size=4"];
const KEPT: [(&str, &[&str]); 3] = [("grpo", GRPO), ("grpo-lora", GRPO), ("ppo", PPO)];

/// Every run with its files in a directory beside the models, and whatever `f` finds to differ there.
fn each(f: impl Fn(&Site, &Path, &Path, &[&str], &str) -> Vec<String>) {
    let site = Site::new();
    let mut differences = Vec::new();
    for (name, keys) in KEPT {
        for dtype in ["f32", "bf16"] {
            let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/63ed136/{name}-{dtype}"));
            let directory = site.directory(&format!("{name}-{dtype}"));
            copy(&kept, &directory, &directory);
            let found = f(&site, &kept, &directory, keys, dtype);
            differences.extend(found.into_iter().map(|what| format!("{name}-{dtype}: {what}")));
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn checkpoints_of_an_older_build_resume_to_its_bits() {
    each(|site, kept, directory, _, _| {
        good(site.program("portable", directory, &["train", "--resume", "run"]));
        differing(&kept.join("bits.txt"), &bits::of(&directory.join("run"), STEPS))
    });
}

#[test]
fn rollouts_that_an_older_build_recorded_replay_to_its_bits() {
    each(|site, kept, directory, keys, dtype| {
        let mut arguments = vec!["train", "--model", "small", "--out", "replayed"];
        let dtype = format!("dtype={dtype}");
        let common = COMMON.iter().filter(|key| !key.starts_with("eval")).chain(keys);
        let own = ["replay=recorded.jsonl", &dtype, "threads=1", "tensorboard=false"];
        common.copied().chain(own).for_each(|key| arguments.extend(["--set", key]));
        good(site.program("portable", directory, &arguments));
        differing(&kept.join("replayed.txt"), &bits::of(&directory.join("replayed"), STEPS))
    });
}

/// Names and hashes of the file that are found otherwise. What a newer build leaves beside them is its own.
fn differing(expected: &Path, found: &Bits) -> Vec<String> {
    let text = fs::read_to_string(expected).unwrap();
    let rows: Vec<(&str, &str)> = text.lines().map(|line| line.rsplit_once(' ').unwrap()).collect();
    assert!(rows.len() > 20, "{}: {} rows", expected.display(), rows.len());
    let other = |&(name, hash): &(&str, &str)| {
        let found = found.get(name).map_or("missing", String::as_str);
        (found != hash).then(|| format!("{name} is {found}, and was {hash}"))
    };
    rows.iter().filter_map(other).collect()
}

fn copy(from: &Path, to: &Path, site: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target, site);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        match String::from_utf8(bytes) {
            Ok(text) => fs::write(target, text.replace("@SITE@", site.to_str().unwrap())).unwrap(),
            Err(other) => fs::write(target, other.into_bytes()).unwrap(),
        }
    }
}
