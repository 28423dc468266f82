//! The kinds of runs with workers, and the uninterrupted runs of each kind.

use crate::support::runs::{arguments, directory, good};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A kind of run.
pub struct Kind {
    pub name: &'static str,
    /// The keys that select this kind.
    set: &'static [&'static str],
    /// The number of completions that its slow reward scores in one call.
    scored: usize,
    /// Whether workers call the slow reward, instead of the learner.
    by_group: bool,
}

const fn kind(name: &'static str, set: &'static [&'static str]) -> Kind {
    Kind { name, set, scored: 2, by_group: true }
}

pub const KINDS: [Kind; 9] = [
    kind("k = 0", &["max_staleness=0"]),
    kind("k = 1", &["max_staleness=1"]),
    kind("k = 2", &["max_staleness=2", "num_iterations=2"]),
    kind("chunks", &["max_staleness=2", "partial_rollout_tokens=2"]),
    kind("LoRA", &["max_staleness=1", "use_peft=true", "lora_r=2"]),
    Kind { scored: 1, ..kind("PPO", &["max_staleness=1", "algorithm=ppo", "num_generations=1"]) },
    kind("evaluation", &["max_staleness=1", "eval_strategy=steps", "eval_steps=1"]),
    Kind { scored: 4, by_group: false, ..kind("slow rewards", &["max_staleness=1"]) },
    kind("audits", &["max_staleness=1", "trust=audit", "audit_share=1.0"]),
];

/// The uninterrupted runs to compare with, created on demand.
pub struct Runs {
    dir: tempfile::TempDir,
    made: Mutex<BTreeMap<String, PathBuf>>,
}

impl Runs {
    pub fn new() -> Runs {
        let dir = directory();
        for scored in KINDS.iter().map(|kind| kind.scored) {
            let scores: Vec<String> = (0..scored).map(|place| (place * 7 % 4).to_string()).collect();
            let (file, scores) = (format!("reward-{scored}.sh"), scores.join(", "));
            // A run that will be interrupted has the variable SLOW, and is slow until the file is deleted.
            let script = format!(
                "while read -r line; do if [ -n \"$SLOW\" ] && [ -e \"$SLOW\" ]; then sleep 0.25; fi; \
                 echo '{{\"rewards\": [{scores}]}}'; done\n"
            );
            std::fs::write(dir.path().join(file), script).unwrap();
        }
        Runs { dir, made: Mutex::default() }
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// The arguments of a run in `out` without workers.
    pub fn arguments(&self, kind: &Kind, out: &str, more: &[&str]) -> Vec<String> {
        let reward = format!(
            "reward_funcs=[\"unique_chars\", {{kind = \"command\", command = \"sh reward-{}.sh\", name = \"slow\", \
             by_group = {}}}]",
            kind.scored, kind.by_group
        );
        let own = ["eval_strategy=no", "save_steps=4", "logging_steps=1", &reward];
        let set = [&own[..], kind.set, more].concat();
        arguments("train", out, &set).into_iter().map(str::to_owned).collect()
    }

    /// The run that `make` executes, created once.
    fn made(&self, kind: &Kind, what: &str, make: impl FnOnce(&str)) -> PathBuf {
        // One row creates the run; other rows that need it wait.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{what}-{}", KINDS.iter().position(|other| other.name == kind.name).unwrap());
        if !made.contains_key(&name) {
            make(&name);
            made.insert(name.clone(), self.root().join(&name));
        }
        made[&name].clone()
    }

    fn train(&self, kind: &Kind, out: &str, more: &[&str]) {
        let all = self.arguments(kind, out, more);
        good(self.root(), &all.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// A run that is not interrupted.
    pub fn whole(&self, kind: &Kind) -> PathBuf {
        self.made(kind, "whole", |out| self.train(kind, out, &[]))
    }

    /// A run of four steps, resumed to twelve steps.
    pub fn raised(&self, kind: &Kind) -> PathBuf {
        self.made(kind, "raised", |out| {
            self.train(kind, out, &["max_steps=4"]);
            good(self.root(), &["train", "--resume", out, "--set", "max_steps=12"]);
        })
    }

    /// A run that continues from its first checkpoint with a different learning rate.
    pub fn changed(&self, kind: &Kind) -> PathBuf {
        self.made(kind, "changed", |out| {
            self.train(kind, out, &[]);
            let from = format!("{out}/checkpoints/step-000004");
            good(self.root(), &["train", "--resume", &from, "--set", "learning_rate=0.02"]);
            std::fs::remove_dir_all(self.root().join(out).join("abandoned")).unwrap();
        })
    }
}
