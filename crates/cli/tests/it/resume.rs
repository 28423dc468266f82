//! A run that is killed at any time and resumed gives the same bits as an uninterrupted run.

use crate::support::runs::{arguments, directory, good, metrics, same};
use crate::support::{command, lockstep};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Pseudo-random numbers, the same in every test run (splitmix64).
struct Random(u64);

impl Random {
    fn below_one(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// When a run is killed.
enum Moment<'a> {
    After(Duration),
    /// As soon as this directory has a checkpoint.
    AtCheckpoint(&'a Path),
}

fn has_checkpoint(directory: &Path) -> bool {
    let saved = fs::read_dir(directory).into_iter().flatten().flatten();
    saved.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
}

/// Starts the program and kills it with SIGKILL at `moment`. Returns true if the program ended successfully before that
/// moment.
fn kill_at(directory: &Path, arguments: &[&str], moment: Moment<'_>) -> bool {
    let log = fs::File::create(directory.join("said.txt")).unwrap();
    let mut child = command(directory, arguments).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    match moment {
        Moment::After(time) => std::thread::sleep(time),
        Moment::AtCheckpoint(directory) => testing::wait_until("a checkpoint, or the end", || {
            has_checkpoint(directory) || child.try_wait().unwrap().is_some()
        }),
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    let output = || fs::read_to_string(directory.join("said.txt")).unwrap();
    assert!(status.success() || status.code().is_none(), "{status}: {}", output());
    status.success()
}

/// Kills runs `kills` times, resumes each until it ends, and compares it with an uninterrupted run.
fn survives(purpose: &str, set: &[&str], kills: usize, seed: u64) {
    let dir = directory();
    let started = Instant::now();
    good(dir.path(), &arguments(purpose, "whole", set));
    let length = started.elapsed();
    let mut random = Random(seed);
    let (mut killed, mut after_checkpoints, mut runs) = (0, 0, 0);
    while killed < kills {
        let out = format!("killed-{runs}");
        runs += 1;
        let fresh = arguments(purpose, &out, set);
        let resumed = [&fresh[..], &["--resume", "latest"]].concat();
        let mut arguments = &fresh;
        let checkpoints = dir.path().join(&out).join("checkpoints");
        loop {
            // The first kill comes after a checkpoint, so that at least one run is resumed on any machine.
            let moment = match killed {
                0 => Moment::AtCheckpoint(&checkpoints),
                _ => Moment::After(length.mul_f64(random.below_one())),
            };
            let done = if killed < kills {
                kill_at(dir.path(), arguments, moment)
            } else {
                good(dir.path(), arguments);
                true
            };
            if done {
                break;
            }
            killed += 1;
            after_checkpoints += usize::from(has_checkpoint(&checkpoints));
            arguments = &resumed;
        }
        same(&dir.path().join("whole"), &dir.path().join(&out));
    }
    assert!(after_checkpoints > 0, "{killed} kills, but none after a checkpoint, so no run was resumed");
    eprintln!(
        "{purpose} {set:?}: {killed} kills, {after_checkpoints} after a checkpoint, in {runs} runs of {:.2} s, {:.1} s",
        length.as_secs_f64(),
        started.elapsed().as_secs_f64()
    );
    once_each(&dir.path().join("whole"));
}

/// Checks that steps 3, 6, 9 and 12 are logged and steps 4, 8 and 12 evaluated, each exactly once.
fn once_each(run: &Path) {
    let lines = metrics(run);
    let lines = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let steps: Vec<u64> =
        lines.filter(|line| line.get("alarm").is_none()).map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [3, 4, 6, 8, 9, 12, 12]);
}

#[test]
fn grpo_survives_kills() {
    survives("train", &["record_rollouts=true"], 20, 1);
}

/// With a checkpoint after every step, most kills occur while one is being written.
#[test]
fn grpo_survives_kills_during_checkpoints() {
    survives("train", &["save_steps=1", "save_total_limit=2"], 20, 2);
}

/// Checkpoints are written between two uses of a generation batch, which has log-probabilities of the reference model.
#[test]
fn grpo_with_several_steps_per_batch_survives_kills() {
    let set = ["num_iterations=2", "steps_per_generation=2", "save_steps=1", "beta=0.04"];
    survives("train", &set, 20, 3);
}

/// A batch samples more prompts than it has groups; recorded rollouts are truncated with the other logs.
#[test]
fn grpo_with_dynamic_sampling_survives_kills() {
    let set = ["dynamic_sampling=true", "reward_funcs=[\"format:^[a-j]\"]", "record_rollouts=true", "num_iterations=2"];
    survives("train", &set, 20, 5);
}

/// The coefficient of the entropy bonus changes at every step, and the entropy of the previous step decides whether it
/// is applied.
#[test]
fn grpo_with_an_adaptive_entropy_bonus_survives_kills() {
    let bonus = ["use_adaptive_entropy=true", "entropy_coef=0.02", "entropy_target=3.4", "top_entropy_quantile=0.5"];
    survives("train", &[&bonus[..], &["loss_type=cispo", "epsilon_high=5", "save_steps=1"]].concat(), 8, 9);
}

/// Checkpoints are written between two uses of a generation batch with per-token advantages.
#[test]
fn reinforce_plus_plus_survives_kills() {
    let set = ["algorithm=reinforce_plus_plus", "num_generations=1", "num_iterations=2", "save_steps=1", "beta=0.04"];
    survives("train", &set, 8, 10);
}

/// Checkpoints contain the adapter and its moments; the base model is read from its original directory.
#[test]
fn grpo_with_an_adapter_survives_kills() {
    let set = ["use_peft=true", "lora_r=3", "lora_target_modules=all-linear", "beta=0.04", "num_iterations=2"];
    survives("train", &set, 8, 6);
}

/// The dropout noise continues exactly, also in the middle of a batch.
#[test]
fn grpo_with_dropout_survives_kills() {
    let adapter = ["use_peft=true", "lora_r=3", "lora_dropout=0.2", "lora_target_modules=all-linear"];
    let set = [&adapter[..], &["beta=0.04", "num_iterations=2", "save_steps=1"]].concat();
    survives("train", &set, 8, 11);
    survives("sft", &adapter, 4, 12);
    survives("dpo", &[&adapter[..], &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]].concat(), 4, 13);
}

/// Checkpoints contain the value model and its optimizer, the KL coefficient, and the order of the mini-batches.
#[test]
fn ppo_survives_kills() {
    let set = [
        "algorithm=ppo",
        "num_ppo_epochs=2",
        "num_mini_batches=2",
        "adap_kl_ctrl=true",
        "kl_horizon=20",
        "save_steps=1",
    ];
    survives("train", &set, 10, 6);
}

#[test]
fn sft_survives_kills() {
    survives("sft", &[], 10, 4);
}

#[test]
fn reward_model_training_survives_kills() {
    survives("reward", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"], 10, 8);
}

/// Checkpoints contain the adapter, and the score head with its f32 master weights.
#[test]
fn reward_model_training_with_a_bf16_adapter_survives_kills() {
    let adapter = ["use_peft=true", "lora_r=3", "lora_alpha=4", "lora_dropout=0.2", "lora_target_modules=all-linear"];
    let set = [&adapter[..], &["dtype=bf16", "dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]].concat();
    survives("reward", &set, 5, 16);
}

/// The reference's log-probabilities are not in checkpoints, and are recomputed.
#[test]
fn dpo_survives_kills() {
    survives("dpo", &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"], 5, 9);
}

/// A copy of the run `whole` as if it had been killed after step 4, while it wrote the checkpoint of step 6.
fn died(root: &Path, out: &str) {
    let copied = std::process::Command::new("cp").args(["-r", "whole", out]).current_dir(root).status().unwrap();
    assert!(copied.success());
    let run = root.join(out);
    fs::remove_dir_all(run.join("model")).unwrap();
    for step in [8, 10, 12] {
        fs::remove_dir_all(run.join(format!("checkpoints/step-{step:06}"))).unwrap();
    }
    let half = run.join("checkpoints/.unfinished-step-000006");
    fs::rename(run.join("checkpoints/step-000006"), &half).unwrap();
    let weights = fs::OpenOptions::new().write(true).open(half.join("model.safetensors")).unwrap();
    weights.set_len(100).unwrap();
    fs::remove_file(half.join("run_state.json")).unwrap();
    fs::write(run.join("completions/.completions_00006.parquet.77.tmp"), "half").unwrap();
    let log = run.join("metrics.jsonl");
    fs::write(&log, fs::read_to_string(&log).unwrap() + "{\"step\": 13, \"lo").unwrap();
}

#[test]
fn an_unfinished_checkpoint_is_deleted() {
    let dir = directory();
    good(dir.path(), &arguments("train", "whole", &[]));
    died(dir.path(), "half");
    let output = good(dir.path(), &["train", "--resume", "half"]);
    assert!(output.err.contains("resuming after step 4"), "{}", output.err);
    same(&dir.path().join("whole"), &dir.path().join("half"));
    once_each(&dir.path().join("half"));
    // Resuming a finished run changes nothing.
    good(dir.path(), &["train", "--resume", "half"]);
    same(&dir.path().join("whole"), &dir.path().join("half"));
}

/// Deletes tables of steps that the resumed run does not repeat.
#[test]
fn tables_of_later_steps_are_removed() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "whole", &[]));
    died(root, "half");
    good(root, &["train", "--resume", "half", "--set", "max_steps=6"]);
    let tables = fs::read_dir(root.join("half/completions")).unwrap();
    let mut tables: Vec<_> = tables.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    tables.sort();
    assert_eq!(tables, ["completions_00003.parquet", "completions_00006.parquet"]);
}

/// The run was killed after the last checkpoint was written and before an older one was deleted.
#[test]
fn a_checkpoint_above_the_limit_is_deleted() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "whole", &["save_total_limit=2"]));
    let copied = std::process::Command::new("cp").args(["-r", "whole", "killed"]).current_dir(root).status().unwrap();
    assert!(copied.success());
    let checkpoint = |step| root.join(format!("killed/checkpoints/step-{step:06}"));
    fs::create_dir(checkpoint(8)).unwrap();
    fs::remove_dir_all(root.join("killed/model")).unwrap();
    good(root, &["train", "--resume", "killed"]);
    assert!(!checkpoint(8).exists() && checkpoint(10).exists());
    same(&root.join("whole"), &root.join("killed"));
}

