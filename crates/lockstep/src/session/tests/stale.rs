//! Runs whose batches are generated ahead, with older weights than those that train on them. The weights after every
//! step are kept, and each token is scored again with them to prove which weights sampled it.

mod chunks;

use super::stop::{files, stopped_anywhere};
use super::{config, directory, rows};
use crate::config::{Algorithm, ComputeDType, Config, Purpose, Strategy};
use crate::rollouts::function::{Generate, GivenCompletion, RolloutFunction, RolloutRequest};
use crate::rollouts::wire::file::GroupFile;
use crate::rollouts::wire::{Completion, Group, Lineage};
use crate::{Run, RunEvent, RunOptions, StopSignal};
use kernels::Context;
use model::columns::OLD_LOGPS;
use model::{HeldWeights, PromptCompletion, Scorer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use telemetry::Step;
use train::ScaleRewards;
use train::loss::sampling::CorrectionMode;

fn context(config: &Config) -> Context {
    crate::context(None, Some(1), config.dtype).unwrap()
}

/// Options with a reward that counts vowels. If `planted`, answers to row 4 get a score that overflows f32.
fn options(config: &Config, planted: bool) -> RunOptions {
    let options = RunOptions::new().context(context(config)).train_rows(rows()).eval_rows(rows());
    options.reward("vowels", move |sample| {
        let vowels = sample.completion_text().chars().filter(|c| "aeiou".contains(*c)).count() as f64;
        let ids: u32 = sample.completion_ids().iter().sum();
        Some(if planted && sample.row() == 4 { 1e300 * f64::from(1 + ids) } else { vowels })
    })
}

fn stale(dir: &Path, out: &str, k: usize) -> Config {
    Config {
        max_staleness: k,
        max_steps: 7,
        logging_steps: 1,
        save_steps: 1,
        record_rollouts: true,
        log_completions: true,
        eval_strategy: Strategy::Steps,
        eval_steps: Some(2),
        ..config(dir, out)
    }
}

fn lora(config: &mut Config) {
    (config.use_peft, config.lora_r, config.learning_rate) = (true, 2, 0.1);
}

fn ppo(config: &mut Config) {
    (config.algorithm, config.num_generations) = (Algorithm::Ppo, 1);
    (config.per_device_train_batch_size, config.num_mini_batches, config.num_ppo_epochs) = (2, 2, 1);
    (config.adap_kl_ctrl, config.kl_coef) = (true, 0.3);
}

fn corrected(config: &mut Config) {
    config.vllm_importance_sampling_correction = true;
    config.vllm_importance_sampling_mode = CorrectionMode::TokenTruncate;
}

/// The results of a run, with the weights after each step.
struct Kept {
    /// The run's directory, which is removed on drop.
    _dir: Option<tempfile::TempDir>,
    root: PathBuf,
    weights: Vec<HeldWeights>,
}

fn kept(config: Config, planted: bool) -> Kept {
    let options = options(&config, planted);
    let weights: Arc<Mutex<Vec<HeldWeights>>> = Arc::default();
    let held = weights.clone();
    let options = options.on_event(move |event, policy| {
        if let RunEvent::Step(_) = event {
            held.lock().unwrap().push(policy.weights.hold());
        }
        ControlFlow::Continue(())
    });
    let run = Run::new(Purpose::Grpo, config, options).unwrap();
    let first = run.policy().weights.hold();
    let root = run.run().unwrap().dir.root().to_owned();
    weights.lock().unwrap().insert(0, first);
    let weights = std::mem::take(&mut *weights.lock().unwrap());
    Kept { _dir: None, root, weights }
}

/// The groups of a run, by the first step that trained on them.
fn groups(root: &Path) -> Vec<Group> {
    GroupFile::open(&root.join("rollouts.bin")).unwrap().groups().collect::<Result<_, _>>().unwrap()
}

/// The log-probabilities of a completion under the given weights.
fn scored(config: &Config, weights: &HeldWeights, group: &Group, completion: &Completion) -> Vec<f32> {
    let ctx = context(config);
    let mut scorer = Scorer::new(ctx.memory(), 1024, true);
    let one = PromptCompletion { prompt: &group.prompt_ids, completion: &completion.ids };
    scorer.score(&ctx, weights.view(), &[one], config.temperature).unwrap().remove(0).logps
}

fn metric(root: &Path, name: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(root.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line[name].as_f64()).collect()
}

/// A run with `max_staleness` = k. Every token of batch b must be sampled with the weights at the start of batch max(0,
/// b − k). With the importance sampling correction, π_old must come from the weights at the start of batch b.
#[track_caller]
fn proven(k: usize, planted: bool, change: impl Fn(&mut Config)) -> Kept {
    let dir = directory();
    let mut config = stale(dir.path(), "run", k);
    change(&mut config);
    let steps = (config.generation_batch() / config.completions_per_step() * config.passes()) as u64;
    let run = kept(config.clone(), planted);
    let (mut next, mut distinct) = (0, 0);
    // The lineage of the weights at the start of each batch, as recorded with the first group that they sampled.
    let mut lineages: BTreeMap<u64, Lineage> = BTreeMap::new();
    for group in groups(&run.root) {
        assert_eq!(group.group.0, next, "group numbers must ascend without gaps");
        next += 1;
        let batch = (group.step.unwrap().0 - 1) / steps;
        let batch_weights = |batch: u64| &run.weights[(batch * steps) as usize];
        let version = batch.saturating_sub(k as u64);
        assert_eq!(*lineages.entry(version).or_insert(group.lineage.unwrap()), group.lineage.unwrap());
        let (wrote, trained) = (batch_weights(version), batch_weights(batch));
        for completion in &group.completions {
            let own = completion.columns.sampler_logps().unwrap();
            assert_eq!(own, scored(&config, wrote, &group, completion), "batch {batch}");
            assert!(completion.versions.iter().all(|&version| version == wrote.view().version().trained()));
            let now = scored(&config, trained, &group, completion);
            distinct += usize::from(!own.is_empty() && own != now);
            let old = completion.columns.get(OLD_LOGPS);
            let is_stale = wrote.view().version() != trained.view().version();
            assert_eq!(old.is_some(), is_stale && config.vllm_importance_sampling_correction, "batch {batch}");
            if is_stale && config.vllm_importance_sampling_correction {
                assert_eq!(completion.columns.f32(OLD_LOGPS), Some(&now[..]));
            }
        }
    }
    let distinct_lineages: BTreeSet<String> = lineages.values().map(Lineage::to_string).collect();
    assert_eq!(distinct_lineages.len(), lineages.len(), "each batch must change the lineage");
    assert!(k == 0 || distinct > 3, "weights differ, {distinct}");
    let batches = (config.max_steps as u64).div_ceil(steps);
    let groups_of_batch = (config.generation_batch() / config.num_generations) as u64;
    assert_eq!(next, batches * groups_of_batch, "all generated groups must be trained on");
    assert!(metric(&run.root, "sampling/logp_mismatch_tokens").iter().all(|&tokens| tokens == 0.0));
    if k > 0 && !planted {
        let lags: Vec<f64> = (0..batches).map(|batch| batch.min(k as u64) as f64).collect();
        assert_eq!(metric(&run.root, "async/lag_max"), lags);
        assert_eq!(metric(&run.root, "async/lag_mean"), lags);
    }
    Kept { _dir: Some(dir), ..run }
}

#[test]
fn a_batch_is_sampled_with_the_weights_of_the_kth_batch_before() {
    proven(1, false, |_| {});
    proven(2, false, |_| {});
    // The staleness exceeds the number of batches.
    proven(9, false, |_| {});
}

#[test]
fn staleness_counts_a_batch_of_several_steps_once() {
    proven(1, false, |config| config.num_iterations = 2);
    proven(2, false, |config| (config.steps_per_generation, config.max_steps) = (Some(2), 9));
}

#[test]
fn lora_and_bf16_runs_sample_with_weights_k_batches_old() {
    proven(1, false, lora);
    proven(2, false, |config| {
        lora(config);
        config.dtype = ComputeDType::Bf16;
    });
    proven(1, false, |config| config.dtype = ComputeDType::Bf16);
}

#[test]
fn the_policy_scores_tokens_of_older_weights() {
    proven(1, false, corrected);
    proven(2, false, |config| {
        corrected(config);
        config.num_iterations = 2;
    });
    proven(2, false, |config| {
        corrected(config);
        lora(config);
    });
}

#[test]
fn other_algorithms_sample_with_weights_k_batches_old() {
    proven(2, false, |config| (config.algorithm, config.beta) = (Algorithm::Rloo, 0.1));
    proven(1, false, |config| (config.algorithm, config.beta) = (Algorithm::ReinforcePlusPlus, 0.1));
    proven(2, false, ppo);
    proven(1, false, |config| {
        config.algorithm = Algorithm::Distillation;
        config.teacher_model_name_or_path.clone_from(&config.model_name_or_path);
    });
}

/// A step with a non-finite gradient leaves the weights unchanged; the next batch must still have the next version.
#[test]
fn a_skipped_step_publishes_the_same_weights_under_the_next_number() {
    for k in [0, 2] {
        let scale = |config: &mut Config| config.scale_rewards = ScaleRewards::None;
        let run = proven(k, true, scale);
        let skipped = metric(&run.root, "skipped_steps");
        assert!(skipped.last().is_some_and(|&steps| steps >= 2.0), "{skipped:?}");
    }
}

/// If batches were filled with whatever completions are ready, short completions would be preferred. In every step, the
/// trained lengths must be the sampled ones.
#[test]
fn all_sampled_completions_are_trained_on() {
    let dir = directory();
    for k in [0, 1, 3] {
        let config =
            Config { eval_strategy: Strategy::No, max_completion_length: 40, ..stale(dir.path(), &format!("k{k}"), k) };
        let sampled: Arc<Mutex<Vec<usize>>> = Arc::default();
        let seen = sampled.clone();
        let options = options(&config, false).reward("seen", move |sample| {
            seen.lock().unwrap().push(sample.completion_ids().len());
            Some(0.0)
        });
        let run = Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap();
        let mut learned: Vec<usize> =
            groups(run.dir.root()).iter().flat_map(|group| &group.completions).map(|c| c.ids.len()).collect();
        let mut sampled = sampled.lock().unwrap().clone();
        learned.sort_unstable();
        sampled.sort_unstable();
        assert_eq!(learned, sampled, "k = {k}");
        assert!(learned.len() == 28 && learned[0] < learned[27], "{learned:?}");
    }
}

/// Each evaluation must use the weights of its own step.
#[test]
fn a_run_that_learns_nothing_equals_the_synchronous_run() {
    let dir = directory();
    let run = |out: &str, k: usize| {
        let config = Config { learning_rate: 0.0, ..stale(dir.path(), out, k) };
        let run = Run::new(Purpose::Grpo, config.clone(), options(&config, false)).unwrap().run().unwrap();
        let root = run.dir.root().to_owned();
        (metric(&root, "eval_reward"), metric(&root, "reward"), metric(&root, "num_tokens"), groups(&root))
    };
    let (expected, mut found) = (run("now", 0), run("stale", 2));
    assert_eq!((&expected.0, &expected.1, &expected.2), (&found.0, &found.1, &found.2));
    // The files are equal, except for recorded versions and lineages.
    for (a, b) in expected.3.iter().zip(&mut found.3) {
        b.lineage = a.lineage;
        a.completions.iter().zip(&mut b.completions).for_each(|(a, b)| b.versions.clone_from(&a.versions));
    }
    assert_eq!(expected.3, found.3);
}

/// Stops a run after each step, with a checkpoint that contains the batches generated ahead, and resumes it. All bits
/// must stay the same.
#[track_caller]
fn resumed(k: usize, frontier: &str, change: impl Fn(&mut Config)) {
    let dir = directory();
    let run = |out: &str, stop_after: u64| {
        let mut config = stale(dir.path(), out, k);
        change(&mut config);
        let stop = StopSignal::new();
        let request = stop.clone();
        let options = options(&config, false).stop_signal(stop).on_step(move |step| {
            if step == Step(stop_after) {
                request.request();
            }
            ControlFlow::Continue(())
        });
        Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap()
    };
    let whole = run("whole", 0);
    let expected = files(whole.dir.root(), whole.step.0);
    let mut with_frontier = 0;
    for step in 1..whole.step.0 {
        let stopped = run(&format!("stopped-{step}"), step);
        assert_eq!(stopped.step, Step(step));
        let root = stopped.dir.root();
        with_frontier += usize::from(root.join(format!("checkpoints/step-{step:06}/{frontier}")).exists());
        let mut config = stale(dir.path(), "", k);
        change(&mut config);
        Run::resume(Purpose::Grpo, root, options(&config, false)).unwrap().run().unwrap();
        let found = files(root, whole.step.0);
        let other: Vec<&String> = expected.keys().filter(|name| found.get(*name) != expected.get(*name)).collect();
        assert!(other.is_empty() && expected.len() == found.len(), "stopped after step {step}: {other:?}");
    }
    assert!(with_frontier > 2, "{with_frontier}");
    assert!(!whole.dir.model().join(frontier).exists());
}

const FRONTIER: &str = "frontier.bin";

#[test]
fn a_stopped_run_resumes_to_the_same_bits() {
    resumed(1, FRONTIER, |_| {});
    resumed(2, FRONTIER, |config| {
        corrected(config);
        lora(config);
        config.num_iterations = 2;
    });
    resumed(2, FRONTIER, ppo);
}

/// Interrupts a run at each check for a stop request, including while it generates ahead or scores older completions.
#[test]
fn a_discarded_step_generates_ahead_again() {
    let mut config = Config { max_steps: 4, packing: false, max_staleness: 2, ..config(Path::new(""), "") };
    corrected(&mut config);
    let plain = || options(&Config::default(), false);
    let steps = stopped_anywhere(Purpose::Grpo, config, plain);
    assert!((0..4).all(|step| steps.contains(&step)), "{steps:?}");
}

#[test]
fn a_damaged_frontier_is_refused() {
    let dir = directory();
    let config = stale(dir.path(), "run", 2);
    let run = Run::new(Purpose::Grpo, config.clone(), options(&config, false)).unwrap().run().unwrap();
    let checkpoint = run.dir.checkpoint(Step(3));
    let file = checkpoint.join("frontier.bin");
    let bytes = std::fs::read(&file).unwrap();
    let message = |damaged: &[u8]| {
        std::fs::write(&file, damaged).unwrap();
        // Removes the list of files, which would report the damage first.
        let _ = std::fs::remove_file(checkpoint.join("files.json"));
        let error = Run::resume(Purpose::Grpo, &checkpoint, options(&config, false)).err().expect("refused");
        format!("{error:#}")
    };
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    for (damaged, word) in
        [(&flipped[..], "checksum"), (&bytes[..bytes.len() - 3], "truncated"), (&[], "has 0 batches")]
    {
        let message = message(damaged);
        assert!(message.contains("frontier.bin") && message.contains(word), "{message}");
    }
}

/// A reward that must not be called.
struct Never;

impl RolloutFunction for Never {
    fn complete(&mut self, _: &RolloutRequest<'_>, _: &mut Generate<'_>) -> anyhow::Result<Vec<GivenCompletion>> {
        unreachable!("refused before")
    }
}

#[test]
fn settings_that_forbid_generating_ahead_are_refused() {
    let dir = directory();
    let refused = |change: fn(&mut Config), function: bool, words: &[&str]| {
        let mut config = stale(dir.path(), "out", 1);
        change(&mut config);
        let mut options = options(&config, false);
        if function {
            options = options.rollout_function(Never);
        }
        let error = Run::new(Purpose::Grpo, config, options).err().expect("refused");
        assert!(crate::error::is_bad_input(&error), "{error:#}");
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(!dir.path().join("out").exists());
    };
    refused(|config| config.dynamic_sampling = true, false, &["max_staleness", "dynamic_sampling"]);
    refused(|config| config.replay = Some("rollouts.bin".into()), false, &["max_staleness", "replay"]);
    refused(|_| {}, true, &["max_staleness", "rollout_func"]);
    refused(|config| config.max_staleness = 65, false, &["max_staleness", "64"]);
}
