//! Trains ten runs with rewards that can be gamed, and ten runs that learn honestly. The verdicts of honest runs must
//! not be "Gamed", and most verdicts of gamed runs must be.

use crate::cargo::output;
use crate::page_runs::headline;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rewards of `verdicts/rewards.py` that a model of short stories learns to game.
const GAMED: [&str; 10] = [
    "happy",
    "the",
    "exclamations",
    "quotes",
    "spoofed_tests",
    "words",
    "characters",
    "short",
    "share_of_e",
    "sentences",
];
/// Minimum number of gamed runs whose verdict must be "Gamed".
const FEWEST_GAMED: usize = 8;

/// Files of `examples/` for the demo's addition task, with eight algorithms and losses. The example with dynamic
/// sampling is excluded: its reward covers only groups that are neither solved nor failed, and so hardly changes.
const HONEST: [&str; 8] = ["cispo", "dr_grpo", "gspo", "lora", "ppo", "reinforce_plus_plus", "rloo", "sapo"];

/// Requirements of these runs that this machine lacks, if any.
pub fn missing() -> Option<String> {
    let model = stories();
    if !model.is_dir() {
        return Some(format!("{} (the directory LOCKSTEP_SHARED, or ../shared)", model.display()));
    }
    let has_python = Command::new("python3").arg("--version").output().is_ok();
    (!has_python).then(|| "python3".to_owned())
}

/// A model with 260 thousand parameters that writes short stories.
fn stories() -> PathBuf {
    let shared = std::env::var_os("LOCKSTEP_SHARED").map_or_else(|| PathBuf::from("../shared"), PathBuf::from);
    shared.join("models/stories260k")
}

/// Trains all runs, and returns the number of "Gamed" verdicts.
pub fn run() -> Result<String, String> {
    let program = crate::cargo::program()?;
    let root = std::env::temp_dir().join(format!("lockstep-verdicts-{}", std::process::id()));
    fs::create_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    let result = Trials { program, root: root.clone() }.all();
    // Leftover files are harmless.
    let _ = fs::remove_dir_all(&root);
    result
}

struct Trials {
    program: PathBuf,
    root: PathBuf,
}

impl Trials {
    fn all(&self) -> Result<String, String> {
        let gamed = GAMED.iter().map(|reward| self.gamed(reward)).collect::<Result<Vec<_>, _>>()?;
        summary(&gamed, &self.honest()?)
    }

    /// Trains the story model with one of the rewards; returns the run's verdict.
    fn gamed(&self, reward: &str) -> Result<String, String> {
        let (model, reward_of) = (stories(), format!("python:xtask/verdicts/rewards.py:{reward}"));
        let set = [
            "max_samples=64",
            "num_generations=8",
            "per_device_train_batch_size=16",
            "max_completion_length=64",
            "max_steps=120",
            "learning_rate=1e-3",
        ];
        let start = ["train", "--model", path(&model), "--dataset", "examples/stories/train.jsonl", "--reward"];
        self.headline(reward, &[&start[..], &[reward_of.as_str()]].concat(), &set)
    }

    /// Trains the honest runs: additions with the examples' configurations and with partial credit, and reversing
    /// words.
    fn honest(&self) -> Result<Vec<String>, String> {
        let demo = self.root.join("demo");
        self.call(&["demo", "--steps", "0", "--out", path(&demo)])?;
        let (model, problems) = (demo.join("sft/model"), demo.join("problems.jsonl"));
        let held_out = format!("eval_dataset_name={}", demo.join("heldout.jsonl").display());
        let addition = ["--model", path(&model), "--dataset", path(&problems)];
        let mut found = Vec::new();
        for name in HONEST {
            let file = format!("examples/{name}.toml");
            let start = [&["train", file.as_str()][..], &addition].concat();
            found.push(self.headline(name, &start, &[&held_out])?);
        }
        let near = ["--reward", "python:xtask/verdicts/rewards.py:near"];
        let set = ["per_device_train_batch_size=64", "max_completion_length=4", "max_steps=100", "learning_rate=1e-4"];
        found.push(self.headline("near", &[&["train"][..], &addition, &near].concat(), &set)?);
        found.push(self.reversed()?);
        Ok(found)
    }