#[test]
fn a_run_without_a_checkpoint_starts_again_with_a_message() {
    let dir = directory();
    let root = dir.path();
    good(root, &arguments("train", "whole", &[]));
    died(root, "none");
    for step in [2, 4] {
        fs::remove_dir_all(root.join(format!("none/checkpoints/step-{step:06}"))).unwrap();
    }
    let output = good(root, &["train", "--resume", "none"]);
    assert!(output.err.contains("starts again from step 0"), "{}", output.err);
    same(&root.join("whole"), &root.join("none"));

    // The run was killed before config.toml was complete, or before its directory existed.
    fs::create_dir(root.join("unborn")).unwrap();
    fs::write(root.join("unborn/.config.toml.77.partial"), "seed = ").unwrap();
    for out in ["unborn", "nowhere"] {
        let output = good(root, &[&arguments("train", out, &[])[..], &["--resume", "latest"]].concat());
        assert!(output.err.contains("starts again from step 0"), "{}", output.err);
        same(&root.join("whole"), &root.join(out));
    }
    // The directory does not contain a run.
    let output = lockstep(root, &["train", "--resume", "latest", "--out", "typo"]);
    assert_eq!(output.code, Some(2), "{}", output.err);
    assert!(!root.join("typo").exists());
}

/// The stochastic rounding of bf16 moments continues exactly.
#[test]
fn grpo_in_bf16_survives_kills() {
    // The checkpoint contains the master weights; matmuls read rounded weights.
    survives("train", &["dtype=bf16", "beta=0.04"], 4, 31);
}

#[test]
fn grpo_with_bf16_moments_survives_kills() {
    survives("train", &["adam_moments_dtype=bf16", "save_steps=1"], 10, 7);
}

/// The reference is updated every second step: checkpoints of odd steps have an updated reference, and generations with
/// its log-probabilities.
#[test]
fn grpo_with_a_synced_reference_survives_kills() {
    let set = ["beta=0.2", "sync_ref_model=true", "ref_model_sync_steps=2", "num_iterations=3", "save_steps=1"];
    survives("train", &set, 10, 6);
}
