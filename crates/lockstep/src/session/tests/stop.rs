//! Runs that are stopped in the middle of a step, wherever a pass through a model checks for a stop request: scoring,
//! both gradients of PPO, evaluation. The resumed runs must have the same bits as an uninterrupted run.

mod begins;
mod decide;
mod ends;
mod scored;

use super::{config, directory, one_thread, options};
use crate::config::RolloutActivations::Off;
use crate::config::{Algorithm, Config, Purpose, Strategy};
use crate::{Rows, Run, RunOptions, StopReason, StopSignal};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use telemetry::Step;

/// More checks for a stop request than any run makes.
const NEVER: usize = 1 << 40;

/// Whether a metric is a time or a rate, which differs between runs.
pub(super) fn is_measured(name: &str) -> bool {
    ["time_s", "_per_s", "_per_second", "step_time", "_runtime"].iter().any(|end| name.ends_with(end))
        // Memory decides how many activations are kept.
        || ["peak_bytes", "rollout_activations_share"].contains(&name)
        // The number of drafted tokens depends on measured times.
        || name.starts_with("rollout/spec_decode_")
}

/// The files of a finished run, without time-dependent values: metrics, rollouts, completions tables, the final model,
/// and everything in the last checkpoint.
pub(super) fn files(run: &Path, steps: u64) -> BTreeMap<String, Vec<u8>> {
    fn walk(dir: &Path, out: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, out) } else { out.push(path) }
        }
    }
    let mut all = Vec::new();
    walk(run, &mut all);
    let without_times = |object: Map<String, Value>| -> Map<String, Value> {
        object.into_iter().filter(|(name, _)| !is_measured(name)).collect()
    };
    let last = format!("checkpoints/step-{steps:06}/");
    let mut out = BTreeMap::new();
    for path in all {
        let name = path.strip_prefix(run).unwrap().to_str().unwrap().to_owned();
        let mut bytes = std::fs::read(&path).unwrap();
        if name == "metrics.jsonl" {
            let text = String::from_utf8(bytes).unwrap();
            let line = |line: &str| Value::from(without_times(serde_json::from_str(line).unwrap())).to_string() + "\n";
            bytes = text.lines().map(line).collect::<String>().into_bytes();
        } else if name.ends_with("run_state.json") {
            let mut state: Map<String, Value> = serde_json::from_slice(&bytes).unwrap();
            for name in &["log_bytes", "xxh3"] {
                state.remove(*name).unwrap();
            }
            let Some(Value::Object(unlogged)) = state.remove("unlogged") else { panic!("no sums") };
            state.insert("unlogged".into(), without_times(unlogged).into());
            bytes = Value::from(state).to_string().into_bytes();
        }
        if name.ends_with("files.json") {
            // Removes the checksum of the changed state.
            let mut list: Value = serde_json::from_slice(&bytes).unwrap();
            list["files"].as_object_mut().unwrap().remove("run_state.json").unwrap();
            bytes = list.to_string().into_bytes();
        }
        let kept = ["metrics.jsonl", "rollouts.", "completions/", "model/", &last];
        if kept.iter().any(|part| name.starts_with(part)) {
            out.insert(name, bytes);
        }
    }
    out
}

/// Stops a run at each of its checks for a stop request, in turn, and resumes it. Returns the step after which each run
/// was stopped.
#[track_caller]
pub(super) fn stopped_anywhere(purpose: Purpose, more: Config, options: impl Fn() -> RunOptions) -> Vec<u64> {
    let dir = directory();
    let total = more.max_steps as u64;
    let model = Some(dir.path().join("model").display().to_string());
    let config = |out: &str| Config {
        model_name_or_path: model.clone(),
        output_dir: Some(dir.path().join(out)),
        log_completions: true,
        record_rollouts: purpose == Purpose::Grpo,
        // The number of updates that are scored depends on measured times, and each checks for a stop request.
        record_updates: false,
        ..more.clone()
    };
    let build = |out: &str, looks: usize| {
        let stop = StopSignal::new();
        let run = Run::new(purpose, config(out), options().stop_signal(stop.clone())).unwrap();
        stop.looks_left.store(looks, Ordering::Relaxed);
        (run, stop)
    };
    let (run, stop) = build("whole", NEVER);
    let whole = run.run().unwrap();
    assert_eq!((whole.stop_reason, whole.step.0), (StopReason::Completed, total));
    let expected = files(whole.dir.root(), total);
    assert!(expected.len() > 8 && expected.keys().any(|name| name.ends_with("exp_avg.safetensors")));
    assert_eq!(expected.keys().any(|name| name.contains("completions_0")), purpose == Purpose::Grpo);
    let looks = NEVER - stop.looks_left.load(Ordering::Relaxed);
    let mut steps = Vec::new();
    for look in 1..=looks {
        let out = format!("stopped-{look}");
        let (run, _) = build(&out, look);
        let stopped = run.run().unwrap();
        assert_eq!(stopped.stop_reason, StopReason::Interrupted, "at check {look} of {looks}");
        assert!(stopped.step < Step(total) || more.eval_strategy != Strategy::No, "at check {look} of {looks}");
        let saved = stopped.dir.checkpoint(stopped.step).is_dir();
        assert_eq!(saved, stopped.step > Step(0), "at check {look} of {looks}");
        steps.push(stopped.step.0);
        let resumed = Run::resume(purpose, &dir.path().join(&out), options()).unwrap().run().unwrap();
        assert_eq!((resumed.stop_reason, resumed.num_tokens), (StopReason::Completed, whole.num_tokens));
        let found = files(resumed.dir.root(), total);
        assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "at check {look} of {looks}");
        let other: Vec<&String> = expected.keys().filter(|name| expected[*name] != found[*name]).collect();
        assert!(other.is_empty(), "stopped at check {look} of {looks}, after step {}: {other:?}", stopped.step);
        std::fs::remove_dir_all(dir.path().join(&out)).unwrap();
    }
    steps
}