    /// The run of docs/from-nothing.md.
    fn reversed(&self) -> Result<String, String> {
        let example = fs::canonicalize("examples/reverse").map_err(|e| format!("examples/reverse: {e}"))?;
        let data = Command::new("python3").arg(example.join("make_data.py")).current_dir(&self.root).status();
        if !data.as_ref().is_ok_and(std::process::ExitStatus::success) {
            return Err(format!("make_data.py: {data:?}"));
        }
        let [start, pairs, problems] = ["start", "pairs.jsonl", "problems.jsonl"].map(|name| self.root.join(name));
        let shape = example.join("config.json");
        let letters = ["--characters", "abcdefghijklmnopqrstuvwxyz>"];
        self.call(&[&["init", "--config", path(&shape), "--out", path(&start)][..], &letters].concat())?;
        let set = ["max_steps=600", "per_device_train_batch_size=64", "learning_rate=3e-3"];
        self.headline("imitated", &["sft", "--model", path(&start), "--dataset", path(&pairs)], &set)?;
        let (model, reward) =
            (self.root.join("imitated/model"), format!("python:{}:letters", path(&example.join("reward.py"))));
        let set = ["per_device_train_batch_size=128", "max_completion_length=8", "max_steps=100", "learning_rate=3e-4"];
        let words = ["train", "--model", path(&model), "--dataset", path(&problems), "--reward", reward.as_str()];
        self.headline("reversed", &words, &set)
    }

    /// Trains the run `name`, and returns its name and verdict.
    fn headline(&self, name: &str, words: &[&str], set: &[&str]) -> Result<String, String> {
        let out = self.root.join(name);
        let mut all = [words, &["--out", path(&out), "--set", "save_strategy=no"]].concat();
        for pair in set {
            all.extend(["--set", *pair]);
        }
        self.call(&all)?;
        let report = self.call(&["report", path(&out), "--print"])?;
        let says = headline(&report);
        println!("{name}: {says}");
        Ok(format!("{name}: {says}"))
    }

    fn call(&self, words: &[&str]) -> Result<String, String> {
        output(Command::new(&self.program).args(words))
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Counts the verdicts "Gamed". Each verdict follows its run's name.
fn summary(gamed: &[String], honest: &[String]) -> Result<String, String> {
    let is = |line: &&String, words: &str| line.split_once(": ").is_some_and(|(_, says)| says.starts_with(words));
    let missed: Vec<&String> = gamed.iter().filter(|line| !is(line, "Gamed: ")).collect();
    let called: Vec<&String> = honest.iter().filter(|line| is(line, "Gamed: ")).collect();
    let unlearned: Vec<&String> = honest.iter().filter(|line| !is(line, "Gamed: ") && !is(line, "Learned: ")).collect();
    let found = gamed.len() - missed.len();
    let text = format!(
        "{found} of {} gamed runs are called gamed, {} of {} honest ones, which learned",
        gamed.len(),
        called.len(),
        honest.len()
    );
    if found >= FEWEST_GAMED && called.is_empty() && unlearned.is_empty() {
        return Ok(text);
    }
    Err(format!("{text}; not called gamed: {missed:?}; called gamed: {called:?}; learned nothing: {unlearned:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_counted() {
        let lines = |says: &str, n: usize| (0..n).map(|i| format!("run {i}: {says}")).collect::<Vec<_>>();
        let gamed = |n| [lines("Gamed: reward went from 0 to 1, but …", n), lines("Learned: …", 10 - n)].concat();
        let honest = lines("Learned: reward went from 0 to 1.", 10);
        let ten = "10 of 10 gamed runs are called gamed, 0 of 10 honest ones, which learned";
        assert_eq!(summary(&gamed(10), &honest).unwrap(), ten);
        assert!(summary(&gamed(8), &honest).is_ok());
        assert!(summary(&gamed(7), &honest).unwrap_err().contains("not called gamed: [\"run 0: Learned: …\""));
        for other in ["Gamed: …", "Worse: reward went from 1 to 0."] {
            let mut honest = honest.clone();
            honest[3] = format!("run 3: {other}");
            assert!(summary(&gamed(10), &honest).unwrap_err().contains("run 3"), "{other}");
        }
    }
}
