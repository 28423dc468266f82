//! Runs of older builds: resuming their checkpoints and replaying their recorded rollouts must give the bits of those
//! builds; `verify` proves their recorded runs, and `report` opens them.
//!
//! `COMMIT/NAME/` was written by that commit on the portable instruction set. `run/` was interrupted after step 2 of 6,
//! in the middle of a generation batch, and `bits.txt` has the hashes of the uninterrupted run. Runs of 63ed136 also
//! have `recorded.jsonl` (their rollouts) and `replayed.txt` (hashes of a run on these rollouts). `@SITE@` is a
//! placeholder for the directory of the run.
//!
//! To write the runs of [`EBC6ED8`] with the program of a different commit, build that program and run `OLDER=PROGRAM
//! cargo test -p lockstep-cli --test golden runs_are_kept -- --ignored`.

use crate::bits::{self, Bits};
use crate::runs::{self, COMMON, SAMPLED, STEPS, Site, good};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Keys of the runs on recorded rollouts.
const GRPO: &[&str] =
    &["num_generations=4", "num_iterations=2", "steps_per_generation=2", "beta=0.04", "loss_type=dr_grpo"];
const PPO: &[&str] =
    &["algorithm=ppo", "num_generations=1", "num_mini_batches=2", "num_ppo_epochs=4", "per_device_train_batch_size=4"];
const KEPT: [(&str, &[&str]); 3] = [("grpo", GRPO), ("grpo-lora", GRPO), ("ppo", PPO)];

/// A run of ebc6ed8, the last commit in which batches had several sources: the run's command, keys and number of
/// workers.
struct Kept {
    name: &'static str,
    command: &'static str,
    set: &'static [&'static str],
    workers: u64,
}