fn small() -> Config {
    Config { max_steps: 4, ..config(Path::new(""), "") }
}

/// Each group is a micro-batch, whose forward and backward passes check for a stop request before the only layer and
/// before the lm head. Only group 0 has a forward pass: the activations of the other groups are kept.
#[test]
fn a_gradient_is_cancelled_between_layers_and_micro_batches() {
    let config = Config { packing: false, skip_zero_gradients: false, ..small() };
    let steps = stopped_anywhere(Purpose::Grpo, config, options);
    assert_eq!(steps, [[0; 6].as_slice(), &[1; 4], &[2; 4], &[3; 4]].concat());
    let off = Config { packing: false, skip_zero_gradients: false, rollout_activations: Off, ..small() };
    let steps = stopped_anywhere(Purpose::Grpo, off, options);
    assert_eq!(steps, [[0; 8], [1; 8], [2; 8], [3; 8]].concat());
}

/// Rolls back the second step on a generation. The generation must be kept, and its completions reported only once.
#[test]
fn a_later_step_on_a_generation_is_rolled_back() {
    let config = Config { num_iterations: 2, beta: 0.1, logging_steps: 1, ..small() };
    let steps = stopped_anywhere(Purpose::Grpo, config, options);
    // The reference model's scores are computed at the start of a generation. In the first step, the group that is
    // compared is a micro-batch of its own; the first step on the second generation has no forward pass.
    assert_eq!(steps, [[0; 8].as_slice(), &[1; 4], &[2; 4], &[3; 4]].concat());
}

/// Checks the gradients of value model and policy, the order of mini-batches, and the KL controller, which a second
/// generation adapts again.
#[test]
fn a_step_of_ppo_is_rolled_back_before_both_models_change() {
    let config = Config {
        algorithm: Algorithm::Ppo,
        num_generations: 1,
        per_device_train_batch_size: 2,
        num_mini_batches: 2,
        num_ppo_epochs: 2,
        max_steps: 6,
        adap_kl_ctrl: true,
        kl_coef: 0.3,
        logging_steps: 1,
        // No checkpoint is due during the run, so the saved state is from after the stop.
        save_steps: 100,
        ..small()
    };
    let steps = stopped_anywhere(Purpose::Grpo, config, options);
    assert!((0..6).all(|step| steps.iter().filter(|s| **s == step).count() >= 4), "{steps:?}");
}

/// Stops runs during steps and during evaluations, which follow every second step.
#[test]
fn a_step_on_rows_is_rolled_back_and_takes_the_same_rows_again() {
    let pairs = || {
        let row = |word| json!({"prompt": format!("{word} "), "chosen": format!("{word}."), "rejected": "no"});
        Rows::try_from(["ab", "sun", "moon", "tree", "x", "river"].map(row).to_vec()).unwrap()
    };
    for purpose in [Purpose::Sft, Purpose::Dpo, Purpose::Reward] {
        let rows = || if purpose == Purpose::Sft { super::rows() } else { pairs() };
        let options = || RunOptions::new().context(one_thread()).train_rows(rows()).eval_rows(rows());
        let (eval_strategy, eval_steps) = (Strategy::Steps, Some(2));
        let config = Config { per_device_train_batch_size: 2, eval_strategy, eval_steps, ..small() };
        let steps = stopped_anywhere(purpose, config, options);
        assert!([0, 1, 2, 3, 4].iter().all(|step| steps.contains(step)), "{purpose:?}: {steps:?}");
    }
}

#[test]
fn a_checkpoint_callback_can_end_the_run() {
    let dir = directory();
    let options = options().on_checkpoint(|_, _| ControlFlow::Break(()));
    let config = Config { save_steps: 2, max_steps: 20, ..config(dir.path(), "out") };
    let ended = Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap();
    assert_eq!(ended.stop_reason, StopReason::Requested);
    assert!((2..20).contains(&ended.step.0), "{}", ended.step);
}