/// Runs with every source of batches and every kind of checkpoint.
const EBC6ED8: [Kept; 7] = [
    Kept {
        name: "iterations",
        command: "train",
        set: &["num_generations=4", "num_iterations=2", "steps_per_generation=2", "beta=0.04"],
        workers: 0,
    },
    Kept {
        name: "ahead",
        command: "train",
        set: &["num_generations=4", "max_staleness=2", "dtype=bf16", "record_entropies=true"],
        workers: 0,
    },
    Kept {
        name: "chunks",
        command: "train",
        set: &["num_generations=4", "max_staleness=2", "partial_rollout_tokens=3", "num_iterations=2"],
        workers: 0,
    },
    Kept { name: "workers", command: "train", set: &["num_generations=4", "max_staleness=1"], workers: 2 },
    Kept {
        name: "workers-chunks",
        command: "train",
        set: &["num_generations=4", "max_staleness=2", "partial_rollout_tokens=3"],
        workers: 1,
    },
    Kept {
        name: "ppo",
        command: "train",
        set: &["algorithm=ppo", "num_generations=1", "num_mini_batches=2", "per_device_train_batch_size=4"],
        workers: 0,
    },
    Kept { name: "dpo", command: "dpo", set: &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"], workers: 0 },
];

/// Metrics that newer builds report differently: an extreme or a mean over no values is missing, not 0 (decision 0048).
const CHANGED: [&str; 3] = [
    "metric completions/max_terminated_length",
    "metric completions/mean_terminated_length",
    "metric completions/min_terminated_length",
];

/// Metrics that newer builds compute over fewer tokens (decision 0069).
const OF_COMPARED_TOKENS: [&str; 2] = ["metric sampling/logp_compared_tokens", "metric sampling/max_logp_difference"];

impl Kept {
    fn files(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ebc6ed8").join(self.name)
    }

    /// Copies all files, including `run`, to a new directory.
    fn copied(&self, site: &Site) -> PathBuf {
        let directory = site.directory(self.name);
        copy(&self.files(), &directory, &|text| text.replace("@SITE@", directory.to_str().unwrap()));
        directory
    }

    /// The command-line arguments for the number of workers of the run.
    fn distributed(&self) -> Vec<String> {
        match self.workers {
            0 => Vec::new(),
            count => ["--distributed", "--workers", &count.to_string()].map(String::from).to_vec(),
        }
    }
}

/// Calls `f` for every run of 63ed136, in a directory beside the models, and returns the differences that `f` finds.
fn each(f: impl Fn(&Site, &Path, &Path, &[&str], &str) -> Vec<String>) {
    let site = Site::new();
    let mut differences = Vec::new();
    for (name, keys) in KEPT {
        for dtype in ["f32", "bf16"] {
            let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/63ed136/{name}-{dtype}"));
            let directory = site.directory(&format!("{name}-{dtype}"));
            copy(&kept, &directory, &|text| text.replace("@SITE@", directory.to_str().unwrap()));
            let found = f(&site, &kept, &directory, keys, dtype);
            differences.extend(found.into_iter().map(|what| format!("{name}-{dtype}: {what}")));
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn checkpoints_of_an_older_build_resume_to_its_results() {
    each(|site, kept, directory, _, _| {
        good(site.program("portable", directory, &["train", "--resume", "run"]));
        differing(&kept.join("bits.txt"), &bits::of(&directory.join("run"), STEPS))
    });
}

#[test]
fn rollouts_of_an_older_build_replay_to_its_results() {
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

/// Runs with every source of batches, with and without workers, are shown, resumed, verified from the first step on,
/// and replayed.
#[test]
fn runs_of_ebc6ed8_resume_replay_and_verify() {
    let site = Site::new();
    let mut differences = Vec::new();
    for kept in &EBC6ED8 {
        let directory = kept.copied(&site);
        let program = |arguments: &[&str]| good(site.program("portable", &directory, arguments));
        let sampled = kept.command == "train";
        if sampled {
            program(&["rollouts", "run"]);
        }
        let own = kept.distributed();
        let resume = [kept.command, "--resume", "run"].into_iter().chain(own.iter().map(String::as_str));
        program(&resume.collect::<Vec<_>>());
        let found = differing(&kept.files().join("bits.txt"), &bits::of(&directory.join("run"), STEPS));
        // All queue metrics except staleness measure time.
        let is_time = |what: &str| what.starts_with("metric async/") && !what.starts_with("metric async/lag");
        let is_kept = |what: &String| !is_time(what) && !CHANGED.iter().any(|name| what.starts_with(name));
        differences.extend(found.into_iter().filter(is_kept).map(|what| format!("{}: {what}", kept.name)));
        if sampled {
            program(&["verify", "run", "--all"]);
            program(&["report", "run", "--out", "report.html"]);
            // Recorded rollouts already fix staleness and chunks.
            let keys = kept.set.iter().filter(|key| !key.starts_with("max_staleness") && !key.starts_with("partial"));
            let keys = ["replay=run/rollouts.bin", "max_steps=2"].iter().chain(keys).flat_map(|key| ["--set", *key]);
            program(&["train", "--model", "small", "--out", "replayed"].into_iter().chain(keys).collect::<Vec<_>>());
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
#[ignore = "writes tests/golden/ebc6ed8; OLDER must name a program built from that commit"]
fn runs_are_kept() {
    let older = std::env::var("OLDER").expect("OLDER must name a program built from commit ebc6ed8");
    let site = Site::new();
    for kept in &EBC6ED8 {
        let directory = site.directory(kept.name);
        let own = ["threads=1", "tensorboard=false", "log_completions=false"];
        let sampled: &[&str] = if kept.command == "train" { SAMPLED } else { &[] };
        let reward: &[&str] = if kept.command == "train" { &["reward_funcs=[\"unique_chars\"]"] } else { &[] };
        let mut arguments: Vec<String> = [kept.command, "--model", "small", "--out", "run"].map(String::from).to_vec();
        for set in COMMON.iter().chain(sampled).chain(reward).chain(kept.set).chain(&own) {
            arguments.extend(["--set".to_owned(), (*set).to_owned()]);
        }
        arguments.extend(kept.distributed());
        let mut command = Command::new(&older);
        command.args(&arguments).current_dir(&directory).env("LOCKSTEP_ISA", "portable").env("HF_HUB_OFFLINE", "1");
        good(command.output().unwrap());
        let run = directory.join("run");
        let whole = bits::of(&run, STEPS);
        runs::cut(&run);
        // No later build reads these files.
        for name in ["lockstep-0.log", "run.lock", "trace.json", "profile.json", "completions", "fleet/cores"] {
            let path = run.join(name);
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { drop(fs::remove_file(path)) }
        }
        let files = kept.files();
        let _ = fs::remove_dir_all(&files);
        copy(&run, &files.join("run"), &|text| text.replace(directory.to_str().unwrap(), "@SITE@"));
        let rows: String = whole.iter().map(|(name, hash)| format!("{name} {hash}\n")).collect();
        fs::write(files.join("bits.txt"), rows).unwrap();
    }
}

/// The names whose hashes differ from those in the file `expected`. A newer build may write more names.
fn differing(expected: &Path, found: &Bits) -> Vec<String> {
    let text = fs::read_to_string(expected).unwrap();
    let rows: Vec<(&str, &str)> = text.lines().map(|line| line.rsplit_once(' ').unwrap()).collect();
    assert!(rows.len() > 20, "{}: {} rows", expected.display(), rows.len());
    let other = |&(name, hash): &(&str, &str)| {
        let found = found.get(name).map_or("missing", String::as_str);
        (found != hash && !OF_COMPARED_TOKENS.contains(&name)).then(|| format!("{name} is {found}, and was {hash}"))
    };
    rows.iter().filter_map(other).collect()
}

/// Copies files; `f` changes the text files.
fn copy(from: &Path, to: &Path, f: &impl Fn(&str) -> String) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target, f);
        } else if path.is_file() {
            match String::from_utf8(fs::read(&path).unwrap()) {
                Ok(text) => fs::write(target, f(&text)).unwrap(),
                Err(other) => fs::write(target, other.into_bytes()).unwrap(),
            }
        }
    }
}
